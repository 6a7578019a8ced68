"""`python -m benchmarks.gpu`: runs the parts, most telling first, and writes each as it ends.

Parts of earlier runs stay. Without a GPU it says so and ends with 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import results
from benchmarks.gpu.benchmark import BENCHMARK
from benchmarks.gpu.card import why_no_gpu

NO_GPU = 2
"""Exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    if (reason := why_no_gpu()) is not None:
        print(f"no GPU: {reason}; this benchmark measures one, and there is nothing to say without", file=sys.stderr)
        return NO_GPU
    results.main(BENCHMARK, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
