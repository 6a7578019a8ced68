"""Applying: only what differs, never what is somebody else's, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes.fake_api import FakeApi, fake_api
from tests.support.kubernetes.fake_cluster import FakeCluster, Fault, Refusal
from tests.support.operator.operator import KEY, UID, child, live, owner

from gnnserve_operator.apply import (
    AppliedObject,
    Applier,
    NameOccupancy,
    Survey,
    classify_place,
    digest_of_content,
    is_needed,
)
from gnnserve_operator.cluster import Cluster, HttpTransport
from gnnserve_operator.desired.metadata import (
    ADOPT_ANNOTATION,
    APPLIED_ANNOTATION,
    OWNER_UID,
    POOL,
    SERVICE,
    Conflict,
    digest_of,
)
from gnnserve_operator.errors import ConflictError, RetryLaterError
from gnnserve_operator.kinds import ObjectRef, observed_ref
from gnnserve_operator.login import load_access
from gnnserve_operator.metrics import Metrics
from gnnserve_operator.observed import Rejection
from gnnserve_operator.slow_loop import RoutingMemory

Manifest = dict[str, Any]
CONFIG = child(data={"a": "1"})
DEPLOYMENT = child("Deployment", "digits-worker", spec={"replicas": 2})
CLAIM = child("PersistentVolumeClaim", "digits-repository")
JOB = child("Job", "digits-generate-1")
FOREIGN = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": "digits", "namespace": "default"}}


def retained(uid: str, whose: dict[str, str] | None = None, **metadata: Any) -> Manifest:
    """A claim that belongs to a service by its label."""
    labels = (whose or {SERVICE: "digits"}) | {OWNER_UID: uid}
    return live(CLAIM, **{"ownerReferences": [], "labels": labels, **metadata})


@pytest.mark.parametrize(
    ("found", "place"),
    [
        pytest.param(None, NameOccupancy.FREE, id="nothing"),
        pytest.param(live(CONFIG), NameOccupancy.OURS, id="a child of this service"),
        pytest.param(live(FOREIGN), NameOccupancy.TAKEN, id="an object of nobody"),
        pytest.param(live(CONFIG, ownerReferences=[owner("other", "u2")]), NameOccupancy.TAKEN,
                     id="a child of another service"),
        pytest.param(live(CONFIG, ownerReferences=[owner("digits", "u2", "Deployment")]), NameOccupancy.TAKEN,
                     id="a child of something else of that name"),
        pytest.param(live(CONFIG, ownerReferences=[owner(controller=False)]), NameOccupancy.TAKEN,
                     id="an object that we own without controlling it"),
        pytest.param(live(CONFIG, ownerReferences=[owner(uid="u2")]), NameOccupancy.LEAVING,
                     id="a child of a deleted service of the same name"),
        pytest.param(live(FOREIGN, annotations={ADOPT_ANNOTATION: "digits"}), NameOccupancy.OURS,
                     id="an object of nobody that the service may take over"),
        pytest.param(live(FOREIGN, annotations={ADOPT_ANNOTATION: "other"}), NameOccupancy.TAKEN,
                     id="one that another service may take over"),
        pytest.param(live(CONFIG, annotations={ADOPT_ANNOTATION: "digits"}, ownerReferences=[owner("other", "u2")]),
                     NameOccupancy.TAKEN, id="a child of another service, whatever is written on it"),
        pytest.param(live(CONFIG, annotations={ADOPT_ANNOTATION: "digits"}, ownerReferences=[owner(uid="u2")]),
                     NameOccupancy.LEAVING, id="one that the garbage collector is about to take"),
        pytest.param(retained(UID), NameOccupancy.OURS, id="a claim that is retained"),
        pytest.param(retained("u2"), NameOccupancy.RETAINED, id="a claim that a deleted service of the same name left"),
        pytest.param(retained("u2", annotations={ADOPT_ANNOTATION: "u2"}), NameOccupancy.OURS,
        id="which may be taken over"),
        pytest.param(retained("u2", annotations={ADOPT_ANNOTATION: "digits"}), NameOccupancy.RETAINED,
                     id="which a person allowed to an earlier service"),
        pytest.param(retained("u2", {SERVICE: "other"}, annotations={ADOPT_ANNOTATION: "u2"}), NameOccupancy.TAKEN,
                     id="a retained claim of another service, whatever is written on it"),
        pytest.param(retained("u2", {POOL: "digits"}), NameOccupancy.TAKEN, id="that of a pool of the same name"),
        pytest.param(retained("u2", ownerReferences=[owner("other", "u3")]), NameOccupancy.TAKEN,
                     id="one that something else controls by now"),
        pytest.param(retained(UID, deletionTimestamp="2026-01-01T00:00:00Z"), NameOccupancy.LEAVING,
                     id="a retained claim that is being deleted"),
        pytest.param(live(FOREIGN, labels={SERVICE: "digits", OWNER_UID: UID}), NameOccupancy.TAKEN,
                     id="what is no claim belongs to no one by a label"),
        pytest.param(live(CONFIG, deletionTimestamp="2026-01-01T00:00:00Z"), NameOccupancy.LEAVING,
                     id="a child that is being deleted"),
        pytest.param(live(FOREIGN, deletionTimestamp="2026-01-01T00:00:00Z"), NameOccupancy.LEAVING,
                     id="an object of nobody that is being deleted"),
    ],
)  # fmt: skip
def test_whose_place_it_is(found: Manifest | None, place: NameOccupancy) -> None:
    assert classify_place(found, "digits", UID) is place


def applied(manifest: Manifest, version: int = 1, **metadata: Any) -> Manifest:
    return live(manifest, version, annotations={APPLIED_ANNOTATION: digest_of(manifest)}, **metadata)


def remembered(desired: Manifest, before: str, after: Manifest) -> AppliedObject:
    version = after["metadata"]["resourceVersion"]
    return AppliedObject(digest_of(desired), version, frozenset({before}), digest_of_content(after))


NORMALISED = {**applied(CONFIG, 7), "data": {"a": "one"}}
"""What a server might make of it that is neither equal nor a superset."""


@pytest.mark.parametrize(
    ("found", "memory", "expected"),
    [
        pytest.param(None, None, True, id="nothing is there"),
        pytest.param(applied(CONFIG), None, False, id="it is as declared, and was applied by a predecessor"),
        pytest.param(live(CONFIG), None, True, id="it looks as declared, but was never applied"),
        pytest.param({**applied(CONFIG), "data": {"a": "2"}}, None, True, id="a value was edited"),
        pytest.param({**applied(CONFIG), "data": {}}, None, True, id="a value was removed"),
        pytest.param({**applied(CONFIG), "data": {"a": "1", "b": "2"}}, None, False, id="somebody added a value"),
        pytest.param(live(CONFIG, annotations={APPLIED_ANNOTATION: "another"}), None, True,
                     id="something that is declared no longer was applied before"),
        pytest.param(NORMALISED, remembered(CONFIG, "6", NORMALISED), False, id="the server made that of it before"),
        pytest.param({**NORMALISED, "status": {"replicas": 1}, "metadata": {**NORMALISED["metadata"],
                      "resourceVersion": "9", "generation": 2}}, remembered(CONFIG, "6", NORMALISED), False,
                     id="and its status moved on since"),
        pytest.param({**NORMALISED, "data": {"a": "two"}}, remembered(CONFIG, "6", NORMALISED), True,
                     id="but then somebody edited it"),
        pytest.param({**applied(CONFIG, 5), "data": {"a": "0"}}, remembered(CONFIG, "5", applied(CONFIG, 6)), False,
                     id="the watch has not told of our write yet"),
        pytest.param({**applied(CONFIG, 5), "data": {"a": "0"}}, remembered(DEPLOYMENT, "5", applied(CONFIG, 6)), True,
                     id="nor has it, but something else is declared by now"),
    ],
)  # fmt: skip
def test_what_needs_to_be_applied(found: Manifest | None, memory: AppliedObject | None, expected: bool) -> None:
    assert is_needed(CONFIG, digest_of(CONFIG), found, memory) is expected


# --- with an API server


@dataclass(slots=True)
class Applying:
    """One applier, and connections as they come: each call is an event loop of its own."""

    api: FakeApi
    applier: Applier

    @property
    def cluster(self) -> FakeCluster:
        return self.api.cluster

    def apply(
        self, *desired: Manifest, known: dict[ObjectRef, Manifest | None] | None = None
    ) -> tuple[Survey, tuple[Rejection, ...]]:
        async def run() -> tuple[Survey, tuple[Rejection, ...]]:
            transport = HttpTransport(await load_access())
            self.applier.cluster = Cluster(transport, Metrics(RoutingMemory()))
            try:
                survey = await self.applier.survey(KEY, UID, desired, known or {})
                return survey, await self.applier.apply(KEY, self.applier.changes(KEY, desired, survey))
            finally:
                await transport.close()

        return asyncio.run(run())

    def seen(self, *kinds: str) -> dict[ObjectRef, Manifest | None]:
        return {observed_ref(found): found for kind in kinds for found in self.cluster.all(kind)}


@pytest.fixture
def applying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Applying]:
    with fake_api(FakeCluster(collects_garbage=False)) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path)))
        yield Applying(api, Applier(cluster=None))  # type: ignore[arg-type]


def test_children_are_created_in_order_and_not_written_again(applying: Applying) -> None:
    applying.apply(DEPLOYMENT, CONFIG)
    applying.apply(DEPLOYMENT, CONFIG)
    applying.apply(DEPLOYMENT, CONFIG, known=applying.seen("Deployment", "ConfigMap"))
    assert list(map(str, applying.cluster.writes)) == [
        "apply Deployment digits-worker",
        "apply ConfigMap digits-routing",
    ]
    assert {write.manager for write in applying.cluster.writes} == {"gnnserve-operator"}


def test_a_field_that_is_declared_no_longer_is_removed_also_by_the_next_operator(applying: Applying) -> None:
    applying.apply(child(data={"a": "1", "b": "2"}))
    applying.applier = Applier(cluster=None)  # type: ignore[arg-type]
    applying.apply(CONFIG, known=applying.seen("ConfigMap"))
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "1"}


def test_what_was_edited_by_hand_is_restored_and_what_was_added_stays(applying: Applying) -> None:
    applying.apply(CONFIG)
    applying.cluster.replace("ConfigMap", "digits-routing", lambda found: found["data"].update(a="edited", b="added"))
    applying.apply(CONFIG, known=applying.seen("ConfigMap"))
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "1", "b": "added"}


def test_a_label_that_was_added_to_a_selector_by_hand_is_taken_out(applying: Applying) -> None:
    service = child("Service", "digits", spec={"selector": {"app": "ours"}})
    applying.apply(service)
    applying.cluster.replace("Service", "digits", lambda found: found["spec"]["selector"].update(app2="theirs"))
    applying.apply(service, known=applying.seen("Service"))
    assert applying.cluster.get("Service", "digits")["spec"]["selector"] == {"app": "ours"}


def test_what_a_queue_made_of_a_jobs_pod_template_is_left_though_its_labels_change(applying: Applying) -> None:
    """It adds the node selector of a flavor; nobody can change the template of a Job that runs."""
    template = {"spec": {"nodeSelector": {"zone": "a"}, "containers": [{"name": "generate", "image": "worker:1"}]}}
    job = child("Job", "digits-1", spec={"suspend": True, "template": template})
    applying.apply(job)
    flavored = {"zone": "a", "pool": "spot"}
    applying.cluster.replace(
        "Job",
        "digits-1",
        lambda found: found["spec"]["template"]["spec"].update(nodeSelector=flavored),
        manager="queue",
    )
    applying.apply(job, known=applying.seen("Job"))
    assert len(applying.cluster.writes) == 1

    started = child("Job", "digits-1", spec={"template": template})
    applying.apply(started, known=applying.seen("Job"))
    found = applying.cluster.get("Job", "digits-1")["spec"]
    assert found["template"]["spec"]["nodeSelector"] == flavored
    assert not found.get("suspend")


def test_a_server_that_changes_what_is_applied_is_not_fought(applying: Applying) -> None:
    applying.cluster.default = lambda found: found.get("data", {}).update(a="the server knows better")
    for _ in range(3):
        applying.apply(CONFIG, known=applying.seen("ConfigMap"))
    assert len(applying.cluster.writes) == 1


def test_a_foreign_object_of_that_name_is_reported_and_not_touched(applying: Applying) -> None:
    applying.cluster.create({**FOREIGN, "spec": {"selector": {"app": "theirs"}}})
    before = applying.cluster.get("Service", "digits")
    ours = child("Service", "digits", spec={"selector": {"app": "ours"}})
    survey, rejections = applying.apply(ours, CONFIG)
    assert survey.conflicts == (Conflict(observed_ref(ours)),)
    assert rejections == ()
    assert applying.cluster.get("Service", "digits") == before
    assert [write.name for write in applying.cluster.writes] == ["digits-routing"]


def test_a_child_of_a_deleted_service_of_the_same_name_is_waited_for(applying: Applying) -> None:
    applying.cluster.create({**CONFIG, "metadata": {**CONFIG["metadata"], "ownerReferences": [owner(uid="before")]}})
    survey, _ = applying.apply(CONFIG)
    assert survey.leaving
    assert (survey.conflicts, applying.cluster.writes) == ((), [])
    applying.cluster.collect_garbage(now=True)
    survey, _ = applying.apply(CONFIG)
    assert not survey.leaving
    assert applying.cluster.get("ConfigMap", "digits-routing")["metadata"]["ownerReferences"][0]["uid"] == UID


def test_a_job_is_not_made_before_the_claim_that_it_generates_into(applying: Applying) -> None:
    """It would be older than the claim, as one whose revision went with the claim that it lay in; and be made again."""
    metadata = {**CLAIM["metadata"], "ownerReferences": [owner(uid="before")]}
    applying.cluster.create({**CLAIM, "metadata": metadata})
    applying.apply(CLAIM, JOB)
    assert applying.cluster.writes == []
    applying.cluster.collect_garbage(now=True)
    applying.apply(CLAIM, JOB)
    assert [write.kind for write in applying.cluster.writes] == ["PersistentVolumeClaim", "Job"]


def test_a_job_is_not_made_while_its_claim_is_refused(applying: Applying) -> None:
    """A quota, say: its pod could not start, and the Job would be older than the claim that is made in the end."""
    sentence = "exceeded quota: storage"
    applying.cluster.faults.append(
        Fault("apply", "PersistentVolumeClaim", Refusal(403, "Forbidden", sentence), times=1)
    )
    _, rejections = applying.apply(CLAIM, CONFIG, JOB)
    assert rejections == (
        Rejection(observed_ref(CLAIM), sentence),
        Rejection(observed_ref(JOB), "PersistentVolumeClaim digits-repository, on which it builds, is refused"),
    )
    assert applying.cluster.find("Job", "digits-generate-1") is None
    assert applying.cluster.find("ConfigMap", "digits-routing") is not None
    _, rejections = applying.apply(CLAIM, CONFIG, JOB, known=applying.seen("ConfigMap"))
    assert rejections == ()
    assert applying.cluster.find("Job", "digits-generate-1") is not None


def test_a_claim_that_cannot_be_changed_keeps_no_job_back(applying: Applying) -> None:
    applying.apply(CLAIM)
    larger = child("PersistentVolumeClaim", "digits-repository", spec={"resources": {"requests": {"storage": "9Gi"}}})
    applying.cluster.faults.append(Fault("apply", "PersistentVolumeClaim", Refusal(422, "Invalid", "too large")))
    _, rejections = applying.apply(larger, JOB, known=applying.seen("PersistentVolumeClaim"))
    assert [rejection.ref.kind for rejection in rejections] == ["PersistentVolumeClaim"]
    assert applying.cluster.find("Job", "digits-generate-1") is not None


def test_a_refused_child_is_told_of_and_does_not_keep_the_others_back(applying: Applying) -> None:
    sentence = 'Deployment.apps "digits-worker" is invalid: spec.template: image is empty'
    applying.cluster.faults.append(Fault("apply", "Deployment", Refusal(422, "Invalid", sentence), times=1))
    _, rejections = applying.apply(DEPLOYMENT, CONFIG)
    assert rejections == (Rejection(observed_ref(DEPLOYMENT), sentence),)
    assert applying.cluster.find("ConfigMap", "digits-routing") is not None
    _, rejections = applying.apply(DEPLOYMENT, CONFIG, known=applying.seen("ConfigMap"))
    assert rejections == ()
    assert applying.cluster.find("Deployment", "digits-worker") is not None


def test_a_busy_api_server_is_left_alone_for_as_long_as_it_asks(applying: Applying) -> None:
    busy = Refusal(429, "TooManyRequests", "try again", {"Retry-After": "7"})
    applying.cluster.faults.append(Fault("apply", "ConfigMap", busy))
    with pytest.raises(RetryLaterError, match="try again") as raised:
        applying.apply(CONFIG)
    assert raised.value.after_s == 7


def test_an_object_that_was_replaced_meanwhile_is_not_taken_over(applying: Applying) -> None:
    applying.apply(CONFIG)
    stale = applying.seen("ConfigMap")
    applying.cluster.delete("ConfigMap", "digits-routing")
    foreign = {**FOREIGN, "kind": "ConfigMap", "data": {"a": "theirs"},
               "metadata": {"name": "digits-routing", "namespace": "default"}}  # fmt: skip
    applying.cluster.create(foreign)
    with pytest.raises(ConflictError):
        applying.apply(child(data={"a": "2"}), known=stale)
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "theirs"}


def test_an_object_that_was_made_since_it_was_looked_for_is_left_to_the_next_look(applying: Applying) -> None:
    """As by another leader, if this is one that was overtaken."""
    applying.cluster.create(child(data={"a": "by another leader"}))
    with pytest.raises(ConflictError):
        applying.apply(CONFIG, known={observed_ref(CONFIG): None})
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "by another leader"}


def test_an_object_that_changed_since_it_was_looked_at_is_left_to_the_next_look(applying: Applying) -> None:
    applying.apply(CONFIG, DEPLOYMENT)
    stale = applying.seen("ConfigMap", "Deployment")
    applying.cluster.replace("ConfigMap", "digits-routing", lambda found: found["data"].update(a="by another leader"))
    with pytest.raises(ConflictError):
        applying.apply(child(data={"a": "2"}), child("Deployment", "digits-worker", spec={"replicas": 3}), known=stale)
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "by another leader"}
    assert applying.cluster.get("Deployment", "digits-worker")["spec"] == {"replicas": 2}, "decided on the same view"
    applying.apply(child(data={"a": "2"}), known=applying.seen("ConfigMap"))
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "2"}


def test_a_watch_that_lags_behind_our_own_writes_makes_no_conflict(applying: Applying) -> None:
    applying.apply(CONFIG)
    views = [applying.seen("ConfigMap")]
    for number in (2, 3, 4):
        applying.apply(child(data={"a": str(number)}), known=views[0])
        views.append(applying.seen("ConfigMap"))
    for view in views:
        applying.apply(child(data={"a": "4"}), known=view)
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "4"}
    assert len(applying.cluster.writes) == 4
    applying.apply(child(data={"a": "5"}), known=views[2])
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "5"}


def test_a_change_of_others_after_our_own_is_not_overtaken(applying: Applying) -> None:
    applying.apply(CONFIG)
    stale = applying.seen("ConfigMap")
    applying.apply(child(data={"a": "2"}), known=stale)
    applying.cluster.replace("ConfigMap", "digits-routing", lambda found: found["data"].update(a="by another leader"))
    with pytest.raises(ConflictError):
        applying.apply(child(data={"a": "3"}), known=stale)
    assert applying.cluster.get("ConfigMap", "digits-routing")["data"] == {"a": "by another leader"}


def test_nothing_is_remembered_of_a_service_that_is_gone(applying: Applying) -> None:
    applying.cluster.default = lambda found: found.get("data", {}).update(a="the server knows better")
    applying.apply(CONFIG)
    applying.applier.forget(KEY)
    applying.apply(CONFIG, known=applying.seen("ConfigMap"))
    assert len(applying.cluster.writes) == 2
