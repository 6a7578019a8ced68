"""Cost of traces: one server that traces nothing, one that traces the default share of requests, one that traces all.

The servers are up at once and are loaded in turns by wrk: one seed a request as an array, over one connection and
sixteen. Spans go to a receiver in this process, which drops them; those that a server had no room for, and so never
sent, are counted.
"""

from __future__ import annotations

import os
import re
import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.answers.protocol import processor_s
from benchmarks.load.shared_worker import Bench, Served, generate, serving, write_manifests
from benchmarks.pairs import Allowed, compute_ratio, read_ratio, recorded, verdict_of
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import SHAPES, prepare
from benchmarks.verdicts import Verdict, exactly
from benchmarks.wrk import encode_post, generate_load, write_requests
from gnnserve_api.pods.tracing import DEFAULT_SAMPLED_PERMILLE

PERMILLES = {"none": None, "1 in 100": DEFAULT_SAMPLED_PERMILLE, "all": 1000.0}
"""Requests that are traced, of a thousand; None: there is no receiver."""
DEFAULT = "1 in 100"
CONNECTIONS = (1, 16)
COST = Allowed(loss=0.10, noise=0.05)
"""What is allowed of a request's processor time where the default share is traced, over that where none is."""
_REQUESTS = 2000
_SETTLE_S = 1.5
"""Time in which a server sends the spans that wait: its exporter takes a second at most to begin."""
_SPANS = re.compile(r'^gnnserve_spans_total\{[^}]*outcome="(\w+)"[^}]*\} (\S+)$', re.MULTILINE)


def run_servers(run: Run) -> dict[str, Any]:
    rounds, seconds = (1, 1) if run.quick else (9, 3)
    files, cores = prepare(SHAPES["arxiv"]), ",".join(map(str, sorted(os.sched_getaffinity(0))))
    with TemporaryDirectory() as name, ExitStack() as up:
        folder = Path(name)
        manifests = dict(list(write_manifests(files, folder).items())[:1])
        bench = Bench(manifests, files.folder.parent / "shared", folder, cores, cores, cores)
        generate(bench, anew=False)
        receiver = up.enter_context(_receiver())
        servers = {}
        for traced, permille in PERMILLES.items():
            given = () if permille is None else ("--otlp-endpoint", receiver, "--trace-permille", f"{permille:g}")
            servers[traced] = up.enter_context(serving(bench, cores, tuple(manifests), *given))
        found = _measure(servers, folder / "requests", rounds, seconds)
    costs = {
        f"processor time, {DEFAULT} traced, {connections} connections": [
            (none["processor_us"], traced["processor_us"])
            for none, traced in zip(found["none", connections], found[DEFAULT, connections], strict=True)
        ]
        for connections in CONNECTIONS
    }
    ratios = {name: compute_ratio(pairs) for name, pairs in costs.items()}
    return {
        "shape": "arxiv", "variant": "x1", "rounds": rounds, "figures": summarize(found),
        **recorded(ratios, costs, lambda _: COST),
    }  # fmt: skip


_Rounds = dict[tuple[str, int], list[dict[str, float]]]
"""Figures of each round, by what is traced and how many connections there are."""


def _measure(servers: dict[str, Served], file: Path, rounds: int, seconds: int) -> _Rounds:
    """In each round the servers take turns in another order."""
    found: _Rounds = {}
    draw, names = np.random.default_rng(1), list(servers)
    for number in range(rounds + 1):
        for place in draw.permutation(len(names)):
            traced, served = names[place], servers[names[place]]
            (url,) = served.urls.values()
            port = urlsplit(url).port
            assert port is not None  # noqa: S101
            nodes = np.arange(_REQUESTS, dtype="<i8")
            kind = "application/octet-stream"
            write_requests(file, [encode_post(port, "/v1/predict?return=scores", kind, one.tobytes()) for one in nodes])
            for connections in CONNECTIONS:
                before_s, spans = processor_s(served.process.pid), _spans_of(url)
                load = generate_load(port, file, connections, seconds)
                if load.errors:
                    raise SystemExit(f"traces of {traced}: {load.errors}")
                took_s = processor_s(served.process.pid) - before_s
                told = {"p50_ms": load.p50_ms, "requests_per_s": load.requests_per_s}
                if spans:
                    time.sleep(_SETTLE_S)
                ended = {outcome: count - spans[outcome] for outcome, count in _spans_of(url).items()}
                told["dropped_spans"] = ended.get("dropped", 0.0)
                told["dropped_percent"] = 100 * ended.get("dropped", 0.0) / max(1.0, sum(ended.values()))
                if number:  # the first round is warm-up
                    found.setdefault((traced, connections), []).append(
                        {**told, "processor_us": 1e6 * took_s / load.requests}
                    )
    return found


def summarize(found: _Rounds) -> list[dict[str, Any]]:
    """Medians over the rounds; of dropped spans the sum."""
    return [
        {
            "traced": traced,
            "connections": connections,
            **{name: round(statistics.median(one[name] for one in each), 4) for name in each[0]},
            "dropped_spans": int(sum(one["dropped_spans"] for one in each)),
        }
        for (traced, connections), each in sorted(found.items())
    ]


def _spans_of(url: str) -> dict[str, float]:
    """How many spans the server has exported and dropped; empty where it traces nothing."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10.0) as response:
        return {outcome: float(count) for outcome, count in _SPANS.findall(response.read().decode())}


@contextmanager
def _receiver() -> Iterator[str]:
    """A receiver of OTLP over HTTP that drops what it gets. Its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """A line for each would be in the way of the figures."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def show(found: Any) -> None:
    table = Table(title="one seed a request")
    for column in ("traced", "connections", "requests/s", "p50 ms", "processor time", "dropped spans"):
        table.add_column(column, justify="left" if column == "traced" else "right")
    for of in found["figures"]:
        table.add_row(
            of["traced"], str(of["connections"]), f"{of['requests_per_s']:,.0f}", f"{of['p50_ms']:.3f}",
            f"{of['processor_us']:.1f} µs", f"{of['dropped_percent']:.1f} %",
        )  # fmt: skip
    Console().print(table)


def verdicts(found: Any) -> Iterator[Verdict]:
    for name in found.get("ratios", ()):
        reason = "whether a request is traced is drawn for each, and spans are made and sent on the same processors"
        yield verdict_of(f"{name}, over none", COST, partial(read_ratio, figure=name), reason)
    yield Verdict("spans that are dropped where one request in a hundred is traced", exactly(0), _dropped)


def _dropped(found: Any) -> int:
    """KeyError where they were not counted."""
    return sum(one["dropped_spans"] for one in found["figures"] if one["traced"] == DEFAULT)


BENCHMARK = Benchmark(
    "tracing", (Part("all", run_servers, ("gnnserve_cli.__main__",)),), verdicts, about=__doc__, show=show
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
