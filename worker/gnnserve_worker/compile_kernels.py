"""Ahead-of-time compile of every kernel that serving needs: `python -m gnnserve_worker.compile_kernels`.

It runs when an image is built and writes beside the sources (`--ship`), so that no pod compiles. Kernels and their
types are not listed anywhere: the serving path itself runs over tiny revisions of every kind
(`inference/rehearsal.py`), and what that compiles is compiled at the same time for the levels of processors that this
machine may lack, without running it (`--own-level` leaves them out, for tests and images that stay on this machine).
What is there already is not compiled again, and `--known` brings what was compiled elsewhere: folders of kernels are
named by digests of all that kernels are made of, so that an image gets the same. With `--changes` it is what a server
without an image starts beside itself, for its first change.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")
_NICENESS = 10

Compiled = tuple[str, Any]
"""A kernel's name, and numba's types of its arguments."""


class CompiledQueue(Protocol):
    """A queue between processes."""

    def put(self, told: Compiled | None, /) -> None: ...
    def get(self) -> Compiled | None: ...


class Counts(NamedTuple):
    """Kernels of one level, the parts of which they consist included."""

    compiled: int
    found: int
    """Kernels that were there, or that another process had compiled by then. Parts of them are not looked for."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gnnserve_worker.compile_kernels", description=__doc__)
    parser.add_argument("--own-level", action="store_true", help="for the best level of this processor alone")
    parser.add_argument("--ship", action="store_true", help="beside the sources, as an image has them")
    parser.add_argument(
        "--known",
        metavar="FOLDER",
        type=Path,
        help="with --ship: where kernels of these sources may lie compiled; it need not exist",
    )
    parser.add_argument(
        "--changes",
        metavar=("ARCHITECTURE", "TABLE"),
        nargs="+",
        help="what changes of the graph need of a revision with these tables, such as projected-float32, alone",
    )
    parser.add_argument("--graph", choices=("one-type", "by-type"), default="one-type", help="with --changes")
    options = parser.parse_args(arguments)
    if options.changes:
        architecture, *tables = options.changes
        return _compile_changes(options.graph, architecture, tables)
    if options.ship:
        os.environ["NUMBA_CACHE_DIR"] = _in_a_fresh_process(_shipped)
    started_s = time.perf_counter()
    own, others = _in_a_fresh_process(_levels)
    if options.own_level:
        others = []
    if options.ship and options.known is not None:
        for level in _in_a_fresh_process(_copy_known, options.known, own, others):
            print(f"copied kernels for {level} from {options.known}", flush=True)
    counts = _compile_all(own, others)
    if forgotten := _in_a_fresh_process(_compiled_again, own):
        print("error: compiled, but not found again:", *forgotten, sep="\n  ", file=sys.stderr)
        return 1
    kept = _in_a_fresh_process(_note_everything, own, others)
    names = ", ".join(level or "this very processor" for level in (own, *others))
    took_s = time.perf_counter() - started_s
    compiled, found = map(sum, zip(*counts, strict=True))
    print(f"compiled {compiled} kernels and found {found} for {names} in {took_s:.0f} s:", *kept, sep="\n  ")
    return 0


def _compile_changes(graph: str, architecture: str, tables: Sequence[str]) -> int:
    # A server answers meanwhile.
    os.nice(_NICENESS)
    from gnnserve_api.spec.model import Architecture  # noqa: PLC0415
    from gnnserve_worker.inference.rehearsal import rehearse_changes  # noqa: PLC0415
    from gnnserve_worker.kernel_cache import note_compiled  # noqa: PLC0415

    rehearse_changes(graph, Architecture(architecture), tables)
    note_compiled(of_changes(graph, architecture, tables))
    return 0


def of_changes(graph: str, architecture: str, tables: Sequence[str]) -> str:
    """What `--changes` compiles, as `kernel_cache.note_compiled` notes it. `graph`: one of `--graph`."""
    return " ".join(("changes", graph, architecture, *sorted(tables)))


def _compile_all(own: str | None, others: Sequence[str]) -> list[Counts]:
    """Compile for every level at once; what each process did."""
    context = multiprocessing.get_context("spawn")
    queues: list[CompiledQueue] = [context.SimpleQueue() for _ in others]
    with ExitStack() as pools:
        waiting = [begin(pools, queue, level) for level, queue in zip(others, queues, strict=True)]
        try:
            rehearsing = pools.enter_context(ProcessPoolExecutor(len(_HALVES), context, _take, (*queues,)))
            begun = [rehearsing.submit(_rehearse, own, half) for half in _HALVES]
            rehearsed = [half.result() for half in begun]
        finally:
            for queue in queues:
                queue.put(None)
        return [*rehearsed, *(each.result() for each in waiting)]


def begin(pools: ExitStack, queue: CompiledQueue, level: str) -> Future[Counts]:
    """Begin to compile for a level what the queue tells, in a process that ends with `pools`."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _take, (queue,))
    compiling = pools.enter_context(pool).submit(_compile, level)
    compiling.add_done_callback(partial(_drain, queue))
    return compiling


def _in_a_fresh_process(work: Callable[..., T], *arguments: object) -> T:
    """Run `work` in a process of its own: numba compiles for one target in the life of a process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


# Each level has a process of its own; this one imports nothing of numba.


def _shipped() -> str:
    from gnnserve_worker.kernel_folder import SHIPPED  # noqa: PLC0415

    return str(SHIPPED)


def _levels() -> tuple[str | None, list[str]]:
    """The level of this processor, and the other levels of its kind of machine."""
    from gnnserve_worker.kernel_cache import level, levels  # noqa: PLC0415

    own = level()
    return own, [name for name in levels() if name != own]


def _copy_known(known: Path, own: str | None, others: Sequence[str]) -> list[str]:
    """Levels whose kernels were there."""
    from gnnserve_worker.kernel_cache import copy_compiled  # noqa: PLC0415

    return [level for level in (own, *others) if level is not None and copy_compiled(known, level)]


_queues: list[CompiledQueue] = []
"""Queues of this process: where a rehearsal tells what was compiled, and where the other levels hear of it. A queue can
be passed to a process only when that starts."""


def _take(*queues: CompiledQueue) -> None:
    _queues.extend(queues)


_HALVES = ("answering", "changing")
"""Halves of the rehearsal, by their names: each has a process of its own. A kernel that both need is mostly compiled by
the first that comes to it, and found by the other."""


def _rehearse(level: str | None, half: str) -> Counts:
    """Tell each kernel as it is compiled, and at the end all of them, those that were found too."""
    _prepare(level)
    from gnnserve_worker.inference.rehearsal import Half, rehearse  # noqa: PLC0415
    from gnnserve_worker.kernel_cache import KERNELS  # noqa: PLC0415

    def tell(kernel: Compiled) -> None:
        for queue in _queues:
            queue.put(kernel)

    compiled = _follow_compiling(tell)
    rehearse(Half(half))
    kernels = [(name, signature) for name, kernel in KERNELS.items() for signature in kernel.signatures]
    for each in kernels:
        tell(each)
    return Counts(len(compiled), len(kernels) - len(compiled))


def _compile(level: str) -> Counts:
    """Compile what is told until None is; what is there already is only loaded."""
    _prepare(level)
    from gnnserve_worker.kernel_cache import KERNELS  # noqa: PLC0415

    compiled = _follow_compiling(lambda _: None)
    (queue,) = _queues
    while (told := queue.get()) is not None:
        name, signature = told
        if name not in KERNELS:
            # Modules that serving imports late are told of by their kernels.
            import_module(name.rpartition(".")[0])
        KERNELS[name].compile(signature)
    return Counts(len(compiled), sum(len(kernel.signatures) for kernel in KERNELS.values()) - len(compiled))


def _drain(queue: CompiledQueue, compiling: Future[Counts]) -> None:
    """Where a level's process has failed, take what is told to it until None is: who tells would wait for ever once the
    queue is full, and so the image's build."""
    if compiling.exception() is not None:
        while queue.get() is not None:
            pass


def _follow_compiling(tell: Callable[[Compiled], None]) -> list[Compiled]:
    """A list to which each kernel is added as it is compiled, and told."""
    from gnnserve_worker.kernel_cache import KERNELS, on_compile  # noqa: PLC0415

    compiled: list[Compiled] = []

    def follow(name: str, signature: Any) -> None:
        if name in KERNELS:
            compiled.append((name, signature))
            tell((name, signature))

    on_compile(follow)
    return compiled


def _compiled_again(level: str | None) -> list[str]:
    _prepare(level)
    from gnnserve_worker.inference.rehearsal import rehearse  # noqa: PLC0415
    from gnnserve_worker.kernel_cache import watch_compiling  # noqa: PLC0415

    compiled = watch_compiling()
    rehearse()
    return compiled


def _note_everything(own: str | None, others: Sequence[str]) -> list[str]:
    """Note that all is compiled, for each level; what there is, and where."""
    _prepare(own)
    from gnnserve_worker.kernel_cache import EVERYTHING, folder_of, note_compiled  # noqa: PLC0415

    kept = []
    for level in (own, *others):
        note_compiled(EVERYTHING, level)
        if (folder := folder_of(level)) is None:
            continue
        sizes = [path.stat().st_size for path in folder.glob("*.nbc")]
        kept.append(f"{len(sizes)} files of {sum(sizes):,} bytes in {folder}")
    return kept


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
