"""Networks that are to be trained: torch_geometric's over rows of nodes with one list of neighbours, and those over
relations. What differs is how weights are drawn and which blocks of the graph they read; `train.py` trains either."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np
import torch
from msgspec import UNSET, UnsetType

from gnnserve_api.spec.model import Model
from gnnserve_api.training import TrainedBy
from gnnserve_worker.generation.batches import batches_of, report_batches
from gnnserve_worker.generation.blocks import ListBlocks, SampledBlocks, WholeGraph, blocks_of
from gnnserve_worker.generation.epochs import Report
from gnnserve_worker.generation.learner import outputs_of
from gnnserve_worker.generation.networks import CPU, ModuleNetwork, build_module, load_tensors
from gnnserve_worker.generation.relation_networks import RelationNetwork
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.train import Trained, silent, train
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.models.relational import RelationalShape, RelationalSpec
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.course import Course


class TraineeOverRows:
    """A module of torch_geometric over rows of nodes."""

    trained_by: ClassVar[UnsetType] = UNSET

    def __init__(
        self, model: Model, features: Features, data: TrainingSet, device: torch.device, initial: Tensors | None = None
    ) -> None:
        """`initial`: weights to begin with; None: drawn."""
        self._model, self._shape, self._initial = model, (features.shape[1], data.classes), initial
        self.device, self.blocks = device, ListBlocks(model, features, data.graph, device)
        self.learning_rate = spec_of(model.architecture).learning_rate

    def draw(self, course: Course) -> ModuleNetwork:
        module = build_module(self._model, *self._shape)
        if self._initial is not None:
            load_tensors(module, self._initial)
        return ModuleNetwork(module.to(self.device))


class TraineeOverRelations:
    """A network over relations, whose graph is one block or sampled, as `batches.py` says."""

    def __init__(
        self, spec: RelationalSpec, shape: RelationalShape, model: Model, blocks: WholeGraph | SampledBlocks,
        kinds: Collection[int], device: torch.device,
    ) -> None:  # fmt: skip
        """`kinds`: places of the types whose nodes have outputs."""
        self._spec, self._shape, self._kinds, self._dropout = spec, shape, kinds, model.training.dropout
        self.device, self.blocks, self.learning_rate = device, blocks, spec.learning_rate
        self.trained_by: TrainedBy = blocks.trained_by

    @classmethod
    def of(
        cls, spec: RelationalSpec, shape: RelationalShape, model: Model, subject: TrainingSet, name: str,
        progress: ProgressListener, device: torch.device = CPU,
    ) -> TraineeOverRelations:  # fmt: skip
        """Choose how the graph is gone through, and tell it."""
        batches = batches_of(model, subject.data.nodes, subject.data.edges)
        report_batches(model, batches, name, progress)
        kinds = subject.problem.answered_types(shape.graph)
        return cls(spec, shape, model, blocks_of(batches, model, shape, subject, kinds, device), kinds, device)

    def draw(self, course: Course) -> RelationNetwork:
        bound = course.embeddings.bound
        return RelationNetwork(self._spec, self._shape, self._kinds, bound, self._dropout, self.device)


def train_on_rows(
    data: TrainingSet, features: Features, model: Model, report: Report = silent, device: torch.device = CPU
) -> Trained:
    """Train a module by the course of the data's problem."""
    course = data.problem.course(data.visible, model.training.seed)
    return train(TraineeOverRows(model, features, data, device), course, model.training, report)


def predict(
    tensors: Tensors, features: Features, graph: Graph, nodes: np.ndarray, model: Model, classes: int,
    device: torch.device = CPU,
) -> np.ndarray:  # fmt: skip
    """Scores of a module with these weights, float32 [nodes, classes], without dropout and with one fixed sample of
    neighbours."""
    module = build_module(model, features.shape[1], classes)
    load_tensors(module, tensors)
    return outputs_of(ModuleNetwork(module.to(device)), ListBlocks(model, features, graph, device), nodes)
