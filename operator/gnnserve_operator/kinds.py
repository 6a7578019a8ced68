"""The kinds that the operator uses, their paths at the API server, and references to objects; reading those that users
write, and comparing a live object with its manifest. Pure.

Kinds are a table, not discovered: the kinds are fixed, so asking the server for them at every start would cost a dozen
requests and tell nothing new. `desired/children.py` says which of them are children, and what the operator does with
those.

The API server may accept a spec that this version of the operator does not understand: then reading tells why.
It fills in defaults, rewrites quantities and leaves out empty values, so a live object never equals its manifest: every
declared field must be in the live object, which may have more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from gnnserve_api import manifest
from gnnserve_api.errors import InputError
from gnnserve_api.quantity import parse_quantity
from gnnserve_api.spec.pool import POOL_KIND, GNNWorkerPool
from gnnserve_api.spec.service import API_VERSION as GNNSERVICE_API_VERSION
from gnnserve_api.spec.service import KIND as GNNSERVICE_KIND
from gnnserve_api.spec.service import GNNService

Manifest = dict[str, Any]
"""A Kubernetes object as decoded JSON."""
Raw = Mapping[str, Any]
"""A live object, as the API server gave it."""


class ServiceKey(NamedTuple):
    """Namespace and name of a GNNService, or of a GNNWorkerPool: the key of queues, logs and caches."""

    namespace: str
    name: str
    kind: str = GNNSERVICE_KIND

    @property
    def is_pool(self) -> bool:
        return self.kind == POOL_KIND

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.is_pool else f"{self.namespace}/{self.name}"

    def about(
        self, *, uid: str | None = None, reason: str | None = None, duration_s: float | None = None
    ) -> dict[str, Any]:
        """The `extra=` of a log call: the object that it is about, and values that a collector may count."""
        fields: dict[str, Any] = {"object": {"namespace": self.namespace, "name": self.name}}
        if uid is not None:
            fields["object"]["uid"] = uid
        if reason is not None:
            fields["reason"] = reason
        if duration_s is not None:
            fields["durationMs"] = round(duration_s * 1000, 1)
        return fields


@dataclass(frozen=True, slots=True)
class ResourceKind:
    api_version: str
    name: str
    plural: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def api_path(self) -> str:
        """Path of the group and version; its answer lists the resources in it."""
        return f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of an object, or of a list; without a namespace, of all namespaces."""
        steps = [self.api_path, *(("namespaces", namespace) if namespace else ()), self.plural, name, subresource]
        return "/".join(step for step in steps if step)


GNNSERVICE = ResourceKind(GNNSERVICE_API_VERSION, GNNSERVICE_KIND, "gnnservices")
GNNWORKERPOOL = ResourceKind(GNNSERVICE_API_VERSION, POOL_KIND, "gnnworkerpools")
CONFIG_MAP = ResourceKind("v1", "ConfigMap", "configmaps")
CLAIM = ResourceKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD = ResourceKind("v1", "Pod", "pods")
SERVICE = ResourceKind("v1", "Service", "services")
SERVICE_ACCOUNT = ResourceKind("v1", "ServiceAccount", "serviceaccounts")
DEPLOYMENT = ResourceKind("apps/v1", "Deployment", "deployments")
JOB = ResourceKind("batch/v1", "Job", "jobs")
NETWORK_POLICY = ResourceKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGET = ResourceKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
ROLE = ResourceKind("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING = ResourceKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
POD_MONITOR = ResourceKind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
EVENT = ResourceKind("v1", "Event", "events")
LEASE = ResourceKind("coordination.k8s.io/v1", "Lease", "leases")

RECONCILED = (GNNSERVICE, GNNWORKERPOOL)
"""Kinds that users write, and that the operator reconciles."""

_KINDS = {
    (kind.api_version, kind.name): kind
    for kind in (
        GNNSERVICE, GNNWORKERPOOL, CONFIG_MAP, CLAIM, POD, SERVICE, SERVICE_ACCOUNT, DEPLOYMENT, JOB, NETWORK_POLICY,
        DISRUPTION_BUDGET, ROLE, ROLE_BINDING, POD_MONITOR, EVENT, LEASE,
    )
}  # fmt: skip


def kind_of(api_version: str, name: str) -> ResourceKind:
    try:
        return _KINDS[api_version, name]
    except KeyError:
        raise LookupError(f"{name} of {api_version} is not in kinds.py: add it, with its plural") from None


@dataclass(frozen=True, slots=True)
class ObjectRef:
    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def controller_of(raw: Raw) -> Raw | None:
    """The owner reference of an object's controller."""
    for owner in raw.get("metadata", {}).get("ownerReferences") or ():
        if owner.get("controller"):
            return dict(owner)
    return None


def observed_ref(raw: Raw) -> ObjectRef:
    metadata = raw.get("metadata", {})
    return ObjectRef(
        str(raw.get("apiVersion", "")),
        str(raw.get("kind", "")),
        str(metadata.get("namespace", "")),
        str(metadata.get("name", "")),
    )


def has_moved_on(now: Raw, before: Raw) -> bool:
    """Whether what was decided on the object before need not hold now: it is another one, or its spec is, or it
    goes."""
    decisive = ("uid", "generation", "deletionTimestamp")
    return any(now["metadata"].get(name) != before["metadata"].get(name) for name in decisive)


def parse_service(raw: Manifest) -> GNNService | str:
    """The service, or all its problems."""
    return _parse_service(_document(raw))


def parse_pool(raw: Manifest) -> GNNWorkerPool | str:
    """The pool, or why it cannot be read."""
    return _parse_pool(_document(raw))


def _document(raw: Manifest) -> str:
    metadata = {name: raw["metadata"][name] for name in ("name", "namespace")}
    told = {name: raw[name] for name in ("apiVersion", "kind", "spec") if name in raw}
    return json.dumps(told | {"metadata": metadata})


@lru_cache(maxsize=64)
def _parse_service(document: str) -> GNNService | str:
    """Parse a document; cached, since a service is reconciled several times in a row with the same spec."""
    try:
        return GNNService.model_validate_json(document, strict=True, by_alias=True, by_name=False)
    except ValidationError as invalid:
        try:
            manifest.parse_manifest(document, json.loads(document)["metadata"]["name"])  # for its sentences
        except InputError as error:
            return error.problem
        return str(invalid)


@lru_cache(maxsize=64)
def _parse_pool(document: str) -> GNNWorkerPool | str:
    try:
        return manifest.parse_pool(manifest.Document("spec", json.loads(document)))
    except InputError as error:
        return error.problem


Path = tuple[str | int, ...]
"""Names of fields and positions in lists, from the object down to a field."""

_QUANTITIES = {"requests", "limits", "sizeLimit", "divisor"}
"""Fields that hold quantities; elsewhere "1" and "1000m" are two texts."""
_WHOLE = {"selector", "nodeSelector", "podSelector", "namespaceSelector", "labelSelector", "matchLabels"}
"""Fields that one manager owns as a whole (atomic in server-side apply): with one more label they select other
objects."""

_NOT_CONTENT = {"resourceVersion", "generation", "managedFields", "creationTimestamp"}


@dataclass(frozen=True, slots=True)
class FieldDifference:
    path: Path
    declared: Any
    found: Any
    """Value in the live object; None: it has no such field."""


def is_declared(desired: object, live: object) -> bool:
    """Whether everything in `desired` is in `live`."""
    return next(differences(desired, live), None) is None


def differences(
    desired: object, live: object, path: Path = (), *, holds_quantities: bool = False
) -> Iterator[FieldDifference]:
    """The declared fields that the live object does not have as declared, in the order of the manifest. Lists are
    compared by position; one of another length differs as a whole. `path`: of what is compared."""
    field = path[-1] if path else ""
    holds_quantities = holds_quantities or field in _QUANTITIES
    if isinstance(desired, dict):
        found = live if isinstance(live, dict) else {}
        if (desired and live is not found) or (field in _WHOLE and not found.keys() <= desired.keys()):
            yield FieldDifference(path, desired, live)
            return
        for key, value in desired.items():
            yield from differences(value, found.get(key), (*path, key), holds_quantities=holds_quantities)
    elif isinstance(desired, list | tuple):
        entries = live if isinstance(live, list | tuple) else ()
        if len(entries) != len(desired):
            yield FieldDifference(path, desired, live)
            return
        for position, (ours, theirs) in enumerate(zip(desired, entries, strict=True)):
            yield from differences(ours, theirs, (*path, position), holds_quantities=holds_quantities)
    elif desired is None or desired == "":  # the API server leaves these out
        if not (live is None or live == ""):
            yield FieldDifference(path, desired, live)
    elif not _is_equal(desired, live, holds_quantities=holds_quantities):
        yield FieldDifference(path, desired, live)


def _is_equal(desired: object, live: object, *, holds_quantities: bool) -> bool:
    if holds_quantities and live is not None:
        ours, theirs = parse_quantity(desired), parse_quantity(live)
        if ours is not None and theirs is not None:
            return ours == theirs
    return desired == live and isinstance(desired, bool) == isinstance(live, bool)


def content_of(live: Raw) -> Manifest:
    """The fields of a live object that a person could have edited: no status, and no metadata of the API server's."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _NOT_CONTENT}
    return {**{name: value for name, value in live.items() if name != "status"}, "metadata": metadata}


def without_empty(value: Any) -> Any:
    """The value as the API server would keep it: no nulls and no empty texts, lists or mappings in mappings."""
    if isinstance(value, dict):
        kept = {key: without_empty(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [without_empty(item) for item in value]
    return value
