"""Who leads, by a Lease: may it be taken, is it still ours; pure.

The rules are those of client-go's leader election
(https://github.com/kubernetes/client-go/blob/master/tools/leaderelection/leaderelection.go), with two of our own: each
taking of the Lease is a new term, and one that was deleted counts for as long as it would have. Who never saw one
cannot tell whether one was deleted: it leaves a holder the time to make it again, and begins with a term from the
clock, which is later than all before unless there was one a minute.

Clocks of nodes differ, so the times in a Lease are for people: what counts is how long *we* have seen it unchanged, on
our own clock. A holder stops to write some seconds after it last asked for a renewal that was granted; others take over
a few seconds later than that after they saw the renewal. The difference is what a request may be under way.

A holder whose pod is gone writes no more: Kubernetes removes a pod only when its containers have ended. `helm
uninstall` takes the right to the Lease away before the operator is told to end, so that it cannot let go; its pod tells
instead. Only what it sent last may be under way, and is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

_TERMS_BEGIN = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Lease:
    """What matters of a Lease object. A label that somebody puts on it says nothing of its holder."""

    uid: str
    holder: str
    """Empty: nobody, it was released."""
    duration_s: float
    term: int
    """leaseTransitions: grows by one each time that it is taken."""
    renewed: str
    """What the holder wrote when it renewed it last; compared with itself only."""


@dataclass(frozen=True, slots=True)
class Sighting:
    lease: Lease | None
    """None: there never was one."""
    since_s: float
    """When we first saw it as it is."""
    gone_since_s: float | None = None
    """When we first saw that its holder's pod is gone; None: it is there, or we cannot tell."""


def sight(before: Sighting | None, lease: Lease | None, now_s: float) -> Sighting:
    """One that was deleted is remembered, since its holder may not have noticed yet."""
    if before is not None and (lease is None or before.lease == lease):
        return before
    return Sighting(lease, now_s)


def sight_pod(seen: Sighting, now_s: float, *, is_gone: bool) -> Sighting:
    """What was seen of the holder's pod at the same look."""
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
    """None where the holder runs in no pod. Names of pods have neither `_` nor `/`."""
    name, separator, uid = holder.partition("_")
    return PodName(name, uid) if separator and uid and "/" not in holder else None


@dataclass(frozen=True, slots=True)
class Take:
    """It may be taken, for this term."""

    term: int


@dataclass(frozen=True, slots=True)
class StandBy:
    """Another leads, or did so a moment ago."""

    holder: str


@dataclass(frozen=True, slots=True)
class Wait:
    """There is none, which its holder may be about to mend."""


def first_term(now: datetime) -> int:
    """Of a Lease of which nobody knows what was before: minutes, which an int32 holds for four thousand years."""
    return max(int((now - _TERMS_BEGIN).total_seconds() // 60), 1)


def decide_candidacy(
    seen: Sighting, identity: str, now_s: float, *, first: int, absent_s: float, request_s: float
) -> Take | StandBy | Wait:
    """`first`: the term of one that there never was; it is taken when it was missing for `absent_s`. `request_s`: for
    so long a request may be under way after its sender has ended."""
    lease = seen.lease
    if lease is None:
        return Take(first) if now_s >= seen.since_s + absent_s else Wait()
    # Our own name: a container before this one in the same pod, which has ended.
    if lease.holder in {"", identity} or now_s >= seen.since_s + lease.duration_s:
        return Take(lease.term + 1)
    if seen.gone_since_s is not None and now_s >= seen.gone_since_s + request_s:
        return Take(lease.term + 1)
    return StandBy(lease.holder)


def is_still_ours(lease: Lease | None, identity: str, term: int) -> bool:
    """After a renewal that was refused, since the Lease is not as we left it. One that was deleted may be made again:
    who takes it in between is found by that."""
    return lease is None or (lease.holder, lease.term) == (identity, term)
