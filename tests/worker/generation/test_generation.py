"""From a manifest to a published revision: what is in it, that it repeats, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tests.support.generation.learning import labelled_set
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.graphs import Tensors, npz_arrays, planted_graph, service_of, write_npz
from tests.support.models.pyg import assert_close, edges_of_graph, module_of, scores_of

from gnnserve_api.errors import InputError
from gnnserve_api.files.profile import VariantProfile
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Scope
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import Storage, projected_name, variant_name
from gnnserve_worker.generation import one_relation
from gnnserve_worker.generation import profile as profile_module
from gnnserve_worker.generation.networks import build_module, load_tensors
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.profile import GeneratedVariant, measure_profile
from gnnserve_worker.generation.train import train_on_rows
from gnnserve_worker.generation.training_set import fit_normalization, keep_columns
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import Inference, infer_batch, infer_each
from gnnserve_worker.models.network import decisive_scores
from gnnserve_worker.models.registry import first_layer, keep_columns_of
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.classify_nodes.labels import NodeLabels, fit_thresholds
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate

NODES, WIDTH = 200, 9
INFORMATIVE = (2, 5, 7)
CLASSES = (3, 7, 100)


@pytest.fixture(scope="module", autouse=True)
def short_profiles() -> Iterator[None]:
    """Two rounds instead of seconds of them: what is measured here is never asserted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile_module, "ROUNDS", (2, 2))
        patch.setattr(profile_module, "NEW_NODES_ROUNDS", (3, 3))
        yield


@dataclass(frozen=True)
class Generated:
    service: GNNService
    repository: Repository
    manifest: RevisionManifest
    loaded: LoadedRevision
    graph: GraphData
    stages: list[str]

    def weights(self, variant: str) -> Tensors:
        folder = self.repository.folder / "revisions" / self.manifest.revision
        return safetensors.numpy.load_file(folder / "variants" / variant / "weights.safetensors")


def _service(path: Path, **parts: Any) -> GNNService:
    model = {"hidden": 8, "fanouts": [4, 3], **parts.pop("model", {})}
    model["training"] = {"epochs": 3, "batchSize": 64, **model.get("training", {})}
    pruning = {"method": "Lasso", "factors": [1, 2, 4], **parts.pop("pruning", {})}
    variants = {"projection": "Disabled", **parts.pop("variants", {}), "pruning": pruning}
    return service_of(path.as_uri(), model=model, variants=variants, **parts)


def _data(**changes: Any) -> GraphData:
    return planted_graph(INFORMATIVE, columns=WIDTH, **{"nodes": NODES, "classes": CLASSES, **changes})


def _generate(folder: Path, data: GraphData, **parts: Any) -> Generated:
    path = write_npz(folder / "graph.npz", npz_arrays(data))
    service, repository = _service(path, **parts), Repository(folder / "repository", "default", "tiny")
    reports = HeardSteps()
    manifest = generate(service, repository, reports)
    if reports.heard:  # nothing is reported of a revision that was there
        reports.check()
    stages = list(dict.fromkeys(each.stage for each in reports.heard if not each.stage.startswith("imported: ")))
    graph = load_source(service.spec.graph.source, Path("unused"))
    return Generated(service, repository, manifest, load_revision(repository, manifest.revision), graph, stages)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return _generate(tmp_path_factory.mktemp("generated"), _data())


def _features(loaded: LoadedRevision) -> np.ndarray:
    """What the float32 table holds, without its padding."""
    table = next(iter(loaded.variants.values())).table
    values: np.ndarray = table.rows.values[:, : table.columns]
    return values


def _full(loaded: LoadedRevision, variant: str, nodes: np.ndarray) -> np.ndarray:
    """Scores with every neighbour taken, so that no draw is involved."""
    whole = {name: replace(known, fanouts=(-1,) * len(known.fanouts)) for name, known in loaded.variants.items()}
    return infer_batch(replace(loaded, variants=whole), variant, nodes, key=0).scores


# --- what is published


def test_the_revision_is_published_under_its_recipe_and_graph(generated: Generated) -> None:
    recipe, digest = generated.service.spec.recipe(), source_digest(generated.service.spec.graph.source)

    assert (generated.manifest.recipe, generated.manifest.graph) == (recipe, digest)
    assert generated.repository.find(recipe, digest) == generated.manifest
    assert generated.manifest.scope == "Inductive"


def test_how_every_network_was_trained_is_recorded(generated: Generated) -> None:
    training = generated.manifest.training

    assert training is not None
    assert training.epochs == 3
    # 120 training nodes in batches of 64.
    assert [(run.name, run.epochs, run.steps) for run in training.runs] == [(x, 3, 6) for x in ("x1", "x2", "x4")]
    assert all(1 <= run.best_epoch <= 3 and 0 < run.validation <= 1 for run in training.runs)


def test_widths_are_the_features_divided_by_the_factor_rounded_down(generated: Generated) -> None:
    assert {name: variant.columns for name, variant in generated.loaded.variants.items()} == {"x1": 9, "x2": 4, "x4": 2}


def test_the_ranking_is_a_permutation_of_the_sources_columns(generated: Generated) -> None:
    ranking = generated.manifest.ranking

    assert sorted(ranking.columns) == list(range(WIDTH))
    assert ranking.method == "Lasso"
    assert ranking.settings["epochs"] == 200


def test_the_table_holds_the_scaled_features_in_rank_order(generated: Generated) -> None:
    """So the columns of every variant are a prefix of the next wider one's."""
    scaled = fit_normalization(generated.graph.features, Normalization.AUTO, generated.graph.splits.train).features

    np.testing.assert_array_equal(
        _features(generated.loaded), np.asarray(scaled)[:, list(generated.manifest.ranking.columns)]
    )


def test_the_graph_is_published_with_the_sources_own_labels(generated: Generated) -> None:
    loaded = generated.loaded

    assert loaded.labels.classes == CLASSES
    np.testing.assert_array_equal(loaded.graph.indices, generated.graph.graph.indices)
    np.testing.assert_array_equal(loaded.labels.values, generated.graph.labels)
    np.testing.assert_array_equal(loaded.labels.splits.test, generated.graph.splits.test)


def test_the_network_is_the_manifests(generated: Generated) -> None:
    network = generated.manifest.variants[0].network

    assert (network.architecture, network.hidden, network.fanouts, network.classes) == ("GraphSAGE", 8, (4, 3), 3)


def _retrain(generated: Generated, columns: np.ndarray | None = None) -> Tensors:
    """The network that generation trained, trained once more."""
    spec, graph = generated.service.spec, generated.graph
    scaled = fit_normalization(graph.features, Normalization.AUTO, graph.splits.train).features
    data = labelled_set(graph.graph, graph.labels, 3, graph.splits, Scope.INDUCTIVE)
    return train_on_rows(data, scaled if columns is None else keep_columns(scaled, columns), spec.model).tensors


def test_x1_is_the_trained_master_with_its_columns_in_rank_order(generated: Generated) -> None:
    ranked = np.array(generated.manifest.ranking.columns)

    expected = keep_columns_of(_retrain(generated), ranked)

    weights = generated.weights("x1")
    assert weights.keys() == expected.keys()
    for key, tensor in expected.items():
        np.testing.assert_array_equal(weights[key], tensor)


@pytest.mark.parametrize(("variant", "columns"), [("x2", 4), ("x4", 2)])
def test_a_pruned_variant_is_trained_anew_on_its_columns(generated: Generated, variant: str, columns: int) -> None:
    kept = np.array(generated.manifest.ranking.columns[:columns])

    expected = _retrain(generated, kept)

    for key, tensor in generated.weights(variant).items():
        np.testing.assert_array_equal(tensor, expected[key])
    assert not np.allclose(
        generated.weights(variant)["convs.0.lin_l.weight"], generated.weights("x1")["convs.0.lin_l.weight"][:, :columns]
    )


def test_served_scores_of_x1_equal_the_trained_modules(generated: Generated) -> None:
    module, nodes = build_module(generated.service.spec.model, 9, 3).eval(), np.arange(NODES)
    load_tensors(module, _retrain(generated))
    scaled = np.asarray(
        fit_normalization(generated.graph.features, Normalization.AUTO, generated.graph.splits.train).features
    )

    served = _full(generated.loaded, "x1", nodes)

    assert_close(served, scores_of(module, scaled, edges_of_graph(generated.graph.graph)))


@pytest.mark.parametrize(("variant", "columns"), [("x1", 9), ("x2", 4), ("x4", 2)])
def test_published_weights_load_into_a_users_pyg_model(generated: Generated, variant: str, columns: int) -> None:
    module = build_module(generated.service.spec.model, columns, 3).eval()
    module.load_state_dict({key: torch.from_numpy(value) for key, value in generated.weights(variant).items()})

    served = _full(generated.loaded, variant, np.arange(NODES))

    features = np.ascontiguousarray(_features(generated.loaded)[:, :columns])
    assert_close(served, scores_of(module, features, edges_of_graph(generated.graph.graph)))


# --- the profile


def test_the_profile_measures_every_variant_at_all_three_batch_sizes(generated: Generated) -> None:
    profile = generated.manifest.profile

    assert profile.metric == "accuracy"
    assert [(v.name, v.factor, v.columns) for v in profile.variants] == [("x1", 1, 9), ("x2", 2, 4), ("x4", 4, 2)]
    for variant in profile.variants:
        assert [point.seeds for point in variant.latency] == [1, 32, 1024]
        for point in variant.latency:
            assert 0 < point.p50_ms <= point.p99_ms
            assert min(point.sample_ms, point.gather_ms, point.compute_ms, point.mean_ms) > 0
            assert point.runs == 2
        assert [(point.seeds, point.feature_bytes) for point in variant.new_nodes] == [
            (seeds, 4 * 9 * seeds) for seeds in (1, 32, 1024)
        ]
        for new in variant.new_nodes:
            assert 0 < new.overlay_ms < new.p50_ms <= new.p99_ms
            assert new.runs == 3
        assert 0 < variant.new_nodes[-1].edges <= 32 * 1024


def test_latency_is_measured_on_validation_nodes_and_variants_take_turns(
    generated: Generated, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, frozenset[int]]] = []
    new: list[tuple[str, int]] = []

    def recording(revision: LoadedRevision, variant: str, seeds: np.ndarray, key: int, **options: Any) -> Inference:
        if options.get("view") is None:
            calls.append((variant, frozenset(seeds.tolist())))
        elif options["view"].features is not None and len(options["view"].features) == len(seeds):
            new.append((variant, int(seeds.min()) - revision.graph.nodes))
        return infer_each(revision, variant, seeds, key, **options)

    labels = generated.loaded.labels
    splits = replace(labels.splits, test=np.zeros(0, dtype=np.int64))
    loaded = replace(generated.loaded, labels=replace(labels, splits=splits))
    made = [GeneratedVariant(variant, int(variant.name[1:]), 1) for variant in generated.manifest.variants]
    monkeypatch.setattr(profile_module, "infer_batch", recording)
    monkeypatch.setattr(profile_module, "infer_each", recording)

    reports: list[tuple[int, int]] = []
    judge = NodeLabels(loaded.labels.values, loaded.labels.classes, loaded.labels.splits).judge({})
    measure_profile(loaded, made, lambda done, total: reports.append((done, total)), judge)

    # By their time: a batch size as five, of new nodes as one, and then each variant's accuracy.
    assert [done for done, _ in reports] == [0, 5, 10, 15, 20, 21, 22, 23, 24, 25, 26]
    assert {total for _, total in reports} == {26}
    validation = set(loaded.labels.splits.validation.tolist())
    assert all(seeds <= validation for _, seeds in calls)
    assert [name for name, _ in calls[:6]] == ["x1", "x2", "x4"] * 2
    assert new == [("x1", 0), ("x2", 0), ("x4", 0)] * 9, "new nodes, in three rounds of each size"
    # A round puts the same nodes to every variant.
    assert len({seeds for _, seeds in calls[6:9]}) == 1


@pytest.mark.parametrize(("given", "budget_s"), [({}, 3.0), ({"GNNSERVE_PROFILE_SECONDS": "0.5"}, 0.5)])
def test_each_batch_size_is_measured_for_three_seconds_or_as_the_environment_says(
    given: dict[str, str], budget_s: float
) -> None:
    assert profile_module.profile_budget_s(given) == budget_s


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_refused_before_training(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(profile_module.BUDGET_VARIABLE, given)
    path = write_npz(tmp_path / "graph.npz", npz_arrays(_data()))
    with pytest.raises(InputError, match=f"GNNSERVE_PROFILE_SECONDS: '{given}' is not a number of seconds"):
        generate(_service(path), Repository(tmp_path / "repository", "default", "tiny"))
    assert not list((tmp_path / "repository").rglob("*.json"))


def test_accuracies_are_those_of_what_is_served(generated: Generated) -> None:
    loaded = generated.loaded
    for variant in generated.manifest.profile.variants:
        for nodes, claimed in (
            (loaded.labels.splits.validation, variant.validation_accuracy),
            (loaded.labels.splits.test, variant.test_accuracy),
        ):
            scores = infer_batch(loaded, variant.name, nodes, key=0).scores
            assert claimed == evaluate(scores, loaded.labels.values[nodes])


def test_bytes_per_batch_shrink_with_the_columns(generated: Generated) -> None:
    """Every variant was measured on the same draws."""
    for points in zip(*(variant.latency for variant in generated.manifest.profile.variants), strict=True):
        full, *pruned = (point.gathered_bytes for point in points)
        assert [bytes_ * 9 for bytes_ in pruned] == pytest.approx([full * 4, full * 2], rel=1e-3)


def test_sizes_are_those_of_the_files(generated: Generated) -> None:
    for variant in generated.manifest.profile.variants:
        file = generated.manifest.files[f"variants/{variant.name}/weights.safetensors"]
        assert variant.size_bytes == file.bytes
        assert variant.memory_bytes == file.bytes + NODES * variant.columns * 4


def test_a_graph_without_test_split_has_no_test_accuracy(tmp_path: Path) -> None:
    data = _data()
    data = replace(data, splits=replace(data.splits, test=np.zeros(0, dtype=np.int64)))

    profile = _generate(tmp_path, data, pruning={"factors": [1]}).manifest.profile

    assert profile.variants[0].test_accuracy is None


# --- a second time


def test_progress_tells_every_step_in_order(generated: Generated) -> None:
    assert generated.stages == [
        "import graph", "load torch", "train x1", "rank by Lasso", "train x2", "train x4", "write tables", "profile",
        "publish",
    ]  # fmt: skip


def test_progress_of_every_stage_ends_complete(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "graph.npz", npz_arrays(_data()))
    reports: list[Progress] = []

    generate(_service(path), Repository(tmp_path / "repository", "default", "tiny"), reports.append)

    last = {report.stage: report for report in reports}
    assert all(report.done == report.total for report in last.values())
    assert last["train x2"].total == 3
    assert last["train x2"].detail.startswith("validation 0.")


def test_a_second_call_returns_the_published_revision_without_work(generated: Generated) -> None:
    reports: list[Progress] = []

    again = generate(generated.service, generated.repository, reports.append)

    assert again == generated.manifest
    assert reports == []


SECOND_START = """
import os, signal, sys
from gnnserve_cli import serving
from gnnserve_cli.main import app

def announce(*_):
    print("imported: " + " ".join(sys.modules), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

serving.announce = announce
app(["run", sys.argv[1], "--repository", sys.argv[2], "--port", "0"])
"""
"""`gnnserve run`, which tells what was imported until it would tell its address."""
PACKAGES = {
    "annotated_doc", "annotated_types", "anyio", "charset_normalizer", "fastapi", "gnnserve_api", "gnnserve_cli",
    "gnnserve_client", "gnnserve_routing", "gnnserve_worker", "httptools", "llvmlite", "msgspec", "numba", "numpy",
    "opentelemetry",
    "orjson", "prometheus_client", "pydantic", "pydantic_core", "rich", "safetensors", "scipy", "shellingham",
    "starlette", "swagger_ui_bundle", "threadpoolctl", "typer", "typing_extensions", "typing_inspection", "uvloop",
    "yaml",
}  # fmt: skip
"""All packages that a server imports whose manifest asks for nothing beyond a model and its variants, and those that
they bring. What a field, an option or a request asks for is imported where that is."""
UNUSED = {"scipy.sparse", "sqlite3"}
"""Parts of them that such a server does not need."""
MOST_OWN_MODULES = 471
"""It has 471, eight of which follow the files of what is served, and five that tell of programs: their spec, which all
manifests are read by, how they fail, and what counts them. They take half of a start's imports: more is to be looked
at, before it is allowed."""
ROOMS_OF_OTHERS = (
    "gnnserve_cli.commands.serve",
    "gnnserve_worker.programs.runner",
    "gnnserve_worker.models.program",
    "gnnserve_worker.opening.rows_by_relation",
)
"""Modules that only other commands, or servers of programs, or of several types, import."""


def test_a_second_start_imports_what_it_serves_with_and_no_more(generated: Generated, tmp_path: Path) -> None:
    manifest = tmp_path / "tiny.yaml"
    manifest.write_text(generated.service.model_dump_json(by_alias=True, exclude_defaults=True))
    root = generated.repository.folder.parent.parent

    done = subprocess.run(
        [sys.executable, "-c", SECOND_START, str(manifest), str(root)], capture_output=True, text=True, check=False
    )

    modules = done.stdout.partition("imported: ")[2].splitlines()[0].split()
    own = [name for name in modules if name.startswith("gnnserve_")]
    assert UNUSED.isdisjoint(modules)
    packages = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    # colorama: of what makes the site of pages; others import it where it is installed.
    assert {name for name in packages if not name.startswith("_")} - {"cython_runtime", "colorama"} == PACKAGES
    assert len(own) <= MOST_OWN_MODULES, done.stderr
    assert set(ROOMS_OF_OTHERS).isdisjoint(own)


def test_another_objective_generates_nothing_anew(generated: Generated) -> None:
    parts = generated.service.model_dump(by_alias=True)
    parts["spec"]["objective"] = {"latencyMs": 3}

    again = generate(GNNService.model_validate(parts), generated.repository)

    assert again == generated.manifest


def test_a_changed_graph_file_is_generated_anew_and_the_old_revision_stays(tmp_path: Path) -> None:
    first = _generate(tmp_path, _data(), pruning={"factors": [1]})

    second = _generate(tmp_path, _data(seed=1), pruning={"factors": [1]})

    assert second.manifest.recipe == first.manifest.recipe
    assert second.manifest.revision != first.manifest.revision
    assert [m.revision for m in second.repository.revisions()] == [second.manifest.revision, first.manifest.revision]


def _tensor_digests(generated: Generated) -> dict[str, str]:
    return {name: entry.sha256 for name, entry in generated.manifest.files.items()}


def test_equal_seeds_generate_equal_files(tmp_path: Path, generated: Generated) -> None:
    assert _tensor_digests(_generate(tmp_path, _data())) == _tensor_digests(generated)


def test_another_seed_generates_other_weights(tmp_path: Path, generated: Generated) -> None:
    other = _generate(tmp_path, _data(), model={"training": {"seed": 1}})

    assert not np.allclose(other.weights("x1")["convs.1.lin_l.weight"], generated.weights("x1")["convs.1.lin_l.weight"])


# --- other manifests


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        pytest.param({}, {"pruning": {"method": "Random"}}, id="Random"),
        pytest.param({}, {"pruning": {"method": "Greedy"}}, id="Greedy"),
        pytest.param({}, {"model": {"architecture": "GIN"}}, id="GIN"),
        pytest.param({}, {"model": {"architecture": "GIN", "mlpHidden": 5}}, id="GIN, narrow inside"),
        pytest.param({"multi_label": True, "classes": None}, {}, id="several labels per node"),
        pytest.param({"sparse": True}, {}, id="sparse features"),
        pytest.param({"sparse": True}, {"model": {"architecture": "GIN"}}, id="sparse features with GIN"),
        pytest.param({}, {"model": {"fanouts": [-1, -1]}}, id="the full neighbourhood"),
        pytest.param({}, {"model": {"fanouts": [3]}}, id="one layer"),
        pytest.param({}, {"model": {"fanouts": [3, 2, 2, 2]}}, id="four layers"),
        pytest.param({}, {"model": {"training": {"scope": "Transductive"}}}, id="transductive"),
        pytest.param({}, {"normalization": "Disabled"}, id="features as they are"),
        pytest.param({}, {"pruning": {"factors": [9, 1, 3]}}, id="factors in any order, down to one column"),
    ],
)  # fmt: skip
def test_every_kind_of_manifest_is_generated_and_served(
    tmp_path: Path, changes: dict[str, Any], parts: dict[str, Any]
) -> None:
    made = _generate(tmp_path, _data(**changes), **parts)

    factors = sorted(made.service.spec.variants.pruning.factors)
    assert list(made.loaded.variants) == [f"x{factor}" for factor in factors]
    assert [variant.columns for variant in made.loaded.variants.values()] == [WIDTH // factor for factor in factors]
    assert sorted(made.manifest.ranking.columns) == list(range(WIDTH))
    assert made.manifest.ranking.method == made.service.spec.variants.pruning.method
    assert made.manifest.profile.metric == ("f1Micro" if changes.get("multi_label") else "accuracy")
    for variant in made.manifest.profile.variants:
        validation = made.loaded.labels.splits.validation
        scores = infer_batch(made.loaded, variant.name, validation, key=0).scores
        assert np.isfinite(scores).all()
        assert variant.validation_accuracy == evaluate(scores, made.loaded.labels.values[validation])


def test_accuracies_of_the_profile_are_by_the_chosen_metric(tmp_path: Path) -> None:
    made = _generate(tmp_path, _data(), variants={"metric": "MacroF1"}, pruning={"factors": [1]})

    (variant,) = made.manifest.profile.variants
    validation = made.loaded.labels.splits.validation
    scores = infer_batch(made.loaded, "x1", validation, key=0).scores
    assert made.manifest.profile.metric == "f1Macro"
    assert variant.validation_accuracy == evaluate(scores, made.loaded.labels.values[validation], "f1Macro")


def test_a_metric_that_does_not_fit_the_graph_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"spec\.variants\.metric.*several"):
        _generate(tmp_path, _data(multi_label=True, classes=None), variants={"metric": "Accuracy"})


def test_the_scope_is_recorded_and_decides_what_features_are_scaled_by(tmp_path: Path) -> None:
    made = _generate(tmp_path, _data(), model={"training": {"scope": "Transductive"}}, pruning={"factors": [1]})

    assert made.manifest.scope == "Transductive"
    assert np.abs(_features(made.loaded).mean(axis=0)).max() < 1e-5


def test_multi_label_scores_are_served_one_per_class(tmp_path: Path) -> None:
    made = _generate(tmp_path, _data(multi_label=True, classes=None), pruning={"factors": [1]})

    assert made.loaded.labels.multi_label
    assert made.loaded.labels.classes == (0, 1, 2)
    assert infer_batch(made.loaded, "x1", np.array([0, 1]), key=0).scores.shape == (2, 3)


def test_thresholds_of_each_variant_are_published_and_its_accuracies_go_by_them(tmp_path: Path) -> None:
    variants = {"thresholds": "PerClass", "metric": "MacroF1", "storage": ["float32", "int8"]}
    made = _generate(
        tmp_path, _data(nodes=400, multi_label=True, classes=None), pruning={"factors": [4]}, variants=variants
    )

    validation = made.loaded.labels.splits.validation
    labels = made.loaded.labels.values[validation]
    assert list(made.loaded.variants) == ["x4", "x4-int8"]
    for variant in made.manifest.variants:
        scores = infer_batch(made.loaded, variant.name, validation, key=0).scores
        assert variant.thresholds == fit_thresholds(scores, labels)
        found = made.manifest.profile.variant(variant.name).validation_accuracy
        assert found == evaluate(decisive_scores(scores, variant.thresholds), labels, "f1Macro")
        assert found >= evaluate(scores, labels, "f1Macro")


def test_thresholds_of_many_classes_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^spec\.variants\.thresholds: is PerClass"):
        _generate(tmp_path, _data(), variants={"thresholds": "PerClass"})


def test_factors_without_one_rank_by_a_master_that_is_not_served(tmp_path: Path) -> None:
    made = _generate(tmp_path, _data(), pruning={"factors": [4, 2], "method": "Greedy"})

    assert list(made.loaded.variants) == ["x2", "x4"]
    assert _features(made.loaded).shape == (NODES, 4)
    assert "train network" in made.stages
    assert "train x1" not in made.stages


def test_random_without_factor_one_trains_no_master(tmp_path: Path) -> None:
    made = _generate(tmp_path, _data(), pruning={"factors": [2], "method": "Random"})

    assert made.stages == [
        "import graph",
        "load torch",
        "rank by Random",
        "train x2",
        "write tables",
        "profile",
        "publish",
    ]


def test_projection_trains_a_master_even_for_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_relation, "worth_keeping", tuple)
    made = _generate(tmp_path, _data(), pruning={"factors": [2], "method": "Random"}, variants={"projection": "Auto"})

    assert "train network" in made.stages
    assert list(made.loaded.variants) == ["x2", "projected"]


def test_pruned_sets_of_columns_are_nested_whatever_the_factors(tmp_path: Path) -> None:
    made = _generate(tmp_path, _data(), pruning={"factors": [1, 2, 3, 9]})

    ranked = made.manifest.ranking.columns
    kept = [set(ranked[: variant.columns]) for variant in made.loaded.variants.values()]
    assert all(narrower < wider for wider, narrower in pairwise(kept))


# --- storages and projection

ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
ROUNDING = {Storage.FLOAT32: 1e-5, Storage.FLOAT16: 5e-3, Storage.BFLOAT16: 4e-2, Storage.INT8: 4e-2}
"""Of the largest score: what table and products lose, several layers deep."""


@pytest.fixture(scope="module", params=["GraphSAGE", "GIN"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    """Every storage, with every projected variant kept, however it was measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_relation, "worth_keeping", tuple)
        return _generate(
            tmp_path_factory.mktemp("stored"),
            _data(),
            model={"architecture": request.param},
            pruning={"factors": [1, 2]},
            variants={"storage": list(Storage), "projection": "Auto"},
        )


def test_every_factor_is_served_from_every_storage_and_projected(stored: Generated) -> None:
    names = [*(variant_name(factor, s) for factor in (1, 2) for s in Storage), *(projected_name(s) for s in Storage)]
    assert list(stored.loaded.variants) == names
    for found in stored.manifest.profile.variants:
        table = stored.loaded.variants[found.name].table
        assert found.table == f"{'projected' if found.projected else 'features'}-{found.storage}"
        assert (table.storage, table.projected, found.columns) == (
            found.storage,
            found.projected,
            8 if found.projected else WIDTH // found.factor,
        )
        assert found.compute == "float32" or found.storage is not Storage.FLOAT32


@pytest.mark.campaign
@pytest.mark.parametrize("storage", list(Storage))
def test_a_projected_variant_answers_as_the_unprojected_one(stored: Generated, storage: Storage) -> None:
    nodes = np.arange(NODES)
    expected = _full(stored.loaded, "x1", nodes)

    assert_close(_full(stored.loaded, projected_name(storage), nodes), expected, ROUNDING[storage])
    # As requests do it: equal keys draw equal neighbours.
    drawn = infer_batch(stored.loaded, projected_name(storage), nodes, key=5).scores
    assert_close(drawn, infer_batch(stored.loaded, "x1", nodes, key=5).scores, ROUNDING[storage])


@pytest.mark.campaign
@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("factor", [1, 2])
def test_every_storage_answers_as_float32_does(stored: Generated, factor: int, storage: Storage) -> None:
    nodes = np.arange(NODES)

    found = _full(stored.loaded, variant_name(factor, storage), nodes)

    assert_close(found, _full(stored.loaded, variant_name(factor), nodes), ROUNDING[storage])


def test_memory_is_that_of_weights_and_what_is_read(stored: Generated) -> None:
    two = 1 if stored.manifest.variants[0].network.architecture == "GIN" else 2
    read_bytes = {
        "x1": 4 * 9, "x1-float16": 2 * 9, "x1-int8": 9 + 4, "x2": 4 * 4,
        "projected": two * 4 * 8, "projected-bfloat16": two * 2 * 8, "projected-int8": two * (8 + 4),
    }  # fmt: skip
    for name, per_node in read_bytes.items():
        found = stored.manifest.profile.variant(name)
        assert found.memory_bytes == found.size_bytes + NODES * per_node, name


def test_a_row_of_every_table_can_be_made_from_raw_features(stored: Generated) -> None:
    source, tables = stored.manifest.row_source, stored.loaded.variants
    assert source is not None
    assert source.tensors is not None
    assert (source.normalization, source.columns) == ("Standardize", ())
    folder = stored.repository.folder / "revisions" / stored.manifest.revision
    kept = safetensors.numpy.load_file(folder / source.tensors)
    raw = np.asarray(stored.graph.features)[:7]

    scaled = ((raw - kept.pop("mean")) / kept.pop("deviation")).astype(np.float32)

    ranked = scaled[:, stored.manifest.ranking.columns]
    np.testing.assert_array_equal(tables["x1"].table.rows.values[:7, :WIDTH], ranked)
    assert kept.keys() == stored.weights("x1").keys() - stored.weights("projected").keys()
    of_neighbours = kept.pop(min(kept))  # lin_l, or GIN's only one
    table = tables["projected"].table
    np.testing.assert_allclose(table.rows.values[:7, :8], scaled @ of_neighbours.T, rtol=1e-5, atol=1e-6)
    for own in kept.values():
        np.testing.assert_allclose(table.own.values[:7, :8], scaled @ own.T, rtol=1e-5, atol=1e-6)


def test_smaller_fanouts_share_table_and_weights_and_are_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_projected(variants: Sequence[VariantProfile]) -> tuple[VariantProfile, ...]:
        return tuple(variant for variant in variants if variant.name != "projected")

    monkeypatch.setattr(one_relation, "worth_keeping", without_projected)
    made = _generate(tmp_path, _data(), pruning={"factors": [1]}, variants={"projection": "Auto", "fanouts": [[2, 2]]})

    assert list(made.loaded.variants) == ["x1", "x1-f2x2", "projected-f2x2"]
    assert [stage for stage in made.stages if stage.startswith("train")] == ["train x1"]
    weights = [variant.weights for variant in made.manifest.variants]
    assert weights == [f"variants/{name}/weights.safetensors" for name in ("x1", "x1", "projected")]
    assert [variant.family for variant in made.manifest.profile.variants] == [
        "pruned",
        "fanouts",
        "projected-fanouts",
    ]
    whole, fewer, stored = made.manifest.profile.variants
    assert (whole.fanouts, fewer.fanouts, fewer.factor, stored.projected) == ((4, 3), (2, 2), 1, True)
    assert fewer.latency[-1].gathered_bytes < whole.latency[-1].gathered_bytes
    nodes = np.arange(NODES)
    found = infer_batch(made.loaded, "x1-f2x2", nodes, key=1).scores
    assert_close(infer_batch(made.loaded, "projected-f2x2", nodes, key=1).scores, found, ROUNDING[Storage.FLOAT32])


def test_weights_of_a_projected_variant_lack_what_is_in_its_table(stored: Generated) -> None:
    whole, projected = stored.weights("x1"), stored.weights("projected")

    gone = whole.keys() - projected.keys()
    assert gone in ({"convs.0.lin_l.weight", "convs.0.lin_r.weight"}, {"convs.0.nn.lins.0.weight"})
    assert projected.keys() < whole.keys()


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        pytest.param({"sparse": True}, {}, id="sparse features"),
        pytest.param({"sparse": True}, {"architecture": "GIN"}, id="sparse features with GIN"),
        pytest.param({}, {"fanouts": [3]}, id="one layer, whose outputs are the classes"),
        pytest.param({}, {"fanouts": [3], "architecture": "GIN"}, id="one layer of GIN"),
        pytest.param({}, {"architecture": "GIN", "mlpHidden": 5}, id="GIN, narrow inside"),
        pytest.param({}, {"fanouts": [3], "architecture": "GIN", "mlpHidden": 5}, id="one layer of GIN, wide inside"),
        pytest.param({}, {"fanouts": [3, 2, 2]}, id="three layers"),
        pytest.param({}, {"fanouts": [-1, -1]}, id="the full neighbourhood"),
    ],
)
def test_every_kind_of_model_is_projected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], parts: dict[str, Any]
) -> None:
    monkeypatch.setattr(one_relation, "worth_keeping", tuple)
    made = _generate(tmp_path, _data(**changes), model=parts, pruning={"factors": [1]}, variants={"projection": "Auto"})

    nodes = np.arange(NODES)
    expected = infer_batch(made.loaded, "x1", nodes, key=3).scores
    assert_close(infer_batch(made.loaded, "projected", nodes, key=3).scores, expected)


def test_of_a_projected_variant_that_is_not_worth_its_place_nothing_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def only_listed(variants: tuple[VariantProfile, ...]) -> tuple[VariantProfile, ...]:
        measured.extend(variant.name for variant in variants)
        return tuple(variant for variant in variants if variant.name != "projected-int8")

    monkeypatch.setattr(one_relation, "worth_keeping", only_listed)
    made = _generate(
        tmp_path, _data(), pruning={"factors": [1]}, variants={"storage": ["float32", "int8"], "projection": "Auto"}
    )

    assert measured == ["x1", "x1-int8", "projected", "projected-int8"]
    assert list(made.loaded.variants) == ["x1", "x1-int8", "projected"]
    assert list(made.manifest.tables) == ["features-float32", "features-int8", "projected-float32"]
    folder = made.repository.folder / "revisions" / made.manifest.revision
    on_disk = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert on_disk == {*made.manifest.files, "revision.json"}


def test_without_storages_of_its_own_a_manifest_gets_float32_and_projection() -> None:
    spec = service_of("file:///a.npz").spec
    assert spec.variants.storage == (Storage.FLOAT32,)
    assert spec.variants.projection == "Auto"


def test_features_beyond_float16_are_refused_with_the_remedy(tmp_path: Path) -> None:
    data = _data()
    data = data.with_features(data.features * np.float32(50_000))

    with pytest.raises(
        InputError,
        match=r"spec\.variants\.storage: float16 ends at 65,504, and the graph's features reach [\d,]+; use bf",
    ):
        _generate(tmp_path, data, normalization="Disabled", variants={"storage": ["float32", "float16"]})

    _assert_nothing_published(Repository(tmp_path / "repository", "default", "tiny"))


def test_features_that_just_fit_float16_are_served(tmp_path: Path) -> None:
    data = _data()
    data = data.with_features(data.features * np.float32(65_519) / np.abs(data.features).max())

    made = _generate(
        tmp_path, data, normalization="Disabled", pruning={"factors": [1]}, variants={"storage": ["float16"]}
    )

    assert list(made.loaded.variants) == ["x1-float16"]


def test_products_beyond_float16_leave_only_that_projected_variant_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its features fit; what the first layer makes of them does not."""
    monkeypatch.setattr(one_relation, "worth_keeping", tuple)
    data = _data()
    state = _pyg_state("GraphSAGE")
    state["convs.0.lin_r.weight"] *= 1e5
    made = _give(
        tmp_path, state, data, pruning={"factors": [1]}, variants={"storage": ["float16", "int8"], "projection": "Auto"}
    )

    assert list(made.loaded.variants) == ["x1-float16", "x1-int8", "projected-int8"]
    assert [name for name in made.manifest.files if "projected" in name and "float16" in name] == []


def test_space_for_every_table_is_asked_for_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Repository, "require_free", lambda _, wanted_bytes: asked.append(wanted_bytes))

    _generate(tmp_path, _data(), pruning={"factors": [1]}, variants={"storage": ["float32", "int8"]})
    _generate(tmp_path, _data(), pruning={"factors": [1]}, variants={"storage": ["float32"], "projection": "Auto"})

    features, projected = NODES * 4 * 9, NODES * 4 * 8  # 36 and 32 bytes a row, padded to powers of two
    assert asked == [NODES * (64 + 16 + 4), NODES * 64 + 2 * projected]
    assert features < asked[0]


# --- given weights


def _pyg_state(architecture: str, layers: int = 2) -> dict[str, torch.Tensor]:
    module = module_of(architecture, (-1,) * layers, WIDTH, hidden=8, classes=3)
    return {key: tensor.clone() for key, tensor in module.state_dict().items()}


def _give(folder: Path, state: dict[str, torch.Tensor], data: GraphData | None = None, **parts: Any) -> Generated:
    checkpoint = folder / "model.safetensors"
    safetensors.torch.save_file(state, checkpoint)
    model = {"checkpoint": {"uri": checkpoint.as_uri()}, **parts.pop("model", {})}
    return _generate(folder, data or _data(), model=model, **parts)


@pytest.mark.campaign
@ARCHITECTURES
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_given_weights_answer_as_in_torch_geometric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, layers: int
) -> None:
    monkeypatch.setattr(one_relation, "worth_keeping", tuple)
    data, state = _data(), _pyg_state(architecture, layers)
    made = _give(
        tmp_path, state, data,
        model={"architecture": architecture, "fanouts": [3] * layers},
        variants={"projection": "Auto"}, pruning={"factors": [1]},
    )  # fmt: skip

    module = module_of(architecture, (-1,) * layers, WIDTH, hidden=8, classes=3)
    module.load_state_dict(state)
    expected = scores_of(module, np.asarray(data.features), edges_of_graph(data.graph))
    for name in ("x1", "projected"):
        assert_close(_full(made.loaded, name, np.arange(NODES)), expected)
    validation = made.loaded.labels.splits.validation
    accuracy = evaluate(infer_batch(made.loaded, "x1", validation, key=0).scores, made.loaded.labels.values[validation])
    assert made.manifest.profile.variant("x1").validation_accuracy == accuracy


@pytest.mark.campaign
@ARCHITECTURES
@pytest.mark.parametrize("method", ["Random", "Greedy", "Lasso"])
def test_given_weights_are_ranked_and_pruned_without_training(tmp_path: Path, architecture: str, method: str) -> None:
    made = _give(tmp_path, _pyg_state(architecture), model={"architecture": architecture}, pruning={"method": method})

    assert made.stages == [
        "import graph", "load checkpoint", f"rank by {method}", "refit x2", "refit x4", "write tables", "profile",
        "publish",
    ]  # fmt: skip
    assert list(made.loaded.variants) == ["x1", "x2", "x4"]
    given, kept = first_layer(made.weights("x1")), first_layer(made.weights("x2"))
    assert kept.columns == 4
    assert not np.allclose(kept.neighbours, given.neighbours[:4])
    for key, tensor in made.weights("x2").items():
        if not key.startswith("convs.0.") or key == "convs.0.eps":
            np.testing.assert_array_equal(tensor, made.weights("x1")[key])


def test_refitted_weights_keep_the_accuracy_that_the_columns_allow(tmp_path: Path) -> None:
    """A trained master's x2 keeps the planted columns, and classifies by them without having been trained."""
    (tmp_path / "trained").mkdir()
    data = _data()
    trained = _generate(
        tmp_path / "trained",
        data,
        model={"training": {"epochs": 30, "scope": "Transductive"}},
        normalization="Disabled",
    )
    columns = np.argsort(trained.manifest.ranking.columns)
    state = {key: torch.from_numpy(value) for key, value in keep_columns_of(trained.weights("x1"), columns).items()}
    (tmp_path / "given").mkdir()

    given = _give(tmp_path / "given", state, data, model={"training": {"scope": "Transductive"}})

    best = given.manifest.profile.variant("x1").validation_accuracy
    assert best == trained.manifest.profile.variant("x1").validation_accuracy
    assert best > 0.9
    assert given.manifest.profile.variant("x2").validation_accuracy > best - 0.06


def test_given_weights_read_features_as_they_are_unless_told_otherwise(tmp_path: Path) -> None:
    data, state = _data(), _pyg_state("GraphSAGE")
    data = data.with_features(data.features + np.float32(3))

    as_they_are = _give(tmp_path, state, data, pruning={"factors": [1], "method": "Random"})
    scaled = _give(tmp_path, state, data, pruning={"factors": [1], "method": "Random"}, normalization="Standardize")

    order = list(as_they_are.manifest.ranking.columns)
    np.testing.assert_array_equal(_features(as_they_are.loaded), np.asarray(data.features)[:, order])
    assert np.abs(_features(scaled.loaded).mean()) < 0.5


def test_another_file_at_the_same_place_is_another_revision(tmp_path: Path) -> None:
    state = _pyg_state("GraphSAGE")
    first = _give(tmp_path, state, pruning={"factors": [1]})
    again = _give(tmp_path, state, pruning={"factors": [1]})
    state["convs.0.lin_l.bias"] += 1
    second = _give(tmp_path, state, pruning={"factors": [1]})

    assert again.manifest == first.manifest
    assert (second.manifest.recipe, second.manifest.graph) == (first.manifest.recipe, first.manifest.graph)
    assert second.manifest.checkpoint != first.manifest.checkpoint
    assert second.manifest.revision != first.manifest.revision
    assert load_revision(first.repository, first.manifest.revision)


def _give_variants(
    folder: Path, columns: Sequence[Sequence[int]], architecture: str = "GraphSAGE", **variants: Any
) -> tuple[Generated, list[torch.nn.Module]]:
    """PyG's networks of these columns as given variants, with random weights."""
    modules = [module_of(architecture, (-1, -1), len(one), hidden=8, classes=3) for one in columns]
    given = []
    for number, (one, module) in enumerate(zip(columns, modules, strict=True)):
        path = folder / f"{number}.safetensors"
        safetensors.torch.save_file({key: tensor.clone() for key, tensor in module.state_dict().items()}, path)
        given.append({"checkpoint": {"uri": path.as_uri()}, "columns": one})
    parts = {"model": {"architecture": architecture, "fanouts": [3, 3]}, "pruning": variants.pop("pruning", {})}
    return _generate(folder, _data(), variants={"given": given, **variants}, **parts), modules


@pytest.mark.campaign
@ARCHITECTURES
def test_given_variants_alone_answer_as_in_torch_geometric(tmp_path: Path, architecture: str) -> None:
    columns = [[5, 2, 7], [2, 5], [8, 0]]
    made, modules = _give_variants(tmp_path, columns, architecture, pruning={"factors": []}, fanouts=[[2, 1]])

    assert made.stages == ["import graph", "load given variants", "write tables", "profile", "publish"]
    assert made.manifest.generator == f"gnnserve {version('gnnserve')}"
    assert (made.manifest.training, made.manifest.checkpoint, made.manifest.ranking.method) == (None, None, "None")
    assert list(made.manifest.given) == ["given-1", "given-2", "given-3"]
    assert {name: table.source_columns for name, table in made.manifest.tables.items()} == {
        "features-given-1-float32": (2, 5, 7),
        "features-given-3-float32": (8, 0),
    }
    assert list(made.loaded.variants) == [
        "given-1", "given-2", "given-3", "given-1-f2x1", "given-2-f2x1", "given-3-f2x1",
    ]  # fmt: skip
    for number, (one, module) in enumerate(zip(columns, modules, strict=True), start=1):
        expected = scores_of(module, np.asarray(made.graph.features)[:, one], edges_of_graph(made.graph.graph))
        assert_close(_full(made.loaded, f"given-{number}", np.arange(NODES)), expected)


def test_given_variants_stand_beside_those_that_are_trained(tmp_path: Path) -> None:
    made, (module,) = _give_variants(
        tmp_path, [range(WIDTH)[::-1]], pruning={"factors": [1, 3]}, storage=["float32", "int8"]
    )

    assert list(made.loaded.variants) == ["x1", "x1-int8", "x3", "x3-int8", "given-1", "given-1-int8"]
    assert set(made.manifest.tables) == {"features-float32", "features-int8"}, "all columns are a prefix of any order"
    assert made.manifest.training is not None
    assert [run.name for run in made.manifest.training.runs] == ["x1", "x3"]
    reversed_columns = np.asarray(made.graph.features)[:, ::-1]
    expected = scores_of(module, np.ascontiguousarray(reversed_columns), edges_of_graph(made.graph.graph))
    assert_close(_full(made.loaded, "given-1", np.arange(NODES)), expected)


def test_another_file_of_a_given_variant_is_another_revision(tmp_path: Path) -> None:
    first, (module,) = _give_variants(tmp_path, [[1, 2]], pruning={"factors": []})
    again = generate(first.service, first.repository)
    with torch.no_grad():
        next(module.parameters()).add_(1)
    safetensors.torch.save_file(module.state_dict(), tmp_path / "0.safetensors")
    second = generate(first.service, first.repository)

    assert again == first.manifest
    assert (second.recipe, second.graph) == (first.manifest.recipe, first.manifest.graph)
    assert second.revision != first.manifest.revision
    assert load_revision(first.repository, first.manifest.revision)


def test_given_weights_are_published_without_torch(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.safetensors"
    safetensors.torch.save_file(_pyg_state("GraphSAGE"), checkpoint)
    path = write_npz(tmp_path / "graph.npz", npz_arrays(_data()))
    service = _service(path, model={"checkpoint": {"uri": checkpoint.as_uri()}}, variants={"projection": "Auto"})
    script = """
import sys
from pathlib import Path
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation import profile
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.repository.repository import Repository
profile.ROUNDS = profile.NEW_NODES_ROUNDS = (2, 2)
service = GNNService.model_validate_json(sys.stdin.read())
print(generate(service, Repository(Path(sys.argv[1]), "default", "tiny")).generator)
print(sorted({name.split(".")[0] for name in sys.modules} & {"torch", "torch_geometric", "sklearn"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "repository")],
        input=service.model_dump_json(by_alias=True),
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout.splitlines() == [f"gnnserve {version('gnnserve')}", "[]"], done.stderr


def test_weights_that_do_not_fit_the_graph_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"convs\.0\.lin_l\.weight is \[8, 9\], expected \[16, 9\]; set spec"):
        _give(tmp_path, _pyg_state("GraphSAGE"), model={"hidden": 16})

    assert not (tmp_path / "repository").exists()


# --- what is refused


def _assert_nothing_published(repository: Repository) -> None:
    assert repository.revisions() == []
    assert not list(repository.folder.rglob("*.npy"))


def test_a_factor_larger_than_the_features_is_refused_before_training(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "graph.npz", npz_arrays(_data()))
    repository = Repository(tmp_path / "repository", "default", "tiny")
    reports: list[Progress] = []

    with pytest.raises(
        InputError, match=r"spec\.variants\.pruning\.factors\[1\]: 10 is larger than the graph's 9 features"
    ):
        generate(_service(path, pruning={"factors": [1, 10]}), repository, reports.append)

    assert not [report for report in reports if report.stage.startswith("train")]
    _assert_nothing_published(repository)


def test_sparse_features_are_standardized_where_the_manifest_says_so(tmp_path: Path) -> None:
    made = _generate(tmp_path, _data(sparse=True), normalization="Standardize", pruning={"factors": [1]})

    training = _features(made.loaded)[made.loaded.labels.splits.train]
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-5)


def test_a_missing_file_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "default", "tiny")

    with pytest.raises(InputError, match=r"cannot read .*none\.npz"):
        generate(_service(tmp_path / "none.npz"), repository)

    assert not (tmp_path / "repository").exists()


def test_a_malformed_graph_publishes_nothing(tmp_path: Path) -> None:
    arrays = npz_arrays(_data())
    arrays["features"] = np.where(arrays["features"] > 3, np.nan, arrays["features"])
    repository = Repository(tmp_path / "repository", "default", "tiny")

    with pytest.raises(InputError, match="expected a finite float32"):
        generate(_service(write_npz(tmp_path / "graph.npz", arrays)), repository)

    _assert_nothing_published(repository)


def test_a_failure_while_profiling_leaves_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("out of memory while profiling")

    path = write_npz(tmp_path / "graph.npz", npz_arrays(_data()))
    repository = Repository(tmp_path / "repository", "default", "tiny")
    monkeypatch.setattr("gnnserve_worker.generation.steps.measure_profile", fail)
    with pytest.raises(MemoryError):
        generate(_service(path, pruning={"factors": [1]}), repository)
    assert repository.revisions() == []

    monkeypatch.undo()
    assert generate(_service(path, pruning={"factors": [1]}), repository) == repository.revisions()[0]


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_a_revision_that_could_answer_nothing_is_not_published(tmp_path: Path) -> None:
    data = _data()
    huge = data.with_features(np.sign(data.features) * np.float32(3e38))

    with pytest.raises(InputError, match=r"spec\.graph\.normalization: variant x1 gives scores that are not finite"):
        _generate(tmp_path, huge, normalization="Disabled")

    assert Repository(tmp_path / "repository", "default", "tiny").revisions() == []
