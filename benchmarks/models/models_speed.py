"""A program beside the same model in torch_geometric behind FastAPI, and beside the described network where there is
one: same graph, weights, fan-outs, requests and machine, in turns.

torch_geometric samples by its own `NeighborSampler`, and runs the model over the sample as its author wrote it, as the
program does; and cut by hand, so that a layer computes only what the next one reads, which a program cannot know. Every
server is verified first, by exact scores over full neighbourhoods.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.models.models_files import (
    DESCRIBED,
    QUICK_SHAPE,
    ModelFiles,
    described_server,
    program_server,
    write_model,
)
from benchmarks.peers.contestants import Contestant, Effort, measure, start
from benchmarks.peers.environments import PYG, build, versions
from benchmarks.peers.ratios import MANY_CONNECTIONS, MANY_SEEDS, ONE_SEED, WORKLOADS, Figures, median_of
from benchmarks.peers.servers import Server, fastapi_server
from benchmarks.results import Run
from benchmarks.shapes import SHAPES, prepare
from benchmarks.verdicts import Verdict, at_most
from benchmarks.wrk import Load

MODULES = {"sage_head": "GraphSAGE with norms and a head", "gat": "GAT"}
AS_WRITTEN = (
    fastapi_server("pyg", "PyG, 2 processes", PYG, "module_model", workers=2),
    fastapi_server("pyg_2_threads", "the same, 1 process of 2 threads", PYG, "module_model", threads=2),
)
"""Peers that run the model over the whole sample, as the program."""
CUT = (fastapi_server("pyg_cut", "PyG, layers cut by hand, 2 processes", PYG, "module_cut_model", workers=2),)
_GENERATION_LIMIT_S = 1800.0
_TIMES = {ONE_SEED: "one seed", MANY_SEEDS: "1,024 seeds"}


def run_speed(run: Run) -> dict[str, Any] | None:
    """None: torch_geometric's environment cannot be built, which is said."""
    os.environ.setdefault("GNNSERVE_PROFILE_SECONDS", "0")
    try:
        build(PYG)
    except RuntimeError as error:
        print(f"torch_geometric does not take part: {error}", flush=True)
        return None
    modules = ("sage_head",) if run.quick else tuple(MODULES)
    measured = {module: measure_module(module, quick=run.quick) for module in modules}
    return {"speed": measured, "peerVersions": versions(PYG)}


def measure_module(module: str, *, quick: bool) -> dict[str, Any]:
    effort = Effort(repetitions=1, seconds=1) if quick else Effort(repetitions=5, seconds=4)
    workloads = [one for one in WORKLOADS if not quick or one.name != MANY_CONNECTIONS]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="gnnserve-models-")))
        files = write_model(module, prepare(QUICK_SHAPE if quick else SHAPES["arxiv"]), scratch / "model")
        peers = AS_WRITTEN[:1] if quick else (*AS_WRITTEN, *CUT)
        # Generation takes the whole machine, so ours come first, and nothing else runs yet.
        contestants = [start(stack, one, files, scratch, _GENERATION_LIMIT_S) for one in _ours(files, scratch)]
        contestants += [start(stack, peer, files, scratch) for peer in peers]
        loads = measure(contestants, files, effort, scratch, workloads)
        servers = {one.name: figures_of(one, loads[one.name]) for one in contestants}
    medians = {name: {load: median_of(runs) for load, runs in found.items()} for name, found in loads.items()}
    return {
        "shape": files.of.shape.name,
        "ratios": {
            against: ratios_of(medians["program"], [medians[name] for name in names if name in medians])
            for against, names in COMPARED.items()
            if any(name in medians for name in names)
        },
        "servers": servers,
        "repetitions": effort.repetitions,
        "secondsPerRun": effort.seconds,
    }


COMPARED = {
    "torch": [one.name for one in AS_WRITTEN],
    "torchCutByHand": [one.name for one in CUT],
    "described": ["described"],
}
"""Servers that the program is compared with, the best one of each by each figure."""


def _ours(files: ModelFiles, scratch: Path) -> list[Server]:
    described = [described_server(files, scratch)] if files.module in DESCRIBED else []
    return [program_server(files, scratch), *described]


def ratios_of(program: Mapping[str, Figures], others: Sequence[Mapping[str, Figures]]) -> dict[str, float]:
    """Times of the program over those of whichever of the others is best; for many connections, their requests a second
    over those of the program. At most 1: the program is not slower."""
    found = {}
    for workload, ours in program.items():
        theirs = [other[workload] for other in others]
        if workload == MANY_CONNECTIONS:
            found[workload] = round(max(one.requests_per_s for one in theirs) / ours.requests_per_s, 3)
        else:
            found[workload] = round(ours.p50_ms / min(one.p50_ms for one in theirs), 3)
    return found


def figures_of(contestant: Contestant, loads: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    return {
        "label": contestant.label,
        "bootS": contestant.server.boot_s,
        "pssMiB": contestant.server.pss_mib(),
        "largestError": contestant.largest_error,
        "workloads": {
            name: {"median": asdict(median_of(runs)), "runs": [asdict(load) for load in runs]}
            for name, runs in loads.items()
        },
    }


def show_speed(found: Mapping[str, Any]) -> None:
    console = Console(width=120)
    for module, measured in found["speed"].items():
        table = Table(
            "server", title=f"{MODULES[module]}, {measured['shape']}: p50 ms, and requests/s of 32 connections"
        )
        for header in ("one seed", "32 connections", "1024 seeds", "largest error"):
            table.add_column(header, justify="right")
        for server in measured["servers"].values():
            median = {name: load["median"] for name, load in server["workloads"].items()}
            busy = f"{median[MANY_CONNECTIONS]['requests_per_s']:,.0f}/s" if MANY_CONNECTIONS in median else ""
            table.add_row(
                server["label"], f"{median[ONE_SEED]['p50_ms']:.3f}", busy, f"{median[MANY_SEEDS]['p50_ms']:.1f}",
                f"{server['largestError']:.1e}",
            )  # fmt: skip
        console.print(table)
        for against, ratios in measured["ratios"].items():
            console.print(f"time of the program over {against}: {ratios}")


def _time_of(module: str, workload: str, found: Any) -> float:
    return float(found["speed"][module]["ratios"]["torch"][workload])


def _largest_error(found: Any) -> float:
    servers = [server for measured in found["speed"].values() for server in measured["servers"].values()]
    return max(float(server["largestError"]) for server in servers)


SPEED_VERDICTS = (
    *(
        Verdict(
            f"{called}, {asked}: time of the program over that of torch_geometric",
            at_most(1.0, "times"),
            partial(_time_of, module, workload),
        )
        for module, called in MODULES.items()
        for workload, asked in _TIMES.items()
    ),
    Verdict("largest difference of any server's scores from exact ones, full neighbourhoods", at_most(1e-4),
            _largest_error),
)  # fmt: skip
