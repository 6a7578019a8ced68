"""The Hugging Face Hub's HTTP interface, as far as one file of one commit needs it.

Two requests: what the commit has in it, which tells size and digest, and the file, which a hub mostly redirects to
where it keeps large ones. A token goes to the hub alone: httpx takes it off where a redirect leads to another host.
Nothing of a repository is run, and no file is fetched but the one that is named.

The package `huggingface_hub` would do the transfer, and brings a cache of its own, eight packages, and tokens that it
finds in the user's home; digests it does not compare.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from gnnserve_api.decoding import decode
from gnnserve_api.errors import InputError, ResourceError
from gnnserve_api.pods.interface import (
    HUB_ENDPOINT_VARIABLE,
    HUB_TOKEN_FILE_VARIABLE,
    HUB_TOKEN_KEY,
    HUB_TOKEN_VARIABLE,
)
from gnnserve_api.spec.hub import HubAddress
from gnnserve_worker.graph.sources.download import DownloadPatience
from gnnserve_worker.graph.sources.download_folder import (
    MIB,
    FileToFetch,
    amount,
    is_kept,
    locked,
    record_of,
    storing,
    sync,
    write_whole,
)
from gnnserve_worker.progress import Progress, ProgressListener

ENDPOINT = "https://huggingface.co"
MOST_BYTES = 4 << 30
"""Largest file that is fetched. Larger weights belong on a volume."""
_MOST_LISTING_BYTES = 64 * MIB
_SHOWN = 6
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_TOKEN = re.compile(r"[!-~]+")
_PASSING = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
_HOW_TO_GIVE_A_TOKEN = (
    "name a Secret with one in spec.generation.hub.secretName, or without a cluster set the environment variable "
    f"{HUB_TOKEN_VARIABLE}"
)
_Any = TypeVar("_Any")


class _Lfs(msgspec.Struct):
    sha256: str


class _RepositoryFile(msgspec.Struct, rename="camel"):
    """A file of a commit."""

    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    """SHA-1 by which git knows it; of a file that git keeps elsewhere (LFS) that of the text which stands for it."""
    lfs: _Lfs | None = None


class _Commit(msgspec.Struct):
    sha: str
    siblings: Sequence[_RepositoryFile] = ()


class _PassingError(Exception):
    """A failure that another attempt may not meet."""


class _UnconnectedError(_PassingError):
    """No connection was made."""


@dataclass(frozen=True, slots=True)
class Hub:
    endpoint: str = ENDPOINT
    token: str | None = field(default=None, repr=False)
    patience: DownloadPatience = field(default_factory=DownloadPatience)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Hub:
        """The hub that variables name, with the token of a file or of a variable. InputError, ResourceError: they have
        a value that cannot be used."""
        endpoint = environ.get(HUB_ENDPOINT_VARIABLE, "").rstrip("/") or ENDPOINT
        if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s?#]*)?", endpoint):
            raise InputError(
                f"environment variable {HUB_ENDPOINT_VARIABLE}", "is no address, as https://hub.lan",
                "correct it, or leave it out",
            )  # fmt: skip
        return cls(endpoint, _token_of(environ), DownloadPatience.of_environment(environ))

    def fetch(self, address: HubAddress, path: Path, field_: str, progress: ProgressListener) -> None:
        """Fetch the file of an address to `path`, unless it is there. `field_`: the manifest's, for messages. Raises as
        `with_fetched_files` does."""
        url = f"{self.endpoint}/{address.repository}/resolve/{address.commit}/{quote(address.file)}"
        wanted = FileToFetch(path.name, url, field=field_)
        with storing(wanted, path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with locked(wanted, path.parent, progress):
            if not is_kept(wanted, path, progress):
                _Fetching(self, address, wanted, path, progress).run()


def _token_of(environ: Mapping[str, str]) -> str | None:
    where, found = f"environment variable {HUB_TOKEN_VARIABLE}", environ.get(HUB_TOKEN_VARIABLE, "").strip()
    if file := environ.get(HUB_TOKEN_FILE_VARIABLE):
        where = "spec.generation.hub.secretName"
        try:
            found = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ResourceError(
                f"{where}: the Secret is missing, or has no key {HUB_TOKEN_KEY}, at {file}; make it with `kubectl "
                f"create secret generic NAME --from-literal={HUB_TOKEN_KEY}=TOKEN`"
            ) from error
    if found and not _TOKEN.fullmatch(found):
        raise InputError(where, "has characters that no token has", "copy the token anew")
    return found or None


class _Fetching:
    """The way of one file from a hub to its place."""

    def __init__(
        self, hub: Hub, address: HubAddress, wanted: FileToFetch, path: Path, progress: ProgressListener
    ) -> None:
        self._hub = hub
        self._address = address
        self._wanted = wanted
        self._path = path
        self._progress = progress

    def run(self) -> None:
        with self._client() as client:
            file = self._persistently(lambda: self._listed(client))
            part = self._path.with_name(f"{self._path.name}.part")
            try:
                digest, size = self._persistently(lambda: self._transferred(client, file, part))
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        with storing(self._wanted, self._path):
            sync(part)
            part.rename(self._path)
            write_whole(record_of(self._path), {"url": self._wanted.url, "bytes": size, "sha256": digest})
            sync(self._path.parent)

    def _client(self) -> httpx.Client:
        patience = self._hub.patience
        headers = {"Accept-Encoding": "identity", "User-Agent": "gnnserve"}
        if self._hub.token is not None:
            headers["Authorization"] = f"Bearer {self._hub.token}"
        timeout = httpx.Timeout(patience.silence_s, connect=patience.connect_s)
        try:
            return httpx.Client(timeout=timeout, headers=headers, follow_redirects=True)
        # A malformed proxy address or one of a kind that needs a package, or a missing file of certificates.
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            raise self._unreachable(f"a variable of proxies or SSL_CERT_FILE cannot be used: {error}") from error

    def _persistently(self, attempt: Callable[[], _Any]) -> _Any:
        patience = self._hub.patience
        pauses, connecting = iter(patience.pauses_s), iter(patience.connect_pauses_s)
        while True:
            try:
                return attempt()
            except _PassingError as error:
                left = connecting if isinstance(error, _UnconnectedError) else pauses
                if (pause := next(left, None)) is None:
                    raise self._unreachable(str(error)) from error
                time.sleep(pause)

    @contextmanager
    def _response(self, client: httpx.Client, url: str) -> Iterator[httpx.Response]:
        """An answer with what was asked for."""
        try:
            with client.stream("GET", url) as response:
                if response.status_code != HTTPStatus.OK:
                    raise self._refusal(response)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _UnconnectedError(f"cannot connect: {str(error) or 'no answer'}") from error
        except httpx.TimeoutException as error:
            raise _PassingError(f"it said nothing for {self._hub.patience.silence_s:g} s") from error
        except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
            raise _PassingError(f"the connection broke: {error}") from error
        except (httpx.InvalidURL, httpx.RequestError, UnicodeError) as error:
            raise self._unreachable(str(error)) from error

    # --- which file it is

    def _listed(self, client: httpx.Client) -> _RepositoryFile:
        """What the hub says of the file."""
        address, field_ = self._address, self._wanted.field
        url = f"{self._hub.endpoint}/api/models/{address.repository}/revision/{address.commit}?blobs=true"
        commit = self._commit(client, url)
        if commit.sha != address.commit:
            raise ResourceError(f"{url}: it tells of commit {commit.sha}; {_CHECK_ENDPOINT}")
        found = next((one for one in commit.siblings if one.rfilename == address.file), None)
        if found is None:
            raise InputError(field_, *_without_file(address, [one.rfilename for one in commit.siblings]))
        if (found.size or 0) > MOST_BYTES:
            raise self._too_large(f"has {amount(found.size or 0, None)}")
        return found

    def _commit(self, client: httpx.Client, url: str) -> _Commit:
        content = bytearray()
        with self._response(client, url) as response:
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > _MOST_LISTING_BYTES:
                    raise ResourceError(f"{url}: it answers with more than {amount(_MOST_LISTING_BYTES, None)}")
        try:
            return decode(bytes(content), _Commit)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ResourceError(f"{url}: it answers with no commit of a repository; {_CHECK_ENDPOINT}") from error

    # --- its content

    def _transferred(self, client: httpx.Client, file: _RepositoryFile, part: Path) -> tuple[str, int]:
        """SHA-256 and bytes of the file, which is at `part` then, and is the one that the hub speaks of."""
        sha256, done, told = hashlib.sha256(), 0, -1
        blob = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
        with (
            self._response(client, self._wanted.url) as response,
            storing(self._wanted, part),
            part.open("wb") as written,
        ):
            for chunk in response.iter_raw():
                written.write(chunk)
                sha256.update(chunk)
                blob.update(chunk)
                done += len(chunk)
                if done > (MOST_BYTES if file.size is None else file.size):
                    raise self._too_large("is longer than the hub says")
                if done - told >= MIB or done == file.size:
                    total = done + 1 if file.size is None else file.size
                    self._progress(Progress(f"download {part.stem}", done, total, amount(done, file.size)))
                    told = done
        if file.size is not None and done < file.size:
            raise _PassingError(f"{done:,} of {file.size:,} bytes arrived")
        self._check(file, sha256.hexdigest(), blob.hexdigest())
        return sha256.hexdigest(), done

    def _check(self, file: _RepositoryFile, sha256: str, blob: str) -> None:
        """Hold digests of what arrived against those of the hub."""
        if file.lfs is not None:
            found, expected, kind = sha256, file.lfs.sha256, "SHA-256"
        elif file.blob_id is not None and file.size is not None:
            found, expected, kind = blob, file.blob_id, "git's SHA-1"
        else:
            return
        if found != expected:
            raise ResourceError(
                f"{self._wanted.url}: what arrived has {kind} {found}, and the hub says {expected}; try again, or "
                f"check the proxy, and {HUB_ENDPOINT_VARIABLE}"
            )

    # --- refusals

    def _refusal(self, response: httpx.Response) -> Exception:
        address, field_, status = self._address, self._wanted.field, response.status_code
        code, repository = response.headers.get("x-error-code", ""), address.repository
        said = f"it answers {status} {response.reason_phrase}".rstrip()
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return _PassingError(said)
        if code == "RevisionNotFound":
            tells = f"`git ls-remote {self._hub.endpoint}/{repository}` tells those of its branches"
            return InputError(field_, f"{repository} has no commit {address.commit}", tells)
        if code == "GatedRepo" or status == HTTPStatus.FORBIDDEN:
            why = "the token's is none of them" if self._hub.token else "no token is given"
            ask = f"ask for access at {self._hub.endpoint}/{repository}"
            remedy = ask if self._hub.token else f"{ask}, and {_HOW_TO_GIVE_A_TOKEN}"
            return InputError(field_, f"{repository} is open to some accounts alone, and {why}", remedy)
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND}:
            may = "the token may not read it" if self._hub.token else "no token is given"
            remedy = "correct the name" + ("" if self._hub.token else f"; or {_HOW_TO_GIVE_A_TOKEN}")
            return InputError(field_, f"there is no repository {repository}, or it is private and {may}", remedy)
        return self._unreachable(said)

    def _too_large(self, what: str) -> InputError:
        return InputError(
            self._wanted.field,
            f"{self._address.file} of {self._address.repository} {what}, and {amount(MOST_BYTES, None)} are fetched at "
            "most",
            "bring the file to the volume of spec.graph.volume, and write its path",
        )

    def _unreachable(self, problem: str) -> ResourceError:
        return ResourceError(
            f"{self._wanted.url}: {problem}; check the network and HTTPS_PROXY, let {HUB_ENDPOINT_VARIABLE} name a "
            f"mirror, or bring the file here and write its path in {self._wanted.field}"
        )


_CHECK_ENDPOINT = f"check the proxy, and {HUB_ENDPOINT_VARIABLE}"


def _without_file(address: HubAddress, files: Sequence[str]) -> tuple[str, str]:
    """The problem and its remedy, where a commit does not have the file."""
    suffix = PurePosixPath(address.file).suffix
    where = f"{address.repository} has no {address.file} at {address.commit}"
    alike = [one for one in files if one.endswith(suffix)]
    if alike:
        listed = ", ".join(alike[:_SHOWN]) + ", …" * (len(alike) > _SHOWN)
        return f"{where}; it has {listed}", "write one of them behind the commit, after a slash"
    pickles = [one for one in files if one.endswith(_PICKLES)]
    if pickles:
        return (
            f"{where}; its weights are in {pickles[0]}, which may run code when it is read",
            f"bring the file here, and `gnnserve model inspect {PurePosixPath(pickles[0]).name} --out "
            "model.safetensors` reads it as data; write that path",
        )
    return f"{where}, nor any {suffix} file", "name a repository that has one"
