"""A task as a revision's manifest has it, before files of it are opened: what is made of the revision beside serving.

Which embeddings it has is `embedded.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gnnserve_api.files.repository import VariantManifest
from gnnserve_worker.nearest.parts import IndexPart

if TYPE_CHECKING:
    from gnnserve_worker.models.decoder import LinkDecoder


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Nodes of one type, in the numbering of a graph that is answered for as a whole."""

    type: str
    start: int
    end: int


class PairScoring(NamedTuple):
    """How pairs of rows of a program are scored."""

    kind: str
    """Name of the decoder, as `spec.task.links.decoder` has it."""
    weights: Mapping[str, np.ndarray]
    """Weights as a file that `spec.model.program.decoder` names has them; empty: there are none."""
    decoder: LinkDecoder
    types: tuple[str, str]
    """Types of the first and of the second node of a pair; empty texts: nodes are of one."""


@dataclass(frozen=True, slots=True)
class ExportedScores:
    """Scores of a variant that is written as a program."""

    meaning: str
    """A sentence."""
    advice: tuple[str, ...]
    """Sentences about how answers are made of scores."""
    open_pairs: Callable[[Path], PairScoring] | None = None
    """Read from the revision's folder how pairs of scores, which are rows of nodes then, are scored. None: scores are
    answers themselves."""
    types: tuple[str, ...] = ()
    """Types of the nodes that have scores; empty: those of the first type have some."""


class PublishedTask(Protocol):
    def index_parts(self, type_: str, nodes: int) -> tuple[IndexPart, ...]:
        """Parts of the graph that have an index each. `type_`, `nodes`: of the nodes that are answered for. Empty: no
        index finds the best nodes."""

    def ranges(self) -> tuple[NodeRange, ...]:
        """Types of the nodes that are answered for, where these are of several; empty: they are of one."""

    def exported_scores(self, variant: VariantManifest) -> ExportedScores:
        """Raises InputError where no such variant can be written as a program."""
