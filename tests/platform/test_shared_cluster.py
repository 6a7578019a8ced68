"""A cluster that several teams share: the operator works where the owners of namespaces let it. A real API server."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
import yaml
from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.session import running_api_server
from tests.support.kubernetes.helm import render
from tests.support.machine.ports import reserved_port
from tests.support.operator.running_operator import operator_process

# The first test may wait until Kubernetes is compiled.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

SYSTEM, HERS, OTHERS = "gnnserve-system", "hers", "others"
OWNER = "alice"
"""Administers one of the two namespaces."""
SUSPENDED = {"graph": {"source": {"builtin": "Digits"}}, "suspend": True}


@dataclass(slots=True)
class Operator:
    """A process with the rights of the chart's ServiceAccount, and no others."""

    cluster: Cluster
    port: int
    lines: list[str] = field(default_factory=list)

    def read(self, log: IO[str]) -> None:
        self.lines.extend(iter(log.readline, ""))

    def ask(self, path: str) -> str:
        """The answer; empty while it begins anew."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def is_watched(self, namespace: str) -> bool | None:
        """None while it begins anew."""
        found = re.search(rf'gnnserve_operator_namespace_watched{{namespace="{namespace}"}} (\d)', self.ask("/metrics"))
        return None if found is None else found[1] == "1"

    def reason(self, namespace: str, kind: str = "Ready") -> str:
        """Reason of the condition of the service there, as of its newest generation; empty: it has none."""
        found = self.cluster.get(f"--namespace={namespace}", "gnns/digits")
        return next(
            (
                told["reason"]
                for told in found.get("status", {}).get("conditions", [])
                if told["type"] == kind and told["observedGeneration"] == found["metadata"]["generation"]
            ),
            "",
        )


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    """Installed with `rbac.bindings: Owners`; in one of the namespaces it has its rights already."""
    values = {"watchNamespaces": [HERS, OTHERS], "rbac": {"bindings": "Owners"}}
    with running_api_server(controllers=True) as cluster, reserved_port() as port:
        for name in (SYSTEM, HERS, OTHERS):
            cluster.kubectl("create", "namespace", name)
        rendered = [found for found in render(values, namespace=SYSTEM) if found["kind"] not in {"Deployment", "Pod"}]
        objects = tmp_path / "objects.json"
        objects.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered}))
        cluster.kubectl("apply", "--server-side", f"--filename={objects}")
        cluster.kubectl("wait", "--for=condition=Established", "crd/gnnservices.gnnserve.dev", "--timeout=60s")
        cluster.kubectl(
            "create", "rolebinding", "owner", f"--namespace={HERS}", "--clusterrole=admin", f"--user={OWNER}"
        )
        cluster.kubectl(*binding(OTHERS))
        (settings,) = (found["data"]["settings.yaml"] for found in rendered if found["kind"] == "ConfigMap")
        made = Operator(cluster, port)
        environment = {"KUBECONFIG": str(kubeconfig(cluster, tmp_path)), "POD_ID": "operator", "POD_UID": "uid"}
        given = {**yaml.safe_load(settings), "httpPort": made.port}
        with operator_process(tmp_path, environment=environment, **given) as process:
            assert process.stderr is not None
            threading.Thread(target=made.read, args=(process.stderr,), daemon=True).start()
            for namespace in (HERS, OTHERS):
                service = {"kind": "GNNService", "metadata": {"name": "digits", "namespace": namespace}}
                cluster.apply({"apiVersion": "gnnserve.dev/v1alpha1", **service, "spec": SUSPENDED})
            yield made
            assert process.poll() is None, made.lines


def binding(namespace: str) -> tuple[str, ...]:
    role = f"--clusterrole={SYSTEM}:gnnserve"
    return (
        "create",
        "rolebinding",
        "gnnserve",
        f"--namespace={namespace}",
        role,
        f"--serviceaccount={SYSTEM}:gnnserve",
    )


def kubeconfig(cluster: Cluster, folder: Path) -> Path:
    """That of the chart's ServiceAccount."""
    theirs = json.loads(Path(cluster.kubeconfig).read_text())
    token = cluster.kubectl("create", "token", "gnnserve", f"--namespace={SYSTEM}").strip()
    path = folder / "kubeconfig.json"
    path.write_text(json.dumps({**theirs, "users": [{"name": theirs["users"][0]["name"], "user": {"token": token}}]}))
    return path


def test_the_owner_of_a_namespace_gives_the_operator_its_rights_there_and_takes_them_away(operator: Operator) -> None:
    cluster = operator.cluster
    wait_for("the other namespace to be looked after", lambda: operator.reason(OTHERS) == "Suspended")
    assert operator.reason(HERS) == ""
    assert (operator.is_watched(HERS), operator.is_watched(OTHERS)) == (False, True)
    assert operator.ask("/readyz") == f"ok; not watched for lack of rights: {HERS}\n"

    # The log has a command that the owner may carry out, there and nowhere else.
    warning = next(line for line in operator.lines if f"namespace {HERS} is not watched" in line)
    command = re.search(r"`kubectl ([^`]+)`", json.loads(warning)["message"])
    assert command is not None
    with pytest.raises(HarnessError, match="cannot create resource"):
        cluster.kubectl(*command[1].replace(f"--namespace {HERS}", f"--namespace {OTHERS}").split(), f"--as={OWNER}")
    wait_for(
        "the right to bind to be part of the role admin",
        lambda: "bind" in cluster.kubectl("get", "clusterrole/admin", "--output=json"),
    )
    cluster.kubectl(*command[1].split(), f"--as={OWNER}")
    wait_for("hers to be looked after", lambda: operator.reason(HERS) == "Suspended", timeout_s=90)

    cluster.kubectl("delete", "rolebinding/gnnserve", f"--namespace={HERS}", f"--as={OWNER}")
    wait_for("hers to be left out", lambda: operator.is_watched(HERS) is False, timeout_s=240)
    cluster.kubectl(
        *("patch", "gnns/digits", f"--namespace={OTHERS}", "--type=merge"),
        "--patch",
        json.dumps({"spec": {"image": "a"}}),
    )
    wait_for("the other to be looked after all the same", lambda: operator.reason(OTHERS) == "Suspended")
