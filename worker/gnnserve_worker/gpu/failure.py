"""Failures of the GPU: what they mean, and what answers instead.

Memory that ran out may be had again: the cache is given back, and the batch tried once more. Anything else leaves a
CUDA context that must not be relied on: launch failures, illegal addresses, uncorrectable memory errors and a device
that fell off the bus hold for all that the process would still do there. So from then on the process uses no GPU: where
the CPU may answer, it does, beginning with the very batch that failed; elsewhere the process ends, and the kubelet
starts it anew. Nothing of a failed batch is ever delivered.
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
import torch

from gnnserve_api.errors import DeviceError, DeviceLostError
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.viewed import UnsampledError
from gnnserve_worker.graph.view import BatchView
from gnnserve_worker.inference.batch import Infer, Inference, infer_batch
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.repository.loaded import LoadedRevision

_MEMORY_WORDS = ("out of memory", "cublas_status_alloc_failed", "cuda_error_out_of_memory")
"""torch, Triton and the driver each have their own exception for it."""
_DEVICE_WORDS = ("cuda error", "cuda driver error", "[cuda]", "cublas_status_", "cudnn_status_")
START_ANEW = "start the worker anew to use it again"
_log = logging.getLogger(__name__)

_Answer = Callable[[Infer], Inference]
"""One batch, by whatever computes it."""


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in _MEMORY_WORDS)


def is_of_device(error: BaseException) -> bool:
    """Whether the GPU said it, and not what prepares its work: a compiler that is missing harms no context."""
    text = str(error).lower()
    return isinstance(error, torch.AcceleratorError) or any(words in text for words in _DEVICE_WORDS)


def describe(error: BaseException) -> str:
    """The error's message, without the advice for debugging kernels that torch adds."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


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
            return answer(engine.infer)
        except UnsampledError:
            # No failure of the GPU's, and one batch must not take it from the others.
            return answer(self._infer_on_cpu)
        except Exception as error:  # noqa: BLE001  (whatever it was, the CPU can answer)
            _let_go(error)
            if is_out_of_memory(error) and engine.has_cache:
                return self._answer_without_cache(engine, error, answer)
            del engine
            return self._answer_on_cpu(error, answer)

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
            _log.error("%s", self._trust.lose(f"the GPU failed ({describe(error)})"))

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

    def _answer_on_cpu(self, failure: Exception, answer: _Answer) -> Inference:
        if is_out_of_memory(failure):
            why = f"the GPU's memory ran out ({describe(failure)})"
        elif isinstance(failure, DeviceError):
            # No failure of the device: a graph that has grown no longer fits.
            why = str(failure)
        else:
            why = self._trust.lose(f"the GPU failed ({describe(failure)})")
        self._leave(why, failure)
        return answer(self._infer_on_cpu)

    def _leave(self, why: str, failure: Exception | None = None) -> None:
        self._engine = None
        if not self._may_fall_back:
            raise DeviceLostError(why, "the worker ends, so that it is started anew") from failure
        self._problem = _on_cpu(why)
        _log.error("%s", self._problem, exc_info=failure)


def _on_cpu(why: str) -> str:
    return f"{why}: computing on the CPU; {START_ANEW}"


def _let_go(failure: BaseException) -> None:
    """Release what the failed frames hold: the cache, whose memory is needed at once, and the engine. They would be
    kept as long as the failure is handled or reported."""
    seen: BaseException | None = failure
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
