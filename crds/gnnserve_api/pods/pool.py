"""The list by which the operator tells the workers of a pool which services they answer for, and at which ports.

It is one JSON document in the ConfigMap that every worker of the pool follows. Routing tables stay in the services' own
ConfigMaps.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gnnserve_api import decoding

SERVICES_KEY = "services.json"
FIRST_PORT = 8100
"""Port of the first service of a pool. The pool's own port, for probes and metrics, is that of other workers."""
MOST_SERVICES = 64
"""Most services of a pool: each takes a thread or two, and a port."""
LAST_PORT = FIRST_PORT + MOST_SERVICES - 1
_GRPC_BEHIND = 100
"""How far the port for gRPC is behind that for HTTP, of every service."""
PROCESS_BYTES = 256 * 2**20
"""Memory that a worker takes before it has a service: interpreter, kernels, libraries."""
SERVICE_BYTES = 32 * 2**20
"""Memory that a service takes beside the files of its revision: queues, connections, buffers of a batch."""


class PoolService(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A service that the workers of a pool answer for."""

    name: str
    port: int
    routing: str
    """Name of the ConfigMap with its routing table."""
    share: int = 1
    """Its weight: what it gets of a worker's time where all services could use it, in relation to the others."""
    tls: bool = False
    """Whether it answers over TLS, with the Secret that is mounted for it."""
    tokens: bool = False
    """Whether requests need a token of the Secret that is mounted for it."""
    write_tokens: bool = False
    """The same of requests that write."""
    log_uid: str = ""
    """uid of its log of changes, in the PostgreSQL of the Secret that is mounted for it; empty: there is none."""
    max_delta_bytes: int = 0
    """Memory that changes may take, where there is a log."""
    grpc: bool = False
    """Whether it answers over gRPC too."""
    tracing: str = ""
    """Base URL of the receiver of its traces, by OTLP over HTTP; empty: it has none."""
    sampled_permille: int = 0
    """Share of the requests without a trace of their client's that is traced, where there is a receiver."""

    @property
    def mounts_secrets(self) -> bool:
        return self.tls or self.tokens or self.write_tokens or bool(self.log_uid)

    @property
    def secrets(self) -> tuple[bool, bool, bool, str]:
        """The fields that differ only where other Secrets are mounted."""
        return self.tls, self.tokens, self.write_tokens, self.log_uid


def grpc_port(port: int) -> int:
    """The port for gRPC of a service of that port for HTTP. 0, which is any free port, gives 0."""
    return port + _GRPC_BEHIND if port else 0


class PoolServices(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    services: tuple[PoolService, ...] = ()
    """In the order in which they joined."""

    def of(self, name: str) -> PoolService | None:
        return next((found for found in self.services if found.name == name), None)


def encode_services(services: PoolServices) -> str:
    return msgspec.json.encode(services, order="sorted").decode()


def decode_services(text: str | bytes) -> PoolServices:
    """Raises msgspec.DecodeError, which names the field, and ValueError where two services share a name or a port."""
    found = decoding.decode(text, PoolServices)
    taken: set[str | int] = set()
    for service in found.services:
        for what, value in (("name", service.name), ("port", service.port)):
            if value in taken and value != 0:
                raise ValueError(f"two services have the {what} {value!r}")
            taken.add(value)
    return found


def free_port(taken: Iterable[int]) -> int | None:
    """The lowest port that no service has; None: all are taken."""
    used = frozenset(taken)
    return next((port for port in range(FIRST_PORT, LAST_PORT + 1) if port not in used), None)


def counted_bytes(revision_bytes: int, max_delta_bytes: int) -> int:
    """Memory that is counted for a service: its revision's files, which requests read at random and so should stay in
    memory, the changes that it may take, and what every service takes."""
    return revision_bytes + max_delta_bytes + SERVICE_BYTES
