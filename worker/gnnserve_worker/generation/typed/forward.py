"""What a network over several types computes of a whole graph, in torch: what is trained, and embeddings of all nodes.

Layers are products before they are means, which is the same by linearity; what they are made of is said by the
architecture's object (`models/relational.py`), whose operators torch's tensors have too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from gnnserve_worker.generation.features import Normalized
from gnnserve_worker.generation.networks import Rows, SparseRows, multiply_rows, rows_of, to_torch
from gnnserve_worker.models.relational import (
    Heads,
    RelationalLayer,
    RelationalShape,
    RelationalSpec,
    embedding_key,
)

Weights = Mapping[str, nn.Parameter]


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
    """Means by a relation, as `TypedTrainingSet.means` has them."""
    return SparseRows(to_torch(matrix, device), to_torch(sp.csr_array(matrix.T), device))


def forward(
    spec: RelationalSpec, shape: RelationalShape, weights: Weights, rows: Sequence[Rows | None],
    means: Sequence[SparseRows], dropout: float, kinds: Collection[int],
) -> dict[int, torch.Tensor]:  # fmt: skip
    """What the last layer gives for all nodes of these types, by their places. `dropout` 0: as in serving. Raises
    TypeError where no relation reaches one of them."""
    states: list[Rows | None] = [
        weights[embedding_key(kind.name)] if own is None else own
        for own, kind in zip(rows, shape.graph.types, strict=True)
    ]
    layers = spec.layers(weights, shape)
    for number, layer in enumerate(layers):
        is_last = number == len(layers) - 1
        outputs = _layer(shape, layer, states, means, kinds if is_last else range(len(states)))
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
    shape: RelationalShape, layer: RelationalLayer, states: Sequence[Rows | None], means: Sequence[SparseRows],
    kinds: Collection[int],
) -> list[torch.Tensor | None]:  # fmt: skip
    """The layer's output of these types."""
    graph = shape.graph
    if layer.heads is not None:
        return _attend(shape, layer, layer.heads, states, means, kinds)
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
            _add(outputs, graph.place_of(graph.relations[place].target), multiply_rows(means[place], shifted.T))
        if len(parts) > len(read):
            _add(outputs, kind, parts[-1])
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
