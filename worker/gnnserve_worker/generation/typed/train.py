"""Training over a graph of several types: over the whole graph in each step, or in batches with sampled neighbours.

One loop does both (`blocks.py`), since the whole graph is one batch of all training nodes; which it is, `batches.py`
says. Each epoch is judged over all edges, in blocks of the same kind.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from gnnserve_api.spec.model import Model, Training
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.attempts import learn_with_retries
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.networks import CPU
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import VALIDATION_KEY, label_loss
from gnnserve_worker.generation.typed.blocks import Blocks, blocks_of
from gnnserve_worker.generation.typed.forward import Weights, drawn_weights, embedding_keys, outputs_of_seeds
from gnnserve_worker.generation.typed.optimizer import NetworkOptimizer, Rate, parted_weights
from gnnserve_worker.generation.typed.subject import TypedTrainingSet
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import Progress, ProgressListener

EMBEDDING_BOUND, EMBEDDING_RATE = 0.01, 0.1
"""Largest initial number of an embedding, and the share of the learning rate that embeddings learn at. They are many
and few labels reach each: as large and quick as weights they learn training nodes by heart."""
_CLASSIFIED = (0,)
"""Places of the types whose nodes have scores."""
_REPORTED_STEPS = 10
"""Steps between two reports, at least: an epoch of a small graph takes milliseconds."""


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
    data = subject.data
    batches = batches_of(model, data.nodes, data.edges)
    report_batches(model, batches, name, progress)
    blocks = blocks_of(batches, model, shape, subject, _CLASSIFIED, device)
    learn = partial(_train_once, spec, shape, subject, blocks, name, progress, device)
    learning_rate = model.training.learning_rate or spec.learning_rate
    steps = blocks.steps(len(data.splits.train))
    return learn_with_retries(learn, model.training, learning_rate, steps, subject.majority, progress)


def _train_once(
    spec: RelationalSpec,
    shape: RelationalShape,
    subject: TypedTrainingSet,
    blocks: Blocks,
    name: str,
    progress: ProgressListener,
    device: torch.device,
    settings: Training,
    most_epochs: int | None = None,
) -> tuple[Tensors, TrainingRun]:
    splits, labels = subject.data.splits, subject.data.labels
    torch.manual_seed(settings.seed)
    order = np.random.default_rng(settings.seed)
    weights = drawn_weights(spec, shape, EMBEDDING_BOUND, device)
    visible = blocks.over(subject.visible)
    learning_rate = settings.learning_rate or spec.learning_rate
    plain, embeddings = parted_weights(weights, embedding_keys(shape))
    rate = Rate(learning_rate, settings.weight_decay)
    embedding_rate = Rate(learning_rate * EMBEDDING_RATE, settings.weight_decay)
    optimizer = NetworkOptimizer(plain, rate, embeddings, embedding_rate, reads_few=blocks.reads_few)
    schedule = schedule_of(settings.epochs, blocks.steps(len(splits.train)), most_epochs)
    history, stage = History(), f"train {name}"
    expected = labels[splits.validation]
    best_score, best_epoch, epoch = -1.0, 0, 0
    best: Tensors = {}
    first_step = step = reported = settings.seed << 20
    while epoch < history.ends_at(schedule):
        epoch += 1
        for nodes in visible.parted(splits.train, order):
            block = visible.block(nodes, step)
            scores = outputs_of_seeds(spec, shape, weights, block, settings.dropout, _CLASSIFIED)
            optimizer.step(label_loss(scores, labels[nodes]))
            step += 1
        found = _examined(spec, shape, weights, blocks, splits.validation)
        score = evaluate(found.numpy(), expected, subject.metric)
        history.add(score, float(label_loss(found, expected)))
        if score > best_score:
            best_score, best_epoch = score, epoch
            best = {key: weight.detach().cpu().numpy().copy() for key, weight in weights.items()}
        if step - reported >= _REPORTED_STEPS and epoch < history.ends_at(schedule):
            reported = step
            progress(Progress(stage, epoch, history.ends_at(schedule), f"validation {best_score:.3f}"))
    steps = step - first_step
    progress(Progress(stage, epoch, epoch, f"validation {best_score:.3f} at epoch {best_epoch:,}, {steps:,} steps"))
    run = TrainingRun(
        name=name, epochs=epoch, steps=steps, best_epoch=best_epoch, validation=best_score,
        rising=history.is_rising(schedule), batches=blocks.trained_by,
    )  # fmt: skip
    return best, run


@torch.no_grad()
def _examined(
    spec: RelationalSpec, shape: RelationalShape, weights: Weights, blocks: Blocks, nodes: np.ndarray
) -> torch.Tensor:
    """Scores of nodes, on the CPU, as serving computes them, from one fixed sample where neighbours are sampled."""
    parts = (blocks.block(part, VALIDATION_KEY) for part in blocks.parted(nodes))
    return torch.cat([outputs_of_seeds(spec, shape, weights, block, 0.0, _CLASSIFIED).cpu() for block in parts])
