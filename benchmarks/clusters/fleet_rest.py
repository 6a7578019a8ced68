"""An operator whose services rest: when its resyncs end, and what it wrote although nothing had happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STILL_S = 1.0
"""Seconds without a reconcile after which a resync has ended."""
Conditions = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class ResyncFinder:
    """Finds resyncs in counts of reconciles: from rest to rest, so that none is taken for one that had begun before."""

    services: int
    """Reconciles of a resync, at least."""
    _count: int = -1
    """The last count; -1: none was noted."""
    _noted_s: float = 0.0
    _still_since_s: float = 0.0
    _at_rest: int | None = None
    """Count when reconciles last rested; None: they have not yet."""
    _began_s: float | None = None
    """When they began after that; None: they rest."""

    def note(self, now_s: float, reconciles: int) -> float | None:
        """Note a count. Returns when the resync began that has just ended; None: none has."""
        if reconciles != self._count:
            if self._began_s is None:
                self._began_s = self._noted_s  # after the last count that was the same
            self._count, self._still_since_s = reconciles, now_s
        self._noted_s = now_s
        if self._began_s is None or now_s - self._still_since_s < STILL_S:
            return None
        began_s, before = self._began_s, self._at_rest
        self._began_s, self._at_rest = None, reconciles
        return began_s if before is not None and reconciles - before >= self.services else None


def find_changes(
    before: Mapping[str, Conditions], written: Iterable[tuple[str, Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Find the conditions that each write of a status changed. `before`: conditions by type of each service;
    `written`: its name, and the status."""
    known = dict(before)
    changes = []
    for name, status in written:
        now = {found["type"]: found for found in status.get("conditions") or ()}
        was = known.get(name, {})
        known[name] = now
        changed = {kind: _words(now.get(kind)) for kind in sorted(now.keys() | was) if now.get(kind) != was.get(kind)}
        changes.append({"service": name, "conditions": changed})
    return changes


def _words(condition: Mapping[str, Any] | None) -> str:
    return "gone" if condition is None else f"{condition['status']} {condition['reason']}: {condition['message']}"
