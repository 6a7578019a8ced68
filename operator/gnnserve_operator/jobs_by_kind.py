"""The Jobs of a GNNService, parted by what they make: revisions, or the embeddings of one."""

from __future__ import annotations

from collections.abc import Iterable

from gnnserve_operator.kinds import Raw
from gnnserve_operator.observed import ObservedJob, observed_job


def observed_jobs(raws: Iterable[Raw]) -> tuple[tuple[ObservedJob, ...], tuple[ObservedJob, ...]]:
    """Jobs of generation, and Jobs that make embeddings."""
    found = [observed_job(raw) for raw in raws]
    embedding = tuple(job for job in found if job.makes_embeddings)
    return tuple(job for job in found if not job.makes_embeddings), embedding
