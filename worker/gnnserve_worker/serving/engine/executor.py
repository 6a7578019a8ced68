"""Running batches: a short one in the thread of the caller, a long one in the engine's thread, one that another process
computes in a thread of its model's own.

The result of one that is handed over is given back on the event loop. Nothing here knows requests: a batch is a lane, a
variant, seeds, and the overlays of its parts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue

from gnnserve_worker.scheduling.batcher import Batch
from gnnserve_worker.serving.requests import BatchInputs, ComputedBatch, Lane, infer


class BatchExecutor:
    """Runs batches. One batch at a time: the engine hands over no further one until the last was given back."""

    def __init__(
        self,
        clock_ms: Callable[[], float],
        give_back: Callable[[Lane, Batch, ComputedBatch | BaseException], None],
        threads: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`give_back` is called on the event loop with each batch that was handed over, and its result. `threads`: what
        the thread runs within."""
        self._clock_ms = clock_ms
        self._give_back = give_back
        self._threads = threads
        self._handed: SimpleQueue[tuple[Lane, Batch, BatchInputs] | None] = SimpleQueue()
        """Queue to the thread: a batch and what it is computed from; or None to end it."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_stopped: Callable[[], None] | None = None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self, on_stopped: Callable[[], None] | None = None) -> None:
        """Start the thread, on the event loop that results are given back to. `on_stopped` runs in the thread."""
        self._loop = asyncio.get_running_loop()
        self._on_stopped = on_stopped
        self._thread.start()

    def end(self) -> None:
        """End the thread after the batches that were handed over."""
        self._handed.put(None)

    def join(self) -> None:
        self._thread.join()

    def hand(self, lane: Lane, batch: Batch, inputs: BatchInputs) -> None:
        """Hand a batch to the thread."""
        self._handed.put((lane, batch, inputs))

    def _run(self) -> None:
        try:
            with self._threads():
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
        lane, batch, inputs = handed
        computed = infer(lane, batch.variant, inputs, self._clock_ms)
        try:
            self._loop.call_soon_threadsafe(self._give_back, lane, batch, computed)
        except RuntimeError:
            # A forced exit closes the loop while requests are still open; their outcomes are dropped.
            if not self._loop.is_closed():
                raise
            return False
        return True
