"""Keeps the index of recommendations up with changes: embeddings that these have reached are computed when the engine
is idle, a few at a time, as labels are evaluated and shadows made (`accuracy/watch.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gnnserve_api.families import Capabilities
from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.inference.index_follower import IndexFollower
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.recent import RecentVectors
from gnnserve_worker.nearest.revision_index import OpenIndex
from gnnserve_worker.serving.accuracy.idle import pause_ms
from gnnserve_worker.serving.idle_jobs import Job, nodes_of_job
from gnnserve_worker.serving.requests import Lane

_PERMILLE = 5
"""Most of the time that it takes between requests: those that meet a job are half of what a 99th percentile leaves
out."""
_QUIET_PERMILLE = 500
_MOST_NODES = 256
_NEEDED = Capabilities(embeddings=True, changes=True)


@dataclass(frozen=True, slots=True)
class RenewalFigures:
    """How far the index of recommendations has followed changes."""

    pending: int
    """As of `IndexState`."""
    renewed: int
    seconds: float
    """Time that went into finding these nodes, and computing their embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalJob(Job):
    recent: RecentVectors
    """Where its embeddings go."""


class IndexRenewal:
    """All of it belongs to the event loop's thread."""

    what = "embeddings beside the index of recommendations could not be computed"

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` tells the engine that there is something to compute; any thread may call it."""
        self._wake = wake
        self._follower: IndexFollower | None = None
        self._find_again_ms = 0.0
        """When nodes that changes have reached are looked for next."""
        self.seconds = 0.0
        """Time that went into it."""

    def follow(self, revision: ServedRevision) -> None:
        """Follow the changes of this revision from now on."""
        self._follower = follower = revision.changes.index_follower
        if follower is not None:
            follower.touched.on_touched = follower.index.on_opened = self._wake
            self._wake()  # for what was applied before

    def figures(self) -> RenewalFigures | None:
        """None: the graph does not change, or there is no index."""
        follower = self._follower
        opened = None if follower is None else follower.index.opened
        if follower is None or opened is None:
            return None
        recent = follower.recent(opened)
        return RenewalFigures(recent.pending, recent.count, self.seconds)

    def forget_revision(self) -> None:
        """The revision answers no more."""
        self._follower = None

    def next_job(self, lane: Lane) -> RenewalJob | None:
        follower = self._follower
        if follower is None or lane.revision.changes.index_follower is not follower:
            return None
        opened = follower.index.opened
        name = "" if opened is None else opened.manifest.variant
        if opened is None or name not in lane.chooser.indices:
            return None
        if not lane.revision.capabilities[name].cover(_NEEDED):
            return None
        recent = follower.recent(opened)
        self._find_more(follower, opened)
        costs, variant = lane.chooser.costs, lane.chooser.indices[name]
        nodes = recent.take(min(_MOST_NODES, max(1, nodes_of_job(costs, variant))), follower.is_gone)
        if not len(nodes):
            return None
        return RenewalJob(
            name,
            nodes.copy(),
            costs.compute_ms(variant, len(nodes)),
            _PERMILLE,
            _QUIET_PERMILLE,
            with_embeddings=True,
            recent=recent,
        )

    def _find_more(self, follower: IndexFollower, opened: OpenIndex) -> None:
        """Find some of the nodes that changes have reached, as seldom as jobs come between requests."""
        begun_ms = time.perf_counter() * 1000
        if begun_ms >= self._find_again_ms:
            if not follower.find_more(opened):
                return
            took_ms = time.perf_counter() * 1000 - begun_ms
            self.seconds += took_ms / 1000
            self._find_again_ms = begun_ms + pause_ms(took_ms, _PERMILLE)
        self._wake()

    def finish(self, job: RenewalJob, inference: Inference, took_ms: float) -> None:
        self.seconds += took_ms / 1000
        vectors = inference.embeddings
        if vectors is None:
            self.drop(job)
        else:
            job.recent.put(job.seeds, vectors)

    def drop(self, job: RenewalJob) -> None:
        job.recent.give_up(job.seeds)
