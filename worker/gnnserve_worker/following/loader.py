"""Brings the declared routing table into effect: loads a revision beside the one that answers, then switches.

It is a thread that receives tables: only the newest counts, and an overtaken one is never loaded. If loading fails, the
present revision stays, `/v1/route` tells why, and loading is tried again. A table that names variants which its
revision lacks is reported too, but not tried again. `routing_watch.py` delivers tables; the engine moves requests at a
switch.

A revision whose files changed (`repository_watch.py` notices) is loaded again: beside itself if its answers are still
right; if they may be wrong, nothing is answered until the load is done, or its files are verified to be unchanged.
Meanwhile tables are still followed. Repeated changes make the loads further and further apart.

A revision that got little of a GPU's memory, because the previous one still had it, is loaded again beside itself once
that memory is free. This is tried once; if it fails, the revision answers on as it is.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from gnnserve_api.errors import DamagedError, GnnserveError
from gnnserve_api.routing import Damage, RoutingTable
from gnnserve_worker.inference.served import ServedRevision, TableError

_log = logging.getLogger(__name__)

RETRY_S = (1.0, 30.0)
_LOOKS_AT_DAMAGE = 2
"""Attempts that must find damage before it is reported: a file system that just came back may show half a folder."""
POLITE = 10
"""Nice value of loading beside a revision that answers: checksums of gigabytes take every processor otherwise."""


class Server(Protocol):
    """The part of `serving/server.py`'s WorkerServer that the loader uses."""

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None: ...

    def report(self, problem: str | None, damage: Damage | None = None) -> None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def warn(self, revision: ServedRevision, problem: str) -> None: ...


class Loader:
    def __init__(
        self, server: Server, load: Callable[[str], ServedRevision], retry_s: tuple[float, float] | None = None
    ) -> None:
        """`load` returns a verified revision by its name; the loader warms it up. `retry_s`: None means `RETRY_S`."""
        self._server = server
        self._load = load
        self._delay = _Delay(*(RETRY_S if retry_s is None else retry_s))
        self._changed = threading.Condition()
        """Guards the next four attributes."""
        self._declared: RoutingTable | None = None
        self._doubted: ServedRevision | None = None
        """The revision that has to be loaded again, if any."""
        self._cramped: ServedRevision | None = None
        """The revision that could get more device memory, if any."""
        self._stopped = False
        self._answering = threading.Lock()
        """Held while the answering revision is changed, or the reason why none answers is set: a withdrawn revision
        must not come back by a switch under way. It guards `_withdrawn` and writes to `_served`."""
        self._withdrawn: ServedRevision | None = None
        """The served revision after its withdrawal, until the thread has noted it."""
        self._may_grow = False
        """Whether the served revision was not yet loaded again to get more memory. Guarded like `_served`."""
        self._served: ServedRevision | None = None
        self._in_effect: RoutingTable | None = None
        """The table in effect; where nothing answers, the last one that was."""
        self._refused: tuple[RoutingTable, str] | None = None
        """A table that its revision cannot follow, and why. Trying again would not help, so the last good table
        holds."""
        self._reinstatable: ServedRevision | None = None
        """A withdrawn revision whose files may be unchanged: it is warm, and verifying it is faster than loading."""
        self._renewing = False
        """Whether the served revision has to be loaded again although its table is in effect."""
        self._enlarging = False
        """Whether the served revision could get more memory, as reported since the last round."""
        self._load_s = 0.0
        self._found_damaged = 0
        """Consecutive attempts that found the declared revision damaged."""
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def declare(self, table: RoutingTable) -> None:
        """Declare a table, from any thread. The last one counts."""
        with self._changed:
            self._declared = table
            self._changed.notify()

    @property
    def has_table(self) -> bool:
        return self._declared is not None

    @property
    def served(self) -> ServedRevision | None:
        """The revision that answers, or would answer had it not been withdrawn."""
        return self._served

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        """Withdraw a revision whose answers may be wrong from now on. Any thread may call it; returns when it no longer
        answers."""
        name = revision.manifest.revision
        said = f"revision {name} is not answered from: {problem}; it is being verified again"
        with self._answering:
            if revision is not self._served:
                return
            _log.error("%s", said, extra={"revision": name})
            try:
                self._server.withdraw(revision, said)
                self._withdrawn = revision
            finally:
                self._doubt(revision)

    def renew(self, revision: ServedRevision, problem: str) -> None:
        """Load a revision again that answers correctly, but whose files in the repository were replaced or removed. Any
        thread may call it."""
        name = revision.manifest.revision
        said = f"revision {name} answers from files that are no longer in the repository: {problem}"
        with self._answering:
            if revision is not self._served or revision is self._withdrawn:
                return
            _log.error("%s", said, extra={"revision": name})
            try:
                self._server.warn(revision, said)
            finally:
                self._doubt(revision)

    def enlarge(self, revision: ServedRevision) -> None:
        """Load a revision again that would get more of its device's memory. Any thread may call it; only the first call
        counts."""
        with self._answering:
            if revision is not self._served or revision is self._withdrawn or not self._may_grow:
                return
        with self._changed:
            self._cramped = revision
            self._changed.notify()

    def _doubt(self, revision: ServedRevision) -> None:
        with self._changed:
            self._doubted = revision
            self._changed.notify()

    def stop(self, patience_s: float) -> bool:
        """Stop. Returns whether the thread ended within `patience_s`; in the middle of a load it does not."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        tried: RoutingTable | None = None
        while (declared := self._next(tried)) is not None:
            self._take_doubts()
            if tried is None or (tried.revision, tried.repair) != (declared.revision, declared.repair):
                self._delay.forget()
                self._found_damaged = 0
                # A problem of another table is obsolete; a problem of the same one stays until it works.
                self._report(f"revision {declared.revision} is being loaded" if self._served is None else None)
            tried = declared
            try:
                self._bring_into_effect(declared)
            except TableError as error:
                is_last_good = self._refused is not None and self._refused[0] == declared
                self._refused = (declared, str(error))
                _log.error("%s", error, extra={"revision": declared.revision})
                self._report(str(error))
                if is_last_good:  # its revision was made again, with other variants
                    self._delay.extend()
                elif self._in_effect is not None and (self._served is None or self._renewing):
                    self._delay.ensure()
                else:
                    self._delay.end()
            except Exception as error:  # noqa: BLE001  (whatever it was, the revision that answers goes on)
                self._delay.extend()
                self._found_damaged = self._found_damaged + 1 if isinstance(error, DamagedError) else 0
                self._report_failure(declared, error)

    def _next(self, tried: RoutingTable | None) -> RoutingTable | None:
        """Wait for the next table to bring into effect: another one, or the same one when it is due. None: stop."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stopped or self._declared != tried or self._doubted is not None or self._cramped is not None
                ),
                self._delay.left_s,
            )
            return None if self._stopped else self._declared

    def _take_doubts(self) -> None:
        """Take over whether the served revision has to be loaded again, or would gain memory by it."""
        with self._changed:
            doubted, self._doubted = self._doubted, None
            cramped, self._cramped = self._cramped, None
        self._enlarging = cramped is not None and cramped is self._served
        if doubted is None or doubted is not self._served:
            return
        self._renewing = True
        self._delay.begin_again()
        with self._answering:
            if doubted is self._withdrawn:
                self._reinstatable = doubted
                self._served = self._withdrawn = None

    def _bring_into_effect(self, declared: RoutingTable) -> None:
        """Bring a table into effect as far as it is due; settings of the answering revision apply at once."""
        table, problem = declared, None
        if self._refused is not None and self._refused[0] == declared and self._in_effect is not None:
            table, problem = self._in_effect, self._refused[1]
        if self._reinstatable is not None and not self._delay.is_running:
            self._reinstate(self._reinstatable)
        served, in_effect = self._served, self._in_effect
        if served is not None and in_effect is not None:
            if in_effect.revision == table.revision:
                served.check(table)
                is_switched = self._switch(served, table, self._load_s)
                if not self._renewing:
                    self._delay.end()
                    if is_switched:
                        self._report(problem)
                        if self._enlarging:
                            self._enlarge(served, declared, table, problem)
                    return
            else:
                # The service's objective and batching apply to the present revision too, however long loading the next
                # one takes.
                wanted = msgspec.structs.replace(in_effect, objective=table.objective, batching=table.batching)
                self._switch(served, wanted, self._load_s)
        if self._delay.is_running:
            return
        loaded, load_s = self._load_warm(table)
        if self._is_overtaken(declared):
            return
        self._switch(loaded, table, load_s)
        self._delay.end()
        self._report(problem)

    def _load_warm(self, table: RoutingTable) -> tuple[ServedRevision, float]:
        """Load and warm up a revision; returns it and the seconds taken. Raises TableError where it cannot follow the
        table."""
        self._reinstatable = None  # its mappings need not outlast its files
        _log.info("loading revision %s", table.revision, extra={"revision": table.revision})
        started_s = time.perf_counter()
        loaded = self._load_beside(table.revision)
        loaded.check(table)
        opened_s = time.perf_counter()
        loaded.warm_up()
        load_s = time.perf_counter() - started_s
        _log.info(
            "revision %s verified and opened in %.2f s, warmed up in %.2f s",
            *(table.revision, opened_s - started_s, load_s - (opened_s - started_s)),
            extra={"revision": table.revision},
        )
        return loaded, load_s

    def _reinstate(self, revision: ServedRevision) -> None:
        """Let a withdrawn revision answer again where only the times of its files were set, as by a backup."""
        self._reinstatable = None
        if revision.files is None or self._in_effect is None:
            return
        if (wrong := revision.files.verify_all()) is not None:
            _log.error("%s", wrong, extra={"revision": revision.manifest.revision})
            return
        # Files are verified first: rows copied from now on are right, or the watch reports it.
        revision.forget_copies()
        name = revision.manifest.revision
        _log.info("revision %s answers again: its files are as they were", name, extra={"revision": name})
        self._switch(revision, self._in_effect, self._load_s)

    def _enlarge(
        self, served: ServedRevision, declared: RoutingTable, table: RoutingTable, problem: str | None
    ) -> None:
        """Load the revision once more beside itself, and switch to the copy if it got more memory."""
        name = table.revision
        about = {"revision": name}
        with self._answering:
            self._may_grow = False
        _log.info("revision %s is loaded again, into memory that came free", name, extra=about)
        try:
            loaded, load_s = self._load_warm(table)
        except Exception as error:  # noqa: BLE001  (it answers)
            in_words, of_ours = _told(error)
            _log.warning("revision %s answers on: loaded again, %s", name, in_words, exc_info=of_ours, extra=about)
            return
        if loaded.device_stats().standing <= served.device_stats().standing:
            _log.warning("revision %s answers on: loaded again, it has no more memory", name, extra=about)
            return
        with self._changed:
            if self._doubted is not None:  # the copy's files may have changed too
                return
        if not self._is_overtaken(declared):
            self._switch(loaded, table, load_s, may_grow=False)
            self._report(problem)

    def _is_overtaken(self, table: RoutingTable) -> bool:
        with self._changed:
            return self._stopped or (self._declared is not None and self._declared.revision != table.revision)

    def _switch(self, revision: ServedRevision, table: RoutingTable, load_s: float, *, may_grow: bool = True) -> bool:
        """Switch. Returns whether the revision is in effect; it is not if it was withdrawn meanwhile, and is then
        loaded again."""
        if table == self._in_effect and revision is self._served:
            return True
        is_new = revision is not self._served
        with self._answering:
            if revision is self._withdrawn:
                return False
            self._server.switch(revision, table, load_s)
            self._served = revision
            if is_new:
                self._withdrawn = None
                self._may_grow = may_grow
        if is_new:
            self._renewing = False
            self._load_s = load_s
        told = _settings(self._in_effect) if self._in_effect is not None else None
        self._in_effect = table
        settings = _settings(table)
        # The operator renews tables every few seconds: log only changes.
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

    def _report(self, problem: str | None, damage: Damage | None = None) -> None:
        with self._answering:
            if self._withdrawn is None:  # otherwise the withdrawal is the problem to report
                self._server.report(problem, damage)

    def _report_failure(self, table: RoutingTable, error: Exception) -> None:
        in_words, of_ours = _told(error)
        problem = f"revision {table.revision} cannot be loaded: {in_words}"
        wait_s = self._delay.length_s
        _log.error("%s; trying again in %g s", problem, wait_s, exc_info=of_ours, extra={"revision": table.revision})
        is_certain = self._found_damaged >= _LOOKS_AT_DAMAGE
        self._report(problem, Damage(table.revision, table.repair) if is_certain else None)


def be_polite() -> None:
    """Lower the priority of this thread, for good."""
    with suppress(OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(POLITE, os.getpriority(os.PRIO_PROCESS, thread)))


class _Delay:
    """The delay between attempts to load."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self.length_s = 0.0
        self._due_s: float | None = None
        """When the next attempt is due; None: nothing is to be loaded."""
        self._ended_s = -math.inf

    @property
    def left_s(self) -> float | None:
        """Seconds until the next attempt; None: no attempt is due."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    @property
    def is_running(self) -> bool:
        return bool(self.left_s)

    def forget(self) -> None:
        """Start over, since another revision is wanted."""
        self.length_s = 0.0
        self._due_s = None

    def ensure(self) -> None:
        """Schedule an attempt, at once unless one is scheduled already."""
        if self._due_s is None:
            self._due_s = time.monotonic()

    def begin_again(self) -> None:
        """Schedule loading again: at once if the revision worked for a while, later if it was loaded just now, so that
        loads do not follow each other without pause."""
        now_s = time.monotonic()
        if self._due_s is not None:
            self._due_s = now_s
        elif now_s - self._ended_s < self._longest_s:
            self.extend()
        else:
            self.length_s, self._due_s = 0.0, now_s

    def extend(self) -> None:
        """Note a failure: the next delay is longer."""
        self.length_s = min(self._longest_s, 2 * self.length_s) or self._shortest_s
        self._due_s = time.monotonic() + self.length_s

    def end(self) -> None:
        """Note that the wanted revision is in effect."""
        if self._due_s is not None:
            self._ended_s = time.monotonic()
        self._due_s = None


def _told(error: Exception) -> tuple[str, Exception | None]:
    """The error's message; and the error itself where the log should have its traceback."""
    return (str(error), None) if isinstance(error, GnnserveError) else (f"{type(error).__name__}: {error}", error)


def _settings(table: RoutingTable) -> dict[str, object]:
    """The settings of a table whose changes are logged."""
    return {
        "revision": table.revision,
        "objective": table.objective,
        "batching": table.batching,
        "mode": table.mode,
        "baseVariant": table.base_variant,
        "weights": table.weights,
    }
