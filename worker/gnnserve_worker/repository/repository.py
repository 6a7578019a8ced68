"""The published revisions of one service.

    with repository.locked(on_wait):
        if (published := repository.find(recipe, graph.digest, checkpoint)) is not None:
            return published                      # another process was faster
        repository.put_graph(graph)
        with repository.stage(recipe, graph.digest, checkpoint) as staged:
            staged.write_table(...); staged.write_variant(...); staged.commit(...)

Revisions are immutable and named by what they are made from, so publishing one never disturbs another: a reader
needs no lock, and a crash leaves a folder without commit, which the next writer removes. Networks that were trained
before it are kept (`generation/learning.py`) until a revision is published.

One process at a time writes in a service's folder. Its lock is an advisory one on `.lock` (flock), which the kernel
drops when its holder dies, however it dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from msgspec import UNSET

from gnnserve_api.errors import DamagedError, OutdatedError, RepositoryError, remedy_of
from gnnserve_api.files.repository import (
    ChangedSource,
    GraphManifest,
    RevisionManifest,
    sealed,
)
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.repository import checks, files, graph_files, paths
from gnnserve_worker.repository.positions import positions_of
from gnnserve_worker.repository.revision_files import RevisionFiles, StagedRevision, to_json
from gnnserve_worker.repository.room import room_of
from gnnserve_worker.repository.watched import FileChange, WatchedFiles, stamp_at

_log = logging.getLogger(__name__)

_KEPT_DAMAGED = 3


class Repository:
    """The published revisions of one service below `root`, which may be missing until something is written."""

    def __init__(self, root: Path, namespace: str, service: str) -> None:
        if not (paths.is_name(namespace) and paths.is_name(service)):
            raise ValueError(f"namespace {namespace!r} and service {service!r} must be safe as folder names")
        self._use(paths.ServicePaths(root / namespace / service), root / paths.DOWNLOADS)

    @classmethod
    def of_folder(cls, folder: Path) -> Repository:
        """The revisions of a service whose folder lies anywhere: a copy of it, to be read."""
        repository = cls.__new__(cls)
        repository._use(paths.ServicePaths(folder), folder / paths.DOWNLOADS)
        return repository

    def _use(self, layout: paths.ServicePaths, downloads: Path) -> None:
        self._layout = layout
        self.downloads = downloads
        """Files of published graphs, for every service of this repository."""
        self._lock = ServiceLock(layout.lock)

    @property
    def folder(self) -> Path:
        return self._layout.folder

    # --- reading

    def revisions(self) -> list[RevisionManifest]:
        """All revisions of the current schema, newest first. An unreadable one raises a RepositoryError that names the
        file."""
        manifests = []
        for folder in self._published():
            with suppress(OutdatedError):
                manifests.append(checks.read_revision_manifest(folder))
        return sorted(manifests, key=_age, reverse=True)

    def find(
        self,
        recipe: str,
        graph_digest: str | None = None,
        checkpoint: str | None = None,
        given: Mapping[str, str] = paths.NONE_GIVEN,
        expected: Mapping[str, str] = paths.NONE_GIVEN,
    ) -> RevisionManifest | None:
        """The newest published revision of the recipe, or None; with `graph_digest`, only of that graph, those given
        weights and those expected scores.

        An unreadable revision is an error only when no readable one matches, since it might be the one wanted. A
        revision of an older schema never is an error.
        """
        matching: list[RevisionManifest] = []
        broken: list[RepositoryError] = []
        for folder in self._published():
            try:
                manifest = checks.read_revision_manifest(folder)
            except OutdatedError:
                continue
            except RepositoryError as error:
                if graph_digest is None or folder.name == paths.revision_id(
                    recipe, graph_digest, checkpoint, given, expected
                ):
                    broken.append(error)
                continue
            if manifest.recipe == recipe and (
                graph_digest is None
                or (manifest.graph, manifest.checkpoint, manifest.given, manifest.expected)
                == (graph_digest, checkpoint, given, expected)
            ):
                matching.append(manifest)
        if matching:
            return max(matching, key=_age)
        if broken:
            raise broken[0]
        return None

    def find_served(self, recipe: str, log: str | None) -> RevisionManifest | None:
        """The revision of a recipe that a server is to answer from, or None. `log`: uid of the service whose log of
        changes it follows: the revision that has most of it. None: it follows none, and of the graphs that no log is
        part of the newest revision counts."""
        ranked = []
        for manifest in self.revisions():
            if manifest.recipe == recipe:
                made_of = self.made_of(manifest)
                if made_of is None or made_of.log == log:
                    ranked.append((0 if made_of is None else made_of.offset, _age(manifest), manifest))
        return max(ranked, key=lambda one: one[:2])[2] if ranked else None

    def find_named(self, revision: str) -> RevisionManifest | None:
        """The published revision of that name, or None."""
        folder = self._layout.revision(revision)
        if not paths.is_name(revision) or not _is_committed(folder, paths.REVISION_COMMIT):
            return None
        return checks.read_revision_manifest(folder)

    def made_of(self, manifest: RevisionManifest) -> ChangedSource | None:
        """What the graph of a revision is made of beside its source; None: nothing."""
        version = self.graph_of(manifest).version
        return None if version is UNSET else version.made_of

    def graph_of(self, manifest: RevisionManifest) -> GraphManifest:
        """What is written of the graph of a revision."""
        return checks.read_graph_manifest(self._layout.graph(manifest.graph))

    def graph_versions(self, log: str, source: str | None = None) -> list[GraphManifest]:
        """Graphs that changes of a service's log are part of, those that have most of it first. `source`: digest of the
        source's graph; None: whichever it was."""
        found = []
        for folder in self._committed(self._layout.graphs, paths.GRAPH_COMMIT):
            version = (manifest := checks.read_graph_manifest(folder)).version
            if version is not UNSET and version.made_of.log == log and source in (None, version.made_of.source):
                found.append((version.made_of.offset, manifest))
        return [manifest for _, manifest in sorted(found, key=lambda one: one[0], reverse=True)]

    def read_graph(self, digest: str) -> GraphData:
        """One of `graph_versions`, with its features. DamagedError: it is not what was written."""
        return graph_files.read_graph(graph_files.verify_version(self._layout.graph(digest)))

    def read_file(self, manifest: RevisionManifest, name: str) -> bytes:
        """One of a revision's files. DamagedError: it is not what was published."""
        folder = self._layout.revision(manifest.revision)
        listed = checks.ListedFiles(folder, {name: manifest.files[name]}, checks.remedy(folder))
        return checks.verify_files([listed]).read[folder / name]

    @contextmanager
    def reading(self, revision: str, max_delta_bytes: int | None = None) -> Iterator[RevisionFiles]:
        """Verify the files of a revision by checksum, and watch them from before the first byte is read to the end of
        the block that opens them: raises RepositoryError there for one that was altered meanwhile. `max_delta_bytes`:
        they are opened for changes, which take so much memory at most."""
        folder = self._layout.revision(revision)
        if not paths.is_name(revision) or not _is_committed(folder, paths.REVISION_COMMIT):
            known = ", ".join(published.name for published in self._published()) or "none"
            raise RepositoryError(
                folder, f"no such revision, published are: {known}", "choose one of these, or generate it"
            )
        commits = {folder / paths.REVISION_COMMIT: stamp_at(folder / paths.REVISION_COMMIT)}
        manifest = checks.read_revision_manifest(folder)
        graph_folder = self._layout.graph(manifest.graph)
        if not _is_committed(graph_folder, paths.GRAPH_COMMIT):
            raise DamagedError(graph_folder, "the graph of this revision is missing", checks.remedy(folder))
        commits[graph_folder / paths.GRAPH_COMMIT] = stamp_at(graph_folder / paths.GRAPH_COMMIT)
        graph = checks.read_graph_manifest(graph_folder)
        revision_files = RevisionFiles(
            graph_folder=graph_folder,
            graph=graph,
            folder=folder,
            tables=manifest.tables,
            variants=manifest.variants,
            manifest=manifest,
            room=None
            if max_delta_bytes is None
            else room_of(manifest.tables, graph.nodes, graph.edges, max_delta_bytes),
        )
        lists = [
            checks.ListedFiles(folder, manifest.files, revision_files.remedy),
            checks.ListedFiles(graph_folder, graph.files, revision_files.graph_remedy),
        ]
        checks.verify_sizes(lists)
        watched = WatchedFiles(
            {files.folder / name: entry for files in lists for name, entry in files.entries.items()},
            commits,
        )
        verified = checks.verify_files(lists, positions_of(graph_folder, graph))
        yield replace(revision_files, verified=verified, watched=watched)
        for finding in watched.look():
            if finding.change is not FileChange.TOUCHED:
                # This is not a DamagedError: the files that are there now may be whole.
                raise RepositoryError(
                    finding.path,
                    f"{finding.words}, while it was being loaded",
                    "published files must never change: find out who writes there, then load again",
                )

    # --- writing

    def require_free(self, wanted_bytes: int) -> None:
        """Fail before long work rather than after it. Raises ResourceError."""
        files.require_free(self._layout.folder, wanted_bytes)

    def require_writable(self) -> None:
        """Fail before long work where this process may not write. Raises StorageError."""
        files.require_writable(self._layout.folder)

    def locked(self, on_wait: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Exclude other writers, across processes; re-entrant. Call `find` again once inside.

        `on_wait` is called once when another process is writing, before waiting for it.
        """
        return self._lock.held(on_wait)

    def locked_if_free(self) -> AbstractContextManager[bool]:
        """The same, unless another process is writing; tells whether others are excluded."""
        return self._lock.held_if_free()

    def put_graph(self, data: GraphData) -> GraphManifest:
        """Write a graph. Idempotent: a graph that exists stays as it is."""
        if not paths.is_name(data.digest):
            raise ValueError(f"digest {data.digest!r} is not safe as a folder name")
        folder = self._layout.graph(data.digest)
        with self.locked():
            if _is_committed(folder, paths.GRAPH_COMMIT):
                return checks.read_graph_manifest(folder)
            files.remove_uncommitted(self._layout.graphs, paths.GRAPH_COMMIT)
            with files.discarding_unfinished(folder, paths.GRAPH_COMMIT):
                manifest = sealed(graph_files.write_graph(folder, data))
                files.commit(folder / paths.GRAPH_COMMIT, to_json(manifest))
            return manifest

    def set_aside(
        self,
        recipe: str,
        graph_digest: str,
        checkpoint: str | None = None,
        given: Mapping[str, str] = paths.NONE_GIVEN,
        expected: Mapping[str, str] = paths.NONE_GIVEN,
    ) -> Path:
        """Set a damaged revision and its graph aside, so that they can be generated anew. Returns their new folder.

        A process that has them mapped goes on, and the files can be examined. Only the last few are kept, so that a
        disk that damages every revision is not filled by them.
        """
        revision = self._layout.revision(paths.revision_id(recipe, graph_digest, checkpoint, given, expected))
        with self.locked():
            kept = self._layout.damaged(datetime.now(UTC))
            for folder in (revision, self._layout.graph(graph_digest)):
                if folder.exists():
                    files.make_folder(kept)
                    with files.storing(folder):
                        files.rename(folder, kept / folder.name)
            self._remove_oldest(kept.parent)
        return kept

    @staticmethod
    def _remove_oldest(parent: Path) -> None:
        """Remove the oldest folders that are named by their time; others are not ours to remove. One that cannot be
        removed is left: the disk has room for the next revision, or writing it fails with a message."""
        try:
            ours = sorted(path for path in parent.iterdir() if paths.is_damaged_name(path.name) and path.is_dir())
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("%s: cannot be listed, so nothing in it is removed: %s", parent, error.strerror)
            return
        for folder in ours[:-_KEPT_DAMAGED]:
            try:
                files.remove_tree(folder)
            except OSError as error:
                _log.warning("%s: cannot be removed, and is left: %s", folder, error)

    @contextmanager
    def stage(
        self,
        recipe: str,
        graph_digest: str,
        checkpoint: str | None = None,
        given: Mapping[str, str] = paths.NONE_GIVEN,
        expected: Mapping[str, str] = paths.NONE_GIVEN,
    ) -> Iterator[StagedRevision]:
        """Stage a new revision under the lock. If it is not committed when the block ends, it is removed."""
        folder = self._layout.revision(paths.revision_id(recipe, graph_digest, checkpoint, given, expected))
        graph_folder = self._layout.graph(graph_digest)
        with self.locked():
            if _is_committed(folder, paths.REVISION_COMMIT):
                raise RuntimeError(f"{folder} is already published; look for it under the lock before staging")
            if not _is_committed(graph_folder, paths.GRAPH_COMMIT):
                raise RuntimeError(f"{graph_folder} is not there; call put_graph before staging")
            graph = checks.read_graph_manifest(graph_folder)
            files.remove_uncommitted(self._layout.revisions, paths.REVISION_COMMIT)
            self._remove_trained(besides=self._layout.trained_for(recipe, graph_digest))
            with files.discarding_unfinished(folder, paths.REVISION_COMMIT):
                yield StagedRevision(folder, recipe, graph_folder, graph, checkpoint, dict(given))
            if _is_committed(folder, paths.REVISION_COMMIT):
                self._remove_trained()

    def kept_folder(self, recipe: str, graph_digest: str) -> Path:
        """The folder of networks that generations of this recipe and graph trained before they were interrupted. To be
        used under the lock."""
        return self._layout.trained_for(recipe, graph_digest)

    def count_kept_networks(self, recipe: str) -> int:
        """Networks that are kept for the next generation of the recipe, over all graphs."""
        pattern = f"{self._layout.trained_for(recipe, '*').name}/*/{paths.NETWORK_COMMIT}"
        return len(list(self._layout.trained.glob(pattern)))

    def _remove_trained(self, besides: Path | None = None) -> None:
        """Remove networks that were kept, those in the folder `besides` apart. Where that fails they stay: publishing
        does not depend on it."""
        parent = self._layout.trained
        try:
            if besides is None and parent.exists():
                files.remove_tree(parent)
            elif parent.exists():
                for folder in sorted(set(parent.iterdir()) - {besides}):
                    files.remove_tree(folder)
        except OSError as error:
            _log.warning("%s: cannot be removed, and is left: %s", parent, error)

    def remove_versions(self, digests: Collection[str]) -> None:
        """Remove graphs that changes are part of, and all revisions over them. To be called under the lock, and not
        while anyone serves them. Where it fails they stay."""
        self.remove([one.revision for one in self.revisions() if one.graph in digests], digests)

    def remove(self, revisions: Collection[str], graphs: Collection[str]) -> None:
        """The same, of revisions and graphs by name."""
        commits = [
            *(self._layout.revision(one) / paths.REVISION_COMMIT for one in revisions),
            *(self._layout.graph(one) / paths.GRAPH_COMMIT for one in graphs),
        ]
        try:
            for commit in commits:
                # First, so that what is left by an interruption is unfinished work, which the next writer removes.
                files.remove_file(commit)
                files.remove_tree(commit.parent)
        except OSError as error:
            _log.warning("%s: cannot be removed, and is left: %s", commit.parent, error)

    def _published(self) -> list[Path]:
        return self._committed(self._layout.revisions, paths.REVISION_COMMIT)

    @staticmethod
    def _committed(parent: Path, commit_name: str) -> list[Path]:
        try:
            folders = sorted(parent.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RepositoryError(
                parent, f"cannot be read: {error.strerror}", remedy_of(error, "check that folder")
            ) from error
        return [folder for folder in folders if _is_committed(folder, commit_name)]


def _is_committed(folder: Path, commit_name: str) -> bool:
    return (folder / commit_name).is_file()


def _age(manifest: RevisionManifest) -> tuple[str, str]:
    """Sort key: the time, then the id, so that two revisions of the same second always have the same order."""
    return manifest.created_at, manifest.revision


# --- one writer at a time


class _BusyError(Exception):
    """Another process holds the lock."""


def _give_up() -> NoReturn:
    raise _BusyError


class ServiceLock:
    """A re-entrant lock: a caller may hold it over several calls that each take it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.RLock()
        self._depth = 0

    @contextmanager
    def held(self, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold the lock. `on_wait` is called once before waiting, when another process holds it."""
        with self._mutex:
            if self._depth > 0:
                yield
                return
            files.make_folder(self._path.parent)
            with files.storing(self._path):
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                with files.storing(self._path):
                    self._wait_for(descriptor, on_wait)
                self._depth = 1
                yield
            finally:
                self._depth = 0
                os.close(descriptor)

    @contextmanager
    def held_if_free(self) -> Iterator[bool]:
        """Hold the lock unless another process does; tells whether it is held."""
        with ExitStack() as held:
            try:
                held.enter_context(self.held(_give_up))
            except _BusyError:
                yield False
                return
            yield True

    @staticmethod
    def _wait_for(descriptor: int, on_wait: Callable[[], None] | None) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
