"""Networks of one-row variants: perceptrons that stand in for the model, trained in three ways.

From the labels; from the scores of the model, its teacher, as *Graph-less neural networks* (GLNN) distils them; and
from both. Which is best differs from graph to graph, so the one with the best validation score is kept. With inductive
training a network sees training nodes alone, and of them what the visible part of the graph makes of them; so does the
teacher whose scores it learns. With transductive training it learns the teacher's scores of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import torch

from gnnserve_api.spec.model import Model
from gnnserve_api.training import Source, TrainingRun
from gnnserve_worker.generation.families.family import OneRowNetwork
from gnnserve_worker.generation.learning import Resumption, digest_of
from gnnserve_worker.generation.lessons import Teacher, TensorsAndRuns
from gnnserve_worker.generation.train import Trained, predict, run_of, train_aloud, trainee_over_rows
from gnnserve_worker.generation.training_set import ModelRows, TrainingSet, visible_nodes
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.registry import Tensors, projection_of
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tables.table import projected_blocks
from gnnserve_worker.tasks.generated import Course


class TrainedOneRows:
    """The `lessons.OneRowModels` of a service, on a torch device."""

    def __init__(
        self,
        model: Model,
        data: TrainingSet,
        rows_of: Callable[[Model], ModelRows],
        rows: Features | None,
        progress: ProgressListener,
        device: torch.device,
        resumption: Resumption,
        teacher: Teacher | None = None,
    ) -> None:
        """`model`: the one that they stand in for. `rows`: what training sees of it; None: it is no network of layers,
        but this `teacher`. `rows_of`: makes what a one-row model reads."""
        self._model = model
        self._data = data
        self._rows_of = rows_of
        self._rows = rows
        self._progress = progress
        self._device = device
        self._resumption = resumption
        self._teacher = teacher
        self._runs: list[TrainingRun] = []
        self._taught: np.ndarray | None = None

    @property
    def runs(self) -> list[TrainingRun]:
        return self._runs

    def teacher_of(self, master: Tensors | None) -> Teacher:
        if self._teacher is not None:
            return self._teacher
        if self._rows is None or master is None:
            raise ValueError("one-row networks stand in for a network of layers, and there is none")
        data = self._data
        return _MasterTeacher(self._model, self._rows, data.visible_graph, master, data.classes, self._device)

    def one_row(self, hops: int, name: str, teacher: Teacher) -> OneRowNetwork:
        model = self._model.one_row(hops)
        rows = self._rows_of(model)
        made_for = {"hops": str(hops), "master": teacher.digest}
        tensors, runs = self._resumption.network(name, made_for, lambda: self._train_best(model, rows, name, teacher))
        self._runs += runs
        # Made now, so that wide propagated features need not be kept until tables are written.
        blocks = projected_blocks(rows.served, projection_of(tensors).rows)
        return OneRowNetwork(model.network(self._data.classes), tensors, np.concatenate(list(blocks)))

    def _train_best(self, model: Model, rows: ModelRows, name: str, teacher: Teacher) -> TensorsAndRuns:
        tried: dict[Source, Trained] = {}
        courses: dict[Source, Course] = {}
        trainee = trainee_over_rows(model, rows.trained, self._data, self._device)
        for course in self._courses(teacher):
            source = course.learnt_from
            courses[source] = course
            tried[source] = train_aloud(f"train {name} from {source}", trainee, course, model.training, self._progress)
        kept = max(tried, key=lambda source: tried[source].run.score)
        best = tried[kept]
        scores = {source: trained.run.score for source, trained in tried.items()}
        run = msgspec.structs.replace(run_of(name, best.run, courses[kept]), tried=scores)
        return best.tensors, [run]

    def _courses(self, teacher: Teacher) -> Iterator[Course]:
        """What there is to learn, and then what the teacher knows."""
        data, training = self._data, self._model.training
        yield data.problem.course(data.visible, training.seed)
        nodes = visible_nodes(data.graph.nodes, data.splits, training.scope)
        yield from data.problem.distilled(data.visible, nodes, self._taught_by(teacher))

    def _taught_by(self, teacher: Teacher) -> np.ndarray:
        """The teacher's scores of the nodes that training may see, float32 [nodes, classes]; 0 of all others."""
        if self._taught is None:
            data = self._data
            self._progress(Progress("scores to learn from", 0, 1))
            nodes = visible_nodes(data.graph.nodes, data.splits, self._model.training.scope)
            self._taught = np.zeros((data.graph.nodes, data.classes), dtype=np.float32)
            self._taught[nodes] = teacher.scores(nodes)
            self._progress(Progress("scores to learn from", 1, 1))
        return self._taught


@dataclass(frozen=True, eq=False)
class _MasterTeacher:
    """A `Teacher` with the weights of a master."""

    model: Model
    rows: Features
    graph: Graph
    """The lists that training may see."""
    master: Tensors
    classes: int
    device: torch.device

    @cached_property
    def digest(self) -> str:
        return digest_of(self.master)

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        return predict(self.master, self.rows, self.graph, nodes, self.model, self.classes, self.device)
