"""Training over a graph of several types: one step an epoch, over the whole neighbourhood of all training nodes.

The graphs of the literature have a few hundred labelled nodes whose neighbourhoods overlap, so that batches would
compute most nodes again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gnnserve_api.spec.model import Model, Training
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.attempts import learn_with_retries
from gnnserve_worker.generation.networks import CPU, Rows, SparseRows
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import label_loss
from gnnserve_worker.generation.typed.forward import drawn_weights, embedding_keys, forward, means_of, rows_of_types
from gnnserve_worker.generation.typed.subject import TypedTrainingSet
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import Progress, ProgressListener

EMBEDDING_BOUND, EMBEDDING_RATE = 0.01, 0.1
"""Largest initial number of an embedding, and the share of the learning rate that embeddings learn at. They are many
and few labels reach each: as large and quick as weights they learn training nodes by heart."""
_CLASSIFIED = (0,)
"""Places of the types whose nodes have scores."""
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
    spec: RelationalSpec,
    shape: RelationalShape,
    subject: TypedTrainingSet,
    model: Model,
    name: str,
    progress: ProgressListener,
    device: torch.device = CPU,
) -> tuple[Tensors, TrainingRun]:
    """Weights under the keys of the architecture's checkpoints, of the epoch with the best validation score. On the CPU
    they depend on the seed alone."""
    learn = partial(_train_once, spec, shape, subject, name, progress, device)
    learning_rate = model.training.learning_rate or spec.learning_rate
    return learn_with_retries(learn, model.training, learning_rate, 1, subject.majority, progress)


def _train_once(
    spec: RelationalSpec,
    shape: RelationalShape,
    subject: TypedTrainingSet,
    name: str,
    progress: ProgressListener,
    device: torch.device,
    settings: Training,
    most_epochs: int | None = None,
) -> tuple[Tensors, TrainingRun]:
    splits, labels = subject.data.splits, subject.data.labels
    torch.manual_seed(settings.seed)
    embedded = embedding_keys(shape)
    weights = drawn_weights(spec, shape, EMBEDDING_BOUND, device)
    inputs = _inputs(subject, device)
    learning_rate = settings.learning_rate or spec.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": [weight for key, weight in weights.items() if key not in embedded]},
        {"params": [weights[key] for key in sorted(embedded)], "lr": learning_rate * EMBEDDING_RATE},
    ]
    optimizer = torch.optim.Adam(groups, lr=learning_rate, weight_decay=settings.weight_decay)
    schedule, history, stage = schedule_of(settings.epochs, 1, most_epochs), History(), f"train {name}"
    train, validation = (torch.from_numpy(np.array(nodes)).to(device) for nodes in (splits.train, splits.validation))
    best_score, best_epoch, epoch = -1.0, 0, 0
    best: Tensors = {}
    while epoch < history.ends_at(schedule):
        epoch += 1
        scores = forward(spec, shape, weights, inputs.rows, inputs.visible, settings.dropout, _CLASSIFIED)[0]
        loss = label_loss(scores[train], labels[splits.train])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            whole = forward(spec, shape, weights, inputs.rows, inputs.whole, 0.0, _CLASSIFIED)[0]
            found = whole[validation].cpu()
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


def _inputs(subject: TypedTrainingSet, device: torch.device) -> _Inputs:
    whole = [means_of(matrix, device) for matrix in subject.means]
    is_same = subject.visible_means is subject.means
    visible = whole if is_same else [means_of(matrix, device) for matrix in subject.visible_means]
    return _Inputs(rows_of_types(subject.features, device), visible, whole)
