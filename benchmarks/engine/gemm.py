"""Peak of matrix products on this machine, by the fastest library at hand; prints JSON.

A bound is none if the engine computes below it, so the products are the engine's own: one single-threaded product by
packed weights per core, side by side, without the bias that follows it. torch's are tried beside them. The best of all
sizes and libraries counts, since the bound is what the machine needs at least.

Runs as a program: torch's threads are no company for a measurement that comes after it in the same process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

import numpy as np
from numba import njit

from benchmarks.engine.bandwidth import fastest_round_s
from gnnserve_api.files.profile import Compute
from gnnserve_api.variants import Storage
from gnnserve_worker.models.blas import call_library
from gnnserve_worker.models.network import Linear
from gnnserve_worker.tables.formats import FORMATS

SIZE = 2048
"""Size of torch's square matrices: large enough for the peak rate, small enough for the last-level cache."""
PACKED_SIZES = ((256, 512, 256), (256, 1024, 512), (1024, 1024, 1024), (SIZE, SIZE, SIZE))
"""Rows, inputs and outputs: from a chunk of a batch, which stays in a core's own cache, to what is large enough."""
_ROUND_GFLOP = 10
"""Work of one thread per round: some milliseconds, so that starting a round does not count."""


def measure_peaks(threads: int, seconds: float) -> dict[str, float]:
    """10^9 multiplications and additions per second by dtype; "bfloat16" where the processor has its products.

    Of `threads` together, for about `seconds` per dtype and library.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine.gemm", str(threads), str(seconds)],
        check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def best_peaks(peaks: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Best peaks by dtype, over numbers of threads: cores may share what multiplies, and then fewer are faster."""
    return {dtype: max(of_one[dtype] for of_one in peaks.values()) for dtype in next(iter(peaks.values()))}


def main() -> None:
    threads, seconds = int(sys.argv[1]), float(sys.argv[2])
    dtypes: tuple[Compute, ...] = ("float32", "bfloat16") if _has_bfloat16() else ("float32",)
    # torch last, as its threads stay.
    packed = {dtype: packed_gflop_per_s(dtype, threads, seconds) for dtype in dtypes}
    by_torch = {dtype: _torch_gflop_per_s(dtype, threads, seconds) for dtype in dtypes}
    print(json.dumps({dtype: round(max(packed[dtype], by_torch[dtype]), 1) for dtype in dtypes}))


def packed_gflop_per_s(dtype: Compute, threads: int, seconds: float) -> float:
    """Rate of the engine's products, side by side; of float32 where the engine has none of `dtype`."""
    return max(_packed_gflop_per_s(size, dtype, threads, seconds / len(PACKED_SIZES)) for size in PACKED_SIZES)


def _packed_gflop_per_s(size: tuple[int, int, int], dtype: Compute, threads: int, seconds: float) -> float:
    count, inputs, outputs = size
    draw = np.random.default_rng(0)
    weight = draw.random((inputs, outputs), dtype=np.float32)
    linear = Linear.build(weight, np.zeros(outputs, dtype=np.float32), relu=False, compute=dtype)
    left = draw.random((count, inputs), dtype=np.float32)
    if linear.compute == "bfloat16":
        left, _ = FORMATS[Storage.BFLOAT16].encode(left)
    rows = [left.reshape(-1).copy() for _ in range(threads)]
    out = [np.zeros(count * outputs, dtype=np.float32) for _ in range(threads)]
    gflop = 2 * count * inputs * outputs / 1e9
    times = max(1, round(_ROUND_GFLOP / gflop))

    def work(number: int) -> None:
        _multiply(linear.address, rows[number], count, inputs, linear.weight, outputs, out[number], times)

    return threads * times * gflop / fastest_round_s(work, threads, seconds)


@njit(nogil=True)
def _multiply(
    address: int, rows: np.ndarray, count: int, inputs: int, weight: np.ndarray, outputs: int, out: np.ndarray,
    times: int,
) -> None:  # fmt: skip
    for _ in range(times):
        call_library(address, rows, count, inputs, weight, outputs, out, inputs, outputs)


def _torch_gflop_per_s(dtype: Compute, threads: int, seconds: float) -> float:
    import torch

    torch.set_num_threads(threads)
    left, right = (torch.rand(SIZE, SIZE).to(getattr(torch, dtype)) for _ in range(2))
    product = torch.mm(left, right)
    fastest_s, give_up_at_s = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < give_up_at_s:
        began_s = time.perf_counter()
        torch.mm(left, right, out=product)
        fastest_s = min(fastest_s, time.perf_counter() - began_s)
    return 2 * SIZE**3 / fastest_s / 1e9


def _has_bfloat16() -> bool:
    with open("/proc/cpuinfo") as file:  # noqa: PTH123
        flags = next((set(line.partition(":")[2].split()) for line in file if line.startswith("flags")), set())
    return bool({"avx512_bf16", "amx_bf16"} & flags)


if __name__ == "__main__":
    main()
