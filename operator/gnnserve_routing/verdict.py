"""The form of an answer: whether a condition holds, a reason for machines, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.status.reasons import Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a condition holds, and why."""

    holds: bool | None
    """Whether it holds; None: unknown."""
    reason: Reason
    message: str


def sentence(text: str) -> str:
    """Another program's message on one line, without the full stop, so that a sentence can continue after it."""
    return " ".join(text.split()).rstrip(".;, ")
