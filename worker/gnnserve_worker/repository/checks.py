"""Nothing of a repository is used before it has been checked: manifests by their types, files by their digests.

Every refusal names the file, what was found, what was expected and how to get a good one. Opening what was
checked is `loaded.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from gnnserve_api.errors import DamagedError, RepositoryError
from gnnserve_api.repository import (
    SCHEMA_VERSION,
    AnyManifest,
    FileEntry,
    GraphManifest,
    RevisionManifest,
    checksum_of,
)
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.repository import paths

_MOST_HASHING_THREADS = 8


class _Header(msgspec.Struct, frozen=True, rename="camel"):
    """What every schema version has, so that a newer one is recognised before its other fields surprise."""

    schema_version: int


def remedy(*folders: Path) -> str:
    named = " and ".join(f"the folder {folder}" for folder in folders)
    return f"delete {named}, and generate again"


def read_graph_manifest(folder: Path) -> GraphManifest:
    path = folder / paths.GRAPH_COMMIT
    manifest = _read(path, GraphManifest, remedy(folder))
    _require_named(path, "graph", manifest.digest, folder)
    _require_safe(path, manifest.files, remedy(folder))
    _require_listed(path, manifest.files, paths.GRAPH_FILES, remedy(folder))
    _require_sealed(path, manifest, remedy(folder))
    return manifest


def read_revision_manifest(folder: Path) -> RevisionManifest:
    path = folder / paths.REVISION_COMMIT
    manifest = _read(path, RevisionManifest, remedy(folder))
    _require_named(path, "revision", manifest.revision, folder)
    if not paths.is_name(manifest.graph):
        raise DamagedError(path, f"graph {manifest.graph!r} is not the name of a folder", remedy(folder))
    _require_safe(path, manifest.files, remedy(folder))
    weights = [paths.weights_of(variant.name) for variant in manifest.profile.variants]
    _require_listed(path, manifest.files, [manifest.table, *weights], remedy(folder))
    if not weights:
        raise DamagedError(path, "lists no variant, expected at least one", remedy(folder))
    _require_sealed(path, manifest, remedy(folder))
    return manifest


def verify_files(folders: Mapping[Path, Mapping[str, FileEntry]], how_to_repair: str) -> None:
    """Size and SHA-256 of every listed file, several at a time; hashing runs outside of the GIL."""
    listed = [(folder / name, entry) for folder, entries in folders.items() for name, entry in entries.items()]
    for path, entry in listed:
        _verify_size(path, entry, how_to_repair)
    # Largest first, so that the longest does not start last.
    listed.sort(key=lambda item: item[1].bytes, reverse=True)
    with ThreadPoolExecutor(min(_MOST_HASHING_THREADS, thread_count()), thread_name_prefix="verify") as pool:
        for checked in [pool.submit(_verify_digest, path, entry, how_to_repair) for path, entry in listed]:
            checked.result()


def open_array(path: Path, dtype: type[np.generic], shape: tuple[int, ...], how_to_repair: str) -> np.ndarray:
    """Memory-mapped and read-only."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DamagedError(path, f"cannot be opened as a numpy array: {error}", how_to_repair) from error
    if mapped.dtype != np.dtype(dtype) or mapped.shape != shape:
        found, expected = f"{mapped.dtype} {list(mapped.shape)}", f"{np.dtype(dtype)} {list(shape)}"
        raise DamagedError(path, f"holds {found}, expected {expected}", how_to_repair)
    # A plain array over the mapping: np.memmap's own class costs microseconds at every slice.
    return np.asarray(mapped)


def _read(path: Path, kind: type[AnyManifest], how_to_repair: str) -> AnyManifest:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(path, "is missing", how_to_repair) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        version = msgspec.json.decode(data, type=_Header).schema_version
        if version > SCHEMA_VERSION:
            raise RepositoryError(
                path,
                f"has schemaVersion {version}, and this gnnserve reads up to {SCHEMA_VERSION}: "
                "it was written by a newer gnnserve",
                "upgrade gnnserve, or choose another folder with --repository",
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise DamagedError(path, f"does not fit schemaVersion {SCHEMA_VERSION}: {error}", how_to_repair) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        found = f"not valid JSON, {len(data):,} bytes: {error}"
        raise DamagedError(path, f"is {found}", how_to_repair) from error


def _require_named(path: Path, what: str, name: str, folder: Path) -> None:
    if name != folder.name:
        raise DamagedError(
            path,
            f"describes {what} {name!r}, expected {folder.name!r} as its folder is named",
            f"give the folder its old name back, or {remedy(folder)}",
        )


def _require_sealed(path: Path, manifest: GraphManifest | RevisionManifest, how_to_repair: str) -> None:
    expected = checksum_of(manifest)
    if manifest.checksum != expected:
        raise DamagedError(
            path, f"was altered: its checksum is {manifest.checksum!r}, expected {expected}", how_to_repair
        )


def _require_safe(path: Path, entries: Mapping[str, FileEntry], how_to_repair: str) -> None:
    for name in entries:
        if not paths.is_relative(name):
            raise DamagedError(path, f"lists {name!r}, expected files inside its own folder", how_to_repair)


def _require_listed(
    path: Path, entries: Mapping[str, FileEntry], names: list[str] | tuple[str, ...], how_to_repair: str
) -> None:
    for name in names:
        if name not in entries:
            raise DamagedError(path, f"does not list {name}, expected it with its size and digest", how_to_repair)


def _verify_size(path: Path, entry: FileEntry, how_to_repair: str) -> None:
    try:
        found_bytes = path.stat().st_size
    except FileNotFoundError as error:
        raise DamagedError(path, f"is missing, expected {entry.bytes:,} bytes", how_to_repair) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if found_bytes != entry.bytes:
        raise DamagedError(path, f"has {found_bytes:,} bytes, expected {entry.bytes:,}", how_to_repair)


def _verify_digest(path: Path, entry: FileEntry, how_to_repair: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error
    if found != entry.sha256:
        raise DamagedError(path, f"was altered: its SHA-256 is {found}, expected {entry.sha256}", how_to_repair)


def _unreadable(path: Path, error: OSError) -> RepositoryError:
    return RepositoryError(path, f"cannot be read: {error.strerror}", "check the permissions of that file")
