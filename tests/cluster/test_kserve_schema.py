"""The manifests of examples/kserve by KServe's own CRDs, which its Go module has, asked of an API server alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.commands import output_of
from tests.cluster.harness.session import running_api_server
from tests.support.api_contract import client_of
from tests.support.pods import ROOT

pytestmark = pytest.mark.timeout(2400)  # the first may wait until Kubernetes is compiled
KSERVE_MODULE = "github.com/kserve/kserve@v0.20.0"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
API = "/apis/serving.kserve.io"
PATHS = {
    "InferenceService": f"{API}/v1beta1/namespaces/default/inferenceservices",
    "ClusterServingRuntime": f"{API}/v1alpha1/clusterservingruntimes",
}
MANIFESTS = {path.name: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "examples/kserve").glob("*.yaml"))}


def kserve_crds() -> Iterator[dict[str, Any]]:
    told = json.loads(output_of("go", "mod", "download", "-json", KSERVE_MODULE, timeout_s=600))
    for path in PATHS.values():
        plural = path.rpartition("/")[2]
        yield yaml.load(
            Path(told["Dir"], f"config/crd/full/serving.kserve.io_{plural}.yaml").read_bytes(), yaml.CSafeLoader
        )


@pytest.fixture(scope="module")
def kserve() -> Iterator[httpx.Client]:
    with running_api_server(controllers=False) as cluster, client_of(Path(cluster.kubeconfig)) as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        for crd in kserve_crds():
            client.post(CRDS, json=crd).raise_for_status()
        wait_for("KServe's kinds to be served", lambda: all(client.get(at).status_code == 200 for at in PATHS.values()))
        yield client


def tried(client: httpx.Client, manifest: dict[str, Any]) -> httpx.Response:
    """What creating it would be answered; nothing is kept. A field that the schema does not know is an error."""
    return client.post(PATHS[manifest["kind"]], json=manifest, params={"dryRun": "All", "fieldValidation": "Strict"})


@pytest.mark.parametrize("name", MANIFESTS)
def test_examples_fit_the_schema_of_kserve(kserve: httpx.Client, name: str) -> None:
    answer = tried(kserve, MANIFESTS[name])
    assert answer.status_code == 201, answer.text


def test_a_field_that_kserve_does_not_know_is_refused(kserve: httpx.Client) -> None:
    manifest = copy.deepcopy(MANIFESTS["inference-service.yaml"])
    manifest["spec"]["predictor"]["model"]["storage_uri"] = "pvc://models/digits"
    answer = tried(kserve, manifest)
    assert answer.status_code == 400
    assert "storage_uri" in answer.text
