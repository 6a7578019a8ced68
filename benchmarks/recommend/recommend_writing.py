"""Predictions of a worker while its embeddings are written into PostgreSQL on the same machine.

Requests come at a fixed rate whether or not they are answered, so that none is left out while others wait; each
latency counts from when its request was due. In every round the worker is asked alone, while rows are copied, while
their index is built, and alone again: how far both times alone are apart says what a difference means. A write lasts
longer than the requests beside it, and is ended after them; where it does not, the run fails.
"""

from __future__ import annotations

import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.changes.postgres import PostgresServer, postgres_server, programs_with_pgvector

from benchmarks.recommend.recommend_graph import published_graph, worker
from benchmarks.recommend.recommend_sink import COPYING, INDEXING
from benchmarks.results import Run
from benchmarks.verdicts import Verdict, at_most
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.requests import Requests, encode_prediction
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import LoadPlan
from gnnserve_client.address import parse_url

MOST_TIMES, NOISE = 1.1, 0.1
"""Most times p99 of the worker alone that p99 beside a writer may be, and what is allowed on top for noise. Both are
stated before the run."""
MOST_APART = 1.25
"""Most times that p99 of the worker alone may be at the end of rounds what it was at their beginning, or the other way:
beyond, the machine was busy, and what is said of writers says nothing."""
BEFORE, AFTER = "alone", "alone again"
WHILE = {COPYING: "while rows are copied", INDEXING: "while their index is built"}
_CONNECTIONS, _BODIES = 16, 1024
_ENDLESS = 1_000_000_000
_TIMEOUT_S, _POLL_S = 10.0, 0.05
_SESSIONS = "FROM pg_stat_activity WHERE application_name = 'gnnserve-embeddings'"


@dataclass(frozen=True, slots=True)
class Plan:
    nodes: int
    rows: int
    """Rows whose index takes longer than the requests beside it."""
    rate_per_s: float
    seconds: float
    rounds: int


FULL, QUICK = Plan(1_000_000, 150_000, 300.0, 12.0, 3), Plan(60_000, 60_000, 100.0, 2.0, 1)


def measure_writing(run: Run) -> dict[str, Any]:
    plan = QUICK if run.quick else FULL
    with ExitStack() as opened:
        root = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="gnnserve-recommend-")))
        graph = published_graph(root, plan.nodes)
        vectors = root / "vectors.npy"
        np.save(vectors, graph.embeddings()[: plan.rows])
        server = opened.enter_context(postgres_server(programs_with_pgvector()))
        uri_file = root / "uri"
        uri_file.write_text(server.uri())
        port = opened.enter_context(worker(root))
        endpoint = parse_url(f"http://127.0.0.1:{port}")
        bodies = [
            encode_prediction(endpoint, json.dumps({"nodes": [one["node"]], "overlay": one["overlay"]}).encode(), (),
                              "application/json")
            for one in graph.new_users(_BODIES)
        ]  # fmt: skip
        requests = Requests(bodies, 1)

        def ask(number: int) -> dict[str, Any]:
            load = LoadPlan(_CONNECTIONS, plan.seconds, 1, plan.rate_per_s)
            schedule = build_schedule(Arrivals.POISSON, plan.rate_per_s, plan.seconds, number)
            return figures(generate_load(endpoint, requests, load, schedule, _TIMEOUT_S).rows.latencies_ms)

        ask(0)  # the worker's first requests are others
        asked: dict[str, list[dict[str, Any]]] = {}
        for number in range(plan.rounds):
            asked.setdefault(BEFORE, []).append(ask(number))
            for phase, rows in ((COPYING, _ENDLESS), (INDEXING, plan.rows)):
                with writing(server, phase, uri_file, vectors, rows):
                    asked.setdefault(phase, []).append(ask(number))
            asked.setdefault(AFTER, []).append(ask(number))
            print(f"round {number + 1}: { ({name: found[-1]['p99_ms'] for name, found in asked.items()}) }", flush=True)
    return {"writing": {"plan": asdict(plan), "asked": asked}}


def figures(latencies_ms: Any) -> dict[str, Any]:
    """Raises RuntimeError where a request was not answered."""
    latencies = np.asarray(latencies_ms)
    if np.isnan(latencies).any():
        raise RuntimeError(f"{int(np.isnan(latencies).sum())} of {len(latencies)} predictions were not answered")
    p50, p99 = np.percentile(latencies, [50, 99])
    return {"requests": len(latencies), "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


@contextmanager
def writing(server: PostgresServer, phase: str, uri_file: Path, vectors: Path, rows: int) -> Iterator[None]:
    """A writer that is in this phase when the block begins, and still when it ends. RuntimeError otherwise."""
    command = [sys.executable, "-m", "benchmarks.recommend.recommend_sink", str(uri_file), str(vectors), str(rows)]
    # Without a buffer: what the writer says later is seen to be there.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as writer:
        assert writer.stdout is not None  # noqa: S101
        try:
            if phase.encode() not in (line.strip() for line in iter(writer.stdout.readline, b"")):
                raise RuntimeError(f"the writer ended before it was {phase}")
            yield
            # Its session may have ended, and its process not yet.
            if select.select([writer.stdout], [], [], 0)[0] or not has_writer(server):
                raise RuntimeError(f"the writer was not {phase} for as long as requests came: give it more rows")
        finally:
            writer.terminate()
            # A session that builds an index does not see that its client has gone.
            server.execute(f"SELECT pg_terminate_backend(pid) {_SESSIONS}")
            while has_writer(server):
                time.sleep(_POLL_S)


def has_writer(server: PostgresServer) -> bool:
    return server.execute(f"SELECT count(*) {_SESSIONS}") != [(0,)]


def median_ms(found: Any, name: str, which: str = "p99_ms") -> float:
    """Median over the rounds."""
    return float(statistics.median(one[which] for one in found["writing"]["asked"][name]))


def alone_ms(found: Any, which: str = "p99_ms") -> float:
    """Median over the rounds of both times alone."""
    asked = found["writing"]["asked"]
    return float(statistics.median(one[which] for name in (BEFORE, AFTER) for one in asked[name]))


def apart(found: Any) -> float:
    """How many times p99 alone was at one end of the rounds what it was at the other."""
    ends = sorted(median_ms(found, name) for name in (BEFORE, AFTER))
    return round(ends[1] / ends[0], 2)


def writing_verdicts() -> Iterator[Verdict]:
    yield Verdict(
        "p99 of predictions alone, at one end of rounds over the other", at_most(MOST_APART, "times"), apart
    )  # fmt: skip
    for phase, words in WHILE.items():
        yield Verdict(
            f"p99 of predictions {words}, times p99 alone",
            at_most(round(MOST_TIMES + NOISE, 3), f"({MOST_TIMES}, and {NOISE} for noise)"),
            lambda found, phase=phase: round(median_ms(found, phase) / alone_ms(found), 2),
        )  # fmt: skip
