"""Does it stay as it is? Mixed requests at 70 % of the measured capacity, over HTTP, for twenty minutes.

Open loop: requests are due on a Poisson schedule whether or not the server keeps up, and latency counts from when a
request was due. Capacity is what the same generator reaches in a closed loop just before. Per minute: percentiles,
over all sizes and for each, errors, and the server's memory.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import statistics
from array import array
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.memory import MemoryWatch, read_memory
from benchmarks.peers.processes import descendants, running
from benchmarks.peers.protocols import GNNSERVE_JSON
from benchmarks.peers.servers import free_ports, gnnserve_server, variables_of, with_ports
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import SHAPES, prepare
from benchmarks.verdicts import Verdict as Judged
from benchmarks.verdicts import at_most, exactly
from benchmarks.wrk import encode_post
from gnnserve_api.http.protocol import PredictRequest
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.record import RequestRows
from gnnserve_cli.loadgen.requests import Requests
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import LoadPlan, compute_percentiles, percentile
from gnnserve_cli.render import format_ms
from gnnserve_client.address import Endpoint

MIX = ((1, 800), (16, 150), (256, 45), (1024, 4), (8192, 1))
"""Seeds of a request, and how many in a thousand have that many. A batch has 1024 at most, so that the largest are
split into 8 pieces, and into 32 while small ones wait; requests may have 65,536."""
LOAD_SHARE = 0.7
MINUTES = 20
CONNECTIONS = 32
"""Connections while capacity is measured."""
OPEN_CONNECTIONS = 512
"""Connections, more than are ever busy: a request that waits for a free one would be late by the generator's doing."""
ANSWER_TIMEOUT_S = 10.0
START_LIMIT_S = 1800.0
"""The first start generates the revision."""
MEMORY_GROWTH_MIB = 16.0
"""Anonymous memory of the last minutes over the first: more is a leak."""
P99_LIMIT = 1.2
"""Median p99 of the last minutes over the first."""
COMPARED_MINUTES = 5
WATCH_S = 1.0
_MIB = 2**20

LatenciesBySize = dict[int, "array[float]"]
"""Latencies by seeds of the request."""


@dataclass(frozen=True, slots=True)
class SizeLatency:
    """Latencies of the requests of one size."""

    seeds: int | None
    """Seeds of the requests; None: requests of every size."""
    answers: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Minute:
    answers: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    lag_p99_ms: float
    """How late the generator itself was; it is in the latencies."""
    errors: dict[str, int]
    rss_mib: float
    anonymous_mib: float
    """RssAnon at the end of the minute: the process's own memory, without mapped files."""
    most_anonymous_mib: float
    """Largest of the readings once a second, while requests are answered."""
    by_size: tuple[SizeLatency, ...]


@dataclass(frozen=True, slots=True)
class AnonymousMemory:
    """RssAnon of the server over the whole run."""

    first_minute_mib: float
    """When the first minute was over."""
    end_mib: float
    most_mib: float


@dataclass(frozen=True, slots=True)
class Verdict:
    errors: int
    memory_growth_mib: float
    p99_ratio: float
    """Median of the last minutes over that of the first."""
    compared_minutes: int
    passed: bool


def judge(minutes: Sequence[Minute]) -> Verdict:
    """The first and the last five minutes, or halves of a shorter run."""
    compared = max(1, min(COMPARED_MINUTES, len(minutes) // 2))
    first, last = minutes[:compared], minutes[-compared:]
    errors = sum(sum(minute.errors.values()) for minute in minutes)
    growth_mib = statistics.median(m.anonymous_mib for m in last) - statistics.median(m.anonymous_mib for m in first)
    p99_ratio = statistics.median(m.p99_ms for m in last) / statistics.median(m.p99_ms for m in first)
    passed = errors == 0 and growth_mib <= MEMORY_GROWTH_MIB and p99_ratio <= P99_LIMIT
    return Verdict(errors, round(growth_mib, 1), round(p99_ratio, 3), compared, passed)


def summarize_memory(minutes: Sequence[Minute]) -> AnonymousMemory:
    return AnonymousMemory(
        first_minute_mib=minutes[0].anonymous_mib,
        end_mib=minutes[-1].anonymous_mib,
        most_mib=max(minute.most_anonymous_mib for minute in minutes),
    )


def summarize_sizes(latencies_ms: LatenciesBySize) -> tuple[SizeLatency, ...]:
    """The smallest size first."""
    return tuple(summarize_size(seeds, of_size) for seeds, of_size in sorted(latencies_ms.items()))


def summarize_size(seeds: int | None, latencies_ms: Sequence[float]) -> SizeLatency:
    """Summary of one size with at least one answer."""
    ascending = sorted(latencies_ms)
    p50_ms, p99_ms = (round(percentile(ascending, percent), 4) for percent in (50, 99))
    return SizeLatency(seeds, len(ascending), p50_ms, p99_ms)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--length", type=int, default=MINUTES, help="minutes of load (default: %(default)s)")


def run_all(run: Run) -> dict[str, Any]:
    """Quick: four minutes of five seconds each."""
    count, seconds = (4, 5.0) if run.quick else (run.options.length, 60.0)
    files = prepare(SHAPES["arxiv"])
    server = gnnserve_server(files, "float32")
    ports = free_ports(1)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="gnnserve-soak-")))
        process = stack.enter_context(
            running(
                [with_ports(part, ports) for part in server.command],
                variables_of(server, files, ports),
                scratch / "server.log",
                ports[0],
                lambda: server.protocol.ask(ports[0], [0]),
                START_LIMIT_S,
            )
        )
        endpoint = Endpoint("127.0.0.1", process.port)
        take_precedence()
        requests = build_mixed(endpoint, files.shape.seeds_end)
        capacity_per_s = measure_capacity(endpoint, requests, 2.0 if run.quick else 20.0)
        rate_per_s = LOAD_SHARE * capacity_per_s
        print(f"capacity {capacity_per_s:,.0f} requests/s; offering {rate_per_s:,.0f} requests/s", flush=True)
        pids = descendants(process.pid)
        minutes: list[Minute] = []
        latencies_ms: LatenciesBySize = {}
        for number in range(count):
            minutes.append(run_minute(endpoint, requests, rate_per_s, seconds, number, pids, latencies_ms))
            print(f"minute {number + 1} of {count}: {minutes[-1]}", flush=True)
    verdict = judge(minutes)
    everyone = summarize_size(None, list(itertools.chain.from_iterable(latencies_ms.values())))
    sizes, memory = (everyone, *summarize_sizes(latencies_ms)), summarize_memory(minutes)
    show(minutes, sizes, memory, verdict)
    return {
        "graph": asdict(files.shape),
        "mix": [{"seeds": seeds, "permille": permille} for seeds, permille in MIX],
        "capacityPerSecond": capacity_per_s,
        "offeredPerSecond": rate_per_s,
        "secondsPerMinute": seconds,
        "verdict": asdict(verdict),
        "memory": asdict(memory),
        # Of the whole run.
        "sizes": [asdict(size) for size in sizes],
        "minutes": [asdict(minute) for minute in minutes],
    }


def take_precedence() -> None:
    """Takes precedence over the server, once that is started: it computes on every processor, and a generator that
    waits for one would send late. Only for root; without, `lag_p99_ms` is larger."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)


def build_mixed(endpoint: Endpoint, nodes: int) -> Requests:
    """A thousand requests for labels in the proportions of `MIX`, shuffled."""
    draw = random.Random(0)  # noqa: S311 - load, not secrets
    drawn = [
        (
            encode_post(endpoint.port, GNNSERVE_JSON.path, GNNSERVE_JSON.content_type, msgspec.json.encode(request)),
            seeds,
        )
        for seeds, permille in MIX
        for request in (PredictRequest(tuple(draw.sample(range(nodes), seeds))) for _ in range(permille))
    ]
    draw.shuffle(drawn)
    mean = round(sum(seeds for _, seeds in drawn) / len(drawn))
    return Requests([payload for payload, _ in drawn], mean, [seeds for _, seeds in drawn])


def measure_capacity(endpoint: Endpoint, requests: Requests, seconds: float) -> float:
    """Answers per second in a closed loop, after a warm-up."""
    for duration_s in (seconds / 4, seconds):
        plan = LoadPlan(CONNECTIONS, duration_s, requests.seeds_each)
        record = generate_load(endpoint, requests, plan, None, ANSWER_TIMEOUT_S)
        if record.errors:
            raise SystemExit(f"errors while the capacity was measured: {dict(record.errors)}")
    return len(record.latencies_ms) / max(duration_s, record.last_answer_s)


def run_minute(
    endpoint: Endpoint,
    requests: Requests,
    rate_per_s: float,
    seconds: float,
    number: int,
    pids: Sequence[int],
    latencies_ms: LatenciesBySize,
) -> Minute:
    """`pids`: of the server. `latencies_ms` are added to."""
    plan = LoadPlan(OPEN_CONNECTIONS, seconds, requests.seeds_each, rate_per_s)
    schedule = build_schedule(Arrivals.POISSON, rate_per_s, seconds, number)
    with MemoryWatch(lambda: read_memory(pids), WATCH_S) as watch:
        record = generate_load(endpoint, requests, plan, schedule, ANSWER_TIMEOUT_S)
    latency, lag = compute_percentiles(record.latencies_ms), compute_percentiles(record.lags_ms)
    if latency is None or lag is None:
        raise SystemExit(f"no answer in a whole minute: {dict(record.errors)}")
    of_minute = latencies_by_size(record.rows)
    for seeds, of_size in of_minute.items():
        latencies_ms.setdefault(seeds, array("d")).extend(of_size)
    memory = read_memory(pids)
    return Minute(
        answers=len(record.latencies_ms),
        p50_ms=round(latency.p50, 4),
        p99_ms=round(latency.p99, 4),
        max_ms=round(latency.max, 4),
        lag_p99_ms=round(lag.p99, 4),
        errors=dict(record.errors),
        rss_mib=_mib(memory.rss_bytes),
        anonymous_mib=_mib(memory.anonymous_bytes),
        most_anonymous_mib=_mib(watch.most_anonymous_bytes),
        by_size=summarize_sizes(of_minute),
    )


def latencies_by_size(rows: RequestRows) -> LatenciesBySize:
    """Latencies of the answers, by size."""
    found: LatenciesBySize = {}
    for seeds, latency_ms in zip(rows.seeds, rows.latencies_ms, strict=True):
        if not math.isnan(latency_ms):
            found.setdefault(seeds, array("d")).append(latency_ms)
    return found


def _mib(size_bytes: int) -> float:
    return round(size_bytes / _MIB, 1)


def show(minutes: Sequence[Minute], sizes: Sequence[SizeLatency], memory: AnonymousMemory, verdict: Verdict) -> None:
    table = Table("Minute", title=f"{LOAD_SHARE:.0%} of capacity, mixed sizes, open loop")
    for header in ("Answers", "p50 ms", "p99 ms", "max ms", "Errors", "RSS MiB", "RssAnon MiB", "most"):
        table.add_column(header, justify="right")
    for number, minute in enumerate(minutes, start=1):
        table.add_row(
            str(number), f"{minute.answers:,}", format_ms(minute.p50_ms), format_ms(minute.p99_ms),
            format_ms(minute.max_ms), str(sum(minute.errors.values())), f"{minute.rss_mib:,.0f}",
            f"{minute.anonymous_mib:,.1f}", f"{minute.most_anonymous_mib:,.1f}",
        )  # fmt: skip
    by_size = Table("Seeds of a request", title="By size, over all minutes")
    for header in ("Answers", "p50 ms", "p99 ms"):
        by_size.add_column(header, justify="right")
    for size in sizes:
        by_size.add_row(
            "all" if size.seeds is None else f"{size.seeds:,}",
            f"{size.answers:,}",
            format_ms(size.p50_ms),
            format_ms(size.p99_ms),
        )
    console = Console(width=120)
    console.print(table)
    console.print(by_size)
    print(memory, flush=True)
    print(verdict, flush=True)


VERDICTS = (
    Judged("requests that failed", exactly(0), lambda found: found["verdict"]["errors"]),
    Judged(
        "growth of anonymous memory, last minutes over first", at_most(MEMORY_GROWTH_MIB, "MiB"),
        lambda found: found["verdict"]["memory_growth_mib"],
    ),
    Judged(
        "p99 of a minute, last minutes over first", at_most(P99_LIMIT), lambda found: found["verdict"]["p99_ratio"]
    ),
)  # fmt: skip

BENCHMARK = Benchmark(
    "soak", (Part("all", run_all, ("gnnserve_cli.commands.run",)),), VERDICTS, about=__doc__, options=add_options,
    must_pass=True,
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
