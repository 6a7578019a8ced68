"""Does what is waited for still come?

Most waits have an end of their own: a Job has a deadline, a rollout a progress deadline, a queue moves on. Others have
none: a finalizer that nobody takes away, an endpoint that a network policy closes, a pod that crashes for ever, a
worker that never takes on a table. Where the same words were said for so long, the service is Stalled, with these
words. As soon as they change, it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gnnserve_api.status import ConditionType
from gnnserve_operator.decide.generation import Generation, Stage
from gnnserve_operator.decide.readiness import Conditions
from gnnserve_operator.decide.status import condition_in
from gnnserve_operator.observed import Observed, Wait
from gnnserve_routing.verdict import Verdict

PATIENCE = timedelta(minutes=15)
"""Longest wait in unchanged words before the service is stalled; the progress deadline of a Deployment is as long."""
_UNCHANGED = "Nothing of this has changed for 15 minutes."


def decide_wait(
    conditions: Conditions, generation: Generation, observed: Observed, *, is_in_turn: bool, now: datetime
) -> Wait | None:
    """What is waited for, and since when; None: nothing, or something with an end of its own. `is_in_turn`: the workers
    wait for those of other services."""
    going_on = conditions[ConditionType.RECONCILING]
    computes = generation.stage is Stage.RUNNING and any(
        pod.running and pod.job == generation.job for pod in observed.pods
    )
    if not going_on.holds or is_in_turn or computes or generation.stage is Stage.QUEUED:
        return None
    words = f"{going_on.reason}: {going_on.message}"
    return observed.wait if observed.wait is not None and observed.wait.words == words else Wait(words, now)


def end_wait(conditions: Conditions, wait: Wait | None, status: Mapping[str, Any], now: datetime) -> Conditions:
    """The conditions, Stalled where the wait has lasted too long. `status`: as it is now; what it calls stalled is so
    until something changes, also for an operator that has just started."""
    if wait is None:
        return conditions
    going_on = conditions[ConditionType.RECONCILING]
    message = f"{going_on.message} {_UNCHANGED}"
    stalled = condition_in(status, ConditionType.STALLED)
    is_said = (stalled.get("status"), stalled.get("message")) == ("True", message)
    if now - wait.since < PATIENCE and not is_said:
        return conditions
    still = "Nothing goes on until a person acts, or what is waited for comes; see Stalled."
    return conditions | {
        ConditionType.RECONCILING: Verdict(False, going_on.reason, still),
        ConditionType.STALLED: Verdict(True, going_on.reason, message),
    }
