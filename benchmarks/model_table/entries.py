"""Model of the table: where it is from, what it is for, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from benchmarks.model_table.outcomes import Reason, Unrun


class Task(StrEnum):
    """Purpose of a model's outputs."""

    CLASSES = "classes of nodes"
    ROWS = "embeddings of nodes"
    REGRESSION = "regression of nodes"
    LINKS = "links"
    OTHER_LINKS = "links by a decoder of another kind"
    EDGES = "classes of edges"
    GRAPHS = "classes of graphs"

    @property
    def comes_later(self) -> bool:
        """Whether the task is not served yet, though rows of nodes may be."""
        return self in (Task.REGRESSION, Task.OTHER_LINKS, Task.EDGES)


@dataclass(frozen=True, slots=True)
class Made:
    """A module with a small generated graph to call it with."""

    module: torch.nn.Module
    arguments: tuple[Any, ...]
    """Arguments of `forward` over the whole graph: the description is given them too."""
    target: str = ""
    """Type of the nodes that are scored, where there are several types."""
    decoder: torch.nn.Module | None = None
    """Module that scores two rows, of links; None: their dot product."""
    relation: str = ""
    """Relation whose links are scored, where there are several types."""


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    """Unique; the example's path or the repository's name, and the class."""
    family: str
    link: str
    task: Task
    make: Callable[[], Made]
    reasons: tuple[Reason, ...] = ()
    """Reasons for which it may be refused, found by reading its code. Any other refusal is a failure."""
    note: str = ""
    """What our code does around it, or what of it was left out."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a family that is listed without being run."""

    name: str
    family: str
    link: str
    kind: Unrun
    why: str
    """The entry that has its network, or what there is in its place."""
