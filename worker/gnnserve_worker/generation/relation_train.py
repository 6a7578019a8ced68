"""Training over a graph of several types: over the whole graph in each step, or in batches with sampled neighbours.

One learner does both (`blocks.py`), since the whole graph is one batch of all that a part of an epoch learns; which it
is, `batches.py` says. What is learnt is the task's course. Each epoch is judged over all edges, in blocks of the same
kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from gnnserve_api.spec.model import Model, Training
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.attempts import learn_with_retries
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.blocks import Blocks, blocks_of
from gnnserve_worker.generation.epochs import run_epochs
from gnnserve_worker.generation.networks import CPU
from gnnserve_worker.generation.optimizer import NetworkOptimizer, Rate, parted_weights
from gnnserve_worker.generation.relation_networks import Block, Weights, drawn_weights, embedding_keys, outputs_of_seeds
from gnnserve_worker.generation.schedule import schedule_of
from gnnserve_worker.generation.tensors import Tensors, with_decoder
from gnnserve_worker.generation.train import VALIDATION_KEY
from gnnserve_worker.generation.training_set import RelationTrainingSet
from gnnserve_worker.graph.store import Relation
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tasks.course import Batch

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
    stage, reported = f"train {name}", 0

    def tell(done: int, ends_at: int, score: float, steps: int) -> None:
        nonlocal reported
        if course.says_each_epoch or (steps - reported >= _REPORTED_STEPS and done < ends_at):
            reported = steps
            progress(Progress(stage, done, ends_at, course.says(score)))

    learner = _Learner(network, weights, decoder, optimizer, blocks, order, settings.dropout)
    run = run_epochs(course, learner, schedule, settings.seed << 20, tell)
    if not course.says_each_epoch:
        came_to = f"{course.says(run.score)} at epoch {run.best:,}, {run.steps:,} steps"
        progress(Progress(stage, run.epochs, run.epochs, came_to))
    recorded = TrainingRun(
        name=name, epochs=run.epochs, steps=run.steps, best_epoch=run.best, validation=run.score,
        rising=run.rising, learnt_from=course.learnt_from, batches=blocks.trained_by,
    )  # fmt: skip
    return learner.kept, recorded


class _Learner:
    """The `epochs.Learner` of a network over relations."""

    def __init__(
        self, network: _Network, weights: Weights, decoder: nn.Module | None, optimizer: NetworkOptimizer,
        blocks: Blocks, order: np.random.Generator, dropout: float,
    ) -> None:  # fmt: skip
        """`blocks`: over all edges, by which epochs are judged."""
        self._network, self._weights, self._decoder, self._optimizer = network, weights, decoder, optimizer
        self._blocks, self._visible, self._order, self._dropout = blocks, blocks, order, dropout
        self.kept: Tensors = {}

    def see(self, visible: Sequence[Relation]) -> None:
        self._visible = self._blocks.over(visible)

    def batches(self, items: np.ndarray) -> Iterator[np.ndarray]:
        return self._visible.parted(items, self._order)

    def step(self, batch: Batch, key: int) -> None:
        block = self._visible.block(batch.seeds, key)
        self._optimizer.step(batch.loss(self._network.outputs(self._weights, block, self._dropout)))

    def examine(self, nodes: np.ndarray) -> np.ndarray:
        return _examined(self._network, self._weights, self._blocks, nodes)

    def keep(self) -> None:
        decoder = {} if self._decoder is None else _numbers(self._decoder.state_dict())
        self.kept = with_decoder(_numbers(self._weights), decoder)


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
