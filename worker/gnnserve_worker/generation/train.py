"""Training of networks: each is drawn from a seed, learnt by a course, told as it goes on, and tried again where it has
learnt hardly anything.

A trainee says how weights are drawn and which blocks of the graph are read: torch_geometric's networks over rows of
nodes with one list of neighbours, or those over relations. Every variant is trained anew on its columns, with the
master's hyper-parameters (Dynamic GNN inference as-a-service, sections 3.3 and 4). Where a decoder reads what networks
give, it is learnt with the network of all columns; the others learn to be read by it. So variants differ in their
table, hops and network alone, and their outputs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from msgspec import UNSET, UnsetType
from torch import nn

from gnnserve_api.files.training import TrainedBy, TrainingRun
from gnnserve_api.spec.model import Model, Training
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.blocks import blocks_of, blocks_over_rows
from gnnserve_worker.generation.channels import narrow_aloud
from gnnserve_worker.generation.epochs import EpochsRun, Report, learn_with_retries, run_epochs, schedule_of
from gnnserve_worker.generation.layers import CPU
from gnnserve_worker.generation.networks import (
    LearningNetwork,
    drawn_network,
    network_of_layers,
    network_over_rows,
    numbers_of,
)
from gnnserve_worker.generation.training_set import TrainingSet, keep_columns
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.architecture import RelationalLayer, RelationalShape, RelationalSpec
from gnnserve_worker.models.registry import Tensors, spec_of, with_decoder, without_decoder
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tasks.generated import Course, TrainingBatch, Visible

VALIDATION_KEY = 1 << 40
"""Sampling key of validation. It is fixed, so that all epochs are compared on the same neighbours."""
_REPORTED_STEPS = 10
"""Steps between two reports, at least, where not each epoch is worth one."""


# --- epochs of a network


class TrainableNetwork(Protocol):
    """A network that learns, on its device."""

    @property
    def weights(self) -> Sequence[nn.Parameter]:
        """All that is learnt but embeddings of nodes."""

    @property
    def embedded(self) -> Mapping[int, nn.Parameter]:
        """Embeddings that are learnt of nodes, by the place of their type."""

    def outputs(self, block: Any, *, trains: bool) -> torch.Tensor:
        """Outputs of the seeds of a block of its `Blocks`, float32 [seeds, outputs]. `trains` False: as in serving."""

    def tensors(self) -> Tensors:
        """The weights as they are now, under the keys of checkpoints."""


class Blocks(Protocol):
    """A graph, as training goes through it."""

    reads_few: ClassVar[bool]
    """Whether a block has few of the nodes, so that a step changes few embeddings."""
    trained_by: ClassVar[TrainedBy | UnsetType]
    """What is recorded of how training goes through the graph; UNSET: there is one way."""

    def over(self, relations: Visible) -> Self:
        """Blocks of the same graph with other lists of its relations."""

    def steps(self, items: int, parts: int = 1) -> int:
        """Batches of so many items, which come in so many parts."""

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        """The items in batches; with `random` in an order that it draws."""

    def block(self, seeds: np.ndarray, key: int) -> Any:
        """A block for seeds, numbers of nodes, as its networks read one. Equal keys draw the same neighbours."""


def learn(
    network: TrainableNetwork, blocks: Blocks, course: Course, settings: Training, learning_rate: float,
    device: torch.device, report: Report, most_epochs: int | None = None,
) -> tuple[Tensors, EpochsRun]:  # fmt: skip
    """Train with Adam; the weights of the epoch with the best validation score, with those of the course's decoder.

    `blocks`: over all edges, by which epochs are judged. `learning_rate`: that of the settings, or the architecture's.
    `most_epochs`: a limit below that of the settings; None: theirs.
    """
    rates, decay = course.embeddings, settings.weight_decay
    decoder = None if course.decoder is None else course.decoder.to(device)
    optimizer = NetworkOptimizer(
        [*network.weights, *(() if decoder is None else decoder.parameters())], Rate(learning_rate, decay),
        network.embedded.values(), Rate(learning_rate * rates.rate_share, decay if rates.is_decayed else 0.0),
        reads_few=blocks.reads_few,
    )  # fmt: skip
    schedule = schedule_of(settings.epochs, blocks.steps(course.items, course.parts_per_epoch), most_epochs)
    learner = _Learner(network, blocks, decoder, optimizer, np.random.default_rng(settings.seed))
    run = run_epochs(course, learner, schedule, settings.seed << 20, report)
    return learner.kept, run


def telling(stage: str, course: Course, progress: ProgressListener) -> Report:
    """A report that tells epochs, save the last one, which is told with what the training came to."""
    reported = 0

    def tell(done: int, ends_at: int, score: float, steps: int) -> None:
        nonlocal reported
        if done < ends_at and (course.says_each_epoch or steps - reported >= _REPORTED_STEPS):
            reported = steps
            progress(Progress(stage, done, ends_at, course.says(score)))

    return tell


def tell_result(stage: str, course: Course, run: EpochsRun, progress: ProgressListener) -> None:
    came_to = f"{course.says(run.score)} at epoch {run.best:,}, {run.steps:,} steps"
    progress(Progress(stage, run.epochs, run.epochs, came_to))


def run_of(name: str, run: EpochsRun, course: Course, trained_by: TrainedBy | UnsetType = UNSET) -> TrainingRun:
    """What is recorded of a training."""
    return TrainingRun(
        name=name, epochs=run.epochs, steps=run.steps, best_epoch=run.best, validation=run.score,
        rising=run.rising, learnt_from=course.learnt_from, batches=trained_by,
    )  # fmt: skip


@torch.no_grad()
def outputs_of(network: TrainableNetwork, blocks: Blocks, nodes: np.ndarray) -> np.ndarray:
    """Outputs of nodes, float32 [nodes, outputs], as serving computes them, from one fixed sample where neighbours are
    sampled."""
    parts = (blocks.block(part, VALIDATION_KEY) for part in blocks.parted(nodes))
    found: np.ndarray = torch.cat([network.outputs(block, trains=False).cpu() for block in parts]).numpy()
    return found


class _Learner:
    """The `epochs.Learner` of a network."""

    def __init__(
        self, network: TrainableNetwork, blocks: Blocks, decoder: nn.Module | None, optimizer: NetworkOptimizer,
        order: np.random.Generator,
    ) -> None:  # fmt: skip
        self._network, self._decoder, self._optimizer = network, decoder, optimizer
        self._blocks, self._visible, self._order = blocks, blocks, order
        self.kept: Tensors = {}

    def see(self, visible: Visible) -> None:
        self._visible = self._blocks.over(visible)

    def batches(self, items: np.ndarray) -> Iterator[np.ndarray]:
        return self._visible.parted(items, self._order)

    def step(self, batch: TrainingBatch, key: int) -> None:
        block = self._visible.block(batch.seeds, key)
        self._optimizer.step(batch.loss(self._network.outputs(block, trains=True)))

    def examine(self, nodes: np.ndarray) -> np.ndarray:
        return outputs_of(self._network, self._blocks, nodes)

    def keep(self) -> None:
        decoder = {} if self._decoder is None else numbers_of(self._decoder.state_dict())
        self.kept = with_decoder(self._network.tensors(), decoder)


# --- steps of an epoch


@dataclass(frozen=True, slots=True)
class Rate:
    """How parameters are learnt."""

    learning_rate: float
    weight_decay: float
    """Factor of the L2 penalty."""


class NetworkOptimizer:
    """Adam over a network's weights and embeddings of nodes, whose gradients a batch may have for few of them."""

    def __init__(
        self, weights: Iterable[nn.Parameter], rate: Rate, embeddings: Iterable[nn.Parameter], embedding_rate: Rate, *,
        reads_few: bool,
    ) -> None:  # fmt: skip
        """`reads_few`: a step changes the embeddings alone that it has read, and their moments (lazy Adam), since one
        that changed all would take as long as the graph is large."""
        self._embeddings, self._decay = list(embeddings), embedding_rate.weight_decay
        of_weights, of_embeddings = _group(weights, rate), _group(self._embeddings, embedding_rate)
        self._reads_few = reads_few and bool(self._embeddings)
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam([of_weights] if self._reads_few else [of_weights, of_embeddings])
        ]
        if self._reads_few:
            self._optimizers.append(torch.optim.SparseAdam(self._embeddings, lr=embedding_rate.learning_rate))

    def step(self, loss: torch.Tensor) -> None:
        for one in self._optimizers:
            one.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._reads_few and self._decay:
            for embedding in self._embeddings:
                _add_decay(embedding, self._decay)
        for one in self._optimizers:
            one.step()


def _group(parameters: Iterable[nn.Parameter], rate: Rate) -> dict[str, object]:
    return {"params": [*parameters], "lr": rate.learning_rate, "weight_decay": rate.weight_decay}


def _add_decay(embedding: nn.Parameter, decay: float) -> None:
    """Add the penalty's gradient to that of the rows which have one: sparse Adam knows no penalty."""
    if embedding.grad is None:
        return
    gradient = embedding.grad.coalesce()
    (rows,) = gradient.indices()
    values = gradient.values() + decay * embedding.detach()[rows]
    embedding.grad = torch.sparse_coo_tensor(
        gradient.indices(), values, gradient.shape, check_invariants=False, is_coalesced=True
    )


# --- one network, from its seed


@dataclass(frozen=True, slots=True)
class Trainee:
    """A network that is to be trained, as often as there are seeds, over one graph."""

    blocks: Blocks
    """The graph over all of its edges."""
    device: torch.device
    learning_rate: float
    """Step size of its architecture, where the settings give none."""
    draw: Callable[[Course], TrainableNetwork]
    """Makes the network on its device, with weights of torch's generator or those that it begins with."""


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    tensors: Tensors
    """Weights of the best epoch, under the keys of checkpoints."""
    run: EpochsRun
    decoder: Tensors
    """Tensors of the course's decoder; empty: it has none."""


def silent(_done: int, _ends_at: int, _score: float, _steps: int) -> None:
    """Ignore progress."""


def train(
    trainee: Trainee, course: Course, settings: Training, report: Report = silent, most_epochs: int | None = None
) -> TrainedNetwork:
    """Train, and keep the weights of the epoch with the best validation score. On the CPU they depend on the seed and
    on what the network begins with alone. `most_epochs`: as of `learn`."""
    torch.manual_seed(settings.seed)
    network, learning_rate = trainee.draw(course), settings.learning_rate or trainee.learning_rate
    kept, run = learn(network, trainee.blocks, course, settings, learning_rate, trainee.device, report, most_epochs)
    tensors, decoder = without_decoder(kept)
    return TrainedNetwork(tensors, run, decoder)


def train_aloud(
    stage: str, trainee: Trainee, course: Course, settings: Training, progress: ProgressListener,
    most_epochs: int | None = None,
) -> TrainedNetwork:  # fmt: skip
    """Train, and tell epochs and what it came to."""
    trained = train(trainee, course, settings, telling(stage, course, progress), most_epochs)
    tell_result(stage, course, trained.run, progress)
    return trained


def train_with_retries(
    name: str, trainee: Trainee, subject: TrainingSet, settings: Training, progress: ProgressListener,
    decoder: Mapping[str, np.ndarray] | None = None,
) -> tuple[TrainedNetwork, TrainingRun]:  # fmt: skip
    """The network of the best attempt, and its record. `decoder`: weights that stay as they are; None: they are
    learnt."""
    problem = subject.problem

    def once(training: Training, most_epochs: int | None = None) -> tuple[TrainedNetwork, TrainingRun]:
        course = problem.course(subject.visible, training.seed, decoder)
        trained = train_aloud(f"train {name}", trainee, course, training, progress, most_epochs)
        return trained, run_of(name, trained.run, course, trainee.blocks.trained_by)

    learning_rate, steps = settings.learning_rate or trainee.learning_rate, trainee.blocks.steps(problem.items)
    return learn_with_retries(once, settings, learning_rate, steps, problem.majority, progress)


def train_beside(
    name: str, trainee: Trainee, subject: TrainingSet, settings: Training, progress: ProgressListener,
    decoder: Mapping[str, np.ndarray] | None,
) -> tuple[Tensors, tuple[TrainingRun]]:  # fmt: skip
    """A network beside one that is trained already, once, and the record of it. `decoder`: weights that stay as they
    are; empty: outputs are answers."""
    course = subject.problem.course(subject.visible, settings.seed, decoder)
    trained = train_aloud(f"train {name}", trainee, course, settings, progress)
    return trained.tensors, (run_of(name, trained.run, course, trainee.blocks.trained_by),)


# --- networks over one list of neighbours, and over relations


def trainee_over_rows(
    model: Model, features: Features, data: TrainingSet, device: torch.device, initial: Tensors | None = None
) -> Trainee:
    """A module of torch_geometric over rows of nodes. `initial`: weights to begin with; None: drawn."""
    columns = features.shape[1]
    return Trainee(
        blocks_over_rows(model, features, data.graph, device), device, spec_of(model.architecture).learning_rate,
        lambda _: network_over_rows(model, columns, data.classes, device, initial),
    )  # fmt: skip


def trainee_over_relations(
    spec: RelationalSpec, shape: RelationalShape, model: Model, subject: TrainingSet, name: str,
    progress: ProgressListener, device: torch.device = CPU, initial: Sequence[RelationalLayer] | None = None,
) -> Trainee:  # fmt: skip
    """A network over relations, whose graph is one block or sampled, as `batches.py` says, which is told. `initial`:
    matrices to begin with, which are what is learnt then; None: weights are drawn."""
    batches = batches_of(model, subject.data.nodes, subject.data.edges)
    report_batches(model, batches, name, progress)
    kinds, dropout = subject.problem.answered_types(shape.graph), model.training.dropout

    def draw(course: Course) -> LearningNetwork:
        if initial is not None:
            return network_of_layers(initial, shape.graph, kinds, dropout, device)
        return drawn_network(spec, shape, kinds, course.embeddings.bound, dropout, device)

    return Trainee(blocks_of(batches, model, shape, subject, kinds, device), device, spec.learning_rate, draw)


def train_on_rows(
    data: TrainingSet, features: Features, model: Model, report: Report = silent, device: torch.device = CPU
) -> TrainedNetwork:
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
    return outputs_of(network, blocks_over_rows(model, features, graph, device), nodes)


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
        trainee = trainee_over_rows(model, features, self._data, self._device, left)
        tensors, runs = train_beside(name, trainee, self._data, model.training, self._progress, self._decoder)
        self._runs += runs
        return tensors

    def another_master(self, seed: int, name: str) -> Tensors:
        training = self._model.training.model_copy(update={"seed": seed})
        model = self._model.model_copy(update={"training": training})
        trainee = trainee_over_rows(model, self._features, self._data, self._device)
        return train_beside(name, trainee, self._data, training, self._progress, self._decoder)[0]

    def _train_recorded(self, features: Features, name: str) -> TrainedNetwork:
        trainee = trainee_over_rows(self._model, features, self._data, self._device)
        trained, run = train_with_retries(
            name, trainee, self._data, self._model.training, self._progress, self._decoder
        )
        self._runs.append(run)
        return trained
