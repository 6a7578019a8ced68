"""Planner of variants, as generation sees it: what it would make of a spec, as tables and variants to be written.

A planner trains nothing: networks are learnt before (`lessons.py`). `write.py` writes what all of them planned. What
routing and reports know of variants is `gnnserve_api/families.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.families import VariantPoint
from gnnserve_api.files.graph_schema import RelationRowPlaces
from gnnserve_api.files.profile import Compute
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import (
    NetworkManifest,
    PropagatedManifest,
    StoredManifest,
    TableKind,
    VariantManifest,
)
from gnnserve_api.spec.model import Architecture
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.given_variants import GivenVariant
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import Tensors, compute_for
from gnnserve_worker.repository import paths
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:
    from gnnserve_worker.generation.listed_layers import GivenLayers
    from gnnserve_worker.generation.listed_rows import ComputeAll
    from gnnserve_worker.generation.ranking import Ranking


@dataclass(frozen=True, slots=True)
class PropagatedFeatures:
    """Features that rows over several hops are made of."""

    features: Sequence[Features]
    """Scaled features of each type, or the embeddings that stand for them; of no column where it has neither."""
    moments: Tensors
    """As `ModelRows.moments`."""


@dataclass(frozen=True, slots=True)
class OneRowNetwork:
    """A trained perceptron over one row per node."""

    network: NetworkManifest
    tensors: Tensors
    product: np.ndarray
    """The first layer's product with the row of each node, float32 [nodes, hidden]."""
    types: int = 1
    """How many types of the graph have rows, the first ones."""
    propagated: PropagatedFeatures | None = None
    """What rows are made of; None: of a node's own features, or only their shapes are known."""


@dataclass(frozen=True, slots=True)
class PlacedProgram:
    """The files of a program, and where a revision has them."""

    name: str
    """Name of its variants, without storage and fan-outs."""
    field: str
    """Field of the spec that names it, for messages."""
    folder: Path
    given: ProgramManifest
    """With the paths that files have in the folder."""
    network: NetworkManifest
    """Its program has the paths that files have in the revision."""
    features: Sequence[Features]
    """Scaled features of each type, in the order of the source; a type without has no column."""
    columns: tuple[int, ...] | None = None
    """Columns of the features that it reads, in its order, numbered over all types, type after type; None: all, in the
    order of the source."""
    layers: GivenLayers | None = None
    """Listed layers, whose weights are the file of such a program; None: the file is in the folder."""
    compute: ComputeAll | None = None
    """Runs parts of the listed layers; None: the file is in the folder."""
    factor: int = 1
    """k of the feature columns that listed layers go without; 1: they lose none."""
    has_fewer_channels: bool = False
    """Whether they are of the model's with fewer hidden channels."""


@dataclass(frozen=True, slots=True)
class Ingredients:
    """Ingredients that planners make variants from."""

    spec: GNNServiceSpec
    network: NetworkManifest
    """The network of the spec. One-row variants have others."""
    graph: Graph
    features: Features
    """Normalised, or made of these where the model propagates them; columns in the order of the source. Of several
    types those of the target."""
    ranking: Ranking
    master: Tensors | None
    """Weights of the master, for inputs in the order of the source; None: no planner needs them."""
    learnt: Mapping[str, Tensors] = field(default_factory=dict)
    """Weights of the other networks by their names, for inputs in rank order; of those with fewer channels for as many
    columns as the network that they are made of, in the order of the source where it reads all."""
    given: Sequence[GivenVariant] = ()
    """Variants of spec.variants.given, in its order."""
    one_rows: Mapping[str, OneRowNetwork] = field(default_factory=dict)
    """One-row networks by their names."""
    programs: Sequence[PlacedProgram] = ()
    """The program that is the model, and behind it those of spec.variants.given; empty: the model has layers."""
    narrow_programs: Mapping[str, PlacedProgram] = field(default_factory=dict)
    """Listed layers with fewer hidden channels, by the names of their networks."""
    network_name: str = ""
    """What the network and the master are called where they are not the model's: names of their variants and tables
    begin with it."""

    def named(self, name: str) -> str:
        """The name of a variant or table of this network, from that of the model's."""
        return f"{self.network_name}-{name}" if self.network_name else name

    @property
    def weights_prefix(self) -> str:
        """What keys of the network's first weights begin with, as `MadeBy.prefix`."""
        return f"{self.network_name}." if self.network_name else ""


@dataclass(frozen=True, slots=True)
class ListedColumns:
    """Columns of the rows that variants of listed layers read, of the widest type."""

    products: int
    """Columns of rows of each node alone before the first layer; 0: there are none but features."""
    behind: Sequence[int]
    """Columns of rows behind each layer, and first before them."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Outline of variants that is known before anything is computed."""

    spec: GNNServiceSpec
    network: NetworkManifest
    nodes: int
    features: int
    """Columns of `Ingredients.features`, of several types of the widest."""
    given: Sequence[GivenVariant] = ()
    """The given variants, as in `Ingredients`."""
    columns_of_programs: Sequence[tuple[int, ...] | None] = ()
    """Columns of the features that each program reads, as `PlacedProgram.columns`."""
    stored_columns: Sequence[int] = ()
    """Columns of a row behind each of the model's listed layers, and first before them; empty: they are not stored."""
    product_columns: int = 0
    """Columns of a row of each node alone before the first of the listed layers; 0: none is stored."""
    narrow_columns: Mapping[str, ListedColumns] = field(default_factory=dict)
    """Columns of rows of listed layers with fewer hidden channels, by the names of their networks."""


Blocks = Callable[[], Iterable[np.ndarray]]
"""float32 blocks of rows that add up to [nodes, columns]: made when they are written, since a table may be large."""


@dataclass(frozen=True, slots=True)
class MadeBy:
    """Tensors that rows of later nodes are made by: the first layer's weights whose products a table stores, or the
    columns of features that it holds of each of several types."""

    prefix: str
    """What their keys begin with in the file of the revision (`TableManifest.made_by`)."""
    tensors: Tensors
    """Under the checkpoint's keys."""


@dataclass(frozen=True, slots=True)
class PlannedTable:
    name: str
    kind: TableKind
    storage: Storage
    columns: int
    rows: Blocks
    own: Blocks | None = None
    """What is read of a node itself; None: the same rows."""
    source_columns: tuple[int, ...] | None = None
    """The columns of the source that the table holds, as in its manifest."""
    made_by: MadeBy | None = None
    """None: it stores features of one type, or neighbours are in its rows, so that none are made for later nodes."""
    by_relation: RelationRowPlaces | UnsetType = UNSET
    """Where its rows are, of a graph of several types."""
    types: int | UnsetType = UNSET
    """As in its manifest."""


Written = Callable[[str], Table]
"""Opens a table that was written before."""
BlocksOf = Callable[[Written], Iterable[np.ndarray]]
"""Makes float32 blocks of rows that add up to [nodes, columns] of tables that were written before."""


@dataclass(frozen=True, slots=True)
class DerivedTable:
    """A table that is made of others, which stand before it in the plans."""

    name: str
    kind: TableKind
    storage: Storage
    columns: int
    rows: BlocksOf
    own: BlocksOf | None = None
    """What is read of a node itself; None: the same rows."""
    types: int | UnsetType = UNSET
    """As in its manifest."""


@dataclass(frozen=True, slots=True)
class PlannedVariant:
    manifest: VariantManifest
    factor: int
    """k of the feature columns that it goes without; 1: it loses none."""
    tensors: Tensors | None
    """The variant's weights; None: it shares another variant's, or is a program."""
    program: PlacedProgram | None = None
    """The variant's program; None: it shares another variant's, or has weights."""


@dataclass(frozen=True, slots=True)
class PlannedCascade:
    """A variant that consists of two planned ones; what decides between them is fitted when these can be run."""

    name: str
    family: str
    first: str
    then: str
    percent: int
    """Percent of the validation nodes that the first passes on to the other."""


@dataclass(frozen=True, slots=True)
class FamilyPlan:
    tables: Sequence[PlannedTable | DerivedTable] = ()
    """A table that an earlier plan has under the same name is written once."""
    variants: Sequence[PlannedVariant] = ()
    """Variants in the order of the profile."""
    cascades: Sequence[PlannedCascade] = ()
    """Cascades in that order, behind all variants."""
    over: Callable[[Graph], FamilyPlan] | None = None
    """The same over other lists of the same nodes; None: no row holds what a node's neighbours have."""


class Planner(Protocol):
    def needs_master(self, spec: GNNServiceSpec) -> bool:
        """Whether it makes variants from the network of all columns."""
        ...

    def tables_bytes(self, outline: Outline) -> int:
        """What its tables would take on the disk at most, those that may be discarded later included."""
        ...

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        """`earlier`: what the planners before it planned."""
        ...


def plan_variant(
    point: VariantPoint, name: str, table: str, columns: int, network: NetworkManifest, storage: Storage,
    tensors: Tensors, factor: int = 1, stored: StoredManifest | None = None, compute: Compute | None = None,
    propagated: PropagatedManifest | UnsetType = UNSET,
) -> PlannedVariant:  # fmt: skip
    """A network with weights of its own over the first columns of a table in that storage. It samples as many
    neighbours as it was trained with. `compute` None: what its architecture prefers over the storage."""
    manifest = VariantManifest(
        name=name,
        family=point.family,
        table=table,
        columns=columns,
        fanouts=network.fanouts,
        network=network,
        compute=compute or compute_for(Architecture(network.architecture), storage),
        weights=paths.weights_of(name),
        stored=stored,
        propagated=propagated,
    )
    return PlannedVariant(manifest, factor, tensors)


def storages_of(spec: GNNServiceSpec) -> list[Storage]:
    """Storages that the spec lists, in one order for all specs."""
    return [storage for storage in Storage if storage in spec.variants.storage]
