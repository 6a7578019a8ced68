"""Tables: what variants gather from, a row per node.

A features table holds columns in rank order, most important first, so a k× variant reads the first ⌊f/k⌋ entries of
the same row: one table, no copies, and switching variant moves no data. (Selecting columns out of full rows would touch
every cache line and be slower than not pruning at all.) A projected table holds X·W of the first layer, because means
and sums commute with linear maps: rows are as wide as the hidden layer and the first matrix product is gone.

Files are mapped, in huge pages where the kernel grants them: with 4 KiB pages a random row costs a page walk as well.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO, NamedTuple

import numpy as np

from gnnserve_api.repository import TableKind
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Features
from gnnserve_worker.tables.formats import TableFormat

_WRITE_BYTES = 16 * 1024 * 1024
"""Bytes of one write. With at least a huge page, the page cache keeps the file in huge pages."""


class WritableRows(NamedTuple):
    values: np.ndarray
    scales: np.ndarray


@dataclass(frozen=True, slots=True)
class Rows:
    """One matrix with a row per node."""

    format: TableFormat
    values: np.ndarray
    """[nodes, columns and padding] in C order, of the format's dtype."""
    scales: np.ndarray
    """float32 [nodes] where the format has scales, else empty."""
    written: WritableRows | None = None
    """The same memory to write to, where changes may; None: it is read alone."""


@dataclass(frozen=True, slots=True)
class Table:
    kind: TableKind
    columns: int
    """Columns that hold features or products, without padding."""
    rows: Rows
    own: Rows
    """Rows that are read of a node itself, in the same format. They are the same object as `rows` unless the first
    layer has separate weights for the node itself."""

    @property
    def format(self) -> TableFormat:
        return self.rows.format

    @property
    def storage(self) -> Storage:
        return self.rows.format.storage

    @property
    def nodes(self) -> int:
        return len(self.rows.values)

    @property
    def projected(self) -> bool:
        return self.kind == "projected"


NO_SCALES = np.zeros(0, dtype=np.float32)


class RowsBehind(NamedTuple):
    """Rows that are read as if they stood behind a table's, in its format and as wide, from row N on: those of
    neighbours, and those of nodes themselves. They are made by `models/rows.py`. None: there are none."""

    values: np.ndarray | None
    scales: np.ndarray | None
    own_values: np.ndarray | None
    own_scales: np.ndarray | None


NOTHING_BEHIND = RowsBehind(None, None, None, None)


def map_array(path: Path) -> np.ndarray:
    """A read-only array over a .npy file, in huge pages where the kernel has them for files.

    ValueError: not a .npy file of the numbers that a repository holds. OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = read_header(file)
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    # A plain array over the mapping: np.memmap's own class costs microseconds at every slice.
    count = int(np.prod(header.shape))
    return np.frombuffer(mapped, dtype=header.dtype, count=count, offset=header.bytes).reshape(header.shape)


class ArrayHeader(NamedTuple):
    """What the header of a .npy file says."""

    shape: tuple[int, ...]
    dtype: np.dtype
    bytes: int
    """Where the numbers begin."""


def read_header(file: BinaryIO) -> ArrayHeader:
    """ValueError: not a .npy file of the numbers that a repository holds, or too short."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another version of the .npy format than 1.0")
    try:
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    except (TokenError, SyntaxError, TypeError) as error:  # raised by Python's parser, which numpy calls
        raise ValueError(f"damaged header: {error}") from error
    if fortran_order or dtype.hasobject:
        raise ValueError(f"expected numbers in C order, found {dtype} in {'Fortran' if fortran_order else 'C'} order")
    header = ArrayHeader(shape, dtype, file.tell())
    wanted_bytes = header.bytes + int(np.prod(shape)) * dtype.itemsize
    found_bytes = os.fstat(file.fileno()).st_size
    if found_bytes < wanted_bytes:
        raise ValueError(f"{found_bytes:,} bytes, expected {wanted_bytes:,} for {dtype} {list(shape)}")
    return header


def write_rows(
    path: Path, blocks: Iterable[np.ndarray], nodes: int, columns: int, table_format: TableFormat
) -> np.ndarray | None:
    """Write float32 blocks of rows, which add up to [nodes, columns]. Returns the scales, if the format has any.

    Through a plain file, whose full disk is an OSError; writing to a mapping would end the process. ValueError as
    `TableFormat.encode`.
    """
    padded = table_format.padded_columns(columns)
    scales = []
    with path.open("xb", buffering=_WRITE_BYTES) as file:
        path.chmod(0o444)
        np.lib.format.write_array_header_1_0(
            file, {"descr": table_format.dtype.str, "fortran_order": False, "shape": (nodes, padded)}
        )
        for block in blocks:
            values, block_scales = table_format.encode(np.ascontiguousarray(block, dtype=np.float32))
            if padded > columns:
                values = np.pad(values, ((0, 0), (0, padded - columns)))
            file.write(np.ascontiguousarray(values).data)
            if block_scales is not None:
                scales.append(block_scales)
    return np.concatenate(scales) if scales else None


def copy_rows(path: Path, rows: Rows, nodes: np.ndarray) -> None:
    """Write the rows of these nodes (int64) as another table of the same format, without their scales."""
    with path.open("xb", buffering=_WRITE_BYTES) as file:
        path.chmod(0o444)
        shape = (len(nodes), *rows.values.shape[1:])
        header = {"descr": rows.values.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        step = max(1, _WRITE_BYTES // (rows.values.shape[1] * rows.values.itemsize))
        for start in range(0, len(nodes), step):
            file.write(rows.values[nodes[start : start + step]].data)


def feature_blocks(features: Features, columns: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the rows of `features[:, columns]` in float32, dense even if features are sparse, some MB at a time."""
    order = np.asarray(columns, dtype=np.int64)
    source = features if isinstance(features, np.ndarray) else features[:, order]
    for rows in _blocks(features):
        block = source[rows]
        yield block[:, order] if isinstance(block, np.ndarray) else block.toarray()


def projected_blocks(features: Features, weight: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of features · weight, some megabytes at a time. `weight` is float32 [columns, outputs]."""
    for rows in _blocks(features):
        yield np.asarray(features[rows] @ weight, dtype=np.float32)


def _blocks(features: Features) -> Iterator[slice]:
    nodes, width = features.shape
    step = max(1, _WRITE_BYTES // max(1, 4 * width))
    for start in range(0, nodes, step):
        yield slice(start, min(start + step, nodes))
