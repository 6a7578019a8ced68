"""Brings the declared routing table into effect: loads a revision beside the one that answers, then switches.

What follows from what is decided in `transitions.py`, which is pure; here are the threads and the work. Only the newest
table counts, and an overtaken one is never loaded. If loading fails, the present revision stays, `/v1/route` tells why,
and loading is tried again. A table that names variants which its revision lacks is reported too, but not tried again.
`routing_watch.py` delivers tables; the engine moves requests at a switch.

A revision whose files changed (`repository_watch.py` notices) is loaded again: beside itself if its answers are still
right; if they may be wrong, nothing is answered until the load is done, or its files are verified to be unchanged.
Meanwhile tables are still followed. Repeated changes make the loads further and further apart.

A revision that got little of a GPU's memory, because the previous one still had it, is loaded again beside itself once
that memory is free. This is tried once; if it fails, the revision answers on as it is.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, assert_never

from gnnserve_api.pods.routing import Damage, RoutingTable
from gnnserve_worker.following.delay import Delay
from gnnserve_worker.following.state import (
    AnsweringRevision,
    CouldGrow,
    Effect,
    Event,
    FilesReplaced,
    FilesVerified,
    Load,
    LoaderFailed,
    LoaderIdle,
    LoaderStopped,
    Log,
    ReportProblem,
    RevisionDoubted,
    RevisionLoaded,
    State,
    Switch,
    TableDeclared,
    Verify,
    Warn,
    Withdraw,
)
from gnnserve_worker.following.transitions import step
from gnnserve_worker.inference.served import ServedRevision

_log = logging.getLogger(__name__)

RETRY_S = (1.0, 30.0)
POLITE = 10
"""Nice value of loading beside a revision that answers: checksums of gigabytes take every processor otherwise."""


class Server(Protocol):
    """The part of `serving/process/served_service.py`'s ServedService that the loader uses."""

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None: ...

    def report(self, problem: str | None, damage: Damage | None = None) -> None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def warn(self, revision: ServedRevision, problem: str) -> None: ...


class Loader:
    def __init__(
        self,
        server: Server,
        load: Callable[[str], ServedRevision],
        retry_s: tuple[float, float] | None = None,
        service: str | None = None,
        *,
        is_second: bool = False,
    ) -> None:
        """`load` returns a verified revision by its name; the loader rehearses it. `retry_s`: None means `RETRY_S`.
        `service`: whose revisions they are, for logs of a process that has several. `is_second`: another loader's
        revision answers meanwhile."""
        self._is_second = is_second
        self._service = service
        self._server = server
        self._load = load
        self._state = State(Delay(*(RETRY_S if retry_s is None else retry_s)))
        self._answering = threading.Lock()
        """Guards the state, and is held until the effects of a step are there: a withdrawn revision must not come back
        by a switch under way."""
        self._changed = threading.Event()
        """Something happened since the thread looked last."""
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def adopt(self, revision: ServedRevision, table: RoutingTable) -> None:
        """Begin with a revision that answers already by this table. To be called before `start`."""
        self._state = replace(
            self._state, declared=table, attempted=table, answering=AnsweringRevision(revision), table=table
        )  # fmt: skip

    def declare(self, table: RoutingTable) -> None:
        """Declare a table, from any thread. The last one counts."""
        self._tell(TableDeclared(table))

    @property
    def has_table(self) -> bool:
        return self._state.declared is not None

    @property
    def is_settled(self) -> bool:
        """Whether the declared revision answers, or could not be made to at the first attempt."""
        state = self._state
        return state.answering is not None or (state.attempted is not None and state.job is None)

    @property
    def served(self) -> ServedRevision | None:
        """The revision that answers."""
        answering = self._state.answering
        return None if answering is None else answering.revision

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        """Withdraw a revision whose answers may be wrong from now on. Any thread may call it; returns when it no longer
        answers."""
        self._tell(RevisionDoubted(revision, problem))

    def renew(self, revision: ServedRevision, problem: str) -> None:
        """Load a revision again that answers correctly, but whose files in the repository were replaced or removed. Any
        thread may call it."""
        self._tell(FilesReplaced(revision, problem))

    def enlarge(self, revision: ServedRevision) -> None:
        """Load a revision again that would get more of its device's memory. Any thread may call it; only the first call
        counts."""
        self._tell(CouldGrow(revision))

    def stop(self, patience_s: float) -> bool:
        """Stop. Returns whether the thread ended within `patience_s`; in the middle of a load it does not."""
        self._tell(LoaderStopped())
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _about(self, revision: str | None) -> dict[str, str | None]:
        return {"revision": revision, **({} if self._service is None else {"service": self._service})}

    def _tell(self, event: Event) -> None:
        try:
            self._step(event)
        finally:
            self._changed.set()

    def _step(self, event: Event) -> None:
        with self._answering:
            before = self._state
            self._state, effects = step(before, event, time.monotonic())
            try:
                self._act(effects)
            except _SwitchError as failure:
                self._state, effects = step(before, LoaderFailed(failure.error), time.monotonic())
                self._act(effects)

    def _run(self) -> None:
        while not self._state.is_stopped:
            self._changed.wait(self._state.delay.left_s(time.monotonic()))
            self._changed.clear()
            self._step(LoaderIdle())
            while self._state.job is not None and not self._state.is_stopped:
                self._work()
                self._step(LoaderIdle())

    def _work(self) -> None:
        """Do the state's job. It is a function of its own, so that no variable of a waiting thread keeps a replaced
        revision alive."""
        match self._state.job:
            case None:
                pass
            case Verify(revision):
                self._step(self._verify(revision))
            case Load() as job:
                self._step(self._load_warm(job))
            case unknown:
                assert_never(unknown)

    def _verify(self, revision: ServedRevision) -> FilesVerified | LoaderFailed:
        """Whether only the times of its files were set, as by a backup."""
        try:
            wrong = None if revision.compute.files is None else revision.compute.files.verify_all()
            if wrong is not None:
                _log.error("%s", wrong, extra=self._about(revision.manifest.revision))
                return FilesVerified(is_intact=False)
            # Files are verified first: rows copied from now on are right, or the watch reports it.
            revision.compute.forget_copies()
        except Exception as error:  # noqa: BLE001  (it is loaded instead)
            return LoaderFailed(error)
        return FilesVerified(is_intact=True)

    def _load_warm(self, job: Load) -> RevisionLoaded | LoaderFailed:
        """Load and rehearse a revision, which can follow the table."""
        table, before = job.table, self.served
        _log.info("loading revision %s", table.revision, extra=self._about(table.revision))
        started_s = time.perf_counter()
        try:
            is_beside = job.is_beside or self._is_second
            loaded = self._load_beside(table.revision) if is_beside else self._load(table.revision)
            loaded.check(table)
            loaded.follow(table)
            opened_s = time.perf_counter()
            loaded.compute.warm_up()
            is_larger = (
                before is not None and loaded.compute.device_stats().standing > before.compute.device_stats().standing
            )
        except Exception as error:  # noqa: BLE001  (whatever it was, the revision that answers goes on)
            return LoaderFailed(error)
        load_s = time.perf_counter() - started_s
        _log.info(
            "revision %s verified and opened in %.2f s, warmed up in %.2f s",
            *(table.revision, opened_s - started_s, load_s - (opened_s - started_s)),
            extra=self._about(table.revision),
        )
        return RevisionLoaded(loaded, load_s, is_larger)

    def _load_beside(self, revision: str) -> ServedRevision:
        # In a thread of its own, because its priority cannot be raised again: threads it starts inherit it.
        loaded: list[ServedRevision] = []
        failed: list[BaseException] = []

        def load() -> None:
            be_polite()
            try:
                loaded.append(self._load(revision))
            except BaseException as error:  # noqa: BLE001  (raised again, where it was asked for)
                failed.append(error)

        thread = threading.Thread(target=load, name="load-revision", daemon=True)
        thread.start()
        thread.join()
        if failed:
            # Pop it from the list, which the error's traceback keeps alive: GPU memory of the failed load must be free
            # by the next attempt, not at the next collection of cycles.
            raise failed.pop()
        return loaded[0]

    def _act(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Switch(revision, table, load_s):
                    try:
                        self._server.switch(revision, table, load_s)
                    except Exception as error:
                        raise _SwitchError(error) from error
                case Withdraw(revision, problem):
                    self._server.withdraw(revision, problem)
                case Warn(revision, problem):
                    self._server.warn(revision, problem)
                case ReportProblem(problem, damage):
                    self._server.report(problem, damage)
                case Log(level, words, name, cause):
                    _log.log(level, "%s", words, exc_info=cause, extra=self._about(name))
                case _:
                    assert_never(effect)


class _SwitchError(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def be_polite() -> None:
    """Lower the priority of this thread, for good."""
    with suppress(OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(POLITE, os.getpriority(os.PRIO_PROCESS, thread)))
