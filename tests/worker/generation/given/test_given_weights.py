"""Weights that were trained elsewhere: what is assumed of them is told wherever a revision is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from tests.support.graphs.graphs import (
    network_manifest,
    npz_arrays,
    planted_graph,
    random_tensors,
    service_of,
    write_npz,
)
from tests.support.profiles import revision_manifest

from gnnserve_api.files.given_weights import ComparedScores, LabelMisfit, says_misfits, says_unchecked
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.files.repository import sealed
from gnnserve_api.files.training import Majority
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.generating import GenerationOutcome, advise
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.models.registry import ARCHITECTURES
from gnnserve_worker.progress import LineListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.classify_nodes.labels import label_misfits

GRAPH = planted_graph((0, 1), nodes=40, columns=4, classes=(0, 1))
SOURCE_VARIANTS = {"pruning": {"factors": [1]}, "projection": "Disabled"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_npz(tmp_path / "graph.npz", npz_arrays(GRAPH))
    tensors = random_tensors(network_manifest("GraphSAGE", (3, 2), classes=2), 4, seed=0)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def _service(files: Path, **parts: Any) -> GNNService:
    given = {"uri": (files / "model.safetensors").as_uri()}
    parts = {"model": {"hidden": 8, "fanouts": [3, 2], "checkpoint": given}, "variants": SOURCE_VARIANTS, **parts}
    return service_of((files / "graph.npz").as_uri(), **parts)


def _generate(files: Path, service: GNNService) -> tuple[Any, str]:
    log = io.StringIO()
    made = generate(service, Repository(files / "repository", "default", "tiny"), LineListener(log, lambda: 0.0))
    return made, log.getvalue()


def test_what_a_file_does_not_tell_is_in_the_log_and_in_the_provenance(files: Path) -> None:
    made, log = _generate(files, _service(files))

    assert "assumed of the given weights, whose files do not tell it: 1/1  6  activation ReLU between layers; " in log
    told = provenance_of(made, "a test", 1, 1).assumptions
    assert told["aggregation"] == "the mean of the neighbours"
    assert told["residual"] == "none"


def test_it_is_told_of_given_variants_too(files: Path) -> None:
    given = [{"checkpoint": {"uri": (files / "model.safetensors").as_uri()}, "columns": [3, 2, 1, 0]}]
    variants = {"pruning": {"factors": []}, "projection": "Disabled", "given": given}
    made, log = _generate(files, _service(files, model={"hidden": 8, "fanouts": [3, 2]}, variants=variants))

    assert "assumed of the given weights" in log
    assert provenance_of(made, "a test", 1, 1).assumptions["activation"] == "ReLU between layers"


def test_revisions_of_earlier_versions_say_that_nothing_is_known() -> None:
    manifest = revision_manifest()
    earlier = sealed(msgspec.structs.replace(manifest, checkpoint="0" * 64))

    assert provenance_of(earlier, "a test", 1, 1).assumptions == {"everything": "unknown"}
    assert provenance_of(manifest, "a test", 1, 1).assumptions == {}
    assert b"assumptions" not in msgspec.json.encode(earlier)


@pytest.mark.parametrize("spec", [spec for one in ARCHITECTURES.values() for spec in one.specs])
def test_every_architecture_that_reads_files_says_what_it_assumes(spec: Any) -> None:
    assert bool(spec.assumptions) == bool(spec.layer_kinds)
    if spec.layer_kinds:
        assert {"aggregation", "edge weights"} <= spec.assumptions.keys()


def test_compared_scores_leave_nothing_unchecked() -> None:
    assumed = {"activation": "ReLU between layers"}
    compared = ComparedScores("spec.model", "0" * 64, 600, "Logits", 0.0004, 1.0)

    assert says_unchecked({}, ()) is None
    assert says_unchecked(assumed, (compared,)) is None
    assert "assumed and not checked: activation ReLU between layers" in str(says_unchecked(assumed, ()))
    # One of them is refused where the other has the weights.
    assert "`expected` in spec.model or in an entry of spec.variants.given" in str(says_unchecked(assumed, ()))
    assert "an earlier version" in str(says_unchecked({"everything": "unknown"}, ()))
    assert compared.in_words == "spec.model: expected scores of 600 nodes equal within 0.0004 permille (Logits)"
    assert np.isclose(compared.difference_permille, 0.0004)


_COLORS = ("amber", "blue", "green", "red")
_ANSWERS = np.arange(200) % 4


def _misfits(labels: np.ndarray, validation: float) -> list[LabelMisfit]:
    spec = service_of("file:///g.npz", model={"checkpoint": {"uri": "file:///model.safetensors"}}).spec
    profile = msgspec.structs.replace(revision_manifest().profile.variants[0], validation_accuracy=validation)
    answers = {profile.name: _ANSWERS}
    return [*label_misfits(spec, [profile], answers, labels, _COLORS, Majority(0.25, len(labels)))]


def test_another_order_of_classes_is_found_by_the_labels() -> None:
    own = np.array([3, 2, 1, 0])  # columns red, green, blue, amber

    (found,) = _misfits(own[_ANSWERS], 0.0)

    assert (found.columns, found.permuted) == (("red", "green", "blue", "amber"), 1.0)
    said = str(says_misfits([found]))
    assert "with its output columns in the order red, green, blue, amber" in said
    assert "Columns are read as amber, blue, green, red: write the rows of the last layer's tensors" in said


def test_weights_that_fit_no_labels_are_told_from_those_that_do() -> None:
    (found,) = _misfits(np.random.default_rng(0).integers(0, 4, 200), 0.25)

    assert found.columns == ()
    assert "not told from the 0.250 of always giving the most frequent class" in str(says_misfits([found]))
    assert _misfits(_ANSWERS, 1.0) == []
    assert says_misfits([]) is None


def test_weights_that_tell_nothing_are_in_the_provenance(files: Path) -> None:
    tensors = safetensors.numpy.load_file(files / "model.safetensors")
    zeroed = {key: np.zeros_like(tensor) for key, tensor in tensors.items()}
    safetensors.numpy.save_file(zeroed, files / "model.safetensors")
    made, _ = _generate(files, _service(files))

    told = provenance_of(made, "a test", 1, 1).label_misfits
    assert told
    assert told[0].variant == made.variants[0].name


@pytest.mark.parametrize(
    ("nodes", "permille", "said"),
    [
        (1, 0.5, "expected scores of 1 node equal within 0.5 permille (Logits)"),
        (9, 5.0, "expected scores of 9 nodes differ by at most 5 permille (Logits), within the tolerance of 1000"),
        (9, 350.0, "so large a difference is of another computation or of other weights, not of rounding"),
    ],
)
def test_only_small_differences_are_called_equal(nodes: int, permille: float, said: str) -> None:
    assert said in ComparedScores("spec.model", "0" * 64, nodes, "Logits", permille, 1000.0).in_words


def test_trained_variants_beside_given_ones_are_not_held_to_be_given() -> None:
    given = [{"checkpoint": {"uri": "file:///model.safetensors"}, "name": "own", "columns": [0]}]
    spec = service_of("file:///g.npz", variants={"pruning": {"factors": [1]}, "given": given}).spec
    known = revision_manifest().profile.variants[0]
    profiles = [
        msgspec.structs.replace(known, name=name, validation_accuracy=0.1) for name in ("x1", "own", "own-int8")
    ]

    found = [*label_misfits(spec, profiles, {}, _ANSWERS, _COLORS, Majority(0.25, len(_ANSWERS)))]

    assert [one.variant for one in found] == ["own", "own-int8"]
    assert str(says_misfits(found)).endswith("(likewise own-int8)")


def test_the_command_warns_of_weights_that_do_not_fit_the_labels(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    misfit = LabelMisfit("x1", 0.02, Majority(0.25, 160), ("red", "amber"), 0.95)
    made = msgspec.structs.replace(revision_manifest(), label_misfits=(misfit,))
    advise(GenerationOutcome(made, is_measured=False), Repository(files, "default", "tiny"), _service(files))

    assert "warning: x1 gives 0.020 of 160 validation nodes their label, and 0.950 with" in capsys.readouterr().err
