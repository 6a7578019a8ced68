"""A folder of downloaded files: how a whole file is recognised later, and how processes share the folder.

`NAME.fetched.json` beside a file holds its origin and its SHA-256. One process at a time fetches into a folder. The
download itself is in `file.py`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gnnserve_api.errors import ResourceError
from gnnserve_worker.progress import Progress, ProgressListener

MIB = 1024 * 1024
_HASHED_BYTES = 16 * MIB


@dataclass(frozen=True, slots=True)
class FileToFetch:
    """A file to fetch, and how to recognise that it is the right one."""

    name: str
    url: str
    sha256: str | None = None


def fetched_digest(path: Path) -> str | None:
    """SHA-256 of the file that was last fetched to `path`, or None."""
    try:
        digest = json.loads(record_of(path).read_bytes())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return digest if isinstance(digest, str) else None


def sha256_of(name: str, path: Path, progress: ProgressListener) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        done = 0
        while chunk := file.read(_HASHED_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if total > _HASHED_BYTES:  # otherwise it is over before it could be read
                progress(Progress(f"check {name}", done, total, amount(done, total)))
    return digest.hexdigest()


def is_kept(wanted: FileToFetch, path: Path, progress: ProgressListener) -> bool:
    try:
        record = json.loads(record_of(path).read_bytes())
        expected, size = record["sha256"], record["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if wanted.sha256 not in {None, expected}:
        return False
    with storing(wanted, path):
        return path.is_file() and path.stat().st_size == size and sha256_of(wanted.name, path, progress) == expected


def record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.fetched.json")


@contextmanager
def locked(wanted: FileToFetch, folder: Path, progress: ProgressListener) -> Iterator[None]:
    """Hold the folder's lock, which the kernel drops when its holder dies, however it dies."""
    path = folder / ".lock"
    with storing(wanted, path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with storing(wanted, path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(Progress(f"wait for another process that is downloading {wanted.name}", 0, 1))
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def storing(wanted: FileToFetch, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"{path}: cannot keep {wanted.url}: {error.strerror or error}; make room or the folder writable"
        ) from error


def write_whole(path: Path, record: dict[str, str | int]) -> None:
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text(json.dumps(record) + "\n", encoding="utf-8")
    sync(unfinished)
    unfinished.rename(path)


def sync(path: Path) -> None:
    """Flush to disk the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def amount(done: int, total: int | None) -> str:
    """Amounts for messages: `512 of 1,400 MiB`."""
    size = done if total is None else total
    unit, name = next(
        (unit, name) for unit, name in ((MIB, "MiB"), (1024, "KiB"), (1, "bytes")) if size >= 4 * unit or unit == 1
    )
    amounts = [done] if total is None else [done, total]
    return f"{' of '.join(f'{each / unit:,.0f}' for each in amounts)} {name}"
