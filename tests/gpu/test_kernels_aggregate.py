"""Aggregation of hidden states by kernels, against the CPU's over the same sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.graphs.graphs import dense_features, random_graph

from gnnserve_worker.gpu.arrays import PADDING, DeviceAggregation, DeviceGraph, PaddedTree
from gnnserve_worker.gpu.kernels.aggregate import aggregate_hidden
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own, aggregate

SEEDS = [*range(0, 80, 7), 14]


def _aggregations(width: int) -> dict[str, Aggregation]:
    none, bias = np.zeros(0, dtype=np.float32), dense_features(1, width, seed=width)[0]
    return {
        "mean": Aggregation(Aggregator.MEAN, Own.BESIDE, own_factor=1.0, bias=none, relu=False),
        "sum": Aggregation(Aggregator.SUM, Own.ADDED, own_factor=1.25, bias=none, relu=False),
        "no own": Aggregation(Aggregator.MEAN, Own.ADDED, own_factor=0.0, bias=bias, relu=True),
    }


@pytest.fixture(scope="module")
def sampled(device: torch.device) -> tuple[NeighbourSample, PaddedTree]:
    graph = random_graph(80, seed=1, isolated=0.2)
    fanouts = (18, 3, 2)
    tree = PaddedTree.allocate(len(SEEDS) + 2, fanouts, device)
    places = torch.tensor([*SEEDS, PADDING, PADDING], device=device)
    on_device = DeviceGraph(torch.tensor(graph.indptr, device=device), torch.tensor(graph.indices, device=device))
    sample_tree(on_device, places, torch.tensor([3], device=device), tree)
    sample = sample_neighbours(graph.indptr, graph.indices, np.array(SEEDS), fanouts, 3, Scratch(), share=False)
    return sample, tree


@pytest.mark.parametrize("name", ["mean", "sum", "no own"])
@pytest.mark.parametrize("width", [1, 21, 130])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=["to float32", "to bfloat16"])
def test_hidden_states_are_aggregated_as_on_the_cpu(
    name: str, width: int, depth: int, out_dtype: torch.dtype,
    sampled: tuple[NeighbourSample, PaddedTree], device: torch.device,
) -> None:  # fmt: skip
    sample, tree = sampled
    aggregation = _aggregations(width)[name]
    real = tree.ids[: tree.rows].cpu().numpy() >= 0
    hidden = dense_features(len(sample.nodes), width, seed=4)
    padded = np.full((tree.rows, width), np.nan, dtype=np.float32)
    padded[real] = hidden
    rows = tree.ends[depth]
    columns = 2 * width if aggregation.stacked else width
    room = torch.full((rows + 1, columns), 7.0, dtype=out_dtype, device=device)

    aggregate_hidden(
        torch.tensor(padded, device=device), tree, rows, DeviceAggregation.of(aggregation, device), room[:-1]
    )

    expected = np.empty(sample.ends[depth] * columns, dtype=np.float32)
    aggregate(hidden, sample, sample.ends[depth], aggregation, expected)
    found = room[:-1].float().cpu().numpy()
    tolerance = 2.0**-8 if out_dtype == torch.bfloat16 else 1e-5
    np.testing.assert_allclose(
        found[real[:rows]], expected.reshape(-1, columns), rtol=tolerance, atol=1e-5 * np.abs(expected).max()
    )
    assert (found[~real[:rows]] == 0).all()
    assert (room[-1] == 7).all()


def test_what_does_not_fit_the_tree_is_refused(
    sampled: tuple[NeighbourSample, PaddedTree], device: torch.device
) -> None:
    _, tree = sampled
    aggregation = DeviceAggregation.of(_aggregations(8)["sum"], device)
    hidden, out = torch.zeros(tree.rows, 8), torch.zeros(tree.seeds, 8)
    with pytest.raises(ValueError, match=r"inner rows end at"):
        aggregate_hidden(hidden, tree, tree.ends[-1], aggregation, out)
    with pytest.raises(ValueError, match="hidden is"):
        aggregate_hidden(hidden[: tree.ends[1] - 1], tree, tree.seeds, aggregation, out)
    with pytest.raises(ValueError, match="out is"):
        aggregate_hidden(hidden, tree, tree.seeds, aggregation, out[:, :4])
