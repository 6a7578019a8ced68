"""What a person looks at when a test on the cluster failed, as text: objects, pods and their ends, events, logs."""

from __future__ import annotations

from typing import Any

from tests.cluster.harness.client import Cluster, Namespace
from tests.cluster.harness.commands import HarnessError

LINES = 60


def diagnose(namespace: Namespace) -> str:
    cluster = namespace.cluster
    return "\n\n".join(
        [
            _section(f"objects in {namespace}", _objects, namespace),
            _section("GNNServices", _services, namespace),
            _section(f"events in {namespace}", _events, namespace),
            _section(f"pods in {namespace}", _pods, cluster, namespace.name),
            _section("operators", _operators, cluster),
        ]
    )


def _section(title: str, look: Any, *of: Any) -> str:
    # One question that the cluster does not answer must not hide the answers to the others.
    try:
        return f"==== {title}\n{look(*of).rstrip()}"
    except (HarnessError, KeyError) as failed:
        return f"==== {title}\n(could not be read: {failed})"


def _objects(namespace: Namespace) -> str:
    kinds = "deployments,replicasets,jobs,pods,services,configmaps,persistentvolumeclaims,networkpolicies"
    return namespace.kubectl("get", kinds, "--output=wide")


def _services(namespace: Namespace) -> str:
    return namespace.kubectl("get", "gnnservices.gnnserve.dev", "--output=yaml")


def _events(namespace: Namespace) -> str:
    lines = namespace.kubectl("get", "events", "--sort-by=.metadata.creationTimestamp").splitlines()
    return "\n".join(lines[:1] + lines[1:][-LINES:])


def _pods(cluster: Cluster, namespace: str, selector: str = "") -> str:
    pods = cluster.get("pods", "--namespace", namespace, f"--selector={selector}")["items"]
    return "\n".join(_pod(cluster, pod) for pod in pods) or "none"


def _operators(cluster: Cluster) -> str:
    found = cluster.get("pods", "--all-namespaces", "--selector=app.kubernetes.io/component=operator")["items"]
    return "\n".join(_pod(cluster, pod) for pod in found) or "none has the label app.kubernetes.io/component=operator"


def _pod(cluster: Cluster, pod: dict[str, Any]) -> str:
    metadata, status = pod["metadata"], pod.get("status", {})
    lines = [f"-- pod {metadata['namespace']}/{metadata['name']}: {status.get('phase')}"]
    for condition in status.get("conditions", []):
        if condition["status"] != "True":
            lines.append(f"   not {condition['type']}: {condition.get('reason', '')} {condition.get('message', '')}")
    restarted = False
    for container in status.get("containerStatuses", []):
        restarted |= container["restartCount"] > 0
        lines.append(f"   container {container['name']}: {container['state']}")
        if container.get("lastState"):
            lines.append(f"   before: {container['lastState']}")
    for previous in [True, False] if restarted else [False]:
        lines.append(f"   log{' before the restart' if previous else ''}:")
        try:
            printed = cluster.kubectl(
                *("logs", "--namespace", metadata["namespace"], metadata["name"], "--all-containers"),
                *(f"--tail={LINES}", f"--previous={str(previous).lower()}"),
            )
        except HarnessError as failed:
            printed = str(failed)
        lines.extend(f"     {line}" for line in printed.splitlines())
    return "\n".join(lines)
