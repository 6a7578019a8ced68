"""Objects stored under an older CRD, after its upgrade: readable, valid, of the same generation; their pods stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.session import running_api_server
from tests.support.kubernetes.api_contract import Api, OverHttp, client_of, generation_of, made, version_of
from tests.support.operator.older_release import Built, older_crd, older_services

from gnnserve_api.generated.schema import crd
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.repository import decide_repository
from gnnserve_operator.desired.deployment import MountedClaim, build_worker_template
from gnnserve_operator.desired.job import build_job
from gnnserve_operator.desired.metadata import STATUS_FIELD_MANAGER, Parent
from gnnserve_operator.observed import ObservedState
from gnnserve_operator.settings import Settings

pytestmark = pytest.mark.timeout(2400)  # the first may wait until Kubernetes is compiled
Manifest = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/gnnservices.gnnserve.dev"
OLDER = older_services()
UNWISE = {
    "worker": {
        "resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "1Gi"}},
        "tolerations": [{"operator": "Exists", "value": "x"}],
    }
}
"""What an older release took, and this one would refuse."""
CONDITION = {
    "type": "Ready", "status": "True", "reason": "Serving", "message": "", "observedGeneration": 1,
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}  # fmt: skip
STATUS = {"observedGeneration": 1, "revision": "r1", "conditions": [CONDITION]}


@pytest.fixture(scope="module")
def upgraded() -> Iterator[tuple[Api, dict[str, Manifest]]]:
    """After the upgrade; and the objects as they were before it."""
    with running_api_server(controllers=False) as cluster, client_of(Path(cluster.kubeconfig)) as client:
        api = Api(OverHttp(client), "default")
        client.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        client.post(CRDS, json=older_crd()).raise_for_status()
        wait_for("the older CRD to be served", lambda: api.listed("GNNService").code == 200)
        before = {}
        for name, built in OLDER.items():
            service = api.object("GNNService", name, spec=built.spec)
            made(api.apply(service, "user"))
            before[name] = made(api.apply({**service, "status": STATUS}, STATUS_FIELD_MANAGER, "status"))
        unwise = {"graph": {"source": {"builtin": "Digits"}}, **UNWISE}
        made(api.apply(api.object("GNNService", "unwise", spec=unwise), "user"))
        newer = crd()
        newer["metadata"]["resourceVersion"] = client.get(CRD).json()["metadata"]["resourceVersion"]
        client.put(CRD, json=newer).raise_for_status()
        # What is new is there once the schema is: the server takes it up a moment after the CRD is stored.
        fields = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].keys()

        def is_taken_up() -> bool:
            reply = client.get("/openapi/v3/apis/gnnserve.dev/v1alpha1")
            if not (reply.is_success and reply.content):  # as the server puts its schemas together
                return False
            told = reply.json()["components"]["schemas"]
            served = next(found for name, found in told.items() if name.endswith("GNNService"))
            return bool(served["properties"]["spec"]["properties"].keys() == fields)

        wait_for("the newer schema", is_taken_up)
        yield api, before


def _is_in(part: Any, whole: Any) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and _is_in(value, whole[name]) for name, value in part.items())
    return bool(part == whole)


@pytest.mark.parametrize(("name", "built"), OLDER.items(), ids=OLDER)
def test_what_was_stored_stays_as_it_was_and_can_be_written(
    name: str, built: Built, upgraded: tuple[Api, dict[str, Manifest]]
) -> None:
    api, before = upgraded
    found = api.get("GNNService", name)
    assert (found["metadata"], found["status"]) == (before[name]["metadata"], before[name]["status"])
    assert _is_in(before[name]["spec"], found["spec"]), (
        "newer fields come with their defaults, and nothing else changes"
    )
    spec = GNNServiceSpec.model_validate(found["spec"])
    assert spec == GNNServiceSpec.model_validate(before[name]["spec"])

    parent, settings = Parent(name, "default", "uid"), Settings(worker_image="worker:1")
    claim = decide_repository(name, spec, ObservedState()).name
    assert build_worker_template(parent, spec, settings, MountedClaim(claim)) == built.worker
    assert build_job(parent, spec, settings, claim)["metadata"]["name"] == built.job

    service = api.object("GNNService", name, spec=built.spec)
    told = made(api.apply({**service, "status": {**STATUS, "revision": "r2"}}, STATUS_FIELD_MANAGER, "status"))
    assert (told["status"]["revision"], generation_of(told)) == ("r2", 1)
    labelled = made(api.merge("GNNService", name, {"metadata": {"labels": {"a": "b"}}}))
    assert generation_of(labelled) == 1
    applied = made(api.apply(service, "user"))
    assert (generation_of(applied), version_of(applied)) == (1, version_of(labelled))
    changed = made(api.apply(api.object("GNNService", name, spec={**built.spec, "suspend": True}), "user"))
    assert (generation_of(changed), changed["spec"]) == (2, {**applied["spec"], "suspend": True})


def test_what_is_refused_now_does_not_lock_what_was_stored(upgraded: tuple[Api, dict[str, Manifest]]) -> None:
    api, _ = upgraded
    made(api.apply({**api.object("GNNService", "unwise"), "status": STATUS}, STATUS_FIELD_MANAGER, "status"))
    made(api.merge("GNNService", "unwise", {"spec": {"suspend": True}}))
    worker = {"resources": {"limits": {"memory": "4Gi"}}, "tolerations": []}
    made(api.merge("GNNService", "unwise", {"spec": {"worker": worker}}))
