"""What a generation is asked for, and what its steps hand on: a graph that is imported and checked, networks that are
learnt over it, variants that are measured.

Networks over one list of neighbours are in `one_relation.py`, networks over several in `relations.py`, programs in
`programs/`; which it is, the pipeline chooses once, by what networks of the architecture read. All go through the same
steps (`steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import UnsetType

from gnnserve_api.cascades import CascadeManifest
from gnnserve_api.errors import InputError
from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.profile import Profile, VariantProfile
from gnnserve_api.repository import RankingManifest, RowSource, VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.families.family import FamilyPlan, PlannedCascade
from gnnserve_worker.generation.findings import report_findings
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.lessons import Lesson, WeightSources, steps_of
from gnnserve_worker.generation.profile import GeneratedVariant
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import IMPORT, Progress, ProgressListener
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RowRecipe
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tasks.generated import GenerationTask, Imported, LearningProblem

if TYPE_CHECKING:
    from gnnserve_worker.generation.learning import Learning


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
    profile_budget_s: float
    """Seconds of measuring one batch size."""


class Preparation(Protocol):
    """A revision of which nothing is refused any more, save by what learning and measuring find."""

    @property
    def wanted(self) -> Wanted:
        """With the spec as the task and the graph leave it."""

    @property
    def tables_bytes(self) -> int:
        """What tables would take on the disk at most; 0: it is not known."""

    @property
    def compared(self) -> Sequence[ComparedScores]:
        """Expected scores that given weights were held against."""

    def learn(self, lessons: Sequence[Lesson], learning: Learning | None) -> Networks:
        """Take the lessons. `learning`: torch, where anything is trained. The repository has the graph afterwards."""


@dataclass(frozen=True, slots=True)
class Measured:
    generated: Sequence[GeneratedVariant]
    """With the thresholds that suit them."""
    profile: Profile
    right_labels: Mapping[str, np.ndarray]
    """By variant, as `search/selection.py` compares them."""
    cascades: Sequence[CascadeManifest] = ()
    """With the thresholds that suit the shares to be passed on."""


class Measure(Protocol):
    def __call__(self, generated: Sequence[GeneratedVariant], planned: Sequence[PlannedCascade] = ()) -> Measured:
        """Measure written variants, and the cascades that consist of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a revision publishes."""

    plans: Sequence[FamilyPlan]
    generated: Sequence[GeneratedVariant]
    """All that were made, in the order of the profile."""
    profile: Profile
    """Those that are kept, and why."""
    cascades: Sequence[CascadeManifest] = ()


WriteRowSource = Callable[[Sequence[FamilyPlan], Sequence[VariantManifest], StagedRevision], RowSource]


@dataclass(frozen=True, slots=True)
class Networks:
    """Networks over a graph that are learnt, and what is made of them."""

    data: TrainingSet
    """What they are over, and what they have learnt."""
    sources: WeightSources
    ranking: RankingManifest
    rows: RowRecipe | None
    """What rows of new nodes are made by while variants are measured; None: none are made."""
    assumptions: Mapping[str, str] | UnsetType
    """What is assumed of given weights, since their files do not tell it. UNSET: all weights are trained."""
    decoder: Mapping[str, np.ndarray]
    """Weights of what reads their outputs; empty: outputs are answers."""
    plan: Callable[[], list[FamilyPlan]]
    """Tables and variants that are made of them. Pure."""
    keep: Callable[[Sequence[VariantProfile]], tuple[VariantProfile, ...]]
    """Those of the measured variants that are published, in their order."""
    write_row_source: WriteRowSource
    """Writes what makes rows of the kept tables for nodes that come later."""
    search: Callable[[StagedRevision, Measure], Found] | None = None
    """Plans, writes and measures in rounds, and chooses; None: the manifest lists variants."""


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
    steps = steps_of(wanted.spec, GraphSizes.of(graph, problem.items), wanted.profile_budget_s)
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
