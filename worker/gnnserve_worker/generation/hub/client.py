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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path, PurePosixPath
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
from gnnserve_worker.downloads.connection import Connection, DownloadPatience
from gnnserve_worker.downloads.file import fetch
from gnnserve_worker.downloads.folder import MIB, amount
from gnnserve_worker.downloads.remote_file import RemoteFile
from gnnserve_worker.progress import ProgressListener

ENDPOINT = "https://huggingface.co"
MOST_BYTES = 4 << 30
"""Largest file that is fetched. Larger weights belong on a volume."""
_MOST_LISTING_BYTES = 64 * MIB
_SHOWN = 6
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_TOKEN = re.compile(r"[!-~]+")
_HOW_TO_GIVE_A_TOKEN = (
    "name a Secret with one in spec.generation.hub.secretName, or without a cluster set the environment variable "
    f"{HUB_TOKEN_VARIABLE}"
)


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
        wanted = HubFile(path.name, url, hub=self, address=address, field=field_)
        fetch(wanted, path.parent, progress, self.patience, _listed)


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


@dataclass(frozen=True, kw_only=True)
class HubFile(RemoteFile):
    """A file of a repository's commit."""

    hub: Hub
    address: HubAddress
    field: str
    """The manifest's, that messages name."""
    listed: _RepositoryFile | None = None
    """What the hub says of it; None: it was not asked yet."""

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.hub.token is None else {"Authorization": f"Bearer {self.hub.token}"}

    @property
    def most_bytes(self) -> int:
        return MOST_BYTES if self.size_bytes is None else self.size_bytes

    def as_listed(self, listed: _RepositoryFile) -> HubFile:
        """The file with what the hub says of it. InputError: it is too large."""
        if (listed.size or 0) > MOST_BYTES:
            raise self._too_large(f"has {amount(listed.size or 0, None)}")
        return replace(self, listed=listed, size_bytes=listed.size)

    def verify(self, path: Path, sha256: str) -> None:
        listed = self.listed
        if listed is None:
            return
        if listed.lfs is not None:
            found, expected, kind = sha256, listed.lfs.sha256, "SHA-256"
        elif listed.blob_id is not None:
            found, expected, kind = _blob_id_of(path), listed.blob_id, "git's SHA-1"
        else:
            return
        if found != expected:
            raise ResourceError(
                f"{self.url}: what arrived has {kind} {found}, and the hub says {expected}; try again, or check the "
                f"proxy, and {HUB_ENDPOINT_VARIABLE}"
            )

    # --- refusals

    def refusal(self, response: httpx.Response) -> Exception | None:
        status, repository = response.status_code, self.address.repository
        code = response.headers.get("x-error-code", "")
        if code == "RevisionNotFound":
            tells = f"`git ls-remote {self.hub.endpoint}/{repository}` tells those of its branches"
            return InputError(self.field, f"{repository} has no commit {self.address.commit}", tells)
        if code == "GatedRepo" or status == HTTPStatus.FORBIDDEN:
            why = "the token's is none of them" if self.hub.token else "no token is given"
            ask = f"ask for access at {self.hub.endpoint}/{repository}"
            remedy = ask if self.hub.token else f"{ask}, and {_HOW_TO_GIVE_A_TOKEN}"
            return InputError(self.field, f"{repository} is open to some accounts alone, and {why}", remedy)
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND}:
            may = "the token may not read it" if self.hub.token else "no token is given"
            remedy = "correct the name" + ("" if self.hub.token else f"; or {_HOW_TO_GIVE_A_TOKEN}")
            return InputError(self.field, f"there is no repository {repository}, or it is private and {may}", remedy)
        return None

    def too_long(self) -> InputError:
        return self._too_large("is longer than the hub says")

    def _too_large(self, what: str) -> InputError:
        return InputError(
            self.field,
            f"{self.address.file} of {self.address.repository} {what}, and {amount(MOST_BYTES, None)} are fetched at "
            "most",
            "bring the file to the volume of spec.graph.volume, and write its path",
        )

    def of_another_kind(self, found: str) -> InputError:
        return InputError(self.field, f"{self.url} answers with {found}", _CHECK_ENDPOINT)

    def unreachable(self, problem: str) -> ResourceError:
        return ResourceError(
            f"{self.url}: {problem}; check the network and HTTPS_PROXY, let {HUB_ENDPOINT_VARIABLE} name a mirror, or "
            f"bring the file here and write its path in {self.field}"
        )


def _blob_id_of(path: Path) -> str:
    """SHA-1 by which git knows a file's content."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(MIB):
            digest.update(chunk)
    return digest.hexdigest()


# --- which file it is


def _listed(connection: Connection, wanted: HubFile) -> HubFile:
    """The file with what its hub says of it."""
    return connection.persistently(lambda: _listed_once(connection, wanted))


def _listed_once(connection: Connection, wanted: HubFile) -> HubFile:
    address = wanted.address
    url = f"{wanted.hub.endpoint}/api/models/{address.repository}/revision/{address.commit}?blobs=true"
    commit = _commit(connection, url)
    if commit.sha != address.commit:
        raise ResourceError(f"{url}: it tells of commit {commit.sha}; {_CHECK_ENDPOINT}")
    found = next((one for one in commit.siblings if one.rfilename == address.file), None)
    if found is None:
        raise InputError(wanted.field, *_without_file(address, [one.rfilename for one in commit.siblings]))
    return wanted.as_listed(found)


def _commit(connection: Connection, url: str) -> _Commit:
    content = bytearray()
    with connection.response(url) as response:
        for chunk in response.iter_raw():
            content += chunk
            if len(content) > _MOST_LISTING_BYTES:
                raise ResourceError(f"{url}: it answers with more than {amount(_MOST_LISTING_BYTES, None)}")
    try:
        return decode(bytes(content), _Commit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResourceError(f"{url}: it answers with no commit of a repository; {_CHECK_ENDPOINT}") from error


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
