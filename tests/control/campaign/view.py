"""What an operator's watches have told it so far, fed from the cluster's history: late, in part, or of long ago.

As kopf keeps it: the changes of one object in order, those of several in any; the newest body of each, by its uid; an
object that a label selector leaves out has left. A list that is made anew brings what is there, and does not take away
what is gone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.support.kubernetes.fake_cluster import Change, FakeCluster

from gnnserve_operator.desired.children import WATCHED_CHILDREN
from gnnserve_operator.desired.metadata import MANAGED_BY, MANAGER
from gnnserve_operator.handlers.index import Index
from gnnserve_operator.handlers.news import Intake
from gnnserve_operator.kinds import RECONCILED, Manifest, ServiceKey

DELAY_S = 0.02
"""Delay of a healthy watch."""
WATCHED = frozenset(kind.name for kind in (*RECONCILED, *WATCHED_CHILDREN))


Meddle = Callable[[Change], float | None]
"""After how many seconds the operator is told of a change; None: never."""


def tell(_: Change) -> float | None:
    return DELAY_S


@dataclass(frozen=True, slots=True, order=True)
class _Told:
    due: float
    version: int
    change: Change = field(compare=False)


@dataclass(slots=True)
class View:
    cluster: FakeCluster
    on_change: Callable[[ServiceKey], None]
    is_own_status: Callable[[ServiceKey, Manifest], bool]
    meddle: Meddle = tell
    index: Index = field(default_factory=Index)
    _coming: list[_Told] = field(default_factory=list)
    """A heap."""
    _latest: dict[str, float] = field(default_factory=dict)
    """By uid: when the last change that is on its way arrives."""
    _read: int = 0
    """So many changes of the history are on their way or told."""

    @property
    def _intake(self) -> Intake:
        return Intake(self.index, self.on_change, self.is_own_status)

    def begin(self, behind: int = 0) -> None:
        """Lists everything: as it was so many changes ago, the rest being told afterwards."""
        self._read = max(len(self.cluster.history) - behind, 0)
        for body in self._as_of(self._read):
            self._take("ADDED", body)

    def rewind(self, behind: int) -> None:
        """A watch was lost, and the next API server is so many changes behind: its list is from then."""
        self._coming.clear()
        self._latest.clear()
        self.begin(behind)

    def fetch(self, now: float) -> None:
        """Whatever has happened since is on its way."""
        history = self.cluster.history
        for change in history[self._read :]:
            if change.object["kind"] not in WATCHED or (delay_s := self.meddle(change)) is None:
                continue
            uid = change.object["metadata"]["uid"]
            due = self._latest[uid] = max(now + delay_s, self._latest.get(uid, 0.0))
            heapq.heappush(self._coming, _Told(due, change.version, change))
        self._read = len(history)

    def receive(self, now: float) -> None:
        while self._coming and self._coming[0].due <= now:
            change = heapq.heappop(self._coming).change
            self._take(change.type, change.object)

    def next_due(self) -> float | None:
        return self._coming[0].due if self._coming else None

    def has_news(self) -> bool:
        """That were not fetched yet."""
        return self._read < len(self.cluster.history)

    def is_caught_up(self) -> bool:
        return not self.has_news() and not self._coming

    def is_true(self) -> bool:
        """Whether the index has what there is, in its newest version, and nothing else."""
        live = {
            body["metadata"]["uid"]: body["metadata"]["resourceVersion"]
            for body in self.cluster.objects.values() if body["kind"] in WATCHED and _is_selected(body)
        }  # fmt: skip
        kinds = (*RECONCILED, *WATCHED_CHILDREN)
        return live == {uid: kept.version for kind in kinds for uid, kept in self.index.by_uid(kind).items()}

    def _take(self, kind: str, body: Manifest) -> None:
        if kind != "DELETED" and _is_selected(body):
            self._intake.take(kind, body)
        elif self.index.find(body["metadata"]["uid"]) is not None:
            self._intake.take("DELETED", body)

    def _as_of(self, read: int) -> Iterable[Manifest]:
        live: dict[str, Manifest] = {}
        for change in self.cluster.history[:read]:
            if change.object["kind"] in WATCHED:
                uid = change.object["metadata"]["uid"]
                if change.type == "DELETED":
                    live.pop(uid, None)
                else:
                    live[uid] = change.object
        return live.values()


def _is_selected(body: Manifest) -> bool:
    is_service = body["kind"] in {found.name for found in RECONCILED}
    return is_service or (body["metadata"].get("labels") or {}).get(MANAGED_BY) == MANAGER
