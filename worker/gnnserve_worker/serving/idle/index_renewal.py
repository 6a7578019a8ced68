"""Keeps the index of recommendations up with changes: embeddings that these have reached are computed when the engine
is idle, a few at a time, as labels are evaluated and shadows made (`accuracy/watch.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.inference.index_follower import FollowedIndex, IndexFollower
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.recent import RecentVectors
from gnnserve_worker.serving.idle.idle_jobs import Job, nodes_of_job, pause_ms
from gnnserve_worker.serving.requests import Lane
from gnnserve_worker.tasks.embedded import EmbeddedTask
from gnnserve_worker.tasks.embedding import embedded_task

_PERMILLE = 5
"""Most of the time that it takes between requests: those that meet a job are half of what a 99th percentile leaves
out."""
_QUIET_PERMILLE = 500
_MOST_NODES = 256


@dataclass(frozen=True, slots=True)
class RenewalFigures:
    """How far the indexes of recommendations have followed changes."""

    pending: int
    """As of `IndexState`."""
    renewed: int
    seconds: float
    """Time that went into finding these nodes, and computing their embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalJob(Job):
    task: EmbeddedTask
    """Which of what is computed are embeddings."""
    recent: RecentVectors
    """Where its embeddings go."""
    positions: np.ndarray
    """Positions of the seeds there, int64."""


class IndexRenewal:
    """All of it belongs to the event loop's thread."""

    what = "embeddings beside the index of recommendations could not be computed"

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` tells the engine that there is something to compute; any thread may call it."""
        self._wake = wake
        self._follower: IndexFollower | None = None
        self._turn = 0
        """Which of several indexes comes first."""
        self._find_again_ms = 0.0
        """When nodes that changes have reached are looked for next."""
        self._found_in_ms = 1.0
        """Time that they were looked for last, at first a guess."""
        self.seconds = 0.0
        """Time that went into it."""

    def follow(self, revision: ServedRevision) -> None:
        """Follow the changes of this revision from now on."""
        self._follower = follower = revision.changes.index_follower
        if follower is not None:
            follower.touched.on_touched = self._wake
            for one in follower.followed:
                one.index.on_opened = self._wake
            self._wake()  # for what was applied before

    def figures(self) -> RenewalFigures | None:
        """None: the graph does not change, or there is no index."""
        followed = () if self._follower is None else self._follower.followed
        recent = [one.recent(opened) for one in followed if (opened := one.index.opened) is not None]
        if not recent:
            return None
        return RenewalFigures(sum(one.pending for one in recent), sum(one.count for one in recent), self.seconds)

    def forget_revision(self) -> None:
        """The revision answers no more."""
        self._follower = None

    def next_job(self, lane: Lane) -> RenewalJob | None:
        follower = self._follower
        if follower is None or lane.revision.changes.index_follower is not follower:
            return None
        followed = follower.followed
        if all(one.index.opened is None for one in followed):
            return None
        self._find_more(follower)
        self._turn += 1
        jobs = (_job_beside(followed[(self._turn + place) % len(followed)], lane) for place in range(len(followed)))
        return next((job for job in jobs if job is not None), None)

    def _find_more(self, follower: IndexFollower) -> None:
        """Find some of the nodes that changes have reached, as seldom as jobs come between requests."""
        begun_ms = time.perf_counter() * 1000
        if begun_ms >= self._find_again_ms:
            if not follower.find_more():
                return
            took_ms = time.perf_counter() * 1000 - begun_ms
            self.seconds += took_ms / 1000
            # A step that is held up, by another process or a kernel's first call, is not followed by minutes of rest.
            self._find_again_ms = begun_ms + pause_ms(min(took_ms, self._found_in_ms), _PERMILLE)
            self._found_in_ms = took_ms
        self._wake()

    def finish(self, job: RenewalJob, inference: Inference, took_ms: float) -> None:
        self.seconds += took_ms / 1000
        vectors = job.task.taken(inference)
        if vectors is None:
            self.drop(job)
        else:
            job.recent.put(job.positions, vectors)

    def drop(self, job: RenewalJob) -> None:
        job.recent.give_up(job.positions)


def _job_beside(one: FollowedIndex, lane: Lane) -> RenewalJob | None:
    """The next embeddings beside an index; None: nothing waits, or no variant computes any."""
    opened = one.index.opened
    if opened is None or not (recent := one.recent(opened)).pending:
        return None
    revision, made, costs, places = lane.revision, opened.manifest, lane.chooser.costs, lane.chooser.indices
    able = [name for name in revision.comparable_variants(made.weights) if name in places]
    if not able:
        return None
    name = made.variant if made.variant in able else able[0]
    variant = places[name]
    positions = recent.take(min(_MOST_NODES, max(1, nodes_of_job(costs, variant))), one.is_gone)
    if not len(positions):
        return None
    return RenewalJob(
        name,
        positions + one.index.part.start,
        costs.compute_ms(variant, len(positions)),
        _PERMILLE,
        _QUIET_PERMILLE,
        with_embeddings=revision.needed_beside_index(brings=False).embeddings,
        task=embedded_task(revision.manifest),
        recent=recent,
        positions=positions,
    )
