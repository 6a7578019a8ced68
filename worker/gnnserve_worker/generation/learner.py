"""Training of a network by a course, whichever network learns, and however a graph is gone through.

The network and the blocks of the graph that it reads are the trainee's (`train.py`). What is learnt is the task's
course, and the epochs are the loop's (`epochs.py`). Weights of the best epoch are kept, as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from msgspec import UNSET, UnsetType
from torch import nn

from gnnserve_api.spec.model import Training
from gnnserve_api.training import TrainedBy, TrainingRun
from gnnserve_worker.generation.epochs import EpochsRun, Report, run_epochs, schedule_of
from gnnserve_worker.generation.layers import Block
from gnnserve_worker.generation.networks import LearningNetwork, numbers_of
from gnnserve_worker.generation.tensors import Tensors, with_decoder
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tasks.generated import Batch, Course, Visible

VALIDATION_KEY = 1 << 40
"""Sampling key of validation. It is fixed, so that all epochs are compared on the same neighbours."""
_REPORTED_STEPS = 10
"""Steps between two reports, at least, where not each epoch is worth one."""


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

    def block(self, seeds: np.ndarray, key: int) -> Block:
        """A block for seeds, numbers of nodes. Equal keys draw the same neighbours."""


def learn(
    network: LearningNetwork, blocks: Blocks, course: Course, settings: Training, learning_rate: float,
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
def outputs_of(network: LearningNetwork, blocks: Blocks, nodes: np.ndarray) -> np.ndarray:
    """Outputs of nodes, float32 [nodes, outputs], as serving computes them, from one fixed sample where neighbours are
    sampled."""
    parts = (blocks.block(part, VALIDATION_KEY) for part in blocks.parted(nodes))
    found: np.ndarray = torch.cat([network.outputs(block, trains=False).cpu() for block in parts]).numpy()
    return found


class _Learner:
    """The `epochs.Learner` of a network."""

    def __init__(
        self, network: LearningNetwork, blocks: Blocks, decoder: nn.Module | None, optimizer: NetworkOptimizer,
        order: np.random.Generator,
    ) -> None:  # fmt: skip
        self._network, self._decoder, self._optimizer = network, decoder, optimizer
        self._blocks, self._visible, self._order = blocks, blocks, order
        self.kept: Tensors = {}

    def see(self, visible: Visible) -> None:
        self._visible = self._blocks.over(visible)

    def batches(self, items: np.ndarray) -> Iterator[np.ndarray]:
        return self._visible.parted(items, self._order)

    def step(self, batch: Batch, key: int) -> None:
        block = self._visible.block(batch.seeds, key)
        self._optimizer.step(batch.loss(self._network.outputs(block, trains=True)))

    def examine(self, nodes: np.ndarray) -> np.ndarray:
        return outputs_of(self._network, self._blocks, nodes)

    def keep(self) -> None:
        decoder = {} if self._decoder is None else numbers_of(self._decoder.state_dict())
        self.kept = with_decoder(self._network.tensors(), decoder)


# --- steps


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
