"""Gathering fused with aggregation: layer 1's input for every row that needs a hidden state.

Leaf rows are 250 of a seed's 276; they are averaged or summed while they are read and never written back. Rows
come out compact, level by level, so that the matrix products that follow waste nothing on padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.table import FeatureTable
from gnnserve_worker.sampling.kernels import kernel
from gnnserve_worker.sampling.subgraph import SampledSubgraph
from gnnserve_worker.sampling.tree import SampledTree


@dataclass(frozen=True, slots=True)
class GatheredBatch:
    own: np.ndarray
    """The node's own features, float32 [rows, columns]; seeds first, then hop 1, …"""
    neighbours: np.ndarray
    """Mean or sum over its sampled neighbours, float32 [rows, columns]; 0 where it has none."""
    ends: tuple[int, ...]
    """Rows within d hops of the seeds, for d = 0 … layers − 1."""
    indptr: np.ndarray
    """int64 [ends[-2] + 1]: children of each row that layer 2 and above need, into `children` or into the rows."""
    children: np.ndarray | None
    """Rows, int32; None: the children of row i are the rows indptr[i] to indptr[i + 1]."""
    seed_rows: np.ndarray | None
    """Row of each seed, int32; None: row i is seed i."""
    gathered_bytes: int
    """Bytes of the feature table that were read."""


def gather_tree(table: FeatureTable, columns: int, tree: SampledTree, *, mean: bool) -> GatheredBatch:
    """Read the first `columns` of every row that `tree` names."""
    slots = [np.flatnonzero(ids >= 0) for ids in tree.ids[:-1]]
    ends = tuple(int(end) for end in np.cumsum([len(level) for level in slots]))
    own = np.empty((ends[-1], columns), dtype=np.float32)
    neighbours = np.empty_like(own)
    used = [counts[level] for counts, level in zip(tree.counts, slots, strict=True)]
    first_row = 0
    for depth, level in enumerate(slots):
        rows = slice(first_row, first_row + len(level))
        _gather_rows(
            table.values, columns, tree.ids[depth][level], tree.ids[depth + 1],
            level * tree.fanouts[depth], used[depth], own[rows], neighbours[rows], mean,
        )  # fmt: skip
        first_row += len(level)
    upper = np.concatenate([np.zeros(0, dtype=np.int32), *used[:-1]])
    indptr = np.full(len(upper) + 1, ends[0], dtype=np.int64)
    np.cumsum(upper, out=indptr[1:])
    indptr[1:] += ends[0]
    read_rows = ends[-1] + int(sum(int(counts.sum()) for counts in used))
    return GatheredBatch(own, neighbours, ends, indptr, None, None, read_rows * columns * own.itemsize)


def gather_subgraph(table: FeatureTable, columns: int, subgraph: SampledSubgraph, *, mean: bool) -> GatheredBatch:
    """The same for a subgraph in which every node appears once."""
    expanded = subgraph.ends[-2]
    own = np.empty((expanded, columns), dtype=np.float32)
    neighbours = np.empty_like(own)
    starts = subgraph.indptr[:-1]
    used = np.diff(subgraph.indptr)
    _gather_rows(
        table.values, columns, subgraph.nodes[:expanded], subgraph.nodes[subgraph.neighbours],
        starts, used, own, neighbours, mean,
    )  # fmt: skip
    upper = subgraph.ends[-3] if len(subgraph.ends) > 2 else 0
    read_rows = expanded + len(subgraph.neighbours)
    return GatheredBatch(
        own, neighbours, subgraph.ends[:-1], subgraph.indptr[: upper + 1], subgraph.neighbours,
        subgraph.seed_rows, read_rows * columns * own.itemsize,
    )  # fmt: skip


def aggregate_rows(hidden: np.ndarray, batch: GatheredBatch, rows: int, *, mean: bool) -> np.ndarray:
    """Mean or sum of `hidden` (float32 [≥ all children, width]) over the children of the first `rows` rows."""
    out = np.empty((rows, hidden.shape[1]), dtype=np.float32)
    if batch.children is None:
        _sum_ranges(hidden, batch.indptr, out, mean)
    else:
        _sum_listed(hidden, batch.indptr, batch.children, out, mean)
    return out


@kernel
def _gather_rows(
    values: np.ndarray, columns: int, nodes: np.ndarray, listed: np.ndarray, starts: np.ndarray, counts: np.ndarray,
    own: np.ndarray, neighbours: np.ndarray, mean: bool,
) -> None:  # fmt: skip
    for row in range(len(nodes)):
        own[row, :] = values[nodes[row], :columns]
        total = neighbours[row]
        total[:] = 0.0
        first = starts[row]
        for i in range(first, first + counts[row]):
            source = values[listed[i]]
            for j in range(columns):
                total[j] += source[j]
        if mean and counts[row] > 1:
            scale = np.float32(1.0) / np.float32(counts[row])
            for j in range(columns):
                total[j] *= scale


@kernel
def _sum_ranges(hidden: np.ndarray, indptr: np.ndarray, out: np.ndarray, mean: bool) -> None:
    width = hidden.shape[1]
    for row in range(len(out)):
        total = out[row]
        total[:] = 0.0
        for child in range(indptr[row], indptr[row + 1]):
            for j in range(width):
                total[j] += hidden[child, j]
        count = indptr[row + 1] - indptr[row]
        if mean and count > 1:
            scale = np.float32(1.0) / np.float32(count)
            for j in range(width):
                total[j] *= scale


@kernel
def _sum_listed(hidden: np.ndarray, indptr: np.ndarray, children: np.ndarray, out: np.ndarray, mean: bool) -> None:
    width = hidden.shape[1]
    for row in range(len(out)):
        total = out[row]
        total[:] = 0.0
        for i in range(indptr[row], indptr[row + 1]):
            for j in range(width):
                total[j] += hidden[children[i], j]
        count = indptr[row + 1] - indptr[row]
        if mean and count > 1:
            scale = np.float32(1.0) / np.float32(count)
            for j in range(width):
                total[j] *= scale
