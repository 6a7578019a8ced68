"""What the API server knows of each kind: how its fields are merged, what is a new generation, what is refused.

The merge rules are those of /openapi/v3 of Kubernetes 1.36, and of the CRD; tests/cluster compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.kubernetes.managed_fields import PLAIN, Type

from gnnserve_api.generated.schema import POOL, crd

Manifest = dict[str, Any]
ATOMIC, MAP, SET = Type("atomic"), Type("map"), Type("set")


def by(*keys: str | tuple[str, object], entry: Type = PLAIN) -> Type:
    """A list whose entries are told apart by these fields; a text that is absent is empty."""
    named = tuple((key, "") if isinstance(key, str) else key for key in keys)
    return Type("list-map", named, {"[]": entry} if entry is not PLAIN else {})


def struct(**fields: Type) -> Type:
    return Type(children=fields)


def every(entry: Type) -> Type:
    return Type("map", children={"*": entry})


METADATA = struct(
    annotations=MAP, labels=MAP, finalizers=SET, ownerReferences=by("uid", entry=ATOMIC),
)  # fmt: skip
_CONDITIONS = struct(conditions=by("type"))
_RESOURCES = struct(claims=by("name"), limits=MAP, requests=MAP)
_PORTS = by(("containerPort", 0), ("protocol", "TCP"))
_VALUE_FROM = struct(**{
    f"{what}Ref": ATOMIC for what in ("configMapKey", "field", "fileKey", "resourceField", "secretKey")
})  # fmt: skip
_CONTAINERS = by("name", entry=struct(
    env=by("name", entry=struct(valueFrom=_VALUE_FROM)), ports=_PORTS, resources=_RESOURCES,
    volumeDevices=by("devicePath"), volumeMounts=by("mountPath"),
))  # fmt: skip
_CLAIM_SPEC = struct(dataSource=ATOMIC, resources=struct(limits=MAP, requests=MAP), selector=ATOMIC)
_SECRET = struct(secretRef=ATOMIC)
_VOLUMES = by("name", entry=struct(
    cephfs=_SECRET, cinder=_SECRET, iscsi=_SECRET, rbd=_SECRET, scaleIO=_SECRET, storageos=_SECRET,
    csi=struct(nodePublishSecretRef=ATOMIC, volumeAttributes=MAP),
    ephemeral=struct(volumeClaimTemplate=struct(metadata=METADATA, spec=_CLAIM_SPEC)),
    flexVolume=struct(options=MAP, secretRef=ATOMIC),
))  # fmt: skip
_POD_SPEC = struct(
    affinity=struct(nodeAffinity=struct(requiredDuringSchedulingIgnoredDuringExecution=ATOMIC)),
    containers=_CONTAINERS, initContainers=_CONTAINERS, ephemeralContainers=_CONTAINERS,
    hostAliases=by("ip"), imagePullSecrets=by("name", entry=ATOMIC), nodeSelector=ATOMIC, overhead=MAP,
    resourceClaims=by("name"), resources=_RESOURCES, schedulingGates=by("name"),
    topologySpreadConstraints=by("topologyKey", "whenUnsatisfiable", entry=struct(labelSelector=ATOMIC)),
    volumes=_VOLUMES,
)  # fmt: skip
_TEMPLATED = struct(selector=ATOMIC, template=struct(metadata=METADATA, spec=_POD_SPEC))
_STATUS_RESOURCES = {"allocatedResources": MAP, "allocatedResourceStatuses": MAP}


@dataclass(frozen=True, slots=True)
class Traits:
    type: Type
    has_generation: bool = False
    has_status: bool = False
    """A subresource of its own: neither POST nor PUT nor an apply of the object changes it."""
    annotations_are_spec: bool = False
    needs_version: bool = False
    """A PUT without a resourceVersion is refused."""
    creates_by_put: bool = False
    orphans: bool = False
    """A DELETE that does not say otherwise leaves the dependents."""
    returns_deleted: bool = False
    """A DELETE answers with the object rather than with a Status."""
    fixed: tuple[str, ...] = ()
    """Fields that no update may change."""


def _traits(
    *, spec: Type = PLAIN, status: Type = PLAIN, fields: Mapping[str, Type] | None = None, **rest: Any
) -> Traits:
    return Traits(Type(children={"metadata": METADATA, "spec": spec, "status": status, **(fields or {})}), **rest)


_JOB_STATUS = struct(uncountedTerminatedPods=struct(failed=SET, succeeded=SET))
_POD_STATUS = struct(
    allocatedResources=MAP, conditions=by("type"), podIPs=by("ip"), resourceClaimStatuses=by("name"),
    resources=_RESOURCES,
)  # fmt: skip
_CLAIM_STATUS = struct(capacity=MAP, conditions=by("type"), **_STATUS_RESOURCES)
_BUDGET_STATUS = struct(conditions=by("type"), disruptedPods=MAP)


def _of_schema(schema: Manifest) -> Type:
    """A CRD's merge rules."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if schema.get("x-kubernetes-map-type") == "atomic":
        return ATOMIC
    if schema.get("type") == "array":
        entry = _of_schema(schema["items"])
        if schema.get("x-kubernetes-list-type") == "map":
            fields = schema["items"]["properties"]
            return Type("list-map", tuple((key, fields[key].get("default")) for key in keys or ()), {"[]": entry})
        return Type("set") if schema.get("x-kubernetes-list-type") == "set" else PLAIN
    if "properties" in schema:
        return Type(children={name: _of_schema(below) for name, below in schema["properties"].items()})
    values = schema.get("additionalProperties")
    return every(_of_schema(values)) if isinstance(values, dict) else PLAIN


def schema_of(of: Manifest) -> Manifest:
    (version,) = of["spec"]["versions"]
    schema: Manifest = version["schema"]["openAPIV3Schema"]
    return schema


GNNSERVICE_SCHEMA = schema_of(crd())
_GNNSERVICE = _of_schema(GNNSERVICE_SCHEMA)

_GNNWORKERPOOL = _of_schema(schema_of(crd(POOL)))

TRAITS = {
    "GNNWorkerPool": Traits(Type(children={**_GNNWORKERPOOL.children, "metadata": METADATA}), has_generation=True,
                            has_status=True, needs_version=True),
    "GNNService": Traits(Type(children={**_GNNSERVICE.children, "metadata": METADATA}), has_generation=True,
                         has_status=True, needs_version=True),
    "ConfigMap": _traits(fields={"binaryData": MAP, "data": MAP}),
    "PersistentVolumeClaim": _traits(spec=_CLAIM_SPEC, status=_CLAIM_STATUS, has_status=True, returns_deleted=True),
    "Pod": _traits(spec=_POD_SPEC, status=_POD_STATUS, has_generation=True, has_status=True, returns_deleted=True),
    "Service": _traits(spec=struct(ports=by(("port", 0), ("protocol", "TCP")), selector=ATOMIC), status=_CONDITIONS,
                       has_status=True, returns_deleted=True),
    "ServiceAccount": _traits(fields={"secrets": by(("name", None), entry=ATOMIC)}, returns_deleted=True),
    "Event": _traits(fields={"involvedObject": ATOMIC, "related": ATOMIC}, creates_by_put=True),
    "Deployment": _traits(spec=_TEMPLATED, status=_CONDITIONS, has_generation=True, has_status=True,
                          annotations_are_spec=True, fixed=("spec.selector",)),
    "ReplicaSet": _traits(spec=_TEMPLATED, status=_CONDITIONS, has_generation=True, has_status=True,
                          fixed=("spec.selector",)),
    "Job": _traits(spec=_TEMPLATED, status=_JOB_STATUS, has_generation=True, has_status=True, orphans=True,
                   fixed=("spec.selector", "spec.template")),
    "NetworkPolicy": _traits(spec=struct(podSelector=ATOMIC), has_generation=True),
    "PodDisruptionBudget": _traits(spec=struct(selector=ATOMIC), status=_BUDGET_STATUS, has_generation=True,
                                   has_status=True, needs_version=True),
    "Role": _traits(creates_by_put=True),
    "RoleBinding": _traits(fields={"roleRef": ATOMIC}, creates_by_put=True),
    "Lease": _traits(creates_by_put=True, needs_version=True),
}  # fmt: skip
OTHER = _traits()
CLAIM_PROTECTION = "kubernetes.io/pvc-protection"


def traits_of(kind: str) -> Traits:
    return TRAITS.get(kind, OTHER)


def pruned(value: Any, schema: Manifest) -> Any:
    """The object without fields that the schema does not know."""
    if isinstance(value, dict) and "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        known = schema["properties"]
        return {name: pruned(item, known[name]) for name, item in value.items() if name in known}
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        return {name: pruned(item, schema["additionalProperties"]) for name, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [pruned(item, schema["items"]) for item in value]
    return value


def unknown_field(value: Any, schema: Manifest, path: str = "") -> str | None:
    """The first that the schema does not know; metadata is not the schema's."""
    if isinstance(value, dict) and "properties" in schema:
        for name, item in value.items():
            if name not in schema["properties"]:
                return f"{path}.{name}"
            below = {} if not path and name == "metadata" else schema["properties"][name]
            if found := unknown_field(item, below, f"{path}.{name}"):
                return found
    entries = value if isinstance(value, list) and "items" in schema else ()
    return next((found for entry in entries if (found := unknown_field(entry, schema["items"], f"{path}[]"))), None)


def defaulted(value: Any, schema: Manifest) -> Any:
    """The object with the schema's defaults for absent fields; a null is absent."""
    if isinstance(value, dict) and "properties" in schema:
        found = dict(value)
        for name, below in schema["properties"].items():
            if found.get(name) is None and "default" in below:
                found[name] = below["default"]
            if name in found:
                found[name] = defaulted(found[name], below)
        return found
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        return {name: defaulted(item, schema["additionalProperties"]) for name, item in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [defaulted(item, schema["items"]) for item in value]
    return value


def forbidden_change(live: Manifest, edited: Manifest) -> tuple[str, str] | None:
    """The field that may not change so, and what the API server says to that."""
    for path in traits_of(live["kind"]).fixed:
        if _at(_without_placement(live), path) != _at(_without_placement(edited, live), path):
            return path, "Invalid value: field is immutable"
    if live["kind"] == "RoleBinding" and live.get("roleRef") != edited.get("roleRef"):
        return "roleRef", "Invalid value: cannot change roleRef"
    if live["kind"] == "PersistentVolumeClaim" and _fixed_of_claim(live, live) != _fixed_of_claim(edited, live):
        return "spec", (
            "Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for "
            "bound claims"
        )
    return None


_PLACEMENT = ("nodeSelector", "tolerations", "affinity")


def _without_placement(manifest: Manifest, live: Manifest | None = None) -> Manifest:
    """The object; of a Job that was never started without what says on which nodes it may run, which may change."""
    live = live or manifest
    if live["kind"] != "Job" or not live["spec"].get("suspend") or (live.get("status") or {}).get("startTime"):
        return manifest
    template = manifest["spec"]["template"]
    pod = {name: value for name, value in template["spec"].items() if name not in _PLACEMENT}
    return {**manifest, "spec": {**manifest["spec"], "template": {"spec": pod}}}


def _fixed_of_claim(claim: Manifest, live: Manifest) -> Manifest:
    spec: Manifest = claim.get("spec") or {}
    if (live.get("status") or {}).get("phase") != "Bound":
        return spec
    return {name: value for name, value in spec.items() if name not in {"resources", "volumeAttributesClassName"}}


def _at(manifest: Manifest, path: str) -> Any:
    found: Any = manifest
    for step in path.split("."):
        found = (found or {}).get(step)
    return found
