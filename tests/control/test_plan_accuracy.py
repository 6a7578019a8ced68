"""The condition AccuracyHolds: what workers tell of their variants in service, by the labels that they got."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.operator.observed import Namespace

from gnnserve_api.http.live_accuracy import InputDrift, ObservedShare, VariantAccuracy
from gnnserve_api.pods.routing import CredentialState
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.answers import decide_accuracy
from gnnserve_operator.observed import ObservedState

AS_PROMISED = VariantAccuracy("x1", 0.9, 1000, ObservedShare(0.89, 0.86, 0.92, 900))
BROKEN = VariantAccuracy("x4", 0.88, 1000, ObservedShare(0.71, 0.66, 0.755, 900), is_broken=True)
WRITING = (CredentialState("writeTokens", is_usable=True),)


def serving() -> Namespace:
    namespace = Namespace(endpoint={"writeTokens": {"secretName": "writing"}})
    namespace.settle()
    namespace.finish_job()
    namespace.settle()
    namespace.roll_out()
    tell(namespace)
    namespace.events.clear()
    return namespace


def tell(namespace: Namespace, *figures: VariantAccuracy) -> None:
    if figures:
        namespace.answer(credentials=WRITING, accuracy=figures)
    else:
        namespace.answer(credentials=WRITING)
    namespace.settle()


def test_without_tokens_that_may_write_there_is_no_such_condition() -> None:
    namespace = Namespace()
    namespace.serve()
    assert namespace.condition("AccuracyHolds") == {}


def test_before_the_first_label_nothing_is_known_and_workers_are_asked_again() -> None:
    namespace = serving()
    assert (namespace.reason(), namespace.reason("AccuracyHolds")) == ("True Serving", "Unknown NoLabels")
    assert namespace.settle().look_again_s == 15.0


def test_a_variant_that_is_worse_than_promised_is_named_with_both_figures_and_ready_stays() -> None:
    namespace = serving()
    tell(namespace, AS_PROMISED)
    assert namespace.reason("AccuracyHolds") == "True AccuracyAsPromised"
    assert namespace.events == []
    tell(namespace, AS_PROMISED, BROKEN)
    assert (namespace.reason(), namespace.reason("AccuracyHolds")) == ("True Serving", "False AccuracyBroken")
    message = str(namespace.condition("AccuracyHolds")["message"])
    assert "x4 is right for at most 76% of nodes, where its profile promised 88%" in message
    assert "x1" not in message
    assert "no longer what the revision was generated from" in message
    assert namespace.events == [("Warning", "AccuracyBroken")]
    tell(namespace, AS_PROMISED)
    assert namespace.events == [("Warning", "AccuracyBroken"), ("Normal", "AccuracyAsPromised")]


@pytest.mark.parametrize(("task", "labelled"), [({}, "nodes"), ({"links": {}}, "pairs")], ids=["classes", "links"])
def test_what_was_labelled_is_called_by_what_it_is(task: dict[str, Any], labelled: str) -> None:
    spec = GNNServiceSpec.model_validate(
        {"graph": {"source": {"builtin": "Digits"}}, "task": task, "endpoint": {"writeTokens": {"secretName": "w"}}}
    )
    answer = SimpleNamespace(pod="w", route=SimpleNamespace(accuracy=(BROKEN,), inputs=()))
    verdict = decide_accuracy(spec, cast(ObservedState, SimpleNamespace(answers=[answer])))
    assert verdict is not None and f"x4 is right for at most 76% of {labelled}, where" in verdict.message


def test_columns_that_moved_are_named_as_a_likely_cause() -> None:
    namespace = serving()
    moved = (InputDrift("hour", 40.0, 12.0, 4.0), InputDrift("amount", 9.0, 4.0, 2.5))
    namespace.answer(credentials=WRITING, accuracy=(BROKEN,), inputs=moved)
    namespace.settle()
    message = str(namespace.condition("AccuracyHolds")["message"])
    assert (
        "A likely cause: in what requests bring, these columns have other means than in stored nodes: amount, hour."
        in (message)
    )


def test_the_status_has_the_accuracy_in_service_to_the_percent() -> None:
    namespace = serving()
    (first, *others) = namespace.status["variants"]
    assert "accuracyInService" not in first
    figure = VariantAccuracy(first["name"], 0.9, 1000, ObservedShare(0.8871, 0.86, 0.92, 900))
    tell(namespace, figure)
    assert [variant.get("accuracyInService") for variant in namespace.status["variants"]] == [
        "0.89", *[None] * len(others)
    ]  # fmt: skip
