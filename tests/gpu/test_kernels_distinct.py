"""Rows that a chunk reads several times and gathers once: the same numbers, with less that comes over the link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.support.gpu.gathered_on_gpu import (
    KEY,
    MEAN,
    NODES,
    STORAGES,
    SUM,
    WIDEST,
    Put,
    made_cache,
    put_on_device,
    rows_of,
)
from tests.support.graphs.graphs import dense_features, projected_table_of, random_graph, table_of
from torch import Tensor

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.arrays import (
    PADDING,
    AttentionRoom,
    CacheView,
    DeviceAggregation,
    DeviceAttention,
    DeviceGraph,
    DeviceRows,
    DistinctRoom,
    PaddedTree,
    Shares,
    distinct_row_bytes,
)
from gnnserve_worker.gpu.kernels.attention import score_rows, share_out
from gnnserve_worker.gpu.kernels.distinct import share_rows
from gnnserve_worker.gpu.kernels.gather import gather_rows
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own

AMPLE = 10**6


@pytest.fixture(scope="module")
def tree(put: Put, device: torch.device) -> PaddedTree:
    graph = random_graph(NODES, seed=1, isolated=0.2, mean_degree=9)
    made = PaddedTree.allocate(14, (7, 5), device)
    seeds = torch.tensor([*range(0, NODES, 7), PADDING, PADDING], device=device)
    sample_tree(DeviceGraph(put(graph.indptr), put(graph.indices)), seeds, torch.tensor([KEY], device=device), made)
    return made


@dataclass(frozen=True)
class Reads:
    """What a gather reads of a tree, node by node."""

    times: Counter[int]

    @staticmethod
    def of(tree: PaddedTree, *, with_own: bool) -> Reads:
        ids = tree.ids.cpu().numpy()
        times = Counter(ids[tree.seeds :].tolist())
        if with_own:
            times += Counter(ids[: tree.rows].tolist())
        del times[PADDING]
        return Reads(times)

    def repeated(self, wanted: Callable[[int], bool] = lambda _: True) -> set[int]:
        return {node for node, times in self.times.items() if times > 1 and wanted(node)}


def _room(tree: PaddedTree, device: torch.device, value_bytes: int = AMPLE) -> DistinctRoom:
    return DistinctRoom.allocate(tree.ids.numel(), value_bytes, device)


def _both(
    rows: DeviceRows, own: DeviceRows, columns: int, tree: PaddedTree, aggregation: Aggregation,
    cache: Callable[[], CacheView | None], device: torch.device, value_bytes: int = AMPLE,
) -> tuple[Tensor, Tensor, DistinctRoom, CacheView | None]:  # fmt: skip
    """What is gathered directly, and what is with shared rows, with a cache of the same contents each."""
    how = DeviceAggregation.of(aggregation, device)
    width = 2 * columns if aggregation.stacked else columns
    direct, shared = (torch.full((tree.rows, width), 7.0, device=device) for _ in range(2))
    gather_rows(rows, own, columns, tree, how, direct, cache())
    room, view = _room(tree, device, value_bytes), cache()
    reads_own = own is rows and (aggregation.stacked or aggregation.own_factor != 0)
    distinct = share_rows(rows, columns, tree, view, room, reads_own=reads_own, reads_scores=False)
    gather_rows(rows, own, columns, tree, how, shared, view, distinct=distinct)
    return direct, shared, room, view


def _assert_same(direct: Tensor, shared: Tensor) -> None:
    """The same numbers are summed in the same order. Two kernels that are compiled may still fuse a product and a sum
    at different places."""
    if direct.is_cuda:
        torch.testing.assert_close(shared, direct, rtol=1e-6, atol=1e-6 * float(direct.abs().max()))
    else:
        assert torch.equal(direct, shared)


@STORAGES
@pytest.mark.parametrize("columns", [1, 31, 300])
@pytest.mark.parametrize("aggregation", [MEAN, SUM], ids=["mean", "sum"])
def test_shared_rows_are_the_same_numbers(
    storage: Storage, columns: int, aggregation: Aggregation, tree: PaddedTree, put: Put, device: torch.device
) -> None:
    rows, own = rows_of(table_of(dense_features(NODES, WIDEST, 2), storage), put, device)

    direct, shared, room, _ = _both(rows, own, columns, tree, aggregation, lambda: None, device)

    _assert_same(direct, shared)
    reads = Reads.of(tree, with_own=True)
    repeated = reads.repeated()
    assert set(room.nodes[: len(repeated)].tolist()) == repeated
    assert room.counts.tolist() == [len(repeated), sum(reads.times[node] for node in repeated)]


@STORAGES
@pytest.mark.parametrize("width", [1, 3, 17])
def test_rows_shorter_than_what_a_lane_reads_are_shared_too(
    storage: Storage, width: int, tree: PaddedTree, put: Put, device: torch.device
) -> None:
    rows, own = rows_of(table_of(dense_features(NODES, width, 2), storage), put, device)

    direct, shared, _, _ = _both(rows, own, width, tree, MEAN, lambda: None, device)

    _assert_same(direct, shared)


def test_own_rows_of_a_table_apart_are_read_where_they_lie(tree: PaddedTree, put: Put, device: torch.device) -> None:
    table = projected_table_of(dense_features(NODES, 48, 2), dense_features(NODES, 48, 3), Storage.FLOAT16)
    rows, own = rows_of(table, put, device)

    direct, shared, room, _ = _both(rows, own, 48, tree, MEAN, lambda: None, device)

    _assert_same(direct, shared)
    reads = Reads.of(tree, with_own=False)
    listed = set(room.nodes[: room.counts[0].item()].tolist())
    assert reads.repeated() <= listed
    assert room.counts[1].item() == sum(reads.times[node] for node in listed)


def test_what_has_no_room_is_read_over_the_link_again(tree: PaddedTree, put: Put, device: torch.device) -> None:
    rows, own = rows_of(table_of(dense_features(NODES, 40, 2), Storage.FLOAT32), put, device)

    direct, shared, room, _ = _both(
        rows, own, 40, tree, MEAN, lambda: None, device, value_bytes=3 * distinct_row_bytes(40, 4) + 1
    )

    _assert_same(direct, shared)
    copied, reads = room.counts.tolist()
    assert copied == 3
    assert reads >= 2 * copied


@pytest.mark.parametrize(("storage", "devices"), [(Storage.FLOAT32, 1), (Storage.INT8, 2), (Storage.BFLOAT16, 2)])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.1], ids=["nothing cached", "half of it", "nearly all"])
@pytest.mark.parametrize("columns", [5, 300])
def test_the_cache_is_read_and_counted_for_what_is_shared_once(
    storage: Storage, devices: int, share: float, columns: int, tree: PaddedTree, put: Put, device: torch.device
) -> None:
    block_columns = 128 // (4 if storage is Storage.FLOAT32 else 2)
    made = [made_cache(storage, block_columns, share, devices, device) for _ in range(2)]
    views = iter([made[0].view, made[1].view])
    rows = put_on_device(made[0].poisoned.rows, put, device)

    direct, shared, room, view = _both(rows, rows, columns, tree, MEAN, lambda: next(views), device)

    assert view is not None
    _assert_same(direct, shared)
    touched = -(-columns // block_columns)
    reads = Reads.of(tree, with_own=True)
    missing = (~made[0].cached[:touched]).any(axis=0)
    repeated = reads.repeated(lambda node: bool(missing[node]))
    assert room.counts[0].item() == len(repeated)
    once = {node: 1 if node in repeated else times for node, times in reads.times.items()}
    hits = sum(int(made[0].cached[:touched, node].sum()) * times for node, times in once.items())
    assert view.totals.tolist() == [hits, touched * sum(once.values()) - hits]
    np.testing.assert_array_equal(view.accesses.cpu().numpy(), made[0].view.accesses.cpu().numpy())


def test_padding_is_not_shared(put: Put, device: torch.device) -> None:
    rows, own = rows_of(table_of(dense_features(NODES, 40, 2), Storage.FLOAT32), put, device)
    empty = PaddedTree.allocate(70, (3, 2), device)

    direct, shared, room, _ = _both(rows, own, 40, empty, MEAN, lambda: None, device)

    _assert_same(direct, shared)
    assert room.counts.tolist() == [0, 0]


@pytest.mark.parametrize("stored", [False, True], ids=["scores of rows", "rows with their scores"])
@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.INT8])
def test_attention_scores_and_sums_shared_rows_to_the_same_numbers(
    storage: Storage, stored: bool, tree: PaddedTree, put: Put, device: torch.device
) -> None:
    heads, columns = 2, 36
    rows, own = rows_of(table_of(dense_features(NODES, columns, 2), storage), put, device)
    vectors = None if stored else torch.tensor(dense_features(2 * heads, columns, 5), device=device)
    attention = DeviceAttention(heads, 0.2, vectors)
    how = DeviceAggregation(Aggregator.ATTENTION, Own.ADDED, 1.0, None, relu=False, attention=attention)
    found = []
    for is_shared in (False, True):
        shares = Shares(torch.zeros(tree.ends[-1], heads, device=device), torch.zeros(tree.rows, heads, device=device))
        attended = AttentionRoom(torch.zeros(tree.ends[-1], 2 * heads, device=device), shares)
        distinct = None
        if is_shared:
            room = _room(tree, device)
            distinct = share_rows(rows, columns, tree, None, room, reads_own=True, reads_scores=True)
            assert room.counts[0].item() == len(Reads.of(tree, with_own=True).times), "all rows are read twice"
        score_rows(rows, columns, tree, attention, attended, None, None, distinct)
        share_out(tree, tree.rows, attention, attended)
        out = torch.zeros(tree.rows, how.width(columns), device=device)
        gather_rows(rows, own, columns, tree, how, out, None, attended.shares, None, distinct)
        found.append(out)

    _assert_same(found[0], found[1])
    assert found[0].abs().sum() > 0
