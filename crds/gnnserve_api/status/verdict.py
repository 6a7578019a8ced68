"""Forms of an answer: whether a condition holds, or what keeps a service from going on; each with a reason for machines
and a sentence for people."""

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


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a service does not go on, and whether a person has to act."""

    reason: Reason
    message: str
    needs_person: bool
    """Whether waiting is of no use."""

    def to_verdict(self) -> Verdict:
        return Verdict(False, self.reason, self.message)
