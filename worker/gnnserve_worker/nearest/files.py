"""An index of a revision on disk: `index/index.json`, and one file of vectors that is mapped.

It is made of a published revision and lies in its folder, so that it goes with it; the revision itself is not changed
by it. The manifest is written last: without it there is no index.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.errors import DamagedError
from gnnserve_api.files.embeddings import INDEX_SCHEMA_VERSION, IndexKind, IndexManifest
from gnnserve_worker.nearest.parts import INDEX_FOLDER
from gnnserve_worker.nearest.search import ExactIndex, NearestIndex, open_lists
from gnnserve_worker.repository import files
from gnnserve_worker.tables.table import map_array

COMMIT = "index.json"
VECTORS = "vectors.npy"
LISTS = "vectors.faiss"


def index_folder(revision: Path, name: str = INDEX_FOLDER) -> Path:
    """`revision`: the folder of a published revision. `name`: as `IndexPart.folder`."""
    return revision / name


def read_manifest(folder: Path) -> IndexManifest | None:
    """None: there is no index, or one that another release made. Raises DamagedError."""
    path = folder / COMMIT
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        manifest = decoding.decode(content, IndexManifest)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError as error:
        raise DamagedError(path, f"is no JSON: {error}", _remedy(folder)) from error
    return manifest if manifest.schema_version == INDEX_SCHEMA_VERSION else None


def open_index(folder: Path, manifest: IndexManifest) -> NearestIndex:
    """Open the index after verifying its checksum. Raises DamagedError."""
    path = folder / manifest.file
    try:
        found = files.entry_of(path)
    except OSError as error:
        raise DamagedError(path, f"cannot be read: {error.strerror}", _remedy(folder)) from error
    if found != manifest.entry:
        raise DamagedError(path, "is not what was written", _remedy(folder))
    if manifest.kind is IndexKind.EXACT:
        vectors = map_array(path)
        if vectors.shape != (manifest.nodes, manifest.columns) or vectors.dtype != np.float32:
            problem = f"has {vectors.dtype} {vectors.shape}, expected float32 {(manifest.nodes, manifest.columns)}"
            raise DamagedError(path, problem, _remedy(folder))
        return ExactIndex(vectors)
    import faiss  # noqa: PLC0415 - a service without recommendations does without it

    # One search is short, and the engine has the other cores.
    faiss.omp_set_num_threads(1)
    index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    return open_lists(index, manifest.probed)


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    files.commit(folder / COMMIT, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def _remedy(folder: Path) -> str:
    return f"delete {folder} and make it again with `gnnserve generate`"
