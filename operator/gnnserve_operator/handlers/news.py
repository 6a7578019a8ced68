"""Events of watches go into the index; objects that a decision depends on are enqueued as well.

Labels, annotations and managed fields of a GNNService that the operator does not read, what only Kubernetes' own
controllers read of a child's status, and the echo of a status that this operator wrote wake nothing. The index has the
newest version of every object all the same, since each write names the version that it follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gnnserve_operator.desired.metadata import queue_labels
from gnnserve_operator.handlers.index import Index, IndexedObject, service_of
from gnnserve_operator.kinds import (
    CLAIM,
    DEPLOYMENT,
    JOB,
    POD,
    RECONCILED,
    Manifest,
    Raw,
    ResourceKind,
    ServiceKey,
    content_of,
    has_moved_on,
)
from gnnserve_operator.observed import observed_claim, observed_deployment, observed_job, observed_pod

OnChange = Callable[[ServiceKey], None]
_RECONCILED_NAMES = frozenset(kind.name for kind in RECONCILED)


READ_OF_STATUS: Mapping[ResourceKind, Callable[[Raw], object]] = {
    POD: observed_pod,
    DEPLOYMENT: observed_deployment,
    JOB: observed_job,
    CLAIM: observed_claim,
}
"""Decisions read a child's status by these functions alone, and nothing of the status of other kinds."""
_READ_BY_NAME = {kind.name: read for kind, read in READ_OF_STATUS.items()}


def is_news(before: Raw, now: Raw) -> bool:
    """Whether a decision may differ by what has changed of an object, less the status of a GNNService or a pool."""
    if now["kind"] in _RECONCILED_NAMES:
        return has_moved_on(now, before) or queue_labels(now) != queue_labels(before)
    read = _READ_BY_NAME.get(now["kind"])
    return content_of(before) != content_of(now) or (read is not None and read(before) != read(now))


@dataclass(frozen=True, slots=True)
class Intake:
    index: Index
    on_change: OnChange
    is_own_status: Callable[[ServiceKey, Manifest], bool]
    """Whether an object's status is what this operator wrote last."""

    def take(self, change: str | None, body: Manifest) -> None:
        """Take what a watch reports of an object. `change`: DELETED, another type of a watch event, or None for an
        object that is listed."""
        key = service_of(body)
        concerned = {key: None} | dict.fromkeys(self.index.related(key))  # as it was
        uid = body["metadata"]["uid"]
        before = self.index.find(uid)
        if change == "DELETED":
            self.index.drop(uid)
        else:
            self.index.keep(key, IndexedObject.of(body))
        after = self.index.find(uid)
        concerned |= dict.fromkeys(self.index.related(key))  # and as it is
        if before is not None:
            concerned[before[0]] = None
        if before is not None and after is not None and before[0] == after[0]:
            concerned = self._concerned(key, before[1], after[1], concerned)
        for other in concerned:
            self.on_change(other)

    def _concerned(
        self, key: ServiceKey, before: IndexedObject, after: IndexedObject, concerned: dict[ServiceKey, None]
    ) -> dict[ServiceKey, None]:
        """Services and pools among the concerned whose decisions may differ by a change of an object, as the index
        keeps it."""
        was, now = before.body(), after.body()
        if before.writers != after.writers or is_news(was, now):
            return concerned
        if now["kind"] not in _RECONCILED_NAMES or was.get("status") == now.get("status"):
            return {}
        if not self.is_own_status(key, now):
            return concerned
        # A pool tells how its services fare. They read nothing of its status.
        return {} if key.is_pool else {other: None for other in concerned if other != key}
