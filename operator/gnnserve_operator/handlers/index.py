"""What the watches have told so far: GNNServices, and everything that the operator made, by the service it is for.

kopf fills and empties it; the rest of the operator reads it through this class and knows nothing of kopf. What is
stored is the object as JSON, without `managedFields`, which are most of it and say nothing that the operator asks:
a Deployment of ours is 21 KB as Python's dicts and 3 KB as JSON, which is read in 26 µs.

A watch that was away for too long lists anew, and kopf does not notice what was deleted meanwhile. `bury` takes such
an object out, by its uid, which no other object will ever have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Self

import msgspec

from gnnserve_api.status import ConditionType
from gnnserve_operator.kinds import Kind, Manifest, ServiceKey


@dataclass(frozen=True, slots=True)
class Kept:
    """One object, and what is asked of all of them at once."""

    api_version: str
    kind: str
    uid: str
    version: str
    text: bytes
    """JSON."""

    @classmethod
    def of(cls, body: Manifest) -> Self:
        metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        text = msgspec.json.encode({**body, "metadata": metadata})
        return cls(intern(body["apiVersion"]), intern(body["kind"]), metadata["uid"], metadata["resourceVersion"], text)

    def body(self) -> Manifest:
        """Anew each time: nobody can change what is kept."""
        return dict(msgspec.json.decode(self.text))


Objects = Mapping[ServiceKey, Iterable[Kept]]
"""What a kopf.Index is, as far as we use it."""


@dataclass(slots=True)
class Index:
    _services: Objects = field(default_factory=dict)
    _children: Objects = field(default_factory=dict)
    _buried: set[str] = field(default_factory=set)

    def attach(self, services: Objects, children: Objects) -> None:
        """kopf makes its indices when it starts, which is after the rest of the operator was built."""
        self._services = services
        self._children = children

    def service_keys(self) -> list[ServiceKey]:
        return list(self._services)  # one that is buried is looked at, and not found

    def service(self, key: ServiceKey) -> Manifest | None:
        # Two for a moment when one was deleted and made again: the newer is what counts.
        found = self._bodies(self._services.get(key, ()))
        return max(found, key=lambda body: str(body["metadata"].get("creationTimestamp")), default=None)

    def children(self, key: ServiceKey) -> list[Manifest]:
        return list(self._bodies(self._children.get(key, ())))

    def by_uid(self, kind: Kind) -> dict[str, Kept]:
        return {
            kept.uid: kept
            for objects in (self._services, self._children)
            for key in objects
            for kept in self._alive(objects[key])
            if (kept.api_version, kept.kind) == (kind.api_version, kind.name)
        }

    def bury(self, uid: str) -> None:
        self._buried.add(uid)

    def count_by_ready(self) -> Mapping[str, int]:
        return Counter(_ready(body) for key in self._services for body in self._bodies(self._services[key]))

    def declared_workers(self) -> Mapping[ServiceKey, int]:
        """That should answer by now: none of a suspended service, or of one whose first revision is not there yet."""
        return {key: _declared_workers(body) for key in self.service_keys() if (body := self.service(key)) is not None}

    def _bodies(self, kept: Iterable[Kept]) -> Iterator[Manifest]:
        return (found.body() for found in self._alive(kept))

    def _alive(self, kept: Iterable[Kept]) -> Iterator[Kept]:
        return (found for found in kept if found.uid not in self._buried)


def _declared_workers(body: Manifest) -> int:
    spec = body["spec"]
    if spec.get("suspend") or not (body.get("status") or {}).get("revision"):
        return 0
    return int((spec.get("worker") or {}).get("replicas", 1))


def _ready(body: Manifest) -> str:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((c["status"] for c in conditions if c["type"] == ConditionType.READY), "Unknown")
