"""Available while Ready is not: an edit that cannot be followed takes nothing away, and the last worker's end does."""

from __future__ import annotations

import pytest
from tests.cluster.harness.client import Namespace, wait_for
from tests.cluster.harness.load import Load
from tests.cluster.harness.services import SMALL_SPEC, Service

pytestmark = pytest.mark.usefixtures("operator")

NO_KEY = "not a key"
"""Name of an annotation that the CRD lets pass, and that no object can have."""


def told_of(service: Service) -> list[str]:
    """Events about Available, in their order."""
    found = sorted(service.events(), key=lambda event: str(event["firstTimestamp"]))
    return [event["reason"] for event in found if event["reason"] in {"Available", "Unavailable"}]


def test_the_endpoint_is_available_while_edits_fail_and_until_its_last_worker_is_gone(namespace: Namespace) -> None:
    service = Service(namespace, "digits")
    service.apply(SMALL_SPEC)
    service.wait_for("Available", "WaitingForRevision", status="False", timeout_s=60)
    status = service.wait_until_ready()
    revision = status["revision"]

    with Load(service) as load:
        service.patch({"graph": {"source": {"builtin": None, "npz": {"uri": "file:///data/none.npz"}}}})
        service.wait_for("Stalled", "GenerationFailed")
        assert service.condition("Ready")["status"] == "False"
        said = service.wait_for("Available", "Answering")
        assert f"1 of 1 worker and the endpoint answer from revision {revision}" in said
        assert said.endswith("Not all is as declared (GenerationFailed): see Ready.")
        namespace.kubectl("wait", "gnns/digits", "--for=condition=Available", "--timeout=5s")

        header, line = namespace.kubectl("get", "gnns", "-o", "wide").splitlines()[:2]
        assert header.split()[:4] == ["NAME", "READY", "AVAILABLE", "REASON"]
        assert line.split()[:4] == ["digits", "False", "True", "GenerationFailed"]
        assert line[header.index("URL") :].split()[0] == status["endpoint"]

        service.patch({"graph": {"source": {"builtin": "Digits", "npz": None}}})
        service.wait_until_ready()
        service.patch({"worker": {"podAnnotations": {NO_KEY: "x"}}})
        assert NO_KEY in service.wait_for("Stalled", "InvalidSpec", timeout_s=60)
        assert service.condition("Ready")["status"] == "False"
        assert revision in service.wait_for("Available", "Answering", timeout_s=60)
        load.until_more_answers(20)
    assert load.failures == []
    assert set(load.revisions) == {revision}
    assert told_of(service) == ["Available"]

    # Nothing is made again before the spec is corrected.
    namespace.kubectl("delete", "deployment/digits-worker", "--wait=true")
    said = service.wait_for("Available", "InvalidSpec", status="False", timeout_s=90)
    assert "no worker is ready" in said
    namespace.kubectl("wait", "gnns/digits", "--for=condition=Available=false", "--timeout=5s")
    service.patch({"worker": {"podAnnotations": None}})
    service.wait_until_ready()
    service.wait_for("Available", "Answering", timeout_s=60)
    wait_for("the events", lambda: told_of(service) == ["Available", "Unavailable", "Available"], 30)
