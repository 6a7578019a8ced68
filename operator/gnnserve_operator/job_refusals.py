"""Events of Jobs that have no pod: the only place where Kubernetes tells that the API server refuses it.

They are listed for one Job at a time, and only while it has been without a pod, or with failed ones alone, for longer
than its controller takes. An operator without the right to list events says less, and works as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from gnnserve_operator.clock import Clock
from gnnserve_operator.cluster import Cluster
from gnnserve_operator.errors import RefusedError
from gnnserve_operator.kinds import EVENT, JOB, Raw
from gnnserve_operator.observed import Observed, ObservedJob

_REFUSED, _CREATED = "FailedCreate", "SuccessfulCreate"
"""Reasons of the Job controller's events about pods."""
_SECONDS = len("2026-01-01T00:00:00")
"""Length of a time in RFC 3339 without fractions, which only some kinds of times have."""


class JobRefusals:
    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def add(self, namespace: str, observed: Observed) -> Observed:
        """The observation, with what the API server says of pods that it refuses. Raises RetryLaterError."""
        now = self._clock.utc()
        awaiting = [
            job for job in (*observed.jobs, *observed.embeddings_jobs) if job.awaits_pod(observed.pods, now)
        ]  # fmt: skip
        told = await asyncio.gather(*(self._refusal_of(namespace, job) for job in awaiting))
        refusals = {job.name: refusal for job, refusal in zip(awaiting, told, strict=True) if refusal}
        if not refusals:
            return observed
        jobs, embeddings_jobs = (
            tuple(replace(job, refusal=refusals.get(job.name, "")) for job in found)
            for found in (observed.jobs, observed.embeddings_jobs)
        )
        return replace(observed, jobs=jobs, embeddings_jobs=embeddings_jobs)

    async def _refusal_of(self, namespace: str, job: ObservedJob) -> str:
        selector = f"involvedObject.kind={JOB.name},involvedObject.name={job.name}"
        try:
            events = await self._cluster.list_objects(EVENT, namespace, field_selector=selector)
        except RefusedError:
            return ""
        return find_refusal(events, job.pod_due_since)


def find_refusal(events: Iterable[Raw], since: str) -> str:
    """Message of the last refusal, if no pod was created after it; else empty. `since`: when the Job was started
    (RFC 3339): earlier events are of another Job of its name, or of before it was suspended."""
    told = [(_time_of(event), event.get("reason") == _CREATED, str(event.get("message", ""))) for event in events
            if event.get("reason") in {_REFUSED, _CREATED} and _time_of(event) >= since[:_SECONDS]]  # fmt: skip
    _, is_created, message = max(told, default=("", True, ""))
    return "" if is_created else message


def _time_of(event: Raw) -> str:
    """When it happened last, to the second: UTC as text, which sorts."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(time)[:_SECONDS] for time in times if time), "")
