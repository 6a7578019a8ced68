"""Manifests for KServe, KEDA, Istio, gateways and snapshots by these projects' own CRDs, which their Go modules have,
asked of an API server alone. Those of Istio, gateways and snapshots are on pages of docs/."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.cluster.harness.binaries import module_folder
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.session import running_api_server
from tests.support.kubernetes.api_contract import client_of
from tests.support.pages.pages import code_blocks
from tests.support.pods.pods import ROOT

pytestmark = pytest.mark.timeout(2400)  # the first may wait until Kubernetes is compiled
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@dataclass(frozen=True, slots=True)
class ForeignKind:
    """A kind of another project."""

    module: str
    """Go module with its CRD, and the version."""
    crds: str
    """Path of the file with its CRD in the module."""
    path: str
    """Path of its objects at the API server."""


KSERVE, KEDA = "github.com/kserve/kserve@v0.20.0", "github.com/kedacore/keda/v2@v2.21.0"
ISTIO = "istio.io/api@v1.32.0"
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.2.1"
SNAPSHOTS = "github.com/kubernetes-csi/external-snapshotter/client/v8@v8.2.0"
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
    **{
        kind: ForeignKind(
            ISTIO,
            "kubernetes/customresourcedefinitions.gen.yaml",
            f"/apis/security.istio.io/v1/namespaces/default/{plural}",
        )
        for kind, plural in (
            ("PeerAuthentication", "peerauthentications"),
            ("AuthorizationPolicy", "authorizationpolicies"),
        )
    },
    **{
        kind: ForeignKind(
            GATEWAY_API,
            f"config/crd/standard/gateway.networking.k8s.io_{plural}.yaml",
            f"/apis/gateway.networking.k8s.io/v1/namespaces/default/{plural}",
        )
        for kind, plural in (("HTTPRoute", "httproutes"), ("GRPCRoute", "grpcroutes"))
    },
    "VolumeSnapshot": ForeignKind(
        SNAPSHOTS,
        "config/crd/snapshot.storage.k8s.io_volumesnapshots.yaml",
        "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots",
    ),
}
BUILT_IN = {
    "Ingress": "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
    "PersistentVolumeClaim": "/api/v1/namespaces/default/persistentvolumeclaims",
}
"""Paths of Kubernetes' own kinds, which stand beside the others on these pages."""
FILES = [*sorted((ROOT / "examples/kserve").glob("*.yaml")), ROOT / "examples/autoscaling/keda.yaml"]


def of_page(page: str) -> dict[str, dict[str, Any]]:
    """Whole objects of these kinds that a page shows, in the namespace of the test."""
    shown = [
        manifest | {"metadata": {**manifest["metadata"], "namespace": "default"}}
        for block in code_blocks((ROOT / "docs" / page).read_text(), "yaml")
        for manifest in yaml.safe_load_all(block)
        if manifest.get("kind") in KINDS | BUILT_IN
    ]
    return {f"{number}: {manifest['kind']} of docs/{page}": manifest for number, manifest in enumerate(shown)}


MANIFESTS = {
    **{path.name: yaml.safe_load(path.read_text()) for path in FILES},
    **of_page("mesh.md"),
    **of_page("gateways.md"),
    **of_page("backups.md"),
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with running_api_server(controllers=False) as cluster, client_of(Path(cluster.kubeconfig)) as client:
        client.post("/api/v1/namespaces", json={"metadata": {"name": "default"}})
        for crd in _crds():
            client.post(CRDS, json=crd).raise_for_status()
        paths = [kind.path for kind in KINDS.values()]
        wait_for("their kinds to be served", lambda: all(client.get(path).status_code == 200 for path in paths))
        yield client


def _crds() -> Iterator[dict[str, Any]]:
    """Each once, of the kinds above."""
    for module, path in {(kind.module, kind.crds): None for kind in KINDS.values()}:
        text = (module_folder(module) / path).read_bytes()
        found = [crd for crd in yaml.load_all(text, yaml.CSafeLoader) if crd and crd["spec"]["names"]["kind"] in KINDS]
        assert found, f"{module} has no CRD in {path}"
        yield from found


def tried(client: httpx.Client, manifest: dict[str, Any]) -> httpx.Response:
    """Answer to creating it; nothing is kept. A field that the schema does not know is an error."""
    kind = manifest["kind"]
    path = BUILT_IN[kind] if kind in BUILT_IN else KINDS[kind].path
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
        pytest.param("0: PeerAuthentication of docs/mesh.md", ("mtls",), "strict", id="Istio"),
        pytest.param("0: HTTPRoute of docs/gateways.md", (), "hosts", id="gateways"),
        pytest.param("0: VolumeSnapshot of docs/backups.md", ("source",), "claimName", id="snapshots"),
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
