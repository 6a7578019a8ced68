"""Does the second revision of spec.routing.canary answer its share of the requests?

Workers tell of it in `GET /v1/route`. It touches no other condition: whatever becomes of it, the first revision
answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gnnserve_api.reasons import Reason
from gnnserve_api.routing import Canary, Route, RoutingTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.updates import MOST_BEHIND_S, is_behind
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
    routes = {answer.pod: answer.route for answer in observed.answers}
    have_switched = all(_has_switched(routes.get(pod.name), declared.revision) for pod in ready)
    if spec.revision == wanted.revision and declared.recipe == spec.recipe() and have_switched:
        return Verdict(
            False,
            Reason.CANARY_IS_LIVE,
            f"Revision {declared.revision} answers as the first: it has the model of {wanted.revision}, which "
            "spec.revision and spec.routing.canary both name, over a newer version of the graph. Take "
            "spec.routing.canary away.",
        )
    said = (_decide_pod(pod, routes.get(pod.name), declared.revision, declared.canary) for pod in ready)
    return next((verdict for verdict in said if verdict is not None), None) or Verdict(
        True,
        Reason.CANARY_ANSWERS,
        f"Revision {declared.canary.revision} answers {declared.canary.percent} % of the requests, and "
        f"{declared.revision} the others.",
    )


def _decide_pod(pod: ObservedPod, route: Route | None, first: str, canary: Canary) -> Verdict | None:
    """Why a worker does not answer as declared; None: it does. `first`: the declared first revision."""
    revision, percent = canary.revision, canary.percent
    told = None if route is None or route.canary is UNSET else route.canary
    if told is not None and told.revision == revision and told.problem:
        what = f"the share of {revision}, which a restart would not find" if told.answers else "all requests"
        message = f"Worker {pod.name} answers {what}: {sentence(told.problem)}."
        return Verdict(False, Reason.CANARY_NOT_LOADED, message)
    if told is not None and told.updates is not UNSET and is_behind(told.updates):
        message = (
            f"Revision {revision}, which worker {pod.name} answers a share of the requests from, has lacked a part "
            f"of the log of changes for over {MOST_BEHIND_S:.0f} seconds. If it lasts, send fewer changes at a "
            "time, or give workers more processors."
        )
        return Verdict(False, Reason.WORKER_BEHIND, message)
    if (
        _has_switched(route, first)
        and told is not None
        and told.answers
        and (told.revision, told.percent) == (revision, percent)
    ):
        return None
    message = (
        f"Worker {pod.name} has not said yet that it answers {percent} % of the requests from {revision}, and the "
        f"others from {first}. Workers of an image that is older than the operator never will: give "
        "spec.image its version."
    )
    return Verdict(None, Reason.CANARY_LOADING, message)


def _has_switched(route: Route | None, first: str) -> bool:
    """Whether a worker answers from the declared first revision."""
    return route is not None and route.revision == first
