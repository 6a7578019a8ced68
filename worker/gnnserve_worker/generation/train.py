"""Training of networks: each is drawn from a seed, learnt by a course, told as it goes on, and tried again where it has
learnt hardly anything.

A trainee says how weights are drawn and which blocks of the graph are read: torch_geometric's networks over rows of
nodes with one list of neighbours, or those over relations. Every variant is trained anew on its columns, with the
master's hyper-parameters (Dynamic GNN inference as-a-service, sections 3.3 and 4). Where a decoder reads what networks
give, it is learnt with the network of all columns; the others learn to be read by it. So variants differ in their
table, hops and network alone, and their outputs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gnnserve_api.spec.model import Model, Training
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.blocks import ListBlocks, blocks_of
from gnnserve_worker.generation.channels import narrow_aloud
from gnnserve_worker.generation.epochs import EpochsRun, Report, learn_with_retries
from gnnserve_worker.generation.layers import CPU
from gnnserve_worker.generation.learner import Blocks, learn, outputs_of, run_of, tell_result, telling
from gnnserve_worker.generation.networks import LearningNetwork, drawn_network, network_over_rows
from gnnserve_worker.generation.tensors import Tensors, without_decoder
from gnnserve_worker.generation.training_set import TrainingSet, keep_columns
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.generated import Course

# --- one network


@dataclass(frozen=True, slots=True)
class Trainee:
    """A network that is to be trained, as often as there are seeds, over one graph."""

    blocks: Blocks
    """The graph over all of its edges."""
    device: torch.device
    learning_rate: float
    """Step size of its architecture, where the settings give none."""
    draw: Callable[[Course], LearningNetwork]
    """Makes the network on its device, with weights of torch's generator or those that it begins with."""


@dataclass(frozen=True, slots=True)
class Trained:
    tensors: Tensors
    """Weights of the best epoch, under the keys of checkpoints."""
    run: EpochsRun
    decoder: Tensors
    """Those of the course's decoder; empty: it has none."""


def silent(_done: int, _ends_at: int, _score: float, _steps: int) -> None:
    """Ignore progress."""


def train(
    trainee: Trainee, course: Course, settings: Training, report: Report = silent, most_epochs: int | None = None
) -> Trained:
    """Train, and keep the weights of the epoch with the best validation score. On the CPU they depend on the seed and
    on what the network begins with alone. `most_epochs`: as of `learner.learn`."""
    torch.manual_seed(settings.seed)
    network, learning_rate = trainee.draw(course), settings.learning_rate or trainee.learning_rate
    kept, run = learn(network, trainee.blocks, course, settings, learning_rate, trainee.device, report, most_epochs)
    tensors, decoder = without_decoder(kept)
    return Trained(tensors, run, decoder)


def train_aloud(
    stage: str, trainee: Trainee, course: Course, settings: Training, progress: ProgressListener,
    most_epochs: int | None = None,
) -> Trained:  # fmt: skip
    """Train, and tell epochs and what it came to."""
    trained = train(trainee, course, settings, telling(stage, course, progress), most_epochs)
    tell_result(stage, course, trained.run, progress)
    return trained


def train_with_retries(
    name: str, trainee: Trainee, subject: TrainingSet, settings: Training, progress: ProgressListener,
    decoder: Mapping[str, np.ndarray] | None = None,
) -> tuple[Trained, TrainingRun]:  # fmt: skip
    """The network of the best attempt, and its record. `decoder`: weights that stay as they are; None: they are
    learnt."""
    problem = subject.problem

    def once(training: Training, most_epochs: int | None = None) -> tuple[Trained, TrainingRun]:
        course = problem.course(subject.visible, training.seed, decoder)
        trained = train_aloud(f"train {name}", trainee, course, training, progress, most_epochs)
        return trained, run_of(name, trained.run, course, trainee.blocks.trained_by)

    learning_rate, steps = settings.learning_rate or trainee.learning_rate, trainee.blocks.steps(problem.items)
    return learn_with_retries(once, settings, learning_rate, steps, problem.majority, progress)


# --- networks over one list of neighbours, and over relations


def trainee_over_rows(
    model: Model, features: Features, data: TrainingSet, device: torch.device, initial: Tensors | None = None
) -> Trainee:
    """A module of torch_geometric over rows of nodes. `initial`: weights to begin with; None: drawn."""
    columns = features.shape[1]
    return Trainee(
        ListBlocks(model, features, data.graph, device), device, spec_of(model.architecture).learning_rate,
        lambda _: network_over_rows(model, columns, data.classes, device, initial),
    )  # fmt: skip


def trainee_over_relations(
    spec: RelationalSpec, shape: RelationalShape, model: Model, subject: TrainingSet, name: str,
    progress: ProgressListener, device: torch.device = CPU,
) -> Trainee:  # fmt: skip
    """A network over relations, whose graph is one block or sampled, as `batches.py` says, which is told."""
    batches = batches_of(model, subject.data.nodes, subject.data.edges)
    report_batches(model, batches, name, progress)
    kinds, dropout = subject.problem.answered_types(shape.graph), model.training.dropout
    return Trainee(
        blocks_of(batches, model, shape, subject, kinds, device), device, spec.learning_rate,
        lambda course: drawn_network(spec, shape, kinds, course.embeddings.bound, dropout, device),
    )  # fmt: skip


def train_on_rows(
    data: TrainingSet, features: Features, model: Model, report: Report = silent, device: torch.device = CPU
) -> Trained:
    """Train a module by the course of the data's problem."""
    course = data.problem.course(data.visible, model.training.seed)
    return train(trainee_over_rows(model, features, data, device), course, model.training, report)


def predict(
    tensors: Tensors, features: Features, graph: Graph, nodes: np.ndarray, model: Model, classes: int,
    device: torch.device = CPU,
) -> np.ndarray:  # fmt: skip
    """Scores of a module with these weights, float32 [nodes, classes], without dropout and with one fixed sample of
    neighbours."""
    network = network_over_rows(model, features.shape[1], classes, device, tensors)
    return outputs_of(network, ListBlocks(model, features, graph, device), nodes)


# --- all networks of a service


class TrainedModels:
    """The `lessons.Models` of a service that is trained here, on a torch device. The master comes first."""

    def __init__(
        self, model: Model, data: TrainingSet, features: Features, progress: ProgressListener, device: torch.device
    ) -> None:
        self._model = model
        self._data = data
        self._features = features
        self._progress = progress
        self._device = device
        self._runs: list[TrainingRun] = []
        self._decoder: Mapping[str, np.ndarray] | None = None

    @property
    def runs(self) -> Sequence[TrainingRun]:
        return self._runs

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        return {} if self._decoder is None else self._decoder

    def use_decoder(self, decoder: Mapping[str, np.ndarray]) -> None:
        """Have all further networks be read by it."""
        self._decoder = decoder

    def master(self, name: str) -> Tensors:
        trained = self._train_recorded(self._features, name)
        self._decoder = trained.decoder
        return trained.tensors

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return self._train_recorded(keep_columns(self._features, columns), name).tensors

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        """Train what is left of the network further, by the recipe's settings."""
        features = self._features if columns is None else keep_columns(self._features, columns)
        model = self._model.with_fewer_channels(factor)
        left = narrow_aloud(self._model, wide, factor, features, self._data, name, self._progress)
        course = self._course(model)
        trained = self._train(features, name, model, course, left)
        self._runs.append(run_of(name, trained.run, course))
        return trained.tensors

    def another_master(self, seed: int, name: str) -> Tensors:
        training = self._model.training.model_copy(update={"seed": seed})
        model = self._model.model_copy(update={"training": training})
        return self._train(self._features, name, model, self._course(model)).tensors

    def _train_recorded(self, features: Features, name: str) -> Trained:
        trainee = trainee_over_rows(self._model, features, self._data, self._device)
        trained, run = train_with_retries(
            name, trainee, self._data, self._model.training, self._progress, self._decoder
        )
        self._runs.append(run)
        return trained

    def _train(
        self, features: Features, name: str, model: Model, course: Course, initial: Tensors | None = None
    ) -> Trained:
        trainee = trainee_over_rows(model, features, self._data, self._device, initial)
        return train_aloud(f"train {name}", trainee, course, model.training, self._progress)

    def _course(self, model: Model) -> Course:
        return self._data.problem.course(self._data.visible, model.training.seed, self._decoder)
