"""How far a server has applied the log of changes, asked again and again: when a batch arrived."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Sequence

import msgspec

from benchmarks.changes.updates_connection import Connection
from gnnserve_api.http.changes import ChangesPage

CHANGES_PATH = "/v1/changes"
_BEYOND_ALL = 2**63 - 1
"""No log has this offset, so that a page has no records."""
_POLL_S, _SETTLES_S, _TIMEOUT_S = 0.001, 0.1, 20.0


def settled_end(port: int) -> int:
    """The log's last offset, once the server has applied it and no more comes. SystemExit: that takes too long."""
    connection, give_up_at_s, before = Connection(port), time.perf_counter() + _TIMEOUT_S, -1
    while (page := _page(connection)).applied != page.last or page.last != before:
        if time.perf_counter() > give_up_at_s:
            raise SystemExit(f"the log ends at {page.last:,}, and the server stays at {page.applied:,}")
        before = page.last
        time.sleep(_SETTLES_S)
    connection.close()
    return before


def _page(connection: Connection) -> ChangesPage:
    reply = connection.get(f"{CHANGES_PATH}?after={_BEYOND_ALL}")
    if reply.status != 200:
        raise SystemExit(f"GET {CHANGES_PATH} is answered {reply.status}: {reply.body[:300].decode()}")
    return msgspec.json.decode(reply.body, type=ChangesPage)


class AppliedWatch:
    """Asks a server again and again which offset it has applied, a thousand times a second at most."""

    def __init__(self, port: int) -> None:
        self._connection = Connection(port)
        self._offsets, self._times_s = [0], [time.perf_counter()]
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="applied watch", daemon=True)

    def __enter__(self) -> AppliedWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()
        self._connection.close()

    def wait_for(self, offset: int) -> None:
        give_up_at_s = time.perf_counter() + _TIMEOUT_S
        while self._offsets[-1] < offset:
            if time.perf_counter() > give_up_at_s:
                raise SystemExit(f"the other server is at {self._offsets[-1]:,}, and {offset:,} never arrives")
            time.sleep(_POLL_S)

    def arrived_s(self, offset: int) -> float:
        return arrival_of(offset, self._offsets, self._times_s)

    def _watch(self) -> None:
        while not self._left.wait(_POLL_S):
            applied = _page(self._connection).applied
            if applied > self._offsets[-1]:
                self._times_s.append(time.perf_counter())
                self._offsets.append(applied)


def arrival_of(offset: int, offsets: Sequence[int], times_s: Sequence[float]) -> float:
    """When that offset was first seen to be applied. Both ascend."""
    return times_s[bisect.bisect_left(offsets, offset)]
