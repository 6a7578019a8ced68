"""The events of a chaos run, drawn from a seed: what is killed, paused, deleted or edited, and for how long."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.cluster.harness import components
from tests.cluster.harness.components import Component

from benchmarks.chaos.chaos_load import Cause, Failure

SERVICES = ("alpha", "beta")
LIVING = "gamma"
"""The service whose graph changes. Its spec is not edited."""
WORKERS = 2
GAP_S = (2.0, 8.0)
"""Seconds from the beginning of one event to that of the next."""
DYING_S = 0.1
"""Seconds from the end of a process to when its peer's kernel has told the peer's program of it; on two busy cores."""


class Kind(StrEnum):
    OPERATOR_KILLED = "operator killed"
    OPERATOR_PAUSED = "operator paused"
    OPERATOR_DELETED = "operator's pod deleted"
    WORKER_KILLED = "worker killed"
    WORKER_PAUSED = "worker paused"
    WORKER_DELETED = "worker's pod deleted"
    WORKER_FORCED = "worker's pod deleted without grace"
    API_KILLED = "API server killed"
    API_PAUSED = "API server paused"
    ETCD_KILLED = "etcd killed"
    ETCD_PAUSED = "etcd paused"
    KUBELET_KILLED = "kubelet killed"
    KUBELET_PAUSED = "kubelet paused"
    CONTROLLERS_KILLED = "controller-manager killed"
    SCHEDULER_KILLED = "scheduler killed"
    PROXY_KILLED = "kube-proxy killed"
    PROMETHEUS_KILLED = "Prometheus killed"
    PROMETHEUS_PAUSED = "Prometheus paused"
    DATABASE_KILLED = "PostgreSQL killed"
    DATABASE_PAUSED = "PostgreSQL paused"
    OBJECTIVE_EDITED = "objective edited"
    REVISION_EDITED = "another revision asked for"


# Kind -> how often, and for how many seconds something is away. A pause of the kubelet stays far below the 50 s after
# which Kubernetes calls a node lost, and one of a worker below what a patient client waits for.
TABLE: Mapping[Kind, tuple[float, float, float]] = {
    Kind.OPERATOR_KILLED: (3, 0, 0),
    Kind.OPERATOR_PAUSED: (2, 3, 25),
    Kind.OPERATOR_DELETED: (1, 0, 0),
    Kind.WORKER_KILLED: (4, 0, 0),
    Kind.WORKER_PAUSED: (2, 0.5, 4),
    Kind.WORKER_DELETED: (2, 0, 0),
    Kind.WORKER_FORCED: (2, 0, 0),
    Kind.API_KILLED: (2, 1, 8),
    Kind.API_PAUSED: (2, 2, 12),
    Kind.ETCD_KILLED: (1, 1, 5),
    Kind.ETCD_PAUSED: (1, 1, 8),
    Kind.KUBELET_KILLED: (2, 1, 12),
    Kind.KUBELET_PAUSED: (1, 2, 12),
    Kind.CONTROLLERS_KILLED: (1, 1, 5),
    Kind.SCHEDULER_KILLED: (1, 1, 5),
    Kind.PROXY_KILLED: (1, 1, 5),
    Kind.PROMETHEUS_KILLED: (2, 0, 0),
    Kind.PROMETHEUS_PAUSED: (1, 3, 20),
    Kind.DATABASE_KILLED: (2, 0.1, 4),
    Kind.DATABASE_PAUSED: (1, 0.5, 8),
    Kind.OBJECTIVE_EDITED: (2, 0, 0),
    Kind.REVISION_EDITED: (1, 0, 0),
}
COMPONENTS: Mapping[Kind, Component] = {
    Kind.API_KILLED: components.API_SERVER,
    Kind.API_PAUSED: components.API_SERVER,
    Kind.ETCD_KILLED: components.ETCD,
    Kind.ETCD_PAUSED: components.ETCD,
    Kind.KUBELET_KILLED: components.KUBELET,
    Kind.KUBELET_PAUSED: components.KUBELET,
    Kind.CONTROLLERS_KILLED: components.CONTROLLER_MANAGER,
    Kind.SCHEDULER_KILLED: components.SCHEDULER,
    Kind.PROXY_KILLED: components.PROXY,
}
PAUSES = {kind for kind in Kind if kind.value.endswith("paused")}
EDITS = {Kind.OBJECTIVE_EDITED, Kind.REVISION_EDITED}
OF_DATABASE = {Kind.DATABASE_KILLED, Kind.DATABASE_PAUSED}
OF_WORKERS = {Kind.WORKER_KILLED, Kind.WORKER_PAUSED, Kind.WORKER_DELETED, Kind.WORKER_FORCED}


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it was drawn; what of it is done depends on what is there."""

    after_s: float
    """The event before."""
    kind: Kind
    away_s: float
    service: str
    worker: int
    """Index among the running workers, in the order of their names."""


def draw(seed: int) -> Iterator[Event]:
    """Draws events without end, the same for the same seed."""
    drawn = random.Random(seed)  # noqa: S311 - chaos, not secrets
    kinds, weights = list(TABLE), [often for often, _, _ in TABLE.values()]
    while True:
        after_s = drawn.uniform(*GAP_S)
        (kind,) = drawn.choices(kinds, weights)
        _, shortest_s, longest_s = TABLE[kind]
        service = drawn.choice((*SERVICES, LIVING) if kind in OF_WORKERS else SERVICES)
        yield Event(after_s, kind, drawn.uniform(shortest_s, longest_s), service, drawn.randrange(WORKERS))


@dataclass(frozen=True, slots=True)
class Kill:
    service: str
    pod: str
    pod_ip: str
    how: Kind
    at_s: float
    gone_at_s: float
    """When the process was seen to be gone; both on `time.monotonic`."""


def was_in_flight(failure: Failure, kills: Sequence[Kill]) -> bool:
    """Sent to a pod before its worker was gone, and not answered since."""
    return failure.cause in {Cause.LOST, Cause.SILENT} and any(
        kill.service == failure.service
        and kill.pod_ip == failure.pod_ip
        and failure.sent_at_s <= kill.gone_at_s + DYING_S
        and failure.failed_at_s >= kill.at_s
        for kill in kills
    )
