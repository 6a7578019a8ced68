"""Watch that looks once a second whether the files of the answering revision are still those that were verified.

A revision whose answers fail again and again has all of its files verified, since bytes may change without their
times. It also looks whether the revision could get more of a GPU's memory by now, since no event tells when the
previous revision's memory is freed.

`repository/watched.py` compares files; `loader.py` decides what follows from a finding.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from gnnserve_worker.following.loader import be_polite
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.repository.watched import FileChange, FileFinding, WatchedFiles

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Seconds between two looks; a look at thirty files takes a fifth of a millisecond."""


class WatchedLoader(Protocol):
    """The part of `loader.py`'s Loader that the watch uses."""

    @property
    def served(self) -> ServedRevision | None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def renew(self, revision: ServedRevision, problem: str) -> None: ...

    def enlarge(self, revision: ServedRevision) -> None: ...


class RepositoryWatch:
    def __init__(
        self, owner: WatchedLoader, why_failing: Callable[[ServedRevision], str] = lambda _revision: ""
    ) -> None:
        """`why_failing`: what of a revision's answers fails; empty: nothing does."""
        self._owner = owner
        self._why_failing = why_failing
        self._suspected: WatchedFiles | None = None
        """Files that were verified because answers failed, and still do."""
        self._stopped = threading.Event()
        self._told: tuple[WatchedFiles, int, set[FileChange]] | None = None
        """Changes already reported of these files since their last verification (the number counts verifications)."""
        self._unseen: tuple[WatchedFiles, str] | None = None
        """The files that the last look could not examine, or why it failed."""
        self._thread = threading.Thread(target=self._run, name="repository-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting: the thread may be verifying gigabytes."""
        self._stopped.set()

    def _run(self) -> None:
        # Verifying a touched file of gigabytes must not take processors from requests.
        be_polite()
        while not self._stopped.wait(INTERVAL_S):
            try:
                self._look()
            except Exception:  # noqa: BLE001  (a watch that died would let wrong answers pass)
                _log.exception("the repository could not be looked at")

    def _look(self) -> None:
        """Look once. It is a function of its own, so that no variable of a waiting thread keeps a replaced revision
        alive."""
        revision = self._owner.served
        if revision is not None and revision.compute.would_gain():
            self._owner.enlarge(revision)
        if revision is None or revision.compute.files is None:
            self._told = self._unseen = self._suspected = None
            return
        files, times_verified = revision.compute.files, revision.compute.files.times_verified
        if self._told is None or self._told[0] is not files or self._told[1] != times_verified:
            self._told = (files, times_verified, set())
        told = self._told[2]
        try:
            findings = files.look()
        except Exception as error:  # noqa: BLE001  (who cannot look does not know, and may only have been unlucky)
            _log.exception("the repository could not be looked at")
            self._count_unseen(revision, files, told, f"the repository cannot be looked at: {error!r}")
            return
        written = _first(findings, FileChange.WRITTEN, FileChange.REDATED)
        if FileChange.WRITTEN in told:
            pass
        elif (
            written is not None
            or (written := self._verify(revision, files, findings)) is not None
            or (written := self._suspect(revision, files)) is not None
        ):
            self._owner.withdraw(revision, str(written))
            told.add(FileChange.WRITTEN)
            return
        else:
            # Files that were verified here are the same, so what was reported about their paths still holds.
            self._told = (files, files.times_verified, told)
        unseen = _first(findings, FileChange.UNSEEN)
        if unseen is not None:
            self._count_unseen(revision, files, told, str(unseen))
            return
        self._unseen = None
        moved = _first(findings, FileChange.MOVED)
        if moved is not None and not told:
            self._owner.renew(revision, str(moved))
            told.add(FileChange.MOVED)

    def _count_unseen(self, revision: ServedRevision, files: WatchedFiles, told: set[FileChange], problem: str) -> None:
        """Report a problem only when it occurs twice in a row."""
        before, self._unseen = self._unseen, (files, problem)
        if before is not None and before[0] is files and FileChange.WRITTEN not in told:
            self._owner.withdraw(revision, problem)
            told.add(FileChange.WRITTEN)

    def _suspect(self, revision: ServedRevision, files: WatchedFiles) -> FileFinding | None:
        """Verify all files, once, of a revision whose answers fail. Returns the first that has other content."""
        why = self._why_failing(revision)
        if not why:
            self._suspected = None
        elif self._suspected is not files:
            self._suspected = files
            _log.error("revision %s: %s", revision.manifest.revision, why)
            if (altered := files.verify_contents()) is not None:
                return altered
            _log.error("revision %s: its files are as they were verified", revision.manifest.revision)
        return None

    def _verify(self, revision: ServedRevision, files: WatchedFiles, findings: list[FileFinding]) -> FileFinding | None:
        """Verify the touched files. Returns the first that has other content now, or one that was written to
        meanwhile."""
        touched = [finding for finding in findings if finding.change is FileChange.TOUCHED]
        for finding in touched:
            if (written := files.verify(finding.path)) is not None:
                return written
            _log.info("%s, and is as it was verified", finding)
        if touched:
            # The file may have been written to and restored, modification time included, since the last look.
            revision.compute.forget_copies()
        return None


def _first(findings: list[FileFinding], *changes: FileChange) -> FileFinding | None:
    return next((finding for finding in findings if finding.change in changes), None)
