"""Ahead-of-time compile of every kernel that serving needs: `python -m gnnserve_worker.compile_kernels`.

It runs when an image is built and writes beside the sources, so that no pod compiles. Kernels and their types are not
listed anywhere: the serving path itself runs over tiny revisions of every kind (`inference/rehearsal.py`), and what
that compiled is compiled again for the levels of processors that this machine may lack, without running it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

Signatures = Mapping[str, list[Any]]
"""numba's types of the arguments, by the kernel's name."""


def main() -> int:
    started_s = time.perf_counter()
    own, others = _in_a_fresh_process(_levels)
    signatures = _in_a_fresh_process(_rehearse, own)
    for level in others:
        _in_a_fresh_process(_compile, level, signatures)
    if forgotten := _in_a_fresh_process(_compiled_again, own):
        print("error: compiled, but not found again:", *forgotten, sep="\n  ", file=sys.stderr)
        return 1
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent)
    kept = [path.stat().st_size for path in folder.rglob("*.nbc")]
    names = ", ".join(level or "this very processor" for level in (own, *others))
    count = sum(map(len, signatures.values()))
    took_s = time.perf_counter() - started_s
    print(
        f"compiled {count} kernels for {names} in {took_s:.0f} s: {len(kept)} files of {sum(kept):,} bytes in {folder}"
    )
    return 0


def _in_a_fresh_process(work: Callable[..., T], *arguments: object) -> T:
    """Run `work` in a process of its own: numba compiles for one target in the life of a process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


# Each level has a process of its own; this one imports nothing of numba.


def _levels() -> tuple[str | None, list[str]]:
    """The level of this processor, and the other levels of its kind of machine."""
    from gnnserve_worker.kernel_cache import level, levels  # noqa: PLC0415

    own = level()
    return own, [name for name in levels() if name != own]


def _rehearse(level: str | None) -> Signatures:
    """Signatures of the kernels that the serving path compiled or found."""
    _prepare(level)
    from gnnserve_worker.inference.rehearsal import rehearse  # noqa: PLC0415
    from gnnserve_worker.kernel_cache import KERNELS  # noqa: PLC0415

    rehearse()
    return {name: found.signatures for name, found in KERNELS.items() if found.signatures}


def _compile(level: str, signatures: Signatures) -> None:
    _prepare(level)
    from gnnserve_worker.inference import rehearsal  # noqa: F401, PLC0415 - brings every kernel
    from gnnserve_worker.kernel_cache import KERNELS  # noqa: PLC0415

    for name, compiled in signatures.items():
        for signature in compiled:
            KERNELS[name].compile(signature)


def _compiled_again(level: str | None) -> list[str]:
    _prepare(level)
    from gnnserve_worker.inference.rehearsal import rehearse  # noqa: PLC0415
    from gnnserve_worker.kernel_cache import watch_compiling  # noqa: PLC0415

    compiled = watch_compiling()
    rehearse()
    return compiled


def _prepare(level: str | None) -> None:
    import warnings  # noqa: PLC0415

    from numba import NumbaWarning  # noqa: PLC0415

    from gnnserve_worker.kernel_cache import compile_for  # noqa: PLC0415

    # Warnings become errors, above all the one that a kernel cannot be kept.
    warnings.simplefilter("error", NumbaWarning)
    if level is not None:
        compile_for(level)


if __name__ == "__main__":
    sys.exit(main())
