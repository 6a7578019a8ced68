"""Does the second revision of spec.routing.canary answer its share of the requests?

Workers tell of it in `GET /v1/route`. It touches no other condition: whatever becomes of it, the first revision
answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gnnserve_api.reasons import Reason
from gnnserve_api.routing import RoutingTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.observed import Observed, ObservedPod
from gnnserve_routing.verdict import Verdict, sentence


def decide_canary(
    spec: GNNServiceSpec, declared: RoutingTable | None, ready: Sequence[ObservedPod], observed: Observed
) -> Verdict | None:
    """None: the spec names no second revision. `declared`: what workers are told; None: nothing yet."""
    wanted = spec.routing.canary
    if wanted is None:
        return None
    if declared is None or not ready:
        return Verdict(None, Reason.NOT_SERVING, "No worker answers; the second revision is loaded beside the first.")
    if declared.canary is None:
        return Verdict(
            False,
            Reason.CANARY_IS_LIVE,
            f"Revision {declared.revision} answers all requests, and spec.routing.canary names the same one. As soon "
            f"as another one is published, {wanted.revision} gets {wanted.percent} % of the requests; else take the "
            "field away, or name another one.",
        )
    revision, percent = declared.canary.revision, declared.canary.percent
    answers = {answer.pod: answer.route for answer in observed.answers}
    for pod in ready:
        route = answers.get(pod.name)
        told = None if route is None or route.canary is UNSET else route.canary
        if told is not None and told.revision == revision and told.problem:
            what = f"the share of {revision}, which a restart would not find" if told.answers else "all requests"
            message = f"Worker {pod.name} answers {what}: {sentence(told.problem)}."
            return Verdict(False, Reason.CANARY_NOT_LOADED, message)
        has_switched = route is not None and route.revision == declared.revision
        if has_switched and told is not None and told.answers and (told.revision, told.percent) == (revision, percent):
            continue
        message = (
            f"Worker {pod.name} has not said yet that it answers {percent} % of the requests from {revision}, and the "
            f"others from {declared.revision}. Workers of an image that is older than the operator never will: give "
            "spec.image its version."
        )
        return Verdict(None, Reason.CANARY_LOADING, message)
    return Verdict(
        True,
        Reason.CANARY_ANSWERS,
        f"Revision {revision} answers {percent} % of the requests, and {declared.revision} the others.",
    )
