"""Running batches: a short one in the thread of the caller, a long one in the engine's thread.

The result of a long one is given back on the event loop. Nothing here knows requests: a batch is a lane, seeds and a
variant.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec
import numpy as np

from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.scheduling.closing import Batch
from gnnserve_worker.serving.lane import Lane

_MAX_BATCH_SEEDS = 65_536


class Computed(msgspec.Struct, frozen=True):
    inference: Inference
    started_ms: float
    finished_ms: float


class BatchExecutor:
    """Runs batches. One batch at a time: the engine hands over no further one until the last was given back."""

    def __init__(
        self, clock_ms: Callable[[], float], give_back: Callable[[Lane, Batch, Computed | BaseException], None]
    ) -> None:
        """`give_back` is called on the event loop with each batch that was handed over, and its result."""
        self._clock_ms = clock_ms
        self._give_back = give_back
        self._draw_keys = itertools.count(step=_MAX_BATCH_SEEDS)
        """Keys of batches, further apart than the seeds of a batch, which may add to the key."""
        self._handed: SimpleQueue[tuple[Lane, Batch, np.ndarray, bool] | None] = SimpleQueue()
        """Queue to the thread: a batch, its seeds, whether embeddings are wanted; or None to end it."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_stopped: Callable[[], None] | None = None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self, on_stopped: Callable[[], None] | None) -> None:
        """Start the thread, on the event loop that results are given back to. `on_stopped` runs in the thread."""
        self._loop = asyncio.get_running_loop()
        self._on_stopped = on_stopped
        self._thread.start()

    def end(self) -> None:
        """End the thread after the batches that were handed over."""
        self._handed.put(None)

    def join(self) -> None:
        self._thread.join()

    def hand(self, lane: Lane, batch: Batch, seeds: np.ndarray, with_embeddings: bool) -> None:
        """Hand a batch to the thread."""
        self._handed.put((lane, batch, seeds, with_embeddings))

    def infer(self, lane: Lane, batch: Batch, seeds: np.ndarray, with_embeddings: bool) -> Computed | BaseException:
        """Run one batch, in the calling thread. Errors are returned."""
        try:
            started_ms = self._clock_ms()
            key = next(self._draw_keys)
            inference = lane.revision.infer(batch.variant, seeds, key, with_embeddings=with_embeddings)
            return Computed(inference, started_ms, self._clock_ms())
        except BaseException as error:  # noqa: BLE001  (one bad batch must not take the others with it)
            return error

    def _run(self) -> None:
        try:
            while self._compute_next():
                pass
        finally:
            if self._on_stopped is not None:
                self._on_stopped()

    def _compute_next(self) -> bool:
        """Wait for a batch and compute it; False at the end.

        It is a function of its own, so that no variable of a waiting thread keeps a replaced revision alive.
        """
        handed = self._handed.get()
        if handed is None or self._loop is None:
            return False
        lane, batch, seeds, with_embeddings = handed
        computed = self.infer(lane, batch, seeds, with_embeddings)
        try:
            self._loop.call_soon_threadsafe(self._give_back, lane, batch, computed)
        except RuntimeError:
            # A forced exit closes the loop while requests are still open; their outcomes are dropped.
            if not self._loop.is_closed():
                raise
            return False
        return True
