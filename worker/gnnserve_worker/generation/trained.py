"""The variants that are trained here, each anew on its columns (paper A, A2)."""

from __future__ import annotations

import numpy as np
import torch

from gnnserve_api.gnnservice import Model
from gnnserve_worker.generation.features import keep_columns
from gnnserve_worker.generation.networks import to_tensors
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import train
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.progress import Progress, ProgressListener


class TrainedModels:
    """`variants.Models`, on a device of torch."""

    def __init__(
        self, model: Model, data: TrainingSet, features: Features, progress: ProgressListener, device: torch.device
    ) -> None:
        self._model = model
        self._data = data
        self._features = features
        self._progress = progress
        self._device = device

    def master(self, name: str) -> Tensors:
        return self._train(self._features, name)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return self._train(keep_columns(self._features, columns), name)

    def another_master(self, seed: int, name: str) -> Tensors:
        training = self._model.training.model_copy(update={"seed": seed})
        return self._train(self._features, name, self._model.model_copy(update={"training": training}))

    def _train(self, features: Features, name: str, model: Model | None = None) -> Tensors:
        def report(epoch: int, score: float) -> None:
            self._progress(Progress(f"train {name}", epoch, self._model.training.epochs, f"validation {score:.3f}"))

        return to_tensors(train(self._data, features, model or self._model, report, self._device).module)
