"""Where the time of an exchange went: what the server tells of it, and five parts that sum to the client's own measure.

The parts are those of *High-Performance, Scalable, and Accurate GNN Inference Serving System* (section 4.3, figure 6):
client send, network and server receive/send, wait, compute, client receive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TIMING_HEADER = "gnnserve-timing"
"""A request with the value `all` is told `receive` and `send` too."""
ALL_TIMES = "all"
_WAIT = "queue"
_TRANSFER = frozenset(("receive", "send"))


@dataclass(frozen=True, slots=True)
class ClientTimes:
    """Times that a client measures of an exchange, in milliseconds."""

    total_ms: float
    """From the first byte sent to the last one received."""
    send_ms: float
    """Until the request was handed over to the operating system."""
    receive_ms: float
    """From the answer's first byte to its last one."""
    connect_ms: float = 0.0
    """Connecting before, which is no part of the total."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The five parts, in milliseconds."""

    client_send_ms: float
    network_ms: float
    """Network and server receive/send: what is left of the total. The operating systems' queues are in it too."""
    wait_ms: float
    """From the request being read to the finished result, less computing."""
    compute_ms: float
    """Sampling, gathering, the network, and what an overlay takes."""
    client_receive_ms: float
    server_transfer_ms: float = 0.0
    """The part of `network_ms` that the server tells: reading the request, encoding the answer and handing it over."""
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    """What `compute_ms` is made of, by stage."""

    @property
    def sum_ms(self) -> float:
        return self.client_send_ms + self.network_ms + self.wait_ms + self.compute_ms + self.client_receive_ms


def parts_of(client: ClientTimes, server_ms: Mapping[str, float]) -> Parts:
    """The five parts. `server_ms`: durations by stage, as `Server-Timing` has them.

    Their sum is the client's total, or more where the server tells of more time than there was. A client that is
    interrupted behind its last byte measures sending for too long: what the server was busy with meanwhile is no part
    of it.
    """
    transfer_ms = sum(duration for stage, duration in server_ms.items() if stage in _TRANSFER)
    wait_ms = server_ms.get(_WAIT, 0.0)
    stages_ms = {stage: ms for stage, ms in server_ms.items() if stage not in _TRANSFER and stage != _WAIT}
    compute_ms = sum(stages_ms.values())
    rest_ms = client.total_ms - client.receive_ms - wait_ms - compute_ms
    send_ms = max(0.0, min(client.send_ms, rest_ms - transfer_ms))
    network_ms = max(transfer_ms, rest_ms - send_ms)
    return Parts(
        send_ms, network_ms, wait_ms, compute_ms, client.receive_ms, transfer_ms, stages_ms
    )  # fmt: skip


def parse_server_timing(header: str) -> dict[str, float]:
    """`queue;dur=0.1, sample;dur=0.2` → milliseconds by stage; entries without a duration are left out."""
    durations: dict[str, float] = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                try:
                    durations[name] = float(value)
                except ValueError:
                    continue
    return durations
