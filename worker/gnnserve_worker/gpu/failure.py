"""Failures of the GPU: what answers instead, and for how long.

What an error means for the process says `device_errors.py`. Memory that ran out may be had again: the cache is given
back, and the batch tried once more. A call that was refused, or work that could not be prepared, leaves the context as
it was: the batch is tried once more with everything captured anew, and where that fails the CPU answers this batch, and
the GPU the next one, unless it fails several in a row. Anything else leaves a CUDA context that must not be relied on,
for all that the process would still do there. So from then on the process uses no GPU: where the CPU may answer, it
does, beginning with the very batch that failed; elsewhere the process ends, and the kubelet starts it anew. Nothing of
a failed batch is ever delivered.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from gnnserve_api.errors import DeviceError, DeviceLostError
from gnnserve_worker.gpu.device_errors import LASTING, Consequence, advice_on, consequence_of, describe
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.viewed import UnsampledError
from gnnserve_worker.inference.batch import Infer, Inference, infer_batch
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import BatchView

START_ANEW = "start the worker anew to use it again"
MOST_FAILED = 3
"""Batches in a row that the GPU may leave to the CPU before all that follow go there too."""
_log = logging.getLogger(__name__)

_Answer = Callable[[Infer], Inference]
"""One batch, by whatever computes it."""


class Trust:
    """Whether this process may still use its GPU: a CUDA context is shared by all that it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: str | None = None

    @property
    def lost(self) -> str | None:
        """Why not."""
        return self._lost

    def lose(self, why: str) -> str:
        """The first reason is the one that counts: it may bring about the others."""
        with self._lock:
            if self._lost is None:
                self._lost = why
            return self._lost


TRUST = Trust()
"""This process's trust in the GPU."""


class GuardedEngine:
    """A GPU's engine, and the CPU's beside it where that may answer. `infer` in one thread at a time."""

    def __init__(self, loaded: LoadedRevision, engine: GpuEngine, trust: Trust, *, may_fall_back: bool) -> None:
        self._infer_on_cpu: Infer = partial(infer_batch, loaded)
        self._engine: GpuEngine | None = engine
        self._trust = trust
        self._may_fall_back = may_fall_back
        self._problem: str | None = None
        self._failed = 0
        """Batches in a row that the GPU did not carry out, though its context lives."""

    def infer(
        self,
        variant: str,
        seeds: np.ndarray,
        key: int,
        *,
        with_embeddings: bool = True,
        view: BatchView | None = None,
    ) -> Inference:
        """`infer_batch` on the GPU. Raises DeviceLostError where the GPU is lost and nothing else may answer."""
        if self._engine is not None and self._trust.lost is not None:
            self._leave(self._trust.lost)  # by another revision, or while one was loaded

        def answer(infer: Infer) -> Inference:
            return infer(variant, seeds, key, with_embeddings=with_embeddings, view=view)

        engine = self._engine
        if engine is None or variant not in (engine.variants if view is None else engine.viewed):
            return answer(self._infer_on_cpu)
        try:
            found = answer(engine.infer)
        except UnsampledError:
            # No failure of the GPU's, and one batch must not take it from the others.
            return answer(self._infer_on_cpu)
        except Exception as error:  # noqa: BLE001  (whatever it was, the CPU can answer)
            _let_go(error)
            consequence = consequence_of(error)
            if consequence is Consequence.MEMORY and engine.has_cache:
                return self._answer_without_cache(engine, error, answer)
            if _leaves_context(error):
                return self._answer_again(engine, error, answer)
            del engine
            return self._answer_on_cpu(error, answer)
        self._failed = 0
        return found

    def forget_copies(self) -> None:
        """Drops copies on the GPU. May be called from any thread but that of `infer`. A GPU that fails at it is lost,
        for its copies may be wrong: the next batch leaves it."""
        engine = self._engine
        if engine is None or self._trust.lost is not None:
            return
        try:
            engine.forget_copies()
        except Exception as error:  # noqa: BLE001  (as in `infer`)
            _let_go(error)
            advice = advice_on(consequence_of(error))
            _log.error("%s", self._trust.lose(f"the GPU failed ({describe(error)}){advice}"))

    def would_gain(self) -> bool:
        """The engine's `would_gain`; False where it cannot be determined."""
        engine = self._engine
        if engine is None or self._trust.lost is not None:
            return False
        with suppress(Exception):  # a GPU that cannot be asked fails at the next computation
            return engine.would_gain()
        return False

    def stats(self) -> DeviceStats:
        engine, lost = self._engine, self._trust.lost
        if engine is None:
            return DeviceStats("CPU", problem=self._problem)
        if lost is not None and self._may_fall_back:  # the next batch will leave it
            return DeviceStats("CPU", problem=_on_cpu(lost))
        stats = engine.stats()
        problems = [problem for problem in (self._problem, stats.problem) if problem is not None]
        return replace(stats, problem="; ".join(problems) or None)

    def _answer_without_cache(self, engine: GpuEngine, failure: Exception, answer: _Answer) -> Inference:
        self._problem = f"the cache was given back, because the GPU's memory ran out ({describe(failure)})"
        _log.error("%s", self._problem)
        try:
            engine.give_back_cache()
            return answer(engine.infer)
        except Exception as error:  # noqa: BLE001  (as in `infer`)
            _let_go(error)
            return self._answer_on_cpu(error, answer)

    def _answer_again(self, engine: GpuEngine, failure: Exception, answer: _Answer) -> Inference:
        """Answer a batch that was refused: by the GPU, with everything captured anew, or else by the CPU."""
        _log.warning("a batch is tried once more, because the GPU did not carry it out (%s)", describe(failure))
        try:
            # A context that does not live says so here.
            engine.forget_captured()
            found = answer(engine.infer)
        except UnsampledError:
            return answer(self._infer_on_cpu)
        except Exception as error:  # noqa: BLE001  (as in `infer`)
            _let_go(error)
            self._failed += 1
            if not self._may_fall_back or self._failed >= MOST_FAILED or not _leaves_context(error):
                del engine
                return self._answer_on_cpu(error, answer)
            self._problem = f"the CPU has answered a batch that the GPU did not carry out ({describe(error)})"
            _log.error("%s", self._problem, exc_info=error)
            return answer(self._infer_on_cpu)
        self._failed = 0
        return found

    def _answer_on_cpu(self, failure: Exception, answer: _Answer) -> Inference:
        consequence = consequence_of(failure)
        if isinstance(failure, DeviceError):
            # No failure of the device: a graph that has grown no longer fits.
            why = str(failure)
        elif consequence is Consequence.MEMORY:
            why = f"the GPU's memory ran out ({describe(failure)})"
        elif consequence in LASTING:
            why = self._trust.lose(f"the GPU failed ({describe(failure)}){advice_on(consequence)}")
        else:
            why = f"the GPU did not carry out batches that were tried twice ({describe(failure)})"
        self._leave(why, failure)
        return answer(self._infer_on_cpu)

    def _leave(self, why: str, failure: Exception | None = None) -> None:
        self._engine = None
        if not self._may_fall_back:
            raise DeviceLostError(why, "the worker ends, so that it is started anew") from failure
        self._problem = _on_cpu(why)
        _log.error("%s", self._problem, exc_info=failure)


def _leaves_context(failure: Exception) -> bool:
    """Whether one batch failed, and the next may succeed. A DeviceError says that the revision no longer fits."""
    may_be_over = consequence_of(failure) in (Consequence.REFUSED, Consequence.UNPREPARED)
    return may_be_over and not isinstance(failure, DeviceError)


def _on_cpu(why: str) -> str:
    return f"{why}: computing on the CPU; {START_ANEW}"


def _let_go(failure: BaseException) -> None:
    """Release what the failed frames hold: the cache, whose memory is needed at once, and the engine. They would be
    kept as long as the failure is handled or reported."""
    seen: BaseException | None = failure
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
