"""Tables of networks over several types: products of each relation with the nodes that it reads, and of each type's own
weights with its nodes; and hidden states over all neighbours, of which later tables are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from gnnserve_api.typed import TypedGraphManifest, TypedTableManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.families.family import PlannedTable
from gnnserve_worker.generation.typed.subject import TypedTrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.typed.architecture import RelationalLayer
from gnnserve_worker.tables.table import projected_blocks

_NODES_AT_ONCE = 1 << 16

States = Sequence[Features]
"""What a layer reads of the nodes of each type, float32 [nodes, columns]."""


def plan_table(
    name: str, storage: Storage, graph: TypedGraphManifest, layer: RelationalLayer, states: States, *,
    is_last: bool,
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
        layer.outputs,
        rows=partial(_relation_blocks, graph, layer, states, wanted),
        own=partial(_own_blocks, graph, layer, states, kinds),
        typed=TypedTableManifest(sum(sizes), tuple(first_rows), sum(graph.types[kind].nodes for kind in kinds)),
    )


def _relation_blocks(
    graph: TypedGraphManifest, layer: RelationalLayer, states: States, wanted: Sequence[int]
) -> Iterator[np.ndarray]:
    for place in wanted:
        source = graph.place_of(graph.relations[place].source)
        yield from _products(states[source], layer.relations.get(place), layer.shifts.get(place), layer.outputs)


def _own_blocks(
    graph: TypedGraphManifest, layer: RelationalLayer, states: States, kinds: Sequence[int]
) -> Iterator[np.ndarray]:
    for kind in kinds:
        yield from _products(states[kind], layer.own.get(kind), layer.biases.get(kind), layer.outputs)


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
        blocks = projected_blocks(state, np.ascontiguousarray(matrix))
    for block in blocks:
        yield block if shift is None else block + shift


def hidden_states(subject: TypedTrainingSet, layer: RelationalLayer, states: States) -> list[np.ndarray]:
    """The layer's output of all nodes, over all of their neighbours, after its ReLU; 0 for types that it gives nothing
    for."""
    graph = subject.typed
    outputs = []
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
                summed += subject.means[place] @ (product + layer.shifts.get(place, np.float32(0)))
        outputs.append(np.maximum(summed + layer.biases[kind], 0))
    return outputs
