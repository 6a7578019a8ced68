"""What spec.updates changes in the children, and that without it nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.kubernetes.pod_security import violations
from tests.support.operator.desired_children import build, environment, of_kind, pod_of
from tests.support.operator.observed import UID, make_service, make_settings

from gnnserve_operator.desired.deployment import digest_of_pods
from gnnserve_operator.desired.job import build_job
from gnnserve_operator.desired.metadata import Parent
from gnnserve_operator.observed import observed_job

SQLITE: dict[str, Any] = {"log": {"sqlite": {}}, "maxDelta": "1Gi"}
POSTGRES: dict[str, Any] = {"log": {"postgres": {"secretName": "digits-log"}}}
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def container_of(**spec: Any) -> dict[str, Any]:
    (container,) = pod_of(build(make_service(**spec)), "Deployment")["containers"]
    return dict(container)


def mounts_of(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


def test_without_updates_nothing_says_of_them() -> None:
    children = build(make_service())
    assert "updates" not in str(children)
    assert "change-log" not in str(children)
    told = {"GNNSERVE_SERVICE_UID", "GNNSERVE_MAX_DELTA", "GNNSERVE_DEVICE", "GNNSERVE_COMPACT"}
    assert not told & (environment(container_of()).keys() | environment_of(job_of({})).keys())


@pytest.mark.parametrize("updates", [SQLITE, POSTGRES], ids=["SQLite", "PostgreSQL"])
def test_updates_change_the_worker_pods_and_generate_nothing_anew(updates: dict[str, Any]) -> None:
    plain, with_updates = make_service(), make_service(updates=updates)
    before, after = build(plain), build(with_updates)
    assert plain.spec.recipe() == with_updates.spec.recipe()
    assert pod_of(before, "Deployment") != pod_of(after, "Deployment")
    # What a user changes waits for no other service's rollout.
    assert digest_of_pods(plain.spec) != digest_of_pods(with_updates.spec)
    assert violations(pod_of(after, "Deployment")) == []


def test_with_sqlite_a_worker_may_write_the_folder_of_its_own_log_alone() -> None:
    container = container_of(updates=SQLITE)
    env, mounts = environment(container), mounts_of(container)
    assert env["GNNSERVE_SQLITE_LOG"] == f"/var/lib/gnnserve/updates/{UID}/log.sqlite"
    assert (env["GNNSERVE_SERVICE_UID"], env["GNNSERVE_MAX_DELTA"]) == (UID, str(2**30))
    assert "GNNSERVE_DEVICE" not in env
    assert "GNNSERVE_POSTGRES_LOG" not in env
    assert mounts["/var/lib/gnnserve/updates"] == {
        "name": "repository",
        "mountPath": "/var/lib/gnnserve/updates",
        "subPath": "shop/digits/updates",
    }
    assert mounts["/repository"]["readOnly"] is True


def test_the_log_of_a_service_that_is_gone_may_be_adopted() -> None:
    earlier = "f7b4c2a0-0000-4000-8000-000000000001"
    env = environment(container_of(updates={**SQLITE, "adopt": earlier}))
    assert env["GNNSERVE_SQLITE_LOG"] == f"/var/lib/gnnserve/updates/{earlier}/log.sqlite"
    assert env["GNNSERVE_SERVICE_UID"] == earlier
    assert environment_of(job_of({"updates": {**SQLITE, "adopt": earlier}}))["GNNSERVE_SERVICE_UID"] == earlier


def test_with_postgres_a_worker_sees_the_address_and_nothing_else_of_its_secret() -> None:
    pod = pod_of(build(make_service(updates=POSTGRES)), "Deployment")
    (container,) = pod["containers"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "change-log"]
    assert volume["secret"] == {
        "secretName": "digits-log",
        "optional": True,
        "defaultMode": 0o440,
        "items": [{"key": "uri", "path": "uri"}],
    }
    assert mounts_of(container)["/etc/gnnserve/log"] == {
        "name": "change-log",
        "mountPath": "/etc/gnnserve/log",
        "readOnly": True,
    }
    env = environment(container)
    assert (env["GNNSERVE_POSTGRES_LOG"], env["GNNSERVE_MAX_DELTA"]) == ("/etc/gnnserve/log/uri", str(2**31))
    assert "GNNSERVE_SQLITE_LOG" not in env
    assert "digits-log" not in str(container), "nor is what is in it: neither variables nor arguments"


@pytest.mark.parametrize(
    ("updates", "repository", "strategy"),
    [
        pytest.param(SQLITE, {}, ROLLING, id="SQLite on a volume of one node"),
        pytest.param(SQLITE, {"claimName": "mine"}, {"type": "Recreate"}, id="SQLite on a claim of the user's"),
        pytest.param(SQLITE, {"claim": {"accessMode": "ReadWriteMany"}}, {"type": "Recreate"}, id="SQLite, many nodes"),
        pytest.param(POSTGRES, {"claimName": "mine"}, ROLLING, id="PostgreSQL"),
    ],
)
def test_two_workers_never_write_a_file_from_two_nodes(
    updates: dict[str, Any], repository: dict[str, Any], strategy: dict[str, Any]
) -> None:
    children = build(make_service(updates=updates, repository=repository))
    assert of_kind(children, "Deployment")["spec"]["strategy"] == strategy


# --- the Job


def job_of(spec: dict[str, Any], compacts: str | None = None, name: str = "digits") -> dict[str, Any]:
    service = make_service(name, **spec)
    return build_job(Parent(name, "shop", UID), service.spec, make_settings(), f"{name}-repository", compacts)


def pod_in(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def environment_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_in(job)["containers"]
    return environment(container)


def test_generation_is_told_where_the_log_is() -> None:
    """Generation of a changed spec begins from the newest graph that was made of it."""
    with_file, with_database = job_of({"updates": SQLITE}), job_of({"updates": POSTGRES})
    for job, size in ((with_file, 2**30), (with_database, 2**31)):
        env = environment_of(job)
        assert (env["GNNSERVE_SERVICE_UID"], env["GNNSERVE_MAX_DELTA"]) == (UID, str(size))
        assert not {"GNNSERVE_DEVICE", "GNNSERVE_COMPACT", "GNNSERVE_RETRAIN"} & env.keys()
        assert violations(pod_in(job)) == []
        assert "affinity" not in pod_in(job)
    assert environment_of(with_file)["GNNSERVE_SQLITE_LOG"] == f"/repository/shop/digits/updates/{UID}/log.sqlite"
    assert environment_of(with_database)["GNNSERVE_POSTGRES_LOG"] == "/etc/gnnserve/log/uri"
    (container,) = pod_in(with_database)["containers"]
    assert mounts_of(container)["/etc/gnnserve/log"]["readOnly"] is True
    (volume,) = [volume for volume in pod_in(with_database)["volumes"] if volume["name"] == "change-log"]
    assert volume["secret"]["items"] == [{"key": "uri", "path": "uri"}]


def test_each_revision_is_compacted_by_a_job_of_its_own() -> None:
    spec = {"updates": POSTGRES}
    plain, first, second = job_of(spec), job_of(spec, "rev-1"), job_of(spec, "rev-2")
    names = {job["metadata"]["name"] for job in (plain, first, second)}
    assert len(names) == 3
    assert environment_of(first) == environment_of(plain) | {"GNNSERVE_COMPACT": "rev-1"}
    retrained = job_of({"updates": {**POSTGRES, "compaction": {"retrain": True}}}, "rev-1")
    assert environment_of(retrained) == environment_of(first) | {"GNNSERVE_RETRAIN": "true"}
    assert observed_job(first).compacts == "rev-1"
    assert observed_job(plain).compacts == ""
    assert first["metadata"]["labels"] == plain["metadata"]["labels"]


def test_when_compaction_begins_is_no_part_of_any_pod() -> None:
    late = {"deltaPercent": 90, "changes": 1000}
    for updates in (SQLITE, POSTGRES):
        before, after = make_service(updates=updates), make_service(updates={**updates, "compaction": late})
        assert build(before) == build(after)
        assert digest_of_pods(before.spec) == digest_of_pods(after.spec)


NEAR = {
    "labelSelector": {
        "matchLabels": {"gnnserve.dev/service": "digits", "app.kubernetes.io/component": "worker"},
    },
    "topologyKey": "kubernetes.io/hostname",
}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("updates", "repository", "is_beside"),
    [
        pytest.param(SQLITE, {}, False, id="SQLite on a volume of one node"),
        pytest.param(SQLITE, {"claimName": "mine"}, True, id="SQLite on a claim of the user's"),
        pytest.param(SQLITE, {"claim": {"accessMode": "ReadWriteMany"}}, True, id="SQLite, many nodes"),
        pytest.param(POSTGRES, {"claimName": "mine"}, False, id="PostgreSQL"),
    ],
)
def test_a_file_is_compacted_on_the_node_of_its_worker(
    updates: dict[str, Any], repository: dict[str, Any], is_beside: bool
) -> None:
    """SQLite's locks hold among the pods of one node."""
    spec = {"updates": updates, "repository": repository}
    assert "affinity" not in pod_in(job_of(spec))
    affinity = pod_in(job_of(spec, "rev-1")).get("affinity")
    assert affinity == ({"podAffinity": {REQUIRED: [NEAR]}} if is_beside else None)


def test_the_users_affinity_holds_beside_it() -> None:
    zone = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "topology.kubernetes.io/zone"}
    nodes = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "fast", "operator": "Exists"}]}]}
    own = {"nodeAffinity": {REQUIRED: nodes}, "podAffinity": {REQUIRED: [zone]}}
    spec = {"updates": SQLITE, "repository": {"claimName": "mine"}, "generation": {"affinity": own}}
    plain, compacting = pod_in(job_of(spec)), pod_in(job_of(spec, "rev-1"))
    assert plain["affinity"]["podAffinity"][REQUIRED] == [zone]
    assert compacting["affinity"]["podAffinity"][REQUIRED] == [zone, NEAR]
    assert compacting["affinity"]["nodeAffinity"] == plain["affinity"]["nodeAffinity"]


def ports_of(children: dict[tuple[str, str], dict[str, Any]], name: str) -> set[int]:
    egress = children["NetworkPolicy", name]["spec"].get("egress", [])
    assert all(rule["ports"] for rule in egress), "a rule without ports would open all of them"
    return {port["port"] for rule in egress for port in rule["ports"]}


def test_only_pods_with_a_database_may_reach_one() -> None:
    names = {53, 5353, 443, 6443}
    assert ports_of(build(make_service()), "digits-worker") == names
    assert ports_of(build(make_service(updates=SQLITE)), "digits-worker") == names
    with_database = build(make_service(updates=POSTGRES))
    assert ports_of(with_database, "digits-worker") == names | {5432}
    assert ports_of(with_database, "digits-generate") == {53, 5353, 5432}
    assert ports_of(build(make_service(updates=SQLITE)), "digits-generate") == set()
    assert ports_of(build(make_service(updates=POSTGRES), postgresPorts=[6432]), "digits-worker") == names | {6432}
    assert ports_of(build(make_service(updates=POSTGRES), postgresPorts=[]), "digits-worker") == names
