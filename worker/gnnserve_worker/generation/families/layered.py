"""Variants of networks of layers, by what their tables store: columns of features, or what a layer makes of them.

- *Pruned*: prefixes of the ranked feature columns, each with a network for just these (Yik et al., *Dynamic GNN
  inference as-a-service*). All of one storage read one table, whose columns are in rank order.
- *Projected*: the first layer's product is made ahead of time, for every node. Means and sums commute with linear maps,
  so the network of all columns answers as before, but for rounding, from rows as wide as its first layer's output.
- *Stored*: hidden states of every node, over all of its neighbours, are computed ahead of time. What is left of the
  network is a network of its own, whose features are hidden states; its first product is stored, as in projected
  variants. So a seed of a network of two layers reads its own row and one of each of its sampled neighbours, as wide as
  the classes. The first layer's output is exact and not sampled. *Accelerating large scale real-time GNN inference
  using channel pruning* stores hidden features of nodes that were visited; here they are kept of all, as products.
- *One row*: perceptrons that read one stored row per seed, the product of their first layer. A row is as wide as the
  hidden layer, and what is left of the network is its last layer, the same for all types of nodes. Those over a node's
  own features can answer about nodes that requests bring; those over propagated features cannot.
- *Fewer hidden channels* (*Accelerating large scale real-time GNN inference using channel pruning*): each network is
  made of another one, whose channels are pruned (`generation/channels.py`) and which is then trained further. Over
  feature columns it has the model's hops and reads the table of pruned variants. Its products, and its first layer over
  all neighbours, are stored as those of the model are, in narrower tables of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

import numpy as np
from msgspec import UNSET

from gnnserve_api.families import FOLDED, ONE_ROW, PROJECTED, PRUNED, STORED, ChannelAxis, FollowAxis, VariantPoint
from gnnserve_api.files.repository import (
    CorrectionManifest,
    FollowedManifest,
    LayerTables,
    NetworkManifest,
    PropagatedManifest,
    StoredManifest,
)
from gnnserve_api.spec.channels import Channels, ChannelsTable
from gnnserve_api.spec.heterogeneous_rules import keeps_types_of_rows
from gnnserve_api.spec.model import NO_NEIGHBOURS, Architecture
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import ProjectionMode as ProjectionChoice
from gnnserve_api.variants import (
    Storage,
    columns_of,
    one_row_name,
    projected_name,
    stored_layer_name,
    stored_name,
    variant_name,
)
from gnnserve_worker.generation.families.family import (
    BlocksOf,
    DerivedTable,
    FamilyPlan,
    Ingredients,
    MadeBy,
    OneRowNetwork,
    Outline,
    PlannedTable,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.hidden import aggregated_blocks, hidden_blocks
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.network import Layer
from gnnserve_worker.models.registry import (
    Tensors,
    build_network,
    keep_columns_of,
    layer_sizes,
    projection_of,
    spec_of,
    without_first_product,
)
from gnnserve_worker.models.tail import tail_of, tail_tensors
from gnnserve_worker.opening.loaded import CORRECTION
from gnnserve_worker.repository.revision_files import stored_bytes
from gnnserve_worker.tables.table import feature_blocks, projected_blocks

# --- prefixes of the ranked feature columns


class PrunedPlanner:
    """One variant for each of `spec.variants.pruning.factors`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return 1 in _factors(spec)

    def tables_bytes(self, outline: Outline) -> int:
        factors = _factors(outline.spec)
        if not factors:
            return 0
        width = columns_of(outline.features, factors[0])
        return sum(stored_bytes(outline.nodes, width, storage) for storage in outline.spec.variants.storage)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        spec, features = made_from.spec, made_from.features
        factors, storages = _factors(spec), storages_of(spec)
        if not factors:
            return FamilyPlan()
        widths = {factor: columns_of(features.shape[1], factor) for factor in factors}
        kept = made_from.ranking.columns[: widths[factors[0]]].tolist()
        weights = {factor: _weights(made_from, factor) for factor in factors}
        points = ((keeps_types_of_rows(spec), FOLDED), (spec.model.propagates, PRUNED.propagated()), (True, PRUNED))
        point = next(point for is_so, point in points if is_so)
        return FamilyPlan(
            tables=[
                PlannedTable(
                    features_table(storage), "features", storage, len(kept), partial(feature_blocks, features, kept)
                )
                for storage in storages
            ],
            variants=[
                plan_variant(
                    point, variant_name(factor, storage), features_table(storage), widths[factor], made_from.network,
                    storage, weights[factor], factor,
                )
                for factor in factors
                for storage in storages
            ],
        )  # fmt: skip


def _factors(spec: GNNServiceSpec) -> list[int]:
    """Ascending; none of a program, which reads all columns."""
    return sorted(spec.variants.pruning.factors) if not spec.model.is_program else []


def _weights(made_from: Ingredients, factor: int) -> Tensors:
    """Weights for inputs in rank order."""
    if factor == 1 and made_from.master is not None:
        return keep_columns_of(made_from.master, made_from.ranking.columns)
    return made_from.learnt[variant_name(factor)]


def features_table(storage: Storage) -> str:
    """Name of the table of columns in rank order."""
    return f"features-{storage}"


# --- products of the first layer


class ProjectedPlanner:
    """One variant from each storage, unless `spec.variants.projection` is Disabled."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        # Embeddings are stored as they are.
        return spec.variants.projection is ProjectionChoice.AUTO and not keeps_types_of_rows(spec)

    def tables_bytes(self, outline: Outline) -> int:
        return projected_bytes(outline, outline.network) if self.needs_master(outline.spec) else 0

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        if not self.needs_master(made_from.spec) or made_from.master is None:
            return FamilyPlan()
        return plan_projected(made_from, PROJECTED.propagated() if made_from.spec.model.propagates else PROJECTED)


def projected_bytes(outline: Outline, network: NetworkManifest) -> int:
    """What the tables of a network's products take in all storages."""
    matrices = 2 if spec_of(outline.spec.model.architecture).stores_own else 1
    return sum(
        matrices * stored_bytes(outline.nodes, network.projected_columns, storage)
        for storage in outline.spec.variants.storage
    )


def plan_projected(made_from: Ingredients, point: VariantPoint) -> FamilyPlan:
    """The network over its products, from each storage. There must be a master."""
    if made_from.master is None:
        raise ValueError("projected variants are made of a master's weights, and there is none")
    tensors, network = without_first_product(made_from.master), made_from.network
    storages = storages_of(made_from.spec)
    return FamilyPlan(
        tables=[plan_products(made_from, storage) for storage in storages],
        variants=[
            plan_variant(
                point, made_from.named(projected_name(storage)), _projected_table(made_from, storage),
                network.projected_columns, network, storage, tensors,
            )
            for storage in storages
        ],
    )  # fmt: skip


def plan_products(made_from: Ingredients, storage: Storage) -> PlannedTable:
    """The table of the first layer's products. There must be a master."""
    if made_from.master is None:
        raise ValueError("products are made of a master's weights, and there is none")
    weights = made_from.master
    products = {key: weights[key] for key in weights.keys() - without_first_product(weights).keys()}
    features, projection = made_from.features, projection_of(made_from.master)
    return PlannedTable(
        _projected_table(made_from, storage),
        "projected",
        storage,
        projection.rows.shape[1],
        rows=partial(projected_blocks, features, np.ascontiguousarray(projection.rows)),
        own=None
        if projection.own is None
        else partial(projected_blocks, features, np.ascontiguousarray(projection.own)),
        made_by=None if made_from.spec.model.propagates else MadeBy(made_from.weights_prefix, products),
    )


def _projected_table(made_from: Ingredients, storage: Storage) -> str:
    return made_from.named(f"projected-{storage}")


# --- layers over all neighbours


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
    """Rows of the first layer are made anew where a request reaches, and those of later ones where the rows are kept
    that they are made of. The first layer of one is the last one: its output is the scores."""
    is_kept = layer == 1 < len(spec.model.fanouts) or spec.variants.stored_follow_changes
    return STORED if is_kept else replace(STORED, follows=FollowAxis.NOTHING)


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
    return FamilyPlan(tables, variants, over=lambda graph: plan_stored(replace(made_from, graph=graph), layers))


def _variant(
    made_from: Ingredients, master: Tensors, below: StoredLayer, storage: Storage, point: VariantPoint
) -> PlannedVariant:
    tensors = dict(below.left_tensors)
    correction = followed = None
    if point.follows is FollowAxis.OVERLAYS and below.layer == 1 < made_from.network.layers:
        correction = CorrectionManifest(
            network=made_from.network, products=below.products, aggregated=below.continued_table
        )
    elif point.follows is not FollowAxis.NOTHING:
        followed = FollowedManifest(network=made_from.network, layers=below.layer_tables())
    if point.follows is not FollowAxis.NOTHING:
        tensors |= {f"{CORRECTION}{key}": tensor for key, tensor in without_first_product(master).items()}
    return plan_variant(
        point, made_from.named(stored_layer_name(below.layer, storage)), _stored_table(made_from, below.layer, storage),
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
        return (first, *(LayerTables(_stored_table(self.made_from, layer, Storage.FLOAT32)) for layer in before))

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
        name = _stored_table(self.made_from, self.layer, storage)
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


def _stored_table(made_from: Ingredients, layer: int, storage: Storage) -> str:
    return made_from.named(f"stored{layer}-{storage}")


def _aggregated_table(made_from: Ingredients, layer: int) -> str:
    return made_from.named(f"aggregated{layer}")


# --- one row for a seed


class OneRowPlanner:
    """One variant for each of `spec.variants.oneRow`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return bool(spec.variants.one_row)

    def tables_bytes(self, outline: Outline) -> int:
        variants = outline.spec.variants
        follows = variants.stored_follow_changes and any(one.hops for one in variants.one_row)
        features = stored_bytes(outline.nodes, outline.features, Storage.FLOAT32) if follows else 0
        return features + sum(
            stored_bytes(outline.nodes, outline.spec.model.one_row(one.hops).hidden, storage)
            for one in variants.one_row
            for storage in variants.storage
        )

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        storages = storages_of(made_from.spec)
        every_hops = [one.hops for one in made_from.spec.variants.canonical().one_row]
        trained = {hops: made_from.one_rows[one_row_name(hops)] for hops in every_hops}
        follows = made_from.spec.variants.stored_follow_changes
        read = [one.propagated for one in trained.values() if follows and one.propagated is not None]
        features = [_plan_features_of_all(read[0].features)] if read else []
        tables = [_plan_table(hops, made, storage) for hops, made in trained.items() for storage in storages]
        return FamilyPlan(
            tables=[*features, *tables],
            variants=[
                _plan_one_row(hops, made, storage, follows=follows and hops > 0)
                for hops, made in trained.items()
                for storage in storages
            ],
        )


def _plan_table(hops: int, made: OneRowNetwork, storage: Storage) -> PlannedTable:
    left = without_first_product(made.tensors)
    stored = {key: tensor for key, tensor in made.tensors.items() if key not in left}
    return PlannedTable(
        _table_name(hops, storage),
        "projected",
        storage,
        made.product.shape[1],
        rows=partial(_as_one_block, made.product),
        made_by=None if hops else MadeBy(f"{one_row_name(hops)}.", stored),
        types=made.types if made.types > 1 else UNSET,
    )


def _plan_one_row(hops: int, made: OneRowNetwork, storage: Storage, *, follows: bool) -> PlannedVariant:
    left, point = without_first_product(made.tensors), ONE_ROW.propagated() if hops else ONE_ROW
    tensors = left
    if follows:
        point = replace(point, follows=FollowAxis.CHANGES)
        own = {key: tensor for key, tensor in made.tensors.items() if key not in left}
        moments = {} if made.propagated is None else made.propagated.moments
        tensors = left | {f"{CORRECTION}{key}": tensor for key, tensor in {**own, **moments}.items()}
    return plan_variant(
        point, stored_name(one_row_name(hops), storage), _table_name(hops, storage), made.product.shape[1],
        made.network, storage, tensors, propagated=PropagatedManifest(_FEATURES_OF_ALL) if follows else UNSET,
    )  # fmt: skip


_FEATURES_OF_ALL = "features-of-all"
"""The table of features of all nodes, of which rows over several hops are made anew."""


def _plan_features_of_all(features: Sequence[Features]) -> PlannedTable:
    """Features of all types, type after type, each with its columns first."""
    width = max(own.shape[1] for own in features)
    columns = tuple(range(width)) if len(features) == 1 else None
    return PlannedTable(
        _FEATURES_OF_ALL, "features", Storage.FLOAT32, width, partial(_padded_blocks, features, width),
        source_columns=columns,
    )  # fmt: skip


def _padded_blocks(features: Sequence[Features], width: int) -> Iterator[np.ndarray]:
    for own in features:
        columns = own.shape[1]
        for block in feature_blocks(own, range(columns)):
            yield np.pad(block, ((0, 0), (0, width - columns))) if columns < width else block


def _table_name(hops: int, storage: Storage) -> str:
    return f"{one_row_name(hops)}-{storage}"


def _as_one_block(rows: np.ndarray) -> list[np.ndarray]:
    return [rows]


# --- fewer hidden channels


_FEATURES, _PROJECTED, _STORED = (replace(point, channels=ChannelAxis.FEWER) for point in (PRUNED, PROJECTED, STORED))


class ChannelsPlanner:
    """One variant for each of `spec.variants.channels`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return any(one.column_factor == 1 for one in spec.variants.channels)

    def tables_bytes(self, outline: Outline) -> int:
        return sum(_table_bytes(outline, one) for one in outline.spec.variants.channels)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        plans = [_plan_one(made_from, one) for one in made_from.spec.variants.canonical().channels]
        return FamilyPlan(
            tables=[table for plan in plans for table in plan.tables],
            variants=[variant for plan in plans for variant in plan.variants],
            over=lambda graph: self.plan(replace(made_from, graph=graph), earlier),
        )


def _table_bytes(outline: Outline, one: Channels) -> int:
    network = _network_of(one, outline.spec, outline.network.classes)
    match one.table:
        case ChannelsTable.FEATURES:
            return 0  # that of pruned variants
        case ChannelsTable.PROJECTED:
            return projected_bytes(outline, network)
        case ChannelsTable.STORED:
            return stored_layers_bytes(outline, network, [1])
        case _:
            assert_never(one.table)


def _plan_one(made_from: Ingredients, one: Channels) -> FamilyPlan:
    network = _network_of(one, made_from.spec, made_from.network.classes)
    tensors = made_from.learnt[one.network_name]
    of_network = replace(made_from, network=network, master=tensors, network_name=one.network_name)
    match one.table:
        case ChannelsTable.FEATURES:
            return _plan_features(of_network, one, tensors)
        case ChannelsTable.PROJECTED:
            return plan_projected(of_network, _PROJECTED)
        case ChannelsTable.STORED:
            return plan_stored(of_network, {1: _STORED})
        case _:
            assert_never(one.table)


def _plan_features(made_from: Ingredients, one: Channels, tensors: Tensors) -> FamilyPlan:
    ranked = keep_columns_of(tensors, made_from.ranking.columns) if one.column_factor == 1 else tensors
    columns = columns_of(made_from.features.shape[1], one.column_factor)
    return FamilyPlan(
        variants=[
            plan_variant(
                _FEATURES, stored_name(one.name, storage), features_table(storage), columns, made_from.network,
                storage, ranked, one.column_factor,
            )
            for storage in storages_of(made_from.spec)
        ]
    )  # fmt: skip


def _network_of(one: Channels, spec: GNNServiceSpec, classes: int) -> NetworkManifest:
    return spec.model.with_fewer_channels(one.factor).network(classes)
