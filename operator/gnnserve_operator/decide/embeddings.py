"""Are the embeddings of the published revision made, and by which Job?

The Job comes after the revision and beside the workers, which answer whatever becomes of it. It is made again ten
minutes after it failed: a database that was away, or full, may be well by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_operator.decide.pod_problem import (
    DEADLINE_EXCEEDED,
    describe_attempt,
    explain_refusal,
    held_problem,
    is_in_wrong_queue,
    last_failure,
    waits_for,
    words_of_deadline,
    words_of_suspension,
)
from gnnserve_operator.decide.repository import PublishedRevision
from gnnserve_operator.observed import ObservedJob, ObservedState
from gnnserve_routing.verdict import Verdict, sentence

_AGAIN = timedelta(minutes=10)
"""Time after which a Job that failed is made again."""


@dataclass(frozen=True, slots=True)
class WantedEmbeddings:
    """The part of the desired Job that the decision needs."""

    name: str
    makes: tuple[str, str]
    """Revision and part of the spec that embeddings are made of."""
    claim: str
    """Name of the claim that holds the revision, and gets the index."""
    queue: str = ""
    """Queue of the cluster that the service names for its Jobs; empty: none."""

    def is_made_by(self, job: ObservedJob) -> bool:
        """Whether a Job makes the same, as one with other resources or another image does."""
        return job.name == self.name or (job.makes, job.claim) == (self.makes, self.claim)


@dataclass(frozen=True, slots=True)
class EmbeddingsDecision:
    verdict: Verdict | None = None
    """The condition's; None: the spec asks for no embeddings."""
    apply: bool = False
    """Whether the wanted Job is to be there."""
    delete: tuple[str, ...] = ()
    """Names of the Jobs to delete."""
    waits_for: str = ""
    """Words for what the Job waits for, which are kept on it; empty: it computes, or is about to."""


def decide_embeddings(  # noqa: PLR0911 - a ladder, one rung a state
    wanted: WantedEmbeddings | None,
    published: PublishedRevision | None,
    service: str,
    spec: GNNServiceSpec,
    observed: ObservedState,
    now: datetime,
) -> EmbeddingsDecision:
    """`wanted`: the Job for the published revision; None: there is no revision, or none is asked for. `service`: name
    of the GNNService."""
    present = [job for job in observed.embeddings_jobs if not job.deleting]
    if spec.embeddings is None:
        return EmbeddingsDecision(delete=tuple(job.name for job in present))
    if wanted is None or published is None:
        first = Verdict(None, Reason.WAITING_FOR_REVISION, "Embeddings are made of the first revision.")
        return EmbeddingsDecision(first)
    revision = published.result.revision
    done = next((job for job in present if job.succeeded and wanted.is_made_by(job)), None)
    exact = done or next((job for job in present if job.name == wanted.name), None)
    others = tuple(job.name for job in present if job is not exact)
    if done is not None:
        message = f"{_words_of_places(spec)} the embeddings of revision {revision}."
        return EmbeddingsDecision(Verdict(True, Reason.EMBEDDINGS_PUBLISHED, message), done.name == wanted.name, others)
    if spec.suspend:
        left = () if exact is None else (exact.name,)
        message = f"spec.suspend is true: the embeddings of revision {revision} are not made."
        return EmbeddingsDecision(Verdict(None, Reason.SUSPENDED, message), delete=(*others, *left))
    if exact is not None and exact.failed:
        return _after_failure(exact, others, revision, spec, observed, now)
    if exact is not None and is_in_wrong_queue(exact, wanted.queue):
        message = f"Job {exact.name} is made again, as the labels of the GNNService for its queue say."
        return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), delete=(*others, exact.name))
    if exact is not None and exact.is_suspended_elsewhere:
        message = words_of_suspension(exact, service)
        return EmbeddingsDecision(Verdict(None, Reason.QUEUED, message), apply=True, delete=others)
    if exact is None and any(job.name == wanted.name for job in observed.embeddings_jobs):
        message = f"Job {wanted.name} is made again once the old one is gone."
        return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), delete=others)
    problem = None if exact is None else explain_refusal(exact) or held_problem(exact.name, observed.pods, now)
    waiting = "" if exact is None else waits_for(exact, problem, observed.pods)
    if problem is not None:
        return EmbeddingsDecision(problem.to_verdict(), apply=True, delete=others, waits_for=waiting)
    message = f"Job {wanted.name} makes the embeddings of revision {revision}."
    if exact is not None and (failed := last_failure(exact, observed.pods)) is not None:
        message += f" An attempt failed: {describe_attempt(failed)}."
    return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), apply=True, delete=others, waits_for=waiting)


def _after_failure(
    exact: ObservedJob,
    others: tuple[str, ...],
    revision: str,
    spec: GNNServiceSpec,
    observed: ObservedState,
    now: datetime,
) -> EmbeddingsDecision:
    last = last_failure(exact, observed.pods)
    if exact.failure_reason == DEADLINE_EXCEEDED:
        why = words_of_deadline(exact, spec)
    elif last is not None:
        why = describe_attempt(last)
    else:
        why = sentence(exact.failure_message) or exact.failure_reason
    message = (
        f"The embeddings of revision {revision} are not where they should be; what was there before still is. Job "
        f"{exact.name} failed: {why}. It is tried again ten minutes after that, or at once when you delete the Job "
        f"(`kubectl delete job {exact.name}`). Requests for predictions are answered meanwhile."
    )
    verdict = Verdict(False, Reason.EMBEDDINGS_FAILED, message)
    ended_at = datetime.fromisoformat(exact.failed_at or exact.created_at)
    if now - ended_at >= _AGAIN:
        return EmbeddingsDecision(verdict, delete=(*others, exact.name))
    return EmbeddingsDecision(verdict, apply=True, delete=others, waits_for=exact.waits_for)


def _words_of_places(spec: GNNServiceSpec) -> str:
    assert spec.embeddings is not None  # noqa: S101
    sinks = len(spec.embeddings.sinks)
    index = ["the index of recommendations"] if spec.embeddings.index else []
    databases = [f"{sinks} database{'s' if sinks > 1 else ''}"] if sinks else []
    places = " and ".join([*index, *databases])
    return f"{places[0].upper()}{places[1:]} {'have' if sinks > 1 or (index and databases) else 'has'}"
