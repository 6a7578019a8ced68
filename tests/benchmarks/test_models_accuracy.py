"""Accuracy of networks that learn as layers: samples, training in plain torch, one network both ways, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.models import cdda_items
from benchmarks.models.models import BENCHMARK
from benchmarks.models.models_accuracy import ARXIV, HEAD, ITEMS, accuracy_rows
from benchmarks.models.module_training import LabelledNodes, NeighbourSampler, TrainingPlan, scores_of, train_module
from benchmarks.models.trained_layers import NETWORKS, LearntGraph, measure
from tests.support.lacks import needs_graphs

CLASSES, NODES = 3, 90


def test_a_sample_has_different_neighbours_and_no_more_than_are_wanted() -> None:
    draw = np.random.default_rng(0)
    counts = draw.integers(0, 30, size=40)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.concatenate([draw.choice(40, count, replace=False) for count in counts]).astype(np.int32)
    sampler = NeighbourSampler(indptr, indices, (5, 3), seed=1)
    for _ in range(20):
        seeds = draw.choice(40, 7, replace=False)
        nodes, edges = sampler.sample(seeds)
        assert nodes[:7].tolist() == seeds.tolist() and len({*nodes.tolist()}) == len(nodes)
        pairs = list(zip(nodes[edges[0]].tolist(), nodes[edges[1]].tolist(), strict=True))
        assert len({*pairs}) == len(pairs)
        assert all(read in indices[indptr[reads] : indptr[reads + 1]] for read, reads in pairs)
        drawn = np.bincount(edges[1], minlength=len(nodes))
        assert drawn[:7].tolist() == np.minimum(counts[seeds], 5).tolist()
        assert (drawn[7:] <= 3).all()


def test_neighbours_are_drawn_alike_often() -> None:
    sampler = NeighbourSampler(np.array([0, 6, 6, 6, 6, 6, 6, 6]), np.arange(1, 7), (2,), seed=0)
    drawn = np.zeros(7)
    for _ in range(3000):
        drawn[sampler.sample(np.array([0]))[0][1:]] += 1
    np.testing.assert_allclose(drawn[1:], 1000, rtol=0.1)


def test_the_epoch_with_the_best_validation_is_kept() -> None:
    labels = np.array([0, 1] * 20)
    nodes = LabelledNodes(labels, np.arange(20), np.arange(20, 30), np.arange(30, 40))
    rows = torch.from_numpy(np.stack([labels, 1 - labels], axis=1).astype(np.float32))
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 2)
    found: list[float] = []

    def metric(scores: np.ndarray, of: np.ndarray) -> float:
        found.append(float(np.mean(scores.argmax(axis=1) == of)))
        return found[-1] if len(found) < 4 else 0.0

    best = train_module(
        module, lambda ids: module(rows[torch.from_numpy(ids)]), nodes, TrainingPlan(6, 0.5, 0.0, batch_size=8), 0,
        metric,
    )  # fmt: skip
    assert best == max(found[:3]) and len(found) == 6 and not module.training
    kept = scores_of(module, lambda ids: module(rows[torch.from_numpy(ids)]), nodes.validation)
    assert float(np.mean(kept.argmax(axis=1) == labels[nodes.validation])) == best


@pytest.fixture
def learnt(tmp_path: Path) -> LearntGraph:
    draw = np.random.default_rng(3)
    labels = np.arange(NODES) % CLASSES
    wanted = (labels[:, None] == labels) & (draw.random((NODES, NODES)) < 0.2)
    wanted |= wanted.T
    np.fill_diagonal(wanted, False)
    reads, read = np.nonzero(wanted)
    indptr = np.searchsorted(reads, np.arange(NODES + 1))
    features = (np.eye(CLASSES)[labels] + draw.normal(size=(NODES, CLASSES)) / 2).astype(np.float32)
    columns = draw.normal(size=(len(read), 2)).astype(np.float32)
    parts = np.split(draw.permutation(NODES), [45, 65])
    nodes = LabelledNodes(labels, *parts)
    masks = {name: np.isin(np.arange(NODES), part) for name, part in zip(("train", "val", "test"), parts, strict=True)}
    np.savez(
        tmp_path / "graph.npz", indptr=indptr, indices=read.astype(np.int32), features=features, labels=labels,
        edge_attr=columns, **{f"{name}_mask": mask for name, mask in masks.items()},
    )  # fmt: skip
    return LearntGraph(
        "tiny", tmp_path / "graph.npz", indptr, read.astype(np.int32), features, nodes, CLASSES, edge_columns=columns
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_is_trained_both_ways_and_weights_of_torch_are_served_as_they_are(
    network: str, learnt: LearntGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    plan = TrainingPlan(epochs=25, learning_rate=0.01, weight_decay=0.0)
    found = measure(learnt, NETWORKS[network](True), plan, 0.1, [0], tmp_path / "scratch")
    assert found["given"] == found["torch"]
    assert min(found["here"][0], found["torch"][0]) > 0.5


def test_a_network_is_trained_and_served_in_samples(
    learnt: LearntGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    graph = replace(learnt, edge_columns=None, fanouts=(5, 3))
    plan = TrainingPlan(epochs=12, learning_rate=0.01, weight_decay=0.0, batch_size=16)
    found = measure(graph, NETWORKS["GATv2"](False), plan, 0.1, [0], tmp_path / "scratch")
    assert abs(found["given"][0] - found["torch"][0]) < 0.2, "each draws its own neighbours"
    assert min(found["here"][0], found["torch"][0]) > 0.5


def results(**changed: Any) -> dict[str, Any]:
    """Findings of all networks, of which `changed` has other accuracies by way."""
    of = {"torch": [0.9, 0.91, 0.92], "given": [0.9, 0.91, 0.92], "here": [0.9, 0.91, 0.92]}
    rows = [{"graph": ITEMS, "network": "GraphSAGE", **of, "here": [0.89, 0.9, 0.91]}]
    rows += [{"graph": ITEMS, "network": one, **of} for one in ("GATv2", "GINE", "PNA")]
    rows += [{"graph": ARXIV, "network": one, **of} for one in ("GATv2", "Transformer")]
    rows[1] |= changed
    return {"accuracies": rows}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({"here": [0.88, 0.89, 0.9]}, ["below that of torch_geometric", "over GraphSAGE"]),
        ({"given": [0.9, 0.91, 0.915]}, ["served as layers"]),
    ],
)
def test_each_verdict_can_fail(changed: dict[str, Any], missed: list[str]) -> None:
    judged = {name: one["passed"] for name, one in BENCHMARK.judged(results(**changed)).items()}
    failed = [name for name, passed in judged.items() if not passed]
    assert len(judged) == 10
    assert len(failed) == len(missed) and all(any(part in name for name in failed) for part in missed)


def test_a_network_below_graph_sage_says_why_beside_its_own_figure() -> None:
    found = results()
    for one in found["accuracies"]:
        one["here"] = [0.95] * 3 if one["network"] == "GraphSAGE" else [0.6] * 3
    told = {name: one.get("reason", "") for name, one in BENCHMARK.judged(found).items() if "over GraphSAGE" in name}
    assert {name.split()[1] for name, reason in told.items() if "too few" in reason} == {"GINE", "PNA"}


def test_a_row_has_each_way() -> None:
    rows = list(accuracy_rows(results()["accuracies"]))
    assert rows[0] == (ITEMS, "GraphSAGE", "0.9100 ± 0.0100", "0.9100 ± 0.0100", "0.9000 ± 0.0100")
    assert len(rows[0]) == len(HEAD)


@needs_graphs
def test_items_are_one_graph_with_columns_of_edges() -> None:
    items = cdda_items.read_items()
    edges = {(int(read), int(reads)) for read, reads in items.edges.T}
    assert len(edges) == len(items.indices) == len(items.edge_columns)
    assert {(reads, read) for read, reads in edges} == edges
    assert (len(items.labels), len(items.train), len(items.validation), len(items.test)) == (7979, 3385, 1177, 1157)
    assert np.isfinite(items.features).all() and np.isfinite(items.edge_columns).all()
