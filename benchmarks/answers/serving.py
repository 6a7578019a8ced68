"""Latency of an answer of `/v1/predict`, end to end over HTTP, beside the floor that HTTP sets.

The floor is the echo of `benchmarks/peers`: an application that gives back what it was sent, on uvicorn with
its fastest settings, asked by the same client the same requests over as many connections. What a prediction adds is the
ratio to it. Client and servers share the machine, as in `make run`.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.peers.processes import running
from benchmarks.peers.servers import ECHO_SERVER, free_ports, with_ports
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, below
from gnnserve_cli.client import fetch_variants
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.requests import Requests, build_predictions
from gnnserve_cli.loadgen.statistics import LoadPlan, summarize
from gnnserve_cli.render import format_ms
from gnnserve_client.address import Endpoint, parse_url

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 600.0
ANSWER_TIMEOUT_S = 10.0
WARM_UP_S = 0.5
WANTED_MS = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    connections: int
    seeds: int


CASES = (
    Case("one node", connections=1, seeds=1),
    Case("one node, 32 connections", connections=32, seeds=1),
    Case("1024 nodes", connections=1, seeds=1024),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--manifest", type=Path, default=ROOT / "examples/digits.yaml")
    parser.add_argument("--repository", type=Path, default=ROOT / ".gnnserve")


def run_all(run: Run) -> dict[str, Any]:
    manifest: Path = run.options.manifest
    duration_s = 1.0 if run.quick else 10.0
    with running_server(manifest, run.options.repository) as endpoint, running_echo() as echo:
        served = fetch_variants(endpoint)
        cases = [measure_case(endpoint, echo, served.nodes, case, duration_s) for case in CASES]
    show(cases)
    graph = {"nodes": served.nodes, "features": served.features}
    return {"manifest": manifest.name, "graph": graph, "secondsPerCase": duration_s, "cases": cases}


@contextmanager
def running_server(manifest: Path, repository: Path, options: Sequence[str] = ()) -> Iterator[Endpoint]:
    """`gnnserve run` in a process of its own, which trains first where nothing is published yet."""
    command = [sys.executable, "-m", "gnnserve_cli", "run", str(manifest), "--repository", str(repository), *options]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            endpoint = parse_url(_wait_for_address(process))
            _wait_until_ready(endpoint)
            yield endpoint
        finally:
            process.terminate()


@contextmanager
def running_echo() -> Iterator[Endpoint]:
    ports = free_ports(1)
    command = [with_ports(part, ports) for part in ECHO_SERVER.command]
    with (
        TemporaryDirectory(prefix="gnnserve-echo-") as folder,
        running(
            command,
            dict(os.environ),
            Path(folder) / "echo.log",
            ports[0],
            lambda: ECHO_SERVER.protocol.ask(ports[0], [0]),
            START_TIMEOUT_S,
        ) as process,
    ):
        yield Endpoint("127.0.0.1", process.port)


def _wait_for_address(process: subprocess.Popen[str]) -> str:
    for line in process.stdout or ():
        announced = re.match(r"Serving on (http://\S+)", line)
        if announced:
            return announced[1]
    raise SystemExit(f"gnnserve run ended with {process.wait()} before it served")


def _wait_until_ready(endpoint: Endpoint) -> None:
    give_up_at_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_at_s:
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=ANSWER_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    raise SystemExit(f"{endpoint.url}/readyz did not answer 200 within {START_TIMEOUT_S:g} s")


def measure_case(endpoint: Endpoint, echo: Endpoint, nodes: int, case: Case, duration_s: float) -> dict[str, Any]:
    # What comes back from the echo is no prediction.
    floor = _measure(echo, replace(_requests(echo, nodes, case), seeds_each=0), case, duration_s)
    prediction = _measure(endpoint, _requests(endpoint, nodes, case), case, duration_s)
    return {
        "name": case.name,
        "prediction": prediction,
        "echo": floor,
        "p50OverEcho": prediction["latencyMs"]["p50"] / floor["latencyMs"]["p50"],
        "throughputOfEcho": prediction["answersPerSecond"] / floor["answersPerSecond"],
    }


def _requests(endpoint: Endpoint, nodes: int, case: Case) -> Requests:
    """The same nodes for both servers."""
    return build_predictions(endpoint, nodes, case.seeds, None, seed=0)


def _measure(endpoint: Endpoint, requests: Requests, case: Case, duration_s: float) -> dict[str, Any]:
    for seconds in (WARM_UP_S, duration_s):
        plan = LoadPlan(case.connections, seconds, requests.seeds_each)
        report = summarize(plan, generate_load(endpoint, requests, plan, None, ANSWER_TIMEOUT_S))
    if report.errors or not report.answers:
        raise SystemExit(f"{case.name}: {report.answers} answers and errors {report.errors}: no figure to report")
    return dict(msgspec.to_builtins(report))


def show(results: Sequence[dict[str, Any]]) -> None:
    table = Table("Request", title="POST /v1/predict, closed loop, and an echo on uvicorn as the floor of HTTP")
    for header in ("p50 ms", "p99 ms", "Answers/s", "Seeds/s", "Echo p50 ms", "Echo/s", "p50 over echo", "Of echo/s"):
        table.add_column(header, justify="right")
    for result in results:
        prediction, echo = result["prediction"], result["echo"]
        table.add_row(
            result["name"],
            format_ms(prediction["latencyMs"]["p50"]),
            format_ms(prediction["latencyMs"]["p99"]),
            f"{prediction['answersPerSecond']:,.0f}",
            f"{prediction['seedsPerSecond']:,.0f}",
            format_ms(echo["latencyMs"]["p50"]),
            f"{echo['answersPerSecond']:,.0f}",
            f"{result['p50OverEcho']:.1f}",
            f"{result['throughputOfEcho']:.0%}",
        )
    Console(width=120).print(table)


VERDICTS = (
    Verdict("one node over one connection, p50", below(WANTED_MS, "ms"),
            lambda found: found["cases"][0]["prediction"]["latencyMs"]["p50"]),
)  # fmt: skip
BENCHMARK = Benchmark(
    "serving", (Part("all", run_all, ("gnnserve_cli.commands.run",)),), VERDICTS, about=__doc__, options=add_options
)

if __name__ == "__main__":
    main(BENCHMARK)
