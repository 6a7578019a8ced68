"""A small Kubernetes in memory: what an API server does to objects, and a history that watches follow.

Held against a real API server by one suite (`api_contract.py`). As there: resourceVersions and preconditions,
generations, the status subresource, server-side apply with managed fields, finalizers, deletion, and for GNNService
the CRD's pruning and defaults. Not there: defaults and validation of other kinds (except what may never change), CEL
and the rest of a CRD's validation, admission by webhooks and policies, quotas, authorisation, conversion between
versions, JSON and strategic patches, and controllers: tests play them, and choose when the garbage collector runs.
`create` and `replace` are for tests that play people and controllers: they may set anything, also a status. What a
client may do is `post`, `put`, `apply` and `delete`.
Thread-safe, because the server's threads and the test meet here. Stored objects are never changed in place.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from tests.support.kubernetes import garbage_collector
from tests.support.kubernetes.api_types import (
    CLAIM_PROTECTION,
    GNNSERVICE_SCHEMA,
    Traits,
    defaulted,
    forbidden_change,
    pruned,
    traits_of,
    unknown_field,
)
from tests.support.kubernetes.managed_fields import (
    ConflictsError,
    Manager,
    Managers,
    UntypedError,
    apply_declared,
    decode_managers,
    encode_managers,
    update,
)
from tests.support.machine.waiting import WAIT_S

from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.kinds import EVENT, GNNSERVICE, GNNWORKERPOOL, LEASE, POD_MONITOR, ResourceKind

T = TypeVar("T")
Manifest = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name."""
REPLICA_SET = ResourceKind("apps/v1", "ReplicaSet", "replicasets")
KINDS = (GNNSERVICE, GNNWORKERPOOL, *WATCHED_CHILDREN, POD_MONITOR, EVENT, REPLICA_SET, LEASE)
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
_GRACE_S = 30
_CUSTOM = frozenset({GNNSERVICE.name, GNNWORKERPOOL.name})


class Refusal(Exception):  # noqa: N818 - an answer, not a mistake
    def __init__(
        self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None,
        causes: Iterable[str | Mapping[str, str]] = (), details: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """A cause is its reason, or all that is told of it."""
        super().__init__(message)
        self.code, self.reason, self.message, self.headers = code, reason, message, dict(headers or {})
        self.causes = tuple({"reason": cause} if isinstance(cause, str) else dict(cause) for cause in causes)
        self.details = dict(details or {})
        self.metadata: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Write:
    """A request that would change something, whether it did or not."""

    verb: str
    kind: str
    name: str
    manager: str = ""
    body: Manifest | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    version: int
    type: str
    object: Manifest
    previous: Manifest | None = None


@dataclass(slots=True)
class Fault:
    """Answers matching writes with a refusal, so many times."""

    verb: str
    kind: str
    refusal: Refusal
    times: int = 1_000_000
    name: str | None = None


@dataclass(slots=True)
class FakeCluster:
    kinds: tuple[ResourceKind, ...] = tuple(kind for kind in KINDS if kind is not POD_MONITOR)
    default: Callable[[Manifest], None] | None = None
    """What the API server makes of an object that is written, beyond what is here; in place."""
    schema: Manifest | None = field(default_factory=lambda: GNNSERVICE_SCHEMA)
    """Schema of the CRD: unknown fields are pruned, absent ones get their default. None: neither."""
    writes: list[Write] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    frozen_kinds: set[str] = field(default_factory=set)
    """Kinds whose watches stay open and say nothing any more."""
    broken_kinds: set[str] = field(default_factory=set)
    """Kinds whose watches answer with an error that kopf does not recover from."""
    forbidden_namespaces: set[str] = field(default_factory=set)
    """Namespaces in which the operator has no rights. A watch that is open there ends."""
    collects_garbage: bool = True
    """Whether garbage is collected at once after every change; otherwise it is when a test says
    `collect_garbage(now=True)`."""
    protects_claims: bool = False
    """PersistentVolumeClaims get the finalizer kubernetes.io/pvc-protection, as on a real cluster."""
    missing_namespaces: set[str] = field(default_factory=set)
    terminating_namespaces: set[str] = field(default_factory=set)
    edited: set[tuple[str, str]] = field(default_factory=set)
    """Kinds and names of objects of which `replace` changed more than the status."""
    paths: list[str] = field(default_factory=list)
    """What was asked for, in order."""
    objects: dict[Key, Manifest] = field(default_factory=dict)
    """Objects by kind, namespace and name."""
    history: list[Change] = field(default_factory=list)
    oldest_version: int = 0
    """Watches from before it are answered 410 Gone."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    new_uid: Callable[[], str] = lambda: str(uuid.uuid4())
    _version: int = 100

    @property
    def version(self) -> int:
        return self._version

    # --- what a test asks

    def get(self, kind: str, name: str, namespace: str = "default") -> Manifest:
        with self.changed:
            return copied(self.objects[kind, namespace, name])

    def find(self, kind: str, name: str, namespace: str = "default") -> Manifest | None:
        with self.changed:
            found = self.objects.get((kind, namespace, name))
            return None if found is None else copied(found)

    def all(self, kind: str) -> list[Manifest]:
        with self.changed:
            return [copied(found) for (of, _, _), found in self.objects.items() if of == kind]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Waits for the condition. Call it in a thread of its own: `await asyncio.to_thread(cluster.wait_until, …)`."""
        with self.changed:
            if not self.changed.wait_for(condition, timeout=WAIT_S):
                raise TimeoutError(f"nothing of that kind within {WAIT_S:.0f} s; writes: {list(map(str, self.writes))}")

    # --- what people and controllers of a test do

    def create(self, manifest: Manifest, manager: str = "somebody") -> Manifest:
        """Creates the object with its status, if it has one."""
        with self.changed:
            key = key_of(manifest)
            self._check_faults("create", *key)
            self._check_absent(key)
            return self._create(copied(manifest), Manager(manager, "Update", manifest["apiVersion"]))

    def replace(
        self, kind: str, name: str, change: Callable[[Manifest], None], namespace: str = "default",
        manager: str = "somebody",
    ) -> Manifest:  # fmt: skip
        """What kubectl edit does, and what kubelet and controllers do to a status."""
        with self.changed:
            live = self.objects[kind, namespace, name]
            edited = copied(live)
            change(edited)
            if {**edited, "status": None} != {**live, "status": None}:
                self.edited.add((kind, name))
            return self._update(live, edited, Manager(manager, "Update", live["apiVersion"]))

    # --- what a client does

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is written meanwhile is checked as ever, and not kept (dryRun=All)."""
        with self.changed:
            before = dict(self.objects), len(self.history), self._version
            try:
                yield
            finally:
                self.objects, length, self._version = before
                del self.history[length:]

    def post(self, manifest: Manifest, manager: str) -> Manifest:
        with self.changed:
            key = key_of(manifest)
            self._check_faults("create", *key)
            if manifest["metadata"].get("resourceVersion"):
                raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
            self._check_namespace(key)
            self._check_absent(key)
            updater = Manager(manager, "Update", manifest["apiVersion"])
            return self._create(self._admitted(_without_status(copied(manifest))), updater)

    def put(self, manifest: Manifest, manager: str, subresource: str | None = None) -> Manifest:
        with self.changed:
            key = key_of(manifest)
            traits = traits_of(key[0])
            self._check_faults("put status" if subresource else "put", *key)
            live = self.objects.get(key)
            if live is None:
                if not traits.creates_by_put or subresource:
                    raise self._not_found(key)
                self._check_namespace(key)
                sent = copied(manifest)
                sent["metadata"].pop("resourceVersion", None)
                return self._create(
                    self._admitted(_without_status(sent)), Manager(manager, "Update", sent["apiVersion"])
                )
            self._check_version(key, live, manifest, is_required=traits.needs_version)
            ignores_uid = subresource and key[0] in _CUSTOM
            uid = manifest["metadata"].get("uid")
            if uid and uid != live["metadata"]["uid"] and not ignores_uid:
                differs = f"UID in precondition: {uid}, UID in object meta: {live['metadata']['uid']}"
                raise self._conflict(key, f"Precondition failed: {differs}")
            edited = {**live, "status": copied(manifest.get("status"))} if subresource else copied(manifest)
            if not subresource:
                edited["metadata"] = {**edited["metadata"], **_system_fields(live)}
                edited = _with_status_of(live, edited)
            updater = Manager(manager, "Update", live["apiVersion"], subresource or "")
            return self._update(live, self._admitted(edited, live), updater)

    def apply(
        self, manifest: Manifest, manager: str, subresource: str | None = None, *, force: bool = True
    ) -> Manifest:
        with self.changed:
            key = key_of(manifest)
            live = self.objects.get(key)
            self._check_faults("apply status" if subresource else "apply", *key)
            declared = self._declared(manifest, live, subresource)
            applier = Manager(manager, "Apply", manifest["apiVersion"], subresource or "")
            managers = decode_managers(live["metadata"]) if live else {}
            plain = {} if live is None else _plain(live)
            try:
                becomes, managers = apply_declared(
                    plain, declared, traits_of(key[0]).type, managers, applier, self._now(), force=force
                )
            except ConflictsError as error:
                raise _apply_conflict(error) from error
            except UntypedError as error:
                raise Refusal(500, "", f"failed to create typed patch object: {error}") from error
            if live is None:
                return self._create(self._admitted(becomes), applier, managers)
            becomes["metadata"] = {**becomes["metadata"], **_system_fields(live)}
            uid = manifest["metadata"].get("uid")
            if uid and uid != live["metadata"]["uid"] and not (subresource and key[0] in _CUSTOM):
                raise self._invalid(key, "metadata.uid", f'Invalid value: "{uid}": field is immutable')
            return self._update(live, self._admitted(becomes, live), applier, managers)

    def delete(
        self, kind: str, name: str, namespace: str = "default", *, uid: str | None = None, version: str | None = None,
        policy: str = "Background", grace_s: int | None = None,
    ) -> Manifest | None:  # fmt: skip
        """What is left of it, waiting for finalizers or the kubelet; None where it is gone."""
        with self.changed:
            self._check_faults("delete", kind, namespace, name)
            key = kind, namespace, name
            live = self.objects.get(key)
            if live is None:
                raise self._not_found(key)
            self._check_preconditions(live, uid, version)
            left = self._deleted(key, live, policy, grace_s)
            self.collect_garbage()
            return left

    # --- what the control plane does

    def collect_garbage(self, *, now: bool = False) -> None:
        """Collects garbage until nothing is left to collect."""
        with self.changed:
            while (self.collects_garbage or now) and garbage_collector.step(self):
                pass

    def release_claims(self) -> None:
        """What the controller of kubernetes.io/pvc-protection does: claims that are deleted and unused may go."""
        with self.changed:
            for key, claim in list(self.objects.items()):
                metadata = claim["metadata"]
                is_held = key[0] == "PersistentVolumeClaim" and CLAIM_PROTECTION in metadata.get("finalizers", ())
                if is_held and "deletionTimestamp" in metadata and not self._is_used(key):
                    self.replace(
                        *key[::2], lambda found: found["metadata"]["finalizers"].remove(CLAIM_PROTECTION), key[1]
                    )

    def forget_history(self) -> None:
        """Watches must list again."""
        with self.changed:
            self.oldest_version = self._bump()
            self.changed.notify_all()

    # --- inside

    def _bump(self) -> int:
        self._version += 1
        return self._version

    def _now(self, after_s: float = 0) -> str:
        at = self.clock() + timedelta(seconds=after_s)
        return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    def _admitted(self, manifest: Manifest, live: Manifest | None = None) -> Manifest:
        """Pruned and with the CRD's defaults, where it differs from what is there."""
        if self.schema is None or manifest["kind"] != GNNSERVICE.name:
            return manifest
        kept = {name: value for name, value in manifest.items() if live and live.get(name) == value}
        changed = {name: value for name, value in manifest.items() if name not in kept}
        found = defaulted(pruned(changed, self.schema), self.schema)
        return {**found, **kept, "metadata": manifest["metadata"]}

    def _declared(self, manifest: Manifest, live: Manifest | None, subresource: str | None) -> Manifest:
        """What of it an apply declares, after the checks that come before the merge."""
        key = key_of(manifest)
        metadata = copied(manifest["metadata"])
        if metadata.get("managedFields") is not None:
            raise Refusal(400, "BadRequest", "metadata.managedFields must be nil")
        if self.schema is not None and key[0] == GNNSERVICE.name and (path := unknown_field(manifest, self.schema)):
            raise Refusal(500, "", f"failed to create typed patch object: {path}: field not declared in schema")
        if live is None:
            if subresource:
                raise self._not_found(key)
            if uid := metadata.get("uid"):
                told = f"the provided object specified uid {uid}, and no existing object was found"
                raise self._conflict(key, f"uid mismatch: {told}")
            self._check_namespace(key)
        else:
            self._check_version(key, live, manifest, is_required=False)
        for name in _SYSTEM_FIELDS:
            metadata.pop(name, None)
        metadata.setdefault("namespace", key[1])
        identity = {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"]}
        if subresource:
            own = {name: metadata[name] for name in ("name", "namespace")}
            return {
                **identity,
                "metadata": own,
                **({"status": copied(manifest["status"])} if "status" in manifest else {}),
            }
        return _without_status({**copied(manifest), "metadata": metadata})

    def _create(self, manifest: Manifest, by: Manager, managers: Managers | None = None) -> Manifest:
        manifest["metadata"] = _without_empty({"namespace": "default", **manifest["metadata"]})
        for name in _SYSTEM_FIELDS:
            manifest["metadata"].pop(name, None)
        if manifest["kind"] == "PersistentVolumeClaim" and self.protects_claims:
            manifest["metadata"].setdefault("finalizers", []).append(CLAIM_PROTECTION)
        self._check_owners(manifest)
        traits = traits_of(manifest["kind"])
        if managers is None:
            managers = update({}, manifest, traits.type, {}, by, self._now())
        manifest["metadata"] |= {"uid": self.new_uid(), "creationTimestamp": self._now()}
        if traits.has_generation:
            manifest["metadata"]["generation"] = 1
        if managers:
            manifest["metadata"]["managedFields"] = encode_managers(managers)
        if self.default:
            self.default(manifest)
        return self._store("ADDED", manifest)

    def _update(self, live: Manifest, edited: Manifest, by: Manager, managers: Managers | None = None) -> Manifest:
        key, traits = key_of(live), traits_of(live["kind"])
        before = decode_managers(live["metadata"])
        if managers is None:
            managers = update(_plain(live), _plain(edited), traits.type, before, by, self._now())
        edited["metadata"] = _without_empty({**edited["metadata"], **_system_fields(live)})
        if managers != before:
            edited["metadata"].pop("managedFields", None)
            if managers:
                edited["metadata"]["managedFields"] = encode_managers(managers)
        if self.default:
            edited = copied(edited)  # which shares parts with what is there
            self.default(edited)
        if edited == live:
            return copied(live)
        self._check_change(key, live, edited)
        if traits.has_generation and _is_new_generation(live, edited, traits):
            edited["metadata"]["generation"] = live["metadata"]["generation"] + 1
        metadata = edited["metadata"]
        is_last = "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds")
        if is_last and not metadata.get("finalizers"):
            self._remove(key, edited)
            self.collect_garbage()
            return copied(edited)
        return self._store("MODIFIED", edited)

    def _store(self, change: str, manifest: Manifest) -> Manifest:
        version, key = self._bump(), key_of(manifest)
        manifest["metadata"]["resourceVersion"] = str(version)
        self.history.append(Change(version, change, manifest, self.objects.get(key)))
        self.objects[key] = manifest
        self.collect_garbage()
        self.changed.notify_all()
        return copied(manifest)

    def _deleted(self, key: Key, live: Manifest, policy: str, grace_s: int | None) -> Manifest | None:
        left = copied(live)
        metadata = left["metadata"]
        kept = [name for name in metadata.get("finalizers", ()) if name not in {"orphan", "foregroundDeletion"}]
        kept += {"Foreground": ["foregroundDeletion"], "Orphan": ["orphan"]}.get(policy, [])
        waits_s = 0 if grace_s == 0 else _grace_s(live)
        if not kept and not waits_s:
            self._remove(key, live)
            return None
        told_s = metadata.get("deletionGracePeriodSeconds")
        if told_s is None:
            waits_s = waits_s if grace_s is None or not waits_s else grace_s
            metadata |= {"deletionTimestamp": self._now(waits_s), "deletionGracePeriodSeconds": waits_s}
            if "generation" in metadata:
                metadata["generation"] += 1
        elif grace_s is not None and grace_s < told_s:  # it may be shortened, and never prolonged
            metadata |= {"deletionTimestamp": self._now(grace_s), "deletionGracePeriodSeconds": grace_s}
        metadata["finalizers"] = kept
        if not kept:
            del metadata["finalizers"]
        return copied(live) if left == live else self._store("MODIFIED", left)

    def _remove(self, key: Key, last: Manifest) -> None:
        """`last` is what it was in the end."""
        version = self._bump()
        gone = {**last, "metadata": {**last["metadata"], "resourceVersion": str(version)}}
        self.history.append(Change(version, "DELETED", gone, self.objects.pop(key)))
        self.changed.notify_all()

    def _is_used(self, claim: Key) -> bool:
        """Whether the claim is used by a pod that is, or was, on a node: also by one that has ended."""
        pods = (found for (kind, namespace, _), found in self.objects.items() if (kind, namespace) == ("Pod", claim[1]))
        return any(
            volume.get("persistentVolumeClaim", {}).get("claimName") == claim[2]
            for pod in pods if _is_on_a_node(pod)
            for volume in (pod.get("spec") or {}).get("volumes") or ()
        )  # fmt: skip

    # --- refusals

    def _check_faults(self, verb: str, kind: str, namespace: str, name: str) -> None:
        for fault in self.faults:
            if (fault.verb, fault.kind) == (verb, kind) and fault.name in {None, name} and fault.times > 0:
                fault.times -= 1
                raise fault.refusal

    def _check_absent(self, key: Key) -> None:
        if key in self.objects:
            raise Refusal(
                409, "AlreadyExists", f'{self.resource(key[0])} "{key[2]}" already exists', details=self._told(key)
            )

    def _check_namespace(self, key: Key) -> None:
        kind, namespace, name = key
        if namespace in self.missing_namespaces:
            details = {"name": namespace, "kind": "namespaces"}
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found', details=details)
        if namespace in self.terminating_namespaces:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated",
                     "field": "metadata.namespace"}  # fmt: skip
            raise Refusal(403, "Forbidden", f'{self.resource(kind)} "{name}" is forbidden: {why}', causes=[cause],
                          details=self._told(key))  # fmt: skip

    def _check_version(self, key: Key, live: Manifest, manifest: Manifest, *, is_required: bool) -> None:
        version = manifest["metadata"].get("resourceVersion")
        if version and version != live["metadata"]["resourceVersion"]:
            raise self._conflict(key, _MODIFIED)
        if not version and is_required:
            told = "Invalid value: 0: must be specified for an update"
            raise self._invalid(key, "metadata.resourceVersion", told, of=self.resource(key[0]))

    def _check_preconditions(self, live: Manifest, uid: str | None, version: str | None) -> None:
        """Told of the kind where all else is told of the resource."""
        kind, _, name = key_of(live)
        metadata = live["metadata"]
        if uid is not None and uid != metadata["uid"]:
            why = (f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']}). "
                   "The object might have been deleted and then recreated")  # fmt: skip
        elif version is not None and version != metadata["resourceVersion"]:
            why = (f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
                   f"({metadata['resourceVersion']}). The object might have been modified")  # fmt: skip
        else:
            return
        raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {self._qualified(kind)} "{name}": {why}')

    def _check_owners(self, manifest: Manifest) -> None:
        owners = [owner for owner in manifest["metadata"].get("ownerReferences") or () if owner.get("controller")]
        if len(owners) > 1:
            names = " and ".join(f"{owner['kind']}/{owner['name']}" for owner in owners[:2])
            told = f'Only one reference can have Controller set to true. Found "true" in references for {names}'
            raise self._invalid(key_of(manifest), "metadata.ownerReferences", f"Invalid value: {told}")

    def _check_change(self, key: Key, live: Manifest, edited: Manifest) -> None:
        self._check_owners(edited)
        if "deletionTimestamp" in live["metadata"]:
            held = set(live["metadata"].get("finalizers", ()))
            if new := [name for name in edited["metadata"].get("finalizers", ()) if name not in held]:
                told = "[]string{" + ", ".join(f'"{name}"' for name in new) + "}"
                why = f"no new finalizers can be added if the object is being deleted, found new finalizers {told}"
                raise self._invalid(key, "metadata.finalizers", f"Forbidden: {why}")
        if found := forbidden_change(live, edited):
            raise self._invalid(key, *found)

    def _not_found(self, key: Key) -> Refusal:
        return Refusal(404, "NotFound", f'{self.resource(key[0])} "{key[2]}" not found', details=self._told(key))

    def _conflict(self, key: Key, why: str) -> Refusal:
        message = f'Operation cannot be fulfilled on {self.resource(key[0])} "{key[2]}": {why}'
        return Refusal(409, "Conflict", message, details=self._told(key))

    def _invalid(self, key: Key, path: str, told: str, of: str | None = None) -> Refusal:
        message = f'{of or self._qualified(key[0])} "{key[2]}" is invalid: {path}: {told}'
        reason = "FieldValueForbidden" if told.startswith("Forbidden") else "FieldValueInvalid"
        return Refusal(422, "Invalid", message, causes=[{"reason": reason, "message": told, "field": path}],
                       details={**self._told(key), "kind": key[0]})  # fmt: skip

    def resource(self, kind: str) -> str:
        """The resource as messages name it: configmaps, deployments.apps."""
        found = self.kind(kind)
        return f"{found.plural}.{found.group}" if found.group else found.plural

    def _qualified(self, kind: str) -> str:
        found = self.kind(kind)
        return f"{kind}.{found.group}" if found.group else kind

    def _told(self, key: Key) -> dict[str, str]:
        found = self.kind(key[0])
        return {"name": key[2], "kind": found.plural, **({"group": found.group} if found.group else {})}

    def kind(self, name: str) -> ResourceKind:
        return next(kind for kind in (*self.kinds, *KINDS) if kind.name == name)


def _is_on_a_node(pod: Manifest) -> bool:
    """Whether the pod is on a node; where no test names one, what only a kubelet reports decides."""
    status = pod.get("status") or {}
    has_node = bool((pod.get("spec") or {}).get("nodeName") or status.get("containerStatuses"))
    return has_node or status.get("phase", "Pending") != "Pending"


def key_of(manifest: Manifest) -> Key:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", "default"), metadata["name"]


def copied(value: T) -> T:
    """A copy by JSON, so that no caller shares the stored object."""
    found: T = msgspec.json.decode(msgspec.json.encode(value))
    return found


_SYSTEM_FIELDS = (
    "uid", "generation", "creationTimestamp", "resourceVersion", "managedFields", "deletionTimestamp",
    "deletionGracePeriodSeconds",
)  # fmt: skip
"""The API server's own: what a client sends of them is not written."""


def _system_fields(live: Manifest) -> Manifest:
    return {name: live["metadata"][name] for name in _SYSTEM_FIELDS if name in live["metadata"]}


def _plain(manifest: Manifest) -> Manifest:
    """The object without the API server's own fields."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _SYSTEM_FIELDS}
    return {**manifest, "metadata": metadata}


def _without_empty(metadata: Manifest) -> Manifest:
    return {name: value for name, value in metadata.items() if value not in (None, [], {})}


def _without_status(manifest: Manifest) -> Manifest:
    if traits_of(manifest["kind"]).has_status:
        manifest.pop("status", None)
    return manifest


def _with_status_of(live: Manifest, edited: Manifest) -> Manifest:
    if traits_of(live["kind"]).has_status:
        edited.pop("status", None)
        return {**edited, **({"status": live["status"]} if "status" in live else {})}
    return edited


def _is_new_generation(live: Manifest, edited: Manifest, traits: Traits) -> bool:
    if live["kind"] == GNNSERVICE.name:
        return any(live.get(name) != edited.get(name) for name in {*live, *edited} - {"metadata", "status"})
    if traits.annotations_are_spec:
        before, after = (found["metadata"].get("annotations") or {} for found in (live, edited))
        if before != after:
            return True
    return bool(live.get("spec") != edited.get("spec"))


def _grace_s(pod: Manifest) -> int:
    """How long the kubelet may take to stop it; what runs nowhere is gone at once."""
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    if pod["kind"] != "Pod" or not spec.get("nodeName") or phase in {"Succeeded", "Failed"}:
        return 0
    return int(spec.get("terminationGracePeriodSeconds", _GRACE_S))


def _apply_conflict(error: ConflictsError) -> Refusal:
    told: dict[str, list[str]] = {}
    for found in error.conflicts:
        manager = f'"{found.manager.name}"'
        if found.manager.subresource:
            manager += f' with subresource "{found.manager.subresource}"'
        if found.manager.operation == "Update":
            manager += f" using {found.manager.api_version}"
        told.setdefault(manager, []).append(found.path)
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": path}
        for manager, paths in told.items() for path in paths
    ]  # fmt: skip
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines = [line for manager in sorted(told) for line in (f"conflicts with {manager}:",
                 *(f"- {path}" for path in told[manager]))]  # fmt: skip
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return Refusal(409, "Conflict", message, causes=causes)
