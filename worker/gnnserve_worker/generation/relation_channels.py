"""Pruning of hidden channels of networks over relations: what `channels.py` does of those over one list.

All types have states of one width behind a layer, as its kernels sum what a node reads by all relations. Which channels
are kept is chosen for each type: the weights of a relation lose rows of the channels of its source type, and columns of
those of its target type.

A layer is taken as its matrices, whatever architecture they are of, so that what an encoder or a basis contributes is
in them already, and embeddings that nodes of a type have in place of features keep their width. What a layer adds up
for one type is fitted together, by least squares, over all that it reads by relations and of the node itself. A layer
that attends has two parts: what is summed, fitted over means in place of the sums by attention, and what scores a
row as a neighbour and as a reader, each fitted over the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.channels import choose
from gnnserve_worker.generation.families.relation_tables import States, hidden_states
from gnnserve_worker.generation.moments import SumMoments, in_chunks, sample_nodes
from gnnserve_worker.generation.training_set import TrainingSet, means_by_relation, visible_nodes
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.models.architecture import RelationalLayer
from gnnserve_worker.progress import Progress, ProgressListener


def narrow_relations(
    layers: Sequence[RelationalLayer], hidden: int, data: GraphData, states: States, nodes: Sequence[np.ndarray],
    kinds: Collection[int],
) -> list[RelationalLayer]:  # fmt: skip
    """The network with `hidden` channels in each hidden layer; of one that attends every head has as many.

    `data`: the graph as training may see it. `states`: what the first layer reads of each type. `nodes`: by type, those
    (positions, int64) over which channels are chosen and layers fitted. `kinds`: places of the types whose outputs are
    wanted.
    """
    means = [means_by_relation(data, one) for one in data.relations]
    read: list[States] = [states]
    for layer in layers[:-1]:
        read.append(hidden_states(data, means, layer, read[-1]))
    left = list(layers)
    for number in reversed(range(1, len(layers))):
        before, layer = left[number - 1], left[number]
        groups = 1 if before.heads is None else before.heads.heads
        sums = measured_sums(layer, data, means, read[number], nodes, kinds)
        kinds = {one.kind for each in sums for one in each.reads}
        kept = [choose(gram, hidden, groups) for gram in grams_of(sums, [before.outputs] * len(data.types))]
        left[number] = fitted(layer, sums, kept, data)
        left[number - 1] = _with_outputs(before, kept, hidden // groups, data)
    return left


def narrow_relations_aloud(
    model: Model, layers: Sequence[RelationalLayer], factor: int, subject: TrainingSet, states: States, name: str,
    progress: ProgressListener,
) -> list[RelationalLayer]:  # fmt: skip
    """The same of a network of the model, over the nodes that training may see, a sample where they are many."""
    stage, data = f"prune channels of {name}", subject.data
    progress(Progress(stage, 0, 1))
    hidden = model.with_fewer_channels(factor).hidden
    left = narrow_relations(
        layers, hidden, as_seen(subject), states, nodes_seen(model, subject),
        subject.problem.answered_types(data.schema),
    )  # fmt: skip
    progress(Progress(stage, 1, 1, f"{hidden:,} of {model.hidden:,} in each hidden layer"))
    return left


def as_seen(subject: TrainingSet) -> GraphData:
    """The graph as training may see it."""
    return replace(subject.data, relations=tuple(subject.visible))


def nodes_seen(model: Model, subject: TrainingSet) -> list[np.ndarray]:
    """By type, nodes (positions, int64) that training may see, a sample where they are many."""
    data, training = subject.data, model.training
    target = visible_nodes(data.target.nodes, data.splits, training.scope)
    visible = [target, *(np.arange(one.nodes) for one in data.types[1:])]
    return [sample_nodes(nodes, training.seed) for nodes in visible]


# --- what a layer adds up


@dataclass(frozen=True, slots=True)
class _MultipliedRows:
    """Rows that are multiplied by a matrix of a layer."""

    part: str
    """`relations` or `own` of a `RelationalLayer`."""
    place: int
    kind: int
    """Place of the type whose states they are made of."""
    rows: Callable[[np.ndarray], np.ndarray]
    """States of some nodes (positions, int64), float32 [nodes, channels]."""

    def matrix(self, layer: RelationalLayer) -> np.ndarray:
        matrices: Mapping[int, np.ndarray] = getattr(layer, self.part)
        return matrices[self.place]


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sums of products of some rows, of one node each."""

    reads: Sequence[_MultipliedRows]
    columns: slice
    """Columns of the matrices that are added up."""
    bias: int | None
    """The type whose bias takes what dropped channels come to on average; None: there is no bias."""
    nodes: np.ndarray
    """int64"""

    def measured(self, layer: RelationalLayer) -> MeasuredSum:
        """The moments of its rows, centred where there is a bias."""
        matrices = [one.matrix(layer)[:, self.columns] for one in self.reads]
        blocks = (np.concatenate([one.rows(nodes) for one in self.reads], axis=1) for nodes in in_chunks(self.nodes))
        measured = SumMoments.of(matrices, blocks, has_bias=self.bias is not None)
        return MeasuredSum(self.reads, self.columns, self.bias, measured)


@dataclass(frozen=True, slots=True)
class MeasuredSum:
    """A `_Sum` with the moments of its rows."""

    reads: Sequence[_MultipliedRows]
    columns: slice
    bias: int | None
    measured: SumMoments

    def gram(self, kind: int, width: int) -> np.ndarray:
        """As `ranking.gram_of`, of the columns of a type: float64 [width, width]."""
        return self.measured.gram([place for place, one in enumerate(self.reads) if one.kind == kind], width)

    def fitted(self, kept: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """Weights of each read for the columns that are kept of its type, and what is added to the bias."""
        return self.measured.fitted([kept[one.kind] for one in self.reads])


def measured_sums(
    layer: RelationalLayer, data: GraphData, means: Sequence[sp.csr_array], states: States,
    nodes: Sequence[np.ndarray], kinds: Collection[int],
) -> list[MeasuredSum]:  # fmt: skip
    """All that a layer adds up for nodes of these types, measured over `nodes`, by type. `means`: by relation, as
    `means_by_relation`."""
    return [one.measured(layer) for one in _sums_of(layer, data, means, states, nodes, kinds)]


def grams_of(sums: Sequence[MeasuredSum], widths: Sequence[int]) -> list[np.ndarray]:
    """As `ranking.gram_of`, of the columns of each type, of which there are so many."""
    return [sum((one.gram(kind, width) for one in sums), np.zeros((width, width))) for kind, width in enumerate(widths)]


def _sums_of(
    layer: RelationalLayer, data: GraphData, means: Sequence[sp.csr_array], states: States,
    nodes: Sequence[np.ndarray], kinds: Collection[int],
) -> Iterator[_Sum]:  # fmt: skip
    """All that a layer adds up for nodes of these types."""
    graph = data.schema
    sources = [(place, graph.place_of(one.source)) for place, one in enumerate(graph.relations)]
    for kind in sorted({*kinds} & layer.biases.keys()):
        name = graph.types[kind].name
        by_relation = [
            _MultipliedRows("relations", place, source, _means_of(means[place], states, source))
            for place, source in sources
            if graph.relations[place].target == name and place in layer.relations
        ]
        itself = [_MultipliedRows("own", kind, kind, _rows_of(states, kind))] if kind in layer.own else []
        if layer.heads is None:
            yield _Sum([*by_relation, *itself], slice(None), kind, nodes[kind])
            continue
        inner = layer.heads.heads * layer.heads.columns
        yield _Sum(by_relation, slice(inner), kind, nodes[kind])
        yield _Sum(itself, slice(None), None, nodes[kind])
        for one in by_relation:
            alone = replace(one, rows=_rows_of(states, one.kind))
            yield _Sum([alone], slice(inner, None), None, nodes[one.kind])


def _means_of(means: sp.csr_array, states: States, kind: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda nodes: _dense(means[nodes] @ states[kind])


def _rows_of(states: States, kind: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda nodes: _dense(states[kind][nodes])


def _dense(rows: Features) -> np.ndarray:
    return np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=np.float32)


# --- layers with fewer channels


def fitted(
    layer: RelationalLayer, sums: Sequence[MeasuredSum], kept: Sequence[np.ndarray], data: GraphData
) -> RelationalLayer:
    """The layer over the columns (ids) that are kept of each type. Matrices that no wanted output is made of are not
    fitted."""
    graph = data.schema
    sources = [graph.place_of(one.source) for one in graph.relations]
    relations = {place: matrix[kept[sources[place]]] for place, matrix in layer.relations.items()}
    own = {kind: matrix[kept[kind]] for kind, matrix in layer.own.items()}
    biases = dict(layer.biases)
    for one in sums:
        matrices, added = one.fitted(kept)
        for read, matrix in zip(one.reads, matrices, strict=True):
            (relations if read.part == "relations" else own)[read.place][:, one.columns] = matrix
        if one.bias is not None:
            averaged = added if layer.heads is None or not layer.heads.averages else _averaged(added, layer.heads.heads)
            biases[one.bias] = biases[one.bias] + averaged
    return replace(layer, relations=relations, own=own, biases=biases)


def _averaged(added: np.ndarray, heads: int) -> np.ndarray:
    averaged: np.ndarray = added.reshape(heads, -1).mean(axis=0)
    return averaged


def _with_outputs(layer: RelationalLayer, kept: Sequence[np.ndarray], columns: int, data: GraphData) -> RelationalLayer:
    """The layer without the channels that are not kept of each type. `columns`: those of a head."""
    graph, heads = data.schema, layer.heads
    targets = [graph.place_of(one.target) for one in graph.relations]

    def of_relation(place: int, rows: np.ndarray) -> np.ndarray:
        channels = kept[targets[place]]
        if heads is not None:  # behind the heads' columns stands what scores a row
            channels = np.concatenate([channels, np.arange(heads.heads * heads.columns, rows.shape[-1])])
        return np.ascontiguousarray(rows[..., channels])

    def of_type(kind: int, rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(rows[..., kept[kind]])

    return RelationalLayer(
        {place: of_relation(place, matrix) for place, matrix in layer.relations.items()},
        layer.own if heads is not None else {kind: of_type(kind, matrix) for kind, matrix in layer.own.items()},
        {kind: of_type(kind, bias) for kind, bias in layer.biases.items()},
        {place: of_relation(place, shift) for place, shift in layer.shifts.items()},
        None if heads is None else replace(heads, columns=columns),
    )
