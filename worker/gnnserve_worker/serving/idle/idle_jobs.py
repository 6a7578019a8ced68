"""Jobs that the engine computes for itself when it is idle: one short job at a time, of any of several kinds of work.

It does so between requests, for a small share of its time. A job runs only while no request waits; one that arrives
meanwhile waits for it. The share bounds how many requests that can be, and a job is short, so that the 99th percentile
of answers does not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.scheduling.variants import CostModel
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
class IdleTask:
    """A job, and the work that it is of."""

    work: AnyWork
    job: Job


def nodes_of_job(costs: CostModel, variant: int) -> int:
    """As many nodes as one job may have."""
    return costs.seeds_within(variant, max(JOB_MS, _OVER_ONE_NODE * costs.batch_ms(variant, 1, 0.0)), 0.0)


LOOK_AGAIN_MS = 5.0
"""Time between two looks whether the engine is idle."""
QUIET_AFTER_MS = 1000.0
"""Time without a request after which none is expected to meet a job."""


def pause_ms(took_ms: float, permille: int) -> float:
    """Time to wait after a job that took so long, so that such jobs take that share of the time."""
    return max(LOOK_AGAIN_MS, took_ms * (1000 / permille - 1))


class IdleTimer:
    """Calls `work` again and again while there is some. It belongs to the event loop's thread."""

    def __init__(self, work: Callable[[], float | None]) -> None:
        """`work` returns how many ms to wait before it is called again; None: until the next `wake`."""
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.wake()  # there may be work from before

    def wake(self) -> None:
        """Tell that there is work."""
        if self._due is None and self._loop is not None:
            self._due = self._loop.call_later(LOOK_AGAIN_MS / 1000, self._run)

    def wake_soon(self) -> None:
        """As `wake`, from any thread."""
        self.call_soon(self.wake)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have the event loop call this soon; before the start it has none. From any thread."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # A server that has ended has closed its loop, and nothing is computed any more.
            if not loop.is_closed():
                raise

    def wait(self, wait_ms: float) -> None:
        """Call next after this time, counted from now, and not before."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._loop is not None:
            self._due = self._loop.call_later(wait_ms / 1000, self._run)

    def _run(self) -> None:
        self._due = None
        wait_ms = self._work()
        if wait_ms is not None:
            self.wait(wait_ms)
