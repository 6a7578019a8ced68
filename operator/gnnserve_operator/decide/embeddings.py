"""Are the embeddings of the published revision made, and by which Job?

The Job comes after the revision and beside the workers, which answer whatever becomes of it. It is made again ten
minutes after it failed: a database that was away, or full, may be well by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from gnnserve_api.reasons import Reason
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_operator.decide.job_failure import describe_attempt, last_failure
from gnnserve_operator.decide.published import Published
from gnnserve_operator.observed import Observed, ObservedJob
from gnnserve_routing.verdict import Verdict, sentence

_AGAIN = timedelta(minutes=10)
"""Time after which a Job that failed is made again."""


@dataclass(frozen=True, slots=True)
class EmbeddingsDecision:
    verdict: Verdict | None = None
    """The condition's; None: the spec asks for no embeddings."""
    apply: bool = False
    """Whether the wanted Job is to be there."""
    delete: tuple[str, ...] = ()
    """Names of the Jobs to delete."""


def decide_embeddings(  # noqa: PLR0911 - a ladder, one rung a state
    wanted: str | None, published: Published | None, spec: GNNServiceSpec, observed: Observed, now: datetime
) -> EmbeddingsDecision:
    """`wanted`: name of the Job for the published revision; None: there is no revision, or none is asked for."""
    present = [job for job in observed.embeddings_jobs if not job.deleting]
    if spec.embeddings is None:
        return EmbeddingsDecision(delete=tuple(job.name for job in present))
    if wanted is None or published is None:
        waiting = Verdict(None, Reason.WAITING_FOR_REVISION, "Embeddings are made of the first revision.")
        return EmbeddingsDecision(waiting)
    revision = published.result.revision
    exact = next((job for job in present if job.name == wanted), None)
    others = tuple(job.name for job in present if job.name != wanted)
    if exact is not None and exact.succeeded:
        message = f"{_words_of_places(spec)} the embeddings of revision {revision}."
        return EmbeddingsDecision(Verdict(True, Reason.EMBEDDINGS_PUBLISHED, message), apply=True, delete=others)
    if spec.suspend:
        left = () if exact is None else (exact.name,)
        message = f"spec.suspend is true: the embeddings of revision {revision} are not made."
        return EmbeddingsDecision(Verdict(None, Reason.SUSPENDED, message), delete=(*others, *left))
    if exact is not None and exact.failed:
        return _after_failure(exact, others, revision, observed, now)
    if exact is None and any(job.name == wanted for job in observed.embeddings_jobs):
        message = f"Job {wanted} is made again once the old one is gone."
        return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), delete=others)
    message = f"Job {wanted} makes the embeddings of revision {revision}."
    if exact is not None and (failed := last_failure(exact, observed.pods)) is not None:
        message += f" An attempt failed: {describe_attempt(failed)}."
    return EmbeddingsDecision(Verdict(None, Reason.EMBEDDING, message), apply=True, delete=others)


def _after_failure(
    exact: ObservedJob, others: tuple[str, ...], revision: str, observed: Observed, now: datetime
) -> EmbeddingsDecision:
    last = last_failure(exact, observed.pods)
    why = describe_attempt(last) if last is not None else sentence(exact.failure_message) or exact.failure_reason
    message = (
        f"The embeddings of revision {revision} are not where they should be; what was there before still is. Job "
        f"{exact.name} failed: {why}. It is tried again ten minutes after that, or at once when you delete the Job "
        f"(`kubectl delete job {exact.name}`). Requests for predictions are answered meanwhile."
    )
    verdict = Verdict(False, Reason.EMBEDDINGS_FAILED, message)
    ended_at = datetime.fromisoformat(exact.failed_at or exact.created_at)
    if now - ended_at >= _AGAIN:
        return EmbeddingsDecision(verdict, delete=(*others, exact.name))
    return EmbeddingsDecision(verdict, apply=True, delete=others)


def _words_of_places(spec: GNNServiceSpec) -> str:
    assert spec.embeddings is not None  # noqa: S101
    sinks = len(spec.embeddings.sinks)
    index = ["the index of recommendations"] if spec.embeddings.index else []
    databases = [f"{sinks} database{'s' if sinks > 1 else ''}"] if sinks else []
    places = " and ".join([*index, *databases])
    return f"{places[0].upper()}{places[1:]} {'have' if sinks > 1 or (index and databases) else 'has'}"
