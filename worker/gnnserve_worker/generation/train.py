"""Training of one variant on sampled mini-batches.

Every variant is trained anew, with the master's hyper-parameters (Dynamic GNN inference as-a-service, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.epochs import run_epochs
from gnnserve_worker.generation.networks import CPU, build_module, device_of, forward, rows_of
from gnnserve_worker.generation.schedule import schedule_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.sampling.subgraph import SubgraphSampler
from gnnserve_worker.tables.gather import is_weighted
from gnnserve_worker.tasks.course import Batch, Course

VALIDATION_KEY = 1 << 40
"""Sampling key of validation. It is fixed, so that all epochs are compared on the same neighbours."""


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
    course: Course[Graph] | None = None,
    initial: Tensors | None = None,
    most_epochs: int | None = None,
) -> Trained:
    """Train with Adam, and keep the weights of the epoch with the best validation score.

    On the CPU the result depends on the seed and on `initial` alone. `course` None: the one of the data's problem.
    `initial`: weights to begin with; None: drawn from the seed. `most_epochs`: a limit below that of the settings;
    None: theirs.
    """
    settings = model.training
    if course is None:
        course = data.problem.course(data.visible, settings.seed)
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
    schedule = schedule_of(settings.epochs, -(-course.items // settings.batch_size), most_epochs)
    learner = _Learner(data, features, model, module, trained, optimizer, order, device)

    def tell(done: int, ends_at: int, score: float, _steps: int) -> None:
        report(done, ends_at, score)

    run = run_epochs(course, learner, schedule, settings.seed << 20, tell)
    trained.load_state_dict(learner.kept)
    trained.to(CPU).eval()
    return Trained(
        module,
        run.score,
        run.best,
        epochs=run.epochs,
        steps=run.steps,
        rising=run.rising,
        decoder=course.decoder,
    )


class _Learner:
    """The `epochs.Learner` of a network over one list of neighbours."""

    def __init__(
        self, data: TrainingSet, features: Features, model: Model, module: nn.Module, trained: nn.ModuleList,
        optimizer: torch.optim.Optimizer, order: np.random.Generator, device: torch.device,
    ) -> None:  # fmt: skip
        """`trained`: `module`, and the course's decoder where there is one."""
        self._features, self._model, self._module, self._trained = features, model, module, trained
        self._optimizer, self._order, self._device = optimizer, order, device
        self._weighted = is_weighted(spec_of(model.architecture).aggregator)
        self._judge = SubgraphSampler(data.graph.indptr, data.graph.indices, weighted=self._weighted)
        self._sampler = self._judge
        self.kept: dict[str, torch.Tensor] = {}

    def see(self, visible: Graph) -> None:
        self._sampler = SubgraphSampler(visible.indptr, visible.indices, weighted=self._weighted)

    def batches(self, items: np.ndarray) -> Iterator[np.ndarray]:
        shuffled, size = self._order.permutation(items), self._model.training.batch_size
        for start in range(0, len(shuffled), size):
            yield shuffled[start : start + size]

    def step(self, batch: Batch, key: int) -> None:
        subgraph = self._sampler.sample(batch.seeds, self._model.fanouts, key)
        loss = batch.loss(forward(self._module, rows_of(self._features, subgraph.nodes, self._device), subgraph))
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def examine(self, nodes: np.ndarray) -> np.ndarray:
        found = predict(self._module, self._features, self._judge, nodes, self._model)
        self._module.train()
        return found

    def keep(self) -> None:
        self.kept = {key: value.clone() for key, value in self._trained.state_dict().items()}


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
