"""The size of the repository's claim: it grows, it is never asked to shrink, and a refused growth can be taken back."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.operator.observed import Namespace

from gnnserve_operator.kinds import observed_ref
from gnnserve_operator.observed import Rejection

REFUSAL = (
    'persistentvolumeclaims "digits-repository" is forbidden: only dynamically provisioned pvc can be resized and the '
    "storageclass that provisions the pvc must support resize"
)


def with_claim(declared: str | None, requested: str, capacity: str | None) -> Namespace:
    """A service that serves, with a claim that asks for `requested` and has `capacity`."""
    namespace = Namespace()
    namespace.serve()
    claim = namespace.get("PersistentVolumeClaim")
    claim["spec"]["resources"]["requests"]["storage"] = requested
    if capacity is not None:
        claim["status"] = {"phase": "Bound", "capacity": {"storage": capacity}}
    namespace.edit(repository=None if declared is None else {"claim": {"storage": declared}})
    namespace.settle()
    return namespace


def asked(namespace: Namespace) -> Any:
    return namespace.get("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]


@pytest.mark.parametrize(
    ("declared", "requested", "capacity", "expected"),
    [
        pytest.param("20Gi", "10Gi", "10Gi", "20Gi", id="growth is asked for"),
        pytest.param("20Gi", "20Gi", "10Gi", "20Gi", id="an expansion that is under way goes on"),
        pytest.param(None, "20Gi", "10Gi", "20Gi", id="back to what there is while an expansion is under way"),
        pytest.param("15Gi", "20Gi", "10Gi", "15Gi", id="an expansion that the storage cannot make is tried with less"),
        pytest.param("10Gi", "50Gi", "50Gi", "50Gi", id="an autoscaler of volumes made it larger"),
        pytest.param("10Gi", "50Gi", None, "50Gi", id="larger than declared and without a volume yet"),
        pytest.param("10Gi", "10Gi", "16Gi", "10Gi", id="the storage gave more than was asked for"),
        pytest.param("4Gi", "10Gi", "10Gi", "10Gi", id="less than there is, which the API server did not refuse"),
        pytest.param("10240Mi", "10Gi", "10Gi", "10240Mi", id="the same in another unit"),
    ],
)
def test_a_claim_is_never_asked_to_become_smaller_than_it_is(
    declared: str | None, requested: str, capacity: str | None, expected: str
) -> None:
    namespace = with_claim(declared, requested, capacity)
    assert asked(namespace) == expected
    assert namespace.reason() == "True Serving"
    assert namespace.reason("Stalled") == "False Settled"


@pytest.mark.parametrize(
    ("requested", "capacity", "least"),
    [
        pytest.param("10Gi", "10Gi", "10Gi", id="as asked for"),
        pytest.param("20Gi", "10Gi", "10Gi", id="an expansion that has not come"),
        pytest.param("10Gi", "16Gi", "10Gi", id="the storage gave more"),
        pytest.param("10Gi", None, "10Gi", id="no volume yet"),
    ],
)
def test_the_status_tells_to_what_the_spec_may_go_back(requested: str, capacity: str | None, least: str) -> None:
    assert with_claim(None, requested, capacity).status["repositoryStorage"] == least


def test_a_claim_of_the_users_is_not_measured() -> None:
    namespace = Namespace(repository={"claimName": "mine"})
    namespace.serve()
    assert "repositoryStorage" not in namespace.status


def test_a_refused_growth_says_how_to_go_back_and_going_back_mends_it() -> None:
    namespace = with_claim(None, "10Gi", "10Gi")
    namespace.edit(repository={"claim": {"storage": "20Gi"}})
    namespace.rejections = (Rejection(observed_ref(namespace.get("PersistentVolumeClaim")), REFUSAL),)
    namespace.reconcile()
    message = namespace.condition("Ready")["message"]
    assert namespace.reason("Stalled") == "True ChildRefused"
    assert "The claim has 10Gi: set spec.repository.claim.storage back to that" in message
    assert message.endswith("Until then revision rev-1 keeps answering.")

    namespace.get("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"] = "10Gi"  # it was refused
    namespace.edit(repository={"claim": {"storage": "10Gi"}})
    namespace.rejections = ()
    namespace.settle()
    assert namespace.reason() == "True Serving"
