"""Is this commit slower than another one? Clean checkouts of both take turns in one run, pair by pair.

A shared machine drifts by more than what is looked for, so no figure is compared with one of another run: each pair
measures both commits right after each other, in an order that changes, and only the ratios of pairs count. Every ratio
is of a cost (time, time per request, bytes), new over old: above 1 is worse. Its interval is Student's t over the
pairs' logarithms, 95 %. A ratio fails where even the lower end of its interval is above the limit: then it is worse,
and not by chance.

Both commits serve from one repository, which the old one made: so the new one also shows that it needs no new
generation.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks.memory import read_memory
from benchmarks.peers.processes import Running, running
from benchmarks.peers.protocols import GNNSERVE_JSON
from benchmarks.peers.servers import free_ports, service_manifest
from benchmarks.results import write_result
from benchmarks.shapes import CACHE, SHAPES, ShapeFiles, prepare, prepare_sources
from benchmarks.wrk import generate_load, write_requests

ROOT = Path(__file__).parents[1]
BASELINE = "4c3f189"
"""The commit that this wave of work began from, so that small losses do not add up unseen."""
LIMIT, DECISION_LIMIT = 1.03, 1.05
_LEAST_PAIRS = 10
_START_LIMIT_S, _GENERATION_LIMIT_S = 120.0, 1800.0
_BODIES = {1: 8192, 1024: 64}
_SERVICES = 50
"""GNNServices that an operator knows when its memory is read."""
_OPERATOR_SETTLES_S = 4.0


@dataclass(frozen=True, slots=True)
class Commit:
    name: str
    """`old` or `new`."""
    id: str
    folder: Path
    """A clean checkout."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes: its own packages before the installed ones."""
        packages = [self.folder, *(self.folder / part for part in ("operator", "cli", "worker", "crds"))]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages)), "PYTHONUNBUFFERED": "1"}


Measure = Callable[[Commit], dict[str, float]]
"""Costs by figure."""


@dataclass(frozen=True, slots=True)
class Ratio:
    ratio: float
    """Geometric mean over the pairs, new over old."""
    low: float
    high: float
    """95 % interval."""
    pairs: int
    limit: float

    @property
    def passed(self) -> bool:
        return self.low <= self.limit


def compute_ratio(pairs: Sequence[tuple[float, float]], limit: float) -> Ratio:
    """`pairs`: (old, new) costs, above 0."""
    logs = np.log([new / old for old, new in pairs])
    mean = float(logs.mean())
    half = 0.0
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    low, ratio, high = (round(math.exp(value), 4) for value in (mean - half, mean, mean + half))
    return Ratio(ratio, low, high, len(pairs), limit)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regression", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two pairs, one shape: does it work at all?")
    parser.add_argument("--base", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=_LEAST_PAIRS)
    parser.add_argument("--shapes", nargs="+", choices=["arxiv", "reddit"])
    options = parser.parse_args(arguments)
    pairs, seconds = (2, 1) if options.quick else (options.pairs, 3)
    shapes = options.shapes or (["arxiv"] if options.quick else ["arxiv", "reddit"])
    costs: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gnnserve-regression-") as name:
        scratch = Path(name)
        with checkout("old", options.base) as old, checkout("new", "HEAD") as new:
            both = (old, new)
            for shape in shapes:
                files = prepare(SHAPES[shape])
                take_turns(costs, both, pairs, measure_start(files, scratch, old), f"{shape}: ")
                with serving(both, files, scratch, old) as measure:
                    take_turns(costs, both, pairs, measure_serving(measure, files, scratch, seconds), f"{shape}: ")
                with engines(both, files) as measure_engine:
                    take_turns(costs, both, pairs, measure_engine, f"{shape}: ")
            take_turns(costs, both, pairs, measure_decision, "")
            take_turns(costs, both, 2 if options.quick else max(3, pairs // 3), measure_operator(scratch), "")
    ratios = {
        figure: compute_ratio(found, DECISION_LIMIT if "decision" in figure else LIMIT)
        for figure, found in costs.items()
    }
    show(ratios, old, new)
    body = {
        "base": old.id,
        "head": new.id,
        "ratios": {figure: found.ratio for figure, found in ratios.items()},
        "intervals": {figure: [found.low, found.high] for figure, found in ratios.items()},
        "costs": {figure: [list(pair) for pair in found] for figure, found in costs.items()},
        "verdicts": {
            figure: {
                "wanted": f"lower end of the 95 % interval at most {found.limit}",
                "measured": f"{found.ratio} ({found.low} to {found.high}), {found.pairs} pairs",
                "passed": found.passed,
            }
            for figure, found in ratios.items()
        },
    }
    write_result("regression", options.quick, body)


def take_turns(
    costs: dict[str, list[tuple[float, float]]], both: tuple[Commit, Commit], pairs: int, measure: Measure, prefix: str
) -> None:
    """Adds the pairs' costs by figure. The first pair warms up and does not count."""
    for number in range(pairs + 1):
        order = both if number % 2 else both[::-1]
        found = {commit.name: measure(commit) for commit in order}
        if number:
            for figure, cost in found["old"].items():
                costs.setdefault(f"{prefix}{figure}", []).append((cost, found["new"][figure]))
        print(f"{prefix}pair {number} of {pairs}: {json.dumps(found)}", flush=True)


@contextmanager
def checkout(name: str, commit: str) -> Iterator[Commit]:
    """A clean working tree of the commit, kept from one run to the next, so that its kernels are compiled once."""
    resolved = _git("rev-parse", f"{commit}^{{commit}}")
    folder = CACHE / "regression" / resolved[:12]
    if not (folder / ".git").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), "fetch", "--quiet", str(ROOT), resolved], check=True)
    subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", "--force", "--detach", resolved], check=True)
    yield Commit(name, resolved, folder)


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


# --- serving over HTTP


def _command(files: ShapeFiles, scratch: Path, base: Commit, port: int) -> list[str]:
    """One repository for both, named by the old commit."""
    sources = prepare_sources(files)
    manifest = scratch / f"{files.shape.name}.yaml"
    manifest.write_text(yaml.safe_dump(service_manifest(files, sources, "float32"), sort_keys=False))
    repository = CACHE / "regression" / f"repository-{files.shape.name}-{base.id[:12]}"
    return [
        sys.executable, "-m", "gnnserve_cli", "run", str(manifest), "--repository", str(repository),
        "--port", str(port),
    ]  # fmt: skip


@contextmanager
def serving(
    both: tuple[Commit, Commit], files: ShapeFiles, scratch: Path, base: Commit
) -> Iterator[Mapping[str, Running]]:
    """Both commits' servers, side by side."""
    with ExitStack() as stack:
        yield {
            commit.name: stack.enter_context(_server(commit, files, scratch, base, _GENERATION_LIMIT_S))
            for commit in both
        }


@contextmanager
def _server(commit: Commit, files: ShapeFiles, scratch: Path, base: Commit, limit_s: float) -> Iterator[Running]:
    (port,) = free_ports(1)
    command, log = _command(files, scratch, base, port), scratch / f"{commit.name}.log"
    with running(command, commit.variables, log, port, lambda: GNNSERVE_JSON.ask(port, [0]), limit_s) as server:
        yield server


def measure_serving(servers: Mapping[str, Running], files: ShapeFiles, scratch: Path, seconds: int) -> Measure:
    def measure(commit: Commit) -> dict[str, float]:
        port = servers[commit.name].port
        one, many, large = (_requests(commit, port, files, scratch, seeds) for seeds in (1, 1, 1024))
        loads = [generate_load(port, path, at, seconds) for path, at in ((one, 1), (many, 32), (large, 1))]
        if any(load.errors for load in loads):
            raise SystemExit(f"{commit.name}: errors {[load.errors for load in loads]}: no figure to report")
        return {
            "one seed, p50 ms": loads[0].p50_ms,
            "32 connections, ms per request": 1e3 / loads[1].requests_per_s,
            "1024 seeds over HTTP, p50 ms": loads[2].p50_ms,
        }

    return measure


def _requests(commit: Commit, port: int, files: ShapeFiles, scratch: Path, seeds: int) -> Path:
    path = scratch / f"{files.shape.name}-{commit.name}-{port}-{seeds}.requests"
    if not path.exists():
        draw = np.random.default_rng(seeds)
        nodes = draw.integers(0, files.shape.seeds_end, (_BODIES[seeds], seeds)).tolist()
        write_requests(path, [GNNSERVE_JSON.request(port, of_one) for of_one in nodes])
    return path


def measure_start(files: ShapeFiles, scratch: Path, base: Commit) -> Measure:
    """Seconds from the start of `gnnserve run` over a published revision to `/readyz`."""
    with _server(base, files, scratch, base, _GENERATION_LIMIT_S):
        pass  # publishes it

    def measure(commit: Commit) -> dict[str, float]:
        (port,) = free_ports(1)
        began_s = time.perf_counter()
        with subprocess.Popen(
            _command(files, scratch, base, port), env=commit.variables, cwd=scratch,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                _wait_until_ready(process, port, began_s + _START_LIMIT_S)
                return {"second start, s": time.perf_counter() - began_s}
            finally:
                process.terminate()

    return measure


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, give_up_at_s: float) -> None:
    while time.perf_counter() < give_up_at_s and process.poll() is None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.005)
    raise SystemExit("gnnserve run did not become ready")


# --- in process


@contextmanager
def engines(both: tuple[Commit, Commit], files: ShapeFiles) -> Iterator[Measure]:
    """A process of each commit, which measures when it is told to."""
    with ExitStack() as stack:
        processes = {
            commit.name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(Path(__file__).with_name("regression_engine.py")), files.shape.name],
                    env=commit.variables, cwd=commit.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for commit in both
        }  # fmt: skip

        def measure(commit: Commit) -> dict[str, float]:
            process = processes[commit.name]
            assert process.stdin is not None  # noqa: S101
            assert process.stdout is not None  # noqa: S101
            process.stdin.write("measure\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the engine of {commit.name} ended with {process.wait()}")
            return dict(json.loads(line))

        try:
            yield measure
        finally:
            for process in processes.values():
                process.terminate()


def measure_decision(commit: Commit) -> dict[str, float]:
    """By the commit's own benchmark, whose result stays in its checkout."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.decision", "--quick"], env=commit.variables, cwd=commit.folder,
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    cases = json.loads((commit.folder / "benchmarks/results/decision.json").read_text())["cases"]
    return {f"decision, {case['name']}, p50 µs": case["decision_p50_us"] for case in cases}


# --- the operator


def measure_operator(scratch: Path) -> Measure:
    """Anonymous memory of an operator that knows services which cannot go on for want of a node."""
    # Imported here: the tests' API server in memory.
    from tests.support.fake_api import fake_api
    from tests.support.fake_cluster import FakeCluster
    from tests.support.operator import gnnservice

    def measure(commit: Commit) -> dict[str, float]:
        cluster = FakeCluster()
        for number in range(_SERVICES):
            service = gnnservice()
            service["metadata"]["name"] = f"digits-{number}"
            cluster.create(service)
        settings = scratch / f"settings-{commit.name}.yaml"
        settings.write_text(yaml.safe_dump({"workerImage": "worker:test", "httpPort": 0}))
        with fake_api(cluster) as api:
            variables = {
                **commit.variables,
                "KUBECONFIG": str(api.write_kubeconfig(scratch)),
                "GNNSERVE_SETTINGS": str(settings),
            }
            with subprocess.Popen(
                [sys.executable, "-m", "gnnserve_operator"], env=variables, stderr=subprocess.DEVNULL
            ) as process:
                try:
                    cluster.wait_until(lambda: _all_told(cluster))
                    time.sleep(_OPERATOR_SETTLES_S)
                    return {f"operator beside {_SERVICES} services, bytes": read_memory([process.pid]).anonymous_bytes}
                finally:
                    process.terminate()

    return measure


def _all_told(cluster: Any) -> bool:
    services = [found for (kind, _, _), found in cluster.objects.items() if kind == "GNNService"]
    return all((found.get("status") or {}).get("conditions") for found in services)


def show(ratios: Mapping[str, Ratio], old: Commit, new: Commit) -> None:
    table = Table("Cost", title=f"{new.id[:7]} over {old.id[:7]}: above 1 is worse")
    for header in ("new/old", "95 % interval", "pairs", "limit", ""):
        table.add_column(header, justify="right")
    for figure, found in ratios.items():
        table.add_row(
            figure, f"{found.ratio:.3f}", f"{found.low:.3f} to {found.high:.3f}", str(found.pairs),
            f"{found.limit:g}", "" if found.passed else "worse",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
