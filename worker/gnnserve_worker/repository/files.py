"""Durable file operations: what is written here survives a power cut once the call has returned.

Every call that changes the disk is one of the small functions under "steps", so that tests can end the process or fill
the disk around each of them. `revision_files.py` decides what is written and when it counts as published.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EDQUOT, ENOSPC, ENOTDIR, EROFS
from pathlib import Path

import numpy as np

from gnnserve_api.errors import GnnserveError, StorageError, remedy_of
from gnnserve_api.files.repository import FileEntry

_CHUNK_BYTES = 16 * 1024 * 1024

# --- steps


def create(path: Path) -> int:
    """Create a read-only file, open for writing here: a published file changed in place would change under its
    readers."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)


def write(descriptor: int, data: memoryview) -> int:
    return os.write(descriptor, data)


def sync(path: Path) -> None:
    """Flush to disk the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    path.mkdir()


def rename(source: Path, target: Path) -> None:
    source.rename(target)


def remove_file(path: Path) -> None:
    """Remove a file, if it exists. Processes that have it mapped go on reading it."""
    path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    shutil.rmtree(path)


# --- operations


def make_folder(path: Path) -> None:
    """Create a folder and its parents. An existing folder is left as it is."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with storing(path):
        try:
            make_directory(path)
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(ENOTDIR, "it is a file, expected a folder") from None
            # Another process created it first: two may get here before one of them takes the lock.
        sync(path.parent)


def write_file(path: Path, data: bytes | memoryview, header: bytes = b"") -> FileEntry:
    """Write a new file, `header` first, and compute its digest on the way."""
    digest = hashlib.sha256()
    with storing(path, len(header) + len(data)):
        descriptor = create(path)
        try:
            for chunk in _chunks(header, memoryview(data)):
                digest.update(chunk)
                left = memoryview(chunk)
                while len(left) > 0:
                    left = left[write(descriptor, left) :]
        finally:
            os.close(descriptor)
        sync(path)
        sync(path.parent)
    return FileEntry(bytes=len(header) + len(data), sha256=digest.hexdigest())


def _chunks(header: bytes, data: memoryview) -> Iterator[bytes | memoryview]:
    """Parts of the file that end at multiples of their size, so that the page cache can use whole huge pages."""
    first = _CHUNK_BYTES - len(header)
    yield header + bytes(data[:first])
    for start in range(first, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def write_array(path: Path, array: np.ndarray) -> FileEntry:
    """Write an array as `.npy`. `np.save` is not used, since it loses the error number of a full disk."""
    array = np.ascontiguousarray(array)
    return write_file(path, array.reshape(-1).view(np.uint8).data, _npy_header(array))


def commit(path: Path, data: bytes) -> None:
    """Write `path` atomically: it appears with all of its content, or not at all."""
    unfinished = path.with_name(f"{path.name}.tmp")
    write_file(unfinished, data)
    with storing(path):
        rename(unfinished, path)
        sync(path.parent)


def entry_of(path: Path) -> FileEntry:
    """The entry (size, digest) of a file that other code wrote."""
    with path.open("rb") as file:
        return FileEntry(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def remove_uncommitted(parent: Path, commit_name: str) -> None:
    """Remove folders that unfinished processes left. To be called under the lock: a running process's look the same."""
    if not parent.is_dir():
        return
    for folder in sorted(parent.iterdir()):
        if folder.is_dir() and not (folder / commit_name).exists():
            with storing(folder):
                remove_tree(folder)


@contextmanager
def discarding_unfinished(folder: Path, commit_name: str) -> Iterator[None]:
    """Make the folder, and remove it again if the block ends without its commit."""
    make_folder(folder)
    try:
        yield
    finally:
        if not (folder / commit_name).is_file():
            # If removing fails too, the next writer removes the folder; the first error is the one to report.
            with suppress(GnnserveError), storing(folder):
                remove_tree(folder)


def require_writable(folder: Path) -> None:
    """Raise where files cannot be made in a service's folder or in those inside it: hours of work would be lost."""
    with storing(folder):
        nearest = _nearest(folder)
        inside = () if nearest != folder else (child for child in sorted(folder.iterdir()) if child.is_dir())
        for found in (nearest, *inside):
            if not os.access(found, os.R_OK | os.W_OK | os.X_OK):
                code = EROFS if os.statvfs(found).f_flag & os.ST_RDONLY else EACCES
                raise OSError(code, os.strerror(code), str(found))


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    try:
        folder.stat()
    except FileNotFoundError:
        return _nearest(folder.parent)
    return folder


# --- space


def free_bytes(path: Path) -> int:
    """Free bytes on the disk of the nearest existing folder."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_free(path: Path, wanted_bytes: int) -> None:
    """Raise before a large write that cannot fit: minutes later the work would be lost, and a write through a mapping
    would end the process."""
    if free_bytes(path) < wanted_bytes:
        raise _disk_full(path, wanted_bytes)


@contextmanager
def storing(path: Path, wanted_bytes: int = 0) -> Iterator[None]:
    """Turn an OSError of writing into a ResourceError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in {ENOSPC, EDQUOT}:
            raise _disk_full(path, wanted_bytes) from error
        raise StorageError(
            path,
            f"cannot be written: {error.strerror or error}; the published revisions are untouched",
            remedy_of(error, "check that folder"),
            on_command_line=_ANOTHER_FOLDER,
            in_cluster="create a GNNService that names another claim: spec.repository.claimName is fixed",
        ) from error


def _disk_full(path: Path, wanted_bytes: int) -> StorageError:
    wanted = f"{wanted_bytes:,} bytes wanted, " if wanted_bytes else ""
    return StorageError(
        path,
        f"the disk or its quota is full: {wanted}{free_bytes(path):,} bytes free; the published revisions are "
        "untouched",
        "free some space and start again",
        on_command_line=_ANOTHER_FOLDER,
        # Which of the two is not known here: a Job is told of the mounted folder alone.
        in_cluster="let the claim grow: by spec.repository.claim.storage of the GNNService or GNNWorkerPool that it is "
        "made for, or, if it is one of yours (spec.repository.claimName), by its own spec.resources.requests.storage",
    )


_ANOTHER_FOLDER = "choose another folder with --repository"


def _npy_header(array: np.ndarray) -> bytes:
    """Header of format version 1.0, padded to 64 bytes so that the mapped data is aligned."""
    fields = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape!r}, }}"
    prefix = len(np.lib.format.magic(1, 0)) + 2
    padding = -(prefix + len(fields) + 1) % np.lib.format.ARRAY_ALIGN
    text = f"{fields}{' ' * padding}\n".encode("latin1")
    return np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text
