"""Sampling by kernels: the contract of all samplers, and how trees are laid out and padded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch
from tests.support.graphs.graphs import graph_of, random_graph
from tests.support.sampling.sampler_contract import FANOUTS, SamplerContract, Tree
from torch import Tensor

from gnnserve_worker.gpu.arrays import PADDING, DeviceGraph, PaddedTree
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.neighbours import SampleWeights, Scratch, sample_neighbours
from gnnserve_worker.sampling.padded import PadScratch, TreeArrays, TreeShares, pad_sample

Put = Callable[[np.ndarray], Tensor]


def _sampled(
    graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int, put: Put, device: torch.device,
    positions: Tensor | None = None,
) -> PaddedTree:  # fmt: skip
    tree = PaddedTree.allocate(len(seeds), fanouts, device)
    on_device = DeviceGraph(put(graph.indptr), put(graph.indices))
    sample_tree(on_device, torch.tensor(seeds, device=device), torch.tensor([key], device=device), tree, positions)
    return tree


class TestKernel(SamplerContract):
    examples = 40
    hub_keys = 3
    draws = 1000

    @pytest.fixture(autouse=True)
    def _place(self, put: Put, device: torch.device) -> None:
        self.put, self.device = put, device

    def sample(self, graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int = 1) -> list[Tree]:
        tree = _sampled(graph, seeds, fanouts, key, self.put, self.device)
        levels = [tree.nodes(depth).tolist() for depth in range(len(fanouts) + 1)]
        below: list[Tree] | list[int] = levels[-1]
        for depth in reversed(range(len(fanouts))):
            counts = tree.counts[tree.begin(depth) : tree.ends[depth]].tolist()
            fanout = fanouts[depth]
            below = [
                (node, below[row * fanout : row * fanout + count])
                for row, (node, count) in enumerate(zip(levels[depth], counts, strict=True))
            ]
        return below


@FANOUTS
def test_rows_and_neighbours_are_those_of_the_cpu_in_the_same_order(
    fanouts: tuple[int, ...], put: Put, device: torch.device
) -> None:
    graph = random_graph(300, seed=3, mean_degree=20)
    seeds = [*range(0, 300, 11), 22, 22]

    tree = _sampled(graph, seeds, fanouts, 42, put, device)

    expected = sample_neighbours(graph.indptr, graph.indices, np.array(seeds), fanouts, 42, Scratch(), share=False)
    rows = tree.ids[: tree.rows].cpu().numpy()
    drawn = tree.ids[tree.seeds :].cpu().numpy()
    np.testing.assert_array_equal(rows[rows >= 0], expected.nodes)
    np.testing.assert_array_equal(tree.counts.cpu().numpy()[rows >= 0], np.diff(expected.starts))
    np.testing.assert_array_equal(drawn[drawn >= 0], expected.neighbours)


@FANOUTS
def test_samples_of_the_cpu_are_laid_out_as_those_of_kernels(
    fanouts: tuple[int, ...], put: Put, device: torch.device
) -> None:
    graph = random_graph(300, seed=3, mean_degree=3)
    seeds, count = np.arange(0, 300, 25), 300 // 25
    tree = _sampled(graph, [*seeds.tolist(), *[PADDING] * 4], fanouts, 42, put, device)
    ids, counts = np.empty(len(tree.ids), np.int32), np.empty(tree.rows, np.int32)
    shares = TreeShares(np.full(len(ids), -1, np.float32), np.full(tree.rows, -1, np.float32))
    arrays = TreeArrays.over(fanouts, tree.seeds, ids, counts, shares)
    arrays.clear()

    for first, end in ((0, 5), (5, count)):
        sample = sample_neighbours(graph.indptr, graph.indices, seeds[first:end], fanouts, 42, Scratch(), share=False)
        weights = SampleWeights(sample.neighbours.astype(np.float32), sample.nodes.astype(np.float32))
        weighed = msgspec.structs.replace(sample, weights=weights)
        pad_sample(weighed, arrays, PadScratch(), first_seed=first, nodes=300)

    np.testing.assert_array_equal(ids, tree.ids.cpu().numpy())
    np.testing.assert_array_equal(counts, tree.counts.cpu().numpy())
    drawn, rows = ids[tree.seeds :], ids[: tree.rows]
    np.testing.assert_array_equal(shares.of_places[tree.seeds :], drawn)
    np.testing.assert_array_equal(shares.of_rows, rows)


@FANOUTS
def test_padding_seeds_and_missing_neighbours_bring_nothing(
    fanouts: tuple[int, ...], put: Put, device: torch.device
) -> None:
    graph = graph_of([[1], [], [0, 1, 3], [2] * 40])
    seeds = [3, PADDING, 0, 1, PADDING]

    tree = _sampled(graph, seeds, fanouts, 1, put, device)

    ids, counts = tree.ids.tolist(), tree.counts.tolist()
    for row, (start, count) in enumerate(zip(tree.starts.tolist(), counts, strict=True)):
        depth = next(depth for depth, end in enumerate(tree.ends) if row < end)
        places = ids[start : start + fanouts[depth]]
        assert count == (0 if ids[row] < 0 else min(fanouts[depth], int(np.diff(graph.indptr)[ids[row]])))
        assert [place >= 0 for place in places] == [place < count for place in range(fanouts[depth])]
    assert tree.nodes(0).tolist() == seeds


@FANOUTS
@pytest.mark.parametrize("changes", [False, True], ids=["stays", "changes"])
def test_positions_are_those_of_the_cpu(
    fanouts: tuple[int, ...], changes: bool, put: Put, device: torch.device
) -> None:
    graph = random_graph(300, seed=3, mean_degree=20)
    if changes:
        graph = Graph(np.stack((graph.indptr[:-1], graph.indptr[1:]), axis=1).copy(), graph.indices)
    seeds = [*range(0, 300, 11), 22, 22, PADDING]
    plain = _sampled(graph, seeds, fanouts, 42, put, device)
    positions = torch.full_like(plain.ids, -7, dtype=torch.int64)

    tree = _sampled(graph, seeds, fanouts, 42, put, device, positions)

    expected = sample_neighbours(
        graph.indptr, graph.indices, np.array(seeds[:-1]), fanouts, 42, Scratch(), share=False, names_positions=True
    )
    assert torch.equal(tree.ids, plain.ids)
    found = positions.cpu().numpy()
    np.testing.assert_array_equal(found[tree.seeds :] >= 0, tree.ids[tree.seeds :].cpu().numpy() >= 0)
    np.testing.assert_array_equal(found[found >= 0], expected.positions)
    assert (found[: tree.seeds] == PADDING).all()
    assert found.min() == PADDING


def test_positions_of_another_shape_or_type_are_refused(put: Put, device: torch.device) -> None:
    graph = random_graph(30, seed=3)
    for positions in (torch.zeros(5, dtype=torch.int64), torch.zeros(3 + 9, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"positions are .*, expected torch.int64 \[12\]"):
            _sampled(graph, [1, 2, 3], (3,), 1, put, device, positions.to(device))


def test_a_tree_is_sampled_anew_into_the_same_arrays(put: Put, device: torch.device) -> None:
    """Nothing of the batch before shines through: as a captured graph would be replayed."""
    graph = random_graph(200, seed=5, mean_degree=8)
    on_device = DeviceGraph(put(graph.indptr), put(graph.indices))
    tree = PaddedTree.allocate(8, (6, 4), device)
    seeds, key = torch.zeros(8, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    for batch in range(4):
        wanted = list(range(20 * batch, 20 * batch + 8 - 2 * batch)) + [PADDING] * (2 * batch)
        seeds.copy_(torch.tensor(wanted))
        key.fill_(batch)

        sample_tree(on_device, seeds, key, tree)

        alone = _sampled(graph, wanted, (6, 4), batch, put, device)
        assert torch.equal(tree.ids, alone.ids)
        assert torch.equal(tree.counts, alone.counts)


def test_every_place_belongs_to_one_row(device: torch.device) -> None:
    tree = PaddedTree.allocate(3, (4, 2, 5), device)

    assert tree.ends == (3, 15, 39, 159)
    assert (tree.seeds, tree.rows, len(tree.ids)) == (3, 39, 159)
    spans = [[3, 15, 4], [15, 39, 2], [39, 159, 5]]
    assert tree.starts.tolist() == [start for span in spans for start in range(*span)]
    assert [tree.neighbours(depth).shape for depth in range(3)] == [(3, 4), (12, 2), (24, 5)]
    assert [(tree.begin(depth), tree.ends[depth]) for depth in range(3)] == list(pairwise((0, *tree.ends[:-1])))
    assert tree.ids.unique().tolist() == [PADDING]


@pytest.mark.parametrize(("seeds", "fanouts"), [(0, (2,)), (1, ()), (1, (3, -1)), (1, (2, 0)), (2**21, (1024,))])
def test_trees_that_cannot_be_are_refused(seeds: int, fanouts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a tree of"):
        PaddedTree.allocate(seeds, fanouts, torch.device("cpu"))


def test_seeds_and_key_of_another_shape_or_type_are_refused(device: torch.device) -> None:
    graph = DeviceGraph(torch.zeros(2, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    tree = PaddedTree.allocate(2, (3,), device)
    key = torch.zeros(1, dtype=torch.int64)
    for seeds in (torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"expected torch.int64 \[2\]"):
            sample_tree(graph, seeds, key, tree)
    with pytest.raises(ValueError, match=r"key is torch.int32"):
        sample_tree(graph, torch.zeros(2, dtype=torch.int64), key.int(), tree)
