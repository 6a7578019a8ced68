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

from gnnserve_api.classes import Classes
from gnnserve_api.profile import Compute
from gnnserve_api.repository import ChangedSource, NetworkManifest, RevisionManifest
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_payload import LivingPayload
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import TypePlaces, places_of
from gnnserve_worker.graph.store import Graph, Splits
from gnnserve_worker.models.network import Layer, Network, VariantNetwork
from gnnserve_worker.models.rows import MakesRows
from gnnserve_worker.opening.changes import OpenedChanges
from gnnserve_worker.repository.watched import WatchedFiles
from gnnserve_worker.sampling.distinct import effective_nodes
from gnnserve_worker.sampling.neighbours import Sampler, sample_neighbours
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:  # only a server that has a program imports what runs one
    from gnnserve_worker.programs.runner import ProgramRunner


class NetworkBuilder(Protocol):
    """`models/build.py`, or a test's stand-in."""

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
    row_bytes: int = field(init=False)
    """Bytes of the columns that it reads of a row of the table, with the row's scale and without padding."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_bytes", self.table.format.row_bytes(self.columns))


@dataclass(frozen=True, slots=True)
class TypeRowRecipe:
    """What a new node of a type comes with."""

    columns: FeatureColumns | None
    """Features of a node, as in the source; None: its type has none."""
    default: np.ndarray | None
    """The mean of the type's embeddings, float32, in place of features; of no column where nodes of it have neither;
    None: it has features."""

    @property
    def features(self) -> int:
        return 0 if self.columns is None else self.columns.features


@dataclass(frozen=True, slots=True)
class LoadedRevision:
    source: str
    """Name of the graph's source, for messages."""
    graph: Graph
    effective_nodes: float
    """`sampling.distinct.effective_nodes` of the graph: how soon draws meet the same node again."""
    variants: Mapping[str, LoadedVariant]
    """Variants by name, in the order of the profile."""
    ids: NodeIds | None
    """The source's own ids of the nodes, mapped; None: it numbers them from 0."""
    classes: Classes
    """The graph's own label of each score column."""
    multi_label: bool
    labels: np.ndarray
    """int64 [nodes], class indices with -1 for unknown; or uint8 [nodes, classes] when multi-label. Mapped."""
    splits: Splits
    manifest: RevisionManifest | None
    """The revision's manifest; None while the revision is staged: it has no profile yet, because this is what gets
    profiled."""
    neighbour_roots: np.ndarray | None = None
    """`sampling.normalised.inverse_roots` of the graph, float32 [nodes]; None where no variant weighs neighbours."""
    features: int = 0
    """Features of a node, as in the source."""
    files: WatchedFiles | None = None
    """Files that it was opened from; None where no other process can reach them, or it is not published yet."""
    changes: OpenedChanges | None = None
    """What applies changes to it; None: it was not opened for them."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """Tables by name, those that no variant gathers from among them."""
    made_of: ChangedSource | None = None
    """What its graph is made of beside its source; None: nothing."""
    folder: Path | None = None
    """The folder of the revision."""
    type_ids: Mapping[str, NodeIds | None] = field(default_factory=dict)
    """`ids` of each type, by its name; empty: those of the only type are `ids`."""
    type_rows: tuple[TypeRowRecipe, ...] = ()
    """What new nodes of each type come with; empty: nothing of how their rows are made is kept."""
    sample: Sampler = sample_neighbours
    """Draws neighbours in the graph."""
    payloads: tuple[EdgePayload | LivingPayload | None, ...] = ()
    """Features and times of the edges of each relation, as predictions read them; None: they have none."""
    programs: tuple[ProgramRunner, ...] = ()
    """What runs the programs of its variants, each once."""
    places: TypePlaces = field(init=False)
    """Where nodes and lists of each type stand in the graph, and how edges become entries of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", places_of(self.graph.schema))
        if not self.type_ids:
            object.__setattr__(self, "type_ids", {self.graph.schema.target.name: self.ids})

    def over(self, graph: Graph) -> LoadedRevision:
        """The revision as it answers over other lists of the same nodes."""
        weighs = self.neighbour_roots is not None
        return replace(
            self, graph=graph, effective_nodes=effective_nodes(graph.indptr),
            neighbour_roots=inverse_roots(graph.indptr, graph.indices) if weighs else None,
        )  # fmt: skip

    @property
    def input_width(self) -> int:
        """Columns of a row of features that a request or a change brings: those of the widest type, or of an embedding
        that stands for them."""
        return max([self.features, *(len(one.default) for one in self.type_rows if one.default is not None)])

    @property
    def answered_nodes(self) -> int:
        """Nodes that can be asked about, which are the first ones: of several types, those of the first, or all where
        the task answers for every type."""
        answers_all = self.manifest is not None and self.manifest.answers_all_types
        return self.graph.nodes if answers_all else self.graph.schema.target.nodes

    @property
    def answered_type(self) -> str:
        """Their type; empty where all nodes are of one."""
        return self.graph.schema.target.name
