"""Graphs of several types from torch_geometric's HeteroData: a safetensors file, and a JSON file of the same name.

Tensors are called `TYPE/x`, `TYPE/y`, `TYPE/train_mask` … and `SOURCE/RELATION/TARGET/edge_index`; the JSON has the
number of nodes of every type, which a type without features does not show. docs/data.md has the exporter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors

from gnnserve_api import decoding
from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import EdgeColumns
from gnnserve_api.spec.heterogeneous import HeteroDataFile, HeterogeneousSource
from gnnserve_worker.graph.sources.archive import Header
from gnnserve_worker.graph.sources.assembly import FIELD, GivenRelation, GivenType, assemble
from gnnserve_worker.graph.sources.checked_arrays import EDGE_COLUMNS, CheckedArrays, reading
from gnnserve_worker.graph.sources.files import digest_of, why_unreadable
from gnnserve_worker.graph.sources.npz_folder import check_name, read_type
from gnnserve_worker.graph.store import Finding, GraphData
from gnnserve_worker.progress import ProgressListener

_FIELD = f"{FIELD}.heteroData.uri"
_EDGES = "edge_index"
_NAMES = {"features": "x", "labels": "y", "train_mask": "train_mask", "val_mask": "val_mask", "test_mask": "test_mask"}
"""What HeteroData calls the arrays of a type."""
_DTYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
"""numpy's types by those of safetensors; the others are refused."""


class _Counts(msgspec.Struct):
    nodes: dict[str, int]


def identity(given: HeteroDataFile) -> str:
    files = [digest_of(_FIELD, path) for path in _paths(given)]
    return "\n".join([*files, *(["edge columns"] if given.edge_columns is EdgeColumns.READ else [])])


def load(
    source: HeterogeneousSource,
    given: HeteroDataFile,
    digest: str,
    progress: ProgressListener,
    *,
    needs_labels: bool = True,
) -> GraphData:
    path, beside = _paths(given)
    counts = _read_counts(beside)
    with (
        reading(_FIELD, path, ".safetensors", "write it with safetensors.torch.save_file"),
        safetensors.safe_open(path, framework="numpy") as opened,
    ):
        arrays = _Tensors(opened)
        types: list[GivenType] = []
        relations: list[GivenRelation] = []
        findings: list[Finding] = []
        for name, nodes in counts.items():
            check_name(f"{beside}: nodes", name)
            shown = {ours: f"{name}/{theirs}" for ours, theirs in _NAMES.items()}
            of_type = CheckedArrays(str(path), arrays.renamed(_others_of(name, arrays) | shown), shown)
            kind, found = read_type(name, of_type, nodes, learns_labels=needs_labels and source.target in {None, name})
            types.append(kind)
            findings += found
        whole = CheckedArrays(str(path), arrays)
        keys = [key for key in arrays.names if key.endswith(f"/{_EDGES}")]
        relations += [_read_relation(path, whole, key, given.edge_columns) for key in keys]
        return assemble(source, digest, types, relations, findings, needs_labels=needs_labels)


def _others_of(kind: str, arrays: _Tensors) -> dict[str, str]:
    """All tensors of a type by the names that HeteroData has for them, but for those that are called otherwise here."""
    named = {key.removeprefix(f"{kind}/"): key for key in arrays.names if key.startswith(f"{kind}/")}
    return {name: key for name, key in named.items() if "/" not in name and name not in {*_NAMES, *_NAMES.values()}}


def _paths(given: HeteroDataFile) -> tuple[Path, Path]:
    path = given.uri.path
    return path, path.with_suffix(".json")


def _read_counts(path: Path) -> Mapping[str, int]:
    try:
        counts = decoding.decode(path.read_bytes(), _Counts).nodes
    except (OSError, ValueError) as error:
        if isinstance(error, msgspec.DecodeError):
            remedy = 'write {"nodes": {"TYPE": COUNT, …}}'
            raise InputError(str(path), f"is not what is expected beside the tensors: {error}", remedy) from error
        raise InputError(_FIELD, *why_unreadable(path, error)) from error
    for name, count in counts.items():
        if count < 0:
            raise InputError(f"{path}: nodes", f"says {count} for {name!r}, expected a number from 0", "correct it")
    return counts


def _read_relation(path: Path, arrays: CheckedArrays, key: str, columns: EdgeColumns) -> GivenRelation:
    place = f"{path}: {key}"
    parts = key.split("/")
    if len(parts) != 4:
        raise InputError(place, "is not named SOURCE/RELATION/TARGET/edge_index", "rename it")
    source, name, target = (check_name(place, part) for part in parts[:3])
    header = arrays.header(key, "iu", 2)
    if header.shape[0] != 2:
        raise InputError(place, f"has shape {list(header.shape)}, expected [2, edges]", "write torch_geometric's")
    ends = arrays.int64(key, 2)
    of_relation = key.removesuffix(_EDGES)
    reads = columns is EdgeColumns.READ
    of_columns = [f"{of_relation}{name}" for name in EDGE_COLUMNS]
    read = {key, *(of_columns if reads else ())}
    unread = [name.removeprefix(of_relation) for name in arrays.names if name.startswith(of_relation)]
    return GivenRelation(
        source, name, target, ends[0], ends[1], place, (f"{place}[0]", f"{place}[1]"),
        unread=tuple(one for one in unread if f"{of_relation}{one}" not in read),
        payload=arrays.edge_payload(ends.shape[1], *of_columns) if reads else None,
    )  # fmt: skip


class _Tensors:
    """The tensors of an open safetensors file, as `NamedArrays`."""

    def __init__(self, opened: Any, keys: Mapping[str, str] | None = None) -> None:
        """`keys`: names that tensors have here, and their keys in the file; None: the keys."""
        there = sorted(opened.keys())
        given = {key: key for key in there} if keys is None else keys
        self._opened = opened
        self._keys = {name: key for name, key in given.items() if key in there}
        self.names: tuple[str, ...] = tuple(self._keys)
        self.headers: Mapping[str, Header | None] = {name: self._header(key) for name, key in self._keys.items()}

    def renamed(self, names: Mapping[str, str]) -> _Tensors:
        """The tensors of a type under other names."""
        return _Tensors(self._opened, names)

    def read(self, name: str) -> np.ndarray:
        key = self._keys[name]
        kind = self._opened.get_slice(key).get_dtype()
        if kind not in _DTYPES:
            raise ValueError(f"{key} is {kind}, which is not read: write float32 or integers")
        found: np.ndarray = self._opened.get_tensor(key)
        return found

    def _header(self, key: str) -> Header | None:
        stored = self._opened.get_slice(key)
        dtype = _DTYPES.get(stored.get_dtype())
        return None if dtype is None else Header(tuple(stored.get_shape()), np.dtype(dtype))
