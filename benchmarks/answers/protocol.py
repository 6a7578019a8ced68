"""Cost of each protocol for a prediction: JSON, arrays, the Open Inference Protocol in JSON and as bytes, and gRPC.

This server, Triton (by its Python binding and without) and MLServer answer from the same model, whose class is a node's
number modulo 4: it costs next to nothing, so that reading, queueing and writing are nearly all of a request. One seed
and 1,024 seeds are asked for, by one connection for the latency and by 16 for requests per second; over gRPC also by 16
calls on one connection, as clients mostly ask. Each is measured in three runs, every one with servers that were just
started and the forms in another order; figures are medians, and the range of the runs stands beside them. HTTP is asked
by wrk, gRPC by a program of Python, which is a part of what is measured: a bare gRPC echo, asked by the same program,
shows how large.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.answers import conformance
from benchmarks.answers.protocol_client import METHOD
from benchmarks.answers.protocol_requests import CHECKED, REQUESTS, check_answer
from benchmarks.answers.protocol_verdicts import (
    ALONE,
    CONNECTED,
    ECHO,
    GRPC,
    MLSERVER,
    MULTIPLEXED,
    OURS,
    PYTRITON,
    SEEDS,
    TRITON_BACKEND,
    V2_BINARY,
    V2_JSON,
    Load,
    figure_of,
    verdicts,
)
from benchmarks.peers.environments import Environment, build, versions
from benchmarks.peers.processes import Running, descendants, running
from benchmarks.peers.servers import free_ports
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.wrk import generate_load, write_requests

ROOT = Path(__file__).parents[2]
LIMITS = {
    PYTRITON: "PyTriton is Triton as its Python binding starts it, with dynamic batching. The binding has no way to "
    "compute in the server's own process: a request goes from there to a stub of Triton's Python backend, and on "
    "through shared memory and a ZeroMQ socket to one Python process, whose threads are the model's instances and "
    "share one interpreter's lock.",
    TRITON_BACKEND: "Triton's Python backend is the same server without the binding, from the same wheel, and has the "
    "model in the stub: one hop less, and still another process than the server's, to which requests go through shared "
    "memory. The bindings that serve in one process, `tritonserver` and `tritonfrontend`, need the "
    "`libtritonserver.so` of NVIDIA's container, and have models in Python behind the same stub. So these figures are "
    "those of Triton with a model in Python, and not of its frontends in C++ alone.",
    MLSERVER: "MLServer computes in its main process (`MLSERVER_PARALLEL_WORKERS=0`), without adaptive batching, "
    "which waits for other requests.",
}
"""Sentences that a reader needs to compare with these servers."""
RUNS = 3
LOADS = (ALONE, MULTIPLEXED, CONNECTED)
_SECONDS = {ALONE: 1, MULTIPLEXED: 2, CONNECTED: 2}
_NODES = 1000
_BODIES = {1: 512, 1024: 32}
_LIMIT_S = 120.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Subject:
    """A server in one form."""

    server: str
    form: str

    @property
    def label(self) -> str:
        return f"{self.server}, {self.form}" if self.server != ECHO else ECHO

    @property
    def loads(self) -> tuple[Load, ...]:
        return LOADS if self.form == GRPC else (ALONE, CONNECTED)


@dataclass(frozen=True, slots=True)
class Program:
    """A server's process, and the forms that it may answer."""

    name: str
    command: tuple[str, ...]
    """`{port}`, `{port1}` and `{port2}` stand for free ports: of HTTP, of gRPC, and of whatever else it listens for."""
    forms: tuple[str, ...]
    environment: Environment | None = None
    """Its Python environment; None: gnnserve's own."""
    variables: Mapping[str, str] = field(default_factory=dict)
    takes_rows: bool = False
    """Whether nodes are a batch of rows of one number, [n, 1], and not [n]."""


@dataclass(frozen=True, slots=True)
class Server:
    program: Program
    process: Running
    http_port: int
    grpc_port: int

    def request(self, form: str, seeds: list[int]) -> bytes:
        return REQUESTS[form](self.http_port, seeds, [len(seeds), 1] if self.program.takes_rows else [len(seeds)])

    def check(self, form: str) -> None:
        """Ask once, and raise ValueError where the scores are not those of the model."""
        check_answer(form, self.grpc_port if form == GRPC else self.http_port, self.request(form, CHECKED))


# Servers


_PEERS = Path(__file__).parents[1] / "peers" / "programs"
_OWN = (sys.executable, "-m", "benchmarks.answers.protocol_programs")
_OWN_VARIABLES = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
PROGRAMS = (
    Program(OURS, (*_OWN, "worker", "{port}", "{port1}"), tuple(REQUESTS), variables=_OWN_VARIABLES),
    Program(ECHO, (*_OWN, "echo", "{port1}"), (GRPC,), variables=_OWN_VARIABLES),
)


def peers() -> list[Program]:
    """Servers of others whose environments can be built."""
    forms = (V2_JSON, V2_BINARY, GRPC)
    found = []
    for subject in conformance.SUBJECTS:
        if subject.environment is None or not _is_built(subject.environment):
            continue
        if subject.label == "Triton":
            found += _triton(subject.environment, forms)
        else:
            found.append(Program(subject.label, subject.command, forms, subject.environment, subject.variables))
    return found


def _triton(environment: Environment, forms: tuple[str, ...]) -> Iterator[Program]:
    """Triton with a model of rows, which it batches, where that of `conformance.py` has no dimension of batches."""
    for name, program in ((PYTRITON, "protocol_triton.py"), (TRITON_BACKEND, "protocol_triton_backend/start.py")):
        command = (environment.executable("python"), str(_PEERS / program), "{port}", "{port1}")
        yield Program(name, command, forms, environment, {"PYTHONPATH": ""}, takes_rows=True)


def _is_built(environment: Environment) -> bool:
    try:
        build(environment)
    except (OSError, RuntimeError) as error:
        print(f"{environment.name} is left out: {error}", flush=True)
        return False
    return True


@contextmanager
def servers(programs: Sequence[Program], folder: Path) -> Iterator[dict[str, Server]]:
    """These servers, side by side, each just started."""
    with ExitStack() as stack:
        found: dict[str, Server] = {}
        for program in programs:
            ports = free_ports(3)
            named = {f"{{port{index or ''}}}": str(port) for index, port in enumerate(ports)}
            command = [_fill(part, named) for part in program.command]
            environ = {**os.environ, **{key: _fill(value, named) for key, value in program.variables.items()}}
            log = folder / f"{program.name.replace(' ', '-')}.log"
            unstarted = Server(program, Running(0, 0, 0), ports[0], ports[1])
            answers = partial(_echoes, ports[1]) if program.name == ECHO else partial(unstarted.check, V2_JSON)
            process = stack.enter_context(running(command, environ, log, ports[0], answers, _LIMIT_S))
            found[program.name] = Server(program, process, ports[0], ports[1])
        yield found


def _echoes(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(METHOD)(b"3", timeout=5.0)
        except grpc.RpcError as error:
            raise ValueError(str(error)) from None


def _fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def subjects_of(found: Mapping[str, Server]) -> list[Subject]:
    """Servers and forms; of other servers, those forms that they answer."""
    subjects = []
    for name, server in found.items():
        for form in server.program.forms:
            try:
                if name != ECHO:
                    server.check(form)
            except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
                if name == OURS:
                    raise
                print(f"{name} is not asked in {form}: {error}", flush=True)
                continue
            subjects.append(Subject(name, form))
    return subjects


# Measuring


def measure(subject: Subject, server: Server, requests: Path, load: Load, seconds: int) -> Figures:
    before_s = processor_s(server.process.pid)
    if subject.form == GRPC:
        command = [
            sys.executable, "-m", "benchmarks.answers.protocol_client", str(server.grpc_port), str(requests),
            str(load.connections), str(load.calls), str(seconds),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        found: Figures = json.loads(done.stdout)
    else:
        wrk = generate_load(server.http_port, requests, load.connections, seconds)
        if wrk.errors:
            raise SystemExit(f"{subject.label}: {wrk.errors}")
        found = {"requests_per_s": wrk.requests_per_s, "p50_ms": wrk.p50_ms, "p99_ms": wrk.p99_ms}
    found["processor_us"] = (processor_s(server.process.pid) - before_s) / (found["requests_per_s"] * seconds) * 1e6
    return {name: round(value, 4) for name, value in found.items()}


def processor_s(pid: int) -> float:
    """Processor time of a process and those that it started."""
    ticks = 0
    for each in descendants(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def measure_once(found: Mapping[str, Server], folder: Path, seeds: int, number: int) -> dict[tuple[str, Load], Figures]:
    """Figures of one run, by label and load. `number`: of the run, which says in what order forms are measured."""
    subjects = subjects_of(found)
    start = number * len(subjects) // RUNS
    figures = {}
    for subject in [*subjects[start:], *subjects[:start]][:: -1 if number % 2 else 1]:
        server, requests = found[subject.server], folder / "requests"
        draw = np.random.default_rng(1)
        drawn = [draw.integers(0, _NODES, seeds).tolist() for _ in range(_BODIES[seeds])]
        write_requests(requests, [server.request(subject.form, nodes) for nodes in drawn])
        for load in subject.loads:
            figures[subject.label, load] = measure(subject, server, requests, load, _SECONDS[load])
    return figures


def run_part(run: Run, seeds: int) -> dict[str, Any]:
    """Quick: one run of this server and the echo."""
    others = [] if run.quick else peers()
    figures: dict[str, dict[str, dict[str, list[float]]]] = {}
    for number in range(1 if run.quick else RUNS):
        with (
            tempfile.TemporaryDirectory(prefix="gnnserve-protocol-") as folder,
            servers([*PROGRAMS, *others], Path(folder)) as found,
        ):
            for (label, load), measured in measure_once(found, Path(folder), seeds, number).items():
                for name, value in measured.items():
                    figures.setdefault(label, {}).setdefault(load.name, {}).setdefault(name, []).append(value)
        print(f"{seeds:,} seeds: run {number + 1}", flush=True)
    return {
        "seconds_each": {load.name: seconds for load, seconds in _SECONDS.items()},
        "peers": {one.name: versions(one.environment) for one in others if one.environment is not None},
        "limits": {one.name: LIMITS[one.name] for one in others},
        "figures": {label: {f"{seeds}": loads} for label, loads in sorted(figures.items())},
    }


def show(found: Any) -> None:
    table = Table()
    for name in ("form", "seeds", "", "requests/s", "range", "p50, ms", "p99, ms", "processor, µs"):
        table.add_column(name, justify="right" if name else "left")
    for subject, by_seeds in found["figures"].items():
        for seeds, loads in by_seeds.items():
            for load in (one for one in LOADS if one.name in loads):
                of = partial(figure_of, found, subject, int(seeds), load)
                rate = of("requests_per_s")
                table.add_row(
                    subject, f"{int(seeds):,}", load.name, f"{rate.median:,.0f}",
                    f"{rate.least:,.0f} to {rate.most:,.0f}", f"{of('p50_ms').median:.3f}",
                    f"{of('p99_ms').median:.3f}", f"{of('processor_us').median:,.0f}",
                )  # fmt: skip
    Console(width=140).print(table)


_DEPENDS = (
    "benchmarks/peers/programs/conformance_mlserver", "benchmarks/peers/programs/protocol_triton.py",
    "benchmarks/peers/programs/protocol_triton_backend", "benchmarks/wrk.lua",
)  # fmt: skip
BENCHMARK = Benchmark(
    "protocol",
    tuple(
        Part(
            name, partial(run_part, seeds=seeds),
            ("benchmarks.answers.protocol_programs", "benchmarks.answers.protocol_client"), _DEPENDS,
        )
        for name, seeds in SEEDS.items()
    ),
    tuple(verdicts()),
    about=__doc__,
    show=show,
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
