"""State of a loader (`State`), events that happen to it, and jobs and effects by which it acts on its surroundings.

All are values; `transitions.py` says how an event changes the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gnnserve_api.pods.routing import Damage, RoutingTable
from gnnserve_worker.following.delay import Delay
from gnnserve_worker.inference.served import ServedRevision

# Jobs: what takes time, one after the other


class LoadPurpose(StrEnum):
    ANSWER = "Answer"
    """The worker loads it to answer by the declared table."""
    ENLARGE = "Enlarge"
    """The worker loads it to hold more of a device's memory than the copy that answers."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a revision, check that it can follow the table, and rehearse it."""

    table: RoutingTable
    purpose: LoadPurpose
    is_beside: bool
    """Another revision answers meanwhile."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Verify the files of a withdrawn revision."""

    revision: ServedRevision


Job = Load | Verify


# The state


@dataclass(frozen=True, slots=True)
class AnsweringRevision:
    """Revision that answers requests."""

    revision: ServedRevision
    must_renew: bool = False
    """It has to be loaded again, although its answers are right."""
    may_grow: bool = True
    """It was not yet loaded again to get more memory."""


@dataclass(frozen=True, slots=True)
class State:
    delay: Delay
    declared: RoutingTable | None = None
    attempted: RoutingTable | None = None
    """The declared table as of the last turn that did something for it."""
    answering: AnsweringRevision | None = None
    table: RoutingTable | None = None
    """The table in effect; where nothing answers, the last one that was."""
    load_s: float = 0.0
    """Seconds that loading the last revision took."""
    withdrawn: ServedRevision | None = None
    """A revision that answered until it was withdrawn: it is warm, and verifying it is faster than loading."""
    refused: tuple[RoutingTable, str] | None = None
    """A table that its revision cannot follow, and why. Trying again would not help, so the last good table holds."""
    found_damaged: int = 0
    """Consecutive attempts that found the declared revision damaged."""
    failing: str | None = None
    """Why the last attempt at the declared revision failed, as it was logged; None: it did not."""
    could_grow: bool = False
    """The answering revision would get more memory now."""
    job: Job | None = None
    was_withdrawn: bool = False
    """A revision was withdrawn since the job began; its reason is what is reported."""
    is_stopped: bool = False

    def is_due(self, now_s: float) -> bool:
        """Whether a turn would do something."""
        if self.job is not None or self.is_stopped or self.declared is None:
            return False
        return self.declared != self.attempted or self.could_grow or self.delay.left_s(now_s) == 0


# Events


@dataclass(frozen=True, slots=True)
class TableDeclared:
    table: RoutingTable


@dataclass(frozen=True, slots=True)
class RevisionDoubted:
    """Answers of this revision may be wrong from now on."""

    revision: ServedRevision
    problem: str


@dataclass(frozen=True, slots=True)
class FilesReplaced:
    """Answers of this revision are right, but its files in the repository were replaced or removed."""

    revision: ServedRevision
    problem: str


@dataclass(frozen=True, slots=True)
class CouldGrow:
    """This revision would get more of its device's memory if it was loaded again."""

    revision: ServedRevision


@dataclass(frozen=True, slots=True)
class LoaderIdle:
    """The loader's thread has no job."""


@dataclass(frozen=True, slots=True)
class FilesVerified:
    is_intact: bool


@dataclass(frozen=True, slots=True)
class RevisionLoaded:
    """The job's revision is loaded and rehearsed."""

    revision: ServedRevision
    load_s: float
    is_larger: bool
    """It got more memory than the revision that answered when its job began."""


@dataclass(frozen=True, slots=True)
class LoaderFailed:
    """The job, or the switch that a turn asked for."""

    error: Exception


@dataclass(frozen=True, slots=True)
class LoaderStopped:
    pass


Event = (
    TableDeclared
    | RevisionDoubted
    | FilesReplaced
    | CouldGrow
    | LoaderIdle
    | FilesVerified
    | RevisionLoaded
    | LoaderFailed
    | LoaderStopped
)


# Effects, in the order in which they have to happen


@dataclass(frozen=True, slots=True)
class Switch:
    revision: ServedRevision
    table: RoutingTable
    load_s: float


@dataclass(frozen=True, slots=True)
class Withdraw:
    revision: ServedRevision
    problem: str


@dataclass(frozen=True, slots=True)
class Warn:
    revision: ServedRevision
    problem: str


@dataclass(frozen=True, slots=True)
class ReportProblem:
    problem: str | None
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class Log:
    level: int
    words: str
    revision: str
    error: Exception | None = None
    """An error whose traceback the log should have."""


Effect = Switch | Withdraw | Warn | ReportProblem | Log
Effects = tuple[Effect, ...]
