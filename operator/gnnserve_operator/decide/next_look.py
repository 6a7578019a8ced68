"""When is a service to be looked at again, if nothing about it changes?

Most of what a service waits for sends an event, or the fleet wakes it. The rest has to be looked for: workers that
switch, objects that go, and what no watch covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gnnserve_api.reasons import Reason
from gnnserve_api.status import ConditionType
from gnnserve_operator.decide.availability import AWAITED, ready_workers
from gnnserve_operator.decide.generation import GenerationStage
from gnnserve_operator.decide.readiness import Conditions, Situation
from gnnserve_operator.decide.status import Status, condition_in
from gnnserve_operator.observed import Observed, ServiceWait

_SOON_S = 1.0
"""Seconds to the next look while workers switch, or something is about to appear that sends no event."""
_LATER_S = 10.0
"""Seconds to the next look while something is under way that mostly sends events."""
_TAKEN_S = 2.0
"""Seconds to the next look while a name is taken by an object that no watch covers."""
_WORKERS_WORD_S = 15.0
"""Seconds to the next look at what workers alone know, and tell only when they are asked: the state of a Secret, and
how far they have followed the log of changes."""
_FAILED_S = 60.0
"""Seconds to the next look at a Job of embeddings that failed and is made again after some minutes."""
_WORKERS_WORD = frozenset({ConditionType.CREDENTIALS_VALID, ConditionType.UPDATES_FOLLOWED})
"""Conditions about it."""
_LINGERING = timedelta(minutes=1)
"""An object that is not deleted by then is held by something, and is looked at less often."""
_PATIENCE = timedelta(minutes=5)
"""Time for which something is looked for every second; after that, less often."""
_GENERATES = frozenset({Reason.GENERATING, Reason.REVISION_DAMAGED})


def next_look_s(
    situation: Situation, conditions: Conditions, wait: ServiceWait | None, status: Status, now: datetime
) -> float | None:
    """Seconds to the next look; None: what is waited for sends an event, or the next resync is soon enough."""
    delays_s = (
        _next_look_at_work_s(situation, conditions, wait, status, now),
        next_look_at_answers_s(conditions, situation.observed, status, now),
    )
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)


def next_look_at_answers_s(
    conditions: Conditions, observed: Observed, status: Status, now: datetime
) -> float | None:  # fmt: skip
    """Seconds to the next look at whether the endpoint answers; None: it does, or an event tells when it may."""
    available = conditions[ConditionType.AVAILABLE]
    if available.holds or available.reason not in AWAITED or not ready_workers(observed):
        return None
    return _SOON_S if _is_recent(condition_in(status, ConditionType.AVAILABLE), now) else _LATER_S


def _next_look_at_work_s(  # noqa: PLR0911 - a ladder, one rung a reason
    situation: Situation, conditions: Conditions, wait: ServiceWait | None, status: Status, now: datetime
) -> float | None:
    if situation.obstacle is not None and situation.obstacle.reason == Reason.NAME_TAKEN:
        return _TAKEN_S if _is_recent(condition_in(status, ConditionType.STALLED), now) else _LATER_S
    deployment = situation.observed.deployment
    is_gone_awaited = bool(situation.observed.leaving) or (deployment is not None and deployment.deleting)
    if is_gone_awaited or situation.work.stage == GenerationStage.WAITING:
        return _SOON_S if wait is None or now - wait.since < _LINGERING else _LATER_S
    if wait is not None and not conditions[ConditionType.RECONCILING].holds:
        return _LATER_S  # stalled, but the awaited change may still happen
    if (awaits_pod_s := _awaits_pod_s(situation.observed, now)) is not None:
        return awaits_pod_s
    is_followed = bool(_WORKERS_WORD & conditions.keys()) and situation.workers.wanted > 0
    at_rest_s = _WORKERS_WORD_S if is_followed else None
    embeddings = situation.embeddings
    if at_rest_s is None and embeddings is not None and embeddings.holds is False:
        at_rest_s = _FAILED_S
    if not conditions[ConditionType.RECONCILING].holds:
        return at_rest_s
    if conditions[ConditionType.READY].holds or situation.work.stage == GenerationStage.QUEUED:
        return at_rest_s  # the fleet wakes those whose turn has come
    is_answer_awaited = situation.workers.ready or any(pod.can_be_asked for pod in situation.observed.pods)
    ready = condition_in(status, ConditionType.READY)
    is_soon = is_answer_awaited and _is_recent(ready, now) and ready["reason"] not in _GENERATES
    return _SOON_S if is_soon else _LATER_S


def _awaits_pod_s(observed: Observed, now: datetime) -> float | None:
    """Seconds to the next look at the events of a Job that has no pod; None: each has one, or is suspended."""
    awaiting = [
        job.pod_due_since
        for job in (*observed.jobs, *observed.embeddings_jobs)
        if job.awaits_pod(observed.pods, now + timedelta(seconds=_SOON_S))
    ]
    if not awaiting:
        return None
    return _SOON_S if now - datetime.fromisoformat(max(awaiting)) < _LINGERING else _LATER_S


def _is_recent(condition: Mapping[str, Any], now: datetime) -> bool:
    return now - datetime.fromisoformat(condition["lastTransitionTime"]) < _PATIENCE
