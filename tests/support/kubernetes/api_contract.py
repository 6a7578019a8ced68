"""What an API server does, as cases that hold for the real one and for `FakeCluster`.

Each case gets an API server and a namespace of its own. A case that the real server fails is wrong; one that the fake
fails is the fake's mistake. Waiting is for what controllers do: the fake's are stepped, the real ones' work is awaited.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
from tests.support.kubernetes.api_server import ApiServer, Request, Response, Watch
from tests.support.kubernetes.fake_cluster import KINDS, FakeCluster, Manifest, copied
from tests.support.operator.operator import gnnservice

NOWHERE = "nowhere"
"""A namespace that is not there."""
APPLY, MERGE, JSON = "application/apply-patch+yaml", "application/merge-patch+json", "application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_KINDS = {kind.name: kind for kind in KINDS}
_WAIT_S = 30.0


class Server(Protocol):
    def respond(self, request: Request) -> Response: ...

    def lines(self, request: Request, meanwhile: Callable[[], object]) -> Iterator[Manifest]:
        """Lines of a watch, which is open when `meanwhile` is done; they end with it."""
        ...

    def terminate_namespace(self, name: str) -> None: ...

    def forget_history(self) -> None:
        """Forget all versions before the present one."""
        ...

    def settle(self) -> None:
        """Lets controllers work: once, or for a moment."""
        ...


# --- servers


@dataclass(frozen=True, slots=True)
class InProcess:
    cluster: FakeCluster

    def respond(self, request: Request) -> Response:
        return ApiServer(self.cluster).respond(request)

    def lines(self, request: Request, meanwhile: Callable[[], object]) -> Iterator[Manifest]:
        watch = ApiServer(self.cluster).watch(request)
        assert isinstance(watch, Watch), watch
        meanwhile()
        yield from watch.poll()
        if not watch.is_over:
            yield from watch.bookmark()

    def terminate_namespace(self, name: str) -> None:
        self.cluster.terminating_namespaces.add(name)

    def forget_history(self) -> None:
        self.cluster.forget_history()

    def settle(self) -> None:
        self.cluster.release_claims()
        self.cluster.collect_garbage(now=True)


@dataclass(frozen=True, slots=True)
class OverHttp:
    client: httpx.Client
    fake: InProcess | None = None
    """What is behind it, where that is no real one."""
    etcd: str = ""
    """Where it is otherwise."""

    def respond(self, request: Request) -> Response:
        body = None if request.body is None else json.dumps(request.body)
        answer = self.client.request(
            request.method, request.path, params=dict(request.query), headers=dict(request.headers), content=body
        )
        try:
            return Response(answer.status_code, answer.headers, answer.json())
        except ValueError:
            return Response(answer.status_code, answer.headers, {"message": answer.text})

    def lines(self, request: Request, meanwhile: Callable[[], object]) -> Iterator[Manifest]:
        # Long enough for bookmarks, which come two seconds before the end.
        query = {"watch": "true", "timeoutSeconds": "4", **request.query}
        with self.client.stream("GET", request.path, params=query, headers=dict(request.headers)) as answer:
            assert answer.status_code == 200, answer.read()
            meanwhile()
            yield from (json.loads(line) for line in answer.iter_lines())

    def terminate_namespace(self, name: str) -> None:
        if self.fake:
            self.fake.terminate_namespace(name)
        else:  # its finalizer stays as long as no controller runs
            self.client.delete(f"/api/v1/namespaces/{name}").raise_for_status()

    def forget_history(self) -> None:
        if self.fake:
            self.fake.forget_history()
        else:
            present = self.client.get("/api/v1/namespaces").json()["metadata"]["resourceVersion"]
            httpx.post(f"{self.etcd}/v3/kv/compaction", json={"revision": present}, trust_env=False).raise_for_status()

    def settle(self) -> None:
        if self.fake:
            self.fake.settle()
        else:
            time.sleep(0.1)


def client_of(kubeconfig: Path) -> httpx.Client:
    """A client with the certificates that the harness writes there."""
    told = json.loads(kubeconfig.read_text())
    cluster, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
    tls.load_cert_chain(user["client-certificate"], user["client-key"])
    return httpx.Client(base_url=cluster["server"], verify=tls, trust_env=False, timeout=_WAIT_S)


# --- asking


@dataclass(frozen=True, slots=True)
class Api:
    server: Server
    namespace: str

    def path(self, kind: str, name: str | None = None, subresource: str | None = None) -> str:
        return _KINDS[kind].path(self.namespace, name, subresource)

    def ask(
        self, method: str, path: str, body: Manifest | None = None, content_type: str = JSON, **query: str
    ) -> Response:
        headers = {"Content-Type": content_type, "Accept": query.pop("accept", JSON)}
        return self.server.respond(Request(method, path, query, headers, body))

    def apply(
        self, manifest: Manifest, manager: str = "ours", subresource: str | None = None, *, force: bool = False,
        **query: str,
    ) -> Response:  # fmt: skip
        path = self.path(manifest["kind"], manifest["metadata"]["name"], subresource)
        told = {"fieldManager": manager, "force": "true" if force else "false", **query}
        return self.ask("PATCH", path, manifest, APPLY, **told)

    def post(self, manifest: Manifest, manager: str = "ours") -> Response:
        return self.ask("POST", self.path(manifest["kind"]), manifest, fieldManager=manager)

    def put(self, manifest: Manifest, manager: str = "ours", subresource: str | None = None) -> Response:
        path = self.path(manifest["kind"], manifest["metadata"]["name"], subresource)
        return self.ask("PUT", path, manifest, fieldManager=manager)

    def merge(
        self, kind: str, name: str, patch: Manifest, manager: str = "ours", subresource: str | None = None
    ) -> Response:
        return self.ask("PATCH", self.path(kind, name, subresource), patch, MERGE, fieldManager=manager)

    def get(self, kind: str, name: str) -> Manifest:
        return made(self.ask("GET", self.path(kind, name)))

    def is_there(self, kind: str, name: str) -> bool:
        return self.ask("GET", self.path(kind, name)).code == 200

    def delete(self, kind: str, name: str, **options: Any) -> Response:
        return self.ask("DELETE", self.path(kind, name), options or None)

    def listed(self, kind: str, **query: str) -> Response:
        return self.ask("GET", self.path(kind), None, JSON, **query)

    def version(self) -> str:
        return str(made(self.listed("ConfigMap"))["metadata"]["resourceVersion"])

    def watch(self, kind: str, count: int, meanwhile: Callable[[], object], **query: str) -> list[Manifest]:
        """Its first events."""
        found = []
        for line in self.server.lines(Request("GET", self.path(kind), query, {"Accept": JSON}), meanwhile):
            found.append(line)
            if len(found) == count:
                break
        return found

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            self.server.settle()
            if condition():
                return
            assert time.monotonic() < deadline, "the controllers did not do that"

    # --- objects

    def object(self, kind: str, name: str = "a", **fields: Any) -> Manifest:
        metadata = {"name": name, "namespace": self.namespace, **fields.pop("metadata", {})}
        return {"apiVersion": _KINDS[kind].api_version, "kind": kind, "metadata": metadata, **fields}

    def config(self, name: str = "a", data: Manifest | None = None, **metadata: Any) -> Manifest:
        return self.object("ConfigMap", name, metadata=metadata, data=data or {"a": "1"})

    def service(self, name: str = "digits", **spec: Any) -> Manifest:
        found = gnnservice(name, **spec)
        found["metadata"]["namespace"] = self.namespace
        return found

    def deployment(self, *containers: Manifest, **pod: Any) -> Manifest:
        labels = {"matchLabels": {"app": "a"}}
        template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": list(containers), **pod}}
        return self.object("Deployment", spec={"selector": labels, "template": template})


def nothing() -> None:
    """Happens meanwhile."""


def made(response: Response) -> Manifest:
    assert response.code in {200, 201}, response
    return response.body


def refusal(response: Response) -> tuple[int, str, str]:
    assert response.body.get("kind") == "Status", response
    return response.code, response.body.get("reason", ""), response.body["message"]


def version_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["resourceVersion"])


def generation_of(manifest: Manifest) -> int | None:
    found: int | None = manifest["metadata"].get("generation")
    return found


def owned(manifest: Manifest, manager: str, subresource: str = "", operation: str = "Apply") -> Manifest:
    """The fields of that manager; whether a parent is among them depends on Go's types, and is left out."""
    for entry in manifest["metadata"].get("managedFields", ()):
        if (entry["manager"], entry.get("subresource", ""), entry["operation"]) == (manager, subresource, operation):
            return _without_parents(entry["fieldsV1"])
    return {}


def _without_parents(fields: Manifest) -> Manifest:
    return {name: _without_parents(below) for name, below in fields.items() if name != "."}


def container(name: str = "worker", **fields: Any) -> Manifest:
    return {"name": name, "image": "image:1", **fields}


def containers_of(deployment: Manifest) -> dict[str, Manifest]:
    return {found["name"]: found for found in deployment["spec"]["template"]["spec"]["containers"]}


def owner(of: Manifest, **fields: Any) -> Manifest:
    identity = {"apiVersion": of["apiVersion"], "kind": of["kind"]}
    return {**identity, "name": of["metadata"]["name"], "uid": of["metadata"]["uid"], **fields}


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
Case = Callable[[Api], None]


@dataclass(frozen=True, slots=True)
class Cases:
    """Cases by name."""

    found: dict[str, Case] = field(default_factory=dict)

    def __call__(self, case: Case) -> Case:
        assert case.__name__ not in self.found, case.__name__
        self.found[case.__name__] = case
        return case


case = Cases()
controllers_case = Cases()
"""Cases of what controllers do."""


# --- versions and generations

_POD_SPEC = {"containers": [{"name": "c", "image": "i"}]}
_TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": _POD_SPEC}
_SPECS: dict[str, Manifest] = {
    "ConfigMap": {},
    "ServiceAccount": {},
    "Role": {"rules": []},
    "RoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"}},
    "Lease": {"spec": {"holderIdentity": "a"}},
    "Service": {"spec": {"ports": [{"port": 80}]}},
    "PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    },
    "Pod": {"spec": {**_POD_SPEC, "serviceAccountName": "a"}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "a"}}}},
    "Deployment": {"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": _TEMPLATE}},
    "ReplicaSet": {"spec": {"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": _TEMPLATE}},
    "Job": {"spec": {"suspend": True, "template": {"spec": {**_POD_SPEC, "restartPolicy": "Never"}}}},
    "GNNService": gnnservice(),
}


def _of_kind(api: Api, kind: str) -> Manifest:
    shown = {name: value for name, value in _SPECS[kind].items() if name in {"spec", "rules", "roleRef"}}
    return api.object(kind, **copied(shown))


@case
def what_is_created_has_a_uid_a_version_and_a_generation_where_its_kind_has_one(api: Api) -> None:
    generations = {}
    for kind in _SPECS:
        answer = api.post(_of_kind(api, kind))
        assert answer.code == 201, answer
        metadata = answer.body["metadata"]
        assert {"uid", "resourceVersion", "creationTimestamp", "managedFields"} <= metadata.keys() or kind in {
            "ServiceAccount", "ConfigMap", "Role"}, (kind, metadata)  # fmt: skip
        generations[kind] = metadata.get("generation")
    with_generation = {kind for kind, generation in generations.items() if generation is not None}
    assert with_generation == {
        "Pod",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Deployment",
        "ReplicaSet",
        "Job",
        "GNNService",
    }
    assert {generations[kind] for kind in with_generation} == {1}


@case
def a_generation_is_a_change_of_the_spec(api: Api) -> None:
    changes = {
        "GNNService": {"suspend": True}, "Deployment": {"replicas": 1}, "Job": {"parallelism": 2},
        "NetworkPolicy": {"policyTypes": ["Egress"]}, "PodDisruptionBudget": {"maxUnavailable": 2},
    }  # fmt: skip
    for kind, change in changes.items():
        made(api.post(_of_kind(api, kind)))
        labelled = made(api.merge(kind, "a", {"metadata": {"labels": {"a": "b"}}}))
        assert generation_of(labelled) == 1, kind
        annotated = made(api.merge(kind, "a", {"metadata": {"annotations": {"a": "b"}}}))
        assert generation_of(annotated) == (2 if kind == "Deployment" else 1), kind
        before = generation_of(annotated) or 0
        changed = made(api.merge(kind, "a", {"spec": change}))
        assert generation_of(changed) == before + 1, kind
        same = made(api.merge(kind, "a", {"spec": change}))
        assert (version_of(same), generation_of(same)) == (version_of(changed), before + 1), kind


@case
def a_status_is_a_resource_of_its_own(api: Api) -> None:
    service = {**api.service(), "status": {"revision": "r1"}}
    made(api.post(service))
    assert "status" not in api.get("GNNService", "digits")
    made(api.merge("GNNService", "digits", {"status": {"revision": "r1"}}))
    assert "status" not in api.get("GNNService", "digits")
    told = {**api.service(), "spec": {"suspend": True}, "status": {"revision": "r2"}}
    told["metadata"]["labels"] = {"a": "b"}
    answer = made(api.apply(told, "status", "status"))
    assert answer["status"] == {"revision": "r2"}
    assert (generation_of(answer), answer["spec"]["suspend"]) == (1, False)
    assert "labels" not in answer["metadata"]
    replaced = made(
        api.put({**answer, "status": {"revision": "r3"}, "spec": {**answer["spec"], "suspend": True}}, "s", "status")
    )
    assert (replaced["status"], replaced["spec"]["suspend"]) == ({"revision": "r3"}, False)
    changed = made(api.put({**replaced, "status": {"revision": "r4"}, "spec": {**answer["spec"], "suspend": True}}))
    assert (changed["status"], changed["spec"]["suspend"], generation_of(changed)) == ({"revision": "r3"}, True, 2)


@case
def the_status_of_what_is_not_there_is_not_found(api: Api) -> None:
    answer = api.apply({**api.service(), "status": {}}, subresource="status")
    assert refusal(answer) == (404, "NotFound", 'gnnservices.gnnserve.dev "digits" not found')
    assert answer.body["details"] == {"name": "digits", "group": "gnnserve.dev", "kind": "gnnservices"}
    config_map_has_none = api.ask("GET", api.path("ConfigMap", "a", "status"))
    assert config_map_has_none.code == 404


@case
def what_is_not_there_is_not_found(api: Api) -> None:
    assert refusal(api.ask("GET", api.path("ConfigMap", "a"))) == (404, "NotFound", 'configmaps "a" not found')
    assert refusal(api.ask("GET", api.path("Deployment", "a"))) == (404, "NotFound", 'deployments.apps "a" not found')
    assert refusal(api.delete("ConfigMap", "a")) == (404, "NotFound", 'configmaps "a" not found')
    assert refusal(api.put(api.config())) == (404, "NotFound", 'configmaps "a" not found')
    assert refusal(api.merge("ConfigMap", "a", {})) == (404, "NotFound", 'configmaps "a" not found')
    unknown = api.ask("GET", f"/api/v1/namespaces/{api.namespace}/gadgets")
    assert refusal(unknown) == (404, "NotFound", "the server could not find the requested resource")


@case
def a_name_is_given_once(api: Api) -> None:
    made(api.post(api.config()))
    assert refusal(api.post(api.config())) == (409, "AlreadyExists", 'configmaps "a" already exists')
    answer = api.post(api.config("b", resourceVersion="7"))
    assert (answer.code, answer.body["message"]) == (500, "resourceVersion should not be set on objects to be created")


@case
def a_put_of_a_stale_version_is_a_conflict(api: Api) -> None:
    stale = made(api.post(api.config()))
    made(api.put({**stale, "data": {"a": "2"}}))
    conflict = f'Operation cannot be fulfilled on configmaps "a": {MODIFIED}'
    assert refusal(api.put({**stale, "data": {"a": "3"}})) == (409, "Conflict", conflict)
    assert api.get("ConfigMap", "a")["data"] == {"a": "2"}
    service = made(api.post(api.service()))
    made(api.put({**service, "status": {"revision": "r1"}}, subresource="status"))
    answer = api.put({**service, "status": {"revision": "r2"}}, subresource="status")
    conflict = f'Operation cannot be fulfilled on gnnservices.gnnserve.dev "digits": {MODIFIED}'
    assert refusal(answer) == (409, "Conflict", conflict)


@case
def a_put_without_a_version_overwrites_where_its_kind_allows_it(api: Api) -> None:
    made(api.post(api.config()))
    assert made(api.put(api.config(data={"b": "2"})))["data"] == {"b": "2"}
    for kind, name in {
        "GNNService": "gnnservices.gnnserve.dev", "PodDisruptionBudget": "poddisruptionbudgets.policy",
        "Lease": "leases.coordination.k8s.io",
    }.items():  # fmt: skip
        made(api.post(_of_kind(api, kind)))
        told = f'{name} "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update'
        assert refusal(api.put(_of_kind(api, kind))) == (422, "Invalid", told)


@case
def some_kinds_are_created_by_a_put(api: Api) -> None:
    assert api.put(_of_kind(api, "Lease")).code == 201
    assert api.put(_of_kind(api, "Role")).code == 201
    assert api.put(_of_kind(api, "Deployment")).code == 404


@case
def a_put_for_another_uid_is_a_conflict(api: Api) -> None:
    made(api.post(api.config()))
    code, reason, message = refusal(api.put(api.config(uid="another")))
    assert (code, reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: another, UID in object meta: " in message


@case
def a_put_that_changes_nothing_is_no_new_version(api: Api) -> None:
    before = made(api.post(api.config()))
    assert version_of(made(api.put(before))) == version_of(before)
    assert version_of(made(api.put(before, "somebody-else"))) == version_of(before)


@case
def a_body_must_be_of_what_the_path_names(api: Api) -> None:
    made(api.post(api.config()))
    answer = api.ask("PUT", api.path("ConfigMap", "a"), api.config("b"))
    assert refusal(answer) == (400, "BadRequest", "the name of the object (b) does not match the name on the URL (a)")
    elsewhere = api.config("b")
    elsewhere["metadata"]["namespace"] = "default"
    told = "the namespace of the provided object does not match the namespace sent on the request"
    assert refusal(api.post(elsewhere)) == (400, "BadRequest", told)


@case
def the_servers_own_fields_are_not_a_clients_to_write(api: Api) -> None:
    own = {"uid": "mine", "creationTimestamp": "2000-01-01T00:00:00Z", "generation": 7}
    found = made(
        api.post({**_of_kind(api, "NetworkPolicy"), "metadata": {"name": "a", "namespace": api.namespace, **own}})
    )
    assert generation_of(found) == 1
    assert found["metadata"]["uid"] != "mine"
    assert found["metadata"]["creationTimestamp"] > "2020"
    changed = {
        **found,
        "metadata": {**found["metadata"], "generation": 9},
        "spec": {**found["spec"], "policyTypes": ["Egress"]},
    }
    assert generation_of(made(api.put(changed))) == 2


# --- apply: preconditions


@case
def an_apply_of_a_stale_version_is_a_conflict(api: Api) -> None:
    stale = made(api.apply(api.config()))
    made(api.apply(api.config(data={"a": "2"})))
    conflict = (409, "Conflict", f'Operation cannot be fulfilled on configmaps "a": {MODIFIED}')
    assert refusal(api.apply(api.config(resourceVersion=version_of(stale)))) == conflict
    assert refusal(api.apply(api.config(resourceVersion=version_of(stale)), force=True)) == conflict
    both = {"resourceVersion": version_of(stale), "uid": stale["metadata"]["uid"]}
    assert refusal(api.apply(api.config(**both))) == conflict
    assert refusal(api.apply(api.config(resourceVersion=version_of(stale), uid="another"))) == conflict
    live = api.get("ConfigMap", "a")
    assert live["data"] == {"a": "2"}
    both["resourceVersion"] = version_of(live)
    assert made(api.apply(api.config(data={"a": "3"}, **both)))["data"] == {"a": "3"}


@case
def an_apply_to_another_uid_is_invalid(api: Api) -> None:
    made(api.apply(api.config()))
    code, reason, message = refusal(api.apply(api.config(data={"a": "2"}, uid="another"), force=True))
    told = 'ConfigMap "a" is invalid: metadata.uid: Invalid value: "another": field is immutable'
    assert (code, reason, message) == (422, "Invalid", told)
    made(api.apply(api.service()))
    answer = api.apply(
        {**api.service(suspend=True), "metadata": {**api.service()["metadata"], "uid": "another"}}, force=True
    )
    assert answer.code == 422
    deployment = api.deployment(container())
    made(api.apply(deployment))
    deployment["metadata"]["uid"] = "another"
    code, reason, message = refusal(api.apply(deployment))
    told = 'Deployment.apps "a" is invalid: metadata.uid: Invalid value: "another": field is immutable'
    assert (code, reason, message) == (422, "Invalid", told)


@case
def an_apply_with_a_uid_creates_nothing(api: Api) -> None:
    gone = "uid mismatch: the provided object specified uid another, and no existing object was found"
    answer = api.apply(api.config(uid="another"))
    assert refusal(answer) == (409, "Conflict", f'Operation cannot be fulfilled on configmaps "a": {gone}')
    answer = api.apply(api.config(uid="another", resourceVersion="7"))
    assert refusal(answer) == (409, "Conflict", f'Operation cannot be fulfilled on configmaps "a": {gone}')
    assert not api.is_there("ConfigMap", "a")


@case
def an_apply_with_only_a_version_creates_what_is_not_there(api: Api) -> None:
    assert api.apply(api.config(resourceVersion="7")).code == 201


@case
def a_trial_is_answered_as_an_apply_and_stores_nothing(api: Api) -> None:
    events = api.watch(
        "ConfigMap", 1, lambda: (api.apply(api.config(), dryRun="All"), made(api.apply(api.config("b")))),
        resourceVersion=api.version(),
    )  # fmt: skip
    assert [event["object"]["metadata"]["name"] for event in events] == ["b"]
    tried = api.apply(api.config(resourceVersion="1"), dryRun="All")
    assert (tried.code, tried.body["data"]) == (201, {"a": "1"})
    assert not api.is_there("ConfigMap", "a")
    before = made(api.apply(api.config()))
    assert api.apply(api.config(data={"a": "2"}), dryRun="All").code == 200
    assert api.get("ConfigMap", "a") == before
    code, reason, message = refusal(api.apply(api.config(resourceVersion="1"), dryRun="All"))
    assert (code, reason) == (409, "Conflict")
    assert message.endswith(MODIFIED)


@case
def an_apply_of_the_first_version_creates_and_never_changes(api: Api) -> None:
    deployment = api.deployment(container())
    deployment["metadata"]["resourceVersion"] = "1"
    service = api.service()
    service["metadata"]["resourceVersion"] = "1"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for manifest in (
        api.config(resourceVersion="1"),
        deployment,
        service,
        api.object("Role", metadata={"resourceVersion": "1"}, rules=[]),
        api.object("PersistentVolumeClaim", metadata={"resourceVersion": "1"}, spec=claim),
        api.object("PodDisruptionBudget", metadata={"resourceVersion": "1"}, spec={"maxUnavailable": 1}),
    ):
        assert api.apply(manifest, force=True).code == 201
        code, reason, message = refusal(api.apply(manifest, force=True))
        assert (code, reason) == (409, "Conflict")
        assert message.endswith(MODIFIED)


@case
def the_uid_in_a_custom_resources_status_is_not_looked_at_but_the_version_is(api: Api) -> None:
    before = made(api.apply(api.service()))
    status = {**api.service(), "status": {"revision": "r1"}}
    status["metadata"]["uid"] = "another"
    after = made(api.apply(status, "status", "status"))
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    status["metadata"] = {**status["metadata"], "resourceVersion": version_of(before)}
    conflict = f'Operation cannot be fulfilled on gnnservices.gnnserve.dev "digits": {MODIFIED}'
    assert refusal(api.apply(status, "status", "status")) == (409, "Conflict", conflict)


@case
def an_apply_needs_a_manager_and_its_media_type(api: Api) -> None:
    path = api.path("ConfigMap", "a")
    told = 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
    assert refusal(api.ask("PATCH", path, api.config(), APPLY)) == (422, "Invalid", told)
    answer = api.ask("PATCH", path, api.config(), "application/toml", fieldManager="ours")
    assert answer.code == 415
    answer = api.apply(api.config(managedFields=[]))
    assert refusal(answer) == (400, "BadRequest", "metadata.managedFields must be nil")


# --- apply: who owns what


@case
def what_is_applied_is_owned_and_what_is_applied_no_longer_is_gone(api: Api) -> None:
    found = made(api.apply(api.config(data={"a": "1", "b": "2"}, labels={"x": "y"})))
    assert owned(found, "ours") == {"f:data": {"f:a": {}, "f:b": {}}, "f:metadata": {"f:labels": {"f:x": {}}}}
    found = made(api.apply(api.config(data={"b": "3"})))
    assert found["data"] == {"b": "3"}
    assert "labels" not in found["metadata"]
    assert owned(found, "ours") == {"f:data": {"f:b": {}}}


@case
def an_apply_that_changes_nothing_is_no_new_version(api: Api) -> None:
    deployment = api.deployment(container(env=[{"name": "A", "value": "1"}], ports=[{"containerPort": 80}]))
    before = made(api.apply(deployment))
    after = made(api.apply(deployment))
    assert (version_of(after), generation_of(after)) == (version_of(before), 1)
    assert after["metadata"]["managedFields"] == before["metadata"]["managedFields"]
    service = {**api.service(), "status": {"revision": "r1"}}
    made(api.apply(api.service()))
    before = made(api.apply(service, "status", "status"))
    assert version_of(made(api.apply(service, "status", "status"))) == version_of(before)
    assert version_of(made(api.apply(api.service()))) == version_of(before)


@case
def what_others_added_stays(api: Api) -> None:
    made(api.apply(api.config(data={"a": "1"})))
    made(api.merge("ConfigMap", "a", {"data": {"theirs": "x"}}, "somebody"))
    found = made(api.apply(api.config(data={"b": "1"})))
    assert found["data"] == {"b": "1", "theirs": "x"}
    assert owned(found, "somebody", operation="Update") == {"f:data": {"f:theirs": {}}}


@case
def a_job_that_is_declared_suspended_no_longer_runs_unless_another_suspends_it_too(api: Api) -> None:
    job = _of_kind(api, "Job")
    without = {**job, "spec": {name: value for name, value in job["spec"].items() if name != "suspend"}}
    assert made(api.apply(job))["spec"]["suspend"] is True
    assert not made(api.apply(without))["spec"].get("suspend"), "the server's default"
    made(api.merge("Job", "a", {"spec": {"suspend": True}}, "queue"))
    assert made(api.apply(without))["spec"]["suspend"] is True, "what is not declared is left alone"
    found = made(api.apply(job))
    assert "f:suspend" in owned(found, "ours")["f:spec"]
    assert "f:suspend" in owned(found, "queue", operation="Update")["f:spec"]
    assert made(api.apply(without))["spec"]["suspend"] is True, "the other owns it still"


@case
def a_field_of_two_owners_stays_until_both_let_go(api: Api) -> None:
    made(api.apply(api.config(data={"a": "1", "b": "1"}), "one"))
    found = made(api.apply(api.config(data={"a": "1"}), "two"))
    assert [owned(found, manager) for manager in ("one", "two")] == [
        {"f:data": {"f:a": {}, "f:b": {}}}, {"f:data": {"f:a": {}}}]  # fmt: skip
    found = made(api.apply(api.config(data={"b": "1"}), "one"))
    assert found["data"] == {"a": "1", "b": "1"}
    assert made(api.apply(api.config(data={"c": "1"}), "two"))["data"] == {"b": "1", "c": "1"}


@case
def another_appliers_value_is_a_conflict_unless_forced(api: Api) -> None:
    made(api.apply(api.config(data={"a": "1", "b": "1"}), "one"))
    answer = api.apply(api.config(data={"a": "2"}), "two")
    told = 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert refusal(answer) == (409, "Conflict", told)
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}
    assert answer.body["details"]["causes"] == [cause]
    answer = api.apply(api.config(data={"a": "2", "b": "2"}), "two")
    assert refusal(answer)[2] == 'Apply failed with 2 conflicts: conflicts with "one":\n- .data.a\n- .data.b'
    found = made(api.apply(api.config(data={"a": "2"}), "two", force=True))
    assert found["data"] == {"a": "2", "b": "1"}
    assert [owned(found, manager) for manager in ("one", "two")] == [
        {"f:data": {"f:b": {}}}, {"f:data": {"f:a": {}}}]  # fmt: skip


@case
def an_edit_takes_the_field_and_is_a_conflict_for_the_next_apply(api: Api) -> None:
    made(api.apply(api.config(data={"a": "1"})))
    found = made(api.merge("ConfigMap", "a", {"data": {"a": "edited"}}, "kubectl-edit"))
    assert owned(found, "ours") == {}
    code, reason, message = refusal(api.apply(api.config(data={"a": "1"})))
    assert (code, reason) == (409, "Conflict")
    assert message.startswith('Apply failed with 1 conflict: conflict with "kubectl-edit" using v1')
    assert message.endswith(": .data.a")
    found = made(api.apply(api.config(data={"a": "1"}), force=True))
    assert (found["data"], owned(found, "kubectl-edit", operation="Update")) == ({"a": "1"}, {})


@case
def what_an_edit_removed_is_nobodys(api: Api) -> None:
    made(api.apply(api.config(data={"a": "1", "b": "1"})))
    found = made(api.merge("ConfigMap", "a", {"data": {"a": None}}, "kubectl-edit"))
    assert owned(found, "ours") == {"f:data": {"f:b": {}}}
    assert made(api.apply(api.config(data={"a": "1", "b": "1"})))["data"] == {"a": "1", "b": "1"}


@case
def a_put_that_leaves_a_field_out_removes_it(api: Api) -> None:
    made(api.apply(api.config(data={"a": "1", "b": "1"})))
    found = made(api.put(api.config(data={"b": "2"}), "somebody"))
    assert found["data"] == {"b": "2"}
    assert (owned(found, "ours"), owned(found, "somebody", operation="Update")) == ({}, {"f:data": {"f:b": {}}})


@case
def containers_environment_and_mounts_are_merged_by_their_names(api: Api) -> None:
    mine = container(
        env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}], ports=[{"containerPort": 80, "name": "http"}],
        volumeMounts=[{"name": "v", "mountPath": "/v"}], args=["a", "b"],
    )  # fmt: skip
    made(api.apply(api.deployment(mine, volumes=[{"name": "v", "emptyDir": {}}])))
    theirs = {"name": "worker", "env": [{"name": "C", "value": "1"}], "ports": [{"containerPort": 81, "name": "x"}],
              "volumeMounts": [{"name": "w", "mountPath": "/w"}]}  # fmt: skip
    partial = api.deployment(theirs, {"name": "side", "image": "side:1"}, volumes=[{"name": "w", "emptyDir": {}}])
    del partial["spec"]["selector"], partial["spec"]["template"]["metadata"]
    found = made(api.apply(partial, "theirs"))
    pod = found["spec"]["template"]["spec"]
    assert containers_of(found).keys() == {"worker", "side"}
    worker = containers_of(found)["worker"]
    assert [entry["name"] for entry in worker["env"]] == ["A", "B", "C"]
    assert [entry["containerPort"] for entry in worker["ports"]] == [80, 81]
    assert {entry["mountPath"] for entry in worker["volumeMounts"]} == {"/v", "/w"}
    assert {entry["name"] for entry in pod["volumes"]} == {"v", "w"}
    assert (worker["image"], worker["args"]) == ("image:1", ["a", "b"])
    keys = owned(found, "theirs")["f:spec"]["f:template"]["f:spec"]
    assert keys["f:containers"]['k:{"name":"worker"}'] == {
        "f:env": {'k:{"name":"C"}': {"f:name": {}, "f:value": {}}}, "f:name": {},
        "f:ports": {'k:{"containerPort":81,"protocol":"TCP"}': {"f:containerPort": {}, "f:name": {}}},
        "f:volumeMounts": {'k:{"mountPath":"/w"}': {"f:mountPath": {}, "f:name": {}}},
    }  # fmt: skip
    mine = container(env=[{"name": "B", "value": "2"}], args=["c"])
    found = made(api.apply(api.deployment(mine)))
    worker = containers_of(found)["worker"]
    assert [(entry["name"], entry["value"]) for entry in worker["env"]] == [("B", "2"), ("C", "1")]
    assert [entry["containerPort"] for entry in worker["ports"]] == [81]
    assert [entry["mountPath"] for entry in worker["volumeMounts"]] == ["/w"]
    assert worker["args"] == ["c"]
    assert generation_of(found) == 3


@case
def entries_keep_the_declared_order(api: Api) -> None:
    def names(*wanted: str) -> list[Manifest]:
        return [{"name": name, "value": "1"} for name in wanted]

    def found(deployment: Manifest) -> list[str]:
        return [entry["name"] for entry in containers_of(deployment)["worker"]["env"]]

    made(api.apply(api.deployment(container(env=names("A", "B", "C")))))
    assert found(made(api.apply(api.deployment(container(env=names("C", "A", "B")))))) == ["C", "A", "B"]
    partial = api.deployment({"name": "worker", "env": names("X", "A", "Y")})
    del partial["spec"]["selector"], partial["spec"]["template"]["metadata"]
    both = found(made(api.apply(partial, "theirs")))
    assert both == ["C", "X", "A", "B", "Y"]
    assert found(made(api.apply(api.deployment(container(env=names("B", "N", "A")))))) == ["X", "B", "Y", "N", "A"]


@case
def an_entry_stays_as_long_as_somebody_owns_it(api: Api) -> None:
    made(api.apply(api.deployment(container(env=[{"name": "A", "value": "1"}]))))
    partial = api.deployment({"name": "worker", "env": [{"name": "A"}]})
    del partial["spec"]["selector"], partial["spec"]["template"]["metadata"]
    made(api.apply(partial, "theirs"))
    found = made(api.apply(api.deployment(container())))
    assert containers_of(found)["worker"]["env"] == [{"name": "A"}]
    partial["spec"]["template"]["spec"]["containers"] = [{"name": "worker"}]
    assert "env" not in containers_of(made(api.apply(partial, "theirs")))["worker"]


@case
def selectors_and_arguments_are_owned_as_a_whole(api: Api) -> None:
    policy = api.object("NetworkPolicy", spec={"podSelector": {"matchLabels": {"a": "1"}}, "policyTypes": ["Ingress"]})
    found = made(api.apply(policy))
    assert owned(found, "ours") == {"f:spec": {"f:podSelector": {}, "f:policyTypes": {}}}
    other = api.object("NetworkPolicy", spec={"podSelector": {"matchLabels": {"b": "2"}}})
    assert (
        refusal(api.apply(other, "theirs"))[2]
        == 'Apply failed with 1 conflict: conflict with "ours": .spec.podSelector'
    )
    found = made(api.apply(other, "theirs", force=True))
    assert found["spec"]["podSelector"] == {"matchLabels": {"b": "2"}}
    assert owned(found, "ours") == {"f:spec": {"f:policyTypes": {}}}


@case
def rules_are_owned_as_a_whole(api: Api) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    made(api.apply(api.object("Role", rules=[rule])))
    found = made(api.merge("Role", "a", {"rules": [rule, {**rule, "verbs": ["list"]}]}, "kubectl-edit"))
    assert (len(found["rules"]), owned(found, "ours")) == (2, {})
    assert made(api.apply(api.object("Role", rules=[rule]), force=True))["rules"] == [rule]


@case
def ports_of_a_service_are_told_apart_by_number_and_protocol(api: Api) -> None:
    made(api.apply(api.object("Service", spec={"ports": [{"name": "http", "port": 80}], "selector": {"a": "1"}})))
    more = api.object("Service", spec={"ports": [{"name": "dns", "port": 80, "protocol": "UDP"}]})
    found = made(api.apply(more, "theirs"))
    assert [port["name"] for port in found["spec"]["ports"]] == ["http", "dns"]
    assert owned(found, "theirs")["f:spec"] == {
        "f:ports": {'k:{"port":80,"protocol":"UDP"}': {"f:name": {}, "f:port": {}, "f:protocol": {}}}}  # fmt: skip


@case
def owners_are_told_apart_by_uid_and_only_one_controls(api: Api) -> None:
    one, two = (made(api.apply(api.config(name))) for name in ("one", "two"))
    made(api.apply(api.config(ownerReferences=[owner(one, controller=True)])))
    found = made(api.apply(api.config(data={"b": "1"}, ownerReferences=[owner(two)]), "theirs"))
    assert {reference["name"] for reference in found["metadata"]["ownerReferences"]} == {"one", "two"}
    answer = api.apply(api.config(data={"b": "1"}, ownerReferences=[owner(two, controller=True)]), "theirs")
    code, reason, message = refusal(answer)
    assert (code, reason) == (422, "Invalid")
    assert message.startswith('ConfigMap "a" is invalid: metadata.ownerReferences: Invalid value: ')
    told = 'Only one reference can have Controller set to true. Found "true" in references for'
    assert message.endswith(f"{told} ConfigMap/one and ConfigMap/two")


@case
def an_owner_goes_with_the_last_manager_that_applied_it(api: Api) -> None:
    parent = made(api.apply(api.config("parent")))
    bound = api.config(labels={"a": "1"}, ownerReferences=[owner(parent, controller=True)])
    free = api.config(labels={"a": "1", "owner": parent["metadata"]["uid"]})
    made(api.apply(bound))
    found = made(api.apply(free))
    assert "ownerReferences" not in found["metadata"]
    assert "f:ownerReferences" not in owned(found, "ours")["f:metadata"]
    assert made(api.apply(bound))["metadata"]["ownerReferences"] == [owner(parent, controller=True)]
    made(api.apply(bound, "theirs"))
    assert made(api.apply(free))["metadata"]["ownerReferences"] == [owner(parent, controller=True)]


@case
def finalizers_are_a_set(api: Api) -> None:
    made(api.apply(api.config(finalizers=["x.dev/one"])))
    found = made(api.apply(api.config(finalizers=["x.dev/two", "x.dev/one"]), "theirs"))
    assert set(found["metadata"]["finalizers"]) == {"x.dev/one", "x.dev/two"}
    assert owned(found, "theirs")["f:metadata"] == {"f:finalizers": {'v:"x.dev/one"': {}, 'v:"x.dev/two"': {}}}
    found = made(api.apply(api.config()))
    assert set(found["metadata"]["finalizers"]) == {"x.dev/one", "x.dev/two"}
    assert "finalizers" not in made(api.apply(api.config(), "theirs"))["metadata"]


@case
def a_key_given_twice_is_refused(api: Api) -> None:
    answer = api.apply(api.deployment(container(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}])))
    assert answer.code == 500
    assert "failed to create typed patch object" in answer.body["message"]
    assert 'duplicate entries for key [name="A"]' in answer.body["message"]


@case
def conditions_are_merged_by_type_and_the_status_has_a_manager_of_its_own(api: Api) -> None:
    def condition(of: str, status: str = "True") -> Manifest:
        return {
            "type": of,
            "status": status,
            "reason": "R",
            "observedGeneration": 1,
            "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }

    def status(*conditions: Manifest) -> Manifest:
        return {**api.service(), "status": {"conditions": list(conditions)}}

    made(api.apply(api.service(), "ours"))
    found = made(api.apply(status(condition("Ready"), condition("Stalled")), "status", "status"))
    assert [found["type"] for found in found["status"]["conditions"]] == ["Ready", "Stalled"]
    assert owned(found, "status") == {}
    assert owned(found, "status", "status")["f:status"]["f:conditions"].keys() == {
        'k:{"type":"Ready"}', 'k:{"type":"Stalled"}'}  # fmt: skip
    answer = api.apply(status(condition("Ready", "False")), "other", "status")
    told = 'conflict with "status" with subresource "status": .status.conditions[type="Ready"].status'
    assert refusal(answer)[2] == f"Apply failed with 1 conflict: {told}"
    found = made(api.apply(status(condition("Mine")), "other", "status"))
    assert [found["type"] for found in found["status"]["conditions"]] == ["Ready", "Stalled", "Mine"]
    found = made(api.apply(status(condition("Stalled")), "status", "status"))
    assert [found["type"] for found in found["status"]["conditions"]] == ["Stalled", "Mine"]
    found = made(api.apply(api.service(suspend=True), "ours"))
    assert (len(found["status"]["conditions"]), generation_of(found)) == (2, 2)


# --- the custom resource


@case
def a_custom_resource_gets_its_defaults_and_loses_what_its_schema_does_not_know(api: Api) -> None:
    found = made(api.post(api.service(quantum={"qubits": 3}, worker={"colour": "red"})))
    spec = found["spec"]
    assert "quantum" not in spec
    assert "colour" not in spec["worker"]
    assert (spec["suspend"], spec["worker"]["replicas"], spec["model"]["architecture"]) == (False, 1, "GraphSAGE")
    assert spec["variants"]["pruning"]["factors"] == [1, 2, 4, 8]
    found = made(api.merge("GNNService", "digits", {"spec": {"suspend": None, "model": {"hidden": None}}}))
    assert (found["spec"]["suspend"], generation_of(found)) == (False, 1)


@case
def what_is_applied_of_a_custom_resource_is_owned_and_its_defaults_are_nobodys(api: Api) -> None:
    found = made(api.apply(api.service(variants={"pruning": {"factors": [1, 2]}})))
    factors: Manifest = {"f:variants": {"f:pruning": {"f:factors": {"v:1": {}, "v:2": {}}}}}
    assert owned(found, "ours")["f:spec"] == {"f:graph": {"f:source": {"f:builtin": {}}}, **factors}
    found = made(api.apply(api.service(suspend=True)))
    assert (found["spec"]["suspend"], found["spec"]["variants"]["pruning"]["factors"]) == (True, [1, 2, 4, 8])
    assert generation_of(found) == 2


@case
def an_apply_of_what_the_schema_does_not_know_is_refused(api: Api) -> None:
    answer = api.apply(api.service(quantum={"qubits": 3}))
    assert answer.code == 500
    assert ".spec.quantum: field not declared in schema" in answer.body["message"]


# --- what may never change


@case
def some_fields_never_change(api: Api) -> None:
    made(api.apply(api.deployment(container())))
    other = api.deployment(container())
    other["spec"]["selector"] = {"matchLabels": {"app": "b"}}
    other["spec"]["template"]["metadata"]["labels"] = {"app": "b"}
    code, reason, message = refusal(api.apply(other))
    assert (code, reason) == (422, "Invalid")
    assert message.startswith('Deployment.apps "a" is invalid: spec.selector: Invalid value: ')
    assert message.endswith("field is immutable")
    job = _of_kind(api, "Job")
    made(api.apply(job))
    job["spec"]["template"]["spec"]["containers"] = [{"name": "c", "image": "j"}]
    code, reason, message = refusal(api.apply(job))
    assert (code, reason) == (422, "Invalid")
    assert message.startswith('Job.batch "a" is invalid: spec.template')
    binding = _of_kind(api, "RoleBinding")
    made(api.apply(binding))
    binding["roleRef"]["name"] = "b"
    code, reason, message = refusal(api.apply(binding))
    assert (code, reason) == (422, "Invalid")
    assert message.startswith('RoleBinding.rbac.authorization.k8s.io "a" is invalid: roleRef: Invalid value: ')
    assert message.endswith("cannot change roleRef")
    claim = _of_kind(api, "PersistentVolumeClaim")
    made(api.apply(claim))
    claim["spec"] = {**claim["spec"], "resources": {"requests": {"storage": "2Gi"}}}
    code, reason, message = refusal(api.apply(claim))
    assert (code, reason) == (422, "Invalid")
    assert message.startswith('PersistentVolumeClaim "a" is invalid: spec: Forbidden: spec is immutable after creation')


# --- deletion


@case
def a_deletion_answers_what_was_deleted(api: Api) -> None:
    uid = made(api.post(api.config()))["metadata"]["uid"]
    answer = api.delete("ConfigMap", "a")
    assert (answer.code, answer.body["status"]) == (200, "Success")
    assert answer.body["details"] == {"name": "a", "kind": "configmaps", "uid": uid}
    assert not api.is_there("ConfigMap", "a")
    made(api.post(api.object("ServiceAccount")))
    assert made(api.delete("ServiceAccount", "a"))["kind"] == "ServiceAccount"


@case
def a_deletion_of_another_uid_or_version_is_a_conflict(api: Api) -> None:
    live = made(api.post(api.config()))
    uid, version = live["metadata"]["uid"], version_of(live)
    begins = 'Operation cannot be fulfilled on ConfigMap "a": the'
    told = (
        f"{begins} UID in the precondition (another) does not match the UID in record ({uid}). "
        "The object might have been deleted and then recreated"
    )
    assert refusal(api.delete("ConfigMap", "a", preconditions={"uid": "another"})) == (409, "Conflict", told)
    told = (
        f"{begins} ResourceVersion in the precondition (1) does not match the ResourceVersion in record ({version}). "
        "The object might have been modified"
    )
    stale = {"uid": uid, "resourceVersion": "1"}
    assert refusal(api.delete("ConfigMap", "a", preconditions=stale)) == (409, "Conflict", told)
    made(api.delete("ConfigMap", "a", preconditions={"uid": uid, "resourceVersion": version}))
    made(api.post(api.deployment(container())))
    message = refusal(api.delete("Deployment", "a", preconditions={"uid": "another"}))[2]
    assert message.startswith('Operation cannot be fulfilled on Deployment.apps "a": the UID in the precondition')


@case
def a_finalizer_keeps_what_is_deleted(api: Api) -> None:
    service = api.service()
    service["metadata"]["finalizers"] = ["x.dev/keep"]
    live = made(api.post(service))
    left = made(api.delete("GNNService", "digits", propagationPolicy="Background"))
    assert left["metadata"]["deletionTimestamp"]
    assert (left["metadata"]["deletionGracePeriodSeconds"], generation_of(left)) == (0, 2)
    assert version_of(left) != version_of(live)
    again = made(api.delete("GNNService", "digits", propagationPolicy="Background"))
    assert version_of(again) == version_of(left)
    more = ["x.dev/keep", "x.dev/more"]
    code, reason, message = refusal(api.merge("GNNService", "digits", {"metadata": {"finalizers": more}}))
    assert (code, reason) == (422, "Invalid")
    why = 'no new finalizers can be added if the object is being deleted, found new finalizers []string{"x.dev/more"}'
    assert message.endswith(f"metadata.finalizers: Forbidden: {why}")
    told = made(api.apply({**api.service(), "status": {"revision": "r1"}}, "status", "status"))
    assert (told["metadata"]["deletionTimestamp"], generation_of(told)) == (left["metadata"]["deletionTimestamp"], 2)
    assert refusal(api.post(api.service()))[1] == "AlreadyExists"
    made(api.merge("GNNService", "digits", {"metadata": {"finalizers": None}}))
    assert not api.is_there("GNNService", "digits")
    made(api.post(api.config(finalizers=["x.dev/keep"])))
    assert generation_of(made(api.delete("ConfigMap", "a"))) is None


@case
def a_claim_is_protected(api: Api) -> None:
    found = made(api.apply(_of_kind(api, "PersistentVolumeClaim")))
    assert found["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert "f:finalizers" not in owned(found, "ours").get("f:metadata", {})
    left = made(api.delete("PersistentVolumeClaim", "a"))
    assert left["metadata"]["deletionTimestamp"]
    assert api.is_there("PersistentVolumeClaim", "a")


@case
def a_pod_on_a_node_ends_when_the_kubelet_says_so(api: Api) -> None:
    made(api.post(api.object("ServiceAccount")))
    pod = api.object("Pod", spec={**_POD_SPEC, "serviceAccountName": "a"})
    made(api.post(pod))
    made(api.delete("Pod", "a"))
    assert not api.is_there("Pod", "a")
    pod["spec"]["nodeName"] = "node"
    made(api.post(pod))
    left = made(api.delete("Pod", "a"))["metadata"]
    assert (left["deletionGracePeriodSeconds"], left["generation"]) == (30, 2)
    assert version_of(made(api.delete("Pod", "a"))) == left["resourceVersion"]
    shorter = made(api.delete("Pod", "a", gracePeriodSeconds=5))["metadata"]
    assert (shorter["deletionGracePeriodSeconds"], shorter["generation"]) == (5, 2)
    assert shorter["deletionTimestamp"] < left["deletionTimestamp"]
    made(api.delete("Pod", "a", gracePeriodSeconds=0))
    assert not api.is_there("Pod", "a")


@case
def deletion_in_the_foreground_and_orphaning_wait_for_the_collector(api: Api) -> None:
    for policy, finalizer in {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.items():
        made(api.post(api.config(policy.lower())))
        left = made(api.delete("ConfigMap", policy.lower(), propagationPolicy=policy))
        assert (left["metadata"]["finalizers"], "deletionTimestamp" in left["metadata"]) == ([finalizer], True)
    made(api.post(_of_kind(api, "Job")))
    assert made(api.delete("Job", "a"))["metadata"]["finalizers"] == ["orphan"]


@controllers_case
def what_an_absent_owner_left_is_collected(api: Api) -> None:
    parent = made(api.post(api.config("parent")))
    made(api.post(api.config("child", ownerReferences=[owner(parent)])))
    made(api.post(api.config("grandchild", ownerReferences=[owner(api.get("ConfigMap", "child"))])))
    made(
        api.post(
            api.config("wrong-uid", ownerReferences=[{**owner(parent), "uid": "11111111-0000-0000-0000-000000000000"}])
        )
    )
    made(api.post(api.config("wrong-kind", ownerReferences=[{**owner(parent), "kind": "ServiceAccount"}])))
    made(api.post(api.config("kept", finalizers=["x.dev/keep"], ownerReferences=[owner(parent)])))
    api.until(lambda: not (api.is_there("ConfigMap", "wrong-uid") or api.is_there("ConfigMap", "wrong-kind")))
    assert all(api.is_there("ConfigMap", name) for name in ("child", "grandchild", "kept"))
    made(api.delete("ConfigMap", "parent", propagationPolicy="Background"))
    assert not api.is_there("ConfigMap", "parent")
    api.until(lambda: not (api.is_there("ConfigMap", "child") or api.is_there("ConfigMap", "grandchild")))
    api.until(lambda: "deletionTimestamp" in api.get("ConfigMap", "kept")["metadata"])


@controllers_case
def of_two_owners_the_absent_one_is_struck_out(api: Api) -> None:
    one, two = (made(api.post(api.config(name))) for name in ("one", "two"))
    made(api.post(api.config("child", ownerReferences=[owner(one), owner(two)])))
    made(api.delete("ConfigMap", "one", propagationPolicy="Background"))
    api.until(lambda: len(api.get("ConfigMap", "child")["metadata"]["ownerReferences"]) == 1)
    assert api.get("ConfigMap", "child")["metadata"]["ownerReferences"] == [owner(two)]


@controllers_case
def what_was_released_outlives_its_owner_however_soon_that_is_deleted(api: Api) -> None:
    names = [f"claim-{number}" for number in range(5)]
    for name in names:
        parent = made(api.post(api.config(f"parent-{name}")))
        claim = {**_of_kind(api, "PersistentVolumeClaim"), "metadata": {"name": name, "namespace": api.namespace}}
        made(api.apply({**claim, "metadata": {**claim["metadata"], "ownerReferences": [owner(parent)]}}))
    made(api.post(api.config("bound", ownerReferences=[owner(parent)])))
    for name in names:
        claim = {**_of_kind(api, "PersistentVolumeClaim"), "metadata": {"name": name, "namespace": api.namespace}}
        made(api.apply(claim))
        made(api.delete("ConfigMap", f"parent-{name}", propagationPolicy="Background"))
    api.until(lambda: not api.is_there("ConfigMap", "bound"))
    assert all("deletionTimestamp" not in api.get("PersistentVolumeClaim", name)["metadata"] for name in names)


@controllers_case
def orphans_lose_their_owner_and_stay(api: Api) -> None:
    parent = made(api.post(api.config("parent")))
    made(api.post(api.config("child", ownerReferences=[owner(parent)])))
    made(api.delete("ConfigMap", "parent", propagationPolicy="Orphan"))
    api.until(lambda: not api.is_there("ConfigMap", "parent"))
    assert "ownerReferences" not in api.get("ConfigMap", "child")["metadata"]


@controllers_case
def deletion_in_the_foreground_waits_for_dependents_that_block_it(api: Api) -> None:
    parent = made(api.post(api.config("parent")))
    made(
        api.post(
            api.config("child", finalizers=["x.dev/keep"], ownerReferences=[owner(parent, blockOwnerDeletion=True)])
        )
    )
    made(api.delete("ConfigMap", "parent", propagationPolicy="Foreground"))
    api.until(lambda: "deletionTimestamp" in api.get("ConfigMap", "child")["metadata"])
    assert api.is_there("ConfigMap", "parent")
    made(api.merge("ConfigMap", "child", {"metadata": {"finalizers": None}}))
    api.until(lambda: not api.is_there("ConfigMap", "parent"))


@controllers_case
def an_unused_claim_goes_and_a_used_one_stays(api: Api) -> None:
    made(api.post(_of_kind(api, "PersistentVolumeClaim")))
    made(api.delete("PersistentVolumeClaim", "a"))
    api.until(lambda: not api.is_there("PersistentVolumeClaim", "a"))


# --- namespaces


@case
def nothing_is_created_in_a_namespace_that_is_not_there_or_about_to_go(api: Api) -> None:
    made(api.apply(api.config("before")))
    elsewhere = Api(api.server, NOWHERE)
    assert refusal(elsewhere.post(elsewhere.config())) == (404, "NotFound", f'namespaces "{NOWHERE}" not found')
    assert refusal(elsewhere.apply(elsewhere.config())) == (404, "NotFound", f'namespaces "{NOWHERE}" not found')
    api.server.terminate_namespace(api.namespace)
    why = f"unable to create new content in namespace {api.namespace} because it is being terminated"
    for answer in (api.post(api.config()), api.apply(api.config())):
        assert refusal(answer) == (403, "Forbidden", f'configmaps "a" is forbidden: {why}')
        assert [cause["reason"] for cause in answer.body["details"]["causes"]] == ["NamespaceTerminating"]
    assert made(api.apply(api.config("before", {"a": "2"})))["data"] == {"a": "2"}


# --- lists


def _names(answer: Manifest) -> list[str]:
    return [found["metadata"]["name"] for found in answer["items"]]


@case
def long_lists_come_in_pages_of_one_version(api: Api) -> None:
    for name in ("a", "b", "c", "d", "e"):
        made(api.post(api.object("Role", name)))
    first = made(api.listed("Role", limit="2"))
    assert (_names(first), first["metadata"]["remainingItemCount"]) == (["a", "b"], 3)
    made(api.delete("Role", "d"))
    made(api.post(api.object("Role", "cc")))
    token = {"continue": first["metadata"]["continue"]}
    second = made(api.listed("Role", limit="2", **token))
    assert (_names(second), version_of(second)) == (["c", "d"], version_of(first))
    last = made(api.listed("Role", limit="2", **{"continue": second["metadata"]["continue"]}))
    assert _names(last) == ["e"]
    assert not last["metadata"].get("continue")
    assert _names(made(api.listed("Role"))) == ["a", "b", "c", "cc", "e"]
    assert api.listed("Role", limit="2", **{"continue": "nonsense"}).code == 400


@case
def a_list_of_a_version_that_is_too_old_is_gone_and_tells_how_to_go_on(api: Api) -> None:
    for name in ("a", "b", "c"):
        made(api.post(api.service(name)))
    token = made(api.listed("GNNService", limit="2"))["metadata"]["continue"]
    position = json.loads(base64.urlsafe_b64decode(token + "=="))
    # From before the kind was there: of what came later, the server's cache may remember more than etcd.
    older = base64.urlsafe_b64encode(json.dumps({**position, "rv": 2}).encode()).decode().rstrip("=")
    api.server.forget_history()
    answer = api.listed("GNNService", limit="2", **{"continue": older})
    code, reason, message = refusal(answer)
    assert (code, reason) == (410, "Expired")
    assert message.startswith("The provided continue parameter is too old to display a consistent list result.")
    made(api.post(api.service("d")))
    rest = made(api.listed("GNNService", limit="2", **{"continue": answer.body["metadata"]["continue"]}))
    assert _names(rest) == ["c", "d"]
    code, reason, message = refusal(api.listed("GNNService", resourceVersion="2", resourceVersionMatch="Exact"))
    assert (code, reason, message) == (410, "Expired", "The resourceVersion for the provided list is too old.")


@case
def the_cache_knows_no_pages(api: Api) -> None:
    for name in ("a", "b", "c"):
        newest = made(api.post(api.object("Role", name)))
    made(api.listed("Role", resourceVersion=version_of(newest)))  # waits until the cache has it
    found = made(api.listed("Role", limit="2", resourceVersion="0"))
    assert _names(found) == ["a", "b", "c"]
    assert not found["metadata"].get("continue")


@case
def lists_can_be_of_metadata_only(api: Api) -> None:
    empty = made(api.listed("Role", accept=PARTIAL))
    assert (empty["kind"], empty["apiVersion"], empty["items"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1", None)
    live = made(api.post(api.object("Role", metadata={"labels": {"x": "y"}})))
    (found,) = made(api.listed("Role", accept=PARTIAL))["items"]
    assert found["metadata"] == live["metadata"]
    assert found.keys() <= {"kind", "apiVersion", "metadata"}
    assert made(api.listed("Role", labelSelector="x=z"))["items"] == []


@case
def lists_are_selected_by_labels_and_by_name(api: Api) -> None:
    for name, labels in {"a": {"x": "1"}, "b": {"x": "2", "y": "1"}, "c": {"y": "1"}}.items():
        made(api.post(api.object("Role", name, metadata={"labels": labels})))
    for selector, names in {
        "x=1": ["a"], "x==2,y=1": ["b"], "x!=1": ["b", "c"], "x": ["a", "b"], "!x": ["c"], "x in (1,2)": ["a", "b"],
        "x notin (1)": ["b", "c"], "y=1, x=2": ["b"],
    }.items():  # fmt: skip
        assert _names(made(api.listed("Role", labelSelector=selector))) == names, selector
    assert _names(made(api.listed("Role", fieldSelector="metadata.name=b"))) == ["b"]
    assert api.listed("Role", fieldSelector="spec.colour=red").code == 400
    limited = made(api.listed("Role", labelSelector="y=1", limit="1"))
    assert (_names(limited), "remainingItemCount" in limited["metadata"]) == (["b"], False)


# --- watches


def _told(lines: list[Manifest]) -> list[tuple[str, str]]:
    return [(line["type"], line["object"]["metadata"].get("name", "")) for line in lines]


@case
def a_watch_tells_what_happened_since_a_version(api: Api) -> None:
    made(api.post(api.config("before", labels={"w": "1"})))
    since = api.version()
    created = made(api.post(api.config(labels={"w": "1"})))
    changed = made(api.apply(api.config(data={"b": "2"}, labels={"w": "1"})))
    made(api.apply(api.config(data={"b": "2"}, labels={"w": "1"})))
    made(api.delete("ConfigMap", "a"))
    lines = api.watch("ConfigMap", 3, nothing, resourceVersion=since, labelSelector="w=1")
    assert _told(lines) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert (lines[0]["object"], lines[1]["object"]) == (created, changed)
    last = lines[2]["object"]
    assert last["data"] == changed["data"]
    assert int(version_of(last)) > int(version_of(changed))


@case
def a_watch_without_a_version_begins_with_what_is_there(api: Api) -> None:
    for name in ("a", "b"):
        made(api.post(api.object("Role", name)))
    for query in ({}, {"resourceVersion": "0"}):
        lines = api.watch("Role", 2, nothing, **query)
        assert sorted(_told(lines)) == [("ADDED", "a"), ("ADDED", "b")]


@case
def what_leaves_a_selection_is_deleted_and_what_enters_it_is_added(api: Api) -> None:
    since = api.version()
    made(api.post(api.config(labels={"w": "1"})))
    gone = made(api.merge("ConfigMap", "a", {"metadata": {"labels": {"w": "2"}}, "data": {"b": "2"}}))
    made(api.merge("ConfigMap", "a", {"data": {"c": "3"}}))
    made(api.merge("ConfigMap", "a", {"metadata": {"labels": {"w": "1"}}}))
    lines = api.watch("ConfigMap", 3, nothing, resourceVersion=since, labelSelector="w=1")
    assert _told(lines) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]
    left = lines[1]["object"]
    assert (left["data"], left["metadata"]["labels"], version_of(left)) == ({"a": "1"}, {"w": "1"}, version_of(gone))


@case
def a_finalizers_object_is_modified_and_then_deleted(api: Api) -> None:
    since = api.version()
    made(api.post(api.config(labels={"w": "1"}, finalizers=["x.dev/keep"])))
    made(api.delete("ConfigMap", "a", propagationPolicy="Background"))
    made(api.merge("ConfigMap", "a", {"metadata": {"finalizers": None}}))
    lines = api.watch("ConfigMap", 3, nothing, resourceVersion=since, labelSelector="w=1")
    assert _told(lines) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert all("deletionTimestamp" in line["object"]["metadata"] for line in lines[1:])


@case
def bookmarks_tell_how_far_a_watch_has_come(api: Api) -> None:
    asked = {"resourceVersion": api.version(), "labelSelector": "w=1", "allowWatchBookmarks": "true"}
    lines = api.watch("ConfigMap", 1, lambda: made(api.post(api.config())), **asked)
    assert [line["type"] for line in lines] == ["BOOKMARK"]
    bookmark = lines[0]["object"]
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("ConfigMap", "v1")
    assert bookmark["metadata"].keys() == {"resourceVersion"}
    assert int(version_of(bookmark)) >= int(version_of(api.get("ConfigMap", "a")))


@case
def a_version_that_is_too_old_is_gone(api: Api) -> None:
    """A version from before its kind existed, so that no server can remember it."""
    lines = api.watch("GNNService", 1, nothing, resourceVersion="1")
    assert [line["type"] for line in lines] == ["ERROR"]
    status = lines[0]["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")
