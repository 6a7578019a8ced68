"""The variants of weights that the user gives: the master as it is, pruned ones refitted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.training import TrainingRun
from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.channels import narrow_aloud
from gnnserve_worker.generation.moments import MAX_COLUMNS, Moments, first_layer_moments, refit, sample_nodes
from gnnserve_worker.generation.training_set import TrainingSet, keep_columns, visible_nodes
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.registry import Tensors, first_layer, with_first_layer
from gnnserve_worker.progress import Progress, ProgressListener


class GivenModels:
    """`lessons.Models` without training."""

    def __init__(
        self,
        master: Tensors,
        decoder: Mapping[str, np.ndarray],
        data: TrainingSet,
        features: Features,
        model: Model,
        progress: ProgressListener,
    ) -> None:
        """`decoder`: as `Models.decoder`."""
        training = model.training
        self._model = model
        self._master = master
        self._decoder = decoder
        self._data = data
        self._features = features
        self._nodes = sample_nodes(visible_nodes(data.graph.nodes, data.splits, training.scope), training.seed)
        self._progress = progress

    @property
    def runs(self) -> tuple[TrainingRun, ...]:
        """Empty: nothing is trained."""
        return ()

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        return self._decoder

    def master(self, name: str) -> Tensors:
        return self._master

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        self._progress(Progress(f"refit {name}", 0, 1))
        first = refit(first_layer(self._master), self._moments, columns)
        self._progress(Progress(f"refit {name}", 1, 1))
        return with_first_layer(self._master, first)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        """Fit what is left of the network, without training it further."""
        features = self._features if columns is None else keep_columns(self._features, columns)
        return narrow_aloud(self._model, wide, factor, features, self._data, name, self._progress)

    def another_master(self, seed: int, name: str) -> Tensors:
        raise ValueError(f"given weights have no seed to change to {seed}")  # the manifest refuses to ask

    @cached_property
    def _moments(self) -> Moments:
        first = first_layer(self._master)
        if first.columns > MAX_COLUMNS:
            raise InputError(
                "spec.variants.pruning.factors",
                f"prune given weights of {first.columns:,} feature columns; refitting handles up to {MAX_COLUMNS:,}",
                "use [1]",
            )
        return first_layer_moments(first, self._features, self._data.visible_graph, self._nodes)
