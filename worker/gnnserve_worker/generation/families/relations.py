"""Tables and variants over a graph of several types: what `families/` is for graphs of one type.

Every variant but one reads products, as wide as the hidden layer for each relation: pruning feature columns would leave
these as wide as they are, so that no variant is made for `spec.variants.pruning.factors`. Where links are scored, one
reads a row for each node, of what the last layer gives over all neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.families import PROJECTED, STORED, FollowAxis, VariantPoint
from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.repository import FollowedManifest, LayerTables, NetworkManifest, StoredManifest
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, projected_name, stored_layer_name, stored_name
from gnnserve_worker.generation.families.family import FamilyPlan, PlannedVariant, plan_variant, storages_of
from gnnserve_worker.generation.families.registry import with_fewer_neighbours
from gnnserve_worker.generation.families.relation_tables import States, hidden_states, plan_embeddings, plan_table
from gnnserve_worker.generation.training_set import TrainingSet, means_by_relation
from gnnserve_worker.models.architecture import RelationalLayer, embedding_key, layer_tensors
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.models.tail import tail_of
from gnnserve_worker.opening.loaded import CORRECTION

_FOLLOWING = replace(STORED, follows=FollowAxis.CHANGES)
_STORED_GRAPH = replace(STORED, follows=FollowAxis.NOTHING)


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
    spec: GNNServiceSpec, network: NetworkManifest, layers: Sequence[RelationalLayer], subject: TrainingSet,
    states: States, ends: Collection[int] = (),
) -> FamilyPlan:  # fmt: skip
    """Projected variants, those of stored layers, and each of them with fewer neighbours; from each storage. `ends`:
    places of the types at the ends of links; empty: nodes of the first type are classified."""
    graph, storages = subject.schema, storages_of(spec)
    tables, variants = [], []
    for storage in storages:
        name = stored_name("projected", storage)
        tables.append(plan_table(name, storage, graph, layers[0], states, is_last=len(layers) == 1 and not ends))
        projected = _variant(projected_name(storage), PROJECTED, name, network, layers, 0, storage)
        variants += [projected, *with_fewer_neighbours(spec.variants, projected)]
    products = stored_name("projected", Storage.FLOAT32)
    if 1 in spec.variants.stored and Storage.FLOAT32 not in storages:
        # What rows of the stored layer are made of where the graph changes.
        tables.append(plan_table(products, Storage.FLOAT32, graph, layers[0], states, is_last=False))
    hidden, deepest = states, len(layers) - 1 if ends else max(spec.variants.stored, default=0)
    means = [means_by_relation(subject.data, one) for one in subject.data.relations if layers[0].heads is None]
    for stored in range(1, deepest + 1):
        hidden = hidden_states(subject.data, means, layers[stored - 1], hidden)
        for storage in storages if stored in spec.variants.stored else ():
            name = stored_layer_name(stored, storage)
            is_last = stored == len(layers) - 1 and not ends
            tables.append(plan_table(name, storage, graph, layers[stored], hidden, is_last=is_last))
            one = _variant(name, _STORED_GRAPH if stored > 1 else _FOLLOWING, name, network, layers, stored, storage)
            one = one if stored > 1 else _following(one, network, layers[stored], products)
            variants += [one, *with_fewer_neighbours(spec.variants, one)]
    if spec.model.relation_fanouts:
        own = fanouts_by_relation(spec.model, graph)
        variants = [_by_relation(one, own) for one in variants]
    if ends:
        embeddings = hidden_states(subject.data, means, layers[-1], hidden, is_last=True)
        names = {storage: stored_layer_name(len(layers), storage) for storage in storages}
        tables += [plan_embeddings(name, storage, graph, embeddings, ends) for storage, name in names.items()]
        variants += [_of_rows(name, network, len(layers), storage) for storage, name in names.items()]
    return FamilyPlan(tables=tables, variants=variants)


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


def _variant(
    name: str, point: VariantPoint, table: str, network: NetworkManifest, layers: Sequence[RelationalLayer],
    stored: int, storage: Storage,
) -> PlannedVariant:  # fmt: skip
    """The network behind so many stored layers, over the products of the next one."""
    tail = tail_of(network, stored)
    tensors: Tensors = {}
    for number, layer in enumerate(layers[stored:]):
        # Of the layer in the table biases alone are left, where what is summed comes before them.
        left = RelationalLayer({}, {}, layer.biases) if number == 0 else layer
        tensors |= layer_tensors(number, left) if number or layer.heads is not None else {}
    return plan_variant(
        point, name, table, layers[stored].columns, tail, storage, tensors,
        stored=StoredManifest(layer=stored) if stored else None,
        compute="float32" if layers[stored].heads is not None else preferred_compute(storage),
    )  # fmt: skip


def _of_rows(name: str, network: NetworkManifest, layers: int, storage: Storage) -> PlannedVariant:
    """What gives the rows of its table as they are, and draws no neighbours. `layers`: of the whole network."""
    rows = msgspec.structs.replace(network, fanouts=(0,), attention=None)
    stored = StoredManifest(layer=layers)
    return plan_variant(_STORED_GRAPH, name, name, network.classes, rows, storage, {}, stored=stored, compute="float32")


def _following(
    variant: PlannedVariant, network: NetworkManifest, layer: RelationalLayer, products: str
) -> PlannedVariant:
    """The same with what rows of its table are made of where the graph changes: the first layer's products, in this
    table, and the weights of `layer`, whose products the rows are."""
    kept = {f"{CORRECTION}{key}": tensor for key, tensor in layer_tensors(1, layer).items()}
    followed = FollowedManifest(network, (LayerTables(products),))
    manifest = msgspec.structs.replace(variant.manifest, stored=StoredManifest(layer=1, followed=followed))
    return PlannedVariant(manifest, variant.factor, {**(variant.tensors or {}), **kept})
