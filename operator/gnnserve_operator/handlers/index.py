"""The index of what the watches have reported: GNNServices, GNNWorkerPools, and what the operator made for each.

Handlers of kopf's events fill and empty it; the rest of the operator reads it and does not depend on kopf. kopf's own
indices are not used: until all are full, each incoming object wakes every waiting handler, and each of those checks all
indices (8,500 objects took 113 s). Objects are stored as JSON, without `managedFields`, which are most of the text, but
for what `desired/metadata.py` needs: a Deployment of ours is 21 KB as Python dicts and 3 KB as JSON, which is parsed in
26 µs.

A watch that was away for too long lists again, and kopf does not notice what was deleted meanwhile. `bury` removes such
an object by its uid, which no other object will ever have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Self

import msgspec

from gnnserve_api.status.service_status import ConditionType
from gnnserve_operator.decide.contests import NO_WRITERS, ReplicasWriters, find_writers
from gnnserve_operator.desired.metadata import POOL, SERVICE, needed_managed_fields
from gnnserve_operator.fleet import Standings
from gnnserve_operator.kinds import (
    DEPLOYMENT,
    GNNSERVICE,
    GNNWORKERPOOL,
    JOB,
    RECONCILED,
    Manifest,
    ResourceKind,
    ServiceKey,
)
from gnnserve_operator.metrics import ConditionLabels
from gnnserve_operator.observed import observed_standings


@dataclass(frozen=True, slots=True)
class IndexedObject:
    """One object, and the fields that are queried over all objects at once."""

    api_version: str
    kind: str
    uid: str
    version: str
    text: bytes
    """The object as JSON."""
    pool: str = ""
    """Name of the GNNWorkerPool that a GNNService names; empty: it has pods of its own, or is another object."""
    writers: ReplicasWriters = NO_WRITERS
    """Managers of the number of workers; none of an object that has no such number."""

    @classmethod
    def of(cls, body: Manifest) -> Self:
        metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        if needed := needed_managed_fields(body):
            metadata["managedFields"] = needed
        text = msgspec.json.encode({**body, "metadata": metadata})
        return cls(
            intern(body["apiVersion"]), intern(body["kind"]), metadata["uid"], metadata["resourceVersion"], text,
            _pool_of(body), find_writers(body) if _is_reconciled(body["apiVersion"], body["kind"]) else NO_WRITERS,
        )  # fmt: skip

    def body(self) -> Manifest:
        """The decoded object, new each time, so that callers cannot change the stored one."""
        return dict(msgspec.json.decode(self.text))


def service_of(body: Manifest) -> ServiceKey:
    """The service, or the pool, of an object; its name is empty where the label was removed. The texts are shared: the
    index keeps a key for each object."""
    metadata, kind = body["metadata"], str(body.get("kind"))
    namespace, labels = intern(metadata["namespace"]), metadata.get("labels") or {}
    if _is_reconciled(str(body.get("apiVersion")), kind):
        return ServiceKey(namespace, intern(metadata["name"]), intern(kind))
    if POOL in labels:
        return ServiceKey(namespace, intern(labels[POOL]), GNNWORKERPOOL.name)
    return ServiceKey(namespace, intern(labels.get(SERVICE, "")))


Objects = dict[ServiceKey, dict[str, IndexedObject]]
"""Objects by service, then by uid, which is unique."""


@dataclass(slots=True)
class Index:
    _services: Objects = field(default_factory=dict)
    _children: Objects = field(default_factory=dict)
    _keys: dict[str, ServiceKey] = field(default_factory=dict)
    """The service of each object, by uid."""
    _buried: set[str] = field(default_factory=set)

    def keep(self, key: ServiceKey, kept: IndexedObject) -> None:
        """Store an object, replacing what was known of it, even under another service."""
        if kept.uid in self._buried:
            return
        before = self._services.get(self._keys.get(kept.uid, key), {}).get(kept.uid)
        if before is not None and not kept.writers.autoscaler and before.writers.autoscaler:
            # A manifest took the field over; the autoscaler takes it back at its next look.
            last = before.writers
            writers = replace(kept.writers, autoscaler=last.autoscaler, scaled_at=last.scaled_at)
            kept = replace(kept, writers=writers)
        self.drop(kept.uid)
        self._keys[kept.uid] = key
        self._of_kind(kept).setdefault(key, {})[kept.uid] = kept

    def drop(self, uid: str) -> bool:
        """Remove an object. Returns whether it was there."""
        key = self._keys.pop(uid, None)
        if key is None:
            return False
        for objects in (self._services, self._children):
            found = objects.get(key, {})
            if found.pop(uid, None) is not None and not found:
                del objects[key]
        return True

    def find(self, uid: str) -> tuple[ServiceKey, IndexedObject] | None:
        """An object, and the service that it belongs to; None: it is not known."""
        key = self._keys.get(uid)
        if key is None:
            return None
        found = self._services.get(key, {}).get(uid) or self._children.get(key, {}).get(uid)
        return None if found is None else (key, found)

    def bury(self, uid: str) -> None:
        """Remove an object for good, whatever a watch still reports of it."""
        self._buried.add(uid)
        self.drop(uid)

    def service_keys(self) -> list[ServiceKey]:
        """Keys of all GNNServices."""
        return [key for key in self._services if not key.is_pool]

    def reconciled_keys(self) -> list[ServiceKey]:
        """Keys of all that is reconciled: GNNServices and GNNWorkerPools."""
        return list(self._services)

    def pool_of(self, key: ServiceKey) -> ServiceKey | None:
        """The pool that a service names, whether or not there is one."""
        name = next((kept.pool for kept in self._services.get(key, {}).values() if kept.pool), "")
        return ServiceKey(key.namespace, name, GNNWORKERPOOL.name) if name else None

    def members(self, pool: ServiceKey) -> list[ServiceKey]:
        """Services that name the pool, sorted."""
        return sorted(
            key
            for key, found in self._services.items()
            if key.namespace == pool.namespace and any(kept.pool == pool.name for kept in found.values())
        )

    def related(self, key: ServiceKey) -> list[ServiceKey]:
        """Others that a change of this one concerns: a pool's services, and a service's pool."""
        if key.is_pool:
            return self.members(key)
        pool = self.pool_of(key)
        return [] if pool is None else [pool]

    def replicas_writers(self, key: ServiceKey) -> ReplicasWriters:
        """The managers that set its number of workers, and the autoscaler that did so last."""
        return next((kept.writers for kept in self._services.get(key, {}).values()), NO_WRITERS)

    def service(self, key: ServiceKey) -> Manifest | None:
        # There are two for a moment when one was deleted and created again: the newer one counts.
        found = self._bodies(self._services, key)
        return max(found, key=lambda body: str(body["metadata"].get("creationTimestamp")), default=None)

    def children(self, key: ServiceKey, *of: ResourceKind) -> list[Manifest]:
        """All children of a service, or those of some kinds."""
        found, kinds = self._children.get(key, {}).values(), {(kind.api_version, kind.name) for kind in of}
        return [kept.body() for kept in found if not kinds or (kept.api_version, kept.kind) in kinds]

    def child(self, key: ServiceKey, kind: ResourceKind, name: str) -> Manifest | None:
        """The child of that kind and name, whatever it belongs to; None: the watches know none. Where the end of an
        earlier one was not reported, the later one."""
        found = [raw for raw in self.children(key, kind) if raw["metadata"]["name"] == name]
        return found[-1] if found else None

    def standings(self, key: ServiceKey) -> Standings:
        """Standings of a service among the others by its children."""
        return observed_standings(self.service(key) or {}, self.children(key, JOB), self.children(key, DEPLOYMENT))

    def has_version(self, key: ServiceKey, service: Manifest) -> bool:
        """Whether this is the newest reported version of the service."""
        kept, metadata = self._services.get(key, {}), service["metadata"]
        uid = metadata["uid"]
        return kept.keys() == {uid} and kept[uid].version == metadata["resourceVersion"]

    def versions(self, key: ServiceKey, kinds: Set[ResourceKind]) -> frozenset[tuple[str, str]]:
        """Uid and resourceVersion of each child of these kinds: equal as long as none of them has changed."""
        names = {kind.name for kind in kinds}
        kept = self._children.get(key, {}).values()
        return frozenset((found.uid, found.version) for found in kept if found.kind in names)

    def by_uid(self, kind: ResourceKind) -> dict[str, IndexedObject]:
        return {
            uid: kept
            for objects in (self._services, self._children)
            for found in objects.values()
            for uid, kept in found.items()
            if (kept.api_version, kept.kind) == (kind.api_version, kind.name)
        }

    def count_by_ready(self) -> Mapping[str, int]:
        return Counter(_ready(body) for key in self.service_keys() for body in self._bodies(self._services, key))

    def declared_workers(self) -> Mapping[ServiceKey, int]:
        """Workers that should answer by now: none for a suspended service, or before the first revision."""
        return {
            key: _declared_workers(body, None if (pool := self.pool_of(key)) is None else self.service(pool) or {})
            for key in self.service_keys()
            if (body := self.service(key)) is not None
        }

    def conditions(self) -> Mapping[ServiceKey, tuple[ConditionLabels, ...]]:
        """The operator's own conditions of each service, from its status."""
        ours = {kind.value for kind in ConditionType}
        return {
            key: tuple(
                ConditionLabels(told["type"], told["status"], told["reason"])
                for told in (body.get("status") or {}).get("conditions") or ()
                if told["type"] in ours
            )
            for key in self.service_keys()
            if (body := self.service(key)) is not None
        }

    def _of_kind(self, kept: IndexedObject) -> Objects:
        return self._services if _is_reconciled(kept.api_version, kept.kind) else self._children

    @staticmethod
    def _bodies(objects: Objects, key: ServiceKey) -> Iterator[Manifest]:
        return (kept.body() for kept in objects.get(key, {}).values())


_RECONCILED = frozenset(kind.name for kind in RECONCILED)


def _is_reconciled(api_version: str, kind: str) -> bool:
    return api_version == GNNSERVICE.api_version and kind in _RECONCILED


def _pool_of(body: Manifest) -> str:
    if body["kind"] != GNNSERVICE.name:
        return ""
    worker = (body.get("spec") or {}).get("worker") or {}
    return str((worker.get("poolRef") or {}).get("name") or "")


def _declared_workers(body: Manifest, pool: Manifest | None) -> int:
    """`pool`: the service's pool, {} if there is none of that name; None: the service has pods of its own."""
    spec = body["spec"]
    if spec.get("suspend") or not (body.get("status") or {}).get("revision"):
        return 0
    if pool is not None:
        return int((pool.get("spec") or {}).get("replicas", 1)) if pool else 0
    return int((spec.get("worker") or {}).get("replicas", 1))


def _ready(body: Manifest) -> str:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((c["status"] for c in conditions if c["type"] == ConditionType.READY), "Unknown")
