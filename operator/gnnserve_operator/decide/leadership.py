"""Leader election by a Lease: whether it may be taken, and whether it is still ours; pure.

The rules are those of client-go's leader election
(https://github.com/kubernetes/client-go/blob/master/tools/leaderelection/leaderelection.go), with two additions: each
taking of the Lease is a new term, and a deleted Lease counts for as long as it would have lasted. An operator that
never saw a Lease cannot tell whether one was deleted: it gives a holder the time to create it again, and begins with a
term from the clock, which is later than all before unless there was one a minute.

Clocks of nodes differ, so the times in a Lease are for people: what counts is how long *we* have seen it unchanged, on
our own clock. A holder stops to write some seconds after it last asked for a renewal that was granted; others take over
a few seconds later than that after they saw the renewal. The difference is what a request may be under way.

A holder whose pod is gone writes no more: Kubernetes removes a pod only when its containers have ended. `helm
uninstall` takes the right to the Lease away before the operator is told to end, so that it cannot release it; the
missing pod shows it instead. Only its last request may be under way, and is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

_TERMS_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Lease:
    """The relevant fields of a Lease object. Labels do not count: they tell nothing about its holder."""

    uid: str
    holder: str
    """The holder's identity; empty: it was released."""
    duration_s: float
    term: int
    """leaseTransitions: grows by one each time that it is taken."""
    renewed: str
    """The holder's stamp of its last renewal; only compared for equality."""


@dataclass(frozen=True, slots=True)
class Sighting:
    lease: Lease | None
    """The Lease; None: there never was one."""
    since_s: float
    """When it was first seen in its present form."""
    gone_since_s: float | None = None
    """When its holder's pod was first seen to be gone; None: it exists, or that is not known."""


def sight(before: Sighting | None, lease: Lease | None, now_s: float) -> Sighting:
    """Update what was seen. A deleted Lease is remembered, since its holder may not have noticed yet."""
    if before is not None and (lease is None or before.lease == lease):
        return before
    return Sighting(lease, now_s)


def sight_pod(seen: Sighting, now_s: float, *, is_gone: bool) -> Sighting:
    """Add what was seen of the holder's pod at the same time."""
    if is_gone and seen.gone_since_s is not None:
        return seen
    return replace(seen, gone_since_s=now_s if is_gone else None)


@dataclass(frozen=True, slots=True)
class PodName:
    name: str
    uid: str


def holder_of(pod: PodName) -> str:
    """The same for each container of the pod, so that the next one need not wait for the Lease of the one that died."""
    return f"{pod.name}_{pod.uid}"


def pod_of(holder: str) -> PodName | None:
    """The pod that a holder's identity names; None where the holder runs in no pod. Names of pods have neither `_` nor
    `/`."""
    name, separator, uid = holder.partition("_")
    return PodName(name, uid) if separator and uid and "/" not in holder else None


@dataclass(frozen=True, slots=True)
class Take:
    """The Lease may be taken, for this term."""

    term: int


@dataclass(frozen=True, slots=True)
class StandBy:
    """Another operator leads, or did so a moment ago."""

    holder: str


@dataclass(frozen=True, slots=True)
class Wait:
    """There is no Lease; its holder may be about to create it again."""


def first_term(now: datetime) -> int:
    """Term of a first Lease: minutes since 2020, which an int32 holds for four thousand years. Earlier terms are not
    known."""
    return max(int((now - _TERMS_BEGIN).total_seconds() // 60), 1)


def decide_candidacy(
    seen: Sighting, identity: str, now_s: float, *, first: int, absent_s: float, request_s: float
) -> Take | StandBy | Wait:
    """`first`: the term of one that there never was; it is taken when it was missing for `absent_s`. `request_s`: for
    so long a request may be under way after its sender has ended."""
    lease = seen.lease
    if lease is None:
        return Take(first) if now_s >= seen.since_s + absent_s else Wait()
    # Our own identity: an earlier container of the same pod, which has ended.
    if lease.holder in {"", identity} or now_s >= seen.since_s + lease.duration_s:
        return Take(lease.term + 1)
    if seen.gone_since_s is not None and now_s >= seen.gone_since_s + request_s:
        return Take(lease.term + 1)
    return StandBy(lease.holder)


def is_still_ours(lease: Lease | None, identity: str, term: int) -> bool:
    """Whether we lead, after a renewal was refused because the Lease is not as we left it. A deleted Lease may be made
    again: another holder is found when we do."""
    return lease is None or (lease.holder, lease.term) == (identity, term)
