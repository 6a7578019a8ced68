"""Requests and what becomes of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.kubernetes.fake_api import FakeApi, fake_api
from tests.support.kubernetes.fake_cluster import KINDS, FakeCluster, Fault, Refusal
from tests.support.machine.fake_server import Told, fake_server
from tests.support.operator.operator import child, gnnservice

from gnnserve_operator.cluster import Cluster, HttpTransport
from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.errors import ConflictError, RefusedError, RetryLaterError
from gnnserve_operator.kinds import GNNSERVICE, ObjectRef, kind_of, observed_ref
from gnnserve_operator.login import load_access
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.slow_loop import RoutingMemory

T = TypeVar("T")
CONFIG = child(data={"a": "1"})
REF = observed_ref(CONFIG)
EVENT = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "digits.1", "namespace": "default"},
    "reason": "Ready",
}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    with fake_api(FakeCluster(collects_garbage=False)) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path)))
        yield api


def ask(
    question: Callable[[Cluster], Awaitable[T]], metrics: Metrics | None = None, host: str | None = None,
    leader: Leader | None = None,
) -> T:  # fmt: skip
    async def run() -> T:
        access = await load_access()
        server = host or access.connection.server
        transport = HttpTransport(replace(access, connection=replace(access.connection, server=server)))
        try:
            return await question(Cluster(transport, metrics or Metrics(RoutingMemory()), leader))
        finally:
            await transport.close()

    return asyncio.run(run())


def test_what_is_not_there_is_none(api: FakeApi) -> None:
    assert ask(lambda cluster: cluster.get(REF)) is None


def test_apply_creates_and_changes_under_one_manager(api: FakeApi) -> None:
    created = ask(lambda cluster: cluster.apply(CONFIG))
    changed = ask(lambda cluster: cluster.apply(child(data={"b": "2"})))
    assert changed["metadata"]["uid"] == created["metadata"]["uid"]
    assert (ask(lambda cluster: cluster.get(REF)) or {})["data"] == {"b": "2"}
    assert {write.manager for write in api.cluster.writes} == {"gnnserve-operator"}


def test_a_status_is_applied_on_its_own_and_under_its_own_manager(api: FakeApi) -> None:
    api.cluster.create(gnnservice())
    status = {**gnnservice(), "spec": {"image": "ignored"}, "status": {"observedGeneration": 1}}
    ask(lambda cluster: cluster.apply_status(status))
    found = api.cluster.get("GNNService", "digits")
    assert found["status"] == {"observedGeneration": 1}
    assert "image" not in found["spec"]
    assert api.cluster.writes[-1].manager == "gnnserve-operator-status"


def test_the_status_of_what_is_gone_is_tried_later(api: FakeApi) -> None:
    with pytest.raises(RetryLaterError, match="GNNService default/digits"):
        ask(lambda cluster: cluster.apply_status({**gnnservice(), "status": {}}))


def test_what_is_deleted_takes_its_dependents_along_and_may_be_gone_already(api: FakeApi) -> None:
    live = ask(lambda cluster: cluster.apply(CONFIG))
    ask(lambda cluster: cluster.delete(live))
    ask(lambda cluster: cluster.delete(live))
    assert api.cluster.find("ConfigMap", "digits-routing") is None
    options = api.cluster.writes[1].body
    assert options is not None
    seen = {name: live["metadata"][name] for name in ("uid", "resourceVersion")}
    assert (options["propagationPolicy"], options["preconditions"]) == ("Background", seen)


def test_what_is_another_by_now_is_not_deleted(api: FakeApi) -> None:
    live = ask(lambda cluster: cluster.apply(CONFIG))
    ask(lambda cluster: cluster.apply(child(data={"a": "2"})))
    with pytest.raises(ConflictError):
        ask(lambda cluster: cluster.delete(live))
    assert api.cluster.find("ConfigMap", "digits-routing") is not None


def test_an_event_that_was_posted_before_is_posted(api: FakeApi) -> None:
    ask(lambda cluster: cluster.create_event(EVENT))
    ask(lambda cluster: cluster.create_event(EVENT))
    assert len(api.cluster.all("Event")) == 1


def test_a_conflict_of_another_kind_is_not_an_event_that_was_posted(api: FakeApi) -> None:
    refusal = Refusal(409, "Conflict", "Operation cannot be fulfilled on resourcequotas: please try again")
    api.cluster.faults.append(Fault("create", "Event", refusal))
    with pytest.raises(ConflictError, match="resourcequotas"):
        ask(lambda cluster: cluster.create_event(EVENT))


def test_objects_are_listed_whole_and_by_label(api: FakeApi) -> None:
    ours = api.cluster.create({**CONFIG, "metadata": {**CONFIG["metadata"], "labels": {"app": "a"}}})
    api.cluster.create({**CONFIG, "metadata": {"name": "theirs", "namespace": "default"}})
    (found,) = ask(lambda cluster: cluster.list_objects(kind_of("v1", "ConfigMap"), "default", "app=a"))
    assert (found["kind"], found["data"]) == ("ConfigMap", {"a": "1"})
    assert found["metadata"]["resourceVersion"] == ours["metadata"]["resourceVersion"]


def test_versions_are_listed_by_uid_and_by_label(api: FakeApi) -> None:
    ours = api.cluster.create({**CONFIG, "metadata": {**CONFIG["metadata"], "labels": {"app": "a"}}})
    api.cluster.create({**CONFIG, "metadata": {"name": "theirs", "namespace": "default"}})
    kind = kind_of("v1", "ConfigMap")
    found = ask(lambda cluster: cluster.list_versions(kind, None, "app=a"))
    assert found == {ours["metadata"]["uid"]: ours["metadata"]["resourceVersion"]}
    assert len(ask(lambda cluster: cluster.list_versions(kind, "default"))) == 2
    assert ask(lambda cluster: cluster.list_versions(kind, "elsewhere")) == {}


def test_long_lists_come_in_pages(api: FakeApi) -> None:
    def answer(asked: object) -> Told:
        path = getattr(asked, "path", "")
        number = 2 if "continue=next" in path else 1
        token = {"continue": "next"} if number == 1 else {}
        item = {"metadata": {"uid": f"u{number}", "resourceVersion": str(number)}}
        return Told(body={"metadata": {"resourceVersion": "9", **token}, "items": [item]})

    with fake_server(answer) as server:
        found = ask(lambda cluster: cluster.list_versions(GNNSERVICE, None), host=server.url)
    assert found == {"u1": "1", "u2": "2"}


def test_whether_pod_monitors_are_there_is_asked(api: FakeApi) -> None:
    assert not ask(lambda cluster: cluster.has_pod_monitors())
    api.cluster.kinds = KINDS
    assert ask(lambda cluster: cluster.has_pod_monitors())


@pytest.mark.parametrize(
    ("refusal", "error", "says"),
    [
        pytest.param(Refusal(422, "Invalid", "spec.replicas: must be positive"), RefusedError,
                     r"apply ConfigMap default/digits-routing: the API server refuses it \(422\): spec.replicas",
                     id="an invalid object is somebody's to correct"),
        pytest.param(Refusal(403, "Forbidden", "exceeded quota: pods"), RefusedError, "exceeded quota", id="a quota"),
        pytest.param(Refusal(400, "BadRequest", "unknown field"), RefusedError, "unknown field", id="a bad request"),
        pytest.param(Refusal(500, "InternalError", 'failed calling webhook "policy": connection refused'), RefusedError,
                     "failed calling webhook", id="a webhook that is away"),
        pytest.param(Refusal(500, "InternalError", "etcdserver: leader changed"), RetryLaterError, "leader changed",
                     id="an internal error passes"),
        pytest.param(Refusal(409, "Conflict", "uid mismatch"), ConflictError, "uid mismatch", id="a conflict"),
        pytest.param(Refusal(401, "Unauthorized", "token expired"), RetryLaterError, "token expired",
                     id="a token that is about to be rotated"),
        pytest.param(Refusal(403, "Forbidden", "it is being terminated", causes=("NamespaceTerminating",)),
                     RetryLaterError, "being terminated", id="a namespace that is about to go"),
        pytest.param(Refusal(404, "NotFound", 'namespaces "default" not found'), RetryLaterError, "namespaces",
                     id="a namespace that is gone"),
    ],
)  # fmt: skip
def test_refusals_are_told_apart(api: FakeApi, refusal: Refusal, error: type[Exception], says: str) -> None:
    api.cluster.faults.append(Fault("apply", "ConfigMap", refusal))
    with pytest.raises(error, match=says) as raised:
        ask(lambda cluster: cluster.apply(CONFIG))
    assert isinstance(raised.value, RefusedError) is (error is RefusedError)


@dataclass(slots=True)
class Leader:
    term: int = 3
    fence: str = "gnnserve-system.gnnserve"
    unanswered: int = 0

    def remaining_s(self) -> float:
        return 60.0

    def note_unanswered(self) -> None:
        self.unanswered += 1


@pytest.mark.parametrize(
    ("policy", "is_ours"),
    [pytest.param("gnnserve-system.gnnserve", True, id="our own"), pytest.param("team.gnnserve", False, id="another")],
)
def test_a_refusal_by_our_own_policy_is_nobodys_to_correct(api: FakeApi, policy: str, is_ours: bool) -> None:
    says = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: no params found"
    api.cluster.faults.append(Fault("apply", "ConfigMap", Refusal(422, "Invalid", says)))
    with pytest.raises(RetryLaterError if is_ours else RefusedError, match="no params found"):
        ask(lambda cluster: cluster.apply(CONFIG), leader=Leader())


def test_only_writes_without_an_answer_are_noted(api: FakeApi) -> None:
    leader = Leader()
    ask(lambda cluster: cluster.apply(CONFIG), leader=leader)
    with pytest.raises(RetryLaterError):
        ask(lambda cluster: cluster.get(REF), host="http://127.0.0.1:9", leader=leader)
    assert leader.unanswered == 0
    with pytest.raises(RetryLaterError):
        ask(lambda cluster: cluster.apply(CONFIG), host="http://127.0.0.1:9", leader=leader)
    assert leader.unanswered == 1


@pytest.mark.parametrize(
    ("told", "after_s"),
    [
        pytest.param(Told(429, {"message": "busy"}, {"Retry-After": "12"}), 12, id="by a header"),
        pytest.param(Told(429, {"message": "busy", "details": {"retryAfterSeconds": 3}}), 3, id="by the body"),
        pytest.param(Told(503, {"message": "busy"}, {"Retry-After": "Fri, 01 Jan 2027 00:00:00 GMT"}), None,
                     id="by a date, which the backoff replaces"),
        pytest.param(Told(503, None), None, id="not at all"),
        pytest.param(Told(502, "<html>bad gateway"), None, id="by a proxy that speaks no JSON"),
        pytest.param(Told(200, "<html>welcome"), None, id="by something that is no API server"),
        pytest.param(Told(hang_up=True), None, id="by hanging up"),
    ],
)  # fmt: skip
def test_a_server_that_is_busy_or_away_is_asked_again_later(api: FakeApi, told: Told, after_s: float | None) -> None:
    with fake_server(lambda _: told) as server, pytest.raises(RetryLaterError) as raised:
        ask(lambda cluster: cluster.get(REF), host=server.url)
    assert raised.value.after_s == after_s


def test_every_request_is_counted_by_verb_kind_and_code(api: FakeApi) -> None:
    metrics = Metrics(RoutingMemory())
    ask(lambda cluster: cluster.get(REF), metrics)
    ask(lambda cluster: cluster.apply(CONFIG), metrics)
    with pytest.raises(RetryLaterError):
        ask(lambda cluster: cluster.get(REF), metrics, host="http://127.0.0.1:9")

    def count(**labels: str) -> float | None:
        return metrics.registry.get_sample_value("gnnserve_operator_api_requests_total", labels)

    assert count(verb="get", kind="ConfigMap", code="404") == 1
    assert count(verb="apply", kind="ConfigMap", code="201") == 1
    assert count(verb="get", kind="ConfigMap", code="none") == 1


def test_paths_are_those_of_kubernetes() -> None:
    assert kind_of("v1", "Pod").path("ns", "a") == "/api/v1/namespaces/ns/pods/a"
    assert kind_of("apps/v1", "Deployment").path(None) == "/apis/apps/v1/deployments"
    assert GNNSERVICE.path("ns", "a", "status") == "/apis/gnnserve.dev/v1alpha1/namespaces/ns/gnnservices/a/status"
    assert len({kind.plural for kind in WATCHED_CHILDREN}) == len(WATCHED_CHILDREN)


def test_a_kind_that_is_not_in_the_table_is_named(api: FakeApi) -> None:
    with pytest.raises(LookupError, match=r"Secret of v1 is not in kinds\.py"):
        ask(lambda cluster: cluster.get(ObjectRef("v1", "Secret", "default", "a")))
