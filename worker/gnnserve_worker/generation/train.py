"""Training of one variant over one list of neighbours, on sampled mini-batches.

Every variant is trained anew, with the master's hyper-parameters (Dynamic GNN inference as-a-service, section 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.epochs import EpochsRun, Report
from gnnserve_worker.generation.learner import learn, numbers_of, outputs_of
from gnnserve_worker.generation.networks import CPU, Rows, build_module, device_of, forward, rows_of
from gnnserve_worker.generation.tensors import Tensors, without_decoder
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.sampling.subgraph import SampledSubgraph, SubgraphSampler
from gnnserve_worker.tables.gather import is_weighted
from gnnserve_worker.tasks.course import Course, Visible

_JUDGED_AT_ONCE = 4096
"""Nodes whose outputs are computed together where nothing is learnt."""


@dataclass(frozen=True, slots=True)
class Trained:
    module: nn.Module
    """The trained module with the weights of its best epoch, in evaluation mode, on the CPU."""
    run: EpochsRun
    decoder: nn.Module | None = None
    """The course's, with the weights of that epoch too."""


def _silent(_done: int, _ends_at: int, _score: float, _steps: int) -> None:
    """Ignore progress."""


def train(
    data: TrainingSet,
    features: Features,
    model: Model,
    report: Report = _silent,
    device: torch.device = CPU,
    course: Course | None = None,
    initial: Tensors | None = None,
    most_epochs: int | None = None,
) -> Trained:
    """Train, and keep the weights of the epoch with the best validation score.

    On the CPU the result depends on the seed and on `initial` alone. `course` None: the one of the data's problem.
    `initial`: weights to begin with; None: drawn from the seed. `most_epochs`: as of `learner.learn`.
    """
    settings = model.training
    if course is None:
        course = data.problem.course(data.visible, settings.seed)
    torch.manual_seed(settings.seed)
    module = build_module(model, features.shape[1], data.classes)
    if initial is not None:
        _load(module, initial)
    module.to(device)
    blocks = ListBlocks(model, features, data.graph, device)
    learning_rate = settings.learning_rate or spec_of(model.architecture).learning_rate
    kept, run = learn(
        ModuleNetwork(module), blocks, course, settings, learning_rate, device, report, most_epochs
    )  # fmt: skip
    network, decoder = without_decoder(kept)
    _load(module, network)
    if course.decoder is not None:
        _load(course.decoder, decoder)
    return Trained(module.to(CPU).eval(), run, course.decoder)


def _load(module: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    module.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in tensors.items()})
    module.to(CPU).eval()


class ListBlock(NamedTuple):
    """What was sampled for a batch."""

    rows: Rows
    """Feature rows of the subgraph's nodes."""
    subgraph: SampledSubgraph


class ListBlocks:
    """A block for each batch, of the neighbours that are drawn for it from one list."""

    reads_few: ClassVar[bool] = True

    def __init__(self, model: Model, features: Features, graph: Graph, device: torch.device) -> None:
        self._model, self._features, self._device = model, features, device
        weighted = is_weighted(spec_of(model.architecture).aggregator)
        self._sampler = SubgraphSampler(graph.indptr, graph.indices, weighted=weighted)

    def over(self, relations: Visible) -> ListBlocks:
        (relation,) = relations
        return ListBlocks(self._model, self._features, relation.lists, self._device)

    def steps(self, items: int, parts: int = 1) -> int:
        """Parts are not counted one by one: the schedules of published networks are made so."""
        return -(-items // self._model.training.batch_size)

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        size = _JUDGED_AT_ONCE if random is None else self._model.training.batch_size
        ordered = items if random is None else random.permutation(items)
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]

    def block(self, seeds: np.ndarray, key: int) -> ListBlock:
        subgraph = self._sampler.sample(seeds, self._model.fanouts, key)
        return ListBlock(rows_of(self._features, subgraph.nodes, self._device), subgraph)


class ModuleNetwork:
    """The `learner.Network` of a torch_geometric module."""

    embeddings: tuple[nn.Parameter, ...] = ()

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.weights = tuple(module.parameters())

    def outputs(self, block: ListBlock, *, trains: bool) -> torch.Tensor:
        self._module.train(trains)
        return forward(self._module, block.rows, block.subgraph)

    def tensors(self) -> Tensors:
        return numbers_of(self._module.state_dict())


def predict(module: nn.Module, features: Features, graph: Graph, nodes: np.ndarray, model: Model) -> np.ndarray:
    """Compute scores, float32 [nodes, classes], without dropout and with one fixed sample of neighbours."""
    return outputs_of(ModuleNetwork(module), ListBlocks(model, features, graph, device_of(module)), nodes)
