"""Gathering fused with aggregation, against the same thing written out in numpy on the decoded table."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import dense_features, graph_of, projected_table_of, random_graph, table_of
from tests.support.models.serving_path import SHARE

from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import NO_SCALES, Aggregation, Aggregator, Own, Rows, Table, aggregate, gather

NODES, WIDEST = 60, 130
NO_BIAS = np.zeros(0, dtype=np.float32)
CANARY = 7
STORAGES = pytest.mark.parametrize("storage", list(Storage), ids=str)
OUTPUTS = pytest.mark.parametrize(
    "out_dtype", [pytest.param(np.float32, id="to float32"), pytest.param(np.uint16, id="to bfloat16")]
)
PLAIN = {
    "mean": Aggregation(Aggregator.MEAN, Own.BESIDE, own_factor=1.0, bias=NO_BIAS, relu=False),
    "sum": Aggregation(Aggregator.SUM, Own.ADDED, own_factor=1.25, bias=NO_BIAS, relu=False),
}
MEAN_AND_SUM = pytest.mark.parametrize("aggregation", list(PLAIN.values()), ids=list(PLAIN))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(NODES, seed=1, isolated=0.2)


def _sample(
    graph: Graph, fanouts: tuple[int, ...], seeds: list[int] | None = None, *, share: bool = False
) -> NeighbourSample:
    wanted = np.arange(0, graph.nodes, 2) if seeds is None else np.array(seeds)
    return sample_neighbours(graph.indptr, graph.indices, wanted, fanouts, 3, Scratch(), share=share)


@dataclass(frozen=True)
class Parts:
    """Of every row in float64: what its neighbours come to, itself, and the sum of all absolute values."""

    neighbours: np.ndarray
    own: np.ndarray
    size: np.ndarray


def _parts(rows: np.ndarray, own: np.ndarray, starts: np.ndarray, ids: np.ndarray, *, mean: bool) -> Parts:
    degrees = np.diff(starts)
    weights = np.repeat(1 / np.maximum(degrees, 1), degrees) if mean else np.ones(len(ids))
    adding = sp.csr_array((weights, ids, starts), shape=(len(degrees), len(rows)))
    exact, own = rows.astype(np.float64), own.astype(np.float64)
    return Parts(adding @ exact, own, adding @ np.abs(exact) + np.abs(own))


def _assert_aggregated(out: np.ndarray, parts: Parts, columns: int, aggregation: Aggregation) -> None:
    neighbours, own = parts.neighbours[:, :columns], parts.own[:, :columns]
    expected = (
        np.concatenate([neighbours, own], axis=1) if aggregation.stacked else neighbours + aggregation.own_factor * own
    )
    size = np.tile(parts.size[:, :columns], (1, 2)) if aggregation.stacked else 2 * parts.size[:, :columns]
    if len(aggregation.bias):
        bias = np.tile(aggregation.bias, 2) if aggregation.stacked else aggregation.bias
        expected, size = expected + bias, size + np.abs(bias)
    if aggregation.relu:
        expected = np.maximum(expected, 0)
    tolerance = size * 1e-6
    if out.dtype == np.uint16:
        out = FORMATS[Storage.BFLOAT16].decode(out, None)
        tolerance = tolerance + np.abs(expected) * 2.0**-8
    found = out.reshape(expected.shape)
    assert (np.abs(found - expected) <= tolerance).all(), np.abs(found - expected).max()


def _width(columns: int, aggregation: Aggregation) -> int:
    return 2 * columns if aggregation.stacked else columns


def _gathered(
    table: Table, columns: int, sample: NeighbourSample, aggregation: Aggregation, dtype: type[np.generic] = np.float32
) -> np.ndarray:
    """With something before and behind it that must stay."""
    size = len(sample.nodes) * _width(columns, aggregation)
    room = np.full(size + 128, CANARY, dtype=dtype)
    out = room[64:-64]
    gather(table, columns, sample, aggregation, out)
    assert (room[:64] == CANARY).all()
    assert (room[-64:] == CANARY).all()
    return out


def _decoded(rows: Rows, storage: Storage) -> np.ndarray:
    return FORMATS[storage].decode(rows.values, rows.scales)


def _aggregations(columns: int) -> list[Aggregation]:
    """All but weighted ones, which `models/test_gcn.py` holds to torch_geometric."""
    biases = [NO_BIAS, dense_features(1, columns, seed=columns)[0]]
    return [
        Aggregation(aggregator, own, own_factor, bias, relu)
        for aggregator in (Aggregator.MEAN, Aggregator.SUM)
        for own, own_factor in ((Own.BESIDE, 1.0), (Own.ADDED, 0.0), (Own.ADDED, 1.0), (Own.ADDED, 1.3))
        for bias in biases
        for relu in (False, True)
    ]


@pytest.mark.campaign
@STORAGES
@OUTPUTS
def test_every_width_and_aggregation_is_what_numpy_would_make_of_it(
    graph: Graph, storage: Storage, out_dtype: type[np.generic]
) -> None:
    """A prefix of the columns of one table, so that a longer row never leaks into a shorter one."""
    values = dense_features(NODES, WIDEST, seed=2) * np.logspace(-3, 1, NODES, dtype=np.float32)[:, None]
    values[5] = 0
    own = dense_features(NODES, WIDEST, seed=3)
    table = projected_table_of(values, own, storage)
    sample = _sample(graph, (9,))
    nodes, starts, ids = sample.nodes, sample.starts, sample.neighbours
    rows, own = _decoded(table.rows, storage), _decoded(table.own, storage)
    parts = {mean: _parts(rows, own[nodes], starts, ids, mean=mean) for mean in (True, False)}
    assert (np.diff(starts) == 0).any()
    for columns in range(1, WIDEST + 1):
        for aggregation in _aggregations(columns):
            out = _gathered(table, columns, sample, aggregation, out_dtype)
            _assert_aggregated(out, parts[aggregation.mean], columns, aggregation)


@STORAGES
@MEAN_AND_SUM
@SHARE
@pytest.mark.parametrize("fanouts", [(4,), (5, 3), (-1, -1), (3, 2, 4), (2, 2, 2, 2)], ids=str)
def test_every_row_of_a_sample_is_gathered(
    graph: Graph, storage: Storage, aggregation: Aggregation, share: bool, fanouts: tuple[int, ...]
) -> None:
    table = table_of(dense_features(NODES, 7, seed=2), storage)
    sample = _sample(graph, fanouts, share=share)
    decoded = _decoded(table.rows, storage)

    out = _gathered(table, 7, sample, aggregation)

    parts = _parts(decoded, decoded[sample.nodes], sample.starts, sample.neighbours, mean=aggregation.mean)
    _assert_aggregated(out, parts, 7, aggregation)


@MEAN_AND_SUM
@SHARE
@pytest.mark.parametrize("width", [1, 3, 8, 16, 21, 64, 130])
def test_upper_layers_aggregate_over_the_sampled_children(
    graph: Graph, aggregation: Aggregation, share: bool, width: int
) -> None:
    sample = _sample(graph, (4, 3, 2), share=share)
    hidden = dense_features(len(sample.nodes), width, seed=4)
    for rows in sample.ends[:-1]:
        inner = sample.starts[rows]
        parts = _parts(hidden, hidden[:rows], sample.starts[: rows + 1], sample.children[:inner], mean=aggregation.mean)
        for dtype in (np.float32, np.uint16):
            room = np.full(rows * _width(width, aggregation) + 64, CANARY, dtype=dtype)

            aggregate(hidden, sample, rows, aggregation, room[:-64])

            _assert_aggregated(room[:-64], parts, width, aggregation)
            assert (room[-64:] == CANARY).all()


@STORAGES
@pytest.mark.parametrize("columns", [1, 3, 15, 17, 31, 63, 65, 79, 127, 130])
@pytest.mark.parametrize("nodes", [1, 5])
def test_nothing_is_read_beyond_the_last_row(storage: Storage, columns: int, nodes: int) -> None:
    """Tables without padding that end where memory does: one number further, and the process would end."""
    values, scales = FORMATS[storage].encode(dense_features(nodes, columns, seed=columns))
    stored = Rows(
        FORMATS[storage], _at_the_end_of_memory(values), NO_SCALES if scales is None else _at_the_end_of_memory(scales)
    )
    table = Table("features", columns, stored, stored)
    last = nodes - 1
    sample = _sample(graph_of([[]] * last + [[last, last, last]]), (3,), [last])

    out = _gathered(table, columns, sample, PLAIN["mean"]).reshape(2, columns)

    np.testing.assert_allclose(out, np.tile(_decoded(stored, storage)[last], (2, 1)), rtol=1e-6)


def _at_the_end_of_memory(array: np.ndarray) -> np.ndarray:
    """A read-only copy before a page that may not be touched."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    mapping = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    end = pages * mmap.PAGESIZE
    copy = np.frombuffer(mapping, dtype=array.dtype, count=array.size, offset=end - array.nbytes).reshape(array.shape)
    copy[:] = array
    forbidden = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + end
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copy.setflags(write=False)
    return copy


def test_int8_rows_are_scaled_each_by_its_own() -> None:
    table = table_of(np.array([[127, -1], [1270, 10], [0, 0]], dtype=np.float32), Storage.INT8)
    sample = _sample(graph_of([[0, 1, 2], [], []]), (3,), [0, 1])

    out = _gathered(table, 2, sample, PLAIN["sum"]).reshape(2, 2)

    np.testing.assert_allclose(out, [[127 + 1270 + 1.25 * 127, -1 + 10 - 1.25], [1.25 * 1270, 12.5]], rtol=1e-6)


def test_a_node_of_its_own_is_read_from_its_own_rows() -> None:
    table = projected_table_of(np.array([[1.0], [2.0]]), np.array([[10.0], [20.0]]))
    sample = _sample(graph_of([[1], [0, 0]]), (3,), [0, 1])
    aggregation = Aggregation(Aggregator.MEAN, Own.ADDED, own_factor=1.0, bias=NO_BIAS, relu=False)

    assert _gathered(table, 1, sample, aggregation).tolist() == [12, 21]


@STORAGES
def test_relu_comes_after_the_bias(storage: Storage) -> None:
    table = table_of(np.array([[1.0, -1.0]]), storage)
    sample = _sample(graph_of([[]]), (2,), [0])
    aggregation = Aggregation(Aggregator.SUM, Own.ADDED, 1.0, np.array([-3.0, 3.0], dtype=np.float32), relu=True)

    assert _gathered(table, 2, sample, aggregation).tolist() == [0, 2]


def test_bfloat16_is_rounded_to_the_nearest_and_ties_to_even() -> None:
    awkward = np.array([0x3F808000, 0x3F818000, 0x3F807FFF, 1, 0x80000000], dtype=np.uint32).view(np.float32)
    numbers = np.concatenate([dense_features(1, 500, seed=1)[0], awkward])
    table = table_of(numbers[None, :])
    aggregation = Aggregation(Aggregator.SUM, Own.ADDED, 1.0, NO_BIAS, relu=False)
    expected, _ = FORMATS[Storage.BFLOAT16].encode(numbers[None, :] + np.float32(0))

    out = _gathered(table, len(numbers), _sample(graph_of([[]]), (2,), [0]), aggregation, np.uint16)

    np.testing.assert_array_equal(out, expected[0])


@STORAGES
@pytest.mark.parametrize("fanouts", [(3,), (3, 2, 2)], ids=str)
def test_a_batch_of_isolated_nodes_has_no_neighbours(storage: Storage, fanouts: tuple[int, ...]) -> None:
    table = table_of(dense_features(3, 2, 0), storage)
    sample = _sample(graph_of([[], [], []]), fanouts, [2, 0])

    out = _gathered(table, 2, sample, PLAIN["mean"]).reshape(2, 4)

    np.testing.assert_array_equal(out[:, :2], np.zeros((2, 2)))
    np.testing.assert_array_equal(out[:, 2:], _decoded(table.rows, storage)[[2, 0], :2])


@STORAGES
@MEAN_AND_SUM
def test_one_neighbour_is_copied_to_the_bit(storage: Storage, aggregation: Aggregation) -> None:
    table = table_of(dense_features(2, 33, 0), storage)
    without_own = Aggregation(aggregation.aggregator, Own.ADDED, 0.0, NO_BIAS, relu=False)

    out = _gathered(table, 33, _sample(graph_of([[1], []]), (4,), [0]), without_own)

    np.testing.assert_array_equal(out, _decoded(table.rows, storage)[1, :33])
