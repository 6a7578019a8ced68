"""The real API server, by the cases that the fake one passes in tests/control: so the fake does not lie."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import yaml
from tests.cluster.harness.api_server import started
from tests.cluster.harness.client import wait_for
from tests.support.kubernetes.api_contract import Api, OverHttp, case, client_of, controllers_case
from tests.support.kubernetes.api_types import TRAITS
from tests.support.kubernetes.fake_cluster import KINDS
from tests.support.kubernetes.managed_fields import Type

from gnnserve_api.generated.schema import RESOURCES, crd_yaml

pytestmark = pytest.mark.timeout(2400)  # the first may wait until Kubernetes is compiled
GROUP_PATH = "/apis/gnnserve.dev/v1alpha1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@contextmanager
def api_server(*, controllers: bool) -> Iterator[OverHttp]:
    with started(controllers=controllers) as layout, client_of(layout.kubeconfig) as client:
        for resource in RESOURCES:
            client.post(CRDS, json=yaml.safe_load(crd_yaml(resource))).raise_for_status()
            wait_for(f"{resource.plural} to be served", partial(_is_served, client, resource.plural))
        yield OverHttp(client, etcd=f"http://127.0.0.1:{layout.addresses.etcd_port}")


def _is_served(client: httpx.Client, plural: str) -> bool:
    return client.get(f"{GROUP_PATH}/{plural}").status_code == 200


@pytest.fixture(scope="module")
def alone() -> Iterator[OverHttp]:
    """Without controllers, which would write to what the cases look at."""
    with api_server(controllers=False) as server:
        yield server


@pytest.fixture(scope="module")
def controlled() -> Iterator[OverHttp]:
    with api_server(controllers=True) as server:
        yield server


@pytest.mark.parametrize("name", case.found)
def test_the_api_server(name: str, alone: OverHttp) -> None:
    case.found[name](made_for(name, alone))


@pytest.mark.parametrize("name", controllers_case.found)
def test_the_controllers(name: str, controlled: OverHttp) -> None:
    controllers_case.found[name](made_for(name, controlled))


def made_for(name: str, server: OverHttp) -> Api:
    words = re.sub("_", "-", name)[:40].strip("-")
    namespace = f"{words}-{uuid.uuid4().hex[:4]}"
    server.client.post("/api/v1/namespaces", json={"metadata": {"name": namespace}}).raise_for_status()
    return Api(server, namespace)


# --- how fields are merged


@pytest.mark.parametrize("kind", TRAITS)
def test_the_fake_merges_fields_as_the_api_server_declares_them(kind: str, alone: OverHttp) -> None:
    declared = next(found for found in KINDS if found.name == kind)
    document = fetch_schemas(alone.client, declared.api_path)
    identity = {"group": declared.group, "kind": kind, "version": declared.version}
    (schema,) = (found for found in document.values() if found.get("x-kubernetes-group-version-kind") == [identity])
    assert rules_of(TRAITS[kind].type) == declared_rules(schema, document)


def fetch_schemas(client: httpx.Client, path: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        answer = client.get(f"/openapi/v3{path}")
        return dict(answer.json()["components"]["schemas"]) if answer.status_code == 200 else None

    # A CRD's comes a moment after it is served.
    return wait_for(f"the OpenAPI of {path}", look)


Rules = dict[str, Any]
"""By path: "atomic", "set", "map", or the keys of a list with what stands for absent ones."""


def rules_of(type_: Type, path: str = "") -> Rules:
    found: Rules = {}
    if type_.rule != "field":
        found[path] = dict(type_.keys) if type_.rule == "list-map" else type_.rule
    for name, below in type_.children.items():
        found |= rules_of(below, path + name if name == "[]" else f"{path}.{name}".lstrip("."))
    return found


def declared_rules(schema: Mapping[str, Any], document: Mapping[str, Any], path: str = "") -> Rules:
    schema = resolved(schema, document)
    if schema.get("x-kubernetes-map-type") == "atomic":
        return {path: "atomic"}
    if schema.get("type") == "array":
        how, entry = schema.get("x-kubernetes-list-type", "atomic"), resolved(schema["items"], document)
        if how == "set":
            return {path: "set"}
        if how != "map":
            return {}
        keys = {key: entry["properties"][key].get("default") for key in schema["x-kubernetes-list-map-keys"]}
        return {path: keys, **declared_rules(entry, document, f"{path}[]")}
    found: Rules = {}
    for name, below in schema.get("properties", {}).items():
        found |= declared_rules(below, document, f"{path}.{name}".lstrip("."))
    if isinstance(values := schema.get("additionalProperties"), Mapping):
        found |= {path: "map", **declared_rules(values, document, f"{path}.*")}
    return found


def resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    while reference := schema.get("$ref") or next((part.get("$ref") for part in schema.get("allOf", ())), None):
        beside = {name: value for name, value in schema.items() if name.startswith("x-")}
        schema = {**document[reference.rpartition("/")[2]], **beside}
    return schema
