"""Kernels for the tests, compiled once for each version of their sources: `python -m tools.kernels`.

Compiling them takes minutes, and three would do it: the worker's image, the test of what compiles for it, and every
process of the unit tier, one kernel after another. Tests and their images stay on this machine, so that they need the
level of its processor alone; what users get is compiled for all. Kernels lie where a server of this user finds them,
and so does the next clone.
"""

from __future__ import annotations

import argparse
import sys

from gnnserve_worker import compile_kernels
from gnnserve_worker.kernel_cache import EVERYTHING, folder_of, is_compiled


def main() -> int:
    argparse.ArgumentParser(prog="python -m tools.kernels", description=__doc__).parse_args()
    if is_compiled(EVERYTHING):
        print(f"{folder_of(None)} has all kernels")
        return 0
    print("compiling kernels ahead: minutes, once for each version of their sources", flush=True)
    return compile_kernels.main(["--own-level"])


if __name__ == "__main__":
    sys.exit(main())
