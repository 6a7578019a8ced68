"""Networks that are trained on links, with one decoder for all variants.

The decoder is learnt with the network of all columns; the others learn to be read by it. So variants differ in their
table, hops and network alone, and their embeddings can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch

from gnnserve_api.spec.model import Model
from gnnserve_api.spec.task import Links
from gnnserve_api.training import Source, TrainingRun
from gnnserve_worker.generation.link_training.course import LinkCourse
from gnnserve_worker.generation.link_training.decoders import with_decoder, without_decoder
from gnnserve_worker.generation.networks import to_tensors
from gnnserve_worker.generation.resume import ResumedModels, Resumption
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import Course
from gnnserve_worker.generation.trained import TrainedModels, run_of
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.progress import ProgressListener


def link_models(
    model: Model,
    task: Links,
    progress: ProgressListener,
    device: torch.device,
    resumption: Resumption,
    data: TrainingSet,
    features: Features,
) -> TrainedLinkModels:
    trained = _TrainedOnLinks(model, task, data, features, progress, device)
    return TrainedLinkModels(trained, ResumedModels(trained, resumption))


class _TrainedOnLinks(TrainedModels):
    """Its masters have the decoder's weights beside their own."""

    learns_from: ClassVar[Source] = "links"

    def __init__(
        self,
        model: Model,
        task: Links,
        data: TrainingSet,
        features: Features,
        progress: ProgressListener,
        device: torch.device,
    ) -> None:
        super().__init__(model, data, features, progress, device)
        if data.links is None:
            raise ValueError("the training set has no links")
        self._task = task
        self._links = data.links
        self.decoder: Tensors | None = None
        """Weights that all further networks are read by; None: they are still to be learnt."""

    def master(self, name: str) -> Tensors:
        trained = self._train(self._features, name, self._model)
        self._runs.append(run_of(name, trained, self.learns_from))
        return with_decoder(to_tensors(trained.module), trained.decoder)

    def _course(self, model: Model) -> Course:
        return LinkCourse(self._links, self._task, model.training.seed, self.decoder)


class TrainedLinkModels:
    """The `families.family.LinkModels` of a service whose networks are trained. The master comes first."""

    def __init__(self, trained: _TrainedOnLinks, kept: ResumedModels) -> None:
        self._trained = trained
        self._kept = kept

    @property
    def runs(self) -> Sequence[TrainingRun]:
        return self._kept.runs

    @property
    def decoder(self) -> Tensors:
        return {} if self._trained.decoder is None else self._trained.decoder

    def master(self, name: str) -> Tensors:
        network, self._trained.decoder = without_decoder(self._kept.master(name))
        return network

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return self._kept.pruned(columns, name)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        return self._kept.narrowed(wide, columns, factor, name)

    def another_master(self, seed: int, name: str) -> Tensors:
        return self._kept.another_master(seed, name)
