"""Programs of a revision on a GPU, by ONNX Runtime's CUDA provider, where they give the scores that the CPU gives.

Other variants of such a revision stay on the CPU. A GPU sums in another order, and some operators in a random one, so
what it gives is held against the CPU's scores, to which a revision was proved, before it answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from gnnserve_api.errors import DeviceError
from gnnserve_api.spec.program import MOST_PROGRAM_PERMILLE
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import own_threads
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.programs.providers import CUDA, ON_CPU, ProgramDevice

DEVICE_NAME = "GPU, by ONNX Runtime's CUDA provider"
_COMPARED_NODES = 64
_RUNS = 3
_REMEDY = "use spec.worker.device: CPU (--device CPU)"
_log = logging.getLogger(__name__)


class MovesProgram(Protocol):
    """`programs.runner.ProgramRunner`, as far as its device goes."""

    def move(self, device: ProgramDevice) -> str: ...  # pragma: no cover


def programs_on_gpu(loaded: LoadedRevision, served: ServedRevision, memory_bytes: int | None) -> ServedRevision:
    """`served`, its programs by the GPU. DeviceError: they do not run there, or give other scores; they are on the CPU
    then. `memory_bytes`: of the GPU's memory, for all of them together; None: all that is free."""
    names = [name for name, variant in loaded.variants.items() if not variant.network.layers]
    nodes = _compared_nodes(loaded)

    def scores() -> list[np.ndarray]:
        return [np.concatenate([scores_of(name, node) for node in nodes]) for name in names]

    def scores_of(name: str, node: int) -> np.ndarray:
        # Alone, as was measured when the revision was made: many at once may be beyond the limits of a run.
        return infer_batch(loaded, name, np.array([node], np.int64), 0, with_embeddings=False).scores

    share = None if memory_bytes is None else memory_bytes // len(loaded.programs)
    with own_threads():
        move_where_equal(loaded.programs, ProgramDevice(is_gpu=True, gpu_memory_bytes=share), names, scores)
    _log.info("programs (%s) are run by the GPU: equal scores of %d nodes", ", ".join(names), len(nodes))
    stats = DeviceStats(DEVICE_NAME, variants=len(names))
    return replace(served, compute=replace(served.compute, device_stats=lambda: stats))


def move_where_equal(
    programs: Sequence[MovesProgram],
    device: ProgramDevice,
    variants: Sequence[str],
    scores: Callable[[], Sequence[np.ndarray]],
) -> None:
    """Move programs from the CPU to a device. `scores`: of some nodes, by each of `variants`. DeviceError: as above."""
    try:
        expected = scores()
        for one in programs:
            _require_cuda(one.move(device))
        first, *others = [scores() for _ in range(_RUNS)]
        for name, wanted, found, *again in zip(variants, expected, first, *others, strict=True):
            _require_equal(name, wanted, found, again)
    except (DeviceError, ProgramFailedError) as error:
        for one in programs:
            one.move(ON_CPU)
        if isinstance(error, DeviceError):
            raise
        raise DeviceError(f"a program does not run on the GPU: {error}", _REMEDY) from error


def _require_cuda(provider: str) -> None:
    if provider != CUDA:
        raise DeviceError(f"ONNX Runtime runs a program by {provider} where CUDA was wanted", _REMEDY)


def _require_equal(name: str, expected: np.ndarray, found: np.ndarray, again: Sequence[np.ndarray]) -> None:
    if not all(np.array_equal(found, one, equal_nan=True) for one in again):
        raise DeviceError(f"program {name} gives other scores from run to run on the GPU", _REMEDY)
    largest = float(np.abs(expected).max(initial=0.0))
    off = float(np.abs(found - expected).max(initial=0.0))
    # Not "more than", which is not so of NaN.
    if not off <= MOST_PROGRAM_PERMILLE / 1000 * largest:
        raise DeviceError(
            f"program {name} gives other scores on the GPU than on the CPU: they differ by {off:.2g}, the largest "
            f"being {largest:.2g}",
            _REMEDY,
        )


def _compared_nodes(loaded: LoadedRevision) -> list[int]:
    """Nodes all over the graph."""
    count = loaded.answered_nodes
    return [*range(0, count, -(-count // _COMPARED_NODES))]
