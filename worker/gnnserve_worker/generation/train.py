"""Training of one network: drawn from a seed, learnt by a course, told as it goes on, and tried again where it has
learnt hardly anything.

What the network is and how its graph is gone through is its trainee's (`trainees.py`), whether it is over one list of
neighbours or over relations. Every variant is trained anew, with the master's hyper-parameters (Dynamic GNN inference
as-a-service, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from msgspec import UnsetType

from gnnserve_api.spec.model import Training
from gnnserve_api.training import TrainedBy, TrainingRun
from gnnserve_worker.generation.attempts import learn_with_retries
from gnnserve_worker.generation.epochs import EpochsRun, Report
from gnnserve_worker.generation.learner import Block, Blocks, Network, learn, run_of, tell_result, telling
from gnnserve_worker.generation.tensors import Tensors, without_decoder
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.course import Course


class Trainee(Protocol[Block]):
    """A network that is to be trained, as often as there are seeds, over one graph."""

    @property
    def blocks(self) -> Blocks[Block]:
        """The graph over all of its edges."""

    @property
    def device(self) -> torch.device: ...

    @property
    def learning_rate(self) -> float:
        """Step size of its architecture, where the settings give none."""

    @property
    def trained_by(self) -> TrainedBy | UnsetType:
        """How training goes through the graph; UNSET: there is one way."""

    def draw(self, course: Course) -> Network[Block]:
        """The network on its device, with weights of torch's generator or those that it begins with."""


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
    trainee: Trainee[Block], course: Course, settings: Training, report: Report = silent, most_epochs: int | None = None
) -> Trained:
    """Train, and keep the weights of the epoch with the best validation score. On the CPU they depend on the seed and
    on what the network begins with alone. `most_epochs`: as of `learner.learn`."""
    torch.manual_seed(settings.seed)
    network, learning_rate = trainee.draw(course), settings.learning_rate or trainee.learning_rate
    kept, run = learn(network, trainee.blocks, course, settings, learning_rate, trainee.device, report, most_epochs)
    tensors, decoder = without_decoder(kept)
    return Trained(tensors, run, decoder)


def train_aloud(
    stage: str, trainee: Trainee[Block], course: Course, settings: Training, progress: ProgressListener,
    most_epochs: int | None = None,
) -> Trained:  # fmt: skip
    """Train, and tell epochs and what it came to."""
    trained = train(trainee, course, settings, telling(stage, course, progress), most_epochs)
    tell_result(stage, course, trained.run, progress)
    return trained


def train_with_retries(
    name: str, trainee: Trainee[Block], subject: TrainingSet, settings: Training, progress: ProgressListener,
    decoder: Mapping[str, np.ndarray] | None = None,
) -> tuple[Trained, TrainingRun]:  # fmt: skip
    """The network of the best attempt, and its record. `decoder`: weights that stay as they are; None: they are
    learnt."""
    problem = subject.problem

    def once(training: Training, most_epochs: int | None = None) -> tuple[Trained, TrainingRun]:
        course = problem.course(subject.visible, training.seed, decoder)
        trained = train_aloud(f"train {name}", trainee, course, training, progress, most_epochs)
        return trained, run_of(name, trained.run, course, trainee.trained_by)

    learning_rate, steps = settings.learning_rate or trainee.learning_rate, trainee.blocks.steps(problem.items)
    return learn_with_retries(once, settings, learning_rate, steps, problem.majority, progress)
