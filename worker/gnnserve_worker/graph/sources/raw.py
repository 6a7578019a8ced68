"""Helpers that readers of published formats share: members of numpy files, CSR checks, and their result `RawGraph`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, SelfLoops
from gnnserve_worker.graph.edges import EdgeCounts, EdgeList, row_blocks
from gnnserve_worker.graph.sources import archive
from gnnserve_worker.graph.sources.checks import MAX_COLUMNS
from gnnserve_worker.graph.store import Features, Finding, Graph

_BLOCK_EDGES = 1 << 22
_WHOLE_FLOATS = 2**53
"""Largest magnitude at which a double still distinguishes consecutive integers."""
_BLOCK_VALUES = 1 << 24


@dataclass(frozen=True, slots=True)
class RawGraph:
    """A published data set, read but not yet turned into a `GraphData`."""

    graph: Graph
    features: Features
    """Features, all finite."""
    labels: np.ndarray
    """int64 [nodes], the source's class numbers with -1 for unknown; or uint8 [nodes, classes] of 0 and 1."""
    splits: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    """Ids of training, validation and test nodes, integers; None where the data set has no split of its own."""
    findings: tuple[Finding, ...]
    self_loops: SelfLoops = SelfLoops.KEEP
    """What became of edges from a node to itself."""


def unexpected(path: Path, part: str, problem: str) -> InputError:
    """The error for a file whose download was complete, so that the problem lies in the published file or its
    mirror."""
    return InputError(
        f"{path}: {part}" if part else str(path),
        problem,
        "it is not the published file: remove it, and set mirror to where the right one is",
    )


def unlabelled(labels: np.ndarray, what: str = "nodes without a class") -> tuple[Finding, ...]:
    unknown = np.flatnonzero(labels < 0) if labels.ndim == 1 else np.empty(0)
    return (Finding(what, len(unknown), str(unknown[0])),) if len(unknown) else ()


def check_columns(path: Path, part: str, columns: int) -> None:
    if not 0 < columns <= MAX_COLUMNS:
        raise unexpected(path, part, f"says that there are {columns:,} columns, expected 1 to {MAX_COLUMNS:,}")


def read_members(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Read arrays of an `.npz` file; nothing is unpickled."""
    try:
        with archive.opened(path) as arrays:
            return [_numbers(arrays, name) for name in names]
    except Exception as error:  # damaged bytes make numpy, zipfile, zlib and tokenize raise a dozen kinds
        raise unexpected(path, "", f"is not a readable .npz file of this data set: {error}") from error


def _numbers(arrays: archive.Archive, name: str) -> np.ndarray:
    if name not in arrays.names:
        raise ValueError(f"it has no {name}, only {', '.join(arrays.names)}")
    array = arrays.read(name)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has no numbers")
    return array


def whole_numbers(path: Path, part: str, given: np.ndarray) -> np.ndarray:
    """The values as int32 or int64, in one dimension. Some authors wrote integers as floats."""
    if given.ndim == 1 and given.dtype.kind == "f" and (np.trunc(given) == given).all():
        _refuse_beyond(path, part, given, np.abs(given) > _WHOLE_FLOATS)
        return given.astype(np.int64)
    if given.ndim == 1 and given.dtype == np.uint64:
        _refuse_beyond(path, part, given, given > np.uint64(np.iinfo(np.int64).max))
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise unexpected(path, part, f"is {given.dtype} with shape {list(given.shape)}, expected integers in a row")
    return given if given.dtype == np.int32 else given.astype(np.int64)


def _refuse_beyond(path: Path, part: str, given: np.ndarray, is_beyond: np.ndarray) -> None:
    beyond = np.flatnonzero(is_beyond)
    if len(beyond):
        raise unexpected(path, f"{part}[{beyond[0]}]", f"is {given[beyond[0]]}, expected an integer of 64 bits")


@dataclass(frozen=True, slots=True)
class CsrParts:
    """A sparse matrix as numpy files store it: `indptr`, `indices` and `shape`."""

    path: Path
    prefix: str
    indptr: np.ndarray
    indices: np.ndarray
    rows: int
    columns: int

    @staticmethod
    def of(path: Path, prefix: str, indptr: np.ndarray, indices: np.ndarray, shape: np.ndarray) -> CsrParts:
        """Build and check the parts, except the values of `indices`."""
        indptr = whole_numbers(path, f"{prefix}indptr", indptr).astype(np.int64)
        indices = whole_numbers(path, f"{prefix}indices", indices)
        if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
            raise unexpected(path, f"{prefix}shape", f"is {shape.tolist()}, expected rows and columns")
        rows, columns = (int(length) for length in shape)
        if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
            raise unexpected(
                path, f"{prefix}indptr",
                f"must rise from 0 to {len(indices)} in {rows + 1} entries; it has {len(indptr)}, and ends with "
                f"{indptr[-1:].tolist()}",
            )  # fmt: skip
        return CsrParts(path, prefix, indptr, indices, rows, columns)

    def to_features(self, values: np.ndarray, part: str) -> sp.csr_array:
        outside = np.flatnonzero((self.indices < 0) | (self.indices >= self.columns))
        if len(outside):
            problem = f"is {self.indices[outside[0]]}, expected 0 to {self.columns - 1}"
            raise unexpected(self.path, f"{self.prefix}indices[{outside[0]}]", problem)
        check_columns(self.path, f"{self.prefix}shape", self.columns)
        if values.shape != self.indices.shape:
            raise unexpected(self.path, part, f"has the shape {list(values.shape)}, expected {[len(self.indices)]}")
        values = float32(self.path, part, values)
        features = sp.csr_array((values, self.indices, self.indptr), shape=(self.rows, self.columns))
        features.sum_duplicates()
        return features

    def to_graph(self, direction: Direction, self_loops: SelfLoops = SelfLoops.KEEP) -> tuple[Graph, EdgeCounts]:
        """Build a graph. An entry in row i and column j is an edge from i to j, as in torch_geometric."""
        if self.rows != self.columns:
            problem = f"is {self.rows} × {self.columns}, expected as many rows as columns"
            raise unexpected(self.path, f"{self.prefix}shape", problem)
        edges = EdgeList(self.rows, direction, self_loops=self_loops)
        for start, end in row_blocks(self.indptr, _BLOCK_EDGES):
            first, last = self.indptr[start], self.indptr[end]
            sources = np.repeat(np.arange(start, end, dtype=np.int32), np.diff(self.indptr[start : end + 1]))
            bad = edges.add(sources, self.indices[first:last])
            if bad >= 0:
                problem = f"is {self.indices[first + bad]}, expected a node, 0 to {self.rows - 1}"
                raise unexpected(self.path, f"{self.prefix}indices[{first + bad}]", problem)
        return edges.to_graph()


def float32(path: Path, part: str, given: np.ndarray) -> np.ndarray:
    """The values as float32, any shape. Converts in pieces, since `given` may be a mapped file; refuses values that are
    not finite."""
    if given.dtype.kind not in "biuf":
        raise unexpected(path, part, f"is {given.dtype}, expected numbers")
    values = np.empty(given.shape, dtype=np.float32)
    rows = max(1, _BLOCK_VALUES // max(1, given[:1].size))
    for start in range(0, len(given), rows):
        block = values[start : start + rows]
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
            block[...] = given[start : start + rows]
        if not np.isfinite(block).all():
            at = np.argwhere(~np.isfinite(block))[0]
            at[0] += start
            raise unexpected(path, f"{part}{at.tolist()}", f"is {given[tuple(at)]}, expected a finite float32")
    return values
