"""What a real API server makes of Jobs that wait for their turn, and of orphans that a service takes over."""

from __future__ import annotations

import re

from tests.cluster.harness.client import Namespace
from tests.cluster.harness.installation import Installation
from tests.cluster.harness.services import SMALL_SPEC, Service

MADE = "pods,jobs,deployments,configmaps,persistentvolumeclaims,services,serviceaccounts,roles,rolebindings"


def uids(namespace: Namespace) -> dict[str, str]:
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"]
        for item in namespace.items(MADE, "--selector=gnnserve.dev/service")
    }


def test_what_an_orphaned_service_left_is_taken_over_by_the_command_of_its_message(
    operator: Installation, namespace: Namespace
) -> None:
    service = Service(namespace, "digits")
    service.apply(SMALL_SPEC)
    service.wait_until_ready()
    before = uids(namespace)
    namespace.kubectl("delete", "gnns/digits", "--cascade=orphan")
    service.apply(SMALL_SPEC)
    said = service.wait_for("Stalled", "NameTaken", timeout_s=60)
    (command,) = re.findall(r"`kubectl (annotate [^`]*)`", said)
    operator.cluster.kubectl(*command.split())
    service.wait_until_ready()
    assert uids(namespace) == before, "nothing is made anew, and no worker is replaced"
    assert service.predict(0, 1)["revision"] == service.status()["revision"]
