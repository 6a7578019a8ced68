"""Arrays of a graph by name, each checked before anything is computed from it: features, labels and masks of nodes.

What they are read from (`NamedArrays`) is an `.npz` archive or a safetensors file. Every message names the file, the
array, the first bad value and the remedy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.sources.archive import Header
from gnnserve_worker.graph.sources.checks import (
    MAX_COLUMNS,
    RANGES,
    REGRESSION,
    as_float32,
    check_classes,
    check_splits,
    unread_edge_data,
    unread_node_data,
)
from gnnserve_worker.graph.store import Features, Finding, Splits

_SPARSE = ("feat_indptr", "feat_indices", "feat_data", "feat_shape")
MASKS = ("train_mask", "val_mask", "test_mask")
EDGE_COLUMNS = ("edge_attr", "edge_time")
"""Names of the arrays of features and times of edges."""
NODE_ARRAYS = frozenset(("features", *_SPARSE, "labels", *MASKS))
"""Names of all arrays of nodes that are read."""
_KINDS = {"i": "integers", "u": "unsigned integers", "f": "floats", "b": "bool"}
_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})


class NamedArrays(Protocol):
    """Arrays that are read when they are asked for, as an `archive.Archive` has them."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def headers(self) -> Mapping[str, Header | None]:
        """Headers by name. None: the member is not an array, or not one that is supported; `read` says so."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Read an array. Raises ValueError where it is not what its header states."""
        ...


@contextmanager
def reading(field: str, path: Path, kind: str, remedy: str) -> Iterator[None]:
    """Turn what damaged bytes raise into an InputError at the field. `kind`: what the file should be."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise ResourceError(
            f"{path}: {error}; use a machine with more memory, or write fewer columns or narrower types"
        ) from error
    except Exception as error:  # numpy, zipfile, zlib and tokenize raise a dozen kinds
        raise InputError(field, f"{path} is not a readable {kind} file: {error}", remedy) from error


@dataclass(frozen=True, slots=True)
class ArrayLabels:
    labels: np.ndarray
    """Class indices, int64 [nodes], -1 for unknown; or uint8 [nodes, classes] of 0 and 1."""
    classes: tuple[int, ...]
    known: np.ndarray
    """Whether each node has a label, bool [nodes]."""
    findings: tuple[Finding, ...] = ()


class CheckedArrays:
    """Reads each array when it is needed, and only after its header was checked against what is known of the graph."""

    def __init__(self, path: str, arrays: NamedArrays, shown: Mapping[str, str] = _AS_THEY_ARE) -> None:
        """`shown`: what arrays are called in messages, where the file has other names for them."""
        self.path = path
        """The file, for messages."""
        self._arrays = arrays
        self._shown_as = shown

    @property
    def names(self) -> tuple[str, ...]:
        return self._arrays.names

    def has_features(self) -> bool:
        return "features" in self.names or any(name in self.names for name in _SPARSE)

    def unread_of_edges(self, edges: int, read: Collection[str]) -> tuple[Finding, ...]:
        """A finding about arrays that look like data of edges, of which there are so many. `read`: those that are
        read."""
        unread = {name: self._arrays.headers[name] for name in self.names if name not in read}
        found = [
            self.shown(name)
            for name, header in unread.items()
            if "edge" in name or "weight" in name or (header is not None and header.shape[:1] == (edges,))
        ]
        return unread_edge_data(found)

    def unread_of_nodes(self, nodes: int, read: Collection[str], kind: str = "") -> tuple[Finding, ...]:
        """A finding about arrays with an entry for each node, of which there are so many. `read`: those that are read,
        or told of already. `kind`: their type, where there are several."""
        headers = {name: header for name, header in self._arrays.headers.items() if name not in read}
        found = [name for name, header in headers.items() if header is not None and header.shape[:1] == (nodes,)]
        return unread_node_data([self.shown(name) for name in found], kind)

    def edge_payload(self, edges: int, attributes: str = "edge_attr", times: str = "edge_time") -> EdgePayload | None:
        """Features and times of so many edges, by the names of their arrays, whose columns are called by their
        places; None: the file has neither."""
        if attributes not in self.names and times not in self.names:
            return None
        features, at = np.zeros((edges, 0), np.float32), np.zeros(0, np.int64)
        if attributes in self.names:
            header = self.header(attributes, "fiu", None)
            if header.ndim not in {1, 2}:
                problem = f"has shape {list(header.shape)}, expected [edges] or [edges, columns]"
                raise self.error(attributes, problem, "write one row for each edge")
            self._one_per_edge(attributes, header, edges)
            if header.ndim == 2 and not 1 <= header.shape[1] <= MAX_COLUMNS:
                problem = f"has {header.shape[1]:,} columns, expected 1 to {MAX_COLUMNS:,}"
                raise self.error(attributes, problem, "write as many, or leave the array out")
            features = self._float32(attributes, header.ndim).reshape(edges, -1 if edges else header.shape[-1])
        if times in self.names:
            self._one_per_edge(times, self.header(times, "iu", 1), edges)
            at = self.int64(times, 1)
        columns = tuple(map(str, range(features.shape[1])))
        return EdgePayload(columns, features, self.shown(times).rpartition("/")[2] if times in self.names else "", at)

    def _one_per_edge(self, name: str, header: Header, edges: int) -> None:
        if header.shape[:1] != (edges,):
            found = f"{header.shape[0]:,} entries" if header.ndim else "one number"
            raise self.error(name, f"has {found}, and there are {edges:,} edges", "write one for each edge")

    def error(self, array: str, problem: str, remedy: str) -> InputError:
        name, bracket, place = array.partition("[")
        return InputError(f"{self.path}: {self.shown(name)}{bracket}{place}", problem, remedy)

    def shown(self, name: str) -> str:
        return self._shown_as.get(name, name)

    def header(self, name: str, kinds: str, dimensions: int | None) -> Header:
        """The array's header, checked, without reading the array. `dimensions` None: any."""
        if name not in self._arrays.names:
            raise self.error(
                name,
                f"is missing; the file has {', '.join(sorted(map(self.shown, self._arrays.names))) or 'no arrays'}",
                f"add {self.shown(name)!r}",
            )  # fmt: skip
        header = self._known_header(name)
        if header.dtype.kind not in kinds or dimensions not in {None, header.ndim}:
            expected = " or ".join(_KINDS[kind] for kind in kinds)
            raise self.error(
                name,
                f"is {header.dtype} with shape {list(header.shape)}, expected {expected}"
                f"{'' if dimensions is None else f' in {dimensions} dimension(s)'}",
                "convert the array",
            )
        return header

    def _known_header(self, name: str) -> Header:
        header = self._arrays.headers[name]
        if header is None or header.dtype.hasobject:
            array = self._arrays.read(name)  # says why it is no array of numbers
            return Header(array.shape, array.dtype)
        return header

    def array(self, name: str, kinds: str, dimensions: int | None) -> np.ndarray:
        self.header(name, kinds, dimensions)
        return self._arrays.read(name)

    def int64(self, name: str, dimensions: int) -> np.ndarray:
        given = self.array(name, "iu", dimensions)
        if given.dtype == np.uint64:
            large = np.flatnonzero(given > np.iinfo(np.int64).max)
            if len(large):
                problem = f"is {given[large[0]]}, beyond 64 bits with a sign"
                raise self.error(f"{name}[{large[0]}]", problem, "correct it")
        return given.astype(np.int64)

    def csr(self, indptr_name: str, indices_name: str, columns: int | None) -> tuple[np.ndarray, np.ndarray]:
        indptr = self.int64(indptr_name, 1)
        (length,) = self.header(indices_name, "iu", 1).shape
        if len(indptr) < 2:
            raise self.error(
                indptr_name,
                f"has {len(indptr)} entries, so that the graph has no nodes, expected one entry more than nodes",
                "write a graph with at least one node",
            )
        if indptr[0] != 0 or indptr[-1] != length:
            raise self.error(
                indptr_name, f"must start at 0 and end at {length}, the length of {indices_name}; "
                f"it has {len(indptr)} entries, first {indptr[:1]}, last {indptr[-1:]}", "write a CSR matrix",
            )  # fmt: skip
        indices = self._arrays.read(indices_name)
        falling = np.flatnonzero(np.diff(indptr) < 0)
        if len(falling):
            raise self.error(
                f"{indptr_name}[{falling[0] + 1}]",
                f"is {indptr[falling[0] + 1]}, less than the entry before it, {indptr[falling[0]]}",
                "sort the rows of the CSR matrix",
            )
        limit = len(indptr) - 1 if columns is None else columns
        outside = np.flatnonzero((indices < 0) | (indices >= limit))
        if len(outside):
            raise self.error(
                f"{indices_name}[{outside[0]}]", f"is {indices[outside[0]]}, expected 0 to {limit - 1}",
                "remove the entry, or add the missing node or column",
            )  # fmt: skip
        return indptr, indices.astype(np.int32)

    def features(self, nodes: int) -> Features:
        sparse = [name for name in _SPARSE if name in self._arrays.names]
        features: Features
        if sparse and "features" not in self._arrays.names:
            shape = self.int64("feat_shape", 1)
            if len(shape) != 2 or shape.min() < 0 or shape[1] > MAX_COLUMNS:
                expected = f"expected [nodes, columns] with at most {MAX_COLUMNS:,} columns"
                raise self.error("feat_shape", f"is {shape.tolist()}, {expected}", "write both")
            indptr, indices = self.csr("feat_indptr", "feat_indices", int(shape[1]))
            (entries,) = self.header("feat_data", "fiu", 1).shape
            if entries != len(indices):
                raise self.error(
                    "feat_data", f"has {entries} entries, expected {len(indices)} like feat_indices",
                    "write a CSR matrix",
                )  # fmt: skip
            data = self._float32("feat_data", 1)
            if len(indptr) - 1 != shape[0]:
                raise self.error(
                    "feat_shape", f"says {shape[0]} rows, but feat_indptr has {len(indptr) - 1}", "write a CSR matrix"
                )
            import scipy.sparse as sp  # noqa: PLC0415 - a start over a stored graph does without it

            features = sp.csr_array((data, indices, indptr), shape=(int(shape[0]), int(shape[1])))
            features.sum_duplicates()
            if not np.isfinite(features.data).all():
                raise self.error(
                    "feat_data", "has entries of one place whose sum float32 cannot hold", "write every place once"
                )
            self._check_feature_shape(features.shape, nodes)
        else:
            self._check_feature_shape(self.header("features", "fiu", 2).shape, nodes)
            features = self._float32("features", 2)
        return features

    def _check_feature_shape(self, shape: tuple[int, ...], nodes: int) -> None:
        rows, columns = shape
        if rows != nodes:
            raise self.error("features", f"have {rows} rows, but the graph has {nodes} nodes", "write one row per node")
        if columns == 0:
            raise self.error("features", "have no columns", "add at least one")

    def _float32(self, name: str, dimensions: int) -> np.ndarray:
        given = self.array(name, "fiu", dimensions)
        values = as_float32(given)
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            at = bad[0].tolist()
            raise self.error(
                f"{name}{at}", f"is {given[tuple(at)]}, expected a finite float32 ({len(bad)} such values)",
                "replace missing values before writing the file, for example by the column's mean",
            )  # fmt: skip
        return values

    def labels(self, nodes: int, *, are_learnt: bool = True) -> ArrayLabels:
        """`are_learnt`: as of `check_classes`."""
        given_kind = self._known_header("labels") if "labels" in self._arrays.names else None
        if given_kind is not None and given_kind.dtype.kind == "f":
            raise self.error(
                "labels", f"are {given_kind.dtype}, expected classes: integers, or a matrix of 0 and 1 of integers or "
                f"booleans; {REGRESSION}", f"write classes as integers, or {RANGES}",
            )  # fmt: skip
        if given_kind is not None and given_kind.ndim == 2:
            return self._multi_labels(nodes)
        self._one_per_node("labels", self.header("labels", "iu", 1), nodes)
        given = self.int64("labels", 1)
        low = np.flatnonzero(given < -1)
        if len(low):
            raise self.error(
                f"labels[{low[0]}]", f"is {given[low[0]]}, expected a class of 0 or more, or -1 for unknown",
                "number the classes from 0",
            )  # fmt: skip
        known = given >= 0
        classes, indices = np.unique(given[known], return_inverse=True)
        where = f"{self.path}: {self.shown('labels')}"
        findings = check_classes(where, len(classes), len(indices), nodes, are_learnt=are_learnt)
        labels = np.full(nodes, -1, dtype=np.int64)
        labels[known] = indices
        return ArrayLabels(labels, tuple(int(label) for label in classes), known, findings)

    def _multi_labels(self, nodes: int) -> ArrayLabels:
        self._one_per_node("labels", self.header("labels", "iub", 2), nodes)
        matrix = self.array("labels", "iub", 2)
        bad = np.argwhere((matrix != 0) & (matrix != 1))
        if len(bad):
            at = bad[0].tolist()
            raise self.error(f"labels{at}", f"is {matrix[tuple(at)]}, expected 0 or 1", "write a 0/1 matrix")
        if matrix.shape[1] == 0:
            raise self.error("labels", "have no columns", "add one per class")
        labels = np.ascontiguousarray(matrix, dtype=np.uint8)
        return ArrayLabels(labels, tuple(range(matrix.shape[1])), np.ones(nodes, dtype=bool))

    def _one_per_node(self, name: str, header: Header, nodes: int) -> None:
        found = header.shape[0]
        if found != nodes:
            raise self.error(name, f"has {found} entries, but the graph has {nodes} nodes", "write one per node")

    def splits(self, known: np.ndarray) -> Splits:
        masks = {}
        for name in MASKS:
            self._one_per_node(name, self.header(name, "b", 1), len(known))
            # Nodes without a label can be served, but not used for training or evaluation.
            masks[name] = self.array(name, "b", 1) & known
        for name, other in (("train_mask", "val_mask"), ("train_mask", "test_mask"), ("val_mask", "test_mask")):
            both = np.flatnonzero(masks[name] & masks[other])
            if len(both):
                raise self.error(
                    other, f"shares {len(both)} nodes with {name}, the first is {both[0]}", "make the splits disjoint"
                )
        splits = Splits(*(np.flatnonzero(mask).astype(np.int64) for mask in masks.values()))
        check_splits(splits, *(f"{self.path}: {self.shown(name)}" for name in ("train_mask", "val_mask")))
        return splits
