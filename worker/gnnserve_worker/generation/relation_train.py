"""Training over a graph of several types: over the whole graph in each step, or in batches with sampled neighbours.

One loop does both (`blocks.py`), since the whole graph is one batch of all that a part of an epoch learns; which it is,
`batches.py` says. What is learnt is the task's course. Each epoch is judged over all edges, in blocks of the same kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from gnnserve_api.spec.model import Model, Training
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.attempts import learn_with_retries
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.blocks import Blocks, blocks_of
from gnnserve_worker.generation.networks import CPU
from gnnserve_worker.generation.optimizer import NetworkOptimizer, Rate, parted_weights
from gnnserve_worker.generation.relation_networks import Block, Weights, drawn_weights, embedding_keys, outputs_of_seeds
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.tensors import Tensors, with_decoder
from gnnserve_worker.generation.train import VALIDATION_KEY
from gnnserve_worker.generation.training_set import RelationTrainingSet
from gnnserve_worker.graph.store import Relation
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import Progress, ProgressListener

_REPORTED_STEPS = 10
"""Steps between two reports, at least, where not each epoch is worth one."""


def train_over_relations(
    spec: RelationalSpec,
    shape: RelationalShape,
    subject: RelationTrainingSet,
    model: Model,
    name: str,
    progress: ProgressListener,
    device: torch.device = CPU,
) -> tuple[Tensors, TrainingRun]:
    """Weights under the keys of the architecture's checkpoints, with those of a decoder beside them, of the epoch with
    the best validation score. On the CPU they depend on the seed alone."""
    data, problem = subject.data, subject.problem
    batches = batches_of(model, data.nodes, data.edges)
    report_batches(model, batches, name, progress)
    kinds = problem.answered_types(shape.graph)
    blocks = blocks_of(batches, model, shape, subject, kinds, device)
    learn = partial(_train_once, _Network(spec, shape, kinds), subject, blocks, name, progress, device)
    learning_rate = model.training.learning_rate or spec.learning_rate
    return learn_with_retries(
        learn, model.training, learning_rate, blocks.steps(problem.items), problem.majority, progress
    )  # fmt: skip


def _train_once(
    network: _Network,
    subject: RelationTrainingSet,
    blocks: Blocks,
    name: str,
    progress: ProgressListener,
    device: torch.device,
    settings: Training,
    most_epochs: int | None = None,
) -> tuple[Tensors, TrainingRun]:
    course = subject.problem.course(subject.visible, settings.seed)
    rates, decoder = course.embeddings, None if course.decoder is None else course.decoder.to(device)
    torch.manual_seed(settings.seed)
    order = np.random.default_rng(settings.seed)
    weights = drawn_weights(network.spec, network.shape, rates.bound, device)
    learning_rate = settings.learning_rate or network.spec.learning_rate
    plain, embeddings = parted_weights(weights, embedding_keys(network.shape))
    optimizer = NetworkOptimizer(
        [*plain, *(() if decoder is None else decoder.parameters())], Rate(learning_rate, settings.weight_decay),
        embeddings, Rate(learning_rate * rates.rate_share, settings.weight_decay if rates.is_decayed else 0.0),
        reads_few=blocks.reads_few,
    )  # fmt: skip
    of_part = blocks.steps(-(-course.items // course.parts_per_epoch))
    schedule = schedule_of(settings.epochs, course.parts_per_epoch * of_part, most_epochs)
    history, stage = History(), f"train {name}"
    best_score, best_epoch, epoch = -1.0, 0, 0
    best: Tensors = {}
    first_step = step = reported = settings.seed << 20
    seen: Sequence[Relation] | None = None
    while epoch < history.ends_at(schedule):
        epoch += 1
        for part in course.parts(epoch):
            if part.visible is not seen:
                seen, visible = part.visible, blocks.over(part.visible)
            for items in visible.parted(part.items, order):
                batch = course.batch(items)
                outputs = network.outputs(weights, visible.block(batch.seeds, step), settings.dropout)
                optimizer.step(batch.loss(outputs))
                step += 1
        score, validation_loss = course.judge(_examined(network, weights, blocks, course.examined))
        history.add(score, validation_loss)
        if score > best_score:
            best_score, best_epoch = score, epoch
            best = with_decoder(_numbers(weights), {} if decoder is None else _numbers(decoder.state_dict()))
        ends_at = history.ends_at(schedule)
        if course.says_each_epoch or (step - reported >= _REPORTED_STEPS and epoch < ends_at):
            reported = step
            progress(Progress(stage, epoch, ends_at, course.says(best_score)))
    steps = step - first_step
    if not course.says_each_epoch:
        came_to = f"{course.says(best_score)} at epoch {best_epoch:,}, {steps:,} steps"
        progress(Progress(stage, epoch, epoch, came_to))
    run = TrainingRun(
        name=name, epochs=epoch, steps=steps, best_epoch=best_epoch, validation=best_score,
        rising=history.is_rising(schedule), learnt_from=course.learnt_from, batches=blocks.trained_by,
    )  # fmt: skip
    return best, run


@dataclass(frozen=True, slots=True)
class _Network:
    spec: RelationalSpec
    shape: RelationalShape
    kinds: Collection[int]
    """Places of the types whose nodes have outputs."""

    def outputs(self, weights: Weights, block: Block, dropout: float) -> torch.Tensor:
        return outputs_of_seeds(self.spec, self.shape, weights, block, dropout, self.kinds)


@torch.no_grad()
def _examined(network: _Network, weights: Weights, blocks: Blocks, nodes: np.ndarray) -> np.ndarray:
    """Outputs of nodes, as serving computes them, from one fixed sample where neighbours are sampled."""
    parts = (blocks.block(part, VALIDATION_KEY) for part in blocks.parted(nodes))
    found: np.ndarray = torch.cat([network.outputs(weights, block, 0.0).cpu() for block in parts]).numpy()
    return found


def _numbers(weights: Mapping[str, torch.Tensor]) -> Tensors:
    return {key: weight.detach().cpu().numpy().copy() for key, weight in weights.items()}
