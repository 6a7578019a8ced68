"""Downloading files of public data sets: once over HTTP, kept in the repository, verified at every further use.

A file appears under its name only when all of it has arrived and was checked; until then it is `NAME.part`, which the
next attempt resumes if the server confirms that it still has the same file. What is kept of a whole file, and how
processes share its folder, is in `download_folder.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_worker.graph.sources.download_folder import (
    MIB,
    FileToFetch,
    amount,
    is_kept,
    locked,
    record_of,
    sha256_of,
    storing,
    sync,
    write_whole,
)
from gnnserve_worker.progress import Progress, ProgressListener

if TYPE_CHECKING:
    import httpx

_REPORTED_BYTES = MIB
_LOOKED_AT_BYTES = 4096
"""First bytes that are examined: enough to tell a web page from a file, and to find the title of most pages."""
_HTML = re.compile(rb"\s*<(!doctype\s+html|html|head)", re.IGNORECASE)
_TITLE = re.compile(rb"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_COMPLETE_LENGTH = re.compile(r"bytes \d+-\d+/(\d+)", re.ASCII)
_PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Variable that the kubelet sets in every container."""
_POD_CONNECT_PAUSES_S = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class DownloadPatience:
    connect_s: float = 15.0
    silence_s: float = 60.0
    """Longest silence of a server."""
    pauses_s: tuple[float, ...] = (1.0, 5.0, 15.0, 30.0)
    """Pause before each further attempt; starts over whenever more has arrived than ever before."""
    connect_pauses_s: tuple[float, ...] = ()
    """Pause before each further attempt to connect to a server that has never answered. Without any, a machine without
    a network is told at once."""

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> DownloadPatience:
        """The patience where this program runs. In a pod a mesh's sidecar may take connections later than it starts."""
        return cls(connect_pauses_s=_POD_CONNECT_PAUSES_S) if _POD_VARIABLE in environ else cls()


class _PassingError(Exception):
    """A failure that another attempt may not meet."""


class _UnconnectedError(_PassingError):
    """A server that has never answered took no connection."""


class _NotResumableError(_PassingError):
    """The download cannot be resumed from the part that has arrived."""


def fetch(
    wanted: FileToFetch, folder: Path, progress: ProgressListener, patience: DownloadPatience | None = None
) -> Path:
    """Fetch the file into `folder`, unless the one there is still what was fetched. Returns its path.

    Raises ResourceError for failures of the network or the disk, InputError where another file than the expected one
    arrived.
    """
    path = folder / wanted.name
    with storing(wanted, folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(wanted, folder, progress):
        if not is_kept(wanted, path, progress):
            _Download(wanted, path, progress, patience or DownloadPatience.of_environment(os.environ)).run()
    return path


class _Download:
    """The download of one file, in several attempts if needed."""

    def __init__(self, wanted: FileToFetch, path: Path, progress: ProgressListener, patience: DownloadPatience) -> None:
        self._wanted = wanted
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._about_part = path.with_name(f"{path.name}.part.json")
        self._progress = progress
        self._patience = patience
        self._reported = (-1, -1)

    def run(self) -> None:
        self._transfer()
        digest = sha256_of(self._wanted.name, self._part, self._progress)
        if self._wanted.sha256 not in {None, digest}:
            self._forget()
            raise InputError(
                f"{self._wanted.field}.sha256",
                f"{self._wanted.url} has SHA-256 {digest}, expected {self._wanted.sha256}",
                "fetch from a mirror that has the pinned file, or change sha256 to take this one",
            )
        with storing(self._wanted, self._path):
            size = self._part.stat().st_size
            sync(self._part)
            self._part.rename(self._path)
            write_whole(record_of(self._path), {"url": self._wanted.url, "bytes": size, "sha256": digest})
            self._about_part.unlink(missing_ok=True)
            sync(self._path.parent)

    def _transfer(self) -> None:
        most, pauses = self._arrived(), iter(self._patience.pauses_s)
        connect_pauses = iter(self._patience.connect_pauses_s)
        with self._client() as client:
            while True:
                try:
                    self._attempt(client)
                except _PassingError as error:
                    arrived = self._arrived()
                    if arrived > most:
                        most, pauses = arrived, iter(self._patience.pauses_s)
                    if isinstance(error, _NotResumableError):
                        self._forget()
                    left = connect_pauses if isinstance(error, _UnconnectedError) else pauses
                    if (pause := next(left, None)) is None:
                        raise self._unreachable(str(error)) from error
                    time.sleep(pause)
                else:
                    return

    def _client(self) -> httpx.Client:
        import httpx  # noqa: PLC0415  (a fifth of a second, for those who fetch)

        timeout = httpx.Timeout(self._patience.silence_s, connect=self._patience.connect_s)
        headers = {"Accept-Encoding": "identity", "User-Agent": "gnnserve"}
        try:
            return httpx.Client(timeout=timeout, headers=headers, follow_redirects=True)
        # A malformed proxy address or one of a kind that needs a package, or a missing file of certificates.
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            raise self._unreachable(
                "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or SSL_CERT_FILE of the environment has a value that cannot be "
                f"used: {error}"
            ) from error

    def _attempt(self, client: httpx.Client) -> None:
        import httpx  # noqa: PLC0415

        try:
            with client.stream("GET", self._wanted.url, headers=self._resuming()) as response:
                self._receive(response)
        except httpx.TooManyRedirects as error:
            raise self._unreachable("it redirects in a circle") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unconnected(error) from error
        except httpx.TimeoutException as error:
            raise _PassingError(f"it said nothing for {self._patience.silence_s:g} s") from error
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:  # closed early, or garbled
            raise _PassingError(f"the connection broke: {error}") from error
        except (httpx.InvalidURL, httpx.RequestError) as error:  # a proxy that refuses, a redirect to ftp://
            raise self._unreachable(str(error)) from error
        except UnicodeError as error:  # a label that is empty, or longer than DNS allows
            raise self._unreachable(f"no host can have such a name: {error}") from error

    def _receive(self, response: httpx.Response) -> None:
        start = self._start_of(response)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise self._unreachable(f"it sends the file encoded as {encoding}, though it was asked not to")
        total = self._total_of(response)
        self._require_free((total or 0) - start)
        with storing(self._wanted, self._part):
            if start == 0:
                self._remember(response)
            with self._part.open("r+b" if start else "wb") as file:
                file.seek(start)
                self._copy(response, file, start, total)

    def _start_of(self, response: httpx.Response) -> int:
        """Position in the file of the first byte of the response."""
        status = f"it answers {response.status_code} {response.reason_phrase}".rstrip()
        arrived = self._arrived()
        if response.status_code == HTTPStatus.OK:
            return 0
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            if response.headers.get("content-range", "").startswith(f"bytes {arrived}-"):
                if self._total_of(response) is None:
                    raise _NotResumableError("it sends a part of the file without saying how long all of it is")
                return arrived
            raise _NotResumableError("it sends another part of the file than the one it was asked for")
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and arrived:
            raise _NotResumableError(status)
        if response.status_code in _PASSING or response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise _PassingError(status)
        raise self._unreachable(status)

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
            if done - reported >= _REPORTED_BYTES or done == total:
                self._report(done, total)
                reported = done
        if total is not None and done != total:
            raise _PassingError(f"{done:,} of {total:,} bytes arrived")
        if done == 0:
            raise self._unreachable("it sends an empty file")
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
        raise InputError(
            f"{self._wanted.field}.mirror",
            f"{self._wanted.url} answers with {found}",
            f"try later if a quota is used up, or fetch {self._wanted.name} with a browser and set mirror to the "
            "folder that it is in",
        )

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

    def _unreachable(self, problem: str) -> ResourceError:
        return ResourceError(
            f"{self._wanted.url}: {problem}; check the network and HTTPS_PROXY, or set {self._wanted.field}.mirror to "
            f"an address that has {self._wanted.name}, or to a folder that it is in"
        )

    def _unconnected(self, error: httpx.ConnectError | httpx.ConnectTimeout) -> Exception:
        import httpx  # noqa: PLC0415

        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return self._unreachable(
                    f"its certificate is not trusted ({cause.verify_message}), where SSL_CERT_FILE may name another "
                    "list of authorities"
                )
            cause = cause.__cause__ or cause.__context__
        problem = f"cannot connect: {str(error) or 'no answer'}"
        if self._arrived():
            return _PassingError(problem)
        # One that has timed out was waited for.
        is_waited_for = isinstance(error, httpx.ConnectTimeout)
        return self._unreachable(problem) if is_waited_for else _UnconnectedError(problem)


def _natural(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
