"""Training of one variant on sampled mini-batches.

Every variant is trained anew, with the master's hyper-parameters (Dynamic GNN inference as-a-service, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.networks import CPU, build_module, device_of, forward, rows_of
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.sampling.subgraph import SubgraphSampler
from gnnserve_worker.tables.gather import is_weighted

VALIDATION_KEY = 1 << 40
"""Sampling key of validation. It is fixed, so that all epochs are compared on the same neighbours."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a network learns from."""

    nodes: np.ndarray
    """Ids of nodes that training goes through."""
    loss: Callable[[torch.Tensor, np.ndarray], torch.Tensor]
    """Loss of the scores, float32 [seeds, classes], of some of them (ids)."""


class Batch(NamedTuple):
    seeds: np.ndarray
    """Ids of the nodes whose scores are needed."""
    loss: Callable[[torch.Tensor], torch.Tensor]
    """Loss of these scores, float32 [seeds, classes]."""


class Part(NamedTuple):
    """A part of an epoch."""

    items: np.ndarray
    """What training goes through, in batches, as integers: ids of nodes, or numbers of links."""
    visible: Graph
    """The neighbour lists that are aggregated meanwhile."""


class Course(Protocol):
    """What a network is trained on, and how an epoch is judged."""

    @property
    def items(self) -> int:
        """How many an epoch goes through."""

    @property
    def decoder(self) -> nn.Module | None:
        """What is trained beside the network; None: nothing."""

    @property
    def examined(self) -> np.ndarray:
        """Ids of nodes whose scores an epoch is judged by."""

    def parts(self, epoch: int) -> Iterator[Part]:
        """The parts of that epoch, from 1."""

    def batch(self, items: np.ndarray) -> Batch: ...

    def judge(self, scores: np.ndarray) -> tuple[float, float]:
        """The validation score, higher is better, and the validation loss, of scores of `examined`."""


@dataclass(frozen=True, slots=True)
class NodeCourse:
    """A lesson about nodes, judged by labels."""

    data: TrainingSet
    lesson: Lesson
    decoder: None = None

    @property
    def items(self) -> int:
        return len(self.lesson.nodes)

    @property
    def examined(self) -> np.ndarray:
        return self.data.splits.validation

    def parts(self, epoch: int) -> Iterator[Part]:
        yield Part(self.lesson.nodes, self.data.visible)

    def batch(self, items: np.ndarray) -> Batch:
        return Batch(items, lambda scores: self.lesson.loss(scores, items))

    def judge(self, scores: np.ndarray) -> tuple[float, float]:
        expected = self.data.labels[self.data.splits.validation]
        loss = float(label_loss(torch.from_numpy(scores), expected))
        return evaluate(scores, expected, self.data.metric), loss


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
    decoder: nn.Module | None = None
    """The course's, with the weights of that epoch too."""


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
    course: Course | None = None,
    most_epochs: int | None = None,
) -> Trained:
    """Train with Adam, and keep the weights of the epoch with the best validation score.

    On the CPU the result depends on the seed and on `initial` alone. `lesson` None: the labels of training nodes, by
    cross-entropy. `initial`: weights to begin with; None: drawn from the seed. `course`: what to train on in place of
    a lesson about nodes. `most_epochs`: a limit below that of the settings; None: theirs.
    """
    settings = model.training
    if course is None:
        course = NodeCourse(data, lesson or label_lesson(data))
    torch.manual_seed(settings.seed)
    order = np.random.default_rng(settings.seed)
    module = build_module(model, features.shape[1], data.classes)
    if initial is not None:
        module.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in initial.items()})
    module.to(device)
    trained = nn.ModuleList([module] if course.decoder is None else [module, course.decoder.to(device)])
    architecture = spec_of(model.architecture)
    learning_rate = settings.learning_rate or architecture.learning_rate
    optimizer = torch.optim.Adam(trained.parameters(), lr=learning_rate, weight_decay=settings.weight_decay)
    weighted = is_weighted(architecture.aggregator)
    judge = SubgraphSampler(data.graph.indptr, data.graph.indices, weighted=weighted)
    schedule = schedule_of(settings.epochs, -(-course.items // settings.batch_size), most_epochs)
    history = History()
    best_score, best_epoch = -1.0, 0
    best_state: dict[str, torch.Tensor] = {}
    first_step = step = settings.seed << 20
    epoch = 0
    seen: Graph | None = None
    while epoch < history.ends_at(schedule):
        epoch += 1
        module.train()
        for part in course.parts(epoch):
            if part.visible is not seen:
                seen = part.visible
                sampler = SubgraphSampler(seen.indptr, seen.indices, weighted=weighted)
            shuffled = order.permutation(part.items)
            for start in range(0, len(shuffled), settings.batch_size):
                batch = course.batch(shuffled[start : start + settings.batch_size])
                subgraph = sampler.sample(batch.seeds, model.fanouts, step)
                step += 1
                loss = batch.loss(forward(module, rows_of(features, subgraph.nodes, device), subgraph))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        found = predict(module, features, judge, course.examined, model)
        score, validation_loss = course.judge(found)
        history.add(score, validation_loss)
        if score > best_score:
            best_score, best_epoch = score, epoch
            best_state = {key: value.clone() for key, value in trained.state_dict().items()}
        report(epoch, history.ends_at(schedule), best_score)
    trained.load_state_dict(best_state)
    trained.to(CPU).eval()
    return Trained(
        module,
        best_score,
        best_epoch,
        epochs=epoch,
        steps=step - first_step,
        rising=history.is_rising(schedule),
        decoder=course.decoder,
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
        subgraph = sampler.sample(nodes[start : start + 4096], model.fanouts, VALIDATION_KEY)
        parts.append(forward(module, rows_of(features, subgraph.nodes, device), subgraph).cpu().numpy())
    return np.concatenate(parts)


def label_loss(scores: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    if labels.ndim == 2:
        wanted = torch.from_numpy(labels.astype(np.float32)).to(scores.device)
        return nn.functional.binary_cross_entropy_with_logits(scores, wanted)
    return nn.functional.cross_entropy(scores, torch.from_numpy(labels).to(scores.device))
