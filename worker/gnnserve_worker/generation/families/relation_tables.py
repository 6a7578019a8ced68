"""Tables of networks over several types: products of each relation with the nodes that it reads, and of each type's own
weights with its nodes; and hidden states over all neighbours, of which later tables are made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import scipy.sparse as sp

from gnnserve_api.files.graph_schema import GraphSchema, RelationRowPlaces
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.families.family import MadeBy, PlannedTable
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.models.architecture import Heads, RelationalLayer
from gnnserve_worker.tables.table import projected_blocks

_NODES_AT_ONCE = 1 << 16

States = Sequence[Features]
"""What a layer reads of the nodes of each type, float32 [nodes, columns]."""


def plan_table(
    name: str, storage: Storage, graph: GraphSchema, layer: RelationalLayer, states: States, *,
    is_last: bool, made_by: MadeBy | None = None,
) -> PlannedTable:  # fmt: skip
    """The products of a layer. `is_last`: only nodes of the first type read it, so that it has rows for these alone."""
    target = graph.types[0].name
    wanted = [place for place, relation in enumerate(graph.relations) if not is_last or relation.target == target]
    sizes = [graph.types[graph.place_of(graph.relations[place].source)].nodes for place in wanted]
    first_rows: list[int | None] = [None] * len(graph.relations)
    for place, first in zip(wanted, np.cumsum([0, *sizes]).tolist(), strict=False):
        first_rows[place] = first
    kinds = [0] if is_last else [*range(len(graph.types))]
    return PlannedTable(
        name,
        "projected",
        storage,
        layer.columns,
        rows=partial(_relation_blocks, graph, layer, states, wanted),
        own=partial(_own_blocks, graph, layer, states, kinds),
        made_by=made_by,
        by_relation=RelationRowPlaces(sum(sizes), tuple(first_rows), sum(graph.types[kind].nodes for kind in kinds)),
    )


def plan_outputs(
    name: str, storage: Storage, graph: GraphSchema, outputs: States, ends: Collection[int]
) -> PlannedTable:
    """A row for each node, which is read of the node itself: what the last layer gives. `ends`: places of the types
    that it is wanted of; others have zeros. Empty: the first type, and there are no others."""
    answered = outputs if ends else outputs[:1]
    return PlannedTable(
        name,
        "projected",
        storage,
        int(outputs[0].shape[1]),
        rows=lambda: iter(()),
        own=partial(_output_blocks, answered, ends or (0,)),
        by_relation=RelationRowPlaces(0, (None,) * len(graph.relations), graph.first_nodes[len(answered)]),
    )


def _output_blocks(outputs: States, kinds: Collection[int]) -> Iterator[np.ndarray]:
    for kind, rows in enumerate(outputs):
        nodes, columns = rows.shape
        for start in range(0, nodes, _NODES_AT_ONCE):
            end = min(start + _NODES_AT_ONCE, nodes)
            yield np.asarray(rows[start:end]) if kind in kinds else np.zeros((end - start, columns), np.float32)


def _relation_blocks(
    graph: GraphSchema, layer: RelationalLayer, states: States, wanted: Sequence[int]
) -> Iterator[np.ndarray]:
    for place in wanted:
        source = graph.place_of(graph.relations[place].source)
        yield from _products(states[source], layer.relations.get(place), layer.shifts.get(place), layer.columns)


def _own_blocks(
    graph: GraphSchema, layer: RelationalLayer, states: States, kinds: Sequence[int]
) -> Iterator[np.ndarray]:
    for kind in kinds:
        bias = layer.biases.get(kind) if layer.heads is None else None
        yield from _products(states[kind], layer.own.get(kind), bias, layer.columns)


def _products(
    state: Features, matrix: np.ndarray | None, shift: np.ndarray | None, outputs: int
) -> Iterator[np.ndarray]:
    """The rows' product, and what is added to each; without a matrix that alone."""
    blocks: Iterable[np.ndarray]
    if matrix is None:
        nodes = state.shape[0]
        starts = range(0, nodes, _NODES_AT_ONCE)
        blocks = (np.zeros((min(_NODES_AT_ONCE, nodes - start), outputs), np.float32) for start in starts)
    else:
        blocks = projected_blocks(state, np.pad(matrix, ((0, 0), (0, outputs - matrix.shape[1]))))
    for block in blocks:
        yield block if shift is None else block + shift


def hidden_states(
    data: GraphData, means: Sequence[sp.csr_array], layer: RelationalLayer, states: States, *, is_last: bool = False
) -> list[np.ndarray]:
    """The layer's output of all nodes, over all of their neighbours, after its ReLU, which the last one has not; 0 for
    types that it gives nothing for. `means`: by relation, as `means_by_relation`; a layer that attends reads none."""
    graph = data.schema
    outputs = []
    if layer.heads is not None:
        return _attended_states(data, layer, layer.heads, states, is_last=is_last)
    for kind, described in enumerate(graph.types):
        if kind not in layer.biases:
            outputs.append(np.zeros((described.nodes, layer.outputs), np.float32))
            continue
        own = layer.own.get(kind)
        summed = np.zeros((described.nodes, layer.outputs), np.float32)
        if own is not None:
            summed += np.asarray(states[kind] @ own, dtype=np.float32)
        for place, relation in enumerate(graph.relations):
            matrix = layer.relations.get(place)
            if relation.target == described.name and matrix is not None:
                product = np.asarray(states[graph.place_of(relation.source)] @ matrix, dtype=np.float32)
                summed += means[place] @ (product + layer.shifts.get(place, np.float32(0)))
        outputs.append(_ended(summed + layer.biases[kind], is_last=is_last))
    return outputs


def _attended_states(
    data: GraphData, layer: RelationalLayer, heads: Heads, states: States, *, is_last: bool
) -> list[np.ndarray]:
    """The same of a layer that attends."""
    graph, inner = data.schema, heads.heads * heads.columns
    outputs = [np.zeros((kind.nodes, heads.outputs), np.float32) for kind in graph.types]
    slots = [0] * len(graph.types)
    for place, relation in enumerate(graph.relations):
        kind = graph.place_of(relation.target)
        slot, slots[kind] = slots[kind], slots[kind] + 1
        matrix, lists = layer.relations.get(place), data.relations[place].lists
        if matrix is None or not lists.edges:
            continue
        product = np.asarray(states[graph.place_of(relation.source)] @ matrix, dtype=np.float32)
        own = layer.own[kind][:, slot * heads.heads : (slot + 1) * heads.heads]
        readers = np.asarray(states[kind] @ own, dtype=np.float32)
        scores = product[lists.indices, inner:] + readers[lists.targets()]
        scores = np.where(scores > 0, scores, scores * np.float32(heads.negative_slope))
        is_read = np.diff(lists.indptr) > 0
        begins, counts = lists.indptr[:-1][is_read], np.diff(lists.indptr)[is_read]
        exponentials = np.exp(scores - np.repeat(np.maximum.reduceat(scores, begins), counts, axis=0))
        shares = exponentials / np.repeat(np.add.reduceat(exponentials, begins), counts, axis=0)
        read = product[lists.indices, :inner].reshape(-1, heads.heads, heads.columns) * shares[:, :, None]
        summed = np.add.reduceat(read, begins)
        outputs[kind][is_read] += summed.mean(axis=1) if heads.averages else summed.reshape(len(begins), inner)
    zero = np.float32(0)
    return [_ended(one + layer.biases.get(kind, zero), is_last=is_last) for kind, one in enumerate(outputs)]


def _ended(sums: np.ndarray, *, is_last: bool) -> np.ndarray:
    found: np.ndarray = sums if is_last else np.maximum(sums, 0)
    return found
