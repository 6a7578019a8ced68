"""An autoscaler and a manifest that both set the number of workers: found by what the API server knows of writers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.operator.observed import Namespace
from tests.support.operator.operator import gnnservice, live

from gnnserve_operator.decide.contests import NO_WRITERS, ReplicasWriters, decide_replicas, find_writers
from gnnserve_operator.handlers.index import Index, IndexedObject
from gnnserve_operator.kinds import ServiceKey

Manifest = dict[str, Any]
KEY, POOL = ServiceKey("default", "digits"), ServiceKey("default", "shared", "GNNWorkerPool")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPLICAS = {"f:spec": {"f:worker": {"f:replicas": {}}}}
HPA, FLUX = "kube-controller-manager", "kustomize-controller"


def entry(manager: str, operation: str, subresource: str = "", fields: Manifest = REPLICAS) -> Manifest:
    found = {"manager": manager, "operation": operation, "fieldsV1": fields}
    return found | ({"subresource": subresource} if subresource else {})


BY_HPA, BY_FLUX = entry(HPA, "Update", "scale"), entry(FLUX, "Apply")


def service(*entries: Manifest, applied: Manifest | None = None, version: int = 1) -> Manifest:
    annotations = (
        {} if applied is None else {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": applied})}
    )
    return live(gnnservice(worker={"replicas": 2}), version, managedFields=[*entries], annotations=annotations)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(service(), NO_WRITERS, id="nobody has set it"),
        pytest.param(service(BY_HPA), ReplicasWriters(HPA), id="an autoscaler alone"),
        pytest.param(service(BY_FLUX), ReplicasWriters("", FLUX), id="a manifest alone"),
        pytest.param(service(BY_HPA, BY_FLUX), ReplicasWriters(HPA, FLUX), id="both, of the same value"),
        pytest.param(
            service(BY_HPA, applied={"worker": {"replicas": 1}}), ReplicasWriters(HPA, "kubectl apply"),
            id="a manifest that kubectl applied",
        ),
        pytest.param(
            service(BY_HPA, applied={"worker": {}}), ReplicasWriters(HPA), id="a manifest that leaves it out"
        ),
        pytest.param(
            service(BY_HPA, entry(FLUX, "Apply", fields={"f:spec": {"f:suspend": {}}})), ReplicasWriters(HPA),
            id="a manifest of other fields",
        ),
        pytest.param(
            service(entry("kubectl", "Update", "scale"), applied={"worker": {"replicas": 1}}),
            ReplicasWriters("", "kubectl apply"), id="a person who scales by hand",
        ),
        pytest.param(
            service(BY_HPA, entry("kubectl-create", "Update")), ReplicasWriters(HPA),
            id="defaults of an object that was created",
        ),
    ],
)  # fmt: skip
def test_who_sets_the_number_of_workers(body: Manifest, expected: ReplicasWriters) -> None:
    assert find_writers(body) == expected


def test_a_pool_has_the_number_in_another_field() -> None:
    of_pool = entry(HPA, "Update", "scale", {"f:spec": {"f:replicas": {}}})
    pool = {**service(of_pool, applied={"replicas": 1}), "kind": POOL.kind}
    writers = find_writers(pool)
    assert writers.are_two
    assert (
        "spec.replicas of GNNWorkerPool shared is set by kube-controller-manager"
        in decide_replicas(POOL, writers, NOW).message
    )


def test_two_that_take_the_field_from_each_other_are_both_remembered() -> None:
    """By server-side apply the field has one owner at a time."""
    index = Index()
    for version, owner in enumerate((BY_HPA, BY_FLUX), start=1):
        assert not index.replicas_writers(KEY).are_two
        index.keep(KEY, IndexedObject.of(service(owner, version=version)))
    assert index.replicas_writers(KEY) == ReplicasWriters(HPA, FLUX)
    index.keep(KEY, IndexedObject.of(service(BY_HPA, version=3)))
    assert index.replicas_writers(KEY) == ReplicasWriters(HPA)


def test_the_condition_says_who_sets_it_and_a_deleted_autoscaler_is_forgotten_after_an_hour() -> None:
    both = ReplicasWriters(HPA, FLUX, NOW.isoformat())
    assert decide_replicas(KEY, ReplicasWriters("", FLUX), NOW) is None, "no autoscaler: nothing to tell"
    for minutes, writers, holds, reason in (
        (0, ReplicasWriters(HPA), True, "ReplicasScaled"),
        (0, both, False, "ReplicasContested"),
        (60, both, False, "ReplicasContested"),
        (61, both, True, "ReplicasDeclared"),
        (61, ReplicasWriters(HPA, FLUX), False, "ReplicasContested"),
    ):
        verdict = decide_replicas(KEY, writers, NOW + timedelta(minutes=minutes))
        assert verdict is not None
        assert (verdict.holds, verdict.reason) == (holds, reason)


def test_a_contest_is_told_by_one_event_and_ends_with_one() -> None:
    namespace = Namespace()
    namespace.serve()
    told = []
    for writers in (NO_WRITERS, ReplicasWriters(HPA), *[ReplicasWriters(HPA, FLUX)] * 3, ReplicasWriters(HPA)):
        namespace.writers = writers
        told += [note.reason for note in namespace.reconcile().events if note.reason.startswith("Replicas")]
    assert told == ["ReplicasContested", "ReplicasScaled"]
