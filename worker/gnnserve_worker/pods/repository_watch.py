"""Looks at the files of the revision that answers, once a second, and says when they are not what was verified.

What a look can know is `repository/watched.py`'s, what becomes of the answers `loader.py`'s.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from typing import Protocol

from gnnserve_worker.repository.watched import Change, Finding, WatchedFiles
from gnnserve_worker.serving.served import ServedRevision

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""A look at thirty files takes a fifth of a millisecond."""
_POLITE = 10
"""Nice value: verifying a touched file of gigabytes must not take the processors from who answers."""


class Owner(Protocol):
    """`loader.py`'s Loader, as far as it concerns this."""

    @property
    def served(self) -> ServedRevision | None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def renew(self, revision: ServedRevision, problem: str) -> None: ...


class RepositoryWatch:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._stopped = threading.Event()
        self._told: tuple[WatchedFiles, set[Change]] | None = None
        """Of these files, what was said already."""
        self._thread = threading.Thread(target=self._run, name="repository-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Without waiting: it may be verifying gigabytes."""
        self._stopped.set()

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _POLITE)
        while not self._stopped.wait(INTERVAL_S):
            try:
                self._look()
            except Exception:  # noqa: BLE001  (a watch that died would let wrong answers pass)
                _log.exception("the repository could not be looked at")

    def _look(self) -> None:
        """A function of its own, so that no variable of a waiting watch keeps a revision that was replaced."""
        revision = self._owner.served
        if revision is None or revision.files is None:
            self._told = None
            return
        files = revision.files
        if self._told is None or self._told[0] is not files:
            self._told = (files, set())
        told = self._told[1]
        findings = files.look()
        if Change.WRITTEN not in told:
            written = _first(findings, Change.WRITTEN) or _verify(files, findings)
            if written is not None:
                told.add(Change.WRITTEN)
                self._owner.withdraw(revision, str(written))
                return
        moved = _first(findings, Change.MOVED)
        if moved is not None and not told:
            told.add(Change.MOVED)
            self._owner.renew(revision, str(moved))


def _verify(files: WatchedFiles, findings: list[Finding]) -> Finding | None:
    """Of the files that were touched, the first one that has another content by now."""
    for finding in findings:
        if finding.change is Change.TOUCHED:
            if not files.verify(finding.path):
                return finding
            _log.info("%s, and is as it was verified", finding)
    return None


def _first(findings: list[Finding], change: Change) -> Finding | None:
    return next((finding for finding in findings if finding.change is change), None)
