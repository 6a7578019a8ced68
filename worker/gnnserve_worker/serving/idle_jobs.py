"""What the engine computes for itself when it is idle: one short job at a time, of any of several kinds of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.scheduling.costs import CostModel
from gnnserve_worker.serving.requests import Lane

JOB_MS = 0.5
"""Longest expected time of a job, unless one node takes longer: a request that arrives meanwhile waits for it."""
_OVER_ONE_NODE = 1.5
"""Where one node takes longer, how much longer a job may take than that: most of it is the batch's fixed cost."""


@dataclass(frozen=True, slots=True)
class Job:
    """A short computation: seeds (int64, positions in the graph) by one variant."""

    variant: str
    seeds: np.ndarray
    expected_ms: float
    permille: int
    """Most of the time, in permille, that such jobs may take between requests."""
    quiet_permille: int
    """The same once no request has come for a while."""
    with_embeddings: bool = False


JobKind = TypeVar("JobKind", bound=Job)


class IdleWork(Protocol[JobKind]):
    """A kind of work. All of it belongs to the event loop's thread."""

    what: str
    """What it is that a failed job could not do, as the beginning of a sentence."""

    def next_job(self, lane: Lane) -> JobKind | None:
        """What is to be computed next, by the revision of this lane; None: nothing."""
        ...  # pragma: no cover

    def finish(self, job: JobKind, inference: Inference, took_ms: float) -> None:
        """Take what a job computed."""
        ...  # pragma: no cover

    def drop(self, job: JobKind) -> None:
        """Give up what a job was for, which failed: it would fail again."""
        ...  # pragma: no cover


AnyWork = IdleWork[Any]
"""Work whose jobs are its own business."""


@dataclass(frozen=True, slots=True)
class Task:
    """A job, and the work that it is of."""

    work: AnyWork
    job: Job


def nodes_of_job(costs: CostModel, variant: int) -> int:
    """As many nodes as one job may have."""
    return costs.seeds_within(variant, max(JOB_MS, _OVER_ONE_NODE * costs.batch_ms(variant, 1, 0.0)), 0.0)
