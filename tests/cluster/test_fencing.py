"""The chart's ValidatingAdmissionPolicy on a real API server: whoever was overtaken applies nothing any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.commands import HarnessError
from tests.cluster.harness.session import running_api_server
from tests.support.kubernetes.helm import render
from tests.support.operator.operator import child

from gnnserve_operator.desired.metadata import FIELD_MANAGER, TERM_ANNOTATION
from gnnserve_operator.leadership import fence_of
from gnnserve_operator.settings import LeaderElection

# The first test may wait until Kubernetes is compiled.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

SYSTEM = "gnnserve-system"
POLICY = fence_of(LeaderElection(lease_name="gnnserve", namespace=SYSTEM))
OPERATOR = f"system:serviceaccount:{SYSTEM}:gnnserve"
KINDS = {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


@dataclass(slots=True)
class Fence:
    cluster: Cluster

    def lead(self, term: int) -> None:
        self.cluster.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "gnnserve", "namespace": SYSTEM},
                "spec": {"holderIdentity": f"pod-{term}", "leaseDurationSeconds": 15, "leaseTransitions": term},
            }
        )

    def apply(self, term: int | None, name: str, user: str | None = OPERATOR) -> str:
        """What the API server has against it; empty: nothing."""
        manifest = child(name=name, data={"term": str(term)})
        del manifest["metadata"]["ownerReferences"]
        if term is not None:
            manifest["metadata"]["annotations"] = {TERM_ANNOTATION: str(term)}
        how = ("apply", "--server-side", "--force-conflicts", f"--field-manager={FIELD_MANAGER}", "--filename=-")
        who = () if user is None else (f"--as={user}",)
        try:
            self.cluster.kubectl(*how, *who, stdin=json.dumps(manifest))
        except HarnessError as error:
            return str(error)
        return ""


@pytest.fixture(scope="module")
def fence() -> Iterator[Fence]:
    with running_api_server(controllers=False) as cluster:
        cluster.kubectl("create", "namespace", SYSTEM)
        rendered = render({"leaderElection": {"fencing": True}}, namespace=SYSTEM)
        cluster.apply(*(found for found in rendered if found["kind"] in KINDS))
        made = Fence(cluster)
        made.lead(3)
        # A policy holds a moment after it was made.
        wait_for("the policy to hold", lambda: "this operator was overtaken" in made.apply(1, "probe"))
        yield made


def test_the_leader_applies_and_who_led_before_does_not(fence: Fence) -> None:
    assert fence.apply(3, "a") == ""
    refused = fence.apply(2, "a")
    assert "this operator was overtaken: its term is 2, that of Lease gnnserve is 3" in refused
    assert f"ValidatingAdmissionPolicy '{POLICY}'" in refused
    assert "this operator was overtaken" in fence.apply(2, "new"), "what versions cannot refuse, since nothing is there"
    assert "this operator was overtaken" in fence.apply(None, "new")


def test_nobody_else_is_hindered(fence: Fence) -> None:
    assert fence.apply(None, "b", user=None) == ""


def test_while_the_lease_is_missing_the_refusal_names_the_policy_by_which_the_operator_knows_it(fence: Fence) -> None:
    fence.cluster.kubectl("--namespace", SYSTEM, "delete", "lease", "gnnserve")
    wait_for("the policy to miss the Lease", lambda: f"ValidatingAdmissionPolicy '{POLICY}'" in fence.apply(3, "d"))
    fence.lead(3)
    wait_for("the policy to find it", lambda: fence.apply(3, "d") == "")


def test_the_next_term_shuts_out_the_last_one(fence: Fence) -> None:
    assert fence.apply(3, "c") == ""
    fence.lead(4)
    assert fence.apply(4, "c") == "", "a new leader need not wait until the API server knows of its term"
    wait_for("the new term to hold", lambda: "its term is 3" in fence.apply(3, "c"))
    assert fence.apply(4, "c") == ""
