"""Where the time of a run's answers went: means of the five parts, which add up, as percentiles do not."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from gnnserve_cli.loadgen.record import TimedRows
from gnnserve_client.timing import ClientTimes, Parts, parse_server_timing, parts_of


class MeanParts(msgspec.Struct, frozen=True, rename="camel"):
    """Means over answers, in milliseconds."""

    answers: int
    """How many were timed this way."""
    total_ms: float
    """As the client measures it from the first byte sent to the last one received."""
    sum_ms: float
    """The parts together."""
    client_send_ms: float
    network_ms: float
    """Network and server receive/send."""
    server_transfer_ms: float
    """The part of it that the server tells."""
    wait_ms: float
    compute_ms: float
    stages_ms: dict[str, float]
    """What `compute_ms` is made of."""
    client_receive_ms: float

    def as_parts(self) -> Parts:
        return Parts(
            self.client_send_ms,
            self.network_ms,
            self.wait_ms,
            self.compute_ms,
            self.client_receive_ms,
            self.server_transfer_ms,
            self.stages_ms,
        )


def mean_parts(timed: TimedRows) -> MeanParts | None:
    """None: no answer told its times."""
    rows = zip(timed.totals_ms, timed.sends_ms, timed.receives_ms, timed.told, strict=True)
    read = [(ClientTimes(*measured), parse_server_timing(told.decode("latin-1"))) for *measured, told in rows]
    each = [(client, parts_of(client, server_ms)) for client, server_ms in read if server_ms]
    if not each:
        return None

    def mean(of: Callable[[Parts], float]) -> float:
        return math.fsum(of(parts) for _, parts in each) / len(each)

    names = dict.fromkeys(name for _, parts in each for name in parts.stages_ms)
    return MeanParts(
        answers=len(each),
        total_ms=math.fsum(client.total_ms for client, _ in each) / len(each),
        sum_ms=mean(lambda parts: parts.sum_ms),
        client_send_ms=mean(lambda parts: parts.client_send_ms),
        network_ms=mean(lambda parts: parts.network_ms),
        server_transfer_ms=mean(lambda parts: parts.server_transfer_ms),
        wait_ms=mean(lambda parts: parts.wait_ms),
        compute_ms=mean(lambda parts: parts.compute_ms),
        stages_ms={name: mean(_stage(name)) for name in names},
        client_receive_ms=mean(lambda parts: parts.client_receive_ms),
    )


def _stage(name: str) -> Callable[[Parts], float]:
    return lambda parts: parts.stages_ms.get(name, 0.0)
