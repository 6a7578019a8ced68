"""From networks over a graph to a published revision: tables and variants are written, judged, measured and committed.

What networks are over, one list of neighbours or several relations, is their object's to know (`Networks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import numpy as np
from msgspec import UnsetType

from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import RankingManifest, RevisionManifest, RowSource, VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.attempts import training_of
from gnnserve_worker.generation.cascades import check_stages, fit_cascades
from gnnserve_worker.generation.families.family import FamilyPlan, PlannedCascade
from gnnserve_worker.generation.identity import RevisionIdentity
from gnnserve_worker.generation.profile import GeneratedVariant, calibrated, measure_profile
from gnnserve_worker.generation.search.search import Found, Measure, Measured
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.progress import PROFILE, Progress, ProgressListener
from gnnserve_worker.repository.graph_files import rules_beside
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RowRecipe
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tasks.generated import Judge, LearningProblem, Verdict


class Networks(Protocol):
    """Networks over a graph, and the variants that are made of them."""

    @property
    def assumptions(self) -> Mapping[str, str] | UnsetType:
        """What is assumed of given weights, since their files do not tell it. UNSET: all weights are trained."""

    @property
    def problem(self) -> LearningProblem:
        """What they have learnt."""

    @property
    def decoder(self) -> Mapping[str, np.ndarray]:
        """Weights of what reads their outputs; empty: outputs are answers."""

    @property
    def graph(self) -> GraphData:
        """What they are over."""

    @property
    def rows(self) -> RowRecipe | None:
        """What rows of new nodes are made by while variants are measured; None: none are made."""

    @property
    def ranking(self) -> RankingManifest: ...

    def runs(self) -> Sequence[TrainingRun]:
        """How all of them were trained; empty: all weights are given."""

    def make(self, staged: StagedRevision, measure: Measure, progress: ProgressListener) -> Found:
        """Write tables and weights of variants, and choose among those that are measured."""

    def write_row_source(
        self, plans: Sequence[FamilyPlan], variants: Sequence[VariantManifest], staged: StagedRevision
    ) -> RowSource:
        """Write what makes rows of the kept tables for nodes that come later."""


def publish_networks(
    spec: GNNServiceSpec,
    networks: Networks,
    identity: RevisionIdentity,
    repository: Repository,
    progress: ProgressListener,
    generator: str,
    profile_budget_s: float,
    compared: Sequence[ComparedScores] = (),
) -> RevisionManifest:
    """Publish the variants of networks that are trained or given; nothing is visible before the last file is written.
    The repository has the graph. `compared`: expected scores that given weights were held against."""
    training, problem = spec.model.training, networks.problem
    with repository.stage(
        identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
    ) as staged:
        judge = problem.judge(networks.decoder)
        decoder = staged.write_decoder(judge.weights)
        verdicts: dict[str, Verdict] = {}
        measure = partial(_measure, spec, staged, networks.rows, profile_budget_s, progress, judge, verdicts)
        found = networks.make(staged, measure, progress)
        kept = {variant.name for variant in found.profile.variants}
        variants = [made.variant for made in found.generated if made.variant.name in kept]
        _discard_unused([made.variant for made in found.generated], variants, staged)
        answers = {name: one.validation.answers for name, one in verdicts.items() if one.validation.answers is not None}
        misfits = judge.misfits(spec, found.profile.variants, answers)
        return staged.commit(
            scope=training.scope,
            ranking=networks.ranking,
            variants=variants,
            profile=found.profile,
            generator=generator,
            created_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            training=training_of(training, runs, problem.majority) if (runs := tuple(networks.runs())) else None,
            row_source=networks.write_row_source(found.plans, variants, staged),
            edge_rules=rules_beside(networks.graph),
            cascades=found.cascades,
            assumptions=networks.assumptions,
            sections=judge.sections(decoder),
            compared=compared,
            label_misfits=misfits,
        )


def _measure(
    spec: GNNServiceSpec,
    staged: StagedRevision,
    rows: RowRecipe | None,
    budget_s: float,
    progress: ProgressListener,
    judge: Judge,
    verdicts: dict[str, Verdict],
    generated: Sequence[GeneratedVariant],
    planned: Sequence[PlannedCascade] = (),
) -> Measured:
    loaded = open_revision(staged.files_of([made.variant for made in generated], rows))
    judged = loaded if judge.graph is None else loaded.over(judge.graph)
    generated = calibrated(judged, generated, judge)
    if spec.variants.cascades:
        # Anew: a table of a stage may have been left out, whose storage cannot hold its numbers.
        check_stages(spec.variants, [*loaded.variants])
    cascades = fit_cascades(judged, planned, judge)
    report = partial(_report_profile, progress)
    found: dict[str, Verdict] = {}
    profile = measure_profile(loaded, generated, report, judge, budget_s, cascades, found, judged)
    verdicts.update(found)
    right = {name: one.validation.right for name, one in found.items() if one.validation.right is not None}
    return Measured(generated, profile, right, [cascade.manifest for cascade in cascades])


def _report_profile(progress: ProgressListener, done: int, total: int) -> None:
    progress(Progress(PROFILE, done, total))


def _discard_unused(made: Sequence[VariantManifest], kept: Sequence[VariantManifest], staged: StagedRevision) -> None:
    """Discard tables and weights that no kept variant reads. Variants may share both."""
    for weights in sorted({variant.weights for variant in made} - {variant.weights for variant in kept}):
        staged.discard_weights(weights)
    for table in sorted(staged.tables - {table for variant in kept for table in variant.tables}):
        staged.discard_table(table)
