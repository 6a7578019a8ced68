"""Weights and programs that a manifest names on the Hugging Face Hub, as files here.

A file of a commit never changes, so that one which was fetched is used without a network. It is fetched before the
identity of a revision is computed, which goes by what files have in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gnnserve_api.spec.hub import HubAddress
from gnnserve_api.spec.paths import DataPath, FetchedFile, NamedPath, Part, hub_paths_of, with_paths
from gnnserve_worker.downloads.folder import FileToFetch, is_kept
from gnnserve_worker.progress import ProgressListener, silent


def with_kept_files(spec: Part, downloads: Path) -> Part | None:
    """The spec, or part of one, with the files that its addresses on the hub stand for; None: one was not fetched
    yet."""
    placed = {}
    for one, address in _without_file(spec):
        path = path_of(address, downloads)
        if not _is_kept(path, silent):
            return None
        placed[one.value] = DataPath(one.value.written, FetchedFile(path), one.value.hub_file)
    return with_paths(spec, placed)


def with_fetched_files(spec: Part, downloads: Path, progress: ProgressListener) -> Part:
    """The same with files that are fetched where they are not there. `downloads`: the folder of fetched files. Raises
    as `fetched_file` does."""
    placed = {}
    for one, address in _without_file(spec):
        path = fetched_file(address, one.field, downloads, progress)
        placed[one.value] = DataPath(one.value.written, FetchedFile(path), one.value.hub_file)
    return with_paths(spec, placed)


def fetched_file(address: HubAddress, field: str, downloads: Path, progress: ProgressListener) -> Path:
    """The file of an address on the hub that the environment names. `field`: what names it, for messages. InputError:
    there is no such file, it is too large, or a token is missing or may not read it. ResourceError: the hub cannot be
    reached, or the disk has no room."""
    path = path_of(address, downloads)
    if not _is_kept(path, progress):
        from gnnserve_worker.generation.hub.client import Hub  # noqa: PLC0415 - httpx takes a fifth of a second

        Hub.of_environment(os.environ).fetch(address, path, field, progress)
    return path


def path_of(address: HubAddress, downloads: Path) -> Path:
    """Place of an address's file, once it was fetched."""
    return downloads / "hub" / address.owner / address.name / address.commit / address.file


def _is_kept(path: Path, progress: ProgressListener) -> bool:
    return is_kept(FileToFetch(path.name, str(path)), path, progress)


def _without_file(spec: Part) -> Iterator[tuple[NamedPath, HubAddress]]:
    """Addresses that no file stands for yet."""
    for one in hub_paths_of(spec):
        if one.value.hub is not None and not isinstance(one.value.base, FetchedFile):
            yield one, one.value.hub
