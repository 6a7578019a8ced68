"""The steps of a generation, one after another, whatever the graph, the model and the task are:

    import → choose networks → learn → plan → write → measure → publish

A graph is imported, and everything that was asked is checked, by `prepare` of its kind. Which networks are wanted is a
pure list (`lessons.py`). Learning them is the one slow step: each is kept as soon as it is learnt, so that a generation
that is interrupted anywhere goes on behind the last one. What is planned of them is pure, and written, measured and
published at once, or not at all; a search plans, writes and measures in rounds (`search/search.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from gnnserve_api.errors import InputError
from gnnserve_api.given_weights import ComparedScores
from gnnserve_api.repository import RevisionManifest, VariantManifest
from gnnserve_worker.generation.attempts import training_of
from gnnserve_worker.generation.cascades import check_stages, fit_cascades
from gnnserve_worker.generation.families.family import PlannedCascade
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.learning import begin_learning, generator_of
from gnnserve_worker.generation.lessons import is_learnt, lessons_of
from gnnserve_worker.generation.preparation import Found, Measure, Measured, Networks, Preparation, Wanted
from gnnserve_worker.generation.profile import GeneratedVariant, calibrated, measure_profile
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.progress import PROFILE, Progress
from gnnserve_worker.repository.graph_files import rules_beside
from gnnserve_worker.repository.revision_files import RowRecipe
from gnnserve_worker.repository.staged import StagedRevision
from gnnserve_worker.tasks.generated import Judge, Verdict


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
    wanted: Wanted, networks: Networks, generator: str, compared: Sequence[ComparedScores] = ()
) -> RevisionManifest:
    """The steps behind learning; nothing is visible before the last file is written. The repository has the graph.
    `compared`: expected scores that given weights were held against."""
    spec, identity, problem = wanted.spec, wanted.identity, networks.data.problem
    with wanted.repository.stage(
        identity.recipe, identity.graph, identity.checkpoint, identity.given, identity.expected
    ) as staged:
        judge = problem.judge(networks.decoder)
        decoder = staged.write_decoder(judge.weights)
        measure = _Measuring(wanted, staged, networks.rows, judge)
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
        )


def _make_listed(wanted: Wanted, networks: Networks, staged: StagedRevision, measure: Measure) -> Found:
    """Plan, write and measure what the manifest lists, and what families add unasked where it is worth keeping."""
    plans = networks.plan()
    generated = write_plans(plans, staged, wanted.progress)
    measured = measure(generated, [cascade for plan in plans for cascade in plan.cascades])
    profile = msgspec.structs.replace(measured.profile, variants=networks.keep(measured.profile.variants))
    return Found(plans, measured.generated, profile, measured.cascades)


@dataclass(frozen=True, slots=True)
class _Measuring:
    """The `Measure` of a revision that is being written."""

    wanted: Wanted
    staged: StagedRevision
    rows: RowRecipe | None
    judge: Judge
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """What was found of each variant, by name."""

    def __call__(self, generated: Sequence[GeneratedVariant], planned: Sequence[PlannedCascade] = ()) -> Measured:
        variants, judge = self.wanted.spec.variants, self.judge
        loaded = open_revision(self.staged.files_of([made.variant for made in generated], self.rows))
        judged = loaded if judge.graph is None else loaded.over(judge.graph)
        found: dict[str, Verdict] = {}
        try:
            generated = calibrated(judged, generated, judge)
            if variants.cascades:
                # Anew: a table of a stage may have been left out, whose storage cannot hold its numbers.
                check_stages(variants, [*loaded.variants])
            cascades = fit_cascades(judged, planned, judge) if planned else []
            budget_s = self.wanted.profile_budget_s
            profile = measure_profile(loaded, generated, self._report, judge, budget_s, cascades, found, judged)
        except ProgramFailedError as error:
            remedy = "give spec.model.program.limits more, or sample neighbours by spec.model.program.fanouts"
            raise InputError(
                "spec.model.program.limits", f"while variants were measured the program {error.problem}", remedy
            ) from error
        self.verdicts.update(found)
        right = {name: one.validation.right for name, one in found.items() if one.validation.right is not None}
        return Measured(generated, profile, right, [cascade.manifest for cascade in cascades])

    def _report(self, done: int, total: int) -> None:
        self.wanted.progress(Progress(PROFILE, done, total))


def _discard_unused(made: Sequence[VariantManifest], kept: Sequence[VariantManifest], staged: StagedRevision) -> None:
    """Discard tables and weights that no kept variant reads. Variants may share both."""
    for weights in sorted({variant.weights for variant in made} - {variant.weights for variant in kept}):
        staged.discard_weights(weights)
    for table in sorted(staged.tables - {table for variant in kept for table in variant.tables}):
        staged.discard_table(table)
