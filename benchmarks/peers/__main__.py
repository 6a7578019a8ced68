"""gnnserve against other ways to serve the same network: same graph, weights and load, on the same machine, in one run.

All servers are up at the same time and take turns, so that a machine whose speed drifts is unfair to none of them.
Each is verified first: it must give the exact scores of nodes whose neighbourhoods fit the fan-outs. gnnserve answers
from an exact, unpruned variant and does the same JSON work as the others; its binary form, and an empty echo on the
same HTTP server, are measured beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.peers.environments import PYG, build, versions
from benchmarks.peers.processes import Running, busy_cores, running
from benchmarks.peers.protocols import GNNSERVE_BINARY, Protocol
from benchmarks.peers.ratios import (
    WORKLOADS,
    Figures,
    Workload,
    compute_echo_ratios,
    compute_ratios,
    median_of,
)
from benchmarks.peers.servers import (
    ECHO_SERVER,
    MORE_PEERS,
    PEERS,
    QUICK_PEERS,
    Server,
    free_ports,
    gnnserve_server,
    variables_of,
    with_ports,
)
from benchmarks.results import write_result
from benchmarks.shapes import PROBES, SHAPES, ShapeFiles, prepare
from benchmarks.wrk import Load, generate_load, write_requests
from gnnserve_api.protocol import PredictRequest
from gnnserve_cli.client import Endpoint, fetch_prediction
from gnnserve_cli.render import format_ms

_START_LIMIT_S = 120.0
_GENERATION_LIMIT_S = 1800.0
"""The first start of gnnserve on a shape generates the revision."""
_LARGEST_ERROR = 1e-3
_BODIES = {1: 8192, 1024: 64}
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tuned PyG alone, one shape, short runs")
    parser.add_argument("--full", action="store_true", help="LitServe, Ray Serve, MLServer and BentoML too")
    parser.add_argument("--shapes", nargs="+", choices=["arxiv", "reddit"], help="default: arxiv and reddit")
    parser.add_argument("--storage", default="float32", help="of gnnserve's table; the default is exact")
    options = parser.parse_args(arguments)
    servers = QUICK_PEERS if options.quick else (*PEERS, *MORE_PEERS) if options.full else PEERS
    effort = Effort(repetitions=2, seconds=1) if options.quick else Effort(repetitions=3, seconds=5)
    names = options.shapes or (["arxiv"] if options.quick else ["arxiv", "reddit"])

    absent: dict[str, str] = {}
    peers = build_all(servers, absent)
    shapes = {name: measure_shape(prepare(SHAPES[name]), peers, options.storage, effort, absent) for name in names}
    body = {
        # Of the first shape; the others are below.
        "ratios": shapes[names[0]]["ratios"],
        "echoRatios": shapes[names[0]]["echoRatios"],
        "peers": [peer.name for peer in peers if peer.name not in absent],
        "absent": absent,
        "storage": options.storage,
        "repetitions": effort.repetitions,
        "secondsPerRun": effort.seconds,
        "shapesAsked": names,
        "shapes": shapes,
        "peerVersions": {peer.environment.name: versions(peer.environment) for peer in peers if peer.environment},
    }
    write_result("peers", options.quick, body)


def build_all(servers: Sequence[Server], absent: dict[str, str]) -> list[Server]:
    """The servers whose environment could be built; the others are noted in `absent`."""
    # PYG first: others copy what was compiled for it.
    for environment in dict.fromkeys([PYG, *(server.environment for server in servers if server.environment)]):
        try:
            build(environment)
        except RuntimeError as error:
            for server in servers:
                if server.environment == environment:
                    note_absent(absent, server.name, str(error))
    return [server for server in servers if server.name not in absent]


def note_absent(absent: dict[str, str], name: str, why: str) -> None:
    absent[name] = why
    print(f"{name} does not take part: {why}", flush=True)


def measure_shape(
    files: ShapeFiles, peers: Iterable[Server], storage: str, effort: Effort, absent: dict[str, str]
) -> dict[str, Any]:
    shape = files.shape
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="gnnserve-peers-")))
        # Generation takes the whole machine, so nothing else runs yet; then the peers, whose failures are noted.
        ours = start(stack, gnnserve_server(files, storage), files, scratch, _GENERATION_LIMIT_S)
        binary = verified("gnnserve_binary", "gnnserve, binary", GNNSERVE_BINARY, ours.server, files)
        contestants = [ours, binary, start(stack, ECHO_SERVER, files, scratch)]
        for peer in peers:
            try:
                contestants.append(start(stack, peer, files, scratch))
            except RuntimeError as error:
                note_absent(absent, peer.name, f"on {shape.name}: {error}")
        not_peers = {ours.name, binary.name, ECHO_SERVER.name}
        if all(contestant.name in not_peers for contestant in contestants):
            raise SystemExit(f"no peer answers on {shape.name}: there is nothing to compare with")
        loads = measure(contestants, files, effort, scratch)
        answered_by = {seeds: variant_for(ours.server.port, seeds) for seeds in _BODIES}
        report = {
            contestant.name: {
                "label": contestant.label,
                "bootS": contestant.server.boot_s,
                "pssMiB": contestant.server.pss_mib(),
                "largestError": contestant.largest_error,
            }
            for contestant in contestants
        }
    medians = {name: {workload: median_of(found) for workload, found in of.items()} for name, of in loads.items()}
    show(shape.name, contestants, medians)
    peer_medians = {name: found for name, found in medians.items() if name not in not_peers}
    compared = compute_ratios(medians[ours.name], peer_medians)
    echo_ratios = compute_echo_ratios(medians[ours.name], medians[ECHO_SERVER.name])
    print(f"{shape.name}: {compared.ratios} against {compared.against}; {echo_ratios}", flush=True)
    for name, found in report.items():
        found["workloads"] = {
            workload: {"median": asdict(medians[name][workload]), "runs": [asdict(load) for load in runs]}
            for workload, runs in loads[name].items()
        }
    return {
        "graph": asdict(shape),
        **asdict(compared),
        "binaryRatios": compute_ratios(medians[binary.name], peer_medians).ratios,
        "echoRatios": echo_ratios,
        "answeredBy": answered_by,
        "servers": report,
    }


def variant_for(port: int, seeds: int) -> str:
    """The exact variant of gnnserve that answers requests of that size."""
    answer, _ = fetch_prediction(Endpoint("127.0.0.1", port), PredictRequest(tuple(range(seeds))))
    return answer.variant


def start(
    stack: ExitStack, server: Server, files: ShapeFiles, scratch: Path, limit_s: float = _START_LIMIT_S
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


def verified(name: str, label: str, protocol: Protocol, server: Running, files: ShapeFiles) -> Contestant:
    return Contestant(name, label, protocol, server, verify(protocol, server.port, files))


def verify(protocol: Protocol, port: int, files: ShapeFiles) -> float | None:
    """The largest error over all probes, asked in another order and one of them twice, among other nodes."""
    order = [*range(PROBES - 1, -1, -1), 0]
    seeds = [files.shape.seeds_end + probe for probe in order]
    scores = protocol.ask(port, [*seeds, 0, 1, 2])
    if scores.shape[1] == 0:
        return None
    wanted = files.probe_scores()[order]
    if scores.shape[1] != wanted.shape[1]:
        raise RuntimeError(f"answers {scores.shape[1]} scores per seed, expected {wanted.shape[1]}")
    error = float(np.abs(scores[: len(seeds)] - wanted).max())
    if not error < _LARGEST_ERROR:
        raise RuntimeError(f"scores are wrong by up to {error:g}, expected less than {_LARGEST_ERROR:g}")
    return error


def measure(
    contestants: Sequence[Contestant], files: ShapeFiles, effort: Effort, scratch: Path
) -> dict[str, dict[str, list[Load]]]:
    """Measures every contestant under every workload."""
    requests = {
        (contestant.name, workload.name): prepare_requests(contestant, workload, files, scratch)
        for contestant in contestants
        for workload in WORKLOADS
    }

    def run(contestant: Contestant, workload: Workload, seconds: int) -> Load:
        path = requests[contestant.name, workload.name]
        return generate_load(contestant.server.port, path, workload.connections, seconds)

    for workload in WORKLOADS:
        for contestant in contestants:
            run(contestant, workload, 1)
    idle = busy_cores(lambda: time.sleep(1))
    print(f"{len(contestants)} servers are warm; idle, the machine keeps {idle} cores busy", flush=True)
    loads: dict[str, dict[str, list[Load]]] = {
        contestant.name: {workload.name: [] for workload in WORKLOADS} for contestant in contestants
    }
    for repetition in range(effort.repetitions):
        for workload in WORKLOADS:
            # Another one goes first each time.
            turn = repetition % len(contestants)
            for contestant in [*contestants[turn:], *contestants[:turn]]:
                load = run(contestant, workload, effort.seconds)
                if load.errors:
                    raise SystemExit(f"{contestant.name}, {workload.label}: errors {load.errors}: no figure to report")
                loads[contestant.name][workload.name].append(load)
    return loads


def prepare_requests(contestant: Contestant, workload: Workload, files: ShapeFiles, scratch: Path) -> Path:
    """The same seeds for every server."""
    draw = np.random.default_rng(workload.seeds)
    seeds = draw.integers(0, files.shape.seeds_end, (_BODIES[workload.seeds], workload.seeds)).tolist()
    path = scratch / f"{contestant.name}-{workload.name}.requests"
    write_requests(path, [contestant.protocol.request(contestant.server.port, of_one) for of_one in seeds])
    return path


def show(shape: str, contestants: Iterable[Contestant], medians: Mapping[str, Mapping[str, Figures]]) -> None:
    table = Table("Server", title=f"{shape} shape, fan-outs 25 and 10, medians over the repetitions")
    latency: Callable[[Figures], str] = lambda figures: f"{format_ms(figures.p50_ms)} / {format_ms(figures.p99_ms)}"  # noqa: E731
    for workload in WORKLOADS:
        table.add_column(f"{workload.label}\np50 / p99 ms", justify="right")
        if workload.connections > 1:
            table.add_column("requests/s", justify="right")
    for contestant in contestants:
        cells = []
        for workload in WORKLOADS:
            figures = medians[contestant.name][workload.name]
            cells.append(latency(figures))
            if workload.connections > 1:
                cells.append(f"{figures.requests_per_s:,.0f}")
        table.add_row(contestant.label, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
