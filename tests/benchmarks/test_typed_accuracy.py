"""Accuracy over several types: what is trained is served as layers, and every verdict can fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.models.models import BENCHMARK
from benchmarks.models.models_typed_accuracy import HEAD, MODELS, REFERENCES, typed_rows
from benchmarks.models.module_training import LabelledNodes
from benchmarks.models.typed_accuracy import TypedGraph, load_graph, macro_f1, train_and_serve

NODES, COLUMNS, CLASSES = 60, 6, 3


def typed_graph() -> TypedGraph:
    draw = np.random.default_rng(1)
    pairs = np.stack([draw.integers(0, NODES, 150), draw.integers(0, 20, 150)])
    x = {
        kind: torch.from_numpy(draw.normal(size=(count, COLUMNS)).astype(np.float32)) for kind, count in COUNTS.items()
    }
    edges = {("paper", "by", "author"): torch.from_numpy(pairs)}
    edges["author", "rev_by", "paper"] = edges["paper", "by", "author"].flip(0).contiguous()
    return TypedGraph(x, edges, draw.integers(0, CLASSES, NODES), {})


COUNTS = {"paper": NODES, "author": 20}


@pytest.mark.parametrize("model", MODELS)
def test_a_network_is_trained_and_its_layers_give_its_scores(model: str) -> None:
    graph = typed_graph()
    nodes = LabelledNodes(graph.labels, np.arange(30), np.arange(30, 45), np.arange(45, 60))
    found = train_and_serve(model, graph, nodes, seed=0, epochs=2)
    assert 0 < found["difference"] < 1e-5
    assert found["torch"] == found["layers"]


def found_of(macro: float, torch_macro: float, difference: float) -> dict[str, object]:
    def scores(of: float) -> dict[str, list[float]]:
        return {"macroF1": [of, of], "microF1": [of, of]}

    one = {"torch": scores(torch_macro), "layers": scores(macro), "difference": difference}
    return {"typedAccuracy": {"tasks": {task: dict.fromkeys(MODELS, one) for task in REFERENCES}}}


@pytest.mark.parametrize(
    ("found", "failed"),
    [
        pytest.param(found_of(0.95, 0.95, 1e-7), 0, id="as published"),
        pytest.param(found_of(0.95, 0.94, 1e-7), 1, id="other scores of classes"),
        pytest.param(found_of(0.95, 0.95, 1e-4), 1, id="other scores"),
        pytest.param(found_of(0.50, 0.50, 1e-7), len(REFERENCES) * len(MODELS), id="below what is published"),
    ],
)
def test_verdicts(found: dict[str, object], failed: int) -> None:
    judged = {name: one for name, one in BENCHMARK.judged(found).items() if name.startswith("typed accuracy")}
    assert len(judged) == 2 + len(REFERENCES) * len(MODELS)
    assert sum(not one["passed"] for one in judged.values()) == failed


def test_a_missed_figure_says_what_the_published_one_has_over_it() -> None:
    judged = BENCHMARK.judged(found_of(0.50, 0.50, 1e-7))
    for task, reference in REFERENCES.items():
        told = [one.get("reason", "") for name, one in judged.items() if name.startswith(f"typed accuracy, {task},")]
        assert told == [reference.beside] * len(MODELS)
    assert "labels of a fifth of the test nodes" in REFERENCES["imdb"].beside


def test_rows_have_what_was_published_beside() -> None:
    rows = [*typed_rows(found_of(0.9, 0.9, 0.0)["typedAccuracy"])]
    assert {len(row) for row in rows} == {len(HEAD)}
    assert rows[0][-1] == "0.8856 (HeCo)"


def test_macro_f1_is_the_mean_over_classes() -> None:
    scores = np.eye(2)[[0, 0, 0, 1]]
    assert macro_f1(scores, np.array([0, 0, 1, 1])) == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_features_are_words_that_are_there_and_means_of_these(tmp_path: Path) -> None:
    meta = {"target": "paper", "node_types": {"paper": 2, "author": 2}, "relations": [["paper", "by", "author", 2]]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    words = {"feat_indptr": [0, 2, 3], "feat_indices": [0, 2, 1], "feat_data": [0.5, 0.5, 3.0], "feat_shape": [2, 3]}
    np.savez(tmp_path / "nodes_paper.npz", labels=np.array([0, 1]), train_mask=np.array([True, False]), **words)
    np.savez(tmp_path / "edges_paper__by__author.npz", src=np.array([0, 1]), dst=np.array([0, 0]))
    graph = load_graph(tmp_path)
    assert graph.x["paper"].tolist() == [[1, 0, 1], [0, 1, 0]]
    assert graph.x["author"].tolist() == [[0.5, 0.5, 0.5], [0, 0, 0]]
    assert graph.edges["author", "rev_by", "paper"].tolist() == [[0, 0], [0, 1]]
    assert list(graph.masks) == ["train_mask"]
