"""Cost of reading and writing HTTP for a prediction: our listener beside others, in turns in one run.

Four servers answer from one revision of `examples/digits.yaml`, whose batches take microseconds, so that HTTP is most
of a request: our connections at HEAD, the same at a commit that had another listener (`--base`; the default is the last
one on uvicorn's connection classes), the worker's ASGI application on plain uvicorn, and its predictions as an RSGI
application on granian. A shared machine drifts, so each round starts all four anew and measures them right after each
other, in an order that changes, and only ratios of one round count, as in `benchmarks/regression/regression.py`.
Processor time, of all threads of a server, drifts least.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.answers.listener_programs import GRANIAN, UVICORN
from benchmarks.commits import Commit, check_out
from benchmarks.pairs import Allowed, Ratio, compute_ratio, verdict_of
from benchmarks.peers.processes import Running, running
from benchmarks.peers.protocols import GNNSERVE_JSON
from benchmarks.peers.servers import free_ports
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import CACHE
from benchmarks.verdicts import Verdict
from benchmarks.wrk import generate_load, write_requests

ROOT = Path(__file__).parents[2]
BASELINE = "41385b6"
"""The last commit whose connections were a subclass of uvicorn's."""
OURS, BEFORE = "ours", "before"
COST = Allowed(loss=0.05, noise=0.04)
"""What is allowed of our listener over the one before."""
_NODES, _REQUESTS = 1797, 8192
_START_LIMIT_S = 600.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", default=BASELINE, help="the commit of the listener that was there before")
    parser.add_argument("--rounds", type=int, default=10)


def run_servers(run: Run) -> dict[str, Any]:
    rounds, seconds = (1, 1) if run.quick else (run.options.rounds, 3)
    costs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gnnserve-listener-") as folder:
        scratch = Path(folder)
        base, head = check_out("old", run.options.base), check_out("new", "HEAD")
        for number in range(rounds + 1):
            with serving(base, head, scratch) as servers:
                for name in list(servers) if number % 2 else list(reversed(servers)):
                    found = measure(servers[name], _write_requests(scratch, servers[name].port), seconds)
                    if number:  # the first round warms up
                        costs.setdefault(name, []).append(found)
                    print(f"round {number} of {rounds}, {name}: {json.dumps(found)}", flush=True)
    return {
        "base": base.id,
        "head": head.id,
        "rounds": rounds,
        "allowed": asdict(COST),
        "ratios": {
            name: {figure: [one.ratio, one.low, one.high] for figure, one in compare(of_one, costs[BEFORE]).items()}
            for name, of_one in costs.items()
            if name != BEFORE
        },
        "costs": costs,
    }


@contextmanager
def serving(base: Commit, head: Commit, scratch: Path) -> Iterator[Mapping[str, Running]]:
    """The four servers, side by side. The commit before makes the revision, where there is none yet."""
    with ExitStack() as stack:
        yield {
            BEFORE: stack.enter_context(_gnnserve(base, scratch)),
            OURS: stack.enter_context(_gnnserve(head, scratch)),
            **{name: stack.enter_context(_program(name, head, scratch)) for name in (UVICORN, GRANIAN)},
        }


def _paths() -> tuple[Path, Path]:
    return ROOT / "examples/digits.yaml", CACHE / "listener"


@contextmanager
def _gnnserve(commit: Commit, scratch: Path) -> Iterator[Running]:
    (port,) = free_ports(1)
    manifest, repository = _paths()
    command = ["gnnserve_cli", "run", str(manifest), "--repository", str(repository), "--port", str(port)]
    with _running(commit, command, scratch / f"{commit.name}.log", port) as server:
        yield server


@contextmanager
def _program(name: str, head: Commit, scratch: Path) -> Iterator[Running]:
    (port,) = free_ports(1)
    manifest, repository = _paths()
    command = ["benchmarks.answers.listener_programs", name, str(manifest), str(repository), str(port)]
    with _running(head, command, scratch / f"{name}.log", port) as server:
        yield server


@contextmanager
def _running(commit: Commit, module: list[str], log: Path, port: int) -> Iterator[Running]:
    command = [sys.executable, "-m", *module]
    with running(command, commit.variables, log, port, lambda: GNNSERVE_JSON.ask(port, [0]), _START_LIMIT_S) as server:
        yield server


def _write_requests(scratch: Path, port: int) -> Path:
    path = scratch / f"{port}.requests"
    nodes = np.random.default_rng(1).integers(0, _NODES, _REQUESTS).tolist()
    write_requests(path, [GNNSERVE_JSON.request(port, [node]) for node in nodes])
    return path


def measure(server: Running, requests: Path, seconds: int) -> dict[str, float]:
    alone = generate_load(server.port, requests, 1, seconds)
    before_s = _processor_s(server.pid)
    many = generate_load(server.port, requests, 32, seconds)
    spent_s = _processor_s(server.pid) - before_s
    if alone.errors or many.errors:
        raise SystemExit(f"errors {alone.errors}, {many.errors}: no figure to report")
    return {
        "one seed, p50 ms": alone.p50_ms,
        "32 connections, ms per request": 1e3 / many.requests_per_s,
        "32 connections, processor µs per request": 1e6 * spent_s / many.requests,
    }


def _processor_s(pid: int) -> float:
    """Seconds of all its threads, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def compare(new: Sequence[Mapping[str, float]], old: Sequence[Mapping[str, float]]) -> dict[str, Ratio]:
    return {
        figure: compute_ratio([(before[figure], after[figure]) for before, after in zip(old, new, strict=True)])
        for figure in new[0]
    }


def verdicts(found: Any) -> list[Verdict]:
    return [
        verdict_of(f"our listener over the one before: {figure}", COST, partial(_ratio_of_ours, figure=figure))
        for figure in found["ratios"][OURS]
    ]


def _ratio_of_ours(found: Any, figure: str) -> Ratio:
    ratio, low, high = found["ratios"][OURS][figure]
    return Ratio(ratio, low, high, len(found["costs"][OURS]))


def show(found: Any) -> None:
    table = Table("Server", title="Medians; in brackets new/old and its 95 % interval")
    for figure in found["costs"][BEFORE][0]:
        table.add_column(figure, justify="right")
    for name, rounds in found["costs"].items():
        cells = []
        for figure in rounds[0]:
            median = float(np.median([of_round[figure] for of_round in rounds]))
            ratio = found["ratios"].get(name, {}).get(figure)
            against = "" if ratio is None else " ({:.3f}: {:.3f} to {:.3f})".format(*ratio)
            cells.append(f"{median:.4g}{against}")
        table.add_row(name, *cells)
    Console(width=160).print(table)


BENCHMARK = Benchmark(
    "listener",
    (Part("all", run_servers, ("gnnserve_cli.__main__", "benchmarks.answers.listener_programs")),),
    verdicts,
    about=__doc__,
    show=show,
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
