"""Is this commit slower than another one? Clean checkouts of both take turns in one run, pair by pair.

A shared machine drifts by more than what is looked for, so no figure is compared with one of another run: each pair
measures both commits right after each other, in an order that changes, and only the ratios of pairs count. Servers and
engines are started anew for every pair: two starts of one commit differ by more than what is looked for, and pairs of
one start would all share it. Every ratio is of a cost (time, time per request, bytes), new over old: above 1 is worse.
Its interval is Student's t over the pairs' logarithms, 95 %. A ratio fails where even the lower end of its interval is
above the limit: then it is worse, and not by chance.

Both commits serve from one repository, which the old one made: so the new one also shows that it needs no new
generation.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import math
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

from benchmarks.commits import Commit, check_out
from benchmarks.memory import read_memory
from benchmarks.peers.protocols import GNNSERVE_JSON
from benchmarks.peers.servers import free_ports, service_manifest
from benchmarks.results import write_result
from benchmarks.shapes import CACHE, SHAPES, Shape, ShapeFiles, prepare, prepare_sources
from benchmarks.wrk import Load, generate_load, write_requests

BASELINE = "4c3f189"
"""The commit that this wave of work began from, so that small losses do not add up unseen."""
LIMIT, DECISION_LIMIT = 1.03, 1.05
_LEAST_PAIRS = 10
_START_LIMIT_S, _GENERATION_LIMIT_S = 300.0, 1800.0
_POLL_S = 0.005
_BODIES = {1: 8192, 1024: 64}
_SERVICES = 50
"""GNNServices that an operator knows when its memory is read."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. Ten pairs of a shape take about 8 minutes: a pair starts two servers and two engines (3 s
    each) and puts each under three loads, after a pair that only warms up."""

    pairs: int
    operator_pairs: int
    warm_up_pairs: int
    load_s: int
    engine_s: float
    operator_settles_s: float


QUICK = Effort(pairs=1, operator_pairs=1, warm_up_pairs=0, load_s=1, engine_s=0.5, operator_settles_s=1.0)


def full_effort(pairs: int) -> Effort:
    """The operator's memory differs little from start to start, so a third of the pairs is enough."""
    return Effort(pairs, max(3, pairs // 3), warm_up_pairs=1, load_s=3, engine_s=2.0, operator_settles_s=4.0)


Measure = Callable[[Commit], dict[str, float]]
"""Costs by figure."""
MeasurePair = Callable[[Sequence[Commit]], Mapping[str, Mapping[str, float]]]
"""Measures both commits in this order: costs by the commit's name and by figure."""


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
    parser.add_argument("--quick", action="store_true", help="one pair, one shape: does it work at all?")
    parser.add_argument("--base", default=BASELINE, help="the commit to compare with")
    parser.add_argument("--pairs", type=int, default=_LEAST_PAIRS)
    parser.add_argument("--shapes", nargs="+", choices=["arxiv", "reddit"])
    options = parser.parse_args(arguments)
    effort = QUICK if options.quick else full_effort(options.pairs)
    shapes = options.shapes or (["arxiv"] if options.quick else ["arxiv", "reddit"])
    costs: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gnnserve-regression-") as name:
        scratch = Path(name)
        both = old, new = check_out("old", options.base), check_out("new", "HEAD")
        for shape in shapes:
            subject = publish(SHAPES[shape], scratch, old)
            turns = Turns(costs, both, f"{shape}: ", effort.warm_up_pairs)
            turns.take(effort.pairs, measure_serving(subject, effort.load_s))
            turns.take(effort.pairs, one_by_one(measure_engine(subject, effort.engine_s)))
        turns = Turns(costs, both, "", effort.warm_up_pairs)
        turns.take(effort.pairs, one_by_one(measure_decision))
        turns.take(effort.operator_pairs, one_by_one(measure_operator(scratch, effort.operator_settles_s)))
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


@dataclass(frozen=True, slots=True)
class Turns:
    costs: dict[str, list[tuple[float, float]]]
    """(old, new) of each pair, by figure."""
    both: tuple[Commit, Commit]
    prefix: str
    warm_up_pairs: int
    """Pairs that do not count, before those that do: they compile kernels and fill the page cache."""

    def take(self, pairs: int, measure: MeasurePair) -> None:
        """Adds the costs of so many pairs. Every other pair begins with the new commit."""
        for number in range(1 - self.warm_up_pairs, pairs + 1):
            found = measure(self.both if number % 2 else self.both[::-1])
            if number > 0:
                for figure, cost in found["old"].items():
                    self.costs.setdefault(f"{self.prefix}{figure}", []).append((cost, found["new"][figure]))
            print(f"{self.prefix}pair {number} of {pairs}: {json.dumps(found)}", flush=True)


def one_by_one(measure: Measure) -> MeasurePair:
    return lambda order: {commit.name: measure(commit) for commit in order}


# --- serving over HTTP


@dataclass(frozen=True, slots=True)
class Subject:
    """What both commits serve: one shape, from one repository that the old commit made."""

    files: ShapeFiles
    manifest: Path
    repository: Path
    scratch: Path

    def command(self, port: int) -> list[str]:
        return [
            sys.executable, "-m", "gnnserve_cli", "run", str(self.manifest), "--repository", str(self.repository),
            "--port", str(port),
        ]  # fmt: skip

    def write_requests(self, commit: Commit, port: int, seeds: int) -> Path:
        path = self.scratch / f"{commit.name}-{seeds}.requests"
        draw = np.random.default_rng(seeds)
        nodes = draw.integers(0, self.files.shape.seeds_end, (_BODIES[seeds], seeds)).tolist()
        write_requests(path, [GNNSERVE_JSON.request(port, of_one) for of_one in nodes])
        return path


def publish(shape: Shape, scratch: Path, base: Commit) -> Subject:
    """Has the old commit generate the revision, unless an earlier run did."""
    files = prepare(shape)
    manifest = scratch / f"{shape.name}.yaml"
    manifest.write_text(yaml.safe_dump(service_manifest(files, prepare_sources(files), "float32"), sort_keys=False))
    repository = CACHE / "regression" / f"repository-{shape.name}-{base.id[:12]}"
    subject = Subject(files, manifest, repository, scratch)
    with started(base, subject, _GENERATION_LIMIT_S):
        pass
    return subject


@dataclass(frozen=True, slots=True)
class Started:
    port: int
    start_s: float
    """From the start of `gnnserve run` to `/readyz`."""


@contextmanager
def started(commit: Commit, subject: Subject, limit_s: float = _START_LIMIT_S) -> Iterator[Started]:
    """The commit's server. SystemExit where it does not become ready."""
    (port,) = free_ports(1)
    command, log = subject.command(port), subject.scratch / f"{commit.name}.log"
    with log.open("w") as output:
        began_s = time.perf_counter()
        with subprocess.Popen(
            command, env=commit.variables, cwd=subject.scratch, stdout=output, stderr=subprocess.STDOUT
        ) as process:
            try:
                if not _becomes_ready(process, port, began_s + limit_s):
                    raise SystemExit(f"gnnserve run of {commit.name} did not become ready: {log.read_text()[-400:]}")
                yield Started(port, time.perf_counter() - began_s)
            finally:
                process.terminate()


def _becomes_ready(process: subprocess.Popen[bytes], port: int, give_up_at_s: float) -> bool:
    while time.perf_counter() < give_up_at_s and process.poll() is None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return True
        time.sleep(_POLL_S)
    return False


@dataclass(frozen=True, slots=True)
class HttpCost:
    figure: str
    seeds: int
    connections: int
    of_load: Callable[[Load], float]


_HTTP_COSTS = (
    HttpCost("one seed, p50 ms", 1, 1, lambda load: load.p50_ms),
    HttpCost("32 connections, ms per request", 1, 32, lambda load: 1e3 / load.requests_per_s),
    HttpCost("1024 seeds over HTTP, p50 ms", 1024, 1, lambda load: load.p50_ms),
)


def measure_serving(subject: Subject, seconds: int) -> MeasurePair:
    """Starts both servers anew, so that what a process happened to get (its place in memory, its huge pages) differs
    from pair to pair as it does between users. The same load then goes to one right after the other."""

    def measure(order: Sequence[Commit]) -> dict[str, dict[str, float]]:
        costs: dict[str, dict[str, float]] = {}
        with ExitStack() as stack:
            servers = {}
            for commit in order:
                servers[commit] = stack.enter_context(started(commit, subject))
                costs[commit.name] = {"second start, s": servers[commit].start_s}
            for cost, commit in itertools.product(_HTTP_COSTS, order):
                port = servers[commit].port
                requests = subject.write_requests(commit, port, cost.seeds)
                load = generate_load(port, requests, cost.connections, seconds)
                if load.errors:
                    raise SystemExit(f"{commit.name}: errors {load.errors}: no figure to report")
                costs[commit.name][cost.figure] = cost.of_load(load)
        return costs

    return measure


# --- in process


def measure_engine(subject: Subject, seconds: float) -> Measure:
    """In a process that is started anew, for the same reason as servers are."""
    program = Path(__file__).with_name("regression_engine.py")

    def measure(commit: Commit) -> dict[str, float]:
        ended = subprocess.run(
            [sys.executable, str(program), subject.files.shape.name, str(subject.repository), str(seconds)],
            env=commit.variables, cwd=commit.folder, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        return dict(json.loads(ended.stdout))

    return measure


def measure_decision(commit: Commit) -> dict[str, float]:
    """Runs the commit's own benchmark, whose result stays in its checkout."""
    subprocess.run(
        [sys.executable, "-m", "benchmarks.decision", "--quick"], env=commit.variables, cwd=commit.folder,
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    folder = commit.folder / "benchmarks/results"
    file = next(path for name in ("decision.quick.json", "decision.json") if (path := folder / name).exists())
    found = json.loads(file.read_text())
    cases = found["cases"] if "cases" in found else found["parts"]["all"]["found"]["cases"]
    return {f"decision, {case['name']}, p50 µs": case["decision_p50_us"] for case in cases}


# --- the operator


def measure_operator(scratch: Path, settles_s: float) -> Measure:
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
                    time.sleep(settles_s)
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
