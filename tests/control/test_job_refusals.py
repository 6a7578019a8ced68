"""Why the API server refuses the pod of a Job, as the events of the Job tell."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.control.campaign.clock import SimClock
from tests.support.kubernetes.api_server import ApiServer, Request, Response
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.kubernetes.in_process import InProcessTransport

from gnnserve_operator.cluster import Cluster
from gnnserve_operator.desired.metadata import FIELD_MANAGER, QUEUE_NAME
from gnnserve_operator.handlers.index import IndexedObject
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.observe import JobRefusals, find_refusal
from gnnserve_operator.observed import ObservedJob, ObservedPod, ObservedState, observed_job
from gnnserve_operator.slow_loop import RoutingMemory

STARTED = "2026-01-01T00:00:10Z"


def event(reason: str, second: int, message: str = "no", **times: Any) -> dict[str, Any]:
    return {"reason": reason, "message": message, **(times or {"lastTimestamp": f"2026-01-01T00:00:{second:02}Z"})}


@pytest.mark.parametrize(
    ("events", "refusal"),
    [
        pytest.param([], "", id="none"),
        pytest.param([event("FailedCreate", 10, "exceeded quota")], "exceeded quota", id="refused"),
        pytest.param([event("FailedCreate", 9, "exceeded quota")], "", id="of an earlier Job of its name"),
        pytest.param([event("FailedCreate", 11), event("SuccessfulCreate", 11)], "", id="created since"),
        pytest.param([event("SuccessfulCreate", 11), event("FailedCreate", 12, "now")], "now", id="refused since"),
        pytest.param([event("FailedCreate", 12, "b"), event("FailedCreate", 11, "a")], "b", id="the last one"),
        pytest.param([event("Suspended", 12, "by a queue")], "", id="another event"),
        pytest.param(
            [event("FailedCreate", 0, "series", lastTimestamp=None, eventTime="2026-01-01T00:00:10.500000Z")],
            "series",
            id="a time with fractions",
        ),
    ],
)
def test_the_last_refusal_counts_unless_a_pod_was_created_after_it(events: list[dict[str, Any]], refusal: str) -> None:
    assert find_refusal(events, STARTED) == refusal


def refusals(cluster: FakeCluster, clock: SimClock) -> JobRefusals:
    return JobRefusals(Cluster(InProcessTransport(ApiServer(cluster).respond), Metrics(RoutingMemory())), clock)


def refused(cluster: FakeCluster, clock: SimClock) -> ObservedState:
    started_at = (clock.utc() - timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for job, message in (("mine", "exceeded quota"), ("another", "another quota")):
        cluster.create(
            {
                "apiVersion": "v1", "kind": "Event", "metadata": {"name": job, "namespace": "shop"},
                "involvedObject": {"kind": "Job", "name": job}, "reason": "FailedCreate", "message": message,
                "lastTimestamp": clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )  # fmt: skip
    return ObservedState(jobs=(ObservedJob("mine", "recipe", started_at=started_at),))


def test_the_events_of_a_job_without_a_pod_are_asked_for_and_of_no_other() -> None:
    cluster, clock = FakeCluster(), SimClock()
    observed = refused(cluster, clock)
    (job,) = asyncio.run(refusals(cluster, clock).add("shop", observed)).jobs
    assert job.refusal == "exceeded quota"

    failed = ObservedPod("p", "generation", job="mine", phase="Failed")
    after_an_attempt = ObservedState(jobs=observed.jobs, pods=(failed,))
    (job,) = asyncio.run(refusals(cluster, clock).add("shop", after_an_attempt)).jobs
    assert job.refusal == "exceeded quota", "of the pod of its next attempt"

    asked = len(cluster.paths)
    with_pod = ObservedState(jobs=observed.jobs, pods=(ObservedPod("p", "generation", job="mine"),))
    assert asyncio.run(refusals(cluster, clock).add("shop", with_pod)) == with_pod
    assert len(cluster.paths) == asked


def test_without_the_right_to_list_events_all_else_is_observed_as_ever() -> None:
    cluster, clock = FakeCluster(), SimClock()
    observed = refused(cluster, clock)
    server = ApiServer(cluster)

    def respond(request: Request) -> Response:
        if request.path.endswith("/events"):
            return Response(403, {}, {"reason": "Forbidden", "message": "events is forbidden"})
        return server.respond(request)

    found = JobRefusals(Cluster(InProcessTransport(respond), Metrics(RoutingMemory())), clock)
    assert asyncio.run(found.add("shop", observed)) == observed


# --- whose field it is


def test_the_index_keeps_of_managed_fields_whether_the_operator_suspends_a_job_and_gave_it_a_queue() -> None:
    fields = {
        "f:metadata": {"f:labels": {".": {}, f"f:{QUEUE_NAME}": {}, "f:app": {}}},
        "f:spec": {"f:suspend": {}, "f:template": {"f:spec": {"f:containers": {}}}},
    }
    theirs = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:parallelism": {}}}}
    ours = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    body = {
        "apiVersion": "batch/v1", "kind": "Job", "spec": {"suspend": True},
        "metadata": {"name": "j", "uid": "u", "resourceVersion": "1", "labels": {QUEUE_NAME: "team-a", "app": "x"},
                     "managedFields": [theirs, ours]},
    }  # fmt: skip
    kept = IndexedObject.of(body).body()
    needed = {"f:spec": {"f:suspend": {}}, "f:metadata": {"f:labels": {f"f:{QUEUE_NAME}": {}}}}
    assert [entry["fieldsV1"] for entry in kept["metadata"]["managedFields"]] == [needed]
    job = observed_job(kept)
    assert (job.held, job.is_suspended_elsewhere, job.queue) == (True, False, "team-a")
    assert job.queue_labels == {QUEUE_NAME: "team-a"}

    body["metadata"]["managedFields"] = [{**theirs, "fieldsV1": fields}]  # type: ignore[index]
    job = observed_job(IndexedObject.of(body).body())
    assert (job.held, job.is_suspended_elsewhere, job.queue, job.queue_labels) == (False, True, "team-a", {})
