"""Peak of matrix products on this machine, by the fastest library at hand; prints JSON.

Runs as a program: torch's threads are no company for a measurement that comes after it in the same process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

SIZE = 2048
"""Of square matrices: large enough for the peak, small enough for the last cache."""
_SECONDS = 1.0


def measure_peaks(threads: int) -> dict[str, float]:
    """10^9 multiplications and additions per second by dtype; "bfloat16" where the processor has its products."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gemm", str(threads)],
        check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return peaks


def main() -> None:
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    peaks = {"float32": _gflop_per_s(torch.float32)}
    if "avx512_bf16" in _processor_flags() or "amx_bf16" in _processor_flags():
        peaks["bfloat16"] = _gflop_per_s(torch.bfloat16)
    print(json.dumps(peaks))


def _gflop_per_s(dtype: object) -> float:
    import torch

    left, right = (torch.rand(SIZE, SIZE).to(dtype) for _ in range(2))  # type: ignore[call-overload]
    product = torch.mm(left, right)
    fastest_s, give_up_at_s = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < give_up_at_s:
        began_s = time.perf_counter()
        torch.mm(left, right, out=product)
        fastest_s = min(fastest_s, time.perf_counter() - began_s)
    return round(2 * SIZE**3 / fastest_s / 1e9, 1)


def _processor_flags() -> set[str]:
    with open("/proc/cpuinfo") as file:  # noqa: PTH123
        return next((set(line.partition(":")[2].split()) for line in file if line.startswith("flags")), set())


if __name__ == "__main__":
    main()
