"""What reading and writing HTTP costs a prediction: our listener beside others, in turns in one run.

Four servers answer from one revision of `examples/digits.yaml`, whose batches take microseconds, so that HTTP is most
of a request: our connections at HEAD, the same at a commit that had another listener (`--base`; the default is the last
one on uvicorn's connection classes), the worker's ASGI application on plain uvicorn, and its predictions as an RSGI
application on granian. A shared machine drifts, so each round starts all four anew and measures them right after each
other, in an order that changes, and only ratios of one round count, as in `benchmarks/regression.py`. Processor time,
of all threads of a server, drifts least.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.commits import Commit, check_out
from benchmarks.listener_programs import GRANIAN, UVICORN
from benchmarks.peers.processes import Running, running
from benchmarks.peers.protocols import GNNSERVE_JSON
from benchmarks.peers.servers import free_ports
from benchmarks.regression import Ratio, compute_ratio
from benchmarks.results import write_result
from benchmarks.shapes import CACHE
from benchmarks.wrk import generate_load, write_requests

ROOT = Path(__file__).parents[1]
BASELINE = "41385b6"
"""The last commit whose connections were a subclass of uvicorn's."""
OURS, BEFORE = "ours", "before"
LIMIT = 1.05
_NODES, _REQUESTS = 1797, 8192
_START_LIMIT_S = 600.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.listener", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round: does it work at all?")
    parser.add_argument("--base", default=BASELINE, help="the commit of the listener that was there before")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    rounds, seconds = (1, 1) if options.quick else (options.rounds, 3)
    costs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gnnserve-listener-") as folder:
        scratch = Path(folder)
        base, head = check_out("old", options.base), check_out("new", "HEAD")
        for number in range(rounds + 1):
            with serving(base, head, scratch) as servers:
                for name in list(servers) if number % 2 else list(reversed(servers)):
                    found = measure(servers[name], _write_requests(scratch, servers[name].port), seconds)
                    if number:  # the first round warms up
                        costs.setdefault(name, []).append(found)
                    print(f"round {number} of {rounds}, {name}: {json.dumps(found)}", flush=True)
    ratios = {name: compare(costs[name], costs[BEFORE]) for name in costs if name != BEFORE}
    show(costs, ratios)
    write_result("listener", options.quick, result(costs, ratios, base, head))


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
    command = ["benchmarks.listener_programs", name, str(manifest), str(repository), str(port)]
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
        figure: compute_ratio([(before[figure], after[figure]) for before, after in zip(old, new, strict=True)], LIMIT)
        for figure in new[0]
    }


def result(
    costs: Mapping[str, Sequence[Mapping[str, float]]],
    ratios: Mapping[str, Mapping[str, Ratio]],
    base: Commit,
    head: Commit,
) -> dict[str, object]:
    return {
        "base": base.id,
        "head": head.id,
        "ratios": {
            name: {figure: [found.ratio, found.low, found.high] for figure, found in of_one.items()}
            for name, of_one in ratios.items()
        },
        "costs": costs,
        "verdicts": {
            figure: {
                "wanted": f"lower end of the 95 % interval of ours over before at most {found.limit}",
                "measured": f"{found.ratio} ({found.low} to {found.high}), {found.pairs} rounds",
                "passed": found.passed,
            }
            for figure, found in ratios[OURS].items()
        },
    }


def show(costs: Mapping[str, Sequence[Mapping[str, float]]], ratios: Mapping[str, Mapping[str, Ratio]]) -> None:
    table = Table("Server", title="Medians; in brackets new/old and its 95 % interval")
    for figure in costs[BEFORE][0]:
        table.add_column(figure, justify="right")
    for name, found in costs.items():
        cells = []
        for figure in found[0]:
            median = float(np.median([of_round[figure] for of_round in found]))
            ratio = ratios.get(name, {}).get(figure)
            against = "" if ratio is None else f" ({ratio.ratio:.3f}: {ratio.low:.3f} to {ratio.high:.3f})"
            cells.append(f"{median:.4g}{against}")
        table.add_row(name, *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
