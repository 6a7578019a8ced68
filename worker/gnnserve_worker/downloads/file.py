"""Downloading a file: once over HTTP, kept, verified at every further use.

A file appears under its name only when all of it has arrived and was checked; until then it is `NAME.part`, which the
next attempt resumes if the server confirms that it still has the same file. What is kept of a whole file, and how
processes share its folder, is in `folder.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, TypeVar

import httpx

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_worker.downloads.connection import Connection, DownloadPatience, PassingError
from gnnserve_worker.downloads.folder import (
    MIB,
    amount,
    is_kept,
    locked,
    record_of,
    sha256_of,
    storing,
    sync,
    write_whole,
)
from gnnserve_worker.downloads.remote_file import RemoteFile
from gnnserve_worker.progress import Progress, ProgressListener

_REPORTED_BYTES = MIB
_LOOKED_AT_BYTES = 4096
"""First bytes that are examined: enough to tell a web page from a file, and to find the title of most pages."""
_HTML = re.compile(rb"\s*<(!doctype\s+html|html|head)", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_COMPLETE_LENGTH = re.compile(r"bytes \d+-\d+/(\d+)", re.ASCII)
_TAKEN = frozenset({HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE})
_File = TypeVar("_File", bound=RemoteFile)


class _NotResumableError(PassingError):
    """The download cannot be resumed from the part that has arrived."""


def fetch(
    wanted: _File,
    folder: Path,
    progress: ProgressListener,
    patience: DownloadPatience | None = None,
    known_by: Callable[[Connection, _File], RemoteFile] = lambda _connection, wanted: wanted,
) -> Path:
    """Fetch the file into `folder`, unless the one there is still what was fetched. Returns its path. `known_by`: asks
    its server what the file is before it is fetched.

    Raises ResourceError for failures of the network or the disk, InputError where another file than the expected one
    arrived.
    """
    path = folder / wanted.name
    with storing(wanted, folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(wanted, folder, progress):
        if not is_kept(wanted, path, progress):
            with Connection(wanted, patience or DownloadPatience.of_environment(os.environ)) as connection:
                _Download(known_by(connection, wanted), path, progress, connection).run()
    return path


class _Download:
    """The download of one file, in several attempts if needed."""

    def __init__(self, wanted: RemoteFile, path: Path, progress: ProgressListener, connection: Connection) -> None:
        self._wanted = wanted
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._about_part = path.with_name(f"{path.name}.part.json")
        self._progress = progress
        self._connection = connection
        self._reported = (-1, -1)

    def run(self) -> None:
        self._connection.persistently(self._attempt, self._arrived)
        digest = sha256_of(self._wanted.name, self._part, self._progress)
        try:
            self._wanted.verify(self._part, digest)
        except (InputError, ResourceError):
            self._forget()
            raise
        with storing(self._wanted, self._path):
            size = self._part.stat().st_size
            sync(self._part)
            self._part.rename(self._path)
            write_whole(record_of(self._path), {"url": self._wanted.url, "bytes": size, "sha256": digest})
            self._about_part.unlink(missing_ok=True)
            sync(self._path.parent)

    def _attempt(self) -> None:
        is_known = self._arrived() > 0
        try:
            with self._connection.response(self._wanted.url, self._resuming(), _TAKEN, is_known=is_known) as response:
                self._receive(response)
        except _NotResumableError:
            self._forget()
            raise

    def _receive(self, response: httpx.Response) -> None:
        start = self._start_of(response)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise self._wanted.unreachable(f"it sends the file encoded as {encoding}, though it was asked not to")
        total = self._total_of(response)
        if self._wanted.size_bytes is not None:
            total = self._wanted.size_bytes
        self._require_free((total or 0) - start)
        with storing(self._wanted, self._part):
            if start == 0:
                self._remember(response)
            with self._part.open("r+b" if start else "wb") as file:
                file.seek(start)
                self._copy(response, file, start, total)

    def _start_of(self, response: httpx.Response) -> int:
        """Position in the file of the first byte of the response."""
        arrived = self._arrived()
        if response.status_code == HTTPStatus.OK:
            return 0
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            if response.headers.get("content-range", "").startswith(f"bytes {arrived}-"):
                if self._total_of(response) is None:
                    raise _NotResumableError("it sends a part of the file without saying how long all of it is")
                return arrived
            raise _NotResumableError("it sends another part of the file than the one it was asked for")
        if arrived:
            raise _NotResumableError(f"it answers {response.status_code} {response.reason_phrase}".rstrip())
        raise self._connection.refusal(response)

    @staticmethod
    def _total_of(response: httpx.Response) -> int | None:
        """Bytes of the whole file, if the response states it. A part may end before the file does, whatever was
        requested."""
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            found = _COMPLETE_LENGTH.fullmatch(response.headers.get("content-range", ""))
            return int(found[1]) if found else None
        return _natural(response.headers.get("content-length"))

    def _copy(self, response: httpx.Response, file: BinaryIO, start: int, total: int | None) -> None:
        done = reported = start
        self._report(done, total)
        # Raw chunks as they arrive: chunks of a fixed size would be held back until full, and lost if the connection
        # breaks.
        chunks = response.iter_raw()
        if start == 0:
            chunks = self._looked_at(chunks, response)
        for chunk in chunks:
            file.write(chunk)
            done += len(chunk)
            if self._wanted.most_bytes is not None and done > self._wanted.most_bytes:
                raise self._wanted.too_long()
            if done - reported >= _REPORTED_BYTES or done == total:
                self._report(done, total)
                reported = done
        if total is not None and done != total:
            raise PassingError(f"{done:,} of {total:,} bytes arrived")
        if done == 0:
            raise self._wanted.unreachable("it sends an empty file")
        self._report(done, done)

    def _looked_at(self, chunks: Iterator[bytes], response: httpx.Response) -> Iterator[bytes]:
        first = b""
        for chunk in chunks:
            first += chunk
            if len(first) >= _LOOKED_AT_BYTES:
                break
        if first:
            self._look_at(first, response)
            yield first
        yield from chunks

    def _look_at(self, first: bytes, response: httpx.Response) -> None:
        """Refuse a web page sent in place of the file, before all of it is fetched."""
        is_page = response.headers.get("content-type", "").startswith("text/html") or _HTML.match(first)
        if not is_page and first.startswith(self._wanted.begins[: len(first)]):
            return
        found = f"a file that begins with {first[:8]!r}, expected {self._wanted.begins!r}"
        if is_page:
            title = _TITLE.search(first)
            words = " ".join(title[1].decode(errors="replace").split())[:200] if title else "without a title"
            found = f"a web page ({words}), where the file itself was expected"
        raise self._wanted.of_another_kind(found)

    # --- the part that has arrived

    def _arrived(self) -> int:
        """Bytes of `NAME.part`; 0 where it cannot be resumed."""
        return self._part.stat().st_size if self._validator() is not None and self._part.is_file() else 0

    def _validator(self) -> str | None:
        """The validator (ETag or date) by which the server tells whether it still has the same file."""
        try:
            about = json.loads(self._about_part.read_bytes())
            validator = about["validator"] if about["url"] == self._wanted.url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return validator if isinstance(validator, str) else None

    def _resuming(self) -> dict[str, str]:
        arrived, validator = self._arrived(), self._validator()
        return {"Range": f"bytes={arrived}-", "If-Range": validator} if arrived and validator else {}

    def _remember(self, response: httpx.Response) -> None:
        self._forget()
        tag = response.headers.get("etag", "")
        validator = tag if tag.startswith('"') else response.headers.get("last-modified")
        if validator is not None and response.headers.get("accept-ranges") != "none":
            write_whole(self._about_part, {"url": self._wanted.url, "validator": validator})

    def _forget(self) -> None:
        with storing(self._wanted, self._part):
            self._about_part.unlink(missing_ok=True)
            self._part.unlink(missing_ok=True)

    # --- progress and messages

    def _report(self, done: int, total: int | None) -> None:
        # Without a known length, report the end as one byte away.
        reported = done, total if total is not None else done + 1
        if reported != self._reported:
            self._progress(Progress(f"download {self._wanted.name}", *reported, amount(done, total)))
        self._reported = reported

    def _require_free(self, wanted_bytes: int) -> None:
        with storing(self._wanted, self._path.parent):
            free = shutil.disk_usage(self._path.parent).free
        if wanted_bytes > free:
            raise ResourceError(
                f"{self._path.parent}: {amount(wanted_bytes, None)} are still to be fetched of {self._wanted.url}, "
                f"but only {amount(free, None)} are free; free some, or use a repository on a larger disk"
            )


def _natural(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
