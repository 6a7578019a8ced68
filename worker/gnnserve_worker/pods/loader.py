"""Brings what the routing table declares into effect: loads a revision beside the one that answers, then switches.

A thread of its own, fed with tables: the newest counts, one that was overtaken is never loaded. What cannot be loaded
leaves the present revision where it is, is said in `/v1/route` and tried again; so is a table that names variants which
its revision lacks, but not tried again. Where tables come from is `routing_watch.py`, what a switch does to requests
the engine.

A revision whose files changed (`repository_watch.py` looks) is loaded again: beside itself if its answers are right all
the same; where they may not be, nothing is answered until that is done.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from gnnserve_api.errors import GnnserveError
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.serving.served import ServedRevision, TableError

_log = logging.getLogger(__name__)

RETRY_S = (1.0, 30.0)
_POLITE = 10
"""Nice value of loading beside a revision that answers: checksums of gigabytes take every processor otherwise."""


class Server(Protocol):
    """`serving/server.py`'s Worker, as far as it concerns this."""

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None: ...

    def report(self, problem: str | None) -> None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def warn(self, revision: ServedRevision, problem: str) -> None: ...


class Loader:
    def __init__(
        self, server: Server, load: Callable[[str], ServedRevision], retry_s: tuple[float, float] | None = None
    ) -> None:
        """`load` returns a verified revision by its name; it is warmed up here. `retry_s`: None: `RETRY_S`."""
        self._server = server
        self._load = load
        self._retry_s = RETRY_S if retry_s is None else retry_s
        self._changed = threading.Condition()
        """Guards the three below."""
        self._declared: RoutingTable | None = None
        self._doubted: ServedRevision | None = None
        """To be loaded again."""
        self._stopped = False
        self._answering = threading.Lock()
        """Held while it is changed what answers: what was withdrawn must not come back by a switch that was on its
        way."""
        self._withdrawn: ServedRevision | None = None
        self._served: ServedRevision | None = None
        self._in_effect: RoutingTable | None = None
        self._renewing = False
        """What is served has to be loaded again, though its table is in effect."""
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def declare(self, table: RoutingTable) -> None:
        """From any thread. The last word counts."""
        with self._changed:
            self._declared = table
            self._changed.notify()

    @property
    def has_table(self) -> bool:
        return self._declared is not None

    @property
    def served(self) -> ServedRevision | None:
        """What answers, or would if it had not been withdrawn."""
        return self._served

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        """From any thread: its answers may be wrong from now on. Returns when it answers no more."""
        name = revision.manifest.revision
        said = f"revision {name} is not answered from: {problem}; it is being verified again"
        _log.error("%s", said, extra={"revision": name})
        with self._answering:
            self._withdrawn = revision
            self._server.withdraw(revision, said)
        self._doubt(revision)

    def renew(self, revision: ServedRevision, problem: str) -> None:
        """From any thread: it answers rightly, but what is in the repository now is something else, or nothing."""
        name = revision.manifest.revision
        said = f"revision {name} answers from files that are no longer in the repository: {problem}"
        _log.error("%s", said, extra={"revision": name})
        self._server.warn(revision, said)
        self._doubt(revision)

    def _doubt(self, revision: ServedRevision) -> None:
        with self._changed:
            self._doubted = revision
            self._changed.notify()

    def stop(self, patience_s: float) -> bool:
        """Whether the thread has ended by then; in the middle of loading it has not."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        tried: RoutingTable | None = None
        delay_s: float | None = None
        """Until the same table is tried again; None: it is in effect."""
        while (table := self._next(tried, delay_s)) is not None:
            if self._has_doubts():
                delay_s = None
            if tried is None or tried.revision != table.revision:
                delay_s = None
                # What was wrong with the last one is history; what is wrong with the same one stays until it works.
                self._server.report(f"revision {table.revision} is being loaded" if self._served is None else None)
            tried = table
            try:
                self._bring_into_effect(table)
                delay_s = None
            except TableError as error:
                # A revision never changes, so the same table would be as wrong at any other time.
                delay_s = None
                _log.error("%s", error, extra={"revision": table.revision})
                self._server.report(str(error))
            except Exception as error:  # noqa: BLE001  (whatever it was, the revision that answers goes on)
                shortest_s, longest_s = self._retry_s
                delay_s = shortest_s if delay_s is None else min(longest_s, 2 * delay_s)
                self._report(table, error, delay_s)

    def _next(self, tried: RoutingTable | None, delay_s: float | None) -> RoutingTable | None:
        """The next table to bring into effect: another one, or the same after its delay. None: stop."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._declared != tried or self._doubted is not None, delay_s
            )
            return None if self._stopped else self._declared

    def _has_doubts(self) -> bool:
        """Whether what is served has to be loaded again; from then on it is."""
        with self._changed:
            doubted, self._doubted = self._doubted, None
        if doubted is None or doubted is not self._served:
            return False
        self._renewing = True
        if doubted is self._withdrawn:
            self._served = self._in_effect = None
        return True

    def _bring_into_effect(self, table: RoutingTable) -> None:
        served, in_effect = self._served, self._in_effect
        load_s = 0.0
        if served is None or in_effect is None or in_effect.revision != table.revision or self._renewing:
            if served is not None and in_effect is not None:
                # What is wanted of the service holds for this revision too, however long the next one takes.
                wanted = msgspec.structs.replace(in_effect, objective=table.objective, batching=table.batching)
                self._switch(served, wanted, load_s)
            _log.info("loading revision %s", table.revision, extra={"revision": table.revision})
            started_s = time.perf_counter()
            served = self._load_beside(table.revision)
            served.check(table)
            opened_s = time.perf_counter()
            served.warm_up()
            load_s = time.perf_counter() - started_s
            _log.info(
                "revision %s verified and opened in %.2f s, warmed up in %.2f s",
                *(table.revision, opened_s - started_s, load_s - (opened_s - started_s)),
                extra={"revision": table.revision},
            )
            if self._overtaken(table):
                return
        else:
            served.check(table)
        if self._switch(served, table, load_s):
            self._server.report(None)

    def _overtaken(self, table: RoutingTable) -> bool:
        with self._changed:
            return self._stopped or (self._declared is not None and self._declared.revision != table.revision)

    def _switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> bool:
        """Whether it is in effect. It is not where the revision was withdrawn meanwhile: it will be loaded again."""
        if table == self._in_effect and revision is self._served:
            return True
        with self._answering:
            if revision is self._withdrawn:
                return False
            self._server.switch(revision, table, load_s)
        if revision is not self._served:
            self._renewing = False
        told = _settings(self._in_effect) if self._in_effect is not None else None
        self._served, self._in_effect = revision, table
        settings = _settings(table)
        # The operator renews tables every few seconds.
        level = logging.DEBUG if settings == told else logging.INFO
        shown = msgspec.json.encode(settings).decode()
        _log.log(level, "revision %s answers: %s", table.revision, shown, extra={"revision": table.revision})
        return True

    def _load_beside(self, revision: str) -> ServedRevision:
        if self._served is None:
            return self._load(revision)
        # In a thread of its own, because its priority cannot be raised again: threads it starts inherit it.
        loaded: list[ServedRevision] = []
        failed: list[BaseException] = []

        def load() -> None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _POLITE)
            try:
                loaded.append(self._load(revision))
            except BaseException as error:  # noqa: BLE001  (raised again, where it was asked for)
                failed.append(error)

        thread = threading.Thread(target=load, name="load-revision", daemon=True)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return loaded[0]

    def _report(self, table: RoutingTable, error: Exception, delay_s: float) -> None:
        if isinstance(error, GnnserveError):
            problem = f"revision {table.revision} cannot be loaded: {error}"
            _log.error("%s; trying again in %g s", problem, delay_s, extra={"revision": table.revision})
        else:
            problem = f"revision {table.revision} cannot be loaded: {type(error).__name__}: {error}"
            _log.error("%s; trying again in %g s", problem, delay_s, exc_info=error, extra={"revision": table.revision})
        self._server.report(problem)


def _settings(table: RoutingTable) -> dict[str, object]:
    """What of a table people want to know when it changes."""
    return {
        "revision": table.revision,
        "objective": table.objective,
        "batching": table.batching,
        "mode": table.mode,
        "baseVariant": table.base_variant,
        "weights": table.weights,
    }
