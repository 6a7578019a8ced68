"""Brings what the routing table declares into effect: loads a revision beside the one that answers, then switches.

A thread of its own, fed with tables: the newest counts, one that was overtaken is never loaded. What cannot be loaded
leaves the present revision where it is, is said in `/v1/route` and tried again; so is a table that names variants which
its revision lacks, but not tried again. Where tables come from is `routing_watch.py`, what a switch does to requests
the engine.

A revision whose files changed (`repository_watch.py` looks) is loaded again: beside itself if its answers are right all
the same; where they may not be, nothing is answered until that is done, or its files are found to be as they were.
Meanwhile it is routed as tables say. Whoever keeps changing files gets loads further and further apart.

A revision that got little of a GPU's memory, because the one before still had it, is loaded again beside itself as soon
as that one's is free: once, and whatever goes wrong then, it answers on as it does.
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
"""A file system that is just coming back may show half of a folder."""
POLITE = 10
"""Nice value of loading beside a revision that answers: checksums of gigabytes take every processor otherwise."""


class Server(Protocol):
    """`serving/server.py`'s Worker, as far as it concerns this."""

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None: ...

    def report(self, problem: str | None, damage: Damage | None = None) -> None: ...

    def withdraw(self, revision: ServedRevision, problem: str) -> None: ...

    def warn(self, revision: ServedRevision, problem: str) -> None: ...


class Loader:
    def __init__(
        self, server: Server, load: Callable[[str], ServedRevision], retry_s: tuple[float, float] | None = None
    ) -> None:
        """`load` returns a verified revision by its name; it is warmed up here. `retry_s`: None: `RETRY_S`."""
        self._server = server
        self._load = load
        self._delay = _Delay(*(RETRY_S if retry_s is None else retry_s))
        self._changed = threading.Condition()
        """Guards the four below."""
        self._declared: RoutingTable | None = None
        self._doubted: ServedRevision | None = None
        """To be loaded again."""
        self._cramped: ServedRevision | None = None
        """It could have more memory."""
        self._stopped = False
        self._answering = threading.Lock()
        """Held while it is changed what answers, or said why nothing does: what was withdrawn must not come back by a
        switch that was on its way. Guards `_withdrawn`, and who writes `_served` has it."""
        self._withdrawn: ServedRevision | None = None
        """What is served, until the thread has taken note that it answers no more."""
        self._may_grow = False
        """What is served has not been loaded again for its memory's sake. Guarded like `_served`."""
        self._served: ServedRevision | None = None
        self._in_effect: RoutingTable | None = None
        """Or the last that was, where nothing answers."""
        self._refused: tuple[RoutingTable, str] | None = None
        """A table that its revision cannot follow, and why: no other time would change that, so the last good one
        holds."""
        self._reinstatable: ServedRevision | None = None
        """Withdrawn, and perhaps as it was: warm, and verified faster than loaded."""
        self._renewing = False
        """What is served has to be loaded again, though its table is in effect."""
        self._enlarging = False
        """What is served could have more memory, as was said since the last round."""
        self._load_s = 0.0
        self._found_damaged = 0
        """Attempts in a row that found the declared revision damaged."""
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
        """From any thread: it answers rightly, but what is in the repository now is something else, or nothing."""
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
        """From any thread: it would have more of its device's memory, were it loaded again. Heard once."""
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
        """Whether the thread has ended by then; in the middle of loading it has not."""
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
                # What was wrong with the last one is history; what is wrong with the same one stays until it works.
                self._report(f"revision {declared.revision} is being loaded" if self._served is None else None)
            tried = declared
            try:
                self._bring_into_effect(declared)
            except TableError as error:
                is_last_good = self._refused is not None and self._refused[0] == declared
                self._refused = (declared, str(error))
                _log.error("%s", error, extra={"revision": declared.revision})
                self._report(str(error))
                if is_last_good:  # of a revision that was made again, with other variants
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
        """The next table to bring into effect: another one, or the same when its time has come. None: stop."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stopped or self._declared != tried or self._doubted is not None or self._cramped is not None
                ),
                self._delay.left_s,
            )
            return None if self._stopped else self._declared

    def _take_doubts(self) -> None:
        """Whether what is served has to be loaded again, or could be with profit."""
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
        """As far as it is time: what answers is told at once what concerns it."""
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
                # What is wanted of the service holds for this revision too, however long the next one takes.
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
        """And how long it took. Raises TableError where it cannot be routed so."""
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
        """Where only the times of its files were set: by a person, a backup, whoever."""
        self._reinstatable = None
        if revision.files is None or self._in_effect is None:
            return
        if (wrong := revision.files.verify_all()) is not None:
            _log.error("%s", wrong, extra={"revision": revision.manifest.revision})
            return
        # Verified first: what is copied from now on is right, or the watch will say so.
        revision.forget_copies()
        name = revision.manifest.revision
        _log.info("revision %s answers again: its files are as they were", name, extra={"revision": name})
        self._switch(revision, self._in_effect, self._load_s)

    def _enlarge(
        self, served: ServedRevision, declared: RoutingTable, table: RoutingTable, problem: str | None
    ) -> None:
        """Load it once more beside itself, and go over to that if it is the better for it."""
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
            if self._doubted is not None:  # and perhaps the other one's files with it
                return
        if not self._is_overtaken(declared):
            self._switch(loaded, table, load_s, may_grow=False)
            self._report(problem)

    def _is_overtaken(self, table: RoutingTable) -> bool:
        with self._changed:
            return self._stopped or (self._declared is not None and self._declared.revision != table.revision)

    def _switch(self, revision: ServedRevision, table: RoutingTable, load_s: float, *, may_grow: bool = True) -> bool:
        """Whether it is in effect. It is not where the revision was withdrawn meanwhile: it will be loaded again."""
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
            be_polite()
            try:
                loaded.append(self._load(revision))
            except BaseException as error:  # noqa: BLE001  (raised again, where it was asked for)
                failed.append(error)

        thread = threading.Thread(target=load, name="load-revision", daemon=True)
        thread.start()
        thread.join()
        if failed:
            # Out of the list, which the error's own traceback keeps: what the load had taken of a GPU is to be free
            # again by the next attempt, not when somebody looks for cycles.
            raise failed.pop()
        return loaded[0]

    def _report(self, problem: str | None, damage: Damage | None = None) -> None:
        with self._answering:
            if self._withdrawn is None:  # otherwise that is what has to be said
                self._server.report(problem, damage)

    def _report_failure(self, table: RoutingTable, error: Exception) -> None:
        in_words, of_ours = _told(error)
        problem = f"revision {table.revision} cannot be loaded: {in_words}"
        wait_s = self._delay.length_s
        _log.error("%s; trying again in %g s", problem, wait_s, exc_info=of_ours, extra={"revision": table.revision})
        is_certain = self._found_damaged >= _LOOKS_AT_DAMAGE
        self._report(problem, Damage(table.revision, table.repair) if is_certain else None)


def be_polite() -> None:
    """This thread alone, and for good."""
    with suppress(OSError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(POLITE, os.getpriority(os.PRIO_PROCESS, thread)))


class _Delay:
    """Between attempts to load."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self.length_s = 0.0
        self._due_s: float | None = None
        """None: nothing is to be loaded."""
        self._ended_s = -math.inf

    @property
    def left_s(self) -> float | None:
        """None: for ever."""
        return None if self._due_s is None else max(0.0, self._due_s - time.monotonic())

    @property
    def is_running(self) -> bool:
        return bool(self.left_s)

    def forget(self) -> None:
        """Another revision is wanted."""
        self.length_s = 0.0
        self._due_s = None

    def ensure(self) -> None:
        """To be loaded, at once where nothing else is said."""
        if self._due_s is None:
            self._due_s = time.monotonic()

    def begin_again(self) -> None:
        """At once what was well for a while, later what was loaded only just now: else it would be, over and over."""
        now_s = time.monotonic()
        if self._due_s is not None:
            self._due_s = now_s
        elif now_s - self._ended_s < self._longest_s:
            self.extend()
        else:
            self.length_s, self._due_s = 0.0, now_s

    def extend(self) -> None:
        """It failed."""
        self.length_s = min(self._longest_s, 2 * self.length_s) or self._shortest_s
        self._due_s = time.monotonic() + self.length_s

    def end(self) -> None:
        """What is wanted is in effect."""
        if self._due_s is not None:
            self._ended_s = time.monotonic()
        self._due_s = None


def _told(error: Exception) -> tuple[str, Exception | None]:
    """In words; and the error itself, where the log should say where in our code it came from."""
    return (str(error), None) if isinstance(error, GnnserveError) else (f"{type(error).__name__}: {error}", error)


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
