"""A file of a public data set: where else it may be had, where its address does not give it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_worker.downloads.remote_file import RemoteFile


@dataclass(frozen=True, kw_only=True)
class PublishedFile(RemoteFile):
    field: str
    """The manifest's, that messages name."""

    def unreachable(self, problem: str) -> ResourceError:
        return ResourceError(
            f"{self.url}: {problem}; check the network and HTTPS_PROXY, or set {self.field}.mirror to an address that "
            f"has {self.name}, or to a folder that it is in"
        )

    def of_another_kind(self, found: str) -> InputError:
        return InputError(
            f"{self.field}.mirror",
            f"{self.url} answers with {found}",
            f"try later if a quota is used up, or fetch {self.name} with a browser and set mirror to the folder that "
            "it is in",
        )

    def verify(self, path: Path, sha256: str) -> None:
        del path
        if self.sha256 not in {None, sha256}:
            raise InputError(
                f"{self.field}.sha256",
                f"{self.url} has SHA-256 {sha256}, expected {self.sha256}",
                "fetch from a mirror that has the pinned file, or change sha256 to take this one",
            )
