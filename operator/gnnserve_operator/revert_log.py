"""The changes of others that were reverted, or that undo each other: counted for metrics, and told by few events.

An autoscaler that wants another number of workers changes the Deployment every 15 seconds. The first revert of a field
is told at once, later ones of the same manager every ten minutes, with their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gnnserve_operator.decide.events import EventNote
from gnnserve_operator.decide.reverts import FieldManager, Revert, describe_reverts
from gnnserve_operator.kinds import ObjectRef, ServiceKey

_AGAIN = timedelta(minutes=10)
"""Time after an event until further reverts of the same field are told."""

_Subject = tuple[ObjectRef, str, FieldManager | None]
"""Object, field and manager: what is told once in a while."""


@dataclass(slots=True)
class _RevertNote:
    at: datetime
    since: int = 0
    """Reverts that no event has told of."""


@dataclass(slots=True)
class RevertLog:
    _untold: dict[ServiceKey, list[Revert]] = field(default_factory=dict)
    _told: dict[ServiceKey, dict[_Subject, _RevertNote]] = field(default_factory=dict)
    _counts: Counter[tuple[ServiceKey, str]] = field(default_factory=Counter)

    def note(self, key: ServiceKey, reverts: Iterable[Revert]) -> None:
        if not (found := tuple(reverts)):
            return
        self._untold.setdefault(key, []).extend(found)
        for ref in dict.fromkeys(revert.ref for revert in found):
            self._counts[key, ref.kind] += 1

    def take_events(self, key: ServiceKey, now: datetime) -> tuple[EventNote, ...]:
        """The events that are due about what was noted since the last call, one for each object."""
        told = self._told.setdefault(key, {})
        due: dict[ObjectRef, list[Revert]] = {}
        repeats: Counter[ObjectRef] = Counter()
        for revert in self._untold.pop(key, ()):
            subject = (revert.ref, revert.field, revert.manager)
            before = told.get(subject)
            if before is not None and now - before.at < _AGAIN:
                before.since += 1
                continue
            due.setdefault(revert.ref, []).append(revert)
            repeats[revert.ref] = max(repeats[revert.ref], 0 if before is None else before.since)
            told[subject] = _RevertNote(now)
        return tuple(describe_reverts(key, found, _words(repeats[ref])) for ref, found in due.items())

    def counts(self) -> Mapping[tuple[ServiceKey, str], int]:
        """Reverts by service or pool, and by the kind of the child."""
        return self._counts

    def forget(self, key: ServiceKey) -> None:
        self._untold.pop(key, None)
        self._told.pop(key, None)
        for counted in [counted for counted in self._counts if counted[0] == key]:
            del self._counts[counted]


def _words(repeats: int) -> str:
    return f"So it was {repeats} more times since the last event." if repeats else ""
