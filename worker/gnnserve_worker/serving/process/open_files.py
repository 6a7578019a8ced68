"""The number of connections that the process's limit of open files allows: each connection is a file."""

from __future__ import annotations

import logging
import resource

from gnnserve_worker.serving.http.wire.limits import DEFAULT_ROOM, Room

_log = logging.getLogger(__name__)
_BESIDE = 192
"""Files needed for everything else: revisions, Secrets, logs, and the assets of `/docs`."""


def room_of_process(others: int, services: int = 1) -> Room:
    """Room of each service, of which there is one at least. Raise the soft limit of open files as far as it helps; log
    a warning where that is not enough. `others`: connections beside those of HTTP: handshakes, and gRPC's."""
    beside = services * DEFAULT_ROOM.reserved + others + _BESIDE
    wanted = services * DEFAULT_ROOM.connections + beside
    limit = _raise_limit(wanted)
    room = Room(room_within(limit, beside, services))
    if room != DEFAULT_ROOM:
        each = "" if services == 1 else f" for each of {services} services"
        _log.warning(
            "the process may open %d files, so that it keeps %d connections instead of %d%s; raise the hard limit "
            "(ulimit -n) to %d",
            limit, room.connections, DEFAULT_ROOM.connections, each, wanted,
        )  # fmt: skip
    return room


def room_within(limit: int, beside: int, services: int = 1) -> int:
    return max(1, min(DEFAULT_ROOM.connections, (limit - beside) // services))


def _raise_limit(wanted: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if reachable > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return max(soft, reachable)
