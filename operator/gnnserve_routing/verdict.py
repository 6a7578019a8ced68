"""Forms of an answer: whether a condition holds, or what keeps a service from going on; each with a reason for machines
and a sentence for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnnserve_api.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a condition holds, and why."""

    holds: bool | None
    """Whether it holds; None: unknown."""
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a service does not go on, and whether a person has to act."""

    reason: Reason
    message: str
    needs_person: bool
    """Whether waiting is of no use."""

    def to_verdict(self) -> Verdict:
        return Verdict(False, self.reason, self.message)


def sentence(text: str) -> str:
    """Another program's message on one line, without the full stop, so that a sentence can continue after it."""
    return " ".join(text.split()).rstrip(".;, ")


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
