"""Services in a pool's workers: real reconciles of both kinds, against the API server in memory."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.kubernetes.fake_cluster import CLAIM_PROTECTION
from tests.support.kubernetes.pod_security import violations
from tests.support.operator.pool_scene import MIB, NAMESPACE, Scene

from gnnserve_api.pods.pool import (
    FIRST_PORT,
    MOST_SERVICES,
    PoolServices,
)
from gnnserve_api.pods.routing import ROUTING_KEY
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.pool import decide_membership
from gnnserve_operator.desired.metadata import ADOPT_ANNOTATION, OWNER_UID, owner_of
from gnnserve_operator.observed import ObservedMember


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_two_services_answer_from_the_pods_of_one_pool(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.add("papers", worker={"share": 3})
    scene.settle()
    for name in ("reviews", "papers"):
        assert scene.condition(name, "Ready")[:2] == ("True", "Serving")
    assert set(scene.of_kind("Deployment")) == {"shared-pool"}
    assert set(scene.of_kind("PersistentVolumeClaim")) == {"shared-pool-repository"}
    assert set(scene.of_kind("PodDisruptionBudget")) == {"shared-pool"}
    assert set(scene.of_kind("ServiceAccount")) == set(scene.of_kind("RoleBinding")) == {"shared-pool"}
    assert set(scene.of_kind("NetworkPolicy")) == {"shared-pool", "reviews-generate", "papers-generate"}
    (role,) = scene.of_kind("Role").values()
    assert role["rules"][0]["resourceNames"] == ["shared-pool-services", "papers-routing", "reviews-routing"]
    listed = scene.services()
    assert {found.port for found in listed.services} == {FIRST_PORT, FIRST_PORT + 1}
    assert {found.name: found.share for found in listed.services} == {"papers": 3, "reviews": 1}
    for found in listed.services:
        spec = scene.of_kind("Service")[found.name]["spec"]
        assert spec["ports"][0]["targetPort"] == found.port
        assert spec["selector"] == {"gnnserve.dev/pool": "shared", "app.kubernetes.io/component": "worker"}
    jobs = scene.of_kind("Job")
    assert len(jobs) == 2
    for job in jobs.values():
        volumes = job["spec"]["template"]["spec"]["volumes"]
        assert {"name": "repository", "persistentVolumeClaim": {"claimName": "shared-pool-repository"}} in volumes
    status = scene.pool_status()
    assert scene.condition("shared", "Ready", "GNNWorkerPool")[:2] == ("True", "WorkersReady")
    assert scene.condition("shared", "Available", "GNNWorkerPool")[:2] == ("True", "Answering")
    assert sorted(status["serviceNames"].split()) == ["papers", "reviews"]
    assert status["workers"]["ready"] == "2/2"
    assert status["memory"] == "520 MiB of 2,048 MiB"
    assert [(one["name"], one["ready"], one["memoryBytes"]) for one in status["services"]] == [
        ("papers", True, 132 * MIB), ("reviews", True, 132 * MIB),
    ]  # fmt: skip


def test_a_service_joins_and_leaves_without_another_pod(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.settle()
    pods, port = set(scene.of_kind("Pod")), scene.services().services[0].port
    scene.add("papers")
    scene.settle()
    assert scene.condition("papers", "Ready")[0] == "True"
    workers = {name for name in scene.of_kind("Pod") if name.startswith("shared-pool")}
    assert workers <= pods
    assert scene.services().services[0].port == port
    scene.cluster.delete("GNNService", "reviews")
    scene.settle()
    assert [found.name for found in scene.services().services] == ["papers"]
    assert {name for name in scene.of_kind("Pod") if name.startswith("shared-pool")} == workers
    assert scene.condition("papers", "Ready")[0] == "True"
    scene.edit("GNNService", "papers", suspend=True)
    scene.settle()
    assert scene.services().services == ()
    assert scene.condition("papers", "Ready")[1] == "Suspended"
    assert len(scene.of_kind("Deployment")) == 1


def test_a_service_without_its_pool_says_so_and_goes_on_once_it_is_there(scene: Scene) -> None:
    scene.add("reviews")
    scene.settle()
    status, reason, message = scene.condition("reviews", "Ready")
    assert (status, reason) == ("False", "WorkerPoolMissing")
    assert "GNNWorkerPool shared (spec.worker.poolRef) does not exist in this namespace: create it" in message
    assert not scene.of_kind("Job")
    scene.add_pool()
    scene.settle()
    assert scene.condition("reviews", "Ready")[0] == "True"
    scene.cluster.delete("GNNWorkerPool", "shared")
    scene.settle()
    assert scene.condition("reviews", "Ready")[1] == "WorkerPoolMissing"
    status, reason, message = scene.condition("reviews", "Available")
    assert (status, reason) == ("True", "Answering"), "the pods are left, and its Service leads to them"
    assert message.startswith("2 workers and the endpoint answer from revision r-")
    for pod in [name for name in scene.of_kind("Pod") if name.startswith("shared-pool-")]:
        scene.cluster.delete("Pod", pod)
    scene.settle()
    assert scene.condition("reviews", "Available")[:2] == ("False", "WorkerPoolMissing")
    assert "reviews-routing" in scene.of_kind("ConfigMap")


def test_a_revision_for_which_there_is_no_room_is_refused_and_the_others_answer(scene: Scene) -> None:
    scene.add_pool()
    scene.sizes = {"reviews": 1000 * MIB, "papers": 900 * MIB}
    scene.add("reviews")
    scene.settle()
    scene.add("papers")
    scene.settle()
    status, reason, message = scene.condition("papers", "Ready")
    assert (status, reason) == ("False", "PoolFull")
    assert "takes 932 MiB of memory" in message
    assert "have 760 MiB left of 2,048 MiB" in message
    assert "papers-routing" not in scene.of_kind("ConfigMap")
    assert scene.condition("reviews", "Ready")[0] == "True"
    assert scene.condition("shared", "Ready", "GNNWorkerPool")[0] == "True"
    fit = scene.condition("shared", "ServicesFit", "GNNWorkerPool")
    assert fit[:2] == ("False", "PoolFull")
    assert "papers: Revision" in fit[2]
    scene.edit("GNNWorkerPool", "shared", resources={"limits": {"memory": "4Gi"}})
    scene.settle()
    assert scene.condition("papers", "Ready")[0] == "True"
    assert scene.condition("shared", "ServicesFit", "GNNWorkerPool")[0] == "True"
    # A larger revision of a service that answers: the present one answers on.
    scene.sizes["reviews"] = 4000 * MIB
    before = scene.of_kind("ConfigMap")["reviews-routing"]["data"][ROUTING_KEY]
    scene.edit("GNNService", "reviews", model={"hidden": 256})
    scene.settle()
    assert scene.condition("reviews", "Ready")[1] == "PoolFull"
    assert scene.of_kind("ConfigMap")["reviews-routing"]["data"][ROUTING_KEY] == before
    assert scene.condition("papers", "Ready")[0] == "True"


def test_a_pool_with_a_device_says_which_field_to_change_and_its_services_answer_on(scene: Scene) -> None:
    """A pool may have been stored before the API server refused such resources."""
    scene.add_pool()
    scene.add("reviews")
    scene.settle()
    pods = scene.of_kind("Deployment")["shared-pool"]["spec"]
    scene.edit("GNNWorkerPool", "shared", resources={"limits": {"memory": "2Gi", "nvidia.com/gpu": "1"}})
    scene.settle()
    status, reason, message = scene.condition("shared", "Stalled", "GNNWorkerPool")
    assert (status, reason) == ("True", "InvalidSpec")
    assert "found resources.limits.nvidia.com/gpu" in message
    assert scene.condition("shared", "Available", "GNNWorkerPool")[:2] == ("True", "Answering")
    assert scene.condition("reviews", "Available")[0] == "True"
    assert scene.condition("reviews", "Ready")[0] == "False"
    assert scene.of_kind("Deployment")["shared-pool"]["spec"] == pods
    assert scene.services().of("reviews") is not None


def test_one_service_that_does_not_load_leaves_the_others_ready(scene: Scene) -> None:
    scene.add_pool()
    scene.silent = {"papers"}
    scene.add("reviews")
    scene.add("papers")
    scene.settle()
    assert scene.condition("reviews", "Ready")[0] == "True"
    assert scene.condition("papers", "Ready")[:2] == ("False", "RevisionSwitching")
    assert scene.condition("shared", "Ready", "GNNWorkerPool")[0] == "True"
    told = {one["name"]: one for one in scene.pool_status()["services"]}
    assert told["papers"]["ready"] is False
    assert "it is loading" in told["papers"]["message"]
    assert (told["papers"].get("available"), told["reviews"]["available"]) == (False, True)
    assert scene.condition("papers", "Available")[:2] == ("False", "NotServing")
    assert "is ready and does not: it is loading" in scene.condition("papers", "Available")[2]
    status, _, message = scene.condition("shared", "Available", "GNNWorkerPool")
    assert (status, "Nothing answers for papers" in message) == ("True", True)


def test_pods_mount_the_secrets_of_services_before_these_join(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.settle()
    before = scene.of_kind("Deployment")["shared-pool"]["metadata"]["generation"]
    scene.add("papers", endpoint={"tokens": {"secretName": "papers-tokens"}, "tls": {"secretName": "papers-tls"}})
    scene.settle()
    deployment = scene.of_kind("Deployment")["shared-pool"]
    assert deployment["metadata"]["generation"] == before + 1
    pod = deployment["spec"]["template"]["spec"]
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {"/etc/gnnserve/secrets/papers/tls", "/etc/gnnserve/secrets/papers/tokens"} <= mounts
    entry = scene.services().of("papers")
    assert entry is not None
    assert (entry.tls, entry.tokens, entry.write_tokens) == (True, True, False)
    assert scene.of_kind("Service")["papers"]["spec"]["ports"][0]["port"] == 443
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_pools_pods_are_as_restricted_as_others_and_its_children_named_after_it(scene: Scene) -> None:
    scene.add_pool(name="shared", podLabels={"team": "search"}, nodeSelector={"zone": "a"}, image="worker:2")
    scene.add("reviews")
    scene.settle()
    template = scene.of_kind("Deployment")["shared-pool"]["spec"]["template"]
    assert violations(template["spec"]) == []
    container = template["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "gnnserve_worker.pods.serve_pool"]
    assert container["image"] == "worker:2"
    assert template["metadata"]["labels"]["team"] == "search"
    assert template["spec"]["nodeSelector"] == {"zone": "a"}
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "8080"
    assert template["spec"]["serviceAccountName"] == "shared-pool"
    (job,) = scene.of_kind("Job").values()
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "worker:2"
    policy = scene.of_kind("NetworkPolicy")["shared-pool"]["spec"]
    for first, last in ((8100, 8163), (8200, 8263)):
        assert {"protocol": "TCP", "port": first, "endPort": last} in policy["ingress"][0]["ports"]
    assert policy["podSelector"]["matchLabels"]["gnnserve.dev/pool"] == "shared"
    everything = [found for key, found in scene.cluster.objects.items() if key[2].startswith("shared-pool")]
    owners = {found["kind"]: owner_of(found) for found in everything if found["kind"] != "Pod"}
    assert {str(owner) for owner in owners.values()} == {"GNNWorkerPool shared"}
    assert [kind for kind, owner in owners.items() if not owner.is_bound] == ["PersistentVolumeClaim"]


def test_a_service_of_a_pool_has_a_port_of_its_own_for_grpc(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.add("papers", endpoint={"grpc": True})
    scene.settle()
    entry = scene.services().of("papers")
    assert entry is not None
    assert entry.grpc
    http, grpc = scene.of_kind("Service")["papers"]["spec"]["ports"]
    assert (http["port"], http["targetPort"]) == (80, entry.port)
    assert grpc == {
        "name": "grpc", "protocol": "TCP", "port": 8001, "targetPort": entry.port + 100,
        "appProtocol": "kubernetes.io/h2c",
    }  # fmt: skip
    assert len(scene.of_kind("Service")["reviews"]["spec"]["ports"]) == 1


def test_a_service_of_a_pool_has_traces_of_its_own(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews", worker={"tracing": {"endpoint": "http://collector.monitoring:4318", "sampledPermille": 20}})
    scene.settle()
    entry = scene.services().of("reviews")
    assert entry is not None
    assert (entry.tracing, entry.sampled_permille) == ("http://collector.monitoring:4318", 20)
    policy = scene.of_kind("NetworkPolicy")["shared-pool"]["spec"]
    assert {"ports": [{"protocol": "TCP", "port": 4318}]} in policy["egress"]


def test_a_taken_name_is_said_and_left_alone(scene: Scene) -> None:
    metadata = {"name": "shared-pool-services", "namespace": NAMESPACE}
    scene.cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}})
    scene.add_pool()
    scene.settle()
    status, reason, message = scene.condition("shared", "Ready", "GNNWorkerPool")
    assert (status, reason) == ("False", "NameTaken")
    assert "ConfigMap shared-pool-services" in message
    assert "give GNNWorkerPool shared another name" in message
    assert scene.of_kind("ConfigMap")["shared-pool-services"]["data"] == {"a": "b"}


def test_pods_that_find_no_room_beside_their_predecessors_are_said_with_the_way_out(scene: Scene) -> None:
    scene.add_pool(replicas=1)
    scene.settle()
    (old,) = (pod for name, pod in scene.of_kind("Pod").items() if name.startswith("shared-pool"))
    scene.edit("GNNWorkerPool", "shared", podLabels={"team": "search"})
    scene.is_without_room = True
    scene.settle()
    status, reason, message = scene.condition("shared", "Ready", "GNNWorkerPool")
    assert (status, reason) == ("False", "Unschedulable")
    assert "set spec.rollout.maxUnavailable of GNNWorkerPool shared to 1" in message
    assert "Meanwhile 1 of the present workers answer." in message
    assert old["metadata"]["name"] in scene.of_kind("Pod")


def test_a_change_of_a_pools_deployment_is_set_back_and_told(scene: Scene) -> None:
    scene.add_pool()
    scene.settle()
    scene.cluster.replace(
        "Deployment", "shared-pool", lambda found: found["spec"].update(replicas=5), manager="kubectl"
    )
    scene.settle()
    assert scene.of_kind("Deployment")["shared-pool"]["spec"]["replicas"] == 2
    (told,) = [event for event in scene.of_kind("Event").values() if event["reason"] == "ChangeReverted"]
    assert told["involvedObject"]["kind"] == "GNNWorkerPool"
    assert "changed by kubectl, and is set back to what is declared: spec.replicas from 5 back to 2" in told["message"]
    assert "kubectl scale -n default gnnp/shared --replicas=5" in told["message"]


def test_the_models_of_a_pool_outlive_it_and_are_brought_back(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.settle()
    before, jobs = scene.of_kind("PersistentVolumeClaim")["shared-pool-repository"], scene.of_kind("Job")
    uid = scene.of_kind("GNNWorkerPool")["shared"]["metadata"]["uid"]
    assert before["metadata"]["labels"][OWNER_UID] == uid
    scene.cluster.delete("GNNWorkerPool", "shared")
    scene.settle()
    assert scene.of_kind("PersistentVolumeClaim") == {"shared-pool-repository": before}
    (event,) = [found for found in scene.of_kind("Event").values() if found["reason"] == "RepositoryRetained"]
    assert event["involvedObject"]["kind"] == "GNNWorkerPool"
    assert "again with spec.repository.claimName: shared-pool-repository. To" in event["message"]
    assert scene.condition("reviews", "Ready")[:2] == ("False", "WorkerPoolMissing")
    scene.add_pool(repository={"claimName": "shared-pool-repository"})
    scene.settle()
    assert scene.of_kind("Job") == jobs, "nothing trains"
    assert scene.condition("reviews", "Ready")[:2] == ("True", "Serving")
    assert scene.of_kind("PersistentVolumeClaim") == {"shared-pool-repository": before}


def test_a_pool_that_is_made_again_hides_no_models_of_an_earlier_one(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.settle()
    uid = scene.of_kind("GNNWorkerPool")["shared"]["metadata"]["uid"]
    jobs = scene.of_kind("Job")
    scene.cluster.delete("GNNWorkerPool", "shared")
    scene.add_pool()
    scene.add("papers")
    scene.settle()
    assert scene.condition("shared", "Stalled", "GNNWorkerPool")[:2] == ("True", "RepositoryRetained")
    status, reason, message = scene.condition("papers", "Ready")
    assert (status, reason) == ("False", "WorkerPoolMissing")
    assert "is that of an earlier pool of this name" in message
    assert scene.of_kind("Job") == jobs, "nothing is generated into what is not this pool's"
    allowed = {ADOPT_ANNOTATION: uid}
    scene.cluster.replace(
        "PersistentVolumeClaim", "shared-pool-repository",
        lambda found: found["metadata"]["annotations"].update(allowed),
    )  # fmt: skip
    scene.settle()
    assert scene.condition("shared", "Ready", "GNNWorkerPool")[0] == "True"
    for name in ("reviews", "papers"):
        assert scene.condition(name, "Ready")[:2] == ("True", "Serving")


def test_the_log_of_a_service_in_a_pool_can_be_gone_on_with(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews", updates={"log": {"postgres": {"secretName": "log"}}})
    scene.settle()
    uid = scene.of_kind("GNNService")["reviews"]["metadata"]["uid"]
    scene.cluster.delete("GNNService", "reviews")
    scene.settle()
    (event,) = [found for found in scene.of_kind("Event").values() if found["reason"] == "ChangesRetained"]
    assert event["involvedObject"]["uid"] == uid
    assert f"make GNNService reviews again with spec.updates.adopt: {uid}." in event["message"]


def test_a_pool_may_have_its_claim_deleted_with_it(scene: Scene) -> None:
    scene.add_pool(repository={"deletionPolicy": "Delete"})
    scene.add("reviews")
    scene.settle()
    assert scene.condition("reviews", "RepositoryKept")[:2] == ("True", "RepositoryKept"), "its own pool's claim"
    assert OWNER_UID not in scene.of_kind("PersistentVolumeClaim")["shared-pool-repository"]["metadata"]["labels"]
    scene.edit("GNNWorkerPool", "shared", repository={"deletionPolicy": "Retain"})
    scene.settle()
    assert "ownerReferences" not in scene.of_kind("PersistentVolumeClaim")["shared-pool-repository"]["metadata"]
    scene.edit("GNNWorkerPool", "shared", repository={"deletionPolicy": "Delete"})
    scene.settle()
    scene.cluster.delete("GNNWorkerPool", "shared")
    scene.settle()
    assert scene.of_kind("PersistentVolumeClaim") == {}
    assert all(found["reason"] != "RepositoryRetained" for found in scene.of_kind("Event").values())


def test_a_pool_tells_that_the_claim_which_it_names_is_missing(scene: Scene) -> None:
    scene.add_pool(repository={"claimName": "models"})
    scene.settle()
    status, reason, message = scene.condition("shared", "RepositoryKept", "GNNWorkerPool")
    assert (status, reason) == ("False", "VolumeClaimMissing")
    assert message.startswith("PersistentVolumeClaim models")


def test_a_pool_tells_that_its_claim_goes_and_how_to_keep_the_files(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.settle()
    status, reason, message = scene.condition("shared", "RepositoryKept", "GNNWorkerPool")
    assert (status, reason) == ("True", "RepositoryKept")
    assert message == "PersistentVolumeClaim shared-pool-repository is there, and not being deleted."
    claim, protected = ("PersistentVolumeClaim", "shared-pool-repository"), {"finalizers": [CLAIM_PROTECTION]}
    scene.cluster.replace(*claim, lambda found: found["metadata"].update(protected))
    scene.cluster.delete(*claim)
    scene.settle()
    status, reason, message = scene.condition("shared", "RepositoryKept", "GNNWorkerPool")
    assert (status, reason) == ("False", "VolumeClaimTerminating")
    assert "it goes, and the models of the services with it. To keep the files, set" in message
    events = [found["reason"] for found in scene.of_kind("Event").values()]
    assert events.count("VolumeClaimTerminating") >= 1


def test_nothing_is_written_once_all_is_as_declared(scene: Scene) -> None:
    scene.add_pool()
    scene.add("reviews")
    scene.settle()
    before = len(scene.cluster.writes)
    scene.settle()
    assert scene.cluster.writes[before:] == []


def member(name: str, number: int = 0, **spec: Any) -> ObservedMember:
    parsed = GNNServiceSpec.model_validate(
        {"graph": {"source": {"builtin": "Digits"}}, "worker": {"poolRef": {"name": "shared"}}, **spec}
    )
    return ObservedMember(name, f"uid-{name}", f"2026-01-01T00:00:{number:02}Z", spec=parsed)


def test_membership_keeps_ports_and_order_and_gives_none_that_may_be_listened_at() -> None:
    first = decide_membership([member("b", 1), member("a", 0)], PoolServices(), is_rolled_out=True).services
    assert [(found.name, found.port) for found in first.services] == [("a", FIRST_PORT), ("b", FIRST_PORT + 1)]
    second = decide_membership([member("b", 1), member("c", 2)], first, is_rolled_out=True).services
    assert [(found.name, found.port) for found in second.services] == [("b", FIRST_PORT + 1), ("c", FIRST_PORT + 2)]
    third = decide_membership([member("b", 1), member("d", 3)], second, is_rolled_out=True).services
    assert third.services[1].port == FIRST_PORT


def test_a_service_with_secrets_waits_until_every_pod_has_them() -> None:
    plain, tokens = member("a"), {"endpoint": {"tokens": {"secretName": "s"}}}
    waiting = decide_membership([plain, member("b", 1, **tokens)], PoolServices(), is_rolled_out=False)
    assert ([found.name for found in waiting.services.services], waiting.waiting) == (["a"], ("b",))
    there = decide_membership([plain], PoolServices(), is_rolled_out=True).services
    changed = decide_membership([member("a", **tokens)], there, is_rolled_out=False)
    assert changed.services == there
    assert decide_membership([member("a", **tokens)], there, is_rolled_out=True).services.services[0].tokens


def test_a_pool_refuses_more_services_than_it_has_ports() -> None:
    many = [member(f"s{number:03}", number % 60) for number in range(MOST_SERVICES + 2)]
    found = decide_membership(many, PoolServices(), is_rolled_out=True)
    assert len(found.services.services) == MOST_SERVICES
    assert len(found.refused) == 2
