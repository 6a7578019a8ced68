"""What generation does before it writes or trains: the graph is imported, and everything that was asked is checked.

Networks over one list of neighbours are prepared in `one_relation.py`, networks over several in `relations.py`,
programs in `programs/`; which it is, the pipeline chooses once, by what networks of the architecture read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.findings import report_findings
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.profile import profile_budget_s
from gnnserve_worker.generation.steps import IMPORT, GraphSizes, StepsOf
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generated import GenerationTask, Imported, LearningProblem


@dataclass(frozen=True, slots=True)
class Wanted:
    """The revision that is to be generated."""

    spec: GNNServiceSpec
    task: GenerationTask
    identity: RevisionIdentity
    repository: Repository
    progress: ProgressListener
    graph_version: str | None
    """Digest of a graph in the repository that changes are part of; None: the source's graph."""
    steps: StepsOf
    """Steps behind the import, as networks of its kind need them."""


class Preparation(Protocol):
    """A revision of which nothing is refused any more, save by what training and measuring find."""

    def generate(self, *, use_gpu: bool) -> RevisionManifest:
        """Train what is not given, and publish. The caller holds the repository's lock. `use_gpu`: as of
        `pipeline.generate`."""


Prepare = Callable[[Wanted], Preparation]
"""Raises InputError for what is wrong with the input: before torch is loaded, and before anything is written."""


def import_graph(
    wanted: Wanted, read: Callable[[GraphData], GraphData] = lambda graph: graph
) -> tuple[GraphData, LearningProblem]:
    """The graph as networks read it, and the task's problem over it; what was imported is told. `read`: makes it of the
    graph as it was imported. Raises InputError where changes have left a type without nodes."""
    progress = wanted.progress
    progress(Progress(IMPORT, 0, 1))
    imported = _imported(wanted)
    graph, problem = read(imported.graph), imported.problem
    steps = wanted.steps(wanted.spec, GraphSizes.of(graph, problem.items), profile_budget_s())
    progress(Progress(IMPORT, 1, 1, _counted(graph), steps))
    # What was left out must be reported, not only show as a poor accuracy.
    report_findings(imported.findings, progress)
    return graph, problem


def _imported(wanted: Wanted) -> Imported:
    if wanted.graph_version is None:
        return wanted.task.import_graph(wanted.repository.downloads, wanted.progress)
    data = wanted.repository.read_graph(wanted.graph_version)
    for kind in data.types:
        if not kind.nodes:
            of_type = f" of type {kind.name}" if kind.name else ""
            raise InputError(
                "spec.graph.source",
                f"changes have removed all nodes{of_type}, so that nothing can be learned about them",
                f"add nodes{of_type}, or leave the networks as they are: without retraining",
            )
    return wanted.task.pose(data)


def _counted(data: GraphData) -> str:
    """What was imported, for progress: several types and relations are counted too."""
    of_types = f" of {len(data.types)} types" if len(data.types) > 1 else ""
    by_relations = f" by {len(data.relations)} relations" if len(data.relations) > 1 else ""
    return f"{data.nodes:,} nodes{of_types}, {data.edges:,} edges{by_relations}"
