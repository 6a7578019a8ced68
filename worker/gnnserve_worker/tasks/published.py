"""A task as a revision's manifest has it, before files of it are opened: what is made of the revision beside serving.

Which embeddings it has is `embedded.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gnnserve_worker.nearest.parts import IndexPart


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Nodes of one type, in the numbering of a graph that is answered for as a whole."""

    type: str
    start: int
    end: int


class PublishedTask(Protocol):
    def index_parts(self, type_: str, nodes: int) -> tuple[IndexPart, ...]:
        """Parts of the graph that have an index each. `type_`, `nodes`: of the nodes that are answered for. Empty: no
        index finds the best nodes."""

    def ranges(self) -> tuple[NodeRange, ...]:
        """Types of the nodes that are answered for, where these are of several; empty: they are of one."""

    def check_exported(self) -> None:
        """Raises InputError where no variant can be written as a program."""
