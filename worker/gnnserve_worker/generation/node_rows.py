"""Rows that networks over one row of a node read, and what these are trained on: nodes that read none.

Over one list of each node a row has the node's features, or these propagated (`training_set.model_rows`). Where nodes
have lists by relation, a row has a node's own features, and for each hop those of each type, as walks of so many steps
meet them: means of what each relation reads, and of these over the relations. Types that are asked about have columns
of their own, and zeros in those of the others, so that one perceptron is one matrix for each type, and behind these the
same for all. Where a type has no features, the embeddings that the model has learnt of its nodes stand in for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_worker.generation.training_set import (
    ModelRows,
    NormalizedFeatures,
    TrainingSet,
    beside,
    means_by_relation,
    model_rows,
    moments_of,
    scale_of,
    visible_nodes,
    with_rows,
)
from gnnserve_worker.graph.relation_lists import parted_lists
from gnnserve_worker.graph.store import Features, Graph, GraphData, NodeType, Relation
from gnnserve_worker.repository.revision_files import RowLayout
from gnnserve_worker.tasks.generated import Visible

Embedded = Mapping[int, np.ndarray]
"""Embeddings of nodes, float32 [nodes, columns], by the place of their type."""


@dataclass(frozen=True, slots=True)
class NodeRows:
    data: TrainingSet
    """The nodes that have rows, as those of one type."""
    nodes: np.ndarray
    """Ids of the nodes whose outputs may be learnt, int64."""
    types: int
    """How many types of the graph have rows, the first ones."""
    rows_of: Callable[[Model, Embedded], ModelRows]
    """What a network over one row reads. `Embedded`: of types without features. Raises InputError where it reads
    nothing."""
    features: Sequence[Features]
    """Scaled features of each type of the graph, which rows are made of; of no column where it has none."""


def node_rows(data: TrainingSet, scope: Scope, layout: RowLayout) -> NodeRows:
    """`layout`: how tables have one row of each node."""
    return _BY_LAYOUT[layout](data, scope)


def taught_over(data: TrainingSet, decoder: Mapping[str, np.ndarray]) -> Visible:
    """The lists that a teacher computes over: those that training may see, without what is hidden while variants are
    judged, or it would tell the answers. `decoder`: weights of what reads its outputs."""
    judged = data.problem.judge(decoder).graph
    if judged is None:
        return data.visible
    relations = zip(data.visible, parted_lists(judged), strict=True)
    return [replace(one, lists=lists) for one, lists in relations]


def _of_one_list(data: TrainingSet, scope: Scope) -> NodeRows:
    nodes = visible_nodes(data.graph.nodes, data.splits, scope)
    own = [data.normalized.features]
    return NodeRows(data, nodes, 1, lambda model, _: model_rows(model, data, data.normalized), own)


def _of_lists(data: TrainingSet, scope: Scope) -> NodeRows:
    schema, answered = data.schema, data.problem.answered_types(data.schema)
    types = 1 + max(answered)
    alone = _nodes_alone(data, schema.first_nodes[types])
    of_types = [np.arange(schema.first_nodes[kind], schema.first_nodes[kind + 1]) for kind in answered]
    nodes = np.concatenate(of_types) if types > 1 else visible_nodes(schema.target.nodes, data.splits, scope)

    def rows_of(model: Model, embedded: Embedded) -> ModelRows:
        found = [_rows_of_type(model, data, embedded, kind, types) for kind in range(types)]
        for kind in answered:
            if not found[kind].served.shape[1]:
                raise InputError(
                    "spec.variants.oneRow",
                    f"nodes of type {schema.types[kind].name!r} have no features, nor have those that they read within "
                    f"{model.hops} hops",
                    "leave it out, or give more hops",
                )
        moments = {key: moment for one in found for key, moment in one.moments.items()}
        return ModelRows(_diagonal([one.served for one in found]), _diagonal([one.trained for one in found]), moments)

    read = zip(data.data.types, data.features, strict=True)
    features = [np.zeros((kind.nodes, 0), np.float32) if own is None else own.features for kind, own in read]
    return NodeRows(alone, nodes, types, rows_of, features)


_BY_LAYOUT: Mapping[RowLayout, Callable[[TrainingSet, Scope], NodeRows]] = {
    RowLayout.BY_NODE: _of_one_list,
    RowLayout.BY_TYPE: _of_lists,
}


def _nodes_alone(data: TrainingSet, nodes: int) -> TrainingSet:
    """The first nodes as those of one type, which read none."""
    none = Graph(np.zeros(nodes + 1, np.int64), np.zeros(0, np.int32))
    relations = (Relation("", "", "", none),)
    alone: GraphData = replace(data.data, types=(NodeType("", nodes, None),), relations=relations)
    return replace(data, data=alone, visible=relations, features=(None,))


def _rows_of_type(model: Model, data: TrainingSet, embedded: Embedded, kind: int, types: int) -> ModelRows:
    """Rows of the nodes of a type. `types`: how many have rows."""
    hops, name = model.network(data.classes).hops or 0, data.data.types[kind].name
    scaled = {
        each.name: NormalizedFeatures(embedded[place], Normalization.DISABLED) if place in embedded else own
        for place, (each, own) in enumerate(zip(data.data.types, data.features, strict=True))
    }
    known = {each: own for each, own in scaled.items() if own is not None}
    origins, served = _walks(data, known, data.data.relations, name, hops)
    trained = served
    if data.visible is not data.data.relations:
        # Nodes of other types than the first belong to no part of the split.
        _, seen = _walks(data, known, data.visible, name, hops)
        trained = [with_rows(whole, part, data.splits.train) for whole, part in zip(served, seen, strict=True)]
    if not origins:
        none = np.zeros((data.data.types[kind].nodes, 0), np.float32)
        return ModelRows(none, none)
    own = 1 if name in known else 0
    judged = data.splits.train if types == 1 else np.arange(data.data.types[kind].nodes)
    scales = [scale_of(one.method, block, judged) for one, block in zip(origins[own:], trained[own:], strict=True)]
    served, trained = (
        [*blocks[:own], *(scale.apply(block) for scale, block in zip(scales, blocks[own:], strict=True))]
        for blocks in (served, trained)
    )
    return ModelRows(beside(served), beside(trained), moments_of(scales, kind, own))


def _walks(
    data: TrainingSet, scaled: Mapping[str, NormalizedFeatures], relations: Sequence[Relation], target: str, hops: int
) -> tuple[list[NormalizedFeatures], list[Features]]:
    """What a type meets, by hop and by the type that it is met of: whose features each block is made of, and the
    blocks. `scaled`: features by the name of their type."""
    means = [(one, means_by_relation(data.data, one)) for one in relations] if hops else []
    met: dict[str, dict[str, Features]] = {name: {name: own.features} for name, own in scaled.items()}
    origins, blocks = [scaled[target]] if target in scaled else [], [*met.get(target, {}).values()]
    for _ in range(hops):
        read: dict[str, dict[str, list[Features]]] = {}
        for relation, mean in means:
            for origin, rows in met.get(relation.source, {}).items():
                read.setdefault(relation.target, {}).setdefault(origin, []).append(mean @ rows)
        met = {
            kind: {origin: _mean_of(parts) for origin, parts in by_origin.items()} for kind, by_origin in read.items()
        }
        for name, own in scaled.items():
            if name in met.get(target, {}):
                origins.append(own)
                blocks.append(met[target][name])
    return origins, blocks


def _mean_of(parts: Sequence[Features]) -> Features:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    mean = total / len(parts)
    return mean if isinstance(mean, np.ndarray) else sp.csr_array(mean)


def _diagonal(blocks: Sequence[Features]) -> Features:
    """Rows of one block behind those of another, each with columns of its own."""
    if len(blocks) == 1:
        return blocks[0]
    parts, first = [sp.csr_array(block) for block in blocks], 0
    columns, starts = [], [np.zeros(1, np.int64)]
    for part in parts:
        columns.append(part.indices.astype(np.int32) + np.int32(first))
        starts.append(part.indptr[1:].astype(np.int64) + starts[-1][-1])
        first += part.shape[1]
    numbers = np.concatenate([part.data for part in parts]).astype(np.float32)
    shape = (sum(part.shape[0] for part in parts), first)
    return sp.csr_array((numbers, np.concatenate(columns), np.concatenate(starts)), shape=shape)
