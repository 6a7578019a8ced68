"""The variants that are trained here, each anew on its columns (Dynamic GNN inference as-a-service, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from gnnserve_api.spec.model import Model, Training
from gnnserve_api.training import Source, TrainingRun
from gnnserve_worker.generation.attempts import learn_with_retries
from gnnserve_worker.generation.channels import narrow_aloud
from gnnserve_worker.generation.features import keep_columns
from gnnserve_worker.generation.networks import to_tensors
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import Course, Lesson, Trained, train
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.progress import Progress, ProgressListener


class TrainedModels:
    """The `families.family.Models` of a service that is trained here, on a torch device."""

    learns_from: ClassVar[Source] = "labels"

    def __init__(
        self, model: Model, data: TrainingSet, features: Features, progress: ProgressListener, device: torch.device
    ) -> None:
        self._model = model
        self._data = data
        self._features = features
        self._progress = progress
        self._device = device
        self._runs: list[TrainingRun] = []

    @property
    def runs(self) -> Sequence[TrainingRun]:
        return self._runs

    def master(self, name: str) -> Tensors:
        return self._train_recorded(self._features, name)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return self._train_recorded(keep_columns(self._features, columns), name)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        """Train what is left of the network further, by the recipe's settings."""
        features = self._features if columns is None else keep_columns(self._features, columns)
        model = self._model.with_fewer_channels(factor)
        left = narrow_aloud(self._model, wide, factor, features, self._data, name, self._progress)
        trained = self._train(features, name, model, left)
        self._runs.append(run_of(name, trained, self.learns_from))
        return to_tensors(trained.module)

    def another_master(self, seed: int, name: str) -> Tensors:
        training = self._model.training.model_copy(update={"seed": seed})
        model = self._model.model_copy(update={"training": training})
        return to_tensors(self._train(self._features, name, model).module)

    def _train_recorded(self, features: Features, name: str) -> Tensors:
        model = self._model

        def learn(training: Training, most_epochs: int | None = None) -> tuple[Trained, TrainingRun]:
            chosen = model.model_copy(update={"training": training})
            trained = self._train(features, name, chosen, most_epochs=most_epochs)
            return trained, run_of(name, trained, self.learns_from)

        learning_rate = model.training.learning_rate or spec_of(model.architecture).learning_rate
        steps = -(-len(self._data.splits.train) // model.training.batch_size)
        trained, run = learn_with_retries(
            learn, model.training, learning_rate, steps, self._data.majority, self._progress
        )
        self._runs.append(run)
        return to_tensors(trained.module)

    def _train(
        self,
        features: Features,
        name: str,
        model: Model,
        initial: Tensors | None = None,
        most_epochs: int | None = None,
    ) -> Trained:
        return train_aloud(
            f"train {name}",
            self._data,
            features,
            model,
            self._progress,
            self._device,
            initial=initial,
            course=self._course(model),
            most_epochs=most_epochs,
        )

    def _course(self, model: Model) -> Course | None:
        """What to learn; None: the labels of training nodes."""
        return None


def train_aloud(
    stage: str,
    data: TrainingSet,
    features: Features,
    model: Model,
    progress: ProgressListener,
    device: torch.device,
    lesson: Lesson | None = None,
    initial: Tensors | None = None,
    course: Course | None = None,
    most_epochs: int | None = None,
) -> Trained:
    """Train, and tell each epoch and what it came to."""

    def report(done: int, ends_at: int, score: float) -> None:
        if done < ends_at:  # the last epoch is reported below, with the result
            progress(Progress(stage, done, ends_at, f"validation {score:.3f}"))

    trained = train(data, features, model, report, device, lesson, initial, course, most_epochs)
    came_to = f"validation {trained.validation_score:.3f} at epoch {trained.epoch:,}, {trained.steps:,} steps"
    progress(Progress(stage, trained.epochs, trained.epochs, came_to))
    return trained


def run_of(name: str, trained: Trained, learns_from: Source = "labels") -> TrainingRun:
    """What is recorded of a training."""
    return TrainingRun(
        name=name,
        epochs=trained.epochs,
        steps=trained.steps,
        best_epoch=trained.epoch,
        validation=trained.validation_score,
        rising=trained.rising,
        learnt_from=learns_from,
    )
