"""What the watches have told so far: GNNServices, and everything that the operator made, by the service it is for.

kopf fills and empties it; the rest of the operator reads it through this class and knows nothing of kopf. What is
stored is the object without `managedFields`, which are most of it and say nothing that the operator asks.

A watch that was away for too long lists anew, and kopf does not notice what was deleted meanwhile. `bury` takes such
an object out, by its uid, which no other object will ever have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gnnserve_api.status import ConditionType
from gnnserve_operator.kinds import Kind, Manifest, ServiceKey

Objects = Mapping[ServiceKey, Iterable[Manifest]]
"""What a kopf.Index is, as far as we use it."""


def trimmed(body: Manifest) -> Manifest:
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    return {**body, "metadata": metadata}


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
        found = self._alive(self._services.get(key, ()))
        return max(found, key=lambda body: str(body["metadata"].get("creationTimestamp")), default=None)

    def children(self, key: ServiceKey) -> list[Manifest]:
        return list(self._alive(self._children.get(key, ())))

    def by_uid(self, kind: Kind) -> dict[str, Manifest]:
        bodies = (*self._bodies(self._services), *self._bodies(self._children))
        return {
            body["metadata"]["uid"]: body
            for body in bodies
            if (body["apiVersion"], body["kind"]) == (kind.api_version, kind.name)
        }

    def bury(self, uid: str) -> None:
        self._buried.add(uid)

    def count_by_ready(self) -> Mapping[str, int]:
        return Counter(map(_ready, self._bodies(self._services)))

    def declared_workers(self) -> Mapping[ServiceKey, int]:
        """That should answer by now: none of a suspended service, or of one whose first revision is not there yet."""
        return {key: _declared_workers(body) for key in self.service_keys() if (body := self.service(key)) is not None}

    def _bodies(self, objects: Objects) -> Iterator[Manifest]:
        for key in objects:
            yield from self._alive(objects[key])

    def _alive(self, bodies: Iterable[Manifest]) -> Iterator[Manifest]:
        return (body for body in bodies if body["metadata"]["uid"] not in self._buried)


def _declared_workers(body: Manifest) -> int:
    spec = body["spec"]
    if spec.get("suspend") or not (body.get("status") or {}).get("revision"):
        return 0
    return int((spec.get("worker") or {}).get("replicas", 1))


def _ready(body: Manifest) -> str:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return next((c["status"] for c in conditions if c["type"] == ConditionType.READY), "Unknown")
