"""Problem that keeps a service from going on: a reason for machines, a sentence for people, and whether a person has to
act."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnnserve_api.status.reasons import Reason
from gnnserve_routing.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Problem:
    """Why something does not go on."""

    reason: Reason
    message: str
    needs_person: bool
    """Whether waiting is of no use."""

    def to_verdict(self) -> Verdict:
        return Verdict(False, self.reason, self.message)


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
