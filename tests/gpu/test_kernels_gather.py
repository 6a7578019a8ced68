"""Gathering by kernels, with and without a cache, against what the CPU gathers of the same sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.support.gpu.gathered_on_gpu import (
    KEY,
    MEAN,
    NO_BIAS,
    NODES,
    STORAGES,
    SUM,
    WIDEST,
    Put,
    made_cache,
    put_on_device,
    rows_of,
)
from tests.support.graphs.graphs import dense_features, graph_of, projected_table_of, random_graph, table_of
from tests.support.machine.memory import between_forbidden_pages

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.arrays import PADDING, CacheView, DeviceAggregation, DeviceGraph, DeviceRows, PaddedTree
from gnnserve_worker.gpu.kernels.gather import gather_rows
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own, Table, gather

CANARY = 7.0
OUTPUTS = pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16], ids=["to float32", "to bfloat16"])


@dataclass(frozen=True)
class Batch:
    sample: NeighbourSample
    tree: PaddedTree
    real: np.ndarray
    """bool [rows of the tree]: those that the sample has, in the same order."""


def _batch(put: Put, device: torch.device, fanouts: tuple[int, ...], seeds: list[int]) -> Batch:
    """One of two bucket's places in three is padding."""
    graph = random_graph(NODES, seed=1, isolated=0.2, mean_degree=9)
    tree = PaddedTree.allocate(len(seeds) + 2, fanouts, device)
    places = torch.tensor([*seeds, PADDING, PADDING], device=device)
    sample_tree(DeviceGraph(put(graph.indptr), put(graph.indices)), places, torch.tensor([KEY], device=device), tree)
    sample = sample_neighbours(graph.indptr, graph.indices, np.array(seeds), fanouts, KEY, Scratch(), share=False)
    return Batch(sample, tree, tree.ids[: tree.rows].cpu().numpy() >= 0)


@pytest.fixture(scope="module")
def batch(put: Put, device: torch.device) -> Batch:
    return _batch(put, device, (12, 5), [*range(0, NODES, 7), 14, 14])


def _gathered(
    rows: DeviceRows, own: DeviceRows, columns: int, tree: PaddedTree, aggregation: Aggregation,
    cache: CacheView | None, out_dtype: torch.dtype, device: torch.device,
) -> np.ndarray:  # fmt: skip
    """With something before and behind it that must stay."""
    width = 2 * columns if aggregation.stacked else columns
    room = torch.full((tree.rows + 2, width), CANARY, dtype=out_dtype, device=device)
    gather_rows(rows, own, columns, tree, DeviceAggregation.of(aggregation, device), room[1:-1], cache)
    assert (room[0] == CANARY).all()
    assert (room[-1] == CANARY).all()
    return room[1:-1].float().cpu().numpy()


def _expected(table: Table, columns: int, sample: NeighbourSample, aggregation: Aggregation) -> np.ndarray:
    rows = len(sample.nodes)
    out = np.empty(rows * columns * (2 if aggregation.stacked else 1), dtype=np.float32)
    gather(table, columns, sample, aggregation, out)
    return out.reshape(rows, -1)


def _assert_equal(found: np.ndarray, expected: np.ndarray, batch: Batch, out_dtype: torch.dtype) -> None:
    """Within the rounding of sums of up to a dozen rows, and of the output."""
    relative = 2.0**-8 if out_dtype == torch.bfloat16 else 1e-5
    np.testing.assert_allclose(found[batch.real], expected, rtol=relative, atol=1e-5 * np.abs(expected).max())
    assert (found[~batch.real] == 0).all()
    assert (~batch.real).any()


def _aggregations(columns: int) -> list[Aggregation]:
    bias = dense_features(1, columns, seed=columns)[0]
    return [
        MEAN,
        SUM,
        replace(MEAN, bias=bias, relu=True),
        replace(SUM, bias=bias, own_factor=0.0),
        replace(SUM, aggregator=Aggregator.MEAN, own_factor=1.0, relu=True),
        replace(MEAN, aggregator=Aggregator.SUM, bias=bias),
    ]


@STORAGES
@OUTPUTS
@pytest.mark.parametrize("columns", [1, 31, 130])
def test_prefixes_and_combinations_are_gathered_as_on_the_cpu(
    storage: Storage, out_dtype: torch.dtype, columns: int, batch: Batch, put: Put, device: torch.device
) -> None:
    table = projected_table_of(dense_features(NODES, WIDEST, 2), dense_features(NODES, WIDEST, 3), storage)
    rows, own = rows_of(table, put, device)
    aggregations = _aggregations(columns)
    # How a number is rounded depends on nothing else.
    for aggregation in aggregations if out_dtype == torch.float32 else aggregations[1:3]:
        out = _gathered(rows, own, columns, batch.tree, aggregation, None, out_dtype, device)

        _assert_equal(out, _expected(table, columns, batch.sample, aggregation), batch, out_dtype)


@STORAGES
@pytest.mark.parametrize("width", [1, 2, 3, 5, 9, 17, 33])
def test_rows_shorter_than_what_a_lane_reads_are_gathered_too(
    storage: Storage, width: int, batch: Batch, put: Put, device: torch.device
) -> None:
    table = table_of(dense_features(NODES, width, 2), storage)
    rows, own = rows_of(table, put, device)

    out = _gathered(rows, own, width, batch.tree, MEAN, None, torch.float32, device)

    _assert_equal(out, _expected(table, width, batch.sample, MEAN), batch, torch.float32)


@pytest.mark.parametrize("fanouts", [(1,), (40,), (3, 2), (20, 3), (2, 3, 2), (2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("aggregation", [MEAN, SUM], ids=["mean", "sum"])
def test_every_row_of_a_tree_is_gathered(
    fanouts: tuple[int, ...], aggregation: Aggregation, put: Put, device: torch.device
) -> None:
    batch = _batch(put, device, fanouts, list(range(0, NODES, 9)))
    table = table_of(dense_features(NODES, 40, 2), Storage.FLOAT16)
    rows, own = rows_of(table, put, device)

    out = _gathered(rows, own, 40, batch.tree, aggregation, None, torch.float32, device)

    _assert_equal(out, _expected(table, 40, batch.sample, aggregation), batch, torch.float32)


@STORAGES
def test_one_neighbour_is_copied_to_the_bit(storage: Storage, put: Put, device: torch.device) -> None:
    """Subnormal numbers too; and bfloat16 is rounded to the nearest, ties to even."""
    awkward = np.array([1e-40, -6e-6, 65504, 1e-45, 0, -0.0, 3.0039062, 1.00390625, 1.0117188], dtype=np.float32)
    values = np.concatenate([np.tile(awkward, (2, 1)), dense_features(2, 24, 0)], axis=1)
    table = table_of(values, storage)
    rows, own = rows_of(table, put, device)
    graph = graph_of([[1], []])
    tree = PaddedTree.allocate(1, (3,), device)
    seeds, key = torch.tensor([0], device=device), torch.tensor([1], device=device)
    sample_tree(DeviceGraph(put(graph.indptr), put(graph.indices)), seeds, key, tree)
    sample = sample_neighbours(graph.indptr, graph.indices, np.array([0]), (3,), 1, Scratch(), share=False)
    alone = Aggregation(Aggregator.MEAN, Own.ADDED, own_factor=0.0, bias=NO_BIAS, relu=False)
    expected = _expected(table, 33, sample, alone)

    exact = _gathered(rows, own, 33, tree, alone, None, torch.float32, device)
    rounded = _gathered(rows, own, 33, tree, alone, None, torch.bfloat16, device)

    np.testing.assert_array_equal(exact, expected)
    np.testing.assert_array_equal(rounded, torch.tensor(expected).bfloat16().float().numpy())
    assert FORMATS[Storage.BFLOAT16].encode(expected)[0].shape == rounded.shape


def test_numbers_that_are_not_finite_stay_so_in_their_row_alone(put: Put, device: torch.device) -> None:
    values = dense_features(3, 8, 0)
    values[1, 2], values[1, 3] = np.inf, np.nan
    table = table_of(values, Storage.FLOAT32)
    rows, own = rows_of(table, put, device)
    graph = graph_of([[1, 2], [2], [0]])
    tree = PaddedTree.allocate(2, (2,), device)
    key = torch.tensor([1], device=device)
    sample_tree(DeviceGraph(put(graph.indptr), put(graph.indices)), torch.tensor([0, 2], device=device), key, tree)

    out = _gathered(rows, own, 8, tree, replace(MEAN, relu=True), None, torch.float32, device)

    assert (~np.isfinite(out[0])).nonzero()[0].tolist() == [2, 3]
    assert np.isnan(out[0, 3])
    assert np.isfinite(out[1]).all()


@STORAGES
@pytest.mark.parametrize("columns", [1, 33, 127])
def test_nothing_is_read_before_the_first_row_or_behind_the_last(
    storage: Storage, columns: int, put: Put, device: torch.device
) -> None:
    """Their pages may not be touched."""
    item_bytes = 4 if storage is Storage.FLOAT32 else 1 if storage is Storage.INT8 else 2
    nodes = 4096 // (128 * item_bytes)
    table = table_of(dense_features(nodes, 128, 2), storage)
    rows = replace(table.rows, values=between_forbidden_pages(table.rows.values))
    on_device = put_on_device(rows, put, device)
    graph = graph_of([*([[0, nodes - 1]] * nodes)])
    seeds, key = torch.tensor([0, nodes - 1, PADDING], device=device), torch.tensor([1], device=device)
    tree = PaddedTree.allocate(3, (3,), device)
    sample_tree(DeviceGraph(put(graph.indptr), put(graph.indices)), seeds, key, tree)
    sample = sample_neighbours(graph.indptr, graph.indices, np.array([0, nodes - 1]), (3,), 1, Scratch(), share=False)

    out = _gathered(on_device, on_device, columns, tree, MEAN, None, torch.float32, device)

    _assert_equal(
        out, _expected(table, columns, sample, MEAN), Batch(sample, tree, np.array([True, True, False])), torch.float32
    )


def _reads(sample: NeighbourSample, with_own: bool) -> np.ndarray:
    """How often each node is read."""
    reads = np.bincount(sample.neighbours, minlength=NODES)
    return reads + np.bincount(sample.nodes, minlength=NODES) if with_own else reads


@STORAGES
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.1], ids=["nothing cached", "half of it", "nearly all"])
@pytest.mark.parametrize("columns", [5, 300])
def test_what_is_cached_is_read_there_and_the_rest_from_the_table(
    storage: Storage, devices: int, share: float, columns: int, batch: Batch, put: Put, device: torch.device
) -> None:
    made = made_cache(storage, 128 // (4 if storage is Storage.FLOAT32 else 2), share, devices, device)
    rows = put_on_device(made.poisoned.rows, put, device)

    out = _gathered(rows, rows, columns, batch.tree, MEAN, made.view, torch.float32, device)

    _assert_equal(out, _expected(made.table, columns, batch.sample, MEAN), batch, torch.float32)


@pytest.mark.parametrize(
    ("storage", "block_columns"),
    [
        pytest.param(Storage.FLOAT32, 32, id="a line a block"),
        pytest.param(Storage.FLOAT32, 96, id="three tiles a block"),
        pytest.param(Storage.FLOAT32, 256, id="two tiles of a warp's reads a block"),
        pytest.param(Storage.INT8, 512, id="wider than the rows"),
    ],
)
@pytest.mark.parametrize("aggregation", [MEAN, replace(SUM, own_factor=0.0)], ids=["mean", "no own"])
@pytest.mark.parametrize("columns", [32, 33, 300])
def test_reads_hits_and_misses_are_counted(
    storage: Storage, block_columns: int, aggregation: Aggregation, columns: int,
    batch: Batch, put: Put, device: torch.device,
) -> None:  # fmt: skip
    made = made_cache(storage, block_columns, 0.6, 2, device)
    rows = put_on_device(made.poisoned.rows, put, device)
    touched = -(-columns // block_columns)
    reads = _reads(batch.sample, with_own=aggregation.own_factor != 0)
    hits = int((made.cached[:touched] * reads).sum())

    for times in (1, 2):
        out = _gathered(rows, rows, columns, batch.tree, aggregation, made.view, torch.float32, device)

        _assert_equal(out, _expected(made.table, columns, batch.sample, aggregation), batch, torch.float32)
        expected = np.zeros(made.cached.shape, dtype=np.int64)
        expected[touched - 1] = times * reads
        np.testing.assert_array_equal(made.view.accesses.cpu().numpy(), expected)
        assert made.view.totals.tolist() == [times * hits, times * (touched * int(reads.sum()) - hits)]


def test_a_node_of_its_own_table_is_read_past_the_cache(batch: Batch, put: Put, device: torch.device) -> None:
    made = made_cache(Storage.FLOAT16, 64, 0.5, 1, device)
    own = projected_table_of(dense_features(NODES, WIDEST, 4), storage=Storage.FLOAT16).rows
    rows, own_rows = put_on_device(made.poisoned.rows, put, device), put_on_device(own, put, device)
    both = Table("projected", WIDEST, made.table.rows, own)

    out = _gathered(rows, own_rows, 200, batch.tree, MEAN, made.view, torch.float32, device)

    _assert_equal(out, _expected(both, 200, batch.sample, MEAN), batch, torch.float32)
    assert int(made.view.accesses.sum()) == len(batch.sample.neighbours)


def test_padding_reads_nothing(put: Put, device: torch.device) -> None:
    made = made_cache(Storage.FLOAT32, 32, 0.5, 1, device)
    rows = put_on_device(made.poisoned.rows, put, device)
    tree = PaddedTree.allocate(70, (3, 2), device)

    out = _gathered(rows, rows, 40, tree, MEAN, made.view, torch.float32, device)

    assert (out == 0).all()
    assert made.view.totals.tolist() == [0, 0]
    assert int(made.view.accesses.sum()) == 0


def test_what_does_not_fit_together_is_refused(batch: Batch, device: torch.device) -> None:
    rows = DeviceRows(torch.zeros(NODES, 32), None)
    tree, aggregation = batch.tree, DeviceAggregation.of(MEAN, device)
    out = torch.zeros(tree.rows, 60)
    made = made_cache(Storage.FLOAT32, 32, 0.5, 1, device)

    def refused(message: str, **changed: object) -> None:
        given = {"rows": rows, "own": rows, "columns": 30, "tree": tree, "aggregation": aggregation, "out": out}
        with pytest.raises(ValueError, match=message):
            gather_rows(**{"cache": None, **given, **changed})  # type: ignore[arg-type]

    refused("33 columns", columns=33)
    refused("0 columns", columns=0)
    refused("out is", out=out[:-1])
    refused("out is", out=out.half())
    refused("out is", out=torch.zeros(60, tree.rows).T)
    refused("own ones", own=DeviceRows(torch.zeros(NODES, 32).half(), None))
    refused("own ones", own=DeviceRows(torch.zeros(NODES + 1, 32), None))
    refused("bias", aggregation=replace(aggregation, bias=torch.zeros(31)))
    refused("a cache of", cache=replace(made.view, directory=torch.zeros(0, NODES, dtype=torch.int32),
                                        accesses=torch.zeros(0, NODES, dtype=torch.int32)))  # fmt: skip
    refused("cache blocks of 3", cache=replace(made.view, block_columns=3))
