"""Contestants: servers that run and were verified, and how they take turns under load."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.processes import Running, busy_cores, running
from benchmarks.peers.protocols import Protocol
from benchmarks.peers.ratios import WORKLOADS, Workload
from benchmarks.peers.servers import Server, free_ports, variables_of, with_ports
from benchmarks.shapes import ProbedGraph
from benchmarks.wrk import Load, generate_load, write_requests

_START_LIMIT_S = 120.0
_LARGEST_ERROR = 1e-3
BODIES = {1: 8192, 1024: 64}
"""Requests prepared, by seeds in each."""


@dataclass(frozen=True, slots=True)
class Effort:
    repetitions: int
    seconds: int
    """Duration of each run of wrk."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A protocol of a running server."""

    name: str
    label: str
    protocol: Protocol
    server: Running
    largest_error: float | None
    """Largest error of the probes' scores; None for the echo."""


def start(
    stack: ExitStack, server: Server, files: ProbedGraph, scratch: Path, limit_s: float = _START_LIMIT_S
) -> Contestant:
    """RuntimeError where it does not come up, or its scores are wrong."""
    print(f"starting {server.name}", flush=True)
    ports = free_ports(3)
    process = stack.enter_context(
        running(
            [with_ports(part, ports) for part in server.command],
            variables_of(server, files, ports),
            scratch / f"{server.name}.log",
            ports[0],
            lambda: server.protocol.ask(ports[0], [0]),
            limit_s,
        )
    )
    return verified(server.name, server.label, server.protocol, process, files)


def verified(name: str, label: str, protocol: Protocol, server: Running, files: ProbedGraph) -> Contestant:
    return Contestant(name, label, protocol, server, verify(protocol, server.port, files))


def verify(protocol: Protocol, port: int, files: ProbedGraph) -> float | None:
    """The largest error over all probes, asked in another order and one of them twice, among other nodes."""
    wanted = files.probe_scores()
    order = [*range(len(wanted) - 1, -1, -1), 0]
    seeds, wanted = [files.seeds_end + probe for probe in order], wanted[order]
    scores = protocol.ask(port, [*seeds, 0, 1, 2])
    if scores.shape[1] == 0:
        return None
    if scores.shape[1] != wanted.shape[1]:
        raise RuntimeError(f"answers {scores.shape[1]} scores per seed, expected {wanted.shape[1]}")
    error = float(np.abs(scores[: len(seeds)] - wanted).max())
    if not error < _LARGEST_ERROR:
        raise RuntimeError(f"scores are wrong by up to {error:g}, expected less than {_LARGEST_ERROR:g}")
    return error


def measure(
    contestants: Sequence[Contestant],
    files: ProbedGraph,
    effort: Effort,
    scratch: Path,
    workloads: Sequence[Workload] = WORKLOADS,
) -> dict[str, dict[str, list[Load]]]:
    """Measures every contestant under each of the workloads."""
    requests = {
        (contestant.name, workload.name): prepare_requests(contestant, workload, files, scratch)
        for contestant in contestants
        for workload in workloads
    }

    def run(contestant: Contestant, workload: Workload, seconds: int) -> Load:
        path = requests[contestant.name, workload.name]
        return generate_load(contestant.server.port, path, workload.connections, seconds)

    for workload in workloads:
        for contestant in contestants:
            run(contestant, workload, 1)
    idle = busy_cores(lambda: time.sleep(1))
    print(f"{len(contestants)} servers are warm; idle, the machine keeps {idle} cores busy", flush=True)
    loads: dict[str, dict[str, list[Load]]] = {
        contestant.name: {workload.name: [] for workload in workloads} for contestant in contestants
    }
    for repetition in range(effort.repetitions):
        for workload in workloads:
            # Another one goes first each time.
            turn = repetition % len(contestants)
            for contestant in [*contestants[turn:], *contestants[:turn]]:
                load = run(contestant, workload, effort.seconds)
                if load.errors:
                    raise SystemExit(f"{contestant.name}, {workload.label}: errors {load.errors}: no figure to report")
                if not load.requests:
                    # Its percentiles would be 0, and the best of all.
                    raise SystemExit(f"{contestant.name}, {workload.label}: no answer within {effort.seconds} s")
                loads[contestant.name][workload.name].append(load)
    return loads


def prepare_requests(contestant: Contestant, workload: Workload, files: ProbedGraph, scratch: Path) -> Path:
    """The same seeds for every server."""
    draw = np.random.default_rng(workload.seeds)
    seeds = draw.integers(0, files.seeds_end, (BODIES[workload.seeds], workload.seeds)).tolist()
    path = scratch / f"{contestant.name}-{workload.name}.requests"
    write_requests(path, [contestant.protocol.request(contestant.server.port, of_one) for of_one in seeds])
    return path
