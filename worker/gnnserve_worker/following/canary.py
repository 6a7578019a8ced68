"""Follows what routing tables say of a second revision: it is loaded, watched and given up by a loader of its own, so
that nothing about it can hold up the service's own revision.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gnnserve_api.pods.routing import Canary, RoutingMode, RoutingTable
from gnnserve_worker.following.loader import Loader, Server
from gnnserve_worker.following.repository_watch import RepositoryWatch
from gnnserve_worker.inference.served import ServedRevision

_POLL_S = 0.1


class CanaryServer(Server, Protocol):
    """The part of `serving/process/canary.py`'s ServedCanary that is used here."""

    def set_percent(self, percent: int) -> None: ...

    def close(self) -> None: ...


class CanaryOwner(Protocol):
    """The part of `serving/process/served_service.py`'s ServedService that is used here."""

    def open_canary(self, revision: str, percent: int) -> CanaryServer: ...


@dataclass(frozen=True, slots=True)
class _FollowedCanary:
    revision: str
    served: CanaryServer
    loader: Loader
    files: RepositoryWatch
    is_given_up: threading.Event


def canary_table(table: RoutingTable, canary: Canary) -> RoutingTable:
    """The table that the second revision follows: the service's, but for what was measured or decided of another one's
    variants, and what is of the service as a whole. Equal tables say the same."""
    is_decided = table.mode is RoutingMode.METRICS
    return msgspec.structs.replace(
        table,
        revision=canary.revision,
        mode=RoutingMode.ADAPTIVE if is_decided else table.mode,
        base_variant=table.base_variant if table.mode is RoutingMode.STATIC else None,
        costs={},
        ttl_seconds=None,
        reason="",
        issued_at="",
        shadow_permille=0,
        repair=0,
        canary=None,
        makes_index=False,
    )


class CanaryFollower:
    def __init__(
        self,
        owner: CanaryOwner,
        load: Callable[[str], ServedRevision],
        is_first_settled: Callable[[], bool],
        first: Callable[[], str | None],
        service: str | None = None,
    ) -> None:
        """`load` and `service`: as `Loader` has them; the revision follows changes on its own. `is_first_settled`:
        whether the service's own revision answers, or cannot be made to, before which no other one is loaded. `first`:
        the name of the service's own revision that answers now, and not of one that is being switched to; None: none
        does."""
        self._owner = owner
        self._load = load
        self._is_first_settled = is_first_settled
        self._first = first
        self._service = service
        self._declared: RoutingTable | None = None
        self._followed: _FollowedCanary | None = None
        self._changing = threading.Lock()
        self._stopped = threading.Event()

    def declare(self, table: RoutingTable) -> None:
        """Follow this table, from any thread. Returns when a second revision that it does not have is given up; one
        that is to be the first keeps its share until it answers as the first."""
        with self._changing:
            self._declared = table
            self._follow(table)

    def _follow(self, table: RoutingTable) -> None:
        """The lock is held."""
        canary, followed = table.canary, self._followed
        if self._stopped.is_set():
            return
        if followed is not None and (canary is None or canary.revision != followed.revision):
            if self._becomes_first(followed, table):
                # What is said of the service as a whole holds for both while both answer.
                followed.loader.declare(canary_table(table, Canary(followed.revision, 100)))
                threading.Thread(target=self._follow_later, args=(table,), name="canary", daemon=True).start()
                return
            self._give_up(followed, 0.0)
            followed = None
        if canary is None:
            return
        if followed is None:
            followed = self._followed = self._begin(canary)
        followed.served.set_percent(canary.percent)
        followed.loader.declare(canary_table(table, canary))

    def _follow_later(self, table: RoutingTable) -> None:
        """Follow the table once its revision answers as the first, or does not answer as the second any more; not at
        all if another one is declared by then."""
        while not self._stopped.wait(_POLL_S):
            with self._changing:
                if self._declared is not table:
                    return
                if self._followed is None or not self._becomes_first(self._followed, table):
                    self._follow(table)
                    return

    def _becomes_first(self, followed: _FollowedCanary, table: RoutingTable) -> bool:
        """Whether this revision answers as the second one, and not yet as the first, which the table makes it."""
        return followed.revision == table.revision != self._first() and followed.loader.served is not None

    def stop(self, patience_s: float) -> bool:
        """Follow no more. Returns whether its threads ended within `patience_s`; amid a load they do not."""
        self._stopped.set()
        with self._changing:
            return self._followed is None or self._end(self._followed, patience_s)

    def _begin(self, canary: Canary) -> _FollowedCanary:
        served = self._owner.open_canary(canary.revision, canary.percent)
        is_given_up = threading.Event()
        loader = Loader(
            served, lambda name: self._load_second(name, is_given_up), service=self._service, is_second=True
        )
        files = RepositoryWatch(loader)
        loader.start()
        files.start()
        return _FollowedCanary(canary.revision, served, loader, files, is_given_up)

    def _load_second(self, revision: str, is_given_up: threading.Event) -> ServedRevision:
        while not (is_given_up.is_set() or self._is_first_settled()):
            is_given_up.wait(_POLL_S)
        if is_given_up.is_set():
            raise _GivenUpError
        return self._load(revision)

    def _give_up(self, followed: _FollowedCanary, patience_s: float) -> None:
        self._end(followed, patience_s)
        followed.served.close()
        self._followed = None

    def _end(self, followed: _FollowedCanary, patience_s: float) -> bool:
        followed.files.stop()
        followed.loader.stop(0.0)  # before: what a stopped loader fails at is not reported
        followed.is_given_up.set()
        return followed.loader.stop(patience_s)


class _GivenUpError(Exception):
    """The revision is not to be loaded any more."""
