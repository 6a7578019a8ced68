"""Decides which services the workers of a pool answer for, at which ports, and whether a revision fits.

What was decided once stays: a service keeps its port, and a revision that workers were told to answer from is never
taken from them for another service. So one that does not fit is refused where it comes, and no other is concerned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from gnnserve_api.pods.pool import PROCESS_BYTES, PoolService, PoolServices, counted_bytes, free_port
from gnnserve_api.quantity import parse_quantity
from gnnserve_api.spec.pool import POOL_KIND, GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.verdict import Problem
from gnnserve_operator.decide.service_routing import ServiceRouting
from gnnserve_operator.desired.pool import entry_of, max_delta_of
from gnnserve_operator.observed import ObservedMember, ObservedPool, ObservedRouting, ObservedState

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class PoolMembership:
    services: PoolServices
    refused: tuple[str, ...] = ()
    """Names of services for which there is no port."""
    waiting: tuple[str, ...] = ()
    """Names of services whose Secrets the pods do not mount yet: they join, or change, once every pod does."""


def decide_membership(
    members: Sequence[ObservedMember], present: PoolServices, *, is_rolled_out: bool
) -> PoolMembership:  # fmt: skip
    """`present`: the list as workers have it. `is_rolled_out`: every pod mounts the Secrets of all members."""
    wanted = {member.name: member for member in members if member.is_served}
    staying = [service.name for service in present.services if service.name in wanted]
    ages = sorted((member.created_at, name) for name, member in wanted.items() if name not in staying)
    entries: list[PoolService] = []
    refused, waiting = [], []
    # Also those of services that leave: workers may still listen there.
    taken = {service.port for service in present.services}
    for name in (*staying, *(name for _, name in ages)):
        member, before = wanted[name], present.of(name)
        port = free_port(taken) if before is None else before.port
        if port is None or member.spec is None:
            refused.append(name)
            continue
        entry = entry_of(name, member.uid, member.spec, port)
        secrets_before = before.secrets if before is not None else _NO_SECRETS
        if entry.secrets != secrets_before and entry.mounts_secrets and not is_rolled_out:
            waiting.append(name)
            if before is None:
                continue
            entry = msgspec.structs.replace(before, share=entry.share)
        taken.add(port)
        entries.append(entry)
    return PoolMembership(PoolServices(tuple(entries)), tuple(refused), tuple(waiting))


_NO_SECRETS = PoolService("", 0, "").secrets


def limit_bytes(spec: GNNWorkerPoolSpec) -> int | None:
    """Memory that a worker may use; None: no limit is known."""
    limit = spec.resources.limits.get("memory")
    found = None if limit is None else parse_quantity(limit)
    return None if found is None else int(found)


def taken_bytes(services: Iterable[int]) -> int:
    """Memory that is counted for the process and its services. `services`: what is counted for each."""
    return PROCESS_BYTES + sum(services)


def decide_room(pool: ObservedPool, spec: GNNServiceSpec, revision: str, revision_bytes: int) -> Problem | None:
    """Why the workers have no room for a revision; None: they have. While it is loaded, the service's present revision
    is there as well: its files are mapped, so that the system lets them go for what is read."""
    limit = None if pool.spec is None else limit_bytes(pool.spec)
    if limit is None:
        return None
    wanted, left = counted_bytes(revision_bytes, max_delta_of(spec)), limit - taken_bytes([pool.taken_bytes])
    if wanted <= left:
        return None
    return Problem(
        Reason.POOL_FULL,
        f"Revision {revision} takes {mebibytes(wanted)} of memory, and the workers of {POOL_KIND} {pool.name} have "
        f"{mebibytes(max(left, 0))} left of {mebibytes(limit)}: the other services take {mebibytes(pool.taken_bytes)}, "
        f"the process {mebibytes(PROCESS_BYTES)}. Raise resources.limits.memory of the pool, take a service out of it, "
        "or have smaller variants generated; nothing is loaded before.",
        needs_person=True,
    )


def within_room(
    routing: ServiceRouting, pool: ObservedPool, spec: GNNServiceSpec, observed: ObservedState
) -> ServiceRouting:  # fmt: skip
    """The routing, but that workers are not told of another revision for which they have no room."""
    kept = observed.routing or ObservedRouting()
    result, before = routing.result, kept.table
    if result is None or (before is not None and before.revision == result.revision):
        return routing
    problem = decide_room(pool, spec, result.revision, result.revision_bytes)
    if problem is None:
        return routing
    return replace(routing, table=before, result=kept.result, problem=routing.problem or problem)


def decide_pool_missing(pool: ObservedPool) -> Problem | None:
    """Why the service has no workers; None: its pool is there."""
    if pool.problem:
        return Problem(
            Reason.WORKER_POOL_MISSING,
            f"{POOL_KIND} {pool.name} (spec.worker.poolRef) cannot be used. {pool.problem}",
            needs_person=True,
        )
    if pool.spec is None:
        return Problem(
            Reason.WORKER_POOL_MISSING,
            f"{POOL_KIND} {pool.name} (spec.worker.poolRef) does not exist in this namespace: create it. Nothing is "
            "generated and nothing answers before.",
            needs_person=True,
        )
    return None


def mebibytes(count: int) -> str:
    return f"{-(-count // _MIB):,} MiB"
