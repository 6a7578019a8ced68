"""A small Kubernetes in memory: objects, server-side apply, owner references, and a history that watches follow.

What the operator's shell needs and no more: defaulting, admission and schemas are the real API server's, in
tests/cluster. `fake_api.py` puts it behind HTTP; tests call it directly, and play kubelet and controllers through it.
Thread-safe, because the server's threads and the test meet here.
"""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gnnserve_operator.kinds import EVENT, GNNSERVICE, POD_MONITOR, WATCHED_CHILDREN, Kind

Manifest = dict[str, Any]
REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")
KINDS = (GNNSERVICE, *WATCHED_CHILDREN, POD_MONITOR, EVENT, REPLICA_SET)
WAIT_S = 20.0
"""Longest a test waits for a condition: far beyond any, so that only a mistake meets it."""


class Refusal(Exception):  # noqa: N818 - an answer, not a mistake
    def __init__(
        self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None, causes: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.headers = code, reason, message, dict(headers or {})
        self.causes = tuple(causes)


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
    kinds: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind is not POD_MONITOR)
    default: Callable[[Manifest], None] = lambda _: None
    """What the API server makes of an object that is written; in place."""
    writes: list[Write] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    frozen_kinds: set[str] = field(default_factory=set)
    """Kinds whose watches stay open and say nothing any more."""
    broken_kinds: set[str] = field(default_factory=set)
    """Kinds whose watches answer with an error that kopf does not recover from."""
    collects_garbage: bool = True
    paths: list[str] = field(default_factory=list)
    """What was asked for, in order."""
    objects: dict[tuple[str, str, str], Manifest] = field(default_factory=dict)
    """By kind, namespace and name."""
    history: list[Change] = field(default_factory=list)
    oldest_version: int = 0
    """Watches from before it are answered 410 Gone."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    _version: int = 100
    _applied: dict[tuple[str, str, str, str], Manifest] = field(default_factory=dict)
    """What each field manager applied last."""

    @property
    def version(self) -> int:
        return self._version

    # --- what a test asks

    def get(self, kind: str, name: str, namespace: str = "default") -> Manifest:
        with self.changed:
            return copy.deepcopy(self.objects[kind, namespace, name])

    def find(self, kind: str, name: str, namespace: str = "default") -> Manifest | None:
        with self.changed:
            return copy.deepcopy(self.objects.get((kind, namespace, name)))

    def all(self, kind: str) -> list[Manifest]:
        with self.changed:
            return [copy.deepcopy(found) for (of, _, _), found in self.objects.items() if of == kind]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """In a thread of its own: `await asyncio.to_thread(cluster.wait_until, …)`."""
        with self.changed:
            if not self.changed.wait_for(condition, timeout=WAIT_S):
                raise TimeoutError(f"nothing of that kind within {WAIT_S:.0f} s; writes: {list(map(str, self.writes))}")

    # --- what a client does

    def create(self, manifest: Manifest) -> Manifest:
        with self.changed:
            key = _key(manifest)
            self._check_faults("create", *key)
            if key in self.objects:
                raise Refusal(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
            return self._store("ADDED", self._created(manifest))

    def apply(self, manifest: Manifest, manager: str, subresource: str | None = None) -> Manifest:
        with self.changed:
            key = _key(manifest)
            live = self.objects.get(key)
            self._check_faults("apply status" if subresource else "apply", *key)
            self._check_applicable(manifest, live, subresource)
            scope = {"apiVersion", "kind", "metadata", "status"} if subresource else set(manifest) - {"status"}
            declared = {name: copy.deepcopy(value) for name, value in manifest.items() if name in scope}
            declared["metadata"].pop("uid", None)
            before = self._applied.get((*key, manager), {})
            self._applied[*key, manager] = declared
            merged = _merge(_without(copy.deepcopy(live or {}), before, declared), declared)
            if live is None:
                return self._store("ADDED", self._created(merged))
            merged["metadata"] = {**merged["metadata"], **_server_fields(live)}
            return self._update(live, merged)

    def replace(self, kind: str, name: str, change: Callable[[Manifest], None], namespace: str = "default") -> Manifest:
        """What kubectl edit does, and what kubelet and controllers do to a status."""
        with self.changed:
            live = self.objects[kind, namespace, name]
            edited = copy.deepcopy(live)
            change(edited)
            return self._update(live, edited)

    def delete(self, kind: str, name: str, namespace: str = "default") -> None:
        with self.changed:
            self._check_faults("delete", kind, namespace, name)
            if (kind, namespace, name) not in self.objects:
                raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
            self._remove((kind, namespace, name))
            self.collect_garbage()

    # --- what the control plane does

    def collect_garbage(self, *, now: bool = False) -> None:
        """Removes what has owners, all of which are gone."""
        with self.changed:
            while (self.collects_garbage or now) and (orphans := list(self._orphans())):
                for key in orphans:
                    self._remove(key)

    def forget_history(self) -> None:
        """Watches must list again."""
        with self.changed:
            self.oldest_version = self._bump()
            self.changed.notify_all()

    # --- inside

    def _bump(self) -> int:
        self._version += 1
        return self._version

    def _created(self, manifest: Manifest) -> Manifest:
        created = copy.deepcopy(manifest)
        created["metadata"] = {
            "namespace": "default", **created["metadata"],
            "uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now(),
            "managedFields": [{"manager": "somebody"}],
        }  # fmt: skip
        return created

    def _store(self, change: str, manifest: Manifest) -> Manifest:
        self.default(manifest)
        version = self._bump()
        manifest["metadata"]["resourceVersion"] = str(version)
        self.objects[_key(manifest)] = manifest
        self.history.append(Change(version, change, copy.deepcopy(manifest)))
        self.collect_garbage()
        self.changed.notify_all()
        return copy.deepcopy(manifest)

    def _update(self, live: Manifest, updated: Manifest) -> Manifest:
        self.default(updated)
        if updated == live:
            return copy.deepcopy(live)
        if updated.get("spec") != live.get("spec"):
            updated["metadata"]["generation"] = live["metadata"]["generation"] + 1
        return self._store("MODIFIED", updated)

    def _remove(self, key: tuple[str, str, str]) -> None:
        gone = self.objects.pop(key)
        for owner in [owner for owner in self._applied if owner[:3] == key]:
            del self._applied[owner]
        version = self._bump()
        gone["metadata"]["resourceVersion"] = str(version)
        self.history.append(Change(version, "DELETED", gone))
        self.changed.notify_all()

    def _orphans(self) -> Iterator[tuple[str, str, str]]:
        uids = {found["metadata"]["uid"] for found in self.objects.values()}
        for key, found in self.objects.items():
            owners = found["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners):
                yield key

    def _check_faults(self, verb: str, kind: str, namespace: str, name: str) -> None:
        for fault in self.faults:
            if (fault.verb, fault.kind) == (verb, kind) and fault.name in {None, name} and fault.times > 0:
                fault.times -= 1
                raise fault.refusal

    def _check_applicable(self, manifest: Manifest, live: Manifest | None, subresource: str | None) -> None:
        kind, _, name = _key(manifest)
        if subresource and live is None:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        uid = manifest["metadata"].get("uid")
        if uid is not None and (live is None or live["metadata"]["uid"] != uid):
            raise Refusal(409, "Conflict", f'uid mismatch: "{uid}" is not that of {kind} "{name}"')
        owners = [o["uid"] for of in (manifest, live or {"metadata": {}})
                  for o in of["metadata"].get("ownerReferences") or () if o.get("controller")]  # fmt: skip
        if len(set(owners)) > 1:
            raise Refusal(422, "Invalid", f"{kind} {name!r} is invalid: only one reference can have controller set")


def _key(manifest: Manifest) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", "default"), metadata["name"]


def _server_fields(live: Manifest) -> Manifest:
    names = ("uid", "generation", "creationTimestamp", "resourceVersion", "managedFields", "deletionTimestamp")
    return {name: live["metadata"][name] for name in names if name in live["metadata"]}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_ATOMIC = {"selector", "nodeSelector", "podSelector"}


def _merge(live: Any, declared: Any) -> Any:
    """Mappings field by field; lists as a whole, which is coarser than the real one."""
    if isinstance(live, dict) and isinstance(declared, dict):
        return {**live, **{
            name: value if name in _ATOMIC else _merge(live.get(name), value) for name, value in declared.items()
        }}  # fmt: skip
    if isinstance(live, list) and isinstance(declared, list) and len(live) == len(declared):
        return [_merge(*pair) for pair in zip(live, declared, strict=True)]
    return declared


def _without(live: Manifest, before: Manifest, declared: Manifest) -> Manifest:
    """What the same manager applied before and declares no longer is removed."""
    kept: Manifest = {}
    for name, value in live.items():
        if name in before and name not in declared:
            continue
        was, becomes = before.get(name), declared.get(name)
        is_nested = isinstance(value, dict) and isinstance(was, dict) and isinstance(becomes, dict)
        kept[name] = _without(value, was or {}, becomes or {}) if is_nested else value
    return kept
