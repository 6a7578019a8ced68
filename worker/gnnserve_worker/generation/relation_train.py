"""Training of one network over relations: over the whole graph in each step, or in batches with sampled neighbours.

Either is gone through in blocks (`blocks.py`), since the whole graph is one batch of all that a part of an epoch
learns; which it is, `batches.py` says.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from gnnserve_api.spec.model import Model, Training
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.attempts import learn_with_retries
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.blocks import blocks_of
from gnnserve_worker.generation.learner import learn, numbers_of, run_of, tell_result, telling
from gnnserve_worker.generation.networks import CPU
from gnnserve_worker.generation.relation_networks import Block, drawn_weights, embedding_keys, outputs_of_seeds
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import ProgressListener


def train_over_relations(
    spec: RelationalSpec,
    shape: RelationalShape,
    subject: TrainingSet,
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

    def once(training: Training, most_epochs: int | None = None) -> tuple[Tensors, TrainingRun]:
        course, stage = problem.course(subject.visible, training.seed), f"train {name}"
        torch.manual_seed(training.seed)
        network = RelationNetwork(spec, shape, kinds, course.embeddings.bound, training.dropout, device)
        learning_rate = training.learning_rate or spec.learning_rate
        report = telling(stage, course, progress)
        tensors, run = learn(network, blocks, course, training, learning_rate, device, report, most_epochs)
        tell_result(stage, course, run, progress)
        return tensors, run_of(name, run, course, blocks.trained_by)

    learning_rate = model.training.learning_rate or spec.learning_rate
    steps = blocks.steps(problem.items)
    return learn_with_retries(once, model.training, learning_rate, steps, problem.majority, progress)


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
