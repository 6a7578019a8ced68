"""The steps of a generation, one after another, whatever the graph, the model and the task are, and what they hand on:

    import → choose networks → learn → plan → write → measure → publish

A graph is imported, and everything that was asked is checked, by `prepare` of its kind: networks over one list of
neighbours are in `one_relation.py`, networks over several in `relations.py`, programs in `programs/`; which it is, the
pipeline chooses once, by what networks of the architecture read. Which networks are wanted is a pure list
(`lessons.py`). Learning them is the one slow step: each is kept as soon as it is learnt, so that a generation that is
interrupted anywhere goes on behind the last one. What is planned of them is pure, and written, measured and published
at once, or not at all; a search plans, writes and measures in rounds (`search/search.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.errors import InputError
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.given_weights import ComparedScores, says_assumed
from gnnserve_api.files.profile import Profile, StaleLayerProfile, VariantProfile
from gnnserve_api.files.repository import RankingManifest, RevisionManifest, RowSource, VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.cascades import check_stages, fit_cascades
from gnnserve_worker.generation.epochs import training_of
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.families.family import FamilyPlan, PlannedCascade
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.learning import LearningContext, begin_learning, generator_of
from gnnserve_worker.generation.lessons import Lesson, WeightSources, is_learnt, lessons_of, steps_of
from gnnserve_worker.generation.profile import GeneratedVariant, calibrated, measure_profile
from gnnserve_worker.generation.stale_layers import measure_stale_layers
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Finding, Graph, GraphData
from gnnserve_worker.models.architecture import ArchitectureSpec
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.progress import IMPORT, PROFILE, STALE, Progress, ProgressListener
from gnnserve_worker.repository.graph_files import rules_beside
from gnnserve_worker.repository.paths import RevisionIdentity
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RevisionFiles, RowRecipe, StagedRevision
from gnnserve_worker.tasks.generated import GenerationTask, ImportedGraph, Judge, LearningProblem, SplitJudgements

# --- what steps hand on


@dataclass(frozen=True, slots=True)
class RequestedRevision:
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
    def wanted(self) -> RequestedRevision:
        """With the spec as the task and the graph leave it."""

    @property
    def tables_bytes(self) -> int:
        """What tables would take on the disk at most; 0: it is not known."""

    @property
    def compared(self) -> Sequence[ComparedScores]:
        """Expected scores that given weights were held against."""

    def learn(self, lessons: Sequence[Lesson], learning: LearningContext | None) -> Networks:
        """Take the lessons. `learning`: torch, where anything is trained. The repository has the graph afterwards."""


@dataclass(frozen=True, slots=True)
class MeasuredVariants:
    generated: Sequence[GeneratedVariant]
    """With the thresholds that suit them."""
    profile: Profile
    right_labels: Mapping[str, np.ndarray]
    """By variant, as `search/selection.py` compares them."""
    cascades: Sequence[CascadeManifest] = ()
    """With the thresholds that suit the shares to be passed on."""


class VariantMeter(Protocol):
    @property
    def lists(self) -> Graph | None:
        """Lists that variants are judged over; None: those of the graph."""

    def __call__(
        self, generated: Sequence[GeneratedVariant], planned: Sequence[PlannedCascade] = ()
    ) -> MeasuredVariants:
        """Measure written variants, and the cascades that consist of them."""


@dataclass(frozen=True, slots=True)
class RevisionContents:
    """Variants that a revision publishes."""

    plans: Sequence[FamilyPlan]
    generated: Sequence[GeneratedVariant]
    """All that were made, in the order of the profile."""
    profile: Profile
    """Profile of the variants that are kept, and why they are."""
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
    """Choose the measured variants that are published, in their order."""
    write_row_source: WriteRowSource
    """Writes what makes rows of the kept tables for nodes that come later."""
    search: Callable[[StagedRevision, VariantMeter], RevisionContents] | None = None
    """Plans, writes and measures in rounds, and chooses; None: the manifest lists variants."""


Prepare = Callable[[RequestedRevision], Preparation]
"""Raises InputError for what is wrong with the input: before torch is loaded, and before anything is written."""


def import_graph(
    wanted: RequestedRevision, read: Callable[[GraphData], GraphData] = lambda graph: graph
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


def _imported(wanted: RequestedRevision) -> ImportedGraph:
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
    return wanted.task.pose_version(data, wanted.repository.downloads, wanted.progress)


def _counted(data: GraphData) -> str:
    """What was imported, for progress: several types and relations are counted too."""
    of_types = f" of {len(data.types)} types" if len(data.types) > 1 else ""
    by_relations = f" by {len(data.relations)} relations" if len(data.relations) > 1 else ""
    return f"{data.nodes:,} nodes{of_types}, {data.edges:,} edges{by_relations}"


# --- messages


def report_findings(findings: Iterable[Finding], progress: ProgressListener) -> None:
    """A line each."""
    for finding in findings:
        progress(Progress(f"imported: {finding.what}", 1, 1, f"{finding.count:,}  {finding.example}".rstrip()))


def assumptions_of(spec: GNNServiceSpec, architecture: ArchitectureSpec) -> Mapping[str, str] | UnsetType:
    """What is assumed of the given weights of a spec; UNSET: all weights are trained."""
    is_given = spec.model.checkpoint is not None or bool(spec.variants.given)
    return architecture.assumptions if is_given else UNSET


def report_assumptions(spec: GNNServiceSpec, architecture: ArchitectureSpec, progress: ProgressListener) -> None:
    """A line in the log, where weights are given."""
    assumed = assumptions_of(spec, architecture)
    if assumed is not UNSET:
        what = "assumed of the given weights, whose files do not tell it"
        report_findings([Finding(what, len(assumed), says_assumed(assumed))], progress)


# --- the steps behind the import


def take_steps(prepared: Preparation, *, use_gpu: bool) -> RevisionManifest:
    """All steps behind the import. The caller holds the repository's lock. `use_gpu`: as of `pipeline.generate`."""
    wanted = prepared.wanted
    lessons = lessons_of(wanted.spec)
    trains = is_learnt(wanted.spec)
    learning = None
    if trains:
        learning = begin_learning(
            wanted.identity, wanted.repository, prepared.tables_bytes, wanted.progress, use_gpu=use_gpu
        )
    networks = prepared.learn(lessons, learning)
    return publish_networks(wanted, networks, generator_of(trains=trains), prepared.compared)


def publish_networks(
    wanted: RequestedRevision, networks: Networks, generator: str, compared: Sequence[ComparedScores] = ()
) -> RevisionManifest:
    """The steps behind learning; nothing is visible before the last file is written. The repository has the graph.
    `compared`: expected scores that given weights were held against."""
    spec, identity, problem = wanted.spec, wanted.identity, networks.data.problem
    with wanted.repository.stage(
        identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
    ) as staged:
        judge = problem.judge(networks.decoder)
        decoder = staged.write_decoder(judge.weights)
        measure = _RevisionMeter(wanted, staged, networks.rows, rules_beside(networks.data.data), judge)
        search = networks.search
        found = _make_listed(wanted, networks, staged, measure) if search is None else search(staged, measure)
        kept = {variant.name for variant in found.profile.variants}
        variants = [made.variant for made in found.generated if made.variant.name in kept]
        _discard_unused([made.variant for made in found.generated], variants, staged)
        right = {name: one.validation for name, one in measure.verdicts.items()}
        runs = networks.sources.runs
        answers = {name: one.answers for name, one in right.items() if one.answers is not None}
        misfits = judge.misfits(spec, found.profile.variants, answers)
        return staged.commit(
            scope=spec.model.training.scope,
            ranking=networks.ranking,
            variants=variants,
            profile=found.profile,
            generator=generator,
            created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            training=training_of(spec.model.training, runs, problem.majority) if runs else None,
            row_source=networks.write_row_source(found.plans, variants, staged),
            edge_rules=rules_beside(networks.data.data),
            cascades=found.cascades,
            assumptions=networks.assumptions,
            sections=judge.sections(decoder),
            compared=compared,
            label_misfits=misfits,
            measure_stale=partial(_measure_stale, wanted),
        )


def _measure_stale(wanted: RequestedRevision, files: RevisionFiles) -> tuple[StaleLayerProfile, ...]:
    def report(done: int, total: int) -> None:
        wanted.progress(Progress(STALE, done, total))

    return measure_stale_layers(files, report, wanted.profile_budget_s)


def _make_listed(
    wanted: RequestedRevision, networks: Networks, staged: StagedRevision, measure: VariantMeter
) -> RevisionContents:
    """Plan, write and measure what the manifest lists, and what families add unasked where it is worth keeping."""
    plans = networks.plan()
    generated = write_plans(plans, staged, wanted.progress, judged=measure.lists)
    measured = measure(generated, [cascade for plan in plans for cascade in plan.cascades])
    profile = msgspec.structs.replace(measured.profile, variants=networks.keep(measured.profile.variants))
    return RevisionContents(plans, measured.generated, profile, measured.cascades)


@dataclass(frozen=True, slots=True)
class _RevisionMeter:
    """The `VariantMeter` of a revision that is being written."""

    wanted: RequestedRevision
    staged: StagedRevision
    rows: RowRecipe | None
    edge_rules: EdgeRules | None
    judge: Judge
    verdicts: dict[str, SplitJudgements] = field(default_factory=dict)
    """What was found of each variant, by name."""

    @property
    def lists(self) -> Graph | None:
        return self.judge.graph

    def __call__(
        self, generated: Sequence[GeneratedVariant], planned: Sequence[PlannedCascade] = ()
    ) -> MeasuredVariants:
        variants, judge = self.wanted.spec.variants, self.judge
        made = [one.variant for one in generated]
        loaded = open_revision(self.staged.files_of(made, self.rows, self.edge_rules))
        judged = loaded if judge.graph is None else self._judged(loaded, generated, judge.graph)
        found: dict[str, SplitJudgements] = {}
        try:
            generated = calibrated(judged, generated, judge)
            if variants.cascades:
                # Anew: a table of a stage may have been left out, whose storage cannot hold its numbers.
                check_stages(variants, [*loaded.variants])
            by_name = {one.variant.name: one.variant for one in generated}
            cascades = fit_cascades(judged, by_name, planned, judge) if planned else []
            budget_s = self.wanted.profile_budget_s
            profile = measure_profile(loaded, generated, self._report, judge, budget_s, cascades, found, judged)
        except ProgramFailedError as error:
            remedy = "give spec.model.program.limits more, or sample neighbours by spec.model.program.fanouts"
            raise InputError(
                "spec.model.program.limits", f"while variants were measured the program {error.problem}", remedy
            ) from error
        self.verdicts.update(found)
        right = {name: one.validation.right for name, one in found.items() if one.validation.right is not None}
        return MeasuredVariants(generated, profile, right, [cascade.manifest for cascade in cascades])

    def _judged(self, loaded: LoadedRevision, generated: Sequence[GeneratedVariant], lists: Graph) -> LoadedRevision:
        """The revision as variants are judged."""
        over, copies = loaded.over(lists), [made.judged for made in generated if made.judged is not None]
        opened = open_revision(self.staged.files_of(copies, None, self.edge_rules)).variants if copies else {}
        return replace(over, variants={**over.variants, **opened})

    def _report(self, done: int, total: int) -> None:
        self.wanted.progress(Progress(PROFILE, done, total))


def _discard_unused(made: Sequence[VariantManifest], kept: Sequence[VariantManifest], staged: StagedRevision) -> None:
    """Discard tables and weights that no kept variant reads. Variants may share both."""
    for weights in sorted({variant.weights for variant in made} - {variant.weights for variant in kept}):
        staged.discard_weights(weights)
    for table in sorted(staged.tables - {table for variant in kept for table in variant.tables}):
        staged.discard_table(table)
