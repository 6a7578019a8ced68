"""Leader election: one operator of several leads by a Lease of coordination.k8s.io; the others stand by.

The holder renews the Lease every few seconds. Every write checks `remaining_s` right before it is sent, which is spent
once no renewal has been granted for `renew_deadline_seconds`, whatever the process's state: it may have been stopped
for an hour between two of its lines. A leader that lost its Lease ends, so that nothing it remembers outlives its term.
`decide/leadership.py` decides what follows from a Lease's contents.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import REQUEST_LIMIT_S, Cluster
from gnnserve_operator.decide.leadership import (
    Lease,
    PodName,
    Sighting,
    StandBy,
    Take,
    Wait,
    decide_candidacy,
    first_term,
    holder_of,
    is_still_ours,
    pod_of,
    sight,
    sight_pod,
)
from gnnserve_operator.errors import ConflictError, GoneError, LostLeadershipError, OperatorError
from gnnserve_operator.kinds import LEASE, POD, Manifest, ObjectRef
from gnnserve_operator.settings import LeaderElection

RELEASED_S = 1
"""The duration of a released Lease, which must be positive."""
RELEASE_LIMIT_S = 3.0
"""Limit for releasing the Lease: an API server that is away must not delay the end of the process."""

logger = logging.getLogger(__name__)


def identity_of(environment: Mapping[str, str] = os.environ) -> str:
    """Our identity in the Lease: the pod, or outside of a cluster this process."""
    name, uid = environment.get("POD_ID"), environment.get("POD_UID")
    if name and uid:
        return holder_of(PodName(name, uid))
    return f"{name or socket.gethostname()}/{uuid.uuid4()}"


def fence_of(settings: LeaderElection) -> str:
    """The chart's ValidatingAdmissionPolicy, if it is wanted (templates/fencing.yaml)."""
    return f"{settings.namespace}.{settings.lease_name}"


@dataclass(frozen=True, slots=True)
class _HeldLease:
    body: Manifest
    """The Lease after our last write."""
    term: int
    until_s: float
    """Time from which no write is sent."""


class Elector:
    """Takes, renews and releases the Lease. `cluster` must not be fenced by this elector; `clock` must count the time
    in which the machine was suspended."""

    def __init__(
        self, cluster: Cluster, settings: LeaderElection, identity: str, clock: Clock,
        jitter: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._settings = settings
        self._identity = identity
        self._clock = clock
        self._jitter = jitter
        self._ref = ObjectRef(LEASE.api_version, LEASE.name, settings.namespace, settings.lease_name)
        # The first renewal, one that hangs, a pause, and another that hangs end at the deadline.
        self._attempt_s = (settings.renew_deadline_seconds - settings.retry_seconds) / 3
        self._absent_s = 2 * settings.retry_seconds
        self._request_s = settings.lease_seconds - settings.renew_deadline_seconds
        self._seen: Sighting | None = None
        self._held: _HeldLease | None = None
        self._lost: str | None = None
        self._unanswered_s: float | None = None
        self._said = ""
        self.is_standing_by = False
        """Whether another operator was seen to lead; False while that is not known."""

    @property
    def is_leader(self) -> bool:
        return self._lost is None and self._held is not None and self._clock.now() < self._held.until_s

    @property
    def term(self) -> int:
        """The present term; 0: none."""
        return 0 if self._held is None else self._held.term

    @property
    def fence(self) -> str:
        return fence_of(self._settings)

    def note_unanswered(self) -> None:
        self._unanswered_s = self._clock.now()

    def remaining_s(self) -> float:
        """Seconds that a write may take from now. Once it raises LostLeadershipError, it always does."""
        if self._held is None or self._lost is not None:
            raise LostLeadershipError(self._lost or f"{self._ref} is not held")
        remaining_s = self._held.until_s - self._clock.now()
        if remaining_s <= 0:
            self._lose(f"{self._ref} could not be renewed for {self._settings.renew_deadline_seconds:g} s")
        return remaining_s

    async def lead(self, stop: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
        """Stand by, lead while `work` runs, and release the Lease when it is done. If the Lease is lost, `stop` is set
        and LostLeadershipError is raised."""
        if not await self._acquire(stop):
            return
        holding = asyncio.create_task(self._hold(), name="lease")
        holding.add_done_callback(lambda _: stop.set())
        try:
            await work()
        finally:
            holding.cancel()
            (ended,) = await asyncio.gather(holding, return_exceptions=True)
            await self._release()
        if isinstance(ended, Exception):
            raise ended
        if self._lost is not None:
            raise LostLeadershipError(self._lost)

    async def _acquire(self, stop: asyncio.Event) -> bool:
        while not stop.is_set():
            try:
                decided = await self._try_to_take()
                self.is_standing_by = isinstance(decided, StandBy)
                match decided:
                    case Take():
                        return True
                    case StandBy(holder):
                        self._say(logging.INFO, f"standing by: {holder} leads by {self._ref}")
                    case Wait():
                        self._say(logging.INFO, f"waiting: {self._ref} is missing, and its holder may make it again")
            except ConflictError:
                pass  # another operator took it first
            except (OperatorError, TimeoutError) as error:
                self.is_standing_by = False
                self._say(logging.WARNING, f"waiting for {self._ref}: {_words(error)}")
            await self._clock.wait(stop, self._settings.retry_seconds * (1 + self._jitter() / 5))
        return False

    async def _try_to_take(self) -> Take | StandBy | Wait:
        """Decide, and take the Lease if that is the decision."""
        body = await self._get()
        self._seen = sight(self._seen, None if body is None else lease_of(body), self._clock.now())
        decided = self._decide(self._seen)
        if isinstance(decided, StandBy):
            self._seen = sight_pod(self._seen, self._clock.now(), is_gone=await self._is_gone(decided.holder))
            decided = self._decide(self._seen)
        if not isinstance(decided, Take):
            return decided
        sent_s = self._clock.now()
        spec = self._spec(self._identity, self._settings.lease_seconds, decided.term, self._stamp())
        self._holds(await self._put(body, spec), decided.term, sent_s)
        logger.info("leading by %s, term %d, as %s", self._ref, decided.term, self._identity)
        return decided

    def _decide(self, seen: Sighting) -> Take | StandBy | Wait:
        return decide_candidacy(
            seen, self._identity, self._clock.now(),
            first=first_term(self._clock.utc()), absent_s=self._absent_s, request_s=self._request_s,
        )  # fmt: skip

    async def _is_gone(self, holder: str) -> bool:
        """Whether the holder's pod is known to be gone; False where the holder is not a pod, or that is not known."""
        pod = pod_of(holder)
        if pod is None:
            return False
        try:
            async with asyncio.timeout(self._attempt_s):
                found = await self._cluster.get(ObjectRef(POD.api_version, POD.name, self._ref.namespace, pod.name))
        except (OperatorError, TimeoutError) as error:
            logger.debug("cannot tell whether pod %s is gone: %s", pod.name, _words(error))
            return False
        return found is None or found["metadata"]["uid"] != pod.uid

    async def _hold(self) -> None:
        never = asyncio.Event()
        pause_s = self._settings.retry_seconds
        while self._held is not None:
            await self._clock.wait(never, min(pause_s, self.remaining_s()))
            try:
                async with asyncio.timeout(self.remaining_s()):
                    await self._renew(self._held)
                pause_s = self._settings.retry_seconds
            except LostLeadershipError:
                raise
            except (OperatorError, TimeoutError) as error:
                pause_s = min(self._settings.retry_seconds, self._attempt_s)
                self._say(logging.WARNING, f"{self._ref} is not renewed: {_words(error)}")

    async def _renew(self, held: _HeldLease) -> None:
        sent_s = self._clock.now()
        spec = self._spec(self._identity, self._settings.lease_seconds, held.term, held.body["spec"]["acquireTime"])
        self._holds(await self._put_again(held, spec), held.term, sent_s)
        self._said = ""

    async def _release(self) -> None:
        """Release the Lease, so that another operator may lead at once; not if a write of ours may be under way."""
        held, self._held = self._held, None
        if held is None or self._lost is not None:
            return
        if self._unanswered_s is not None and self._clock.now() < self._unanswered_s + REQUEST_LIMIT_S:
            logger.warning("%s is not released, since a write was not answered: another waits until it ends", self._ref)
            return
        spec = self._spec("", RELEASED_S, held.term, held.body["spec"]["acquireTime"])
        try:
            async with asyncio.timeout(RELEASE_LIMIT_S):
                await self._put_again(held, spec)
            logger.info("released %s", self._ref)
        except (OperatorError, TimeoutError) as error:
            logger.warning("%s is not released, so that another waits until it ends: %s", self._ref, _words(error))

    async def _put_again(self, held: _HeldLease, spec: Manifest) -> Manifest:
        try:
            return await self._put(held.body, spec)
        except (ConflictError, GoneError):
            # The cause may be our own renewal without an answer, a label that was added, or another leader.
            body = await self._get()
            lease = None if body is None else lease_of(body)
            if not is_still_ours(lease, self._identity, held.term):
                self._lose(f"{self._ref} is {_held_by(lease)}")
            return await self._put(body, spec)

    async def _get(self) -> Manifest | None:
        async with asyncio.timeout(self._attempt_s):
            return await self._cluster.get(self._ref)

    async def _put(self, body: Manifest | None, spec: Manifest) -> Manifest:
        """Write the Lease on top of what was read, or create it. Additions of others stay."""
        async with asyncio.timeout(self._attempt_s):
            if body is not None:
                return await self._cluster.update({**body, "spec": {**(body.get("spec") or {}), **spec}})
            identity = {"name": self._ref.name, "namespace": self._ref.namespace}
            manifest = {"apiVersion": LEASE.api_version, "kind": LEASE.name, "metadata": identity, "spec": spec}
            return await self._cluster.create(manifest)

    def _holds(self, body: Manifest, term: int, sent_s: float) -> None:
        """Note a granted renewal. The term counts from before it was sent: others count from when they saw it, which is
        later."""
        self._held = _HeldLease(body, term, sent_s + self._settings.renew_deadline_seconds)

    def _spec(self, holder: str, duration_s: int, term: int, acquired: str) -> Manifest:
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration_s,
            "leaseTransitions": term,
            "acquireTime": acquired,
            "renewTime": self._stamp(),
        }

    def _stamp(self) -> str:
        return self._clock.utc().isoformat(timespec="microseconds").replace("+00:00", "Z")

    def _lose(self, why: str) -> None:
        self._lost = why
        raise LostLeadershipError(why)

    def _say(self, level: int, message: str) -> None:
        """Log a message, unless it was the last one logged here."""
        if message != self._said:
            logger.log(level, "%s", message)
            self._said = message


def lease_of(body: Manifest) -> Lease:
    """Every field of a Lease's spec may be missing."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    return Lease(
        uid=metadata["uid"],
        holder=spec.get("holderIdentity") or "",
        duration_s=float(spec.get("leaseDurationSeconds") or 0),
        term=int(spec.get("leaseTransitions") or 0),
        renewed=str(spec.get("renewTime") or ""),
    )


def _held_by(lease: Lease | None) -> str:
    if lease is None:
        return "gone"
    return f"held by {lease.holder}, term {lease.term}" if lease.holder else "taken from us and held by no operator"


def _words(error: Exception) -> str:
    return str(error) or "the API server does not answer in time"
