"""Outcomes of models of the table, and their reasons. Nothing here needs torch: pages are rendered without it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

TOLERANCE = 1e-5
"""Largest difference of a model that is right, of its largest score."""


class Outcome(StrEnum):
    RIGHT = "right"
    REFUSED = "refused"
    """For a reason of principle, which the entry names."""
    LIMIT = "limit"
    """Refused for a reason that is ours: the entry names the limit, and what would do away with it."""
    FAILED = "failed"


class Reason(StrEnum):
    """Reason for which a model is refused; its value is a table's cell."""

    WHOLE_GRAPH = "reads the graph as a whole"
    SCORES_GRAPHS = "scores graphs, not nodes"
    RANDOM = "draws random numbers while it scores"
    FAR = "reads more than 128 hops"

    @property
    def pattern(self) -> str:
        """Pattern of the sentence by which it is refused."""
        return _PATTERNS[self]

    @property
    def outcome(self) -> Outcome:
        return Outcome.REFUSED if self in _OF_PRINCIPLE else Outcome.LIMIT


_OF_PRINCIPLE = frozenset({Reason.WHOLE_GRAPH, Reason.SCORES_GRAPHS, Reason.RANDOM})
"""Reasons that no server of neighbourhoods can do away with."""

_PATTERNS: Mapping[Reason, str] = {
    Reason.WHOLE_GRAPH: r"reads the graph as a whole",
    Reason.SCORES_GRAPHS: r"scores the graph as a whole|none of its outputs has a row for each",
    Reason.RANDOM: r"uses random numbers",
    Reason.FAR: r"reads nodes more than \d+ hops away|hops is \d+; at most",
}


class Unrun(StrEnum):
    """Why a file is not run; its value is told with the number of files."""

    SAME = "have the network of another row"
    GRAPHS = "score whole graphs, or points by all points of a cloud"
    PAIRS = "score pairs by more than two rows"
    TEXTS = "are language models"
    NONE = "have no network"
