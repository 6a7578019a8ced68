"""What is waited for comes, or the service is Stalled: no wait without an end."""

from __future__ import annotations

from datetime import timedelta

from tests.support.operator.observed import Namespace

UNCHANGED = "Nothing of this has changed for 15 minutes."


def serving() -> Namespace:
    namespace = Namespace()
    namespace.serve()
    return namespace


def pass_time(namespace: Namespace, minutes: int) -> None:
    namespace.now += timedelta(minutes=minutes)
    namespace.settle()


def test_an_endpoint_that_stays_unreachable_is_stalled_after_a_while() -> None:
    namespace = serving()
    namespace.endpoint = None
    namespace.settle()
    assert namespace.reason("Reconciling") == "True EndpointUnreachable"
    pass_time(namespace, 10)
    assert namespace.reason("Stalled") == "False Progressing"
    pass_time(namespace, 6)
    assert namespace.reason("Stalled") == "True EndpointUnreachable"
    assert UNCHANGED in namespace.condition("Stalled")["message"]
    assert namespace.reason("Reconciling") == "False EndpointUnreachable"
    assert ("Warning", "Stalled") in namespace.events
    namespace.answer()
    namespace.settle()
    assert namespace.reason() == "True Serving"
    assert namespace.reason("Stalled") == "False Settled"


def test_an_operator_that_starts_anew_says_no_other_thing() -> None:
    namespace = serving()
    namespace.endpoint = None
    namespace.settle()
    pass_time(namespace, 16)
    said = namespace.status
    namespace.wait = None
    namespace.settle()
    assert namespace.status == said


def test_each_other_word_is_another_wait() -> None:
    namespace = serving()
    namespace.endpoint = None
    namespace.settle()
    pass_time(namespace, 10)
    namespace.answer(problem="revision rev-1 cannot be loaded: altered")
    namespace.settle()
    pass_time(namespace, 10)
    assert namespace.reason("Reconciling") == "True RevisionNotLoaded"
    pass_time(namespace, 6)
    assert namespace.reason("Stalled") == "True RevisionNotLoaded"


def test_a_job_that_computes_may_take_its_time() -> None:
    namespace = Namespace()
    namespace.settle()
    namespace.start_job()
    namespace.settle()
    pass_time(namespace, 600)
    assert namespace.reason("Reconciling") == "True Generating"


def test_a_job_whose_pod_finds_no_node_is_stalled_after_a_while() -> None:
    """Its own deadline is a day."""
    namespace = Namespace()
    namespace.settle()
    nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    namespace.add_pod(namespace.job(), conditions=[nowhere])
    namespace.settle()
    assert namespace.reason("Reconciling") == "True Unschedulable"
    pass_time(namespace, 16)
    assert namespace.reason("Stalled") == "True Unschedulable"
