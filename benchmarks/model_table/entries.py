"""Model of the table: where it is from, what it is for, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch


class Task(StrEnum):
    """What a model's outputs are for."""

    CLASSES = "classes of nodes"
    ROWS = "embeddings of nodes"
    REGRESSION = "regression of nodes"
    LINKS = "links"
    EDGES = "classes of edges"
    GRAPHS = "classes of graphs"

    @property
    def comes_later(self) -> bool:
        """Whether the task is not served yet, though rows of nodes may be."""
        return self in (Task.REGRESSION, Task.LINKS, Task.EDGES)


class Principle(StrEnum):
    """Reason for which no server of neighbourhoods can give a model's scores; its value is a table's cell."""

    WHOLE_GRAPH = "reads the graph as a whole"
    SCORES_GRAPHS = "scores graphs, not nodes"
    RANDOM = "draws random numbers while it scores"
    FAR = "reads more than 8 hops, the stated limit: such a neighbourhood is most of a graph"
    ROW_PER_NODE = "has weights for each node of one graph, and none for a new one"
    LEAVING_EDGES = "reads edges that leave a node, whose other ends a sample has not"
    SIZES_OF_ANOTHER = "takes the number of one type's nodes from another's, and fails where a sample has more"
    KEEPS_GRAPH = "keeps the first graph that it is called with, and scores by it ever after"

    @property
    def words(self) -> str:
        """Pattern of the sentence by which it is refused."""
        return _WORDS[self]


_WORDS = {
    Principle.WHOLE_GRAPH: r"reads the graph as a whole",
    Principle.SCORES_GRAPHS: r"scores the graph as a whole|none of its outputs has a row for each",
    Principle.RANDOM: r"uses random numbers",
    Principle.FAR: r"reads nodes more than \d+ hops away|hops is \d+; at most",
    Principle.ROW_PER_NODE: r"runs over its own graph alone|none of its outputs has a row for each",
    Principle.LEAVING_EDGES: r"reads more than the edges that lead to a node|counts? edges that leave a node",
    Principle.SIZES_OF_ANOTHER: r"fails over a sample of neighbours",
    Principle.KEEPS_GRAPH: r"runs over its own graph alone",
}


@dataclass(frozen=True, slots=True)
class Made:
    """A module with a small generated graph to call it with."""

    module: torch.nn.Module
    arguments: tuple[Any, ...]
    """Arguments of `forward` over the whole graph: the description is given them too."""
    target: str = ""
    """Type of the nodes that are scored, where there are several types."""


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    """Unique; the example's path or the repository's name, and the class."""
    family: str
    link: str
    task: Task
    make: Callable[[], Made]
    principles: tuple[Principle, ...] = ()
    """Reasons of principle for which it may be refused, found by reading its code. Any other refusal is a failure."""
    note: str = ""
    """What our code does around it, or what of it was left out."""
