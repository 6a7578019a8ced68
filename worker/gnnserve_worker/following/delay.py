"""The delay between attempts to load: it grows with failures, and is a value, so that its clock is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Delay:
    shortest_s: float
    longest_s: float
    length_s: float = 0.0
    due_s: float | None = None
    """When the next attempt is due; None: nothing is to be loaded."""
    ended_s: float = -math.inf
    """When the wanted revision was in effect last after an attempt."""

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the next attempt; None: no attempt is due."""
        return None if self.due_s is None else max(0.0, self.due_s - now_s)

    def is_running(self, now_s: float) -> bool:
        return self.due_s is not None and self.due_s > now_s

    def forget(self) -> Delay:
        """Start over, since another revision is wanted."""
        return replace(self, length_s=0.0, due_s=None)

    def ensure(self, now_s: float) -> Delay:
        """Schedule an attempt, at once unless one is scheduled already."""
        return replace(self, due_s=now_s) if self.due_s is None else self

    def begin_again(self, now_s: float) -> Delay:
        """Schedule loading again: at once if the revision worked for a while, later if it was loaded just now, so that
        loads do not follow each other without pause."""
        if self.due_s is not None:
            return replace(self, due_s=now_s)
        if now_s - self.ended_s < self.longest_s:
            return self.extend(now_s)
        return replace(self, length_s=0.0, due_s=now_s)

    def extend(self, now_s: float) -> Delay:
        """Note a failure: the next delay is longer."""
        length_s = min(self.longest_s, 2 * self.length_s) or self.shortest_s
        return replace(self, length_s=length_s, due_s=now_s + length_s)

    def end(self, now_s: float) -> Delay:
        """Note that the wanted revision is in effect."""
        return self if self.due_s is None else replace(self, due_s=None, ended_s=now_s)
