"""A program is kept in a revision with its digest and its contract, and opened as the network of its variants."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.generation.repository import (
    FEATURES,
    NODES,
)
from tests.support.programs.programs import write_linear
from tests.support.programs.published_programs import PROGRAM_OF, WEIGHTS, published

from gnnserve_api.errors import DamagedError, InputError
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramLimits, ProgramManifest, ProgramOutput
from gnnserve_api.files.repository import PROGRAM
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.export.write import check_variant
from gnnserve_worker.following.routing import parse_routing
from gnnserve_worker.inference.batch import infer_batch, warm_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository import checks


def test_variants_of_a_program_are_opened_and_share_its_process(tmp_path: Path) -> None:
    repository, manifest = published(tmp_path)
    assert manifest.variants[0].network.architecture == PROGRAM
    assert manifest.variants[0].network.embedding_columns == 0
    loaded = load_revision(repository, manifest.revision)
    warm_up(loaded)
    features = np.arange(NODES * FEATURES, dtype=np.float32).reshape(NODES, FEATURES)
    seeds = np.array([3, 0, 5, 3], np.int64)
    for name in ("x1", "x2"):
        found = infer_batch(loaded, name, seeds, key=0)
        np.testing.assert_allclose(found.scores, features[seeds] @ WEIGHTS, rtol=1e-5)
        assert found.embeddings is None
    networks = [loaded.variants[name].network for name in ("x1", "x2")]
    assert all(isinstance(network, ProgramNetwork) for network in networks)
    assert len({id(network.runner) for network in networks if isinstance(network, ProgramNetwork)}) == 1


def test_limits_and_files_of_weights_are_kept(tmp_path: Path) -> None:
    limits = ProgramLimits(memory_bytes=1 << 30, seconds=2.5)
    program = msgspec.structs.replace(PROGRAM_OF, data_files=("model.onnx.data",), limits=limits)
    _, manifest = published(tmp_path, program)
    kept = manifest.variants[0].network.program
    assert isinstance(kept, ProgramManifest)
    assert kept.limits == limits
    assert kept.data_files == ("variants/x1/model.onnx.data",)
    assert {kept.file, *kept.data_files} <= manifest.files.keys()
    assert kept.sha256 == manifest.files[kept.file].sha256


class LimitedProgram:
    def __init__(self) -> None:
        self.limits: list[ProgramLimits] = []

    def limit(self, limits: ProgramLimits) -> None:
        self.limits.append(limits)


def test_programs_get_the_limits_of_a_table_that_has_any(tmp_path: Path) -> None:
    repository, manifest = published(tmp_path)
    program, limits = LimitedProgram(), ProgramLimits(seconds=2.0)
    served = served_revision(replace(load_revision(repository, manifest.revision), programs=(program,)))  # type: ignore[arg-type]
    served.follow(RoutingTable("r", "r"))
    served.follow(RoutingTable("r", "r", program_limits=limits))
    assert program.limits == [limits]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"memoryBytes": 0}, "programLimits.memoryBytes: expected a number of bytes above 0, found 0"),
        ({"seconds": -1.0}, "programLimits.seconds: expected a number of seconds above 0, found -1.0"),
    ],
)
def test_limits_of_a_table_that_are_none_are_refused(limits: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_routing(msgspec.json.encode({"revision": "a", "recipe": "b", "programLimits": limits}))


def test_another_file_in_place_of_the_program_is_refused(tmp_path: Path) -> None:
    repository, manifest = published(tmp_path)
    (path,) = tmp_path.rglob(manifest.variants[0].weights)
    path.chmod(0o644)
    write_linear(path, -WEIGHTS)
    with pytest.raises(DamagedError, match=r"model\.onnx"):
        load_revision(repository, manifest.revision)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"file": "variants/x2/model.onnx"}, "has the program variants/x2/model.onnx for variant x1, expected"),
        ({"sha256": "0" * 64}, "with the digest .*, expected 0000"),
        ({"scores": ProgramOutput("scores", 7)}, "7 columns of scores for variant x1, expected one for each of its 2"),
    ],
)
def test_a_contract_that_contradicts_its_revision_is_told(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    _, manifest = published(tmp_path)
    variant = manifest.variants[0]
    assert isinstance(variant.network.program, ProgramManifest)
    program = msgspec.structs.replace(variant.network.program, **change)
    network = msgspec.structs.replace(variant.network, program=program)
    other = msgspec.structs.replace(variant, network=network)
    assert checks.program_misfit(variant, manifest.files) is None
    assert re.search(words, checks.program_misfit(other, manifest.files) or "")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ((ProgramInput("x", InputRole.FEATURES, "shop"),), "x is of type 'shop'"),
        (
            (ProgramInput("x", InputRole.FEATURES), ProgramInput("a", InputRole.EDGE_FEATURES)),
            "a is features of edges, which have none",
        ),
    ],
)
def test_a_contract_that_does_not_fit_the_graph_is_refused(
    tmp_path: Path, inputs: tuple[ProgramInput, ...], words: str
) -> None:
    with pytest.raises(DamagedError, match=words):
        published(tmp_path, msgspec.structs.replace(PROGRAM_OF, inputs=inputs))


def test_a_program_is_not_exported_again(tmp_path: Path) -> None:
    _, manifest = published(tmp_path)
    with pytest.raises(InputError, match=r"x1 is a program, .* copy variants/x1/model\.onnx"):
        check_variant(manifest, "x1")
