"""Is every variant as accurate in service as its profile promised?

Workers evaluate their variants on the labels that clients send, and tell in `GET /v1/route` of each whether it is
significantly worse (`gnnserve_api.live_accuracy`). Each worker tells of its own labels; one that finds a variant worse
is enough, since the intervals of all of them hold together but for their stated chance.
"""

from __future__ import annotations

from msgspec import UNSET

from gnnserve_api.live_accuracy import InputDrift, ObservedShare, VariantAccuracy
from gnnserve_api.reasons import Reason
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.observed import Observed
from gnnserve_routing.verdict import Verdict

_CURE = "Generate from newer data, or see whether what sends features, or labels, has changed."


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
            return Verdict(False, Reason.ACCURACY_BROKEN, _describe(pod, broken, _drifted_inputs(observed)))
    return Verdict(
        True, Reason.ACCURACY_AS_PROMISED, "By the labels, no variant is significantly less accurate than promised."
    )


def accuracies_in_service(observed: Observed, revision: str) -> dict[str, str]:
    """For the status: by variant, the share of labelled nodes that it answers correctly, to the percent, since a figure
    that changes with every label would write the status each time. The worker with the most labels tells it."""
    told: dict[str, ObservedShare] = {}
    for answer in observed.answers:
        if answer.route is None or answer.route.accuracy is UNSET or answer.route.revision != revision:
            continue
        for figure in answer.route.accuracy:
            if figure.labels is not None and figure.labels.nodes > _nodes_of(told.get(figure.name)):
                told[figure.name] = figure.labels
    return {name: f"{share.mean:.2f}" for name, share in told.items()}


def _nodes_of(share: ObservedShare | None) -> int:
    return 0 if share is None else share.nodes


def _drifted_inputs(observed: Observed) -> tuple[InputDrift, ...]:
    """The columns that the first worker, by name, tells of."""
    for answer in sorted(observed.answers, key=lambda answer: answer.pod):
        if answer.route is not None and answer.route.inputs is not UNSET:
            return answer.route.inputs
    return ()


def _describe(pod: str, broken: list[VariantAccuracy], inputs: tuple[InputDrift, ...]) -> str:
    found = [_words(figure, figure.labels, figure.promised) for figure in broken]
    names = ", ".join(sorted(each.column for each in inputs))
    cause = (
        f"A likely cause: in what requests bring, these columns have other means than in stored nodes: {names}. "
        if inputs
        else "The nodes are no longer what the revision was generated from. "
    )
    return f"By the labels that worker {pod} got, {'; '.join(words for words in found if words)}. {cause}{_CURE}"


def _words(figure: VariantAccuracy, labels: ObservedShare | None, promised: float | None) -> str:
    if labels is None or promised is None:
        return ""
    # Whole percent: figures that change with every label would write the status each time.
    return f"{figure.name} is right for at most {labels.high:.0%}, where its profile promised {promised:.0%}"
