"""Looks at the files of the revision that answers, once a second, and says when they are not what was verified.

And whether it could have more of a GPU's memory by now: nobody tells when that of the revision before came free.

What a look can know is `repository/watched.py`'s, what becomes of the answers `loader.py`'s.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from gnnserve_worker.following.loader import be_polite
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.repository.watched import Change, Finding, WatchedFiles

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""A look at thirty files takes a fifth of a millisecond."""


class Owner(Protocol):
    """`loader.py`'s Loader, as far as it concerns this."""

    @property
    def served(self) -> ServedRevision | None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def renew(self, revision: ServedRevision, problem: str) -> None: ...

    def enlarge(self, revision: ServedRevision) -> None: ...


class RepositoryWatch:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._stopped = threading.Event()
        self._told: tuple[WatchedFiles, int, set[Change]] | None = None
        """Of these files, verified so many times, what was said already."""
        self._unseen: tuple[WatchedFiles, str] | None = None
        """Which of these files the last look could not see, or why it failed."""
        self._thread = threading.Thread(target=self._run, name="repository-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Without waiting: it may be verifying gigabytes."""
        self._stopped.set()

    def _run(self) -> None:
        # Verifying a touched file of gigabytes must not take the processors from who answers.
        be_polite()
        while not self._stopped.wait(INTERVAL_S):
            try:
                self._look()
            except Exception:  # noqa: BLE001  (a watch that died would let wrong answers pass)
                _log.exception("the repository could not be looked at")

    def _look(self) -> None:
        """A function of its own, so that no variable of a waiting watch keeps a revision that was replaced."""
        revision = self._owner.served
        if revision is not None and revision.would_gain():
            self._owner.enlarge(revision)
        if revision is None or revision.files is None:
            self._told = self._unseen = None
            return
        files, times_verified = revision.files, revision.files.times_verified
        if self._told is None or self._told[0] is not files or self._told[1] != times_verified:
            self._told = (files, times_verified, set())
        told = self._told[2]
        try:
            findings = files.look()
        except Exception as error:  # noqa: BLE001  (who cannot look does not know, and may only have been unlucky)
            _log.exception("the repository could not be looked at")
            self._count_unseen(revision, files, told, f"the repository cannot be looked at: {error!r}")
            return
        written = _first(findings, Change.WRITTEN, Change.REDATED)
        if Change.WRITTEN in told:
            pass
        elif written is not None or (written := self._verify(revision, files, findings)) is not None:
            self._owner.withdraw(revision, str(written))
            told.add(Change.WRITTEN)
            return
        unseen = _first(findings, Change.UNSEEN)
        if unseen is not None:
            self._count_unseen(revision, files, told, str(unseen))
            return
        self._unseen = None
        moved = _first(findings, Change.MOVED)
        if moved is not None and not told:
            self._owner.renew(revision, str(moved))
            told.add(Change.MOVED)

    def _count_unseen(self, revision: ServedRevision, files: WatchedFiles, told: set[Change], problem: str) -> None:
        """The second time in a row it counts."""
        before, self._unseen = self._unseen, (files, problem)
        if before is not None and before[0] is files and Change.WRITTEN not in told:
            self._owner.withdraw(revision, problem)
            told.add(Change.WRITTEN)

    def _verify(self, revision: ServedRevision, files: WatchedFiles, findings: list[Finding]) -> Finding | None:
        """Of the files that were touched, the first that has another content by now, or one that was written to
        meanwhile."""
        touched = [finding for finding in findings if finding.change is Change.TOUCHED]
        for finding in touched:
            if (written := files.verify(finding.path)) is not None:
                return written
            _log.info("%s, and is as it was verified", finding)
        if touched:
            # It may have been written to and put back, with its time of writing, since the last look.
            revision.forget_copies()
        if self._told is not None:
            # Of these same files, what was said of their paths holds on.
            self._told = (files, files.times_verified, self._told[2])
        return None


def _first(findings: list[Finding], *changes: Change) -> Finding | None:
    return next((finding for finding in findings if finding.change in changes), None)
