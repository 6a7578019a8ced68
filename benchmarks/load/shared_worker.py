"""Several services in one server: does one that is overloaded slow another down, and what does sharing save?

Two services with equal shares answer from one server on a core of its own; the load generators have the other core. One
service is offered about two thirds of its share; first alone, then beside the other one, which is offered three times
its own share. Then four services in one server beside four servers of one service each, all on both cores: memory of
their own once each has answered, and seeds a second by closed loops on all four at once, in turns.

Each service has ogbn-arxiv's shape and answers by x1 alone, so that a share is a number of seeds. A fourth part loads
services over the digits with few and many connections (`shared_connections.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.load import shared_connections
from benchmarks.memory import read_memory
from benchmarks.peers.servers import service_manifest
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import SHAPES, ShapeFiles, prepare, prepare_sources
from benchmarks.verdicts import Verdict, given

LATENCY_MS = 100
"""Objective of each service."""
SEEDS, OTHERS_SEEDS = 64, 1024
"""Seeds of a request; those of the overloaded service are large, so that its generator takes little of the core."""
SHARE_OFFERED, TIMES_SHARE = 0.65, 3.0
"""Load of the service that behaves, and of the one that does not, over what their share of the capacity carries."""
SERVICES = 4
WANTED_P99 = 1.3
_START_LIMIT_S = 600.0
_SPARE_S = 60.0
_PATIENCE_MS = 60_000
_DURATION_S, _ROUNDS = 12.0, 4
_CONNECTIONS_S, _CONNECTIONS_ROUNDS = 10, 5
_MIB = 2**20

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    process: subprocess.Popen[bytes]
    urls: dict[str, str]


@dataclass(frozen=True, slots=True)
class Bench:
    manifests: dict[str, Path]
    repository: Path
    scratch: Path
    generator_core: str
    worker_core: str
    all_cores: str

    def command(self, cores: str, *arguments: str) -> list[str]:
        return ["taskset", "--cpu-list", cores, sys.executable, "-m", "gnnserve_cli", *arguments]

    def load(self, cores: str, url: str, duration_s: float, *options: str) -> subprocess.Popen[str]:
        command = self.command(cores, "load", url, "--json", "--binary", "--duration", f"{duration_s:g}", *options)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def prepared(_: Run) -> Iterator[Bench]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("one core for the server and one for the generators are needed, and there is one")
    with TemporaryDirectory() as folder:
        files = prepare(SHAPES["arxiv"])
        yield Bench(
            write_manifests(files, Path(folder)),
            files.folder.parent / "shared",
            Path(folder),
            str(cores[0]),
            str(cores[-1]),
            ",".join(str(core) for core in cores),
        )


def _effort(run: Run) -> tuple[float, int]:
    """Seconds of a round, and rounds."""
    return (2.0, 1) if run.quick else (_DURATION_S, _ROUNDS)


def run_fairness(run: Run) -> dict[str, Any]:
    generate(run.context, anew=not run.quick)
    return {"shape": "arxiv", "variant": "x1", "fairness": measure_fairness(run.context, *_effort(run))}


def run_four(run: Run) -> dict[str, Any]:
    generate(run.context, anew=False)
    duration_s, rounds = _effort(run)
    return {"shape": "arxiv", "variant": "x1", "four": measure_savings(run.context, duration_s / 2, rounds)}


def run_connections(run: Run) -> dict[str, Any]:
    found = measure_connections(run.context, quick=run.quick)
    shared_connections.show(found)
    return {"connections": found}


def generate(bench: Bench, *, anew: bool) -> None:
    """Publish the services' revisions. `anew`: those of an earlier run, perhaps profiled on a busy machine, go."""
    if anew:
        shutil.rmtree(bench.repository, ignore_errors=True)
    for manifest in bench.manifests.values():
        arguments = ("generate", str(manifest), "--repository", str(bench.repository))
        subprocess.run(bench.command(bench.worker_core, *arguments), check=True, stdout=subprocess.DEVNULL)


def write_manifests(files: ShapeFiles, folder: Path) -> dict[str, Path]:
    """The manifest of each service by its name; they differ by that alone."""
    manifests = {}
    for name in [f"shared-{letter}" for letter in "abcd"[:SERVICES]]:
        manifest: Any = service_manifest(files, prepare_sources(files), "float32", "x1")
        manifest["metadata"]["name"] = name
        manifest["spec"]["objective"] = {"latencyMs": LATENCY_MS}
        manifest["spec"]["variants"]["projection"] = "Disabled"
        manifests[name] = folder / f"{name}.yaml"
        manifests[name].write_text(yaml.safe_dump(manifest))
    return manifests


@contextmanager
def serving(bench: Bench, cores: str, names: Sequence[str], *options: str) -> Iterator[Served]:
    """`gnnserve serve` of these services."""
    log = bench.scratch / f"server-{'-'.join((*names, *options)).replace('/', '')}.log"
    manifests = (str(bench.manifests[name]) for name in names)
    arguments = ("serve", *manifests, "--repository", str(bench.repository), *options)
    with (
        log.open("w") as output,
        subprocess.Popen(
            bench.command(cores, *arguments, "--port", "0"), stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield Served(process, _wait_for_addresses(process, log, names))
        finally:
            process.terminate()


def _wait_for_addresses(process: subprocess.Popen[bytes], log: Path, names: Sequence[str]) -> dict[str, str]:
    give_up_at_s = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < give_up_at_s:
        found = re.findall(r"^Serving (?:\S+ )?on (http://\S+)$", log.read_text(), re.MULTILINE)
        if len(found) == len(names):
            return dict(zip(names, found, strict=True))
        if process.poll() is not None:
            raise SystemExit(f"gnnserve serve ended with {process.returncode}: {log.read_text()[-800:]}")
        time.sleep(0.05)
    raise SystemExit(f"gnnserve serve did not serve within {_START_LIMIT_S:g} s: {log.read_text()[-800:]}")


def report_of(load: subprocess.Popen[str], duration_s: float) -> Report:
    said, complained = load.communicate(timeout=duration_s + _SPARE_S)
    if load.returncode not in (0, 4) or not said:
        raise SystemExit(f"gnnserve load failed: {complained}")
    report: Report = json.loads(said)
    return report


def measure_fairness(bench: Bench, duration_s: float, rounds: int) -> dict[str, Any]:
    """Alone and beside the other one in turns; medians of the rounds."""
    first, second = tuple(bench.manifests)[:2]
    core, alone, beside, other = bench.generator_core, [], [], []
    with serving(bench, bench.worker_core, (first, second)) as served:
        closed = ("--seeds-per-request", str(OTHERS_SEEDS), "--objective-ms", str(_PATIENCE_MS), "--concurrency", "4")
        report_of(bench.load(core, served.urls[second], 2.0, *closed), 2.0)
        capacity = report_of(bench.load(core, served.urls[second], duration_s / 2, *closed), duration_s)
        share_per_s = capacity["seedsPerSecond"] / 2
        own = ("--rate", f"{SHARE_OFFERED * share_per_s / SEEDS:.2f}", "--seeds-per-request", str(SEEDS))
        too_much = ("--rate", f"{TIMES_SHARE * share_per_s / OTHERS_SEEDS:.2f}", "--seeds-per-request")
        report_of(bench.load(core, served.urls[first], 2.0, *own), 2.0)
        for _ in range(rounds):
            alone.append(report_of(bench.load(core, served.urls[first], duration_s, *own), duration_s))
            hog = bench.load(core, served.urls[second], duration_s + 2, *too_much, str(OTHERS_SEEDS))
            time.sleep(1)  # until its queue is full
            beside.append(report_of(bench.load(core, served.urls[first], duration_s, *own), duration_s))
            other.append(report_of(hog, duration_s))
    return {
        "capacity_seeds_per_s": round(capacity["seedsPerSecond"]),
        "alone": _median(alone),
        "beside": _median(beside),
        "other": _median(other),
    }


def _median(reports: Sequence[Report]) -> dict[str, float]:
    """Medians over the rounds; refusals of all of them, and the round with the fewest answers on time."""
    return {
        "offered_per_s": round(statistics.median(one["offeredPerSecond"] for one in reports), 1),
        "seeds_per_s": round(statistics.median(one["seedsPerSecond"] for one in reports)),
        "p50_ms": round(statistics.median(one["latencyMs"]["p50"] for one in reports), 3),
        "p99_ms": round(statistics.median(one["latencyMs"]["p99"] for one in reports), 3),
        "attained_percent": round(min(one["attainedPercent"] for one in reports), 3),
        "refused": sum(one["refused"] for one in reports),
        "requests": sum(one["requests"] for one in reports),
    }


def measure_savings(bench: Bench, duration_s: float, rounds: int) -> dict[str, Any]:
    """One server and four, up at the same time and loaded in turns."""
    names = tuple(bench.manifests)
    with ExitStack() as up:
        one = [up.enter_context(serving(bench, bench.all_cores, names))]
        four = [up.enter_context(serving(bench, bench.all_cores, (name,))) for name in names]
        seeds_per_s: dict[str, list[float]] = {"one": [], "four": []}
        kinds = {"one": one, "four": four}
        for servers in kinds.values():  # what is made for the first request is there
            _load_all(bench, servers, 1.0)
        for _ in range(rounds):
            for kind, servers in kinds.items():
                seeds_per_s[kind].append(_load_all(bench, servers, duration_s))
        own_mib = {
            kind: read_memory([server.process.pid for server in servers]).anonymous_bytes / _MIB
            for kind, servers in kinds.items()
        }
    return {
        kind: {"seeds_per_s": round(statistics.median(seeds_per_s[kind])), "own_memory_mib": round(own_mib[kind], 1)}
        for kind in kinds
    }


def _load_all(bench: Bench, servers: Sequence[Served], duration_s: float) -> float:
    """Seeds per second of closed loops on every service."""
    options = ("--seeds-per-request", str(OTHERS_SEEDS), "--objective-ms", str(_PATIENCE_MS), "--concurrency", "2")
    loads = [
        bench.load(bench.all_cores, url, duration_s, *options) for server in servers for url in server.urls.values()
    ]
    return sum(report_of(load, duration_s)["seedsPerSecond"] for load in loads)


def measure_connections(bench: Bench, *, quick: bool) -> dict[str, Any]:
    """A service with few connections, alone and beside one with many."""
    over_digits = replace(bench, manifests=shared_connections.write_manifests(bench.scratch))
    generate(over_digits, anew=False)
    with serving(over_digits, bench.worker_core, shared_connections.NAMES) as served:
        ports = [int(served.urls[name].rpartition(":")[2]) for name in shared_connections.NAMES]
        before = ("taskset", "--cpu-list", bench.generator_core)
        seconds, rounds = (1, 1) if quick else (_CONNECTIONS_S, _CONNECTIONS_ROUNDS)
        return shared_connections.measure(ports, bench.scratch, before, seconds, rounds)


def judge(fairness: dict[str, Any], savings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    alone, beside = fairness["alone"], fairness["beside"]
    ratio = beside["p99_ms"] / alone["p99_ms"]
    return {
        "p99 of a service beside one that is offered three times its share, over alone": {
            "wanted": f"at most {WANTED_P99}",
            "measured": f"{ratio:.2f} ({beside['p99_ms']:.1f} and {alone['p99_ms']:.1f} ms)",
            "passed": ratio <= WANTED_P99,
        },
        f"its requests that are answered within {LATENCY_MS} ms, in the worst round": {
            "wanted": "100 %",
            "measured": f"{beside['attained_percent']:g} %",
            "passed": beside["attained_percent"] >= 100,
        },
        "own memory of four services in one server, over four servers": {
            "wanted": "less",
            "measured": f"{savings['one']['own_memory_mib']:.0f} and {savings['four']['own_memory_mib']:.0f} MiB",
            "passed": savings["one"]["own_memory_mib"] < savings["four"]["own_memory_mib"],
        },
    }


def show(fairness: dict[str, Any], savings: dict[str, Any]) -> None:
    table = Table(title=f"capacity of the server's core: {fairness['capacity_seeds_per_s']:,} seeds/s by x1")
    for column in ("service", "offered/s", "answered seeds/s", "p50 ms", "p99 ms", "on time %", "refused", "of"):
        table.add_column(column, justify="left" if column == "service" else "right")
    for name in ("alone", "beside", "other"):
        of = fairness[name]
        table.add_row(
            name, f"{of['offered_per_s']:,}", f"{of['seeds_per_s']:,}", f"{of['p50_ms']:.2f}", f"{of['p99_ms']:.2f}",
            f"{of['attained_percent']:g}", f"{of['refused']:,}", f"{of['requests']:,}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    for kind in ("one", "four"):
        of = savings[kind]
        console.print(f"{kind} server(s): {of['own_memory_mib']:,.0f} MiB of their own, {of['seeds_per_s']:,} seeds/s")


REASONS = {
    "three times its share": "the rest of the turn that a request finds running is left; and the service alone, "
    "which it is over, differs from run to run",
}
"""Why figures are missed."""


def verdicts(found: Mapping[str, Any]) -> Iterable[Verdict]:
    if "fairness" in found and "four" in found:
        yield from given(judge(found["fairness"], found["four"]), REASONS)
    if "connections" in found:
        yield from given(shared_connections.judge(found["connections"]))


def show_all(found: Mapping[str, Any]) -> None:
    if "fairness" in found and "four" in found:
        show(found["fairness"], found["four"])


_PROGRAMS = ("gnnserve_cli.commands.generate", "gnnserve_cli.commands.serve", "gnnserve_cli.commands.load")

BENCHMARK = Benchmark(
    "shared_worker",
    (
        Part("fairness", run_fairness, _PROGRAMS),
        Part("four", run_four, _PROGRAMS),
        Part("connections", run_connections, _PROGRAMS),
    ),
    verdicts,
    about=__doc__,
    show=show_all,
    around=prepared,
)

if __name__ == "__main__":
    main(BENCHMARK)
