"""Columns of the nodes of an index as the graph's source has them, which recommendations are filtered by: in the folder
of their revision, one column after the other, so that a filter reads those alone that it names.

Which files there are is said by `columns.json`, which is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.errors import DamagedError
from gnnserve_api.files.embeddings import COLUMNS_SCHEMA_VERSION, ColumnsManifest
from gnnserve_api.files.repository import FileEntry
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.store import Features
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.repository import files
from gnnserve_worker.tables.table import map_array

COMMIT = "columns.json"
_DENSE = "columns.npy"
_SPARSE = ("data.npy", "indices.npy", "indptr.npy")


@dataclass(frozen=True, slots=True)
class IndexColumns:
    manifest: ColumnsManifest
    columns: FeatureColumns
    values_of: Callable[[int], np.ndarray]
    """Numbers of all nodes in the column of a feature, float32 [nodes]."""


def columns_folder(revision: Path, part: IndexPart) -> Path:
    """`revision`: the folder of a published revision."""
    return revision / part.columns_folder


def write_columns(folder: Path, features: Features | None) -> dict[str, FileEntry]:
    """Write the columns of features of all nodes, and not their manifest; None: nodes have none."""
    if features is None:
        return {}
    if isinstance(features, np.ndarray):
        arrays: Mapping[str, np.ndarray] = {_DENSE: np.ascontiguousarray(features.T, np.float32)}
    else:
        by_column = features.tocsc()
        parts = (np.asarray(by_column.data, np.float32), by_column.indices, by_column.indptr)
        arrays = dict(zip(_SPARSE, parts, strict=True))
    files.require_free(folder, sum(array.nbytes for array in arrays.values()))
    return {name: files.write_array(folder / name, array) for name, array in arrays.items()}


def read_manifest(folder: Path) -> ColumnsManifest | None:
    """None: there are no columns, or such as another release made."""
    try:
        manifest = decoding.decode((folder / COMMIT).read_bytes(), ColumnsManifest)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return manifest if manifest.schema_version == COLUMNS_SCHEMA_VERSION else None


def open_columns(folder: Path, manifest: ColumnsManifest) -> IndexColumns:
    """Open the columns after verifying their checksums. Raises DamagedError."""
    mapped = {name: _open(folder, name, entry) for name, entry in manifest.files.items()}
    columns = FeatureColumns(manifest.features, manifest.columns)
    if (dense := mapped.get(_DENSE)) is not None:
        _check(folder / _DENSE, dense.shape == (manifest.features, manifest.nodes))
        return IndexColumns(manifest, columns, lambda feature: dense[feature])
    if manifest.features == 0:
        return IndexColumns(manifest, columns, lambda _: np.zeros(manifest.nodes, np.float32))
    _check(folder / COMMIT, all(name in mapped for name in _SPARSE))
    data, indices, starts = (mapped[name] for name in _SPARSE)
    _check(folder / _SPARSE[2], len(starts) == manifest.features + 1)

    def values_of(feature: int) -> np.ndarray:
        values = np.zeros(manifest.nodes, np.float32)
        own = slice(int(starts[feature]), int(starts[feature + 1]))
        values[indices[own]] = data[own]
        return values

    return IndexColumns(manifest, columns, values_of)


def _open(folder: Path, name: str, entry: FileEntry) -> np.ndarray:
    path = folder / name
    try:
        _check(path, files.entry_of(path) == entry)
        return map_array(path)
    except OSError as error:
        raise DamagedError(path, f"cannot be read: {error.strerror}", _remedy(folder)) from error


def _check(path: Path, is_right: bool) -> None:
    if not is_right:
        raise DamagedError(path, "is not what was written", _remedy(path.parent))


def _remedy(folder: Path) -> str:
    return f"delete {folder} and make it again with `gnnserve generate`"
