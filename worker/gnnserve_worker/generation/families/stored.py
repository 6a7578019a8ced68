"""Stored variants: hidden states of every node, over all of its neighbours, are computed ahead of time.

What is left of the network is a network of its own, whose features are hidden states; its first product is stored, as
in projected variants. So a seed of a network of two layers reads its own row and one of each of its sampled
neighbours, as wide as the classes. The first layer's output is exact and not sampled. *Accelerating large
scale real-time GNN inference using channel pruning* stores hidden features of nodes that were visited; here they are
kept of all, as products.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnnserve_api.families import STORED, FollowAxis, VariantPoint
from gnnserve_api.repository import (
    CorrectionManifest,
    FollowedManifest,
    LayerTables,
    NetworkManifest,
    StoredManifest,
)
from gnnserve_api.spec.model import NO_NEIGHBOURS, Architecture
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, stored_layer_name
from gnnserve_worker.generation.families.family import (
    BlocksOf,
    DerivedTable,
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedTable,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.families.projected import plan_products
from gnnserve_worker.generation.hidden import aggregated_blocks, hidden_blocks
from gnnserve_worker.generation.tensors import Tensors, projection_of, without_first_product
from gnnserve_worker.models.build import build_network, layer_sizes
from gnnserve_worker.models.network import Layer
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.models.tail import tail_of, tail_tensors
from gnnserve_worker.opening.loaded import CORRECTION
from gnnserve_worker.repository.staged import stored_bytes

_SCORES = Architecture.SGC
"""A row of scores is a network whose only layer reads nothing but its own row."""


class StoredPlanner:
    """One variant for each of `spec.variants.stored`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return bool(spec.variants.stored)

    def tables_bytes(self, outline: Outline) -> int:
        layers = outline.spec.variants.stored
        return stored_layers_bytes(outline, outline.network, layers) if layers else 0

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        layers = sorted(made_from.spec.variants.stored)
        if not layers or made_from.master is None:
            return FamilyPlan()
        return plan_stored(made_from, {layer: _point_of(layer, made_from.spec) for layer in layers})


def _point_of(layer: int, spec: GNNServiceSpec) -> VariantPoint:
    """Rows of the first layer are corrected where an overlay reaches, which of later ones is too far for a request. The
    first layer of one is the last one: its output is the scores."""
    if layer == 1 and len(spec.model.fanouts) > 1:
        return STORED
    follows = FollowAxis.CHANGES if spec.variants.stored_follow_changes else FollowAxis.NOTHING
    return replace(STORED, follows=follows)


def stored_layers_bytes(outline: Outline, network: NetworkManifest, layers: Collection[int]) -> int:
    """What the tables of these layers of a network, and those that they are made of take."""
    spec = spec_of(outline.spec.model.architecture)
    matrices = 2 if spec.stores_own else 1
    total = matrices * stored_bytes(outline.nodes, network.projected_columns, Storage.FLOAT32)
    last = max(layers)
    for layer in range(1, last + 1):
        total += stored_bytes(outline.nodes, tail_of(network, layer - 1).projected_columns, Storage.FLOAT32)
        storages = {*outline.spec.variants.storage} if layer in layers else set()
        storages |= {Storage.FLOAT32} if layer < last else set()  # what the next layer is made of
        is_last = layer == network.layers
        width = network.classes if is_last else tail_of(network, layer).projected_columns
        total += (1 if is_last else matrices) * sum(stored_bytes(outline.nodes, width, each) for each in storages)
    return total


def plan_stored(made_from: Ingredients, layers: Mapping[int, VariantPoint]) -> FamilyPlan:
    """What is left of the network behind each of these layers, from each storage, at its point. There must be a
    master."""
    if made_from.master is None:
        raise ValueError("stored layers are made of a master's weights, and there is none")
    storages, last = storages_of(made_from.spec), max(layers)
    tables: list[PlannedTable | DerivedTable] = [plan_products(made_from, Storage.FLOAT32)]
    variants: list[PlannedVariant] = []
    for layer in range(1, last + 1):
        below = StoredLayer.of(made_from, made_from.master, layer, products=tables[-1].name)
        tables.append(below.aggregated_table())
        if layer in layers:
            tables += [below.table(storage) for storage in storages]
            variants += [_variant(made_from, made_from.master, below, storage, layers[layer]) for storage in storages]
        if layer < last:
            tables.append(below.table(Storage.FLOAT32))
    return FamilyPlan(tables, variants)


def _variant(
    made_from: Ingredients, master: Tensors, below: StoredLayer, storage: Storage, point: VariantPoint
) -> PlannedVariant:
    tensors = dict(below.left_tensors)
    correction = followed = None
    if point.follows is FollowAxis.OVERLAYS:
        correction = CorrectionManifest(
            network=made_from.network, products=below.products, aggregated=below.continued_table
        )
    elif point.follows is FollowAxis.CHANGES:
        followed = FollowedManifest(network=made_from.network, layers=below.layer_tables())
    if point.follows is not FollowAxis.NOTHING:
        tensors |= {f"{CORRECTION}{key}": tensor for key, tensor in without_first_product(master).items()}
    return plan_variant(
        point, made_from.named(stored_layer_name(below.layer, storage)), _table(made_from, below.layer, storage),
        below.left.projected_columns, below.left, storage, tensors,
        stored=StoredManifest(layer=below.layer, correction=correction, followed=followed),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """One layer, and what is left of the network behind it."""

    made_from: Ingredients
    layer: int
    """The number of the layer, from 1."""
    products: str
    """The table of products of its inputs."""
    built: Layer
    """The layer over that table."""
    left: NetworkManifest
    left_tensors: Tensors
    """Weights of what is left, without the products that the table of this layer stores."""
    matrices: tuple[np.ndarray, ...]
    """What the layer's output is multiplied by: for neighbours, and for a node itself where that differs. Empty: it is
    stored as it is."""

    @staticmethod
    def of(made_from: Ingredients, master: Tensors, layer: int, products: str) -> StoredLayer:
        network = made_from.network
        own, tensors = tail_of(network, layer - 1), tail_tensors(master, layer - 1)
        kept = without_first_product(tensors)
        built = build_network(own, kept, own.projected_columns, projected=True, compute="float32").layers[0]
        if layer == network.layers:
            left = NetworkManifest(
                architecture=_SCORES, hidden=network.hidden, fanouts=NO_NEIGHBOURS, classes=network.classes, hops=layer
            )
            return StoredLayer(made_from, layer, products, built, left, _nothing_added(left), ())
        behind = tail_tensors(master, layer)
        projection = projection_of(behind)
        matrices = (projection.rows,) if projection.own is None else (projection.rows, projection.own)
        return StoredLayer(
            made_from, layer, products, built, tail_of(network, layer), without_first_product(behind), matrices
        )

    @property
    def continued_table(self) -> str | None:
        """The table of what the layer aggregates, where sums of neighbours can be added to it."""
        return _aggregated_table(self.made_from, self.layer) if self.built.aggregation.plain else None

    def layer_tables(self) -> tuple[LayerTables, ...]:
        """What the rows of this layer and of those before it are made of. What later layers aggregate is not kept."""
        first = LayerTables(plan_products(self.made_from, Storage.FLOAT32).name, self._first_aggregated)
        before = range(1, self.layer)
        return (first, *(LayerTables(_table(self.made_from, layer, Storage.FLOAT32)) for layer in before))

    @property
    def _first_aggregated(self) -> str | None:
        # All layers of a network aggregate in the same way.
        return _aggregated_table(self.made_from, 1) if self.built.aggregation.plain else None

    def aggregated_table(self) -> DerivedTable:
        graph, built, products = self.made_from.graph, self.built, self.products
        return DerivedTable(
            _aggregated_table(self.made_from, self.layer),
            "aggregated",
            Storage.FLOAT32,
            built.aggregated,
            rows=lambda written: aggregated_blocks(graph, built, written(products)),
        )

    def table(self, storage: Storage) -> DerivedTable:
        rows, *own = [self._blocks(matrix) for matrix in self.matrices] or [self._blocks(None)]
        columns = self.left.projected_columns
        name = _table(self.made_from, self.layer, storage)
        return DerivedTable(name, "projected", storage, columns, rows, own[0] if own else None)

    def _blocks(self, matrix: np.ndarray | None) -> BlocksOf:
        aggregated, built = _aggregated_table(self.made_from, self.layer), self.built
        return lambda written: (
            hidden if matrix is None else hidden @ matrix for hidden in hidden_blocks(written(aggregated).rows, built)
        )


def _nothing_added(scores: NetworkManifest) -> Tensors:
    """Weights of a network that gives its rows as they are: all but the product that they are is 0."""
    spec = spec_of(_SCORES)
    shapes = spec.shapes_of(0, layer_sizes(scores, scores.classes)[0])
    products = spec.first_product_keys()
    return {key: np.zeros(shape, np.float32) for key, shape in shapes.items() if key not in products}


def _table(made_from: Ingredients, layer: int, storage: Storage) -> str:
    return made_from.named(f"stored{layer}-{storage}")


def _aggregated_table(made_from: Ingredients, layer: int) -> str:
    return made_from.named(f"aggregated{layer}")
