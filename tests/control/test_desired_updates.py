"""What spec.updates changes in the children, and that without it nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.control.test_desired import build, environment, of_kind, pod_of
from tests.support.observed import UID, make_service
from tests.support.pod_security import violations

from gnnserve_operator.desired.deployment import digest_of_pods

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
    assert not {"GNNSERVE_SERVICE_UID", "GNNSERVE_MAX_DELTA", "GNNSERVE_DEVICE"} & environment(container_of()).keys()


@pytest.mark.parametrize("updates", [SQLITE, POSTGRES], ids=["SQLite", "PostgreSQL"])
def test_updates_change_the_worker_pods_and_generate_nothing_anew(updates: dict[str, Any]) -> None:
    plain, with_updates = make_service(), make_service(updates=updates)
    before, after = build(plain), build(with_updates)
    assert of_kind(before, "Job") == of_kind(after, "Job")
    assert pod_of(before, "Deployment") != pod_of(after, "Deployment")
    # What a user changes waits for no other service's rollout.
    assert digest_of_pods(plain.spec) != digest_of_pods(with_updates.spec)
    assert violations(pod_of(after, "Deployment")) == []


def test_with_sqlite_a_worker_may_write_the_folder_of_its_own_log_alone() -> None:
    container = container_of(updates=SQLITE)
    env, mounts = environment(container), mounts_of(container)
    assert env["GNNSERVE_SQLITE_LOG"] == f"/var/lib/gnnserve/updates/{UID}/log.sqlite"
    assert (env["GNNSERVE_SERVICE_UID"], env["GNNSERVE_MAX_DELTA"], env["GNNSERVE_DEVICE"]) == (UID, str(2**30), "CPU")
    assert "GNNSERVE_POSTGRES_LOG" not in env
    assert mounts["/var/lib/gnnserve/updates"] == {
        "name": "repository",
        "mountPath": "/var/lib/gnnserve/updates",
        "subPath": "shop/digits/updates",
    }
    assert mounts["/repository"]["readOnly"] is True


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


def ports_of(children: dict[tuple[str, str], dict[str, Any]], name: str) -> set[int]:
    egress = children["NetworkPolicy", name]["spec"].get("egress", [])
    assert all(rule["ports"] for rule in egress), "a rule without ports would open all of them"
    return {port["port"] for rule in egress for port in rule["ports"]}


def test_only_workers_with_a_database_may_reach_one() -> None:
    names = {53, 5353, 443, 6443}
    assert ports_of(build(make_service()), "digits-worker") == names
    assert ports_of(build(make_service(updates=SQLITE)), "digits-worker") == names
    with_database = build(make_service(updates=POSTGRES))
    assert ports_of(with_database, "digits-worker") == names | {5432}
    assert ports_of(with_database, "digits-generate") == set()
    assert ports_of(build(make_service(updates=POSTGRES), postgresPorts=[6432]), "digits-worker") == names | {6432}
    assert ports_of(build(make_service(updates=POSTGRES), postgresPorts=[]), "digits-worker") == names
