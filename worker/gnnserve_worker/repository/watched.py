"""Watching the files of an open revision: whether they are still the files that were verified.

A mapping follows its file: a write in place silently changes answers, and truncation ends the process at the next
access (`memory_fault.py`). Deleting or replacing a file does neither, since the mapping keeps the old content; only the
next start would find something else. So a look compares both: the mapped file, by a descriptor that is kept open, and
the file at its path. It costs three system calls per file. The caller decides what follows from a finding.

Bytes that change without the file's times are not noticed: a failing disk or memory, a write past the file system or
through a mapping that was written through before, a second write within the resolution of the file system's clock, and
another machine's writes while a network file system has the attributes in its cache.
"""

from __future__ import annotations

import errno
import hashlib
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from gnnserve_api.files.repository import FileEntry
from gnnserve_worker.repository import checks

_READ_BYTES = 4 * 1024 * 1024
_OUR_OWN_LACK = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
"""Errors that come from this process or machine and say nothing about the file."""
_PASSING = frozenset((errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EIO, errno.ETIMEDOUT))
"""Errors that may have passed by the next look."""


class FileChange(StrEnum):
    WRITTEN = "Written"
    """The mapped file has another size or content, or is lost: answers may be wrong from now on. Stop, load again."""
    REDATED = "Redated"
    """The mapped file has another modification time and the same size: it was written to, or only its time was set.
    Stop, and verify."""
    TOUCHED = "Touched"
    """Owner, permissions, links or times of the mapped file were set, and a write may hide in that: verify."""
    UNSEEN = "Unseen"
    """The mapped file could not be looked at, for a reason that may pass."""
    MOVED = "Moved"
    """The mapped file is whole, but its path has no file or another one, which the next start would find: load
    again."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Facts that a file system reports about a file's content without reading it."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    """When content, owner, permissions or links changed last (ctime); it cannot be set by hand."""

    @staticmethod
    def of(status: os.stat_result) -> Stamp:
        return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class FileFinding:
    path: Path
    change: FileChange
    words: str
    """The message about the file: `has 10 bytes, and had 20 when it was verified`."""

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


def compare(
    path: Path, verified: Stamp, mapped: Stamp | OSError | None, found: Stamp | OSError | None
) -> list[FileFinding]:
    """Compare a file with its verified stamp. `mapped`: the mapped file now, None where it is not mapped; `found`: the
    file at its path, None where that could not be determined."""
    findings = []
    if isinstance(mapped, OSError):
        change = FileChange.UNSEEN if mapped.errno in _PASSING else FileChange.WRITTEN
        findings.append(FileFinding(path, change, f"cannot be looked at any more: {mapped.strerror}"))
    elif mapped is not None:
        if mapped.size_bytes != verified.size_bytes:
            words = f"has {mapped.size_bytes:,} bytes, and had {verified.size_bytes:,} when it was verified"
            findings.append(FileFinding(path, FileChange.WRITTEN, words))
        elif mapped.modified_ns != verified.modified_ns:
            findings.append(FileFinding(path, FileChange.REDATED, f"was written to at {_time(mapped.modified_ns)}"))
        elif mapped.changed_ns != verified.changed_ns:
            words = f"had its owner, permissions, links or times set at {_time(mapped.changed_ns)}"
            findings.append(FileFinding(path, FileChange.TOUCHED, words))
    if (moved := _moved(verified, found, is_mapped=mapped is not None)) is not None:
        findings.append(FileFinding(path, FileChange.MOVED, moved))
    return findings


def _moved(verified: Stamp, found: Stamp | OSError | None, *, is_mapped: bool) -> str | None:
    match found:
        case None:
            return None
        case OSError(errno=errno.ENOENT | errno.ENOTDIR):
            return "is gone"
        case OSError():
            return f"cannot be read any more: {found.strerror}"
    if (found.device, found.inode) != (verified.device, verified.inode):
        return "was replaced by another file"
    # For a mapped file a write was reported above, as the worse finding.
    is_written = (found.size_bytes, found.modified_ns) != (verified.size_bytes, verified.modified_ns)
    return f"was written to at {_time(found.modified_ns)}" if is_written and not is_mapped else None


@dataclass(slots=True)
class _File:
    path: Path
    entry: FileEntry | None
    """Its size and digest; None: a commit file, which carries a checksum of its own."""
    descriptor: int | None
    """Descriptor of the mapped file; None: the file was read once, and only the next start depends on it."""
    stamp: Stamp
    is_altered: bool = False
    """Its content was found to be another one, whatever its times say."""


_in_use: weakref.WeakSet[WatchedFiles] = weakref.WeakSet()
"""Every instance of this process: a memory fault does not say which revision it belongs to."""


def written_files() -> list[FileFinding]:
    """Findings about files that this process has mapped for its revisions and that were written to; usually empty."""
    findings = [finding for watched in list(_in_use) for finding in watched.look()]
    return [finding for finding in findings if finding.change in (FileChange.WRITTEN, FileChange.REDATED)]


class WatchedFiles:
    """The watched files of one revision and its graph. They are opened before they are verified, so that no change
    falls in between; descriptors are closed with the last reference, as mappings are. One thread may look while another
    verifies."""

    def __init__(self, listed: Mapping[Path, FileEntry], read: Mapping[Path, Stamp]) -> None:
        """Open the files. `listed`: listed files, of which arrays are mapped. `read`: stamps of the commit files, taken
        before they were read. Raises RepositoryError."""
        descriptors: list[int] = []
        weakref.finalize(self, _close, descriptors)
        self._files = [_File(path, None, None, stamp) for path, stamp in read.items()]
        self._files += [_open(path, entry, descriptors) for path, entry in listed.items()]
        self.times_verified = 0
        """How often a file was verified to be unchanged: findings from before then are out of date."""
        _in_use.add(self)

    def look(self) -> list[FileFinding]:
        """Findings about files that differ from what was verified; empty where none does."""
        return [
            finding
            for file in self._files
            for finding in compare(file.path, file.stamp, _stamp_of(file.descriptor), _stamp_at(file.path))
        ]

    def verify(self, path: Path) -> FileFinding | None:
        """Verify a mapped file again. None: it still has the verified content, and its present times count from now on.
        Otherwise the file that has not, or may not have: hashing a large file takes seconds, so all files are looked at
        afterwards.

        The file is read, not accessed through the mapping: reading a file that is being truncated raises no signal.
        """
        file = next(file for file in self._files if file.path == path)
        if file.descriptor is None or file.entry is None:
            raise ValueError(f"{path} is not mapped")
        digest = hashlib.sha256()
        offset = 0
        try:
            stamp = Stamp.of(os.fstat(file.descriptor))
            while chunk := os.pread(file.descriptor, _READ_BYTES, offset):
                digest.update(chunk)
                offset += len(chunk)
                if (written := self._find_written(file, stamp)) is not None:
                    return written
        except OSError as error:
            return FileFinding(path, FileChange.WRITTEN, f"cannot be read any more: {error.strerror}")
        found = digest.hexdigest()
        file.is_altered = found != file.entry.sha256
        if file.is_altered:
            return FileFinding(
                path, FileChange.WRITTEN, f"was altered: its SHA-256 is {found}, expected {file.entry.sha256}"
            )
        file.stamp = stamp
        self.times_verified += 1
        return None

    def verify_all(self) -> FileFinding | None:
        """Verify every mapped file again whose times are others, or that was found altered; None: all still have the
        verified content, whatever their times are."""
        for path in [file.path for file in self._files if file.is_altered]:
            if (wrong := self.verify(path)) is not None:
                return wrong
        for finding in self.look():
            wrong = self.verify(finding.path) if finding.change in (FileChange.REDATED, FileChange.TOUCHED) else finding
            if wrong is not None and wrong.change is not FileChange.MOVED:
                return wrong
        # While one file was verified, files verified before it may have changed.
        return next((finding for finding in self.look() if finding.change is not FileChange.MOVED), None)

    def verify_contents(self) -> FileFinding | None:
        """Verify every mapped file again, whatever its times say; None: all have the verified content. A failing disk
        or memory, and some network file systems, alter bytes and no times."""
        for path in [file.path for file in self._files if file.descriptor is not None]:
            if (wrong := self.verify(path)) is not None:
                return wrong
        return None

    def _find_written(self, verified: _File, stamp: Stamp) -> FileFinding | None:
        """A finding about any file that was written to. `stamp`: that of the file being verified, from when that
        began."""
        for file in self._files:
            known = stamp if file is verified else file.stamp
            for finding in compare(file.path, known, _stamp_of(file.descriptor), None):
                if finding.change in (FileChange.WRITTEN, FileChange.REDATED):
                    return finding
        return None


def stamp_at(path: Path) -> Stamp:
    """Stamp of the file at `path`, to be taken before the file is read. Raises RepositoryError."""
    try:
        return Stamp.of(path.stat())
    except OSError as error:
        raise checks.unreadable(path, error) from error


def _open(path: Path, entry: FileEntry | None, descriptors: list[int]) -> _File:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        descriptors.append(descriptor)
        stamp = Stamp.of(os.fstat(descriptor))
    except OSError as error:
        raise checks.unreadable(path, error) from error
    if path.suffix == ".npy":
        return _File(path, entry, descriptor, stamp)
    os.close(descriptors.pop())
    return _File(path, entry, None, stamp)


def _stamp_of(descriptor: int | None) -> Stamp | OSError | None:
    if descriptor is None:
        return None
    try:
        return Stamp.of(os.fstat(descriptor))
    except OSError as error:
        return error


def _stamp_at(path: Path) -> Stamp | OSError | None:
    """Stamp of a file, by opening it as the next start would: a file that may not be read counts as missing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return None if error.errno in _OUR_OWN_LACK else error
    try:
        return Stamp.of(os.fstat(descriptor))
    except OSError as error:
        return error
    finally:
        os.close(descriptor)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _time(nanoseconds: int) -> str:
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a file's time can be set to any value
        return f"{nanoseconds // 1_000_000_000:,} s since 1970"
