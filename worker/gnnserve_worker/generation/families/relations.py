"""Tables and variants over a graph of several types: what `families/` is for graphs of one type.

Variants read products, as wide as the hidden layer for each relation, or rows that a layer made of them; those of
`spec.variants.pruning.factors` read columns of features (`type_columns.py`). Where links are scored, one reads a row
for each node, of what the last layer gives over all neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import assert_never

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.families import GIVEN_PRODUCTS, PROJECTED, STORED, ChannelAxis, FollowAxis, VariantPoint
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import FollowedManifest, LayerTables, NetworkManifest, StoredManifest
from gnnserve_api.spec.channels import ChannelsTable
from gnnserve_api.spec.model import NO_NEIGHBOURS, Model
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import ProjectionMode
from gnnserve_api.variants import Storage, projected_name, stored_layer_name, stored_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    MadeBy,
    PlannedTable,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.families.registry import with_fewer_neighbours
from gnnserve_worker.generation.families.relation_tables import States, hidden_states, plan_outputs, plan_table
from gnnserve_worker.generation.families.type_columns import ColumnNetworks, plan_columns
from gnnserve_worker.generation.training_set import TrainingSet, means_by_relation
from gnnserve_worker.models.architecture import (
    RelationalLayer,
    RelationalShape,
    embedding_key,
    layer_of,
    layer_tensors,
)
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.models.tail import tail_of
from gnnserve_worker.opening.loaded import CORRECTION

_STORED_GRAPH = replace(STORED, follows=FollowAxis.NOTHING)


@dataclass(frozen=True, slots=True)
class RelationalNetwork:
    """A network that variants are made of."""

    manifest: NetworkManifest
    layers: Sequence[RelationalLayer]
    name: str = ""
    """As `Ingredients.network_name`."""
    is_given: bool = False
    """Whether it is a variant of the user's own, which has the name itself."""

    @staticmethod
    def read(manifest: NetworkManifest, graph: GraphSchema, tensors: Tensors, name: str) -> RelationalNetwork:
        """That of tensors that `layers_tensors` made."""
        shape = RelationalShape.of(graph, manifest)
        layers = [shape.with_heads(layer_of(number, tensors), number) for number in range(manifest.layers)]
        return RelationalNetwork(manifest, layers, name)

    def named(self, name: str) -> str:
        """The name of a variant or table of this network, from that of the model's."""
        return f"{self.name}-{name}" if self.name else name

    def products_name(self, storage: Storage) -> str:
        """Name of the variant that reads its products, and of their table."""
        return stored_name(self.name, storage) if self.is_given else self.named(projected_name(storage))


@dataclass(frozen=True, slots=True)
class RelationalNetworks:
    """All networks that variants are made of."""

    model: RelationalNetwork | None
    """None: no variant is made of it."""
    narrow: Mapping[str, RelationalNetwork] = field(default_factory=dict)
    """Networks with fewer channels, by their names."""
    given: Sequence[RelationalNetwork] = ()
    """Networks of spec.variants.given, in its order."""
    columns: ColumnNetworks | None = None
    """Networks over columns of features; None: there are none."""


def layers_tensors(layers: Sequence[RelationalLayer]) -> Tensors:
    return {key: tensor for number, one in enumerate(layers) for key, tensor in layer_tensors(number, one).items()}


def states_of(subject: TrainingSet, tensors: Mapping[str, np.ndarray]) -> States:
    return [
        tensors[embedding_key(kind.name)] if one is None else one.features
        for one, kind in zip(subject.features, subject.data.types, strict=True)
    ]


def as_arrays(layer: RelationalLayer) -> RelationalLayer:
    def arrays(matrices: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        return {place: np.ascontiguousarray(matrix, dtype=np.float32) for place, matrix in matrices.items()}

    return RelationalLayer(
        arrays(layer.relations), arrays(layer.own), arrays(layer.biases), arrays(layer.shifts), layer.heads
    )


def plan_variants(
    spec: GNNServiceSpec, networks: RelationalNetworks, subject: TrainingSet, states: States,
    ends: Collection[int] = (),
) -> FamilyPlan:  # fmt: skip
    """Pruned and projected variants, those of stored layers, those with fewer channels and given ones; each with fewer
    neighbours too, and from each storage. `ends`: places of the types at the ends of links; empty: nodes of the first
    type are classified."""
    plans = [] if networks.columns is None else [plan_columns(spec, networks.columns, states)]
    plans += [] if networks.model is None else _plans_of_model(spec, networks, networks.model, subject, states, ends)
    plans += [_NetworkPlanner(spec, one, subject, states, ends).projected(GIVEN_PRODUCTS) for one in networks.given]
    tables = [table for plan in plans for table in plan.tables]
    made = [variant for plan in plans for variant in plan.variants]
    variants = [*chain.from_iterable((one, *with_fewer_neighbours(spec.variants, one)) for one in made)]
    if spec.model.relation_fanouts:
        own = fanouts_by_relation(spec.model, subject.schema)
        variants = [_by_relation(one, own) if any(one.manifest.fanouts) else one for one in variants]
    return FamilyPlan(tables=tables, variants=variants)


def _plans_of_model(
    spec: GNNServiceSpec, networks: RelationalNetworks, model: RelationalNetwork, subject: TrainingSet,
    states: States, ends: Collection[int],
) -> list[FamilyPlan]:  # fmt: skip
    of_model, last = _NetworkPlanner(spec, model, subject, states, ends), len(model.layers)
    points = {layer: _point_of(layer, last, spec) for layer in sorted(spec.variants.stored)}
    # Beside links of types embeddings are found by an index, and read as they are. A search lists all layers, once.
    points |= {last: points.get(last, _STORED_GRAPH)} if ends and not spec.variants.is_searched else {}
    projected = [of_model.projected(PROJECTED)] if spec.variants.projection is ProjectionMode.AUTO else []
    plans = [*projected, of_model.stored(points)]
    for one in spec.variants.canonical().channels:
        planning = replace(of_model, network=networks.narrow[one.network_name])
        match one.table:
            case ChannelsTable.PROJECTED:
                plans.append(planning.projected(fewer_channels(PROJECTED)))
            case ChannelsTable.STORED:
                plans.append(planning.stored({1: fewer_channels(STORED)}))
            case ChannelsTable.FEATURES:
                pass  # planned beside those of all channels, whose tables they read
            case _:
                assert_never(one.table)
    return plans


def _point_of(layer: int, last: int, spec: GNNServiceSpec) -> VariantPoint:
    """The point of a stored layer: later ones, and the scores, are made anew where that is asked for."""
    return STORED if layer == 1 < last or spec.variants.stored_follow_changes else _STORED_GRAPH


def fewer_channels(point: VariantPoint) -> VariantPoint:
    """The point of a network with fewer channels."""
    return replace(point, channels=ChannelAxis.FEWER)


def fanouts_by_relation(model: Model, graph: GraphSchema) -> Sequence[Sequence[int]]:
    """Fan-outs of the model's layers by each relation of the graph. Raises InputError for a relation that is not
    there."""
    found = [list(model.fanouts) for _ in graph.relations]
    named: dict[int, str] = {}
    for place, one in enumerate(model.relation_fanouts):
        field, there = f"spec.model.relationFanouts[{place}].relation", ", ".join(each.key for each in graph.relations)
        places = [at for at, each in enumerate(graph.relations) if one.relation in {each.name, each.key}]
        if not places:
            raise InputError(
                field, f"is {one.relation!r}, which is no relation; there are {there}", "name one of these"
            )
        if len(places) > 1:
            keys = ", ".join(graph.relations[at].key for at in places)
            problem = f"is {one.relation!r}, which {len(places)} relations are called"
            raise InputError(field, problem, f"name one of {keys}")
        if places[0] in named:
            raise InputError(field, f"is {one.relation!r}, which stands at {named[places[0]]} already", "give it once")
        named[places[0]], found[places[0]] = field, list(one.fanouts)
    return found


def _by_relation(variant: PlannedVariant, own: Sequence[Sequence[int]]) -> PlannedVariant:
    """The variant with the fan-outs of each relation, as far as they are smaller than its own."""
    smaller = tuple(tuple(map(min, variant.manifest.fanouts, one)) for one in own)
    return replace(variant, manifest=msgspec.structs.replace(variant.manifest, relation_fanouts=smaller))


@dataclass(frozen=True, slots=True)
class _NetworkPlanner:
    """Plans variants of one network."""

    spec: GNNServiceSpec
    network: RelationalNetwork
    subject: TrainingSet
    states: States
    ends: Collection[int]

    def projected(self, point: VariantPoint) -> FamilyPlan:
        """The network over its products, from each storage."""
        storages = storages_of(self.spec)
        variants = [self._variant(point, self.network.products_name(storage), 0, storage) for storage in storages]
        return FamilyPlan([self._products(storage) for storage in storages], variants)

    def stored(self, points: Mapping[int, VariantPoint]) -> FamilyPlan:
        """What is left of the network behind each of these layers, from each storage, at its point."""
        layers, storages, subject = self.network.layers, storages_of(self.spec), self.subject
        following = [layer for layer, point in points.items() if point.follows is not FollowAxis.NOTHING]
        # What rows are made of where the graph changes or requests reach, in float32: products, and the layers between.
        tables, variants = [self._products(Storage.FLOAT32)] if following else [], list[PlannedVariant]()
        means = [means_by_relation(subject.data, one) for one in subject.data.relations if layers[0].heads is None]
        hidden = self.states
        for number in range(1, max(points, default=0) + 1):
            is_last = number == len(layers)
            hidden = hidden_states(subject.data, means, layers[number - 1], hidden, is_last=is_last)
            is_read = any(number < layer for layer in following)
            listed = storages if number in points else []
            tables += [
                self._stored_table(number, storage, hidden)
                for storage in dict.fromkeys([*listed, *([Storage.FLOAT32] if is_read else [])])
            ]
            variants += [self._stored_variant(points[number], number, storage) for storage in listed]
        return FamilyPlan(tables, variants)

    def _products(self, storage: Storage) -> PlannedTable:
        first, name = self.network.layers[0], self.network.name
        return plan_table(
            self.network.products_name(storage), storage, self.subject.schema, first, self.states,
            is_last=len(self.network.layers) == 1 and not self.ends,
            made_by=MadeBy(f"{name}." if name else "", layer_tensors(0, first)),
        )  # fmt: skip

    def _stored_table(self, number: int, storage: Storage, hidden: States) -> PlannedTable:
        layers, graph = self.network.layers, self.subject.schema
        name = self.network.named(stored_layer_name(number, storage))
        if number == len(layers):
            return plan_outputs(name, storage, graph, hidden, self.ends)
        is_last = number == len(layers) - 1 and not self.ends
        return plan_table(name, storage, graph, layers[number], hidden, is_last=is_last)

    def _stored_variant(self, point: VariantPoint, number: int, storage: Storage) -> PlannedVariant:
        """The network behind so many layers, with what rows of its table are made of where they are others: tables,
        and the weights of the layers whose products these hold."""
        name, layers, whole = self.network.named(stored_layer_name(number, storage)), self.network.layers, self.network
        one = self._variant(point, name, number, storage)
        if point.follows is FollowAxis.NOTHING:
            return one
        kept = {
            f"{CORRECTION}{key}": tensor
            for place in range(1, min(number + 1, len(layers)))
            for key, tensor in layer_tensors(place, layers[place]).items()
        }
        between = [whole.named(stored_layer_name(layer)) for layer in range(1, number)]
        made_of = (self.network.products_name(Storage.FLOAT32), *between)
        followed = FollowedManifest(whole.manifest, tuple(map(LayerTables, made_of)))
        manifest = msgspec.structs.replace(one.manifest, stored=StoredManifest(layer=number, followed=followed))
        return PlannedVariant(manifest, one.factor, {**(one.tensors or {}), **kept})

    def _variant(self, point: VariantPoint, name: str, stored: int, storage: Storage) -> PlannedVariant:
        """The network behind so many stored layers, over the products of the next one; behind all of them, rows as they
        are."""
        layers, network = self.network.layers, self.network.manifest
        described = StoredManifest(layer=stored) if stored else None
        if stored == len(layers):
            rows = msgspec.structs.replace(network, fanouts=NO_NEIGHBOURS, attention=None)
            return plan_variant(
                point, name, name, network.classes, rows, storage, {}, stored=described, compute="float32"
            )
        tensors: Tensors = {}
        for number, layer in enumerate(layers[stored:]):
            # Of the layer in the table biases alone are left, where what is summed comes before them.
            left = RelationalLayer({}, {}, layer.biases) if number == 0 else layer
            tensors |= layer_tensors(number, left) if number or layer.heads is not None else {}
        compute = "float32" if layers[stored].heads is not None else preferred_compute(storage)
        return plan_variant(
            point, name, name, layers[stored].columns, tail_of(network, stored), storage, tensors, stored=described,
            compute=compute,
        )  # fmt: skip
