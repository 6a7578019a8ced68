"""Is every variant as accurate in service as its profile promised?

Workers evaluate their variants on the labels that clients send, and tell in `GET /v1/route` of each whether it is
significantly worse (`gnnserve_api.live_accuracy`). Each worker tells of its own labels; one that finds a variant worse
is enough, since the intervals of all of them hold together but for their stated chance.
"""

from __future__ import annotations

from msgspec import UNSET

from gnnserve_api.live_accuracy import ObservedShare, VariantAccuracy
from gnnserve_api.reasons import Reason
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.observed import Observed
from gnnserve_routing.verdict import Verdict

_CURE = (
    "The nodes are no longer what the revision was generated from: generate from newer data, or see whether what "
    "sends features, or labels, has changed."
)


def decide_accuracy(spec: GNNServiceSpec, observed: Observed) -> Verdict | None:
    """None: no labels are taken, since the spec names no tokens that may write."""
    if spec.endpoint.write_tokens is None:
        return None
    told: dict[str, tuple[VariantAccuracy, ...]] = {}
    for answer in sorted(observed.answers, key=lambda answer: answer.pod):
        if answer.route is not None and answer.route.accuracy is not UNSET:
            told[answer.pod] = answer.route.accuracy
    if not told:
        message = "No worker has evaluated labels yet; POST /v1/labels takes them."
        return Verdict(None, Reason.NO_LABELS, message)
    for pod, figures in told.items():
        broken = [figure for figure in figures if figure.is_broken]
        if broken:
            return Verdict(False, Reason.ACCURACY_BROKEN, _describe(pod, broken))
    return Verdict(
        True, Reason.ACCURACY_AS_PROMISED, "By the labels, no variant is significantly less accurate than promised."
    )


def _describe(pod: str, broken: list[VariantAccuracy]) -> str:
    found = [_words(figure, figure.labels, figure.promised) for figure in broken]
    return f"By the labels that worker {pod} got, {'; '.join(words for words in found if words)}. {_CURE}"


def _words(figure: VariantAccuracy, labels: ObservedShare | None, promised: float | None) -> str:
    if labels is None or promised is None:
        return ""
    # Whole percent: figures that change with every label would write the status each time.
    return (
        f"{figure.name} is right for at most {labels.high:.0%} of the nodes, where its profile promised {promised:.0%}"
    )
