"""Checks of a repository before anything in it is used: manifests by their types, files by their digests.

Every refusal names the file, what was found, what was expected and how to get a good one. `loaded.py` builds a revision
from the checked files.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api import decoding
from gnnserve_api.errors import DamagedError, OutdatedError, RepositoryError, remedy_of
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.repository import (
    LATEST_SCHEMA_VERSION,
    PAYLOAD_SCHEMA_VERSION,
    SCHEMA_VERSION,
    FileEntry,
    GraphManifest,
    NodeIdKind,
    RevisionManifest,
    TableManifest,
    VariantManifest,
    checksum_of,
)
from gnnserve_api.files.repository_schema3 import RevisionManifest3
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.positions import NO_POSITIONS, Positions, PositionSurvey
from gnnserve_worker.tables.growing import map_growing
from gnnserve_worker.tables.table import map_array

_MOST_HASHING_THREADS = 8
_SURVEYED_AT_ONCE = 128 * 1024
"""Values per part of a survey: as many as a core's own cache keeps from the digest to the survey."""
_GRAPH_VERSIONS = range(1, PAYLOAD_SCHEMA_VERSION + 1)
"""Schema versions of graphs that can be read: fields that came later have defaults."""
_REVISION_VERSIONS = range(3, LATEST_SCHEMA_VERSION + 1)
"""Schema versions of revisions that can be read: 3 by `RevisionManifest3`."""
_Manifest = TypeVar("_Manifest", GraphManifest, RevisionManifest, RevisionManifest3)


class _Header(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that every schema version has: the version is checked before the fields that depend on it."""

    schema_version: int


def remedy(*folders: Path) -> str:
    named = " and ".join(f"the folder {folder}" for folder in folders)
    return f"delete {named}, and generate again"


def read_graph_manifest(folder: Path) -> GraphManifest:
    path = folder / paths.GRAPH_COMMIT
    data = _read(path)
    version = _require_known(path, data, _GRAPH_VERSIONS, remedy(folder))
    manifest, content = _decode(path, data, version, GraphManifest, remedy(folder))
    _require_named(path, "graph", manifest.digest, folder)
    _require_safe(path, manifest.files, remedy(folder))
    _require_safe(path, {} if manifest.version is UNSET else manifest.version.files, remedy(folder))
    _require_listed(path, manifest.files, (*paths.GRAPH_FILES, *paths.ID_FILES[manifest.node_ids]), remedy(folder))
    for kind in manifest.schema.types[1:]:
        own = [paths.of_type(kind.name, name) for name in paths.ID_FILES[NodeIdKind(kind.node_ids)]]
        _require_listed(path, manifest.files, own, remedy(folder))
    _require_listed(path, manifest.files, paths.payload_files(manifest.schema), remedy(folder))
    if paths.has_ids_of_all(manifest.files):
        names = [paths.of_all(name) for name in paths.ID_FILES[NodeIdKind.STRINGS]]
        _require_listed(path, manifest.files, names, remedy(folder))
    _require_sealed(path, content, remedy(folder))
    return manifest


def read_revision_manifest(folder: Path) -> RevisionManifest:
    path = folder / paths.REVISION_COMMIT
    data = _read(path)
    manifest: RevisionManifest | RevisionManifest3
    version = _require_known(path, data, _REVISION_VERSIONS, remedy(folder))
    if version < SCHEMA_VERSION:
        manifest, content = _decode(path, data, version, RevisionManifest3, remedy(folder))
    else:
        manifest, content = _decode(path, data, version, RevisionManifest, remedy(folder))
    _require_named(path, "revision", manifest.revision, folder)
    if not paths.is_name(manifest.graph):
        raise DamagedError(path, f"graph {manifest.graph!r} is not the name of a folder", remedy(folder))
    _require_safe(path, manifest.files, remedy(folder))
    if not manifest.profile.variants:
        raise DamagedError(path, "lists no variant, expected at least one", remedy(folder))
    revision = manifest.upgraded() if isinstance(manifest, RevisionManifest3) else manifest
    if (misfit := profile_misfit([*revision.variants, *revision.cascades], revision.profile)) is not None:
        raise DamagedError(path, misfit, remedy(folder))
    for variant in revision.variants:
        if (misfit := variant_misfit(variant, revision.tables)) is not None:
            raise DamagedError(path, misfit, remedy(folder))
    for cascade in revision.cascades:
        if (misfit := cascade_misfit(cascade, revision.variants)) is not None:
            raise DamagedError(path, misfit, remedy(folder))
    tables = [name for table in revision.tables.values() for name in files_of(table)]
    _require_listed(path, revision.files, [*tables, *files_beside_tables(revision)], remedy(folder))
    for variant in revision.variants:
        if (misfit := program_misfit(variant, revision.files)) is not None:
            raise DamagedError(path, misfit, remedy(folder))
    _require_sealed(path, content, remedy(folder))
    return revision


def files_beside_tables(manifest: RevisionManifest) -> list[str]:
    """Paths of the files that variants, rows of new nodes and the task are read from."""
    weights = [name for variant in manifest.variants for name in variant.network_files]
    source = manifest.row_source
    rows = [source.tensors] if source is not None and source.tensors is not None else []
    return [*weights, *rows, *manifest.task_files]


def profile_misfit(variants: Sequence[VariantManifest | CascadeManifest], profile: Profile) -> str | None:
    """How the profile is of other variants than those that were made; None: it is not."""
    made, measured = [variant.name for variant in variants], [variant.name for variant in profile.variants]
    if made == measured:
        return None
    return f"has a profile of {', '.join(measured)}, expected one of {', '.join(made)}"


def variant_misfit(variant: VariantManifest, tables: Mapping[str, TableManifest]) -> str | None:
    """What of a variant contradicts the rest of its revision; None: nothing does."""
    layers, classes = variant.network.layers, variant.network.classes
    for table in variant.tables:
        if table not in tables:
            return f"has no table {table!r}, expected it for variant {variant.name}"
    if len(variant.fanouts) != layers:
        found = f"{len(variant.fanouts)} fan-outs for variant {variant.name}"
        return f"has {found}, expected one for each of its {layers} layers"
    if variant.thresholds is not None and len(variant.thresholds) != classes:
        found = f"{len(variant.thresholds)} thresholds for variant {variant.name}"
        return f"has {found}, expected one for each of its {classes} classes"
    return None


def program_misfit(variant: VariantManifest, files: Mapping[str, FileEntry]) -> str | None:
    """What of a variant's program contradicts the rest of its revision, whose files these are; None: nothing does."""
    program, network = variant.network.program, variant.network
    if program is UNSET:
        return None
    if program.file != variant.weights:
        return f"has the program {program.file} for variant {variant.name}, expected {variant.weights}"
    if program.sha256 != (found := files[variant.weights].sha256):
        return f"lists {program.file} with the digest {found}, expected {program.sha256} as its contract says"
    if program.scores.columns != network.classes:
        given = f"{program.scores.columns} columns of scores for variant {variant.name}"
        return f"has {given}, expected one for each of its {network.classes} classes"
    return None


def cascade_misfit(cascade: CascadeManifest, variants: Sequence[VariantManifest]) -> str | None:
    """What of a cascade contradicts the rest of its revision; None: nothing does."""
    made = [variant.name for variant in variants]
    for stage in (cascade.first, cascade.then):
        if stage not in made:
            return f"has no variant {stage!r}, expected it for cascade {cascade.name}, out of {', '.join(made)}"
    if not 0 < cascade.temperature < math.inf:
        return f"has temperature {cascade.temperature} for cascade {cascade.name}, expected a number above 0"
    return None


def files_of(table: TableManifest) -> list[str]:
    stored = [table.rows] if table.own is None else [table.rows, table.own]
    return [name for rows in stored for name in (rows.values, rows.scales) if name is not None]


@dataclass(frozen=True, slots=True)
class ListedFiles:
    folder: Path
    entries: Mapping[str, FileEntry]
    """Listed files by their path inside the folder."""
    remedy: str


def verify_sizes(lists: Sequence[ListedFiles]) -> None:
    """Compare the size of every listed file with its entry, without reading any file."""
    for path, entry, how_to_repair in _listed(lists):
        _verify_size(path, entry, how_to_repair)


def _listed(lists: Sequence[ListedFiles]) -> list[tuple[Path, FileEntry, str]]:
    return [(files.folder / name, entry, files.remedy) for files in lists for name, entry in files.entries.items()]


@dataclass(frozen=True, slots=True)
class VerifiedFiles:
    """The very bytes that were verified, so that no file is opened twice."""

    mapped: Mapping[Path, np.ndarray] = field(default_factory=dict)
    read: Mapping[Path, bytes] = field(default_factory=dict)
    """Contents of the files that are not arrays: weights."""


def verify_files(lists: Sequence[ListedFiles], positions: Mapping[Path, Positions] = NO_POSITIONS) -> VerifiedFiles:
    """Verify size and SHA-256 of every listed file, and the values of those that hold `positions`, several files at a
    time.

    Arrays are hashed through the mapping that will serve, so that their pages are in memory afterwards; a cold page
    cache is filled in huge pages where the kernel has them. Hashing releases the GIL.
    """
    verify_sizes(lists)
    listed = _listed(lists)
    # Largest file first, so that the longest one does not start last.
    listed.sort(key=lambda item: item[1].bytes, reverse=True)
    # Not in the threads: numpy parses headers by `ast`, which in Python 3.11 fails when two threads use it at once
    # (https://github.com/python/cpython/issues/106905).
    arrays = {path: array for path, _, _ in listed if (array := _map_if_array(path)) is not None}
    with ThreadPoolExecutor(min(_MOST_HASHING_THREADS, thread_count()), thread_name_prefix="verify") as pool:
        checks = [
            pool.submit(_verify_content, path, arrays.get(path), entry, positions.get(path), remedy)
            for path, entry, remedy in listed
        ]
        contents = [checked.result() for checked in checks]
    read = {path: content for (path, _, _), content in zip(listed, contents, strict=True) if content is not None}
    return VerifiedFiles(arrays, read)


def open_array(
    path: Path, dtype: np.dtype, shape: tuple[int, ...], how_to_repair: str, mapped: np.ndarray | None = None
) -> np.ndarray:
    """Open an array memory-mapped and read-only. `mapped`: the mapping of `verify_files`, if it has one."""
    try:
        array = map_array(path) if mapped is None else mapped
    except (OSError, ValueError) as error:
        raise DamagedError(path, f"cannot be opened as a numpy array: {error}", how_to_repair) from error
    if array.dtype != dtype or array.shape != shape:
        found, expected = f"{array.dtype} {list(array.shape)}", f"{dtype} {list(shape)}"
        raise DamagedError(path, f"holds {found}, expected {expected}", how_to_repair)
    return array


def open_growing(path: Path, dtype: np.dtype, shape: tuple[int, ...], rows: int, how_to_repair: str) -> np.ndarray:
    """Open an array for changes: writable, with room for `rows` in all, the first of which are the file's, of the given
    shape. What is written stays in memory; the file stays as it is."""
    try:
        array = map_growing(path, rows)
    except (OSError, ValueError) as error:
        raise DamagedError(path, f"cannot be opened as a numpy array: {error}", how_to_repair) from error
    if array.dtype != dtype or array.shape[1:] != shape[1:]:
        found, expected = f"{array.dtype} rows of {list(array.shape[1:])}", f"{dtype} rows of {list(shape[1:])}"
        raise DamagedError(path, f"holds {found}, expected {expected}", how_to_repair)
    return array


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedError(path, "is missing", remedy(path.parent)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _require_known(path: Path, data: bytes, readable: range, how_to_repair: str) -> int:
    """The schema version of a manifest, which is one of those that can be read."""
    newest = readable[-1]
    with _refusing_damage(path, data, newest, how_to_repair):
        version = decoding.decode(data, _Header).schema_version
    if version > newest:
        raise RepositoryError(
            path,
            f"has schemaVersion {version}, and this gnnserve reads up to {newest}: it was written by a newer gnnserve",
            "upgrade gnnserve, or use another repository",
        )
    if version < readable[0]:
        raise OutdatedError(
            path,
            f"has schemaVersion {version}, and this gnnserve reads {readable[0]} to {newest}: it was written by an "
            "older gnnserve",
            "generate again from its manifest; the old revision stays until you delete it",
        )
    return version


def _decode(
    path: Path, data: bytes, version: int, kind: type[_Manifest], how_to_repair: str
) -> tuple[_Manifest, dict[str, Any]]:
    """A manifest as its version describes it, and its content as it stands in the file."""
    with _refusing_damage(path, data, version, how_to_repair):
        return decoding.decode(data, kind), msgspec.json.decode(data)


@contextmanager
def _refusing_damage(path: Path, data: bytes, version: int, how_to_repair: str) -> Iterator[None]:
    try:
        yield
    except msgspec.ValidationError as error:
        raise DamagedError(path, f"does not fit schemaVersion {version}: {error}", how_to_repair) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedError(path, f"is not valid JSON, {len(data):,} bytes: {error}", how_to_repair) from error


def _require_named(path: Path, what: str, name: str, folder: Path) -> None:
    if name != folder.name:
        raise DamagedError(
            path,
            f"describes {what} {name!r}, expected {folder.name!r} as its folder is named",
            f"give the folder its old name back, or {remedy(folder)}",
        )


def _require_sealed(path: Path, content: dict[str, Any], how_to_repair: str) -> None:
    found, expected = content.get("checksum", ""), checksum_of(content)
    if found != expected:
        raise DamagedError(path, f"was altered: its checksum is {found!r}, expected {expected}", how_to_repair)


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
        raise unreadable(path, error) from error
    if found_bytes != entry.bytes:
        raise DamagedError(path, f"has {found_bytes:,} bytes, expected {entry.bytes:,}", how_to_repair)


def _map_if_array(path: Path) -> np.ndarray | None:
    if path.suffix != ".npy":
        return None
    try:
        return map_array(path)
    except ValueError:
        return None  # a damaged header: the digest says so
    except OSError as error:
        raise unreadable(path, error) from error


def _verify_content(
    path: Path, array: np.ndarray | None, entry: FileEntry, positions: Positions | None, how_to_repair: str
) -> bytes | None:
    """Verify one file; returns its content where it is not an array."""
    content = None
    problem = None
    try:
        if array is None:
            content = path.read_bytes()
            found = hashlib.sha256(content).hexdigest()
        else:
            found, problem = _read_array(path, array, positions)
    except OSError as error:
        raise unreadable(path, error) from error
    if found != entry.sha256:
        raise DamagedError(path, f"was altered: its SHA-256 is {found}, expected {entry.sha256}", how_to_repair)
    if problem is not None:
        raise DamagedError(path, f"{problem}; it is as it was published, so it was written wrong", how_to_repair)
    return content


def _read_array(path: Path, array: np.ndarray, positions: Positions | None) -> tuple[str, str | None]:
    """The SHA-256 of the whole file, header included, and what is wrong with its positions, if anything.

    An array whose type or shape is not that of positions is not surveyed: opening it reports that.
    """
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(path.stat().st_size - array.nbytes))
    values = array.reshape(-1)
    if positions is None or array.ndim != 1 or array.dtype != positions.dtype:
        digest.update(values.view(np.uint8).data)
        return digest.hexdigest(), None
    survey = PositionSurvey(positions)
    for start in range(0, len(values), _SURVEYED_AT_ONCE):
        part = values[start : start + _SURVEYED_AT_ONCE]
        digest.update(part.view(np.uint8).data)
        survey.add(part)
    return digest.hexdigest(), survey.problem()


def unreadable(path: Path, error: OSError) -> RepositoryError:
    return RepositoryError(path, f"cannot be read: {error.strerror}", remedy_of(error, "check that file"))
