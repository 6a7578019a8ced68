"""Tests that need a GPU, in parts of some minutes, most telling first; the outcome of each is written as it ends.

    python -m benchmarks.gpu.gpu_tests [--only PART,…] [--interpreted]

What is written is of the card that it was run on, for the table of docs/gpu.md. Without a GPU it says so and ends with
2. `--interpreted` runs the same tests in Triton's interpreter, whatever the machine has, and writes a file of its own,
which says so: of no GPU, and not for committing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import results
from benchmarks.gpu.card import describe_card, why_no_gpu
from benchmarks.results import Benchmark, Part, Run
from benchmarks.verdicts import Verdict, exactly

ROOT = Path(__file__).resolve().parents[2]
NO_GPU = 2
"""Exit code."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    "kernels": (
        "test_kernels_sample.py", "test_kernels_gather.py", "test_kernels_aggregate.py", "test_kernels_distinct.py",
    ),
    "answers": (
        "test_engine.py", "test_network.py", "test_gat.py", "test_gcn.py", "test_sgc.py", "test_cascade.py",
        "test_kernels_capture.py", "test_sharing.py",
    ),
    "cache": ("test_cache.py", "test_pinned.py", "test_placement.py"),
    "failures": ("test_failure.py", "test_switch.py", "test_waiting.py", "test_device_errors.py"),
    "requests": ("test_overlay.py",),
    "changes": ("test_living.py",),
    "programs": ("test_program_device.py",),
    "training": ("../worker/generation/test_training_gpu.py",),
    "compiled": ("test_kernels_compile.py",),
}  # fmt: skip
"""Files of tests/gpu by part, in the order in which they are run."""


def files_by_part() -> dict[str, tuple[str, ...]]:
    """With a last part of those that no other has."""
    named = {file for files in _PARTS.values() for file in files}
    others = sorted(path.name for path in (ROOT / "tests/gpu").glob("test_*.py") if path.name not in named)
    return {**_PARTS, **({"others": tuple(others)} if others else {})}


FILES = files_by_part()
_MOST_NAMED = 20
"""Tests that failed and are named."""


def run_part(name: str, run: Run) -> Mapping[str, Any]:
    interpreted = run.options.interpreted
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        files = [str(Path("tests/gpu") / file) for file in FILES[name]]
        command = [
            sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", f"--junitxml={report}",
            *(os.path.normpath(file) for file in files),
        ]  # fmt: skip
        ended = subprocess.run(command, cwd=ROOT, env=environment(os.environ, interpreted=interpreted), check=False)
        outcome = outcome_of(report.read_text() if report.exists() else None, ended.returncode)
    on: dict[str, Any] = {"name": "none: Triton's interpreter"} if interpreted else describe_card()
    return {"outcomes": {name: outcome}, "cards": {name: on}}


def environment(variables: Mapping[str, str], *, interpreted: bool) -> dict[str, str]:
    """Variables of the tests' process. The interpreter sees no GPU, whatever the machine has."""
    return {**variables, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if interpreted else dict(variables)


def outcome_of(report: str | None, exit_code: int) -> dict[str, Any]:
    """Counts of pytest's report. Where there is none, or it ends with an error and names no test, one failure stands
    for what went wrong."""
    found = {"passed": 0, "failed": 0, "skipped": 0}
    names: list[str] = []
    for case in () if report is None else ElementTree.fromstring(report).iter("testcase"):  # noqa: S314 - pytest's own
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[outcome] += 1
        if outcome == "failed":
            names.append(f"{case.get('classname')}::{case.get('name')}")
    if exit_code and not names:
        found["failed"] += 1
        names.append(f"pytest ended with {exit_code}")
    return {**found, "failures": names[:_MOST_NAMED]}


def _failed(name: str, found: Any) -> int:
    outcome = found["outcomes"][name]
    # Tests that were all left out have said nothing.
    return int(outcome["failed"]) if outcome["passed"] else max(1, int(outcome["failed"]))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interpreted", action="store_true", help="in Triton's interpreter, without a GPU")


def _add_options_of_interpreter(parser: argparse.ArgumentParser) -> None:
    _add_options(parser)
    parser.set_defaults(out=ROOT / "gpu-results")


_TESTED = ("tests/gpu", "tests/support", "tests/conftest.py", "worker/gnnserve_worker")
BENCHMARK = Benchmark(
    "gpu_tests",
    tuple(Part(name, partial(run_part, name), depends=_TESTED) for name in FILES),
    tuple(Verdict(f"{name}: tests that fail", exactly(0), partial(_failed, name)) for name in FILES),
    about=__doc__,
    options=_add_options,
    must_pass=True,
)
INTERPRETED = replace(BENCHMARK, name="gpu_tests_interpreted", options=_add_options_of_interpreter)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    interpreted = "--interpreted" in given
    if not interpreted and (reason := why_no_gpu()) is not None:
        print(f"no GPU: {reason}; INTERPRETED=1 runs the tests in Triton's interpreter", file=sys.stderr)
        return NO_GPU
    results.main(INTERPRETED if interpreted else BENCHMARK, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
