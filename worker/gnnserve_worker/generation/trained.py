"""The variants that are trained here, each anew on its columns (Dynamic GNN inference as-a-service, section 3.3).

Where a decoder reads what networks give, it is learnt with the network of all columns; the others learn to be read by
it. So variants differ in their table, hops and network alone, and their outputs can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from gnnserve_api.spec.model import Model
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.channels import narrow_aloud
from gnnserve_worker.generation.features import keep_columns
from gnnserve_worker.generation.learner import run_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import Trained, train_aloud, train_with_retries
from gnnserve_worker.generation.trainees import TraineeOverRows
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.course import Course


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
        trainee = TraineeOverRows(self._model, features, self._data, self._device)
        trained, run = train_with_retries(
            name, trainee, self._data, self._model.training, self._progress, self._decoder
        )
        self._runs.append(run)
        return trained

    def _train(
        self, features: Features, name: str, model: Model, course: Course, initial: Tensors | None = None
    ) -> Trained:
        trainee = TraineeOverRows(model, features, self._data, self._device, initial)
        return train_aloud(f"train {name}", trainee, course, model.training, self._progress)

    def _course(self, model: Model) -> Course:
        return self._data.problem.course(self._data.visible, model.training.seed, self._decoder)
