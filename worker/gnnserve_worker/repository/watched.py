"""Whether the files that a revision was opened from are still the files that were verified.

A mapping follows its file: what is written into it in place changes answers without a word, and what is cut off ends
the process at the next touch (`memory_fault.py`). Deleting or replacing a file does neither, since the mapping keeps
what it had; only the next start would find something else. So a look compares both: the mapped file, by a descriptor
that is kept open, and what stands under its path. It costs three system calls a file. What is done about it is its
caller's business.

Not noticed are bytes that change without the file's times: a failing disk or memory, a write past the file system or
through a mapping that was written through before, a second one within the grain of the file system's clock, and another
machine's writes for as long as a network file system keeps attributes in its cache.
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

from gnnserve_api.repository import FileEntry
from gnnserve_worker.repository import checks

_READ_BYTES = 4 * 1024 * 1024
_OUR_OWN_LACK = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
"""Says nothing about the file."""
_PASSING = frozenset((errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EIO, errno.ETIMEDOUT))
"""May be over by the next look."""


class Change(StrEnum):
    WRITTEN = "Written"
    """The mapped file has another size or content, or is lost: answers may be wrong from now on. Stop, load again."""
    REDATED = "Redated"
    """The mapped file has another time of writing, and its size: somebody wrote, or only set the time. Stop, and
    verify."""
    TOUCHED = "Touched"
    """Owner, permissions, links or times of the mapped file were set, and a write may hide in that: verify."""
    UNSEEN = "Unseen"
    """The mapped file could not be looked at, for a reason that may pass."""
    MOVED = "Moved"
    """What is mapped is whole, but its path has nothing, or something else, for whoever starts next: load again."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file system says of a file's content without reading it."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    """When content, owner, permissions or links changed last; nobody can set it."""

    @staticmethod
    def of(status: os.stat_result) -> Stamp:
        return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    change: Change
    words: str
    """What is said of the file: `has 10 bytes, and had 20 when it was verified`."""

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


def compare(
    path: Path, verified: Stamp, mapped: Stamp | OSError | None, found: Stamp | OSError | None
) -> list[Finding]:
    """`mapped`: the very file now, None where nothing maps it; `found`: what stands under its path, None where that
    could not be asked."""
    findings = []
    if isinstance(mapped, OSError):
        change = Change.UNSEEN if mapped.errno in _PASSING else Change.WRITTEN
        findings.append(Finding(path, change, f"cannot be looked at any more: {mapped.strerror}"))
    elif mapped is not None:
        if mapped.size_bytes != verified.size_bytes:
            words = f"has {mapped.size_bytes:,} bytes, and had {verified.size_bytes:,} when it was verified"
            findings.append(Finding(path, Change.WRITTEN, words))
        elif mapped.modified_ns != verified.modified_ns:
            findings.append(Finding(path, Change.REDATED, f"was written to at {_time(mapped.modified_ns)}"))
        elif mapped.changed_ns != verified.changed_ns:
            words = f"had its owner, permissions, links or times set at {_time(mapped.changed_ns)}"
            findings.append(Finding(path, Change.TOUCHED, words))
    if (moved := _moved(verified, found, is_mapped=mapped is not None)) is not None:
        findings.append(Finding(path, Change.MOVED, moved))
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
    # Of a mapped file this was said above, and is worse.
    is_written = (found.size_bytes, found.modified_ns) != (verified.size_bytes, verified.modified_ns)
    return f"was written to at {_time(found.modified_ns)}" if is_written and not is_mapped else None


@dataclass(slots=True)
class _File:
    path: Path
    entry: FileEntry | None
    """None: a commit file, which carries a checksum of its own."""
    descriptor: int | None
    """Of the file that is mapped; None: it was read once, and nothing depends on it any more but the next start."""
    stamp: Stamp


_in_use: weakref.WeakSet[WatchedFiles] = weakref.WeakSet()
"""All of this process: a memory fault does not say which revision it belongs to."""


def written_files() -> list[Finding]:
    """What was written to of all files that this process has mapped for its revisions; empty: nothing."""
    findings = [finding for watched in list(_in_use) for finding in watched.look()]
    return [finding for finding in findings if finding.change in (Change.WRITTEN, Change.REDATED)]


class WatchedFiles:
    """Of one revision and its graph. Open before they are verified, so that no change falls in between; descriptors
    are closed when nobody has this any more, as mappings are. One thread may look while another verifies."""

    def __init__(self, listed: Mapping[Path, FileEntry], read: Mapping[Path, Stamp]) -> None:
        """`listed`: arrays among them are mapped. `read`: the commits, from before they were read. Raises
        RepositoryError."""
        descriptors: list[int] = []
        weakref.finalize(self, _close, descriptors)
        self._files = [_File(path, None, None, stamp) for path, stamp in read.items()]
        self._files += [_open(path, entry, descriptors) for path, entry in listed.items()]
        self.times_verified = 0
        """How often a file was found to be as it was: what was said of these files before is history then."""
        _in_use.add(self)

    def look(self) -> list[Finding]:
        """What differs from what was verified; empty: nothing does."""
        return [
            finding
            for file in self._files
            for finding in compare(file.path, file.stamp, _stamp_of(file.descriptor), _stamp_at(file.path))
        ]

    def verify(self, path: Path) -> Finding | None:
        """None: the mapped file still has the content that was verified, and its present times count from now on.
        Otherwise which file has not, or may not have: a large one takes seconds, in which all of them are looked at.

        Read, not touched through the mapping: a file that is being cut short ends nobody then.
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
            return Finding(path, Change.WRITTEN, f"cannot be read any more: {error.strerror}")
        if (found := digest.hexdigest()) != file.entry.sha256:
            return Finding(path, Change.WRITTEN, f"was altered: its SHA-256 is {found}, expected {file.entry.sha256}")
        file.stamp = stamp
        self.times_verified += 1
        return None

    def verify_all(self) -> Finding | None:
        """None: every mapped file still has the content that was verified, whatever became of their times."""
        for finding in self.look():
            wrong = self.verify(finding.path) if finding.change in (Change.REDATED, Change.TOUCHED) else finding
            if wrong is not None and wrong.change is not Change.MOVED:
                return wrong
        # Who verified one file has not seen what became of those before it.
        return next((finding for finding in self.look() if finding.change is not Change.MOVED), None)

    def _find_written(self, verified: _File, stamp: Stamp) -> Finding | None:
        """`stamp`: of the one that is being verified, from when that began."""
        for file in self._files:
            known = stamp if file is verified else file.stamp
            for finding in compare(file.path, known, _stamp_of(file.descriptor), None):
                if finding.change in (Change.WRITTEN, Change.REDATED):
                    return finding
        return None


def stamp_at(path: Path) -> Stamp:
    """Before it is read. Raises RepositoryError."""
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
    """By opening it, as the next start would: what may not be read is as good as gone."""
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
    except (ValueError, OverflowError, OSError):  # anybody can set any time
        return f"{nanoseconds // 1_000_000_000:,} s since 1970"
