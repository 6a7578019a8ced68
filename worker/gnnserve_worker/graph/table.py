"""The feature table: one matrix in rank order, of which every variant reads a prefix.

Columns are stored most important first, so a k× variant reads the first ⌊f/k⌋ entries of the same row: one table,
no copies, and switching variant moves no data. Selecting columns out of full rows would touch every cache line
and be slower than not pruning at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnnserve_worker.graph.store import Features

_CHUNK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FeatureTable:
    values: np.ndarray
    """float32 [nodes, width], C order, memory-mapped and read-only when opened from a file."""

    @staticmethod
    def open(path: Path) -> FeatureTable:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if values.dtype != np.float32 or values.ndim != 2 or not values.flags.c_contiguous:
            raise ValueError(f"{path}: expected float32 [nodes, width] in C order, found {values.dtype} {values.shape}")
        # A plain array over the mapping: np.memmap's own class costs microseconds at every slice.
        return FeatureTable(np.asarray(values))


def table_bytes(nodes: int, columns: int) -> int:
    """What a table takes on disk, and in memory once it is read."""
    return nodes * columns * np.dtype(np.float32).itemsize


def write_table(path: Path, features: Features, columns: Sequence[int]) -> None:
    """Write `features[:, columns]` as float32 .npy, some megabytes at a time; sparse features become dense here.

    Through a plain file, whose full disk is an OSError; writing to a mapping would end the process.
    """
    order = np.asarray(columns, dtype=np.int64)
    nodes = features.shape[0]
    source = features if isinstance(features, np.ndarray) else features[:, order]
    step = max(1, _CHUNK_BYTES // max(1, 4 * features.shape[1]))
    header = {"descr": "<f4", "fortran_order": False, "shape": (nodes, len(order))}
    with path.open("xb") as file:
        path.chmod(0o444)
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, nodes, step):
            rows = source[start : start + step]
            chunk = rows[:, order] if isinstance(rows, np.ndarray) else rows.toarray()
            file.write(np.ascontiguousarray(chunk, dtype=np.float32).data)
