"""Training of one variant on sampled mini-batches.

Every variant is trained anew, with the master's hyper-parameters (Dynamic GNN inference as-a-service, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.networks import CPU, build_module, device_of, forward, rows_of
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.registry import ARCHITECTURES
from gnnserve_worker.sampling.subgraph import SubgraphSampler
from gnnserve_worker.tables.gather import is_weighted

_VALIDATION_KEY = 1 << 40
"""Sampling key of validation. It is fixed, so that all epochs are compared on the same neighbours."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a network learns from."""

    nodes: np.ndarray
    """Ids of nodes that training goes through."""
    loss: Callable[[torch.Tensor, np.ndarray], torch.Tensor]
    """Loss of the scores, float32 [seeds, classes], of some of them (ids)."""


def label_lesson(data: TrainingSet) -> Lesson:
    return Lesson(data.splits.train, lambda scores, seeds: label_loss(scores, data.labels[seeds]))


@dataclass(frozen=True, slots=True)
class Trained:
    module: nn.Module
    """The trained module with the weights of its best epoch, in evaluation mode, on the CPU."""
    validation_score: float
    epoch: int
    """The best epoch, from 1, whose weights were kept."""
    epochs: int
    """Number of epochs that were run."""
    steps: int
    """Number of batches, over all epochs."""
    rising: bool
    """Whether validation was still improving at the end."""


Report = Callable[[int, int, float], None]
"""Called after every epoch with the epochs done, the epoch after which training ends if validation does not improve any
more, and the best validation score."""


def _silent(_done: int, _ends_at: int, _score: float) -> None:
    """Ignore progress."""


def train(
    data: TrainingSet,
    features: Features,
    model: Model,
    report: Report = _silent,
    device: torch.device = CPU,
    lesson: Lesson | None = None,
    initial: Tensors | None = None,
) -> Trained:
    """Train with Adam, and keep the weights of the epoch with the best validation score.

    On the CPU the result depends on the seed and on `initial` alone. `lesson` None: the labels of training nodes, by
    cross-entropy. `initial`: weights to begin with; None: drawn from the seed.
    """
    settings, taught = model.training, lesson or label_lesson(data)
    torch.manual_seed(settings.seed)
    order = np.random.default_rng(settings.seed)
    module = build_module(model, features.shape[1], data.classes)
    if initial is not None:
        module.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in initial.items()})
    module.to(device)
    architecture = ARCHITECTURES[model.architecture]
    learning_rate = settings.learning_rate or architecture.learning_rate
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate, weight_decay=settings.weight_decay)
    weighted = is_weighted(architecture.aggregator)
    sampler = SubgraphSampler(data.visible.indptr, data.visible.indices, weighted=weighted)
    judge = SubgraphSampler(data.graph.indptr, data.graph.indices, weighted=weighted)
    schedule = schedule_of(settings.epochs, -(-len(taught.nodes) // settings.batch_size))
    history = History()
    best_score, best_epoch = -1.0, 0
    best_state: dict[str, torch.Tensor] = {}
    first_step = step = settings.seed << 20
    epoch = 0
    while epoch < history.ends_at(schedule):
        epoch += 1
        module.train()
        shuffled = order.permutation(taught.nodes)
        for start in range(0, len(shuffled), settings.batch_size):
            seeds = shuffled[start : start + settings.batch_size]
            subgraph = sampler.sample(seeds, model.fanouts, step)
            step += 1
            scores = forward(module, rows_of(features, subgraph.nodes, device), subgraph)
            loss = taught.loss(scores, seeds)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found, expected = (
            predict(module, features, judge, data.splits.validation, model),
            data.labels[data.splits.validation],
        )
        score = evaluate(found, expected, data.metric)
        history.add(score, float(label_loss(torch.from_numpy(found), expected)))
        if score > best_score:
            best_score, best_epoch = score, epoch
            best_state = {key: value.clone() for key, value in module.state_dict().items()}
        report(epoch, history.ends_at(schedule), best_score)
    module.load_state_dict(best_state)
    module.to(CPU).eval()
    return Trained(
        module, best_score, best_epoch, epochs=epoch, steps=step - first_step, rising=history.is_rising(schedule)
    )


@torch.no_grad()
def predict(
    module: nn.Module, features: Features, sampler: SubgraphSampler, nodes: np.ndarray, model: Model
) -> np.ndarray:
    """Compute scores, float32 [nodes, classes], without dropout and with one fixed sample of neighbours."""
    module.eval()
    device = device_of(module)
    parts = []
    for start in range(0, len(nodes), 4096):
        subgraph = sampler.sample(nodes[start : start + 4096], model.fanouts, _VALIDATION_KEY)
        parts.append(forward(module, rows_of(features, subgraph.nodes, device), subgraph).cpu().numpy())
    return np.concatenate(parts)


def label_loss(scores: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    if labels.ndim == 2:
        wanted = torch.from_numpy(labels.astype(np.float32)).to(scores.device)
        return nn.functional.binary_cross_entropy_with_logits(scores, wanted)
    return nn.functional.cross_entropy(scores, torch.from_numpy(labels).to(scores.device))
