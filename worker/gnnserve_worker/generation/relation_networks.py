"""Networks over relations, in torch: their outputs for a block, the whole graph or what was sampled for a batch.

Layers are products before they are means, which is the same by linearity; what they are made of is said by the
architecture's object (`models/relational.py`), whose operators torch's tensors have too.

GraphSAGE and GAT are here and in `networks.py`, which has the layers over one list of neighbours. Their sums are equal,
but not to the last digit: products and additions come in another order, so that networks that are trained over one list
would become others, and their revisions too. GIN, GCN, SGC and SIGN have no layers over relations. All else is shared:
rows and their products, blocks (`blocks.py`), training (`train.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from gnnserve_worker.generation.learner import numbers_of
from gnnserve_worker.generation.networks import Rows, SparseRows, multiply_rows, rows_of, to_torch
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.training_set import Normalized
from gnnserve_worker.models.relational import (
    Heads,
    RelationalLayer,
    RelationalShape,
    RelationalSpec,
    embedding_key,
)

Weights = Mapping[str, nn.Parameter]


@dataclass(frozen=True, slots=True)
class BlockLayer:
    """Lists that one layer of a network reads in a block."""

    means: Sequence[SparseRows]
    """By relation, [rows of the target with a state behind the layer, rows of the source before it]: averages of what a
    row reads."""
    rows: Sequence[int]
    """By type: rows with a state behind the layer, the first ones of those before it."""


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a graph that a step computes over, which may be all of it."""

    features: Sequence[Rows | None]
    """Rows that the first layer reads, by type; None: embeddings."""
    embedded: Sequence[torch.Tensor | None]
    """Positions of the nodes whose embeddings the first layer reads, int64, by type; None: all nodes, in order, or the
    type has features."""
    layers: Sequence[BlockLayer]
    """Lists of each layer, the first one first."""
    seeds: torch.Tensor
    """Row of each seed among the last layer's outputs of the types that are wanted, which stand type after type."""


class RelationNetwork:
    """The `learner.Network` over relations, its weights drawn by torch's generator."""

    def __init__(
        self, spec: RelationalSpec, shape: RelationalShape, kinds: Collection[int], embedding_bound: float,
        dropout: float, device: torch.device,
    ) -> None:  # fmt: skip
        """`kinds`: places of the types whose nodes have outputs. `embedding_bound`: largest number of an embedding."""
        self._spec, self._shape, self._kinds, self._dropout = spec, shape, kinds, dropout
        self._all: dict[str, nn.Parameter] = drawn_weights(spec, shape, embedding_bound, device)
        embedded = sorted(embedding_keys(shape))
        self.embeddings = [self._all[key] for key in embedded]
        self.weights = [weight for key, weight in self._all.items() if key not in embedded]

    def outputs(self, block: Block, *, trains: bool) -> torch.Tensor:
        dropout = self._dropout if trains else 0.0
        return outputs_of_seeds(self._spec, self._shape, self._all, block, dropout, self._kinds)

    def tensors(self) -> Tensors:
        return numbers_of(self._all)


def drawn_weights(
    spec: RelationalSpec, shape: RelationalShape, embedding_bound: float, device: torch.device
) -> dict[str, nn.Parameter]:
    """Initial weights by the keys of a checkpoint: Glorot and Bengio's uniform ones for matrices, 0 for vectors.
    `embedding_bound`: largest number of an embedding."""
    embedded = embedding_keys(shape)
    return {
        key: nn.Parameter(_drawn(sizes, embedding_bound if key in embedded else None).to(device))
        for key, sizes in spec.shapes(shape).items()
    }


def embedding_keys(shape: RelationalShape) -> set[str]:
    return {embedding_key(shape.graph.types[place].name) for place in shape.embedded()}


def _drawn(sizes: tuple[int, ...], bound: float | None) -> torch.Tensor:
    tensor = torch.zeros(sizes)
    if len(sizes) > 1:
        bound = (6 / (sizes[-2] + sizes[-1])) ** 0.5 if bound is None else bound
        nn.init.uniform_(tensor, -bound, bound)
    return tensor


def rows_of_types(features: Sequence[Normalized | None], device: torch.device) -> list[Rows | None]:
    """Features of each type; None: embeddings."""
    return [
        None if one is None else rows_of(one.features, np.arange(one.features.shape[0]), device) for one in features
    ]


def means_of(matrix: sp.csr_array, device: torch.device) -> SparseRows:
    """Means by a relation: a matrix whose rows average what a row of the target reads."""
    return SparseRows(to_torch(matrix, device), to_torch(sp.csr_array(matrix.T), device))


def outputs_of_seeds(
    spec: RelationalSpec, shape: RelationalShape, weights: Weights, block: Block, dropout: float,
    kinds: Collection[int],
) -> torch.Tensor:  # fmt: skip
    """Outputs of the last layer for the block's seeds, float32 [seeds, outputs]. `kinds`: places of the types of seeds.
    `dropout` 0: as in serving."""
    found = forward(spec, shape, weights, block, dropout, kinds)
    return torch.cat([found[kind] for kind in sorted(found)])[block.seeds]


def forward(
    spec: RelationalSpec, shape: RelationalShape, weights: Weights, block: Block, dropout: float,
    kinds: Collection[int],
) -> dict[int, torch.Tensor]:  # fmt: skip
    """Outputs of the last layer for its rows of these types, by their places. Raises TypeError where no relation
    reaches one of them."""
    states: list[Rows | None] = [
        _embeddings(weights[embedding_key(kind.name)], nodes) if own is None else own
        for own, nodes, kind in zip(block.features, block.embedded, shape.graph.types, strict=True)
    ]
    layers = spec.layers(weights, shape)
    for number, layer in enumerate(layers):
        is_last = number == len(layers) - 1
        outputs = _layer(shape, layer, states, block.layers[number], kinds if is_last else range(len(states)))
        if not is_last:
            outputs = [
                None if one is None else nn.functional.dropout(one.relu(), dropout, training=dropout > 0)
                for one in outputs
            ]
        states = [*outputs]
    found = {}
    for kind in kinds:
        state = states[kind]
        if not isinstance(state, torch.Tensor):
            raise TypeError(f"no relation reaches nodes of type {shape.graph.types[kind].name}")
        found[kind] = state
    return found


def _layer(
    shape: RelationalShape, layer: RelationalLayer, states: Sequence[Rows | None], lists: BlockLayer,
    kinds: Collection[int],
) -> list[torch.Tensor | None]:  # fmt: skip
    """The layer's output of these types."""
    graph = shape.graph
    if layer.heads is not None:
        return _attend(shape, layer, layer.heads, states, lists.means, kinds)
    outputs: list[torch.Tensor | None] = [None] * len(graph.types)
    wanted = [kind for kind in layer.biases if kind in kinds]
    for kind, state in enumerate(states):
        if state is None:
            continue
        name = graph.types[kind].name
        read = [
            place
            for place, relation in enumerate(graph.relations)
            if relation.source == name and place in layer.relations and graph.place_of(relation.target) in wanted
        ]
        matrices = [layer.relations[place] for place in read]
        if kind in wanted and kind in layer.own:
            matrices.append(layer.own[kind])
        if not matrices:
            continue
        # One product for all that read a type: its rows may be wide and sparse.
        parts = list(torch.split(multiply_rows(state, torch.cat(matrices, dim=1).T), layer.outputs, dim=1))
        for place, part in zip(read, parts, strict=False):
            shifted = part + layer.shifts[place] if place in layer.shifts else part
            _add(outputs, graph.place_of(graph.relations[place].target), multiply_rows(lists.means[place], shifted.T))
        if len(parts) > len(read):
            _add(outputs, kind, parts[-1][: lists.rows[kind]])
    return [None if one is None else one + layer.biases[kind] for kind, one in enumerate(outputs)]


def _attend(
    shape: RelationalShape, layer: RelationalLayer, heads: Heads, states: Sequence[Rows | None],
    means: Sequence[SparseRows], kinds: Collection[int],
) -> list[torch.Tensor | None]:  # fmt: skip
    """The same of a layer that attends."""
    graph, inner = shape.graph, heads.heads * heads.columns
    outputs: list[torch.Tensor | None] = [None] * len(graph.types)
    slots = [0] * len(graph.types)
    own = {
        kind: multiply_rows(state, matrix.T)
        for kind, matrix in layer.own.items()
        if kind in kinds and (state := states[kind]) is not None
    }
    for place, relation in enumerate(graph.relations):
        kind, state = graph.place_of(relation.target), states[graph.place_of(relation.source)]
        slot, slots[kind] = slots[kind], slots[kind] + 1
        if place not in layer.relations or kind not in own or state is None:
            continue
        lists = means[place].rows
        senders, counts = lists.col_indices(), lists.crow_indices().diff()
        readers = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
        product = multiply_rows(state, layer.relations[place].T)
        scores = product[senders, inner:] + own[kind][readers, slot * heads.heads : (slot + 1) * heads.heads]
        scores = nn.functional.leaky_relu(scores, heads.negative_slope)
        shares = _softmax(scores, readers, len(counts))
        read = product[senders, :inner].view(-1, heads.heads, heads.columns) * shares[:, :, None]
        summed = read.new_zeros((len(counts), heads.heads, heads.columns)).index_add(0, readers, read)
        _add(outputs, kind, summed.mean(dim=1) if heads.averages else summed.flatten(1))
    return [None if one is None else one + layer.biases[kind] for kind, one in enumerate(outputs)]


def _embeddings(weight: torch.Tensor, nodes: torch.Tensor | None) -> torch.Tensor:
    """Embeddings of these nodes, with sparse gradients; of all nodes the tensor itself."""
    return weight if nodes is None else nn.functional.embedding(nodes, weight, sparse=True)


def _softmax(scores: torch.Tensor, readers: torch.Tensor, count: int) -> torch.Tensor:
    """Softmax of the scores over each reader's neighbours, by head: float32 [edges, heads]."""
    places = readers[:, None].expand_as(scores)
    largest = (
        scores.detach()
        .new_zeros((count, scores.shape[1]))
        .scatter_reduce(0, places, scores.detach(), "amax", include_self=False)
    )
    exponentials = (scores - largest[readers]).exp()
    totals = exponentials.new_zeros(largest.shape).index_add(0, readers, exponentials)
    return exponentials / totals[readers]


def _add(outputs: list[torch.Tensor | None], kind: int, added: torch.Tensor) -> None:
    before = outputs[kind]
    outputs[kind] = added if before is None else before + added
