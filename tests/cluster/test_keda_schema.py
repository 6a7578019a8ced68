"""The example for KEDA by KEDA's own CRD, which its Go module has, asked of an API server alone."""

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
KEDA_MODULE = "github.com/kedacore/keda/v2@v2.21.0"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OBJECTS = "/apis/keda.sh/v1alpha1/namespaces/default/scaledobjects"
MANIFEST = yaml.safe_load((ROOT / "examples/autoscaling/keda.yaml").read_text())


@pytest.fixture(scope="module")
def keda() -> Iterator[httpx.Client]:
    told = json.loads(output_of("go", "mod", "download", "-json", KEDA_MODULE, timeout_s=600))
    crd = yaml.load(Path(told["Dir"], "config/crd/bases/keda.sh_scaledobjects.yaml").read_bytes(), yaml.CSafeLoader)
    with running_api_server(controllers=False) as cluster, client_of(Path(cluster.kubeconfig)) as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        client.post(CRDS, json=crd).raise_for_status()
        wait_for("KEDA's kind to be served", lambda: client.get(OBJECTS).status_code == 200)
        yield client


def tried(client: httpx.Client, manifest: dict[str, Any]) -> httpx.Response:
    """Answer to creating it; nothing is kept. A field that the schema does not know is an error."""
    return client.post(OBJECTS, json=manifest, params={"dryRun": "All", "fieldValidation": "Strict"})


def test_the_example_fits_the_schema_of_keda(keda: httpx.Client) -> None:
    answer = tried(keda, MANIFEST)
    assert answer.status_code == 201, answer.text


def test_a_field_that_keda_does_not_know_is_refused(keda: httpx.Client) -> None:
    manifest = copy.deepcopy(MANIFEST)
    manifest["spec"]["minReplicas"] = 1
    answer = tried(keda, manifest)
    assert answer.status_code == 400
    assert "minReplicas" in answer.text
