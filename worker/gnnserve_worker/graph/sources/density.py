"""The rule whether features are kept sparse, by their values. It is the same for every user-supplied source.

Words of documents and attributes of people are mostly zeros. Kept dense they take a hundred times the memory, and
standardised they lose accuracy: a column that is set for one node in a thousand becomes a value of 30 there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from gnnserve_worker.graph.store import Features, Finding

FEWEST_COLUMNS = 100
"""Fewest columns that are kept sparse: with fewer little is saved, and standardising is better for a mix of numbers and
flags."""
MOST_NONZERO_SHARE = 0.1
_OFTEN = 0.5
_MOST_OFTEN_WEIGHT = 0.5
"""Largest share of the sum of all absolute values that columns may have which are not zero for more than half of the
nodes (an income beside words): dividing rows by their sum would reduce the other columns to nothing."""
_STORED_SPARSE_SHARE = 0.25
"""A block is collected as CSR if fewer of its numbers are not zero; CSR takes 8 bytes a number, a dense block 4."""
_BLOCK_VALUES = 1 << 22


class FeatureBlocks:
    """Collects rows of features in the order of reading, in little more memory than their values that are not zero."""

    def __init__(self) -> None:
        self._blocks: list[Features] = []

    def add(self, block: np.ndarray) -> None:
        """Add rows, float32 [rows, columns]; nan stands for a missing number."""
        wide = block.shape[1] >= FEWEST_COLUMNS
        is_sparse = wide and np.count_nonzero(block) <= _STORED_SPARSE_SHARE * block.size
        self._blocks.append(sp.csr_array(block) if is_sparse else block)

    def missing_per_column(self, columns: int) -> np.ndarray:
        """Number of missing values per column, int64 [columns]."""
        missing = np.zeros(columns, dtype=np.int64)
        for block in self._blocks:
            if isinstance(block, np.ndarray):
                missing += np.isnan(block).sum(axis=0)
            else:
                missing += np.bincount(block.indices[np.isnan(block.data)], minlength=columns)
        return missing

    def to_features(self, kept: np.ndarray, fill: np.ndarray, positions: np.ndarray | None) -> Features:
        """Build the features: the columns of `kept` (bool [columns]) with `fill` (float32 [columns]) for missing
        numbers, row i at `positions[i]`. Ends the collection: every block is released once it is copied."""
        for place, block in enumerate(self._blocks):
            self._blocks[place] = _filled(block, kept, fill)
        columns = int(kept.sum())
        rows = sum(block.shape[0] for block in self._blocks)
        if _are_sparse(self._blocks, rows, columns):
            return _stacked_sparse(self._blocks, rows, columns, positions)
        return _stacked_dense(self._blocks, rows, columns, positions)


def without_zeros(features: np.ndarray) -> Features:
    """The features as CSR where the rule asks for it, else the same array."""
    rows, columns = features.shape
    if columns < FEWEST_COLUMNS or np.count_nonzero(features) > MOST_NONZERO_SHARE * features.size:
        return features
    step = max(1, _BLOCK_VALUES // columns)
    blocks: list[Features] = [sp.csr_array(features[start : start + step]) for start in range(0, rows, step)]
    return _stacked_sparse(blocks, rows, columns, None) if _are_sparse(blocks, rows, columns) else features


def sparse_finding(features: Features) -> tuple[Finding, ...]:
    if isinstance(features, np.ndarray):
        return ()
    share = features.nnz / max(1, features.shape[0] * features.shape[1])
    return (Finding("feature columns kept sparse", features.shape[1], f"{share:.2%} of their numbers are not zero"),)


def _filled(block: Features, kept: np.ndarray, fill: np.ndarray) -> Features:
    if isinstance(block, np.ndarray):
        missing = np.isnan(block)
        if missing.any():
            np.copyto(block, fill, where=missing)
        return block if kept.all() else block[:, kept]
    missing = np.isnan(block.data)
    if missing.any():
        block.data[missing] = fill[block.indices[missing]]
        block.eliminate_zeros()
    return block if kept.all() else sp.csr_array(block[:, np.flatnonzero(kept)])


def _are_sparse(blocks: Sequence[Features], rows: int, columns: int) -> bool:
    nonzero = sum(int(np.count_nonzero(block)) if isinstance(block, np.ndarray) else block.nnz for block in blocks)
    if columns < FEWEST_COLUMNS or nonzero > MOST_NONZERO_SHARE * rows * columns:
        return False
    counts, weights = np.zeros(columns, dtype=np.int64), np.zeros(columns)
    for block in blocks:
        if isinstance(block, np.ndarray):
            counts += np.count_nonzero(block, axis=0)
            weights += np.abs(block).sum(axis=0, dtype=np.float64)
        else:
            counts += np.bincount(block.indices, minlength=columns)
            weights += np.bincount(block.indices, weights=np.abs(block.data), minlength=columns)
    often = weights[counts > _OFTEN * rows].sum()
    return bool(often <= _MOST_OFTEN_WEIGHT * weights.sum())


def _stacked_sparse(blocks: list[Features], rows: int, columns: int, positions: np.ndarray | None) -> sp.csr_array:
    parts = [block if not isinstance(block, np.ndarray) else sp.csr_array(block) for block in blocks]
    blocks.clear()
    features = sp.csr_array(sp.vstack(parts, format="csr"))
    if features.shape != (rows, columns):
        raise ValueError(f"blocks add up to {features.shape}, expected {(rows, columns)}")
    if positions is None:
        return features
    order = np.empty(rows, dtype=np.int64)
    order[positions] = np.arange(rows)
    return sp.csr_array(features[order])


def _stacked_dense(blocks: list[Features], rows: int, columns: int, positions: np.ndarray | None) -> np.ndarray:
    features = np.empty((rows, columns), dtype=np.float32)
    row = 0
    blocks.reverse()
    while blocks:
        block = blocks.pop()
        end = row + block.shape[0]
        features[slice(row, end) if positions is None else positions[row:end]] = (
            block if isinstance(block, np.ndarray) else block.toarray()
        )
        row = end
    return features
