"""One-row variants: trained beside the model, from labels and from its scores; a row per seed; honest about scope."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.models.pyg import assert_close, module_of, to_tensors
from tests.support.overlays.overlays import scores_of_new_node

import gnnserve_worker.generation.train as train_module
from gnnserve_api.families import point_of
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.files.training import TrainingRun, says_learnt
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_worker.generation.layers import CPU
from gnnserve_worker.generation.learning import KeptNetworks, Resumption
from gnnserve_worker.generation.node_rows import NodeRows
from gnnserve_worker.generation.one_row import MasterTeacher, TrainedOneRows
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.train import TrainedNetwork, train
from gnnserve_worker.generation.training_set import fit_normalization, model_rows, visible_nodes
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

GRAPH = planted_graph([1, 5, 8], nodes=300)
BOTH = [{"hops": 2}, {"hops": 0}]
MODEL = {"hidden": 16, "fanouts": [4, 3], "training": {"epochs": 20}}


def _generate(
    folder: Path, model: dict[str, Any], graph: GraphData = GRAPH, **variants: Any
) -> tuple[RevisionManifest, LoadedRevision]:
    uri = write_npz(folder / "graph.npz", npz_arrays(graph)).as_uri()
    repository = Repository(folder / "repository", "default", "tiny")
    manifest = generate(
        service_of(uri, model=model, variants={"pruning": {"factors": [1]}, "oneRow": BOTH, **variants}), repository
    )
    return manifest, load_revision(repository, manifest.revision)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[RevisionManifest, LoadedRevision]:
    return _generate(tmp_path_factory.mktemp("one-row"), MODEL, storage=["float32", "int8"])


def _runs(manifest: RevisionManifest) -> dict[str, TrainingRun]:
    assert manifest.training is not None
    return {run.name: run for run in manifest.training.runs}


def test_they_stand_behind_the_models_own_variants(generated: tuple[RevisionManifest, LoadedRevision]) -> None:
    manifest, _ = generated
    assert [variant.name for variant in manifest.variants][-4:] == ["mlp0", "mlp0-int8", "mlp2", "mlp2-int8"]
    assert [variant.family for variant in manifest.variants][-4:] == ["one-row"] * 2 + ["propagated-one-row"] * 2
    networks = {variant.name: variant.network for variant in manifest.variants}
    assert (networks["x1"].architecture, networks["x1"].fanouts, networks["x1"].hops) == ("GraphSAGE", (4, 3), None)
    assert (networks["mlp2"].architecture, networks["mlp2"].fanouts, networks["mlp2"].hops) == ("SIGN", (0, 0), 2)


def test_a_seed_reads_one_row_as_wide_as_the_hidden_layer(generated: tuple[RevisionManifest, LoadedRevision]) -> None:
    _, loaded = generated
    seeds = GRAPH.splits.test
    for name, row_bytes in {"mlp0": 64, "mlp2": 64, "mlp2-int8": 20}.items():
        answer = infer_batch(loaded, name, seeds, key=1)
        assert answer.gathered_bytes == row_bytes * len(seeds)
        assert (answer.scores.argmax(axis=1) == GRAPH.labels[seeds]).mean() > 0.7


def test_the_record_says_what_each_has_learnt_from(generated: tuple[RevisionManifest, LoadedRevision]) -> None:
    runs = _runs(generated[0])
    for name in ("mlp0", "mlp2"):
        assert [*runs[name].tried] == ["labels", "scores", "both"]
        assert runs[name].validation == runs[name].tried[runs[name].learnt_from] == max(runs[name].tried.values())
        assert says_learnt(runs[name]).startswith(f"{runs[name].learnt_from}: validation ")
    assert runs["x1"].tried == {}


def test_over_features_alone_they_answer_about_new_nodes(generated: tuple[RevisionManifest, LoadedRevision]) -> None:
    manifest, loaded = generated
    assert isinstance(GRAPH.features, np.ndarray)
    able = {v.name for v in manifest.variants if point_of(v).capabilities.overlay}

    assert able == {name for name, variant in loaded.variants.items() if variant.rows is not None}
    assert {"x1", "mlp0", "mlp0-int8"} <= able
    assert not {"mlp2", "mlp2-int8"} & able
    assert not any(point_of(v).capabilities.embeddings for v in manifest.variants if v.name.startswith("mlp"))
    assert served_revision(loaded).compute.overlays.array_form.are_taken
    for name, tolerance in {"mlp0": 1e-5, "mlp0-int8": 2e-2}.items():
        known = infer_batch(loaded, name, np.array([7]), key=1).scores
        assert_close(scores_of_new_node(loaded, name, GRAPH.features[7], neighbour=3), known, tolerance)


def test_a_projected_variant_and_one_row_ones_make_rows_by_weights_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnserve_worker.generation.one_relation.worth_keeping", lambda variants: variants)
    assert isinstance(GRAPH.features, np.ndarray)

    _, loaded = _generate(tmp_path, MODEL, oneRow=[{"hops": 0}])

    made = {name: loaded.variants[name].rows for name in ("projected", "mlp0")}
    assert all(maker is not None for maker in made.values())
    for name in ("x1", "projected", "mlp0"):
        scores_of_new_node(loaded, name, GRAPH.features[7], neighbour=3)
    assert_close(
        scores_of_new_node(loaded, "projected", GRAPH.features[7], neighbour=3),
        scores_of_new_node(loaded, "x1", GRAPH.features[7], neighbour=3),
        1e-4,
    )


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["SGC", "SIGN", "GCN", "GIN", "GAT"])
def test_any_model_has_them(tmp_path: Path, architecture: str) -> None:
    model = {"architecture": architecture, "hidden": 16, "fanouts": {"SGC": [0], "SIGN": [0, 0]}.get(architecture, [3])}

    manifest, loaded = _generate(tmp_path, {**model, "training": {"epochs": 5}}, oneRow=[{"hops": 1}, {"hops": 0}])

    assert {"mlp0", "mlp1"} <= loaded.variants.keys()
    assert {v.network.hops for v in manifest.variants if v.name in ("mlp0", "mlp1")} == {0, 1}
    assert isinstance(GRAPH.features, np.ndarray)
    known = infer_batch(loaded, "mlp0", np.array([7]), key=1).scores
    assert_close(scores_of_new_node(loaded, "mlp0", GRAPH.features[7], neighbour=3), known, 1e-5)


def test_they_are_trained_beside_given_weights_too(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(module_of("GraphSAGE", (4, 3), 12, hidden=16).state_dict(), path)
    model = {**MODEL, "checkpoint": {"uri": path.as_uri()}}

    manifest, _ = _generate(tmp_path, model, oneRow=[{"hops": 1}])

    assert [*_runs(manifest)] == ["mlp1"]
    assert "torch" in manifest.generator


def test_nodes_of_several_classes_are_learnt_from_scores_too(tmp_path: Path) -> None:
    several = np.stack([GRAPH.labels == 0, GRAPH.labels > 0, GRAPH.labels == 2], axis=1).astype(np.uint8)
    graph = GraphData.of_one_type(
        source="made up", digest="several", graph=GRAPH.graph, features=GRAPH.features, labels=several,
        classes=GRAPH.classes, splits=GRAPH.splits, edge_rules=GRAPH.edge_rules,
    )  # fmt: skip

    manifest, _ = _generate(tmp_path, MODEL, graph, oneRow=[{"hops": 0}])

    assert _runs(manifest)["mlp0"].tried["scores"] > 0.7


# --- what training may see


def _lessons(scope: Scope, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[Any]:
    """What one-row networks are trained on."""
    model = Model.model_validate({"hidden": 8, "fanouts": [3, 2], "training": {"epochs": 1, "scope": scope}})
    data = labelled_set(GRAPH.graph, GRAPH.labels, 3, GRAPH.splits, scope)
    visible = visible_nodes(GRAPH.graph.nodes, GRAPH.splits, scope)
    normalized = fit_normalization(GRAPH.features, Normalization.STANDARDIZE, visible)
    seen: list[Any] = []

    def noting(*arguments: Any) -> TrainedNetwork:
        seen.append(arguments[1])
        return train(*arguments)

    monkeypatch.setattr(train_module, "train", noting)
    master = to_tensors(module_of("GraphSAGE", (3, 2), 12))
    rows = NodeRows(data, visible, 1, lambda one_row, _: model_rows(one_row, data, normalized), [normalized.features])
    resumption = Resumption(KeptNetworks(folder, 0), {}, silent)
    read = model_rows(model, data, normalized).trained
    teacher = MasterTeacher(model, read, data.visible_graph, 3, CPU, master)
    one_rows = TrainedOneRows(model, rows, lambda tensors, decoder: teacher, silent, CPU, resumption)
    one_rows.one_row(1, "mlp1", one_rows.teacher_of(master, {}))
    return seen


def test_inductive_training_learns_scores_of_training_nodes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [lesson.nodes.tolist() for lesson in _lessons(Scope.INDUCTIVE, tmp_path, monkeypatch)] == [
        GRAPH.splits.train.tolist()
    ] * 3


def test_transductive_training_learns_scores_of_all_nodes_and_labels_of_training_nodes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    labels, scores, both = _lessons(Scope.TRANSDUCTIVE, tmp_path, monkeypatch)
    assert labels.nodes.tolist() == GRAPH.splits.train.tolist()
    assert scores.nodes.tolist() == both.nodes.tolist() == [*range(300)]
    found = torch.zeros((2, 3))
    unlabelled = GRAPH.splits.test[:2]
    torch.testing.assert_close(both.loss(found, unlabelled), scores.loss(found, unlabelled))
    known = GRAPH.splits.train[:2]
    expected = (scores.loss(found, known) + labels.loss(found, known)) / 2
    torch.testing.assert_close(both.loss(found, known), expected)
