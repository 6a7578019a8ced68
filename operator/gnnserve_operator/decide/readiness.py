"""State of the service: all conditions except those about load, from the other decisions.

The first reason that applies is reported, in a fixed order: suspension and the like, obstacles, generation, the
workers, their answers. Ready is true only if none applies. Whether the endpoint answers all the same is another
question (`workers.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionType
from gnnserve_api.status.verdict import Problem, Verdict
from gnnserve_operator.decide.answers import (
    decide_accuracy,
    decide_answers,
    decide_canary,
    decide_credentials,
    decide_program,
    describe_devices,
    find_open_worker,
    find_switching,
    find_unusable,
)
from gnnserve_operator.decide.jobs import GenerationDecision, GenerationStage
from gnnserve_operator.decide.log_following import decide_updates, is_under_way
from gnnserve_operator.decide.repository import PublishedRevision, Repair
from gnnserve_operator.decide.workers import Rollout, Workers, decide_availability, expect_by_children, expect_by_spec
from gnnserve_operator.desired.access import speaks_tls
from gnnserve_operator.desired.deployment import secrets_by_field
from gnnserve_operator.desired.metadata import worker_name
from gnnserve_operator.observed import ObservedState

Conditions = dict[ConditionType, Verdict]
_GOING = frozenset({Reason.VOLUME_CLAIM_TERMINATING, Reason.VOLUME_CLAIM_MISSING})
"""Reasons for which the repository is lost already, or as soon as its pods have gone."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The decisions made so far."""

    service: str
    """Name of the service."""
    spec: GNNServiceSpec
    observed: ObservedState
    published: PublishedRevision | None
    declared: RoutingTable | None
    """The table declared to workers; None: nothing yet."""
    generation: GenerationDecision
    workers: Workers
    rollout: Rollout
    obstacle: Problem | None
    repository_kept: Verdict
    repair: Repair = field(default_factory=Repair)
    compaction: GenerationDecision | None = None
    """About the Job that compacts the log of changes; None: there is none, and none is due."""
    embeddings: Verdict | None = None
    """Whether the embeddings of the published revision are made; None: the spec asks for none."""
    base_variant: str | None = None
    """The base variant that the status tells; None: it tells of none."""

    @property
    def work(self) -> GenerationDecision:
        """The decision about the Job that there is, or should be."""
        return self.compaction or self.generation

    @property
    def compacted(self) -> str:
        """The revision that the declared one was made of, with a newer graph; empty: none."""
        is_declared = self.published is not None and self.declared is not None and (
            self.published.result.revision == self.declared.revision
        )  # fmt: skip
        return self.published.compacts if self.published is not None and is_declared else ""

    @property
    def is_moving(self) -> bool:
        """Whether the revision that is wanted is published, in a claim that goes, and is made again for another."""
        return (
            self.generation.stage not in {GenerationStage.PUBLISHED, GenerationStage.SUSPENDED}
            and self.published is not None
            and self.repair.under_way is None
            and self.published.result.recipe == self.spec.recipe()
        )


def decide_conditions(situation: Situation) -> Conditions:
    ready = _decide_ready(situation)
    stalled = _decide_stalled(situation)
    generated = _decide_generated(situation)
    goes_on = stalled is None and (situation.is_moving or (not ready.holds and not _is_at_rest(situation)))
    waits = situation.rollout.waits if stalled is None else None
    is_reconciling = goes_on or waits is not None
    going_on = generated if ready.holds else ready
    under_way = Verdict(True, going_on.reason, f"{going_on.message} {waits}" if waits else going_on.message)
    if waits is not None and not goes_on:
        reason = Reason.ROLLOUT_QUEUED if situation.rollout.is_in_line else Reason.VOLUME_CLAIM_TERMINATING
        under_way = Verdict(True, reason, waits)
    if not is_reconciling and stalled is None and (beside := _find_beside(situation)) is not None:
        is_reconciling, under_way = True, beside
    still = Verdict(False, Reason.SETTLED, "Nothing is under way.")
    if stalled is not None:
        still = Verdict(False, stalled.reason, "Nothing goes on until a person acts; see Stalled.")
    secrets = secrets_by_field(situation.spec)
    credentials = decide_credentials(secrets, situation.workers.is_rolled_out, situation.observed)
    accuracy = decide_accuracy(situation.spec, situation.observed)
    updates = None
    if situation.spec.updates is not None:
        updates = decide_updates(
            situation.spec, situation.workers.is_rolled_out, situation.compaction, situation.observed
        )  # fmt: skip
    canary = decide_canary(situation.spec, situation.declared, situation.workers.ready, situation.observed)
    done_beside = {
        ConditionType.UPDATES_FOLLOWED: updates,
        ConditionType.EMBEDDINGS_PUBLISHED: situation.embeddings,
        ConditionType.CANARY_ANSWERS: canary,
        ConditionType.PROGRAM_HEALTHY: decide_program(situation.workers.ready, situation.observed),
    }
    available = decide_availability(
        expect_by_spec(
            ready,
            situation.workers,
            situation.declared is not None,
            situation.observed,
            situation.base_variant,
            speaks_tls=speaks_tls(situation.spec.endpoint),
        ),
        situation.observed,
    )
    return {
        ConditionType.READY: ready,
        ConditionType.AVAILABLE: available,
        ConditionType.RECONCILING: under_way if is_reconciling else still,
        ConditionType.STALLED: Verdict(True, stalled.reason, stalled.message)
        if stalled is not None
        else _decide_not_stalled(is_reconciling, done_beside),
        ConditionType.VARIANTS_GENERATED: generated,
        ConditionType.WORKERS_AVAILABLE: situation.workers.verdict,
        ConditionType.REPOSITORY_KEPT: situation.repository_kept,
        **({} if credentials is None else {ConditionType.CREDENTIALS_VALID: credentials}),
        **({} if accuracy is None else {ConditionType.ACCURACY_HOLDS: accuracy}),
        **{kind: verdict for kind, verdict in done_beside.items() if verdict is not None},
    }


def _decide_not_stalled(is_reconciling: bool, beside: Mapping[ConditionType, Verdict | None]) -> Verdict:
    """Stalled where no person has to act before it goes on. `beside`: conditions about what is done beside answering,
    which Ready does not tell of."""
    if is_reconciling:
        return Verdict(False, Reason.PROGRESSING, "It may go on by itself; Ready tells what is waited for.")
    for kind, verdict in beside.items():
        if verdict is not None and verdict.holds is False:
            return Verdict(
                False,
                verdict.reason,
                f"No person has to act so that requests are answered; not all is done: see {kind}.",
            )
    return Verdict(False, Reason.SETTLED, "All is done.")


def _find_beside(situation: Situation) -> Verdict | None:
    """What goes on while the service is as declared: compaction, and the switch to its revision."""
    if (switching := _find_switching(situation)) is not None:
        return Verdict(True, switching.reason, switching.message)
    compaction = situation.compaction
    if compaction is None or not is_under_way(compaction):
        return None
    reason = Reason.QUEUED if compaction.stage == GenerationStage.QUEUED else Reason.COMPACTING
    return Verdict(True, reason, (compaction.problem or compaction).message)


def refuse(problem: str, observed: ObservedState, base_variant: str | None) -> Conditions:
    """Conditions of a spec that cannot be read. `observed`: at least what answers; `base_variant`: as the status
    tells it."""
    message = f"The spec cannot be read: {problem}. Correct it; until then everything stays as it is."
    invalid = Problem(Reason.INVALID_SPEC, message, needs_person=True)
    no = invalid.to_verdict()
    unknown = Verdict(None, Reason.INVALID_SPEC, "Nothing is looked at while the spec cannot be read.")
    return {
        ConditionType.READY: no,
        ConditionType.AVAILABLE: decide_availability(expect_by_children(invalid, observed, base_variant), observed),
        ConditionType.RECONCILING: Verdict(
            False, Reason.INVALID_SPEC, "Nothing goes on until a person acts; see Stalled."
        ),
        ConditionType.STALLED: Verdict(True, Reason.INVALID_SPEC, message),
        ConditionType.VARIANTS_GENERATED: no,
        ConditionType.WORKERS_AVAILABLE: no,
        ConditionType.REPOSITORY_KEPT: unknown,
        ConditionType.METRICS_AVAILABLE: unknown,
        ConditionType.OBJECTIVE_MET: unknown,
        ConditionType.CAPACITY_SUFFICIENT: unknown,
    }


def without_pool(problem: Problem, observed: ObservedState, base_variant: str | None) -> Conditions:
    """Conditions of a service whose pool is not there. `base_variant`: as the status tells it."""
    no = problem.to_verdict()
    unknown = Verdict(None, problem.reason, "Nothing is looked at without the pool; see Ready.")
    return {
        ConditionType.READY: no,
        ConditionType.AVAILABLE: decide_availability(expect_by_children(problem, observed, base_variant), observed),
        ConditionType.RECONCILING: Verdict(False, problem.reason, "Nothing goes on until a person acts; see Stalled."),
        ConditionType.STALLED: Verdict(True, problem.reason, problem.message),
        ConditionType.VARIANTS_GENERATED: unknown,
        ConditionType.WORKERS_AVAILABLE: no,
        ConditionType.REPOSITORY_KEPT: unknown,
        ConditionType.METRICS_AVAILABLE: unknown,
        ConditionType.OBJECTIVE_MET: unknown,
        ConditionType.CAPACITY_SUFFICIENT: unknown,
    }


def _decide_ready(situation: Situation) -> Verdict:  # noqa: PLR0911 - a ladder, one rung a reason
    generation, workers = situation.generation, situation.workers
    if situation.spec.suspend:
        return Verdict(
            False,
            Reason.SUSPENDED,
            f"spec.suspend is true: the endpoint does not answer. {_words_of_data(situation)} Set it to false to go "
            "on.",
        )
    if situation.obstacle is not None:
        old = _words_of_old(situation) if situation.obstacle.needs_person else ""
        return Verdict(False, situation.obstacle.reason, situation.obstacle.message + old)
    if (generation.stage != GenerationStage.PUBLISHED and not situation.is_moving) or situation.declared is None:
        generated = _decide_generated(situation)
        return Verdict(False, generated.reason, generated.message + _words_of_old(situation))
    if workers.wanted == 0:
        return Verdict(
            False,
            Reason.SCALED_TO_ZERO,
            f"{situation.spec.worker.replicas_field} is 0: the endpoint does not answer. Raise it to serve.",
        )
    if not workers.verdict.holds:
        return workers.verdict
    if workers.problem is not None:
        old = "" if not workers.ready else f" Meanwhile {len(workers.ready)} of the present workers answer."
        return Verdict(False, workers.problem.reason, workers.problem.message + old)
    if not workers.is_rolled_out:
        return Verdict(False, Reason.ROLLING_OUT, _words_of_rollout(situation))
    if (is_open := _find_open(situation)) is not None:
        return is_open.to_verdict()
    if (unusable := _find_unusable(situation)) is not None:
        return unusable.to_verdict()
    answers = decide_answers(
        situation.service, situation.declared, situation.compacted, workers.ready, situation.observed
    )  # fmt: skip
    if answers is not None:
        return answers.to_verdict()
    count = f"{len(workers.ready)} worker{'s' if len(workers.ready) != 1 else ''}"
    devices = describe_devices(situation.spec, workers.ready, situation.observed)
    is_going = situation.repository_kept.reason in _GOING
    going = " The repository is about to go: see RepositoryKept." if is_going else ""
    named = _words_of_named(situation.spec)
    old = f"{situation.compacted}, soon from " if _find_switching(situation) is not None else ""
    return Verdict(
        True,
        Reason.SERVING,
        f"{count} and the endpoint answer from revision {old}{situation.declared.revision}.{devices}{named}{going}",
    )


def _words_of_named(spec: GNNServiceSpec) -> str:
    if spec.revision is None:
        return ""
    return " While spec.revision is set, graph, model and variants of the spec change nothing."


def _find_switching(situation: Situation) -> Problem | None:
    """A worker that has yet to load the revision in which the log is compacted, and answers as well meanwhile."""
    if situation.declared is None:
        return None
    return find_switching(situation.declared, situation.compacted, situation.workers.ready, situation.observed)


def _find_open(situation: Situation) -> Problem | None:
    """An open worker of the present spec: those that are being replaced still follow the previous one."""
    if situation.spec.endpoint.tokens is None or not situation.workers.is_rolled_out:
        return None
    return find_open_worker(situation.workers.ready, situation.observed)


def _find_unusable(situation: Situation) -> Problem | None:
    """Credentials of workers of the present spec; those that wait for theirs are the workers' own problem."""
    if situation.spec.suspend or not situation.workers.is_rolled_out:
        return None
    return find_unusable(secrets_by_field(situation.spec), situation.observed)


def _decide_generated(situation: Situation) -> Verdict:  # noqa: PLR0911 - a ladder, one rung a stage
    generation, published = situation.generation, situation.published
    match generation.stage:
        case GenerationStage.PUBLISHED:
            variants = " ".join(variant.name for variant in published.result.variants) if published else ""
            return Verdict(True, Reason.PUBLISHED, f"{generation.message.rstrip('.')}, with variants {variants}.")
        case GenerationStage.SUSPENDED:
            return Verdict(False, Reason.SUSPENDED, f"spec.suspend is true. {generation.message}")
        case _ if generation.problem is not None and (generation.problem.needs_person or situation.obstacle is None):
            problem = generation.problem
            return Verdict(False, problem.reason, f"{situation.repair.words} {problem.message}".lstrip())
        case _ if situation.obstacle is not None:
            return situation.obstacle.to_verdict()
        case GenerationStage.QUEUED:
            return Verdict(False, Reason.QUEUED, f"{situation.repair.words} {generation.message}".lstrip())
        case _:
            if situation.repair.under_way is not None:
                return Verdict(False, Reason.REVISION_DAMAGED, f"{situation.repair.words} {generation.message}")
            return Verdict(False, Reason.GENERATING, generation.message)


def _decide_stalled(situation: Situation) -> Problem | None:
    """The first problem that needs a person."""
    if situation.spec.suspend:
        # Nothing is to go on.
        return None
    problems = (
        situation.obstacle, situation.generation.problem, situation.workers.problem, _find_open(situation),
        _find_unusable(situation),
    )  # fmt: skip
    return next((problem for problem in problems if problem is not None and problem.needs_person), None)


def _is_at_rest(situation: Situation) -> bool:
    """Whether everything asked for is done, although nothing is served."""
    if situation.spec.suspend:
        jobs = (job for job in situation.observed.jobs if not (job.is_over or job.suspended))
        return situation.workers.existing == 0 and not any(True for _ in jobs)
    is_done = situation.workers.wanted == 0 and situation.workers.existing == 0
    return is_done and situation.generation.stage == GenerationStage.PUBLISHED


def _words_of_rollout(situation: Situation) -> str:
    deployment = situation.observed.deployment
    if deployment is None or not deployment.deleting:
        return "Worker pods are being replaced one by one; the old ones answer."
    return (
        f"Deployment {worker_name(situation.service)} is being deleted, and is made again once it is gone; its pods "
        "answer. If it stays, see its finalizers."
    )


def _words_of_data(situation: Situation) -> str:
    """Message about what remains while the service is suspended."""
    if situation.published is None and situation.repository_kept.holds is not False:
        return "No revision is published."
    return "The data is kept." if situation.repository_kept.holds else situation.repository_kept.message


def _words_of_old(situation: Situation) -> str:
    """Message about the old revision while another recipe is generated."""
    if situation.declared is None or not situation.workers.ready:
        return ""
    return f" Until then revision {situation.declared.revision} keeps answering."
