"""gnnserve against other ways to serve the same network: same graph, weights and load, on the same machine, in one run.

The servers of a group are up at the same time and take turns, so that a machine whose speed drifts is unfair to none of
them; gnnserve takes part in every group. Each is verified first: it must give the exact scores of nodes whose
neighbourhoods fit the fan-outs. gnnserve does the same JSON work as the others and runs twice: once pinned to
`projected`, whose first layer is multiplied ahead of time, and once to `x1`, which computes the whole first layer in
each request, as the peers do. Its binary form, and an empty echo on uvicorn, are measured beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.contestants import BODIES, Contestant, Effort, measure, start, verified
from benchmarks.peers.environments import PYG, build, versions
from benchmarks.peers.peer_verdicts import verdicts
from benchmarks.peers.protocols import GNNSERVE_BINARY
from benchmarks.peers.ratios import (
    WORKLOADS,
    Figures,
    Ratios,
    compute_echo_ratios,
    compute_ratios,
    lowest_of,
    median_of,
)
from benchmarks.peers.servers import (
    ECHO_SERVER,
    FULL_GROUPS,
    GROUPS,
    QUICK_GROUPS,
    Groups,
    Server,
    choose_groups,
    projected_server,
    x1_server,
)
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import SHAPES, ShapeFiles, prepare
from gnnserve_api.http.protocol import PredictRequest
from gnnserve_cli.client import fetch_prediction
from gnnserve_cli.render import format_ms
from gnnserve_client.address import Endpoint

_GENERATION_LIMIT_S = 1800.0
"""The first start of gnnserve on a shape generates the revision."""


@dataclass(frozen=True, slots=True)
class OwnContestants:
    """Contestants of our own in every group, beside the peers."""

    ours: Contestant
    """Pinned to `projected`."""
    binary: Contestant
    """The same server, asked in binary form."""
    x1: Contestant
    """Pinned to `x1`."""
    echo: Contestant

    @property
    def all(self) -> tuple[Contestant, ...]:
        return self.ours, self.binary, self.x1, self.echo

    @property
    def answering(self) -> tuple[Contestant, ...]:
        return self.ours, self.binary, self.x1


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    ours: Ratios
    binary: Ratios
    x1: Ratios
    echo_ratios: dict[str, float]
    servers: dict[str, Any]
    """Report of each server by name."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="LitServe, Ray Serve, MLServer and BentoML too")
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=[peer.name for group in FULL_GROUPS for peer in group],
        help="these peers alone, to see whether they work; writes no result",
    )
    parser.add_argument("--storage", default="float32", help="of gnnserve's table; the default is exact")


def run_shape(name: str, run: Run) -> dict[str, Any] | None:
    options = run.options
    groups = QUICK_GROUPS if run.quick else FULL_GROUPS if options.full else GROUPS
    if options.servers:
        groups = choose_groups(options.servers)
    effort = Effort(repetitions=2, seconds=1) if run.quick else Effort(repetitions=3, seconds=5)
    absent: dict[str, str] = {}
    groups = build_all(groups, absent)
    found = measure_shape(prepare(SHAPES[name]), groups, options.storage, effort, absent)
    if options.servers:
        print("a part of the servers: no result is written", flush=True)
        return None
    peers = [peer for group in groups for peer in group]
    return {
        "peers": [peer.name for peer in peers if peer.name not in absent],
        "absent": absent,
        "storage": options.storage,
        "repetitions": effort.repetitions,
        "secondsPerRun": effort.seconds,
        "shapes": {name: found},
        "peerVersions": {peer.environment.name: versions(peer.environment) for peer in peers if peer.environment},
    }


def build_all(groups: Groups, absent: dict[str, str]) -> Groups:
    """The servers whose environment could be built; the others are noted in `absent`."""
    servers = [server for group in groups for server in group]
    # PYG first: others copy what was compiled for it.
    for environment in dict.fromkeys([PYG, *(server.environment for server in servers if server.environment)]):
        try:
            build(environment)
        except RuntimeError as error:
            for server in servers:
                if server.environment == environment:
                    note_absent(absent, server.name, str(error))
    return choose_groups([server.name for server in servers if server.name not in absent], groups)


def note_absent(absent: dict[str, str], name: str, why: str) -> None:
    absent[name] = why
    print(f"{name} does not take part: {why}", flush=True)


def measure_shape(
    files: ShapeFiles, groups: Groups, storage: str, effort: Effort, absent: dict[str, str]
) -> dict[str, Any]:
    shape = files.shape
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="gnnserve-peers-")))
        # Generation takes the whole machine, so nothing else runs yet.
        ours = start(stack, projected_server(files, storage), files, scratch, _GENERATION_LIMIT_S)
        own = OwnContestants(
            ours,
            verified("gnnserve_binary", ours.label.replace("JSON", "binary"), GNNSERVE_BINARY, ours.server, files),
            start(stack, x1_server(files, storage), files, scratch),
            start(stack, ECHO_SERVER, files, scratch),
        )
        found = [measure_group(peers, own, files, effort, scratch, absent) for peers in groups]
        answered_by = variants_of(own.ours)
    measured = [group for group in found if group is not None]
    if not measured:
        raise SystemExit(f"no peer answers on {shape.name}: there is nothing to compare with")
    compared, x1 = lowest_of([group.ours for group in measured]), lowest_of([group.x1 for group in measured])
    print(
        f"{shape.name}: {compared.ratios} against {compared.against}; x1: {x1.ratios} against {x1.against}", flush=True
    )
    return {
        "graph": asdict(shape),
        **asdict(compared),
        "binaryRatios": lowest_of([group.binary for group in measured]).ratios,
        "x1Ratios": x1.ratios,
        "x1Against": x1.against,
        "echoRatios": measured[0].echo_ratios,
        "answeredBy": answered_by,
        "groups": [
            {
                **asdict(group.ours),
                "x1Ratios": group.x1.ratios,
                "echoRatios": group.echo_ratios,
                "servers": group.servers,
            }
            for group in measured
        ],
    }


def measure_group(
    peers: Iterable[Server],
    own: OwnContestants,
    files: ShapeFiles,
    effort: Effort,
    scratch: Path,
    absent: dict[str, str],
) -> MeasuredGroup | None:
    """Starts the peers, measures them beside our own, and ends them; None where none of them answers."""
    shape = files.shape
    with ExitStack() as stack:
        started = []
        for peer in peers:
            try:
                started.append(start(stack, peer, files, scratch))
            except RuntimeError as error:
                note_absent(absent, peer.name, f"on {shape.name}: {error}")
        if not started:
            return None
        contestants = [*own.all, *started]
        loads = measure(contestants, files, effort, scratch)
        answered_by = {contestant.name: variants_of(contestant) for contestant in own.answering}
        report: dict[str, Any] = {
            contestant.name: {
                "label": contestant.label,
                "bootS": contestant.server.boot_s,
                "pssMiB": contestant.server.pss_mib(),
                "largestError": contestant.largest_error,
                **({"answeredBy": answered_by[contestant.name]} if contestant.name in answered_by else {}),
            }
            for contestant in contestants
        }
    medians = {name: {workload: median_of(found) for workload, found in of.items()} for name, of in loads.items()}
    show(shape.name, contestants, medians)
    for name, found in report.items():
        found["workloads"] = {
            workload: {"median": asdict(medians[name][workload]), "runs": [asdict(load) for load in runs]}
            for workload, runs in loads[name].items()
        }
    peer_medians = {peer.name: medians[peer.name] for peer in started}
    ours, binary, x1 = (compute_ratios(medians[one.name], peer_medians) for one in own.answering)
    return MeasuredGroup(ours, binary, x1, compute_echo_ratios(medians[own.ours.name], medians[own.echo.name]), report)


def variants_of(contestant: Contestant) -> dict[int, str]:
    """Variants of gnnserve that answer, by seeds of the request."""
    return {seeds: variant_for(contestant.server.port, seeds) for seeds in BODIES}


def variant_for(port: int, seeds: int) -> str:
    """The exact variant of gnnserve that answers requests of that size."""
    answer, _ = fetch_prediction(Endpoint("127.0.0.1", port), PredictRequest(tuple(range(seeds))))
    return answer.variant


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


_SHAPES = ("arxiv", "reddit")
_PROGRAMS = ("gnnserve_cli.commands.generate", "gnnserve_cli.commands.run")

BENCHMARK = Benchmark(
    "peers",
    tuple(Part(name, partial(run_shape, name), _PROGRAMS, ("benchmarks/peers/programs",)) for name in _SHAPES),
    verdicts,
    about=__doc__,
    quick=("arxiv",),
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
