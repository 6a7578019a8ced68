"""`make test`: the unit tier and the cluster tier at the same time, then what needs the machine for itself.

The cluster tier mostly waits (for images, pods, probes), and the unit tier mostly computes, so beside each other they
take little longer than the longer one. The unit tier is shown as it runs. The cluster tier's lines are kept in a file
meanwhile and shown after it. Last come the tests that put a load on a worker and look at how it is answered: beside
others they would measure those. At the end stands the closing line of each, and how busy the processors were: whether
tests compute or wait decides how they are made faster. What makes a test fail is pytest's to say; the exit code is that
of the first one that failed. Scenes of tests/platform take minutes and are run by `make test-platform` alone.

Tests of the GPU's code (tests/gpu, in Triton's interpreter) run with the newest versions, in the unit tier, or with the
oldest ones that pyproject.toml allows, in an environment of their own after it: by turns, as the number of commits is
odd or even, since each takes minutes. So do the cases of campaigns (`tests/support/campaigns.py`): a fifth of them runs
with each commit, and all of them by `make test-campaigns`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / ".pytest_cache" / "cluster-tier.log"
_PYTEST = (sys.executable, "-m", "pytest")
_PROCESSES = min(8, (os.cpu_count() or 1) + 1)
"""One more than there are processors, since tests also wait: for programs that they start, for a browser, for a timer.
More than eight would need several GB of memory for torch alone."""
_PARALLEL = ("-n", str(_PROCESSES), "--dist=loadfile", "--no-loadscope-reorder")
"""The tests of one file in one process: they share its fixtures. Long files first, as tests/conftest.py has them."""
# The cluster tier has deadlines, which are those of an idle machine: what it needs of the processors comes first.
_NICE = ("nice", "-n", "5")
_SLOWEST = ("--durations=40", "--durations-min=5")
"""What takes long is told by each run, since it adds up unseen."""
TURN = "GNNSERVE_TURN"
"""Variable with the number of commits, by which campaigns know whose turn it is."""
UNIT = (*_NICE, *_PYTEST, "--ignore=tests/cluster", "--ignore=tests/platform", *_SLOWEST, *_PARALLEL)
GPU_TESTS = "tests/gpu"
_COMPILING = f"--ignore={GPU_TESTS}/test_kernels_compile.py"
"""What kernels are compiled to is looked at with the newest versions alone: its limits are theirs."""
_OUR_FOLDERS = ("crds", "operator", "cli", "client", "describe", "worker")
_UNDER_LOAD = "tests/cluster/test_routing.py"
_SCENES = ("-n", "3", "--dist=loadfile", "--no-loadscope-reorder")
"""Three at a time, each in a namespace of its own, in the order that tests/cluster/conftest.py gives: a scene mostly
waits. Kubernetes and the operator are started by the first process that needs them, for all."""
CLUSTER = (*_PYTEST, "tests/cluster", f"--ignore={_UNDER_LOAD}", *_SLOWEST, *_SCENES)
ALONE = (*_PYTEST, _UNDER_LOAD)
HOLD = (sys.executable, "-m", "tests.cluster.harness", "hold")
"""Both stages on the cluster use one node: it would be taken down and started anew between them."""
_POLL_S = 0.2
_STAT = Path("/proc/stat")
_LONGEST_LINE = 1000


class GpuVersions(StrEnum):
    """Versions of torch, Triton and whatever else the GPU's code imports that its tests run with."""

    OLDEST = "oldest"
    NEWEST = "newest"
    BOTH = "both"

    @classmethod
    def of_turn(cls, commits: int) -> GpuVersions:
        """Versions whose turn it is."""
        return cls.NEWEST if commits % 2 else cls.OLDEST


@dataclass(frozen=True, slots=True)
class Tier:
    """Tests that run at once, in one process of pytest."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    """Variables beside those of this process."""


def unit_tiers(versions: GpuVersions, oldest_python: str) -> list[Tier]:
    """What runs beside the cluster tier, one after the other."""
    if versions is GpuVersions.NEWEST:
        return [Tier("unit tier", UNIT)]
    unit = UNIT if versions is GpuVersions.BOTH else (*UNIT, f"--ignore={GPU_TESTS}")
    command = (*_NICE, oldest_python, "-m", "pytest", GPU_TESTS, _COMPILING, *_PARALLEL)
    path = os.pathsep.join(str(ROOT / folder) for folder in _OUR_FOLDERS)
    return [Tier("unit tier", unit), Tier("GPU code with the oldest versions", command, {"PYTHONPATH": path})]


def commit_count() -> int:
    """Commits that lead to this one; 1 where git does not tell."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return int(counted.stdout) if counted.returncode == 0 else 1


@dataclass(frozen=True, slots=True)
class Ended:
    tier: str
    code: int
    closing: str
    """The last line that it printed: pytest's counts."""


def keeping_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without PYTHONDONTWRITEBYTECODE.

    Every process that collects tests compiles all of their files, with pytest's assertions, and every program that
    tests start compiles its modules. What they compile is kept, so that only the first one does.
    """
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def held(command: Sequence[str]) -> Iterator[None]:
    """Runs the command meanwhile; its input ends when it is to end. What it fails on, the tests fail on as well."""
    holder = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        holder.communicate()


def run_tiers(units: Sequence[Tier], cluster: Sequence[str], log: Path) -> tuple[Ended, ...]:
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = keeping_bytecode(os.environ)
    with log.open("wb") as written:
        # Both stay in the terminal's process group, so that Ctrl-C reaches both and each one cleans up after itself.
        beside = subprocess.Popen(cluster, cwd=ROOT, env=environment, stdout=written, stderr=subprocess.STDOUT)
    ended: list[Ended] = []
    try:
        for tier in units:
            _say(f"{tier.name}; the cluster tier runs beside it, its output is in {log} and is shown after this")
            ended.append(_run_shown(tier))
        _say("the cluster tier")
        with log.open("rb") as read:
            return (*ended, Ended("cluster tier", *_show(read, beside)))
    finally:
        # After Ctrl-C: it takes its Kubernetes down before it ends.
        beside.wait()


def run_alone(command: Sequence[str]) -> Ended:
    _say("the cluster under load, alone")
    return _run_shown(Tier("cluster under load", command))


def _run_shown(tier: Tier) -> Ended:
    environment = {**keeping_bytecode(os.environ), **(tier.environment or {})}
    with subprocess.Popen(
        tier.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as shown:
        return Ended(tier.name, *_show(shown.stdout, shown))


def describe(ended: Sequence[Ended]) -> str:
    """pytest's closing lines come last, as it printed them."""
    words = (f"{tier.tier}: {'passed' if tier.code == 0 else f'FAILED with exit code {tier.code}'}" for tier in ended)
    return "\n".join((", ".join(words), *(tier.closing for tier in ended)))


@dataclass(frozen=True, slots=True)
class Spent:
    passed_s: float
    busy_s: float
    """Seconds of all processors together, whichever process they were spent on."""
    processors: int

    @classmethod
    def so_far(cls) -> Spent | None:
        """Since the machine was started. None: this system does not tell."""
        try:
            user, nice, system, _idle, _waiting, *interrupts = map(int, _STAT.read_text().split("\n")[0].split()[1:8])
        except (OSError, ValueError):
            return None
        ticks = user + nice + system + sum(interrupts)
        return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), os.cpu_count() or 1)

    def since(self, before: Spent) -> Spent:
        return Spent(self.passed_s - before.passed_s, self.busy_s - before.busy_s, self.processors)

    def __str__(self) -> str:
        had_s = self.processors * self.passed_s
        return f"{self.passed_s:,.0f} s; processors were busy for {self.busy_s:,.0f} s of {had_s:,.0f}"


def exit_code(ended: Sequence[Ended]) -> int:
    """The first tier's that failed; 0: none did."""
    return next((tier.code for tier in ended if tier.code), 0)


def _show(output: IO[bytes] | None, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Copies what the process writes, as it comes, until it has ended; its exit code and last line."""
    end = b""
    while True:
        is_over = process.poll() is not None
        while output is not None and (text := os.read(output.fileno(), 1 << 16)):
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
            end = (end + text)[-_LONGEST_LINE:]
        if is_over:
            lines = end.decode(errors="replace").split("\n")
            return process.returncode, next((line.rstrip("\r") for line in reversed(lines) if line.strip()), "")
        time.sleep(_POLL_S)


def _say(words: str) -> None:
    print(f"\n=== {words} ===", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.run_tests", description=__doc__)
    parser.add_argument("--gpu", type=GpuVersions, choices=list(GpuVersions), help="default: those whose turn it is")
    parser.add_argument("--oldest-python", default="", help="of the environment that `make oldest` makes")
    options = parser.parse_args()
    before = Spent.so_far()
    commits = commit_count()
    os.environ[TURN] = str(commits)
    versions = options.gpu or GpuVersions.of_turn(commits)
    chosen = "as asked" if options.gpu else f"{'an odd' if commits % 2 else 'an even'} number of commits, {commits:,}"
    print(
        f"tests of the GPU's code: {versions} versions ({chosen}; GPU_VERSIONS=oldest, newest or both asks for others)"
    )
    # Here, not as what `make test` needs: on most machines and on every second run it is not needed.
    if versions is not GpuVersions.NEWEST:
        made = subprocess.run(["make", "--no-print-directory", "oldest"], cwd=ROOT, check=False)  # noqa: S607
        if made.returncode:
            return made.returncode
    try:
        with held(HOLD):
            ended = (*run_tiers(unit_tiers(versions, options.oldest_python), CLUSTER, LOG), run_alone(ALONE))
    except KeyboardInterrupt:
        return 130
    _say("in short")
    print(describe(ended))
    if before is not None and (now := Spent.so_far()) is not None:
        print(f"all of it: {now.since(before)}")
    return exit_code(ended)


if __name__ == "__main__":
    sys.exit(main())
