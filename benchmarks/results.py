"""Benchmarks, the one function that runs their parts, and the files of what they measured.

Every part of a result carries the commit, day, machine, versions and duration of its own run, and the paths that it
depends on (`dependencies.py`), so that readers of a figure can be told how old it is. What is not run stays as it
is. Nothing is imported that is measured: versions come from package metadata.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.dependencies import depends_on, shortest
from benchmarks.verdicts import Judge, Verdict, failing, judge, verdicts_of

FOLDER = Path(__file__).parent / "results"
_PACKAGES = (
    "numpy",
    "numba",
    "torch",
    "torch-geometric",
    "triton",
    "uvicorn",
    "granian",
    "httptools",
    "uvloop",
    "msgspec",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a benchmark."""

    quick: bool
    """Whether it shall take under a minute: it proves that the benchmark works, and is not for committing."""
    options: argparse.Namespace
    context: Any = None
    """What `Benchmark.around` prepared for all parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a result that is measured at once, and anew without the rest."""

    name: str
    run: Callable[[Run], Mapping[str, Any] | None]
    """Measures, and returns its fragment of the whole result as JSON values. None: it cannot run here, and has said
    why."""
    programs: tuple[str, ...] = ()
    """Modules that it starts as processes, as `python -m` takes them."""
    depends: tuple[str, ...] = ()
    """Paths that it depends on beside those that imports tell."""

    def paths(self) -> list[str]:
        function: Any = self.run
        while isinstance(function, functools.partial):
            function = function.func
        return shortest([*depends_on([_module_name(function.__module__), *self.programs]), *self.depends])


def part_in_a_cluster(name: str, run: Callable[[Run], Mapping[str, Any] | None]) -> Part:
    """A part whose programs are the chart's operator and the pods that it makes of a service."""
    programs = ("gnnserve_operator.__main__", "gnnserve_worker.pods.generate", "gnnserve_worker.pods.serve")
    return Part(name, run, programs, ("charts/gnnserve",))


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    """Name of its file in `results`."""
    parts: tuple[Part, ...]
    verdicts: Iterable[Verdict] | Judge = ()
    """Verdicts about all fragments together; given as a function where they depend on what was measured."""
    about: str = ""
    """What `--help` says; docs/benchmarks.md has the method of the benchmark's file in `about`."""
    quick: tuple[str, ...] = ()
    """Parts of a quick run where none are named; empty: all."""
    show: Callable[[Any], None] | None = None
    """Prints what was measured, of all fragments together, beside the verdicts."""
    around: Callable[[Run], AbstractContextManager[Any]] = field(default=lambda _: nullcontext())
    """What all parts of a run need while they run."""
    options: Callable[[argparse.ArgumentParser], None] = field(default=lambda _: None)
    must_pass: bool = False
    """Whether a missed verdict is a failure of what is measured, and not a figure that misses its target."""

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if len({*names}) < len(names) or any("," in name for name in names):
            raise ValueError(f"{self.name}: names of parts are unique and without commas, which --only parts them by")

    def judged(self, found: Any) -> dict[str, dict[str, Any]]:
        return judge(verdicts_of(self.verdicts, found), found)


def main(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> None:
    """A benchmark's command line: all parts, those of `--only`, or for some minutes those that are due."""
    names = [part.name for part in benchmark.parts]
    parser = argparse.ArgumentParser(
        prog=f"python -m {_module_name('__main__')}", description=benchmark.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="under a minute, to see that it works")
    parser.add_argument("--only", metavar="PART,…", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--minutes", type=float, help="the parts that are due, oldest first; none begins after so many")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the file; default: benchmarks/results")
    benchmark.options(parser)
    options = parser.parse_args(arguments)
    only = None if options.only is None else options.only.split(",")
    if unknown := [name for name in only or () if name not in names]:
        parser.error(f"--only: {', '.join(unknown)}: no such part; there are {', '.join(names)}")
    run_parts(benchmark, Run(options.quick, options), only, options.minutes, options.out)


def run_parts(
    benchmark: Benchmark,
    run: Run,
    only: Iterable[str] | None = None,
    minutes: float | None = None,
    folder: Path = FOLDER,
) -> Path:
    """Run parts one after the other and write the file after each; parts that are not run keep all that they have.

    only: names of the parts to run; None: all. minutes: run those that were run longest ago first, and begin none after
    so many. A quick run has a file of its own, which git ignores.
    Raises SystemExit where the benchmark must pass and does not."""
    file = folder / f"{benchmark.name}{'.quick' if run.quick else ''}.json"
    chosen = only if only is not None or not (run.quick and benchmark.quick) else benchmark.quick
    parts = [part for part in benchmark.parts if chosen is None or part.name in chosen]
    if minutes is not None:
        kept = read_parts(file)
        parts.sort(key=lambda part: str(kept[part.name].get("date") or "") if part.name in kept else "")
    if run.quick:
        file.unlink(missing_ok=True)
    ends_s = time.monotonic() + 60 * (math.inf if minutes is None else minutes)
    with benchmark.around(run) as context:
        run = Run(run.quick, run.options, context)
        for part in parts:
            if time.monotonic() > ends_s:
                break
            print(f"{benchmark.name}: {part.name}", file=sys.stderr, flush=True)
            began_s, at = time.monotonic(), commit()
            found = part.run(run)
            if found is not None:
                record = measured(found, at, time.monotonic() - began_s, part.paths())
                write_part(benchmark, part.name, record, file, quick=run.quick)
    judged = _judged(benchmark, file)
    _show(benchmark, file, judged)
    print(f"wrote {os.path.relpath(file)}")
    if benchmark.must_pass and (missed := failing(judged)) and not run.quick:
        raise SystemExit(f"failed: {', '.join(missed)}")
    return file


def measured(
    found: Mapping[str, Any], at: Mapping[str, Any], duration_s: float, depends: Sequence[str]
) -> dict[str, Any]:
    """A part's record, of now and of this machine. at: the commit as it was before the part ran."""
    return {
        "commit": dict(at),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        "duration_s": round(duration_s, 1),
        "depends": list(depends),
        "found": dict(found),
    }


def write_part(benchmark: Benchmark, name: str, record: Mapping[str, Any], file: Path, *, quick: bool) -> None:
    """Put one part into the file, and judge all of it anew. Others may write parts of it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _alone(file.parent):
        _write(benchmark, {**read_parts(file), name: record}, file, quick=quick)


def judge_again(benchmark: Benchmark, folder: Path = FOLDER) -> None:
    """Judge what was measured by the verdicts of today."""
    file = folder / f"{benchmark.name}.json"
    with _alone(folder):
        _write(benchmark, read_parts(file), file, quick=False)


def _write(benchmark: Benchmark, parts: Mapping[str, Mapping[str, Any]], file: Path, *, quick: bool) -> None:
    ordered = {part.name: parts[part.name] for part in benchmark.parts if part.name in parts}
    result = {
        "benchmark": benchmark.name,
        **({"quick": True} if quick else {}),
        "parts": ordered,
        "verdicts": benchmark.judged(plain(merge(fragments(ordered)))),
    }
    file.write_text(json.dumps(result, indent=2) + "\n")


def read_parts(file: Path) -> dict[str, dict[str, Any]]:
    """Records by part; none where there is no file."""
    return dict(json.loads(file.read_text())["parts"]) if file.exists() else {}


def fragments(parts: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """What parts found, by their names."""
    return [(name, record["found"]) for name, record in parts.items()]


def _judged(benchmark: Benchmark, file: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(file.read_text())["verdicts"]) if file.exists() else {}


def _show(benchmark: Benchmark, file: Path, judged: Mapping[str, Mapping[str, Any]]) -> None:
    parts = read_parts(file)
    if benchmark.show is not None and parts:
        benchmark.show(plain(merge(fragments(parts))))
    if judged:
        table = Table("", "wanted", "measured", "")
        for name, verdict in judged.items():
            table.add_row(
                name, str(verdict["wanted"]), str(verdict["measured"]), "met" if verdict["passed"] else "missed"
            )
        Console(width=140).print(table)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- fragments, read together


def merge(found: Sequence[tuple[str, Any]], note: Callable[[str], None] = lambda _: None) -> Any:
    """Fragments as one value: objects are merged, lists are joined, and of other values the last one counts.

    found: by name of its part. note: is told the name of each part that something is read of."""
    if len(found) > 1 and all(isinstance(value, dict) for _, value in found):
        return MergedObject(found, note)
    if len(found) > 1 and all(isinstance(value, list) for _, value in found):
        return MergedList(found, note)
    name, value = found[-1] if found else ("", {})
    if found:
        note(name)
    return value


class MergedObject(Mapping[str, Any]):
    def __init__(self, found: Sequence[tuple[str, dict[str, Any]]], note: Callable[[str], None]) -> None:
        self._found, self._note = found, note

    def __getitem__(self, key: str) -> Any:
        having = [(name, value[key]) for name, value in self._found if key in value]
        if not having:
            raise KeyError(key)
        return merge(having, self._note)

    def __contains__(self, key: object) -> bool:
        return any(key in value for _, value in self._found)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for _, value in self._found for key in value))

    def __len__(self) -> int:
        return len({key for _, value in self._found for key in value})


class MergedList(Sequence[Any]):
    def __init__(self, found: Sequence[tuple[str, list[Any]]], note: Callable[[str], None]) -> None:
        self._items = [(name, item) for name, value in found for item in value]
        self._note = note

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        name, item = self._items[index]
        self._note(name)
        return item

    def __len__(self) -> int:
        return len(self._items)


def plain(value: Any) -> Any:
    """The same in dicts and lists."""
    match value:
        case Mapping():
            return {key: plain(one) for key, one in value.items()}
        case list() | MergedList():
            return [plain(one) for one in value]
    return value


# --- where and of what


def describe_machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memoryGiB": round(memory_bytes / 2**30, 1)}
    return machine | ({} if (gpu := _first_gpu()) is None else {"gpu": gpu})


def _first_gpu() -> str | None:
    """Its name, as its driver's own program says."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    said = subprocess.run(
        [program, "--query-gpu=name", "--format=csv,noheader", "--id=0"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or None if said.returncode == 0 else None


def _versions() -> dict[str, str]:
    installed = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    return {package: importlib.metadata.version(package) for package in _PACKAGES if package in installed}


def commit() -> dict[str, Any]:
    """`dirty`: the figures belong to the commit with changes on top."""
    try:
        commit = _git("rev-parse", "HEAD")
        # Results are not measured: one that is written in parts makes nothing dirty.
        changed = _git("status", "--porcelain", "--", ":(top)", ":(top,exclude)benchmarks/results")
        return {"id": commit, "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        # A copy of a clean checkout, as machines without a clone get one: who copied it says of which commit it is.
        copied = os.environ.get("GNNSERVE_COMMIT")
        return {"id": copied, "dirty": copied is None}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    return done.stdout.strip()


def _module_name(name: str) -> str:
    """The name by which a module is imported, where it runs as the program."""
    spec = sys.modules["__main__"].__spec__ if name == "__main__" else None
    return name if spec is None else spec.name.removesuffix(".__main__")
