"""Networks of one-row variants: perceptrons that stand in for the model, trained in several ways.

From what the task has to learn; from the outputs of the model, its teacher, as *Graph-less neural networks* (GLNN)
distils them; and from both. Which is best differs from graph to graph, so the one with the best validation score is
kept. With inductive training a network sees training nodes alone, and of them what the visible part of the graph makes
of them; so does the teacher whose outputs it learns. With transductive training it learns the teacher's outputs of all
nodes. Where a decoder reads outputs, as of pairs, it is the teacher's, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import torch

from gnnserve_api.files.training import Source, TrainingRun
from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.families.family import OneRowNetwork, PropagatedFeatures
from gnnserve_worker.generation.learning import Resumption, digest_of
from gnnserve_worker.generation.lessons import Teacher, TensorsAndRuns
from gnnserve_worker.generation.node_rows import Embedded, NodeRows
from gnnserve_worker.generation.train import TrainedNetwork, predict, run_of, train_aloud, trainee_over_rows
from gnnserve_worker.generation.training_set import ModelRows
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import Tensors, projection_of
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tables.table import projected_blocks
from gnnserve_worker.tasks.generated import Course, TeacherOutputs

TeacherOf = Callable[[Tensors | None, Mapping[str, np.ndarray]], Teacher]
"""As `OneRowModels.teacher_of`."""


class TrainedOneRows:
    """The `lessons.OneRowModels` of a service, on a torch device."""

    def __init__(
        self, model: Model, rows: NodeRows, teacher_of: TeacherOf, progress: ProgressListener, device: torch.device,
        resumption: Resumption,
    ) -> None:  # fmt: skip
        """`model`: the one that they stand in for."""
        self._model = model
        self._rows = rows
        self._teacher_of = teacher_of
        self._progress = progress
        self._device = device
        self._resumption = resumption
        self._runs: list[TrainingRun] = []
        self._taught: np.ndarray | None = None

    @property
    def runs(self) -> list[TrainingRun]:
        return self._runs

    def teacher_of(self, master: Tensors | None, decoder: Mapping[str, np.ndarray]) -> Teacher:
        return self._teacher_of(master, decoder)

    def one_row(self, hops: int, name: str, teacher: Teacher) -> OneRowNetwork:
        model, data = self._model.one_row(hops), self._rows.data
        rows = self._rows.rows_of(model, teacher.embedded)
        made_for = {"hops": str(hops), "master": teacher.digest}
        tensors, runs = self._resumption.network(name, made_for, lambda: self._train_best(model, rows, name, teacher))
        self._runs += runs
        # Made now, so that wide propagated features need not be kept until tables are written.
        blocks = projected_blocks(rows.served, projection_of(tensors).rows)
        product = np.concatenate(list(blocks))
        propagated = PropagatedFeatures(self._features(teacher.embedded), dict(rows.moments)) if hops else None
        return OneRowNetwork(model.network(data.classes), tensors, product, self._rows.types, propagated)

    def _features(self, embedded: Embedded) -> list[Features]:
        """Features of each type that rows are made of, or embeddings in their place."""
        return [embedded.get(kind, own) for kind, own in enumerate(self._rows.features)]

    def _train_best(self, model: Model, rows: ModelRows, name: str, teacher: Teacher) -> TensorsAndRuns:
        data, tried, courses = self._rows.data, dict[Source, TrainedNetwork](), dict[Source, Course]()
        trainee = trainee_over_rows(model, rows.trained, data, self._device)
        taught = TeacherOutputs(
            self._rows.nodes, self._outputs_of(teacher), teacher.decoder, model.training.seed,
            holds_neighbours=bool(model.hops),
        )  # fmt: skip
        for course in data.problem.one_row_courses(data.visible, taught):
            source = course.learnt_from
            courses[source] = course
            tried[source] = train_aloud(f"train {name} from {source}", trainee, course, model.training, self._progress)
        kept = max(tried, key=lambda source: tried[source].run.score)
        best = tried[kept]
        scores = {source: trained.run.score for source, trained in tried.items()}
        run = msgspec.structs.replace(run_of(name, best.run, courses[kept]), tried=scores)
        return best.tensors, [run]

    def _outputs_of(self, teacher: Teacher) -> np.ndarray:
        """The teacher's outputs of the nodes that training may see, float32 [nodes, outputs]; 0 of all others."""
        if self._taught is None:
            data, nodes = self._rows.data, self._rows.nodes
            self._progress(Progress("scores to learn from", 0, 1))
            self._taught = np.zeros((data.graph.nodes, data.classes), dtype=np.float32)
            self._taught[nodes] = teacher.scores(nodes)
            self._progress(Progress("scores to learn from", 1, 1))
        return self._taught


@dataclass(frozen=True, eq=False)
class MasterTeacher:
    """A `Teacher` with the weights of a network over one list of neighbours."""

    model: Model
    rows: Features
    """What training sees of it."""
    graph: Graph
    """The lists that training may see."""
    classes: int
    device: torch.device
    master: Tensors
    decoder: Mapping[str, np.ndarray] = field(default_factory=dict)
    embedded: Embedded = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        return digest_of(self.master)

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        return predict(self.master, self.rows, self.graph, nodes, self.model, self.classes, self.device)


def given_master(master: Tensors | None) -> Tensors:
    """The weights of a teacher. Raises ValueError: there are none."""
    if master is None:
        raise ValueError("one-row networks stand in for a network of layers, and there is none")
    return master
