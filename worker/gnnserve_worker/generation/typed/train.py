"""Training over a graph of several types: one step an epoch, over the whole neighbourhood of all training nodes.

The graphs of the literature have a few hundred labelled nodes whose neighbourhoods overlap, so that batches would
compute most nodes again and again. Layers are products before they are means, which is the same by linearity; what
they are made of is said by the architecture's object (`models/typed/`), whose operators torch's tensors have too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from gnnserve_api.spec.model import Model
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.networks import CPU, Rows, SparseRows, multiply_rows, rows_of, to_torch
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import label_loss
from gnnserve_worker.generation.typed.subject import TypedTrainingSet
from gnnserve_worker.models.typed.architecture import (
    Heads,
    RelationalLayer,
    TypedArchitectureSpec,
    TypedShape,
    embedding_key,
)
from gnnserve_worker.progress import Progress, ProgressListener

EMBEDDING_BOUND, EMBEDDING_RATE = 0.01, 0.1
"""Largest initial number of an embedding, and the share of the learning rate that embeddings learn at. They are many
and few labels reach each: as large and quick as weights they learn training nodes by heart."""
_REPORTED_EPOCHS = 10
"""Epochs between two reports: an epoch of a small graph takes milliseconds."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    rows: Sequence[Rows | None]
    """Features of each type; None: embeddings."""
    visible: Sequence[SparseRows]
    """Means by relation, over the edges that training may see."""
    whole: Sequence[SparseRows]


def train_typed(
    spec: TypedArchitectureSpec,
    shape: TypedShape,
    subject: TypedTrainingSet,
    model: Model,
    name: str,
    progress: ProgressListener,
    device: torch.device = CPU,
) -> tuple[Tensors, TrainingRun]:
    """Weights under the keys of the architecture's checkpoints, of the epoch with the best validation score. On the CPU
    they depend on the seed alone."""
    settings, splits, labels = model.training, subject.data.splits, subject.data.labels
    torch.manual_seed(settings.seed)
    embedded = {embedding_key(shape.graph.types[place].name) for place in shape.embedded()}
    weights = {
        key: nn.Parameter(_drawn(sizes, EMBEDDING_BOUND if key in embedded else None).to(device))
        for key, sizes in spec.shapes(shape).items()
    }
    inputs = _inputs(subject, device)
    learning_rate = settings.learning_rate or spec.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": [weight for key, weight in weights.items() if key not in embedded]},
        {"params": [weights[key] for key in sorted(embedded)], "lr": learning_rate * EMBEDDING_RATE},
    ]
    optimizer = torch.optim.Adam(groups, lr=learning_rate, weight_decay=settings.weight_decay)
    schedule, history, stage = schedule_of(settings.epochs, 1), History(), f"train {name}"
    train, validation = (torch.from_numpy(np.array(nodes)).to(device) for nodes in (splits.train, splits.validation))
    best_score, best_epoch, epoch = -1.0, 0, 0
    best: Tensors = {}
    while epoch < history.ends_at(schedule):
        epoch += 1
        scores = _forward(spec, shape, weights, inputs, inputs.visible, settings.dropout)
        loss = label_loss(scores[train], labels[splits.train])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            found = _forward(spec, shape, weights, inputs, inputs.whole, 0.0)[validation].cpu()
        expected = labels[splits.validation]
        score = evaluate(found.numpy(), expected, subject.metric)
        history.add(score, float(label_loss(found, expected)))
        if score > best_score:
            best_score, best_epoch = score, epoch
            best = {key: weight.detach().cpu().numpy().copy() for key, weight in weights.items()}
        if epoch % _REPORTED_EPOCHS == 0 and epoch < history.ends_at(schedule):
            progress(Progress(stage, epoch, history.ends_at(schedule), f"validation {best_score:.3f}"))
    progress(Progress(stage, epoch, epoch, f"validation {best_score:.3f} at epoch {best_epoch:,}, {epoch:,} steps"))
    run = TrainingRun(
        name=name, epochs=epoch, steps=epoch, best_epoch=best_epoch, validation=best_score,
        rising=history.is_rising(schedule),
    )  # fmt: skip
    return best, run


def _drawn(sizes: tuple[int, ...], bound: float | None) -> torch.Tensor:
    """Initial weights: Glorot and Bengio's uniform ones for matrices, 0 for vectors. `bound`: another one."""
    tensor = torch.zeros(sizes)
    if len(sizes) > 1:
        bound = (6 / (sizes[-2] + sizes[-1])) ** 0.5 if bound is None else bound
        nn.init.uniform_(tensor, -bound, bound)
    return tensor


def _inputs(subject: TypedTrainingSet, device: torch.device) -> _Inputs:
    rows = [
        None if one is None else rows_of(one.features, np.arange(kind.nodes), device)
        for one, kind in zip(subject.features, subject.data.types, strict=True)
    ]
    whole = [_sparse(matrix, device) for matrix in subject.means]
    is_same = subject.visible_means is subject.means
    return _Inputs(rows, whole if is_same else [_sparse(matrix, device) for matrix in subject.visible_means], whole)


def _sparse(matrix: sp.csr_array, device: torch.device) -> SparseRows:
    return SparseRows(to_torch(matrix, device), to_torch(sp.csr_array(matrix.T), device))


def _forward(
    spec: TypedArchitectureSpec, shape: TypedShape, weights: dict[str, nn.Parameter], inputs: _Inputs,
    means: Sequence[SparseRows], dropout: float,
) -> torch.Tensor:  # fmt: skip
    """Scores of all nodes of the first type. `dropout` 0: as in serving."""
    states: list[Rows | None] = [
        weights[embedding_key(kind.name)] if rows is None else rows
        for rows, kind in zip(inputs.rows, shape.graph.types, strict=True)
    ]
    layers = spec.layers(weights, shape)
    for number, layer in enumerate(layers):
        is_last = number == len(layers) - 1
        outputs = _layer(shape, layer, states, means, only_first=is_last)
        if not is_last:
            outputs = [
                None if one is None else nn.functional.dropout(one.relu(), dropout, training=dropout > 0)
                for one in outputs
            ]
        states = [*outputs]
    scores = states[0]
    if not isinstance(scores, torch.Tensor):
        raise TypeError("no relation reaches the nodes that are classified")
    return scores


def _layer(
    shape: TypedShape, layer: RelationalLayer, states: Sequence[Rows | None], means: Sequence[SparseRows], *,
    only_first: bool,
) -> list[torch.Tensor | None]:  # fmt: skip
    """The layer's output of each type, or of the first alone."""
    graph = shape.graph
    if layer.heads is not None:
        return _attend(shape, layer, layer.heads, states, means, only_first=only_first)
    outputs: list[torch.Tensor | None] = [None] * len(graph.types)
    wanted = [0] if only_first else [*layer.biases]
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
    shape: TypedShape, layer: RelationalLayer, heads: Heads, states: Sequence[Rows | None],
    means: Sequence[SparseRows], *, only_first: bool,
) -> list[torch.Tensor | None]:  # fmt: skip
    """The same of a layer that attends."""
    graph, inner = shape.graph, heads.heads * heads.columns
    outputs: list[torch.Tensor | None] = [None] * len(graph.types)
    slots = [0] * len(graph.types)
    own = {
        kind: multiply_rows(state, matrix.T)
        for kind, matrix in layer.own.items()
        if (kind == 0 or not only_first) and (state := states[kind]) is not None
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
