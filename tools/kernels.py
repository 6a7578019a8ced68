"""Kernels for the tests, compiled once for each version of their sources: `python -m tools.kernels`.

Compiling them takes minutes, and three would do it: the worker's image, the test of what compiles for it, and every
process of the unit tier, one kernel after another. Tests and their images stay on this machine, so that they need the
level of its processor alone; what users get is compiled for all, which `--every-level` does before `make test-image`
builds it. Kernels lie where a server of this user finds them, and so does the next clone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gnnserve_worker import compile_kernels
from gnnserve_worker.kernel_cache import EVERYTHING, folder_of, is_compiled, levels


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels", description=__doc__)
    parser.add_argument("--every-level", action="store_true", help="for every level of processors, as images have them")
    every_level = parser.parse_args(arguments).every_level
    wanted = [None, *levels()] if every_level else [None]
    if all(is_compiled(EVERYTHING, level) for level in wanted):
        for level in wanted:
            print(f"{folder_of(level)} has all kernels for {level or 'this processor'}")
        return 0
    print("compiling kernels ahead: minutes, once for each version of their sources", flush=True)
    return compile_kernels.main([] if every_level else ["--own-level"])


if __name__ == "__main__":
    sys.exit(main())
