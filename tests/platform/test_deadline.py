"""A Job whose deadline passes before it computes: what it waited for outlives the pod that told it."""

from __future__ import annotations

import pytest
from tests.cluster.harness.client import Namespace
from tests.cluster.harness.services import SMALL_SPEC, Service

pytestmark = pytest.mark.usefixtures("operator")

NOWHERE = {"example.com/of-no-node": "true"}
SHORTEST_S = 60


def test_a_job_that_found_no_node_until_its_deadline_says_so_and_an_edit_goes_on(namespace: Namespace) -> None:
    service = Service(namespace, "digits")
    service.apply({**SMALL_SPEC, "generation": {"nodeSelector": NOWHERE, "deadlineSeconds": SHORTEST_S}})
    service.wait_for("Ready", "Unschedulable", "False", timeout_s=60)
    said = service.wait_for("Stalled", "GenerationFailed", timeout_s=SHORTEST_S + 60)
    assert f"its {SHORTEST_S} s (spec.generation.deadlineSeconds) ended while it did not compute: " in said
    assert "didn't match Pod's node affinity/selector" in said
    assert service.children("pods") == [], "which would have told it"
    service.patch({"generation": None})
    service.wait_until_ready()
