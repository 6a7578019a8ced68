"""The search for variants: what can be made of the model is measured, and what no other beats is kept.

It is a loop over the steps of every generation (`steps.py`). What needs no training is planned, written and measured at
once. What needs networks of its own is `training.py`'s to choose: each is learnt, planned and written, and all are
measured again; which of all is kept is decided in `selection.py`. Every variant is made by its planner, as if the
manifest had listed it (`gnnserve_api/spec/searched.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, Self

import msgspec

from gnnserve_api.errors import InputError
from gnnserve_api.families import POINTS
from gnnserve_api.files.search import SearchRecord
from gnnserve_api.spec.searched import Round, SearchSpace
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.generation.estimates import GraphSizes
from gnnserve_worker.generation.families.family import FamilyPlan
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.lessons import LearntNetworks, Lesson, WeightSources, networks_of, steps_of_search
from gnnserve_worker.generation.profile import GeneratedVariant
from gnnserve_worker.generation.search.candidates import Shapes, candidates_of
from gnnserve_worker.generation.search.latency_model import Degrees, LatencyModel
from gnnserve_worker.generation.search.selection import select
from gnnserve_worker.generation.search.training import Promise, model_of, predicted, promises
from gnnserve_worker.generation.steps import MeasuredVariants, RequestedRevision, RevisionContents, VariantMeter
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.revision_files import StagedRevision
from gnnserve_worker.tasks.generation import task_of


class SearchSubject(Protocol):
    """Networks whose variants are searched for."""

    @property
    def wanted(self) -> RequestedRevision:
        """With the factors that are searched in its spec."""

    @property
    def space(self) -> SearchSpace:
        """What is tried of them."""

    @property
    def data(self) -> TrainingSet: ...

    @property
    def sizes(self) -> GraphSizes: ...

    @property
    def sources(self) -> WeightSources: ...

    @property
    def learnt(self) -> LearntNetworks: ...

    @property
    def network_s(self) -> float:
        """What the first networks took to be learnt, in seconds."""

    def after(self, lessons: Sequence[Lesson]) -> Self:
        """With networks of further lessons."""

    def plan(self, variants: Variants) -> list[FamilyPlan]:
        """What families make of the networks where these variants are listed."""


def search(subject: SearchSubject, staged: StagedRevision, measure: VariantMeter) -> RevisionContents:
    """Writes variants; what is not kept stays written."""
    started, progress = time.monotonic(), subject.wanted.progress
    least, budget = subject.data.problem.least_score, subject.wanted.spec.variants.budget
    plans = [plan for each in subject.space.derived_rounds for plan in subject.plan(each.variants)]
    measured = measure(_write(plans, staged, progress, measure.lists))
    trained = _learn_promising(subject, measured, least, started + budget.seconds)
    if trained:
        plans += trained
        # All once more: what is compared is measured at the same time.
        measured = measure(_in_order([*measured.generated, *_write(trained, staged, progress, measure.lists)]))
    profile = measured.profile
    verdicts = select(profile.variants, least, budget.variants, measured.right_labels)
    record = SearchRecord(seconds=round(time.monotonic() - started, 1), variants=verdicts)
    kept = {verdict.name for verdict in verdicts if verdict.is_kept}
    progress(Progress("search", 1, 1, f"{len(kept)} of {len(verdicts)} variants are kept"))
    kept_profile = tuple(variant for variant in profile.variants if variant.name in kept)
    return RevisionContents(
        plans, measured.generated, msgspec.structs.replace(profile, variants=kept_profile, search=record)
    )


def _write(
    plans: Sequence[FamilyPlan], staged: StagedRevision, progress: ProgressListener, judged: Graph | None
) -> list[GeneratedVariant]:
    return _in_order(write_plans(plans, staged, progress, are_asked_for=False, judged=judged))


def _learn_promising(subject: SearchSubject, measured: MeasuredVariants, least: float, ends: float) -> list[FamilyPlan]:
    """Plans of the rounds whose networks were learnt, in the order of the rounds: the widest table is written first, of
    which others read a part. `ends`: when the budget does, by the monotonic clock."""
    spec, progress = subject.wanted.spec, subject.wanted.progress
    rounds = {each.trains: each for each in subject.space.trained_rounds}
    has_rows, learns_from = subject.sources.one_rows is not None, task_of(spec).one_row_sources
    rounds = {
        name: each for name, each in rounds.items()
        if all(has_rows and learns_from(one.hops) for one in each.variants.one_row)
    }  # fmt: skip
    worth, says = _worth_training(subject, rounds, measured, least)
    names = [promise.trains for promise in worth]
    steps = steps_of_search(spec, subject.sizes, names, subject.wanted.profile_budget_s)
    progress(Progress("predict latencies", 1, 1, says, steps))
    planned: dict[str, list[FamilyPlan]] = {}
    longest_s = subject.network_s
    for promise in worth:
        begun = time.monotonic()
        if begun + longest_s > ends:
            progress(Progress(f"train {promise.trains}", 1, 1, "left out: budget.seconds would not suffice"))
            continue
        listed = rounds[promise.trains].variants
        try:
            subject = subject.after(networks_of(spec, listed))
        except InputError as error:
            # A type may have no features that a perceptron could read. A search tries what there is.
            progress(Progress(f"train {promise.trains}", 1, 1, f"left out: {error.problem}"))
            continue
        planned[promise.trains] = subject.plan(listed)
        longest_s = max(longest_s, time.monotonic() - begun)
    return [plan for name in rounds for plan in planned.get(name, [])]


def _worth_training(
    subject: SearchSubject, rounds: Mapping[str, Round], measured: MeasuredVariants, least: float
) -> tuple[Sequence[Promise], str]:
    """The networks of the rounds that are promising, and what is said of that."""
    if not rounds:
        return (), "nothing needs a network of its own"
    spec, data = subject.wanted.spec, subject.data
    lists = joined_lists(data.data)
    degrees = Degrees.of(lists, data.problem.answered_types(data.schema))
    shapes = Shapes(spec, lists, subject.sizes.columns, data.classes)
    candidates = {name: candidates_of(shapes, each) for name, each in rounds.items()}
    model = model_of(degrees, measured.generated, measured.profile)
    kinds = {made.variant.network.kind for made in measured.generated}
    predicted_ms = {
        candidate.manifest.name: predicted(candidate, model, degrees, kinds)
        for of_network in candidates.values()
        for candidate in of_network
    }
    worth = promises(candidates, predicted_ms, measured.profile, least)
    return worth, _says_worth(worth, rounds, model)


def _says_worth(worth: Sequence[Promise], rounds: Collection[str], model: LatencyModel) -> str:
    names = ", ".join(promise.trains for promise in worth) or "none"
    return f"within {100 * model.error:.0f} %, mostly; of {', '.join(rounds) or 'none'} worth training: {names}"


def _in_order(generated: Sequence[GeneratedVariant]) -> list[GeneratedVariant]:
    """In the order of profiles."""
    families = list(POINTS)
    return sorted(generated, key=lambda made: families.index(made.variant.family))
