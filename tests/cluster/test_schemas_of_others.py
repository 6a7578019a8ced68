"""The examples for KServe and KEDA by these projects' own CRDs, which their Go modules have, asked of an API server
alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.commands import output_of
from tests.cluster.harness.session import running_api_server
from tests.support.kubernetes.api_contract import client_of
from tests.support.pods.pods import ROOT

pytestmark = pytest.mark.timeout(2400)  # the first may wait until Kubernetes is compiled
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(frozen=True, slots=True)
class ForeignKind:
    """A kind of another project."""

    module: str
    """Go module with its CRD, and the version."""
    crd: str
    """Path of the CRD in the module."""
    path: str
    """Path of its objects at the API server."""


KSERVE, KEDA = "github.com/kserve/kserve@v0.20.0", "github.com/kedacore/keda/v2@v2.21.0"
KINDS = {
    "InferenceService": ForeignKind(
        KSERVE,
        "config/crd/full/serving.kserve.io_inferenceservices.yaml",
        "/apis/serving.kserve.io/v1beta1/namespaces/default/inferenceservices",
    ),
    "ClusterServingRuntime": ForeignKind(
        KSERVE,
        "config/crd/full/serving.kserve.io_clusterservingruntimes.yaml",
        "/apis/serving.kserve.io/v1alpha1/clusterservingruntimes",
    ),
    "ScaledObject": ForeignKind(
        KEDA,
        "config/crd/bases/keda.sh_scaledobjects.yaml",
        "/apis/keda.sh/v1alpha1/namespaces/default/scaledobjects",
    ),
}
FILES = [*sorted((ROOT / "examples/kserve").glob("*.yaml")), ROOT / "examples/autoscaling/keda.yaml"]
MANIFESTS = {path.name: yaml.safe_load(path.read_text()) for path in FILES}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with running_api_server(controllers=False) as cluster, client_of(Path(cluster.kubeconfig)) as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        for kind in KINDS.values():
            told = json.loads(output_of("go", "mod", "download", "-json", kind.module, timeout_s=600))
            crd = yaml.load(Path(told["Dir"], kind.crd).read_bytes(), yaml.CSafeLoader)
            client.post(CRDS, json=crd).raise_for_status()
        paths = [kind.path for kind in KINDS.values()]
        wait_for("their kinds to be served", lambda: all(client.get(path).status_code == 200 for path in paths))
        yield client


def tried(client: httpx.Client, manifest: dict[str, Any]) -> httpx.Response:
    """Answer to creating it; nothing is kept. A field that the schema does not know is an error."""
    path = KINDS[manifest["kind"]].path
    return client.post(path, json=manifest, params={"dryRun": "All", "fieldValidation": "Strict"})


@pytest.mark.parametrize("name", MANIFESTS)
def test_examples_fit_the_schema_of_their_project(client: httpx.Client, name: str) -> None:
    answer = tried(client, MANIFESTS[name])
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    ("name", "section", "field"),
    [
        pytest.param("inference-service.yaml", ("predictor", "model"), "storage_uri", id="KServe"),
        pytest.param("keda.yaml", (), "minReplicas", id="KEDA"),
    ],
)
def test_a_field_that_the_project_does_not_know_is_refused(
    client: httpx.Client, name: str, section: tuple[str, ...], field: str
) -> None:
    manifest = copy.deepcopy(MANIFESTS[name])
    place = manifest["spec"]
    for step in section:
        place = place[step]
    place[field] = "1"
    answer = tried(client, manifest)
    assert answer.status_code == 400
    assert field in answer.text
