"""What clients of several workers did and heard, and what was there in the end: the material of `checker.py`.

Times are seconds of one monotonic clock. A process is one life of a worker: one that is started anew is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.changes.campaign.graph import Answer, Batch, FirstGraph

Key = tuple[str, int]
"""Client and sequence of a batch."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    offset: int
    is_repeated: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The batch is wrong."""

    offset: int | None
    """Its record in the log, which stays without effect; None: it is not in the log."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An answer, and the offset that it names."""

    offset: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Absent:
    """The worker knows no such node."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The batch may be among those that are compacted away, of which the log remembers each client's last number."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer, or one that leaves everything open: the connection was lost, it took too long, 503."""

    why: str


@dataclass(frozen=True, slots=True)
class Strange:
    """An answer that no fault explains."""

    words: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A batch that was sent once. A client sends one batch at a time, until it is acknowledged or refused."""

    client: str
    sequence: int
    process: str
    began_s: float
    ended_s: float
    answer: Acknowledged | Refused | Passed | Unanswered | Strange

    @property
    def key(self) -> Key:
        return self.client, self.sequence


@dataclass(frozen=True, slots=True)
class Read:
    process: str
    node: int
    min_offset: int
    """0: none was asked for."""
    began_s: float
    ended_s: float
    answer: Seen | Absent | Unanswered | Strange


@dataclass(frozen=True, slots=True)
class LogRecord:
    offset: int
    client: str
    sequence: int
    batch: Batch

    @property
    def key(self) -> Key:
        return self.client, self.sequence


@dataclass(frozen=True, slots=True)
class Replica:
    """A worker's answers in the end, about every node that there ever was; None: it knows no such node."""

    offset: int
    answers: Mapping[int, Answer | None]


@dataclass(frozen=True, slots=True)
class History:
    first: FirstGraph
    sent: Mapping[Key, Batch]
    attempts: tuple[Attempt, ...] = ()
    reads: tuple[Read, ...] = ()
    log: tuple[LogRecord, ...] = ()
    """All of it, as it was followed from its beginning."""
    logs: Mapping[str, tuple[LogRecord, ...]] = field(default_factory=dict)
    """What of it is not compacted away, as each worker gives it in the end."""
    replicas: Mapping[str, Replica] = field(default_factory=dict)
