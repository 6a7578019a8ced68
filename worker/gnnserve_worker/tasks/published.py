"""A task as a revision's manifest has it, before files of it are opened: what is made of the revision beside serving.

Which embeddings it has is `embedded.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gnnserve_api.files.repository import VariantManifest
from gnnserve_worker.nearest.parts import IndexPart


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Nodes of one type, in the numbering of a graph that is answered for as a whole."""

    type: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ExportedScores:
    """Scores of a variant that is written as a program, in words."""

    meaning: str
    """A sentence."""
    advice: tuple[str, ...]
    """Sentences about how answers are made of scores."""


class PublishedTask(Protocol):
    def index_parts(self, type_: str, nodes: int) -> tuple[IndexPart, ...]:
        """Parts of the graph that have an index each. `type_`, `nodes`: of the nodes that are answered for. Empty: no
        index finds the best nodes."""

    def ranges(self) -> tuple[NodeRange, ...]:
        """Types of the nodes that are answered for, where these are of several; empty: they are of one."""

    def exported_scores(self, variant: VariantManifest) -> ExportedScores:
        """Raises InputError where no variant can be written as a program."""
