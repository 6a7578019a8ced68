"""A file on a server, as its download asks about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_worker.downloads.folder import FileToFetch

if TYPE_CHECKING:  # a fifth of a second, for those who fetch
    import httpx


@dataclass(frozen=True)
class RemoteFile(FileToFetch, ABC):
    """A file on a server, and the words in which its manifest's field is told what went wrong."""

    begins: bytes = b""
    """The file's first bytes, where its format has fixed ones."""
    size_bytes: int | None = None
    """None: the server tells it with the file."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What its server asks for in each request, as a token."""
        return {}

    @property
    def most_bytes(self) -> int | None:
        """Bytes beyond which nothing more is read."""
        return self.size_bytes

    @abstractmethod
    def unreachable(self, problem: str) -> ResourceError:
        """The failure of a server, with the other ways to the file."""

    @abstractmethod
    def of_another_kind(self, found: str) -> InputError:
        """The refusal of what arrives in its place. `found`: what that is."""

    @abstractmethod
    def verify(self, path: Path, sha256: str) -> None:
        """Hold what arrived at `path` against what is known of the file. InputError, ResourceError: it is another."""

    def refusal(self, response: httpx.Response) -> Exception | None:
        """What a status means that is neither success nor a failure that may pass. None: nothing beyond itself."""
        return None

    def too_long(self) -> InputError:
        """The refusal of more than `most_bytes`."""
        return self.of_another_kind(f"more than {self.most_bytes:,} bytes")
