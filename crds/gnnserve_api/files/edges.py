"""How edges of a source become neighbour lists."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Direction(StrEnum):
    """Which way messages go along an edge from a source to a target."""

    UNDIRECTED = "Undirected"
    """Both ways, whichever of the two is listed."""
    DIRECTED = "Directed"
    """From the source to the target: the target reads the source's features."""
    REVERSED = "Reversed"
    """From the target to the source."""


class Duplicates(StrEnum):
    MERGE = "Merge"
    """One edge of each."""
    KEEP = "Keep"
    """As they are: a neighbour that is listed twice counts, and is drawn, twice."""


class EdgeColumns(StrEnum):
    IGNORE = "Ignore"
    """Named by a finding, and not read."""
    READ = "Read"
    """`edge_attr` are features of edges, and `edge_time` their times."""


class SelfLoops(StrEnum):
    KEEP = "Keep"
    """As they are."""
    REMOVE = "Remove"
    """None."""


class EdgeRules(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How edges of the source became neighbour lists, for edges that come later."""

    direction: Direction
    duplicates: Duplicates = Duplicates.MERGE
    self_loops: SelfLoops = SelfLoops.KEEP

    @property
    def in_words(self) -> str:
        """For people: `Undirected, an edge counts both ways; repeated ones count each`."""
        loops = "; self-loops are left out" if self.self_loops is SelfLoops.REMOVE else ""
        return f"{self.direction}, {_WAYS[self.direction]}; {_REPEATED[self.duplicates]}{loops}"


_WAYS = {
    Direction.UNDIRECTED: "an edge counts both ways",
    Direction.DIRECTED: "the target of an edge reads its source",
    Direction.REVERSED: "the source of an edge reads its target",
}
_REPEATED = {Duplicates.MERGE: "repeated ones count once", Duplicates.KEEP: "repeated ones count each"}
