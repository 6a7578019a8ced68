"""Does routing hold the objective, and at which accuracy? A real worker on one core, the generator on another.

The graph is one on which accuracy costs columns (`communities.py`), trained for real, without projected variants. Loads
are the simulator's: requests of 48 seeds on average, rates in units of the capacity measured of the most accurate
variant, open loop, from when a request was due to its answer. For each scenario: our routing, every static variant,
mode Metrics, and the worker's fast loop without the slow one; each in a process that has not answered before. Then
overload: what is answered in time at one to three times the fastest variant's capacity, and beyond.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load.communities import Communities, prepare
from benchmarks.load.routing_verdict import WANTED_PERCENT, Report, Result, brief, describe, judge, show
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, Worded, at_least, that
from gnnserve_api.files.profile import Profile
from gnnserve_cli.client import fetch_variants
from gnnserve_cli.loadgen.scenario import Scenario
from gnnserve_client.address import parse_url

SEEDS = 48
MAX_SEEDS = 1024
FULL_BATCHES = 2.4
"""The objective, in full batches of the most accurate variant: 2.31 and 2.42 in the simulator."""
PEAKS = {Scenario.STEP: 2.8, Scenario.FLASH: 7.2, Scenario.DIURNAL: 3.5, Scenario.BURSTS: 3.0}
"""Peak load over the capacity of the most accurate variant, as in the simulator; flash exceeds every variant's."""
# What follows by whether the run is quick.
DURATION_S = {False: 38.0, True: 20.0}
CAPACITY_S = {False: 6.0, True: 3.0}
OVERLOAD_S = {False: 10.0, True: 5.0}
OVERLOADS = {
    False: ((0.7, 0), (0.85, 0), (1.0, 0), (1.5, 0), (2.0, 0), (3.0, 0), (6.0, 0), (3.0, 3)),
    True: ((1.0, 0), (3.0, 0)),
}
"""Offered load over the capacity of the fastest variant, and how often a refused request is sent again."""
GOODPUT_WANTED = 0.9
"""Share of the highest goodput that is wanted at three times the capacity."""
_OVERLOADED = 3.0
SLOW_LOOP_S = 2
"""The simulator's 15 s, shortened as its 300 s are."""
NEVER_S = 3600
NOBODY_WAITS_MS = 600_000
"""Stated by the requests that capacity is measured with, so that none is refused."""
START_LIMIT_S = 120.0
_SPARE_S = 60.0
"""Seconds for a generator to draw its requests and to collect what is left."""


@dataclass(frozen=True, slots=True)
class Bench:
    worker_core: int
    generator_core: int
    graph: Path
    repository: Path
    scratch: Path
    objective_ms: float | None = None
    """The objective; None while there is no profile to choose it by."""

    def write_manifest(self, name: str, routing: Mapping[str, Any]) -> Path:
        spec: dict[str, Any] = {
            "graph": {"source": {"npz": {"uri": self.graph.as_uri()}}, "normalization": "Disabled"},
            "model": {
                "architecture": "GraphSAGE",
                "hidden": 128,
                "fanouts": [25, 10],
                "training": {"epochs": 4, "batchSize": 512, "dropout": 0.2},
            },
            "variants": {"pruning": {"method": "Random", "factors": [1, 2, 4, 8]}, "projection": "Disabled"},
            "worker": {"batching": {"maxSeeds": MAX_SEEDS}},
            "routing": dict(routing),
        }
        if self.objective_ms is not None:
            spec["objective"] = {"latencyMs": self.objective_ms}
        manifest = {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "routing-bench"},
            "spec": spec,
        }
        path = self.scratch / f"{name}.yaml"
        path.write_text(json.dumps(manifest))  # which is YAML
        return path

    def command(self, core: int, *arguments: str) -> list[str]:
        return ["taskset", "--cpu-list", str(core), sys.executable, "-m", "gnnserve_cli", *arguments]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of arrivals, sizes and node ids")


def run_all(run: Run) -> dict[str, Any]:
    quick, seed = run.quick, run.options.seed
    with tempfile.TemporaryDirectory(prefix="gnnserve-routing-") as folder:
        graph = prepare(Communities())
        worker_core, generator_core = _pick_cores()
        bench = Bench(worker_core, generator_core, graph, graph.parent / "repository", Path(folder))
        profile = generate(bench, anew=not quick)
        names = [variant.name for variant in sorted(profile.variants, key=lambda v: -v.validation_accuracy)]
        full_ms = {name: profile.variant(name).latency[-1].p50_ms for name in names}
        objective_ms = float(round(FULL_BATCHES * full_ms[names[0]]))
        bench = Bench(worker_core, generator_core, graph, bench.repository, bench.scratch, objective_ms)
        capacities = {name: measure_capacity(bench, name, CAPACITY_S[quick]) for name in names}
        print(f"objective {objective_ms:g} ms; seeds/s: {capacities}", flush=True)
        policies = build_policies(names, ["ours", *names, *([] if quick else ["metrics", "fast"])])
        unit_per_s = capacities[names[0]] / SEEDS
        found: dict[Scenario, dict[str, Result]] = {}
        for scenario in Scenario:
            found[scenario] = {}
            for policy, routing in policies.items():
                result = run_scenario(
                    bench, policy, routing, scenario, PEAKS[scenario] * unit_per_s, DURATION_S[quick], seed
                )
                found[scenario][policy] = result
                print(f"{scenario} {policy}: {brief(result)}", flush=True)
        overload = measure_overload(bench, capacities[names[-1]] / SEEDS, quick)
    judged = {scenario: judge(results, names) for scenario, results in found.items()}
    show(found, judged)
    return {
        "scenarios": {scenario: describe(results, names, judged[scenario]) for scenario, results in found.items()},
        "overload": overload,
        "objectiveMs": objective_ms,
        "fullBatchMs": full_ms,
        "testAccuracy": {name: profile.variant(name).test_accuracy for name in names},
        "capacitySeedsPerSecond": capacities,
        "peaks": {scenario: PEAKS[scenario] for scenario in Scenario},
        "secondsPerRun": DURATION_S[quick],
        "slowLoopSeconds": SLOW_LOOP_S,
        "graph": asdict(Communities()),
    }


def _pick_cores() -> tuple[int, int]:
    """Cores for the worker, and for the generator."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("one core for the worker and one for the generator are needed, and there is one")
    return cores[-1], cores[0]


def build_policies(names: Sequence[str], wanted: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`spec.routing` of each."""
    slow = {"intervalSeconds": SLOW_LOOP_S}
    known: dict[str, dict[str, Any]] = {
        "ours": {"mode": "Adaptive", **slow},
        **{name: {"mode": "Static", "variant": name, **slow} for name in names},
        "metrics": {"mode": "Metrics", **slow},
        "fast": {"mode": "Adaptive", "intervalSeconds": NEVER_S},
    }
    if unknown := [policy for policy in wanted if policy not in known]:
        raise SystemExit(f"--policies {', '.join(unknown)}: choose from {', '.join(known)}")
    return {policy: known[policy] for policy in wanted}


def generate(bench: Bench, anew: bool) -> Profile:
    """Generates on the worker's core, so that the profile is of what will answer. `anew`: profiled in this very run."""
    if anew:
        shutil.rmtree(bench.repository, ignore_errors=True)
    manifest = bench.write_manifest("generate", {})
    command = bench.command(bench.worker_core, "generate", str(manifest), "--repository", str(bench.repository))
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit("gnnserve generate failed; its last words are above")
    with serving(bench, manifest) as server:
        return fetch_variants(parse_url(server.url)).profile


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    log: Path

    def read_bases(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith("Base variant:")]


@contextmanager
def serving(bench: Bench, manifest: Path) -> Iterator[Server]:
    """`gnnserve serve` on the worker's core."""
    log = bench.scratch / "server.log"
    arguments = ("serve", str(manifest), "--repository", str(bench.repository), "--port", "0")
    with (
        log.open("w") as output,
        subprocess.Popen(
            bench.command(bench.worker_core, *arguments), stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield Server(_wait_for_address(process, log), log)
        finally:
            process.terminate()


def _wait_for_address(process: subprocess.Popen[bytes], log: Path) -> str:
    give_up_at_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up_at_s:
        if announced := re.search(r"^Serving on (http://\S+)$", log.read_text(), re.MULTILINE):
            return announced[1]
        if process.poll() is not None:
            raise SystemExit(f"gnnserve serve ended with {process.returncode}: {log.read_text()[-800:]}")
        time.sleep(0.05)
    raise SystemExit(f"gnnserve serve did not serve within {START_LIMIT_S:g} s: {log.read_text()[-800:]}")


def load(bench: Bench, server: Server, duration_s: float, *options: str) -> Report:
    """`gnnserve load` on the generator's core."""
    arguments = (
        "load",
        server.url,
        "--json",
        "--duration",
        str(duration_s),
        "--seeds-per-request",
        str(SEEDS),
        *options,
    )
    done = subprocess.run(
        bench.command(bench.generator_core, *arguments),
        check=False,
        capture_output=True,
        text=True,
        timeout=duration_s + _SPARE_S,
    )
    if done.returncode:
        raise SystemExit(f"gnnserve load failed: {done.stderr}; the server said {server.log.read_text()[-800:]}")
    report: Report = json.loads(done.stdout)
    return report


def measure_capacity(bench: Bench, variant: str, duration_s: float) -> float:
    """Seeds per second in a closed loop, whose batches are full or nearly so."""
    manifest = bench.write_manifest("capacity", {"mode": "Static", "variant": variant, "intervalSeconds": NEVER_S})
    options = ("--objective-ms", str(NOBODY_WAITS_MS), "--concurrency", str(2 * MAX_SEEDS // SEEDS))
    with serving(bench, manifest) as server:
        load(bench, server, 1.0, *options)
        report = load(bench, server, duration_s, *options)
    if set(report["variants"]) != {variant}:
        raise SystemExit(f"mode Static of {variant} answered by {report['variants']}")
    return round(report["seedsPerSecond"])


def run_scenario(
    bench: Bench,
    policy: str,
    routing: Mapping[str, Any],
    scenario: Scenario,
    peak_per_s: float,
    duration_s: float,
    seed: int,
) -> Result:
    with serving(bench, bench.write_manifest(policy, routing)) as server:
        options = ("--scenario", scenario, "--rate", f"{peak_per_s:.3f}", "--seed", str(seed), "--sizes", "lognormal")
        return Result.of(load(bench, server, duration_s, *options), server.read_bases())


def measure_overload(bench: Bench, capacity_per_s: float, quick: bool) -> dict[str, Any]:
    """Goodput and its share of the highest, by offered load. Of one size: to refuse large ones would look good."""
    runs = []
    for times, retries in OVERLOADS[quick]:
        with serving(
            bench, bench.write_manifest("overload", {"mode": "Adaptive", "intervalSeconds": SLOW_LOOP_S})
        ) as server:
            options = ("--rate", f"{times * capacity_per_s:.3f}", "--retries", str(retries))
            report = load(bench, server, OVERLOAD_S[quick], *options)
        goodput = report["goodputPerSecond"]
        runs.append(
            {
                "timesCapacity": times,
                "retries": retries,
                "offeredPerSecond": report["tries"] / report["durationS"],
                "goodputPerSecond": goodput,
                "attained": report["attainedPercent"],
                "p99Ms": report["latencyMs"] and report["latencyMs"]["p99"],
                "refused": report["refused"],
                "generatorLate": report["late"],
            }
        )
        print(
            f"overload {times:g} times the capacity, {retries} retries: {goodput:,.0f} in time per second", flush=True
        )
    peak = max(run["goodputPerSecond"] for run in runs)
    for run in runs:
        run["shareOfPeak"] = round(run["goodputPerSecond"] / peak, 3)
    beyond = [run["shareOfPeak"] for run in runs if run["timesCapacity"] == _OVERLOADED]
    return {"peakPerSecond": peak, "shareAt3Times": min(beyond), "passed": min(beyond) >= GOODPUT_WANTED, "runs": runs}


def verdicts(found: Mapping[str, Any]) -> Iterator[Verdict]:
    for scenario, run in found["scenarios"].items():
        if "verdict" in run:
            yield Verdict(
                f"{scenario}: on time, and as accurate as the best variant that is",
                that(f"{WANTED_PERCENT:g} % at its accuracy"), partial(_scenario, scenario),
            )  # fmt: skip
    for place, run in enumerate(found.get("overload", {}).get("runs", ())):
        if run["timesCapacity"] == _OVERLOADED:
            trying = ", refused clients trying again" if run["retries"] else ""
            yield Verdict(
                f"goodput at {_OVERLOADED:g} times the capacity, of its peak{trying}", at_least(GOODPUT_WANTED),
                partial(_goodput, place),
                "reading and refusing the requests that are not answered takes the rest",
            )  # fmt: skip


def _scenario(scenario: str, found: Mapping[str, Any]) -> Worded:
    judged = found["scenarios"][scenario]["verdict"]
    return Worded(judged["passed"], judged["text"])


def _goodput(place: int, found: Mapping[str, Any]) -> float:
    return float(found["overload"]["runs"][place]["shareOfPeak"])


BENCHMARK = Benchmark(
    "routing",
    (
        Part(
            "all", run_all,
            ("gnnserve_cli.commands.generate", "gnnserve_cli.commands.serve", "gnnserve_cli.commands.load"),
        ),
    ),
    verdicts,
    about=__doc__,
    options=add_options,
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
