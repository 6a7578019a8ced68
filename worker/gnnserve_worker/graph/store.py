"""Graphs in memory: structure, features, labels, splits.

Arrays may be memory-mapped; nothing here writes to them. `sources/` reads graphs from outside, `repository/` reads and
writes published ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gnnserve_api.classes import Classes
from gnnserve_api.edges import EdgeRules
from gnnserve_api.repository import ChangedSource
from gnnserve_worker.graph.ids import NodeIds

if TYPE_CHECKING:
    import scipy.sparse as sp

Features: TypeAlias = "np.ndarray | sp.csr_array"
"""float32 [nodes, columns], dense or CSR."""

_BLOCK_ENTRIES = 1 << 22
"""Entries of lists that are looked through at once."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Neighbour lists in CSR form: row i lists the nodes whose messages reach node i."""

    indptr: np.ndarray
    """int64 [nodes + 1], ascending; or int64 [nodes, 2], begin and end of each list, of a graph that changes
    (`living_lists.py`), whose nodes include room for new ones."""
    indices: np.ndarray
    """int32 [edges], or more of a graph that changes."""

    @property
    def nodes(self) -> int:
        return len(self.indptr) - (self.indptr.ndim == 1)

    @property
    def edges(self) -> int:
        return len(self.indices)

    def list_of(self, node: int) -> np.ndarray:
        """The nodes that it reads, int32."""
        begin, end = self.indptr[node : node + 2] if self.indptr.ndim == 1 else self.indptr[node]
        return self.indices[begin:end]

    def readers_of(self, node: int) -> np.ndarray:
        """The nodes whose lists name it, int64, ascending, of a graph that does not change. All lists are looked
        through, about a millisecond for a million entries."""
        found = [
            start + np.flatnonzero(self.indices[start : start + _BLOCK_ENTRIES] == node)
            for start in range(0, self.edges, _BLOCK_ENTRIES)
        ]
        entries = np.concatenate([np.zeros(0, np.int64), *found])
        return np.unique(np.searchsorted(self.indptr, entries, side="right") - 1)

    def targets(self) -> np.ndarray:
        """The node that reads each entry of `indices`, int64 [edges]."""
        return np.repeat(np.arange(self.nodes, dtype=np.int64), np.diff(self.indptr))

    def induced(self, kept: np.ndarray) -> Graph:
        """The same node ids with only the edges whose two ends are in `kept` (bool [nodes])."""
        targets = self.targets()
        edges = kept[targets] & kept[self.indices]
        degrees = np.bincount(targets[edges], minlength=self.nodes)
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        return Graph(indptr, np.ascontiguousarray(self.indices[edges]))


@dataclass(frozen=True, slots=True)
class Splits:
    """Node ids, int64, ascending; the three do not overlap."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that importing changed or left out: edges dropped, features filled, columns left out."""

    what: str
    """A few words, as `duplicate edges merged`."""
    count: int
    example: str = ""
    """The first such item, or the names of all."""


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """A column of the source that was taken as one feature, or several."""

    name: str
    width: int
    """Features that the column became: 1, or the length of its lists."""
    fill: tuple[float, ...] | None = None
    """Numbers that stand where values are missing, one per feature; None: missing values are refused."""


@dataclass(frozen=True, slots=True)
class GraphData:
    """A graph as it was imported, checked and ready for generation."""

    source: str
    """Name for messages: `builtin Digits`, or the file's URI."""
    digest: str
    """Identity of the content: hex, safe as a folder name."""
    graph: Graph
    features: Features
    """Features as in the source; `generation/features.py` normalises them."""
    labels: np.ndarray
    """int64 [nodes], class indices with -1 for unknown; or uint8 [nodes, classes] of 0 and 1 when multi-label."""
    classes: Classes
    """The source's own label of each class index, ascending; column numbers or names when multi-label."""
    splits: Splits
    edge_rules: EdgeRules
    """How the source's edges became neighbour lists."""
    ids: NodeIds | None = None
    """The source's own ids of the nodes; None: the source numbers them from 0."""
    findings: tuple[Finding, ...] = ()
    """What importing changed or left out, for `gnnserve graph inspect`."""
    feature_columns: tuple[FeatureColumn, ...] = ()
    """Columns in the order of the features; empty where the source names no columns."""
    made_of: ChangedSource | None = None
    """None: it is its source's, without changes of a log."""

    @property
    def nodes(self) -> int:
        return self.graph.nodes

    @property
    def edges(self) -> int:
        """Entries of neighbour lists."""
        return self.graph.edges

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2
