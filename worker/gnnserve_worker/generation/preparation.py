"""What generation does before it writes or trains: the graph is imported, and everything that was asked is checked.

Networks over one list of neighbours are prepared in `one_relation.py`, networks over several in `relations.py`; which
it is, the pipeline chooses once, by what networks of the architecture read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gnnserve_api.errors import InputError
from gnnserve_api.repository import RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.findings import report_findings
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.steps import IMPORT
from gnnserve_worker.graph.store import Finding, GraphData
from gnnserve_worker.progress import Progress, ProgressListener, Step
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generated import GenerationTask, Imported


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


class Preparation(Protocol):
    """A revision of which nothing is refused any more, save by what training and measuring find."""

    def generate(self, *, use_gpu: bool) -> RevisionManifest:
        """Train what is not given, and publish. The caller holds the repository's lock. `use_gpu`: as of
        `pipeline.generate`."""


Prepare = Callable[[Wanted], Preparation]
"""Raises InputError for what is wrong with the input: before torch is loaded, and before anything is written."""


def import_graph(wanted: Wanted) -> Imported:
    """The graph and the task's problem over it. Raises InputError where changes have left a type without nodes."""
    wanted.progress(Progress(IMPORT, 0, 1))
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


def counted(data: GraphData) -> str:
    """What was imported, for progress."""
    if not data.schema.has_names:
        return f"{data.nodes:,} nodes, {data.edges:,} edges"
    types, relations = len(data.types), len(data.relations)
    return f"{data.nodes:,} nodes of {types} types, {data.edges:,} edges by {relations} relations"


def report_import(
    progress: ProgressListener, counts: str, steps: tuple[Step, ...], findings: Sequence[Finding]
) -> None:
    """Tell what was imported. What was left out must be reported, not only show as a poor accuracy."""
    progress(Progress(IMPORT, 1, 1, counts, steps))
    report_findings(findings, progress)
