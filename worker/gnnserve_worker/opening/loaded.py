"""A revision in memory: everything that answering a request needs, opened once and never written to but by changes.

Arrays are memory-mapped, so two processes on one machine share them, and a graph larger than memory still serves.
How it is opened is `revision.py`; whether the files are what was published `repository/checks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import ChangedSource, NetworkManifest, RevisionManifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.living_payload import LivingPayload
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph, GraphIds, Splits
from gnnserve_worker.models.network import Layer, Network, VariantNetwork
from gnnserve_worker.models.rows import MakesRows
from gnnserve_worker.opening.changes import OpenedChanges
from gnnserve_worker.repository.watched import WatchedFiles
from gnnserve_worker.sampling.neighbours import Sampler, effective_nodes, sample_neighbours
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:  # only a server that has a program imports what runs one
    from gnnserve_worker.programs.runner import ProgramRunner


class NetworkBuilder(Protocol):
    """`build_network` in `models/registry.py`, or a test's stand-in."""

    def __call__(
        self,
        manifest: NetworkManifest,
        tensors: Mapping[str, np.ndarray],
        columns: int,
        projected: bool,
        compute: Compute,
    ) -> Network[Layer]: ...  # pragma: no cover


CORRECTION = "correction."
"""Before the keys of the weights that make rows of a stored layer (`CorrectionManifest`)."""


@dataclass(frozen=True, slots=True)
class LoadedVariant:
    name: str
    table: Table
    columns: int
    """Leading columns of the table that this variant reads."""
    fanouts: tuple[int, ...]
    """Neighbours that are sampled per layer, the seed's draw first; all -1: full neighbourhood."""
    network: VariantNetwork
    """Its layers are of any kind. GPUs and exported programs compute `Layer` alone; others are refused before."""
    rows: MakesRows | None = None
    """Makes rows of the table for nodes that it has none for. None: its family cannot, or nothing of what the table's
    rows were made by is kept."""
    relation_fanouts: tuple[tuple[int, ...], ...] = ()
    """As in `VariantManifest`; empty: as many by each relation."""
    rows_read_payload: bool = False
    """Whether `rows` reads what edges have, which requests bring."""
    row_bytes: int = field(init=False)
    """Bytes of the columns that it reads of a row of the table, with the row's scale and without padding."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", self.table.format.row_bytes(self.columns))

    @property
    def reads_payload(self) -> bool:
        """Whether anything that is computed for a request reads what its edges have."""
        return self.network.reads_payload or self.rows_read_payload


@dataclass(frozen=True, slots=True)
class TypeRowRecipe:
    """Recipe of the rows that a new node of a type comes with."""

    columns: FeatureColumns | None
    """Features of a node, as in the source; None: its type has none."""
    default: np.ndarray | None
    """The mean of the type's embeddings, float32, in place of features; of no column where nodes of it have neither;
    None: it has features."""

    @property
    def features(self) -> int:
        return 0 if self.columns is None else self.columns.features

    @property
    def width(self) -> int:
        """Columns that it comes with: its features, or those of what stands in their place."""
        return self.features if self.default is None else len(self.default)


@dataclass(frozen=True, slots=True)
class OpenedGraph:
    """The graph of a revision: mapped as it is stored, and with room for changes where it is opened for them."""

    stored: Graph
    """As it is mapped."""
    seen: Graph
    """As predictions read it: with room for new nodes, where it changes."""
    ids: GraphIds
    payloads: tuple[EdgePayload | None, ...]
    """Stored features and times of the edges of each relation; None: they have none."""
    living: LivingGraph | None = None
    """The graph where it changes, as predictions see it."""
    draft: LivingGraph | None = None
    """Another one over the same files, which changes are applied to first."""
    mapped_entries: int = 0
    """Entries of the lists of graphs that change which lie in mapped files; 0: they are copies."""


@dataclass(frozen=True, slots=True)
class GraphReading:
    """How predictions read a graph."""

    effective_nodes: float
    """`sampling.neighbours.effective_nodes` of the graph: how soon draws meet the same node again."""
    sample: Sampler = sample_neighbours
    """Draws neighbours."""
    neighbour_roots: np.ndarray | None = None
    """`sampling.normalised.inverse_roots` of the graph, float32 [nodes]; None where no variant weighs neighbours."""
    payloads: tuple[EdgePayload | LivingPayload | None, ...] = ()
    """Features and times of the edges of each relation, as predictions read them; None: they have none."""

    def over(self, graph: Graph) -> GraphReading:
        """The same over other lists."""
        roots = None if self.neighbour_roots is None else inverse_roots(graph.indptr, graph.indices)
        return replace(self, effective_nodes=effective_nodes(graph.indptr), neighbour_roots=roots)


@dataclass(frozen=True, slots=True)
class LoadedLabels:
    """Labels that are known of nodes of the first type."""

    classes: Classes
    """The graph's own label of each score column."""
    multi_label: bool
    values: np.ndarray
    """int64 [nodes], class indices with -1 for unknown; or uint8 [nodes, classes] when multi-label. Mapped."""
    splits: Splits


@dataclass(frozen=True, slots=True)
class NewNodes:
    """Rows that nodes come with which the graph does not have."""

    features: int = 0
    """Features of a node, as in the source: those of the widest type."""
    types: tuple[TypeRowRecipe, ...] = ()
    """What new nodes of each type come with; empty: nothing of how their rows are made is kept."""

    @property
    def width(self) -> int:
        """Columns of a row of features that a request or a change brings: those of the widest type, or of an embedding
        that stands for them."""
        return max([self.features, *(len(one.default) for one in self.types if one.default is not None)])


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a revision comes from."""

    source: str
    """Name of the graph's source, for messages."""
    made_of: ChangedSource | None = None
    """What its graph is made of beside its source; None: nothing."""
    folder: Path | None = None
    """The folder of the revision."""
    files: WatchedFiles | None = None
    """Files that it was opened from; None where no other process can reach them, or it is not published yet."""


@dataclass(frozen=True, slots=True)
class LoadedRevision:
    manifest: RevisionManifest | None
    """The revision's manifest; None while the revision is staged: it has no profile yet, because this is what gets
    profiled."""
    graph: Graph
    reading: GraphReading
    ids: GraphIds
    labels: LoadedLabels
    variants: Mapping[str, LoadedVariant]
    """Variants by name, in the order of the profile."""
    origin: Origin
    new_nodes: NewNodes = field(default_factory=NewNodes)
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables by name, those that no variant gathers from among them."""
    programs: tuple[ProgramRunner, ...] = ()
    """What runs the programs of its variants, each once."""
    changes: OpenedChanges | None = None
    """What applies changes to it; None: it was not opened for them."""

    def over(self, graph: Graph) -> LoadedRevision:
        """The revision as it answers over other lists of the same nodes."""
        return replace(self, graph=graph, reading=self.reading.over(graph))

    def over_whole_lists(self, name: str) -> LoadedRevision:
        """The revision with a variant that draws no neighbours, and reads all of those that it would draw from."""
        variant = self.variants[name]
        fanouts = tuple(FULL_NEIGHBOURHOOD if fanout else fanout for fanout in variant.fanouts)
        whole = replace(variant, fanouts=fanouts, relation_fanouts=())
        return replace(self, variants={**self.variants, name: whole})

    @property
    def answered_nodes(self) -> int:
        """Nodes that can be asked about, which are the first ones: of several types, those of the first, or all where
        the task answers for every type."""
        answers_all = self.manifest is not None and self.manifest.answers_all_types
        return self.graph.nodes if answers_all else self.graph.schema.target.nodes
