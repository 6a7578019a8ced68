"""What each protocol costs a prediction: JSON, arrays, the Open Inference Protocol in JSON and as bytes, and gRPC.

This server, Triton and MLServer answer from the same model, whose class is a node's number modulo 4: it costs next to
nothing, so that reading, queueing and writing are nearly all of a request. One seed and 1,024 seeds are asked for, by
one connection for the latency and by 16 for requests per second. A shared machine drifts, so forms take turns in every
round, in an order that changes, and verdicts are on ratios within rounds. HTTP is asked by wrk, gRPC by a program of
Python, which is a part of what is measured: a bare gRPC echo, asked by the same program, shows how large.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.conformance import SUBJECTS
from benchmarks.peers.environments import Environment, build, versions
from benchmarks.peers.processes import Running, descendants, running
from benchmarks.peers.servers import free_ports
from benchmarks.protocol_client import METHOD
from benchmarks.results import write_result
from benchmarks.wrk import encode_post, generate_load, write_requests
from gnnserve_worker.serving.grpc.messages import ModelInferRequest, ModelInferResponse

ROOT = Path(__file__).parents[1]
OURS, ECHO = "gnnserve", "bare gRPC echo"
JSON, BINARY, V2_JSON, V2_BINARY, GRPC = "JSON", "arrays", "v2 JSON", "v2 bytes", "gRPC"
MOST_V2_OVER_BINARY = 1.15
LEAST_GRPC_OVER_ECHO = 0.7
_NODES = 1000
_BODIES = {1: 512, 1024: 32}
_CONNECTIONS = (1, 16)
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


@dataclass(frozen=True, slots=True)
class Server:
    process: Running
    http_port: int
    grpc_port: int


# Requests


def _post(path: str, content_type: str, encode: Callable[[list[int]], tuple[bytes, dict[str, str]]]) -> Any:
    def request(port: int, seeds: list[int]) -> bytes:
        body, headers = encode(seeds)
        return encode_post(port, path, content_type, body, headers)

    return request


def _in_v2_json(seeds: list[int]) -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "nodes", "shape": [len(seeds)], "datatype": "INT64", "data": seeds}
    return msgspec.json.encode({"inputs": [tensor], "outputs": [{"name": "scores"}]}), {}


def _in_v2_bytes(seeds: list[int]) -> tuple[bytes, dict[str, str]]:
    data = np.array(seeds, "<i8").tobytes()
    tensor = {
        "name": "nodes", "shape": [len(seeds)], "datatype": "INT64", "parameters": {"binary_data_size": len(data)}
    }  # fmt: skip
    wanted = {"name": "scores", "parameters": {"binary_data": True}}
    head = msgspec.json.encode({"inputs": [tensor], "outputs": [wanted]})
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def _in_grpc(_port: int, seeds: list[int]) -> bytes:
    message = ModelInferRequest(model_name="digits")
    message.inputs.add(name="nodes", datatype="INT64", shape=[len(seeds)])
    message.outputs.add(name="scores")
    message.raw_input_contents.append(np.array(seeds, "<i8").tobytes())
    encoded: bytes = message.SerializeToString()
    return encoded


_OCTETS = "application/octet-stream"
_V2_PATH = "/v2/models/digits/infer"
REQUESTS: dict[str, Callable[[int, list[int]], bytes]] = {
    JSON: _post("/v1/predict", "application/json", lambda seeds: (
        msgspec.json.encode({"nodes": seeds, "return": ["scores"]}), {}
    )),
    BINARY: _post("/v1/predict", _OCTETS, lambda seeds: (np.array(seeds, "<i8").tobytes(), {})),
    V2_JSON: _post(_V2_PATH, "application/json", _in_v2_json),
    V2_BINARY: _post(_V2_PATH, _OCTETS, _in_v2_bytes),
    GRPC: _in_grpc,
}  # fmt: skip


def check_answer(form: str, port: int) -> None:
    """Ask once, and raise ValueError where the scores are not those of the model."""
    seeds = [5, 6, 3]
    request = REQUESTS[form](port, seeds)
    if form == GRPC:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                answer = ModelInferResponse.FromString(channel.unary_unary(METHOD)(request, timeout=10.0))
            except grpc.RpcError as error:
                raise ValueError(str(error)) from None
            raw = answer.raw_output_contents
            found = np.frombuffer(raw[0], "<f4") if raw else np.array(answer.outputs[0].contents.fp32_contents)
    else:
        found = _scores_of(form, *_exchange(port, request))
    found = found.reshape(len(seeds), -1)
    if found.argmax(axis=1).tolist() != [seed % 4 for seed in seeds]:
        raise ValueError(f"{form}: scores {found.tolist()} are not the model's")


def _exchange(port: int, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer."""
    with socket.create_connection(("127.0.0.1", port), 10.0) as sock:
        sock.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        answer = b"".join(iter(lambda: sock.recv(65_536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0]
    if b" 200 " not in status:
        raise ValueError(f"{status!r}: {body[:200]!r}")
    return head.lower(), body


def _scores_of(form: str, head: bytes, body: bytes) -> np.ndarray:
    if form == BINARY:
        return np.frombuffer(body, "<f4")
    if form == V2_BINARY:
        _, named, rest = head.partition(b"inference-header-content-length:")
        if not named:
            raise ValueError("the answer has no bytes")
        return np.frombuffer(body[int(rest.split(b"\r\n")[0]) :], "<f4")
    answer = msgspec.json.decode(body)
    return np.array(answer["scores"] if form == JSON else answer["outputs"][0]["data"], np.float64)


# Servers


@contextmanager
def servers(names: Sequence[str], folder: Path) -> Iterator[dict[str, Server]]:
    """Those of these servers that start, side by side."""
    programs = [sys.executable, "-m", "benchmarks.protocol_programs"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with ExitStack() as stack:
        found: dict[str, Server] = {}
        for name in names:
            ports = free_ports(3)
            named = {f"{{port{index or ''}}}": str(port) for index, port in enumerate(ports)}
            own = next((subject for subject in SUBJECTS if subject.label == name and name != OURS), None)
            if own is None:
                program = ["echo", str(ports[1])] if name == ECHO else ["worker", *map(str, ports[:2])]
                command, environ = [*programs, *program], variables
            else:
                command = [_fill(part, named) for part in own.command]
                environ = {**os.environ, **{key: _fill(value, named) for key, value in own.variables.items()}}
            form = GRPC if name == ECHO else V2_JSON
            answers = (
                (lambda port=ports[1]: _echoes(port)) if name == ECHO else
                (lambda port=ports[0], form=form: check_answer(form, port))
            )  # fmt: skip
            log = folder / f"{name.replace(' ', '-')}.log"
            process = stack.enter_context(running(command, environ, log, ports[0], answers, _LIMIT_S))
            found[name] = Server(process, ports[0], ports[1])
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


def subjects_of(found: dict[str, Server]) -> list[Subject]:
    """Servers and forms; of other servers, those forms that they answer."""
    subjects = []
    for name, server in found.items():
        forms = [GRPC] if name == ECHO else [V2_JSON, V2_BINARY, GRPC] if name != OURS else list(REQUESTS)
        for form in forms:
            try:
                if name != ECHO:
                    check_answer(form, server.grpc_port if form == GRPC else server.http_port)
            except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
                if name == OURS:
                    raise
                print(f"{name} is not asked in {form}: {error}", flush=True)
                continue
            subjects.append(Subject(name, form))
    return subjects


# Measuring


def measure(subject: Subject, server: Server, requests: Path, connections: int, seconds: int) -> Figures:
    before_s = processor_s(server.process.pid)
    if subject.form == GRPC:
        command = [
            sys.executable, "-m", "benchmarks.protocol_client", str(server.grpc_port), str(requests), str(connections),
            str(seconds),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        found: Figures = json.loads(done.stdout)
    else:
        load = generate_load(server.http_port, requests, connections, seconds)
        if load.errors:
            raise SystemExit(f"{subject.label}: {load.errors}")
        found = {"requests_per_s": load.requests_per_s, "p50_ms": load.p50_ms, "p99_ms": load.p99_ms}
    found["processor_us"] = (processor_s(server.process.pid) - before_s) / (found["requests_per_s"] * seconds) * 1e6
    return found


def processor_s(pid: int) -> float:
    """Processor time of a process and those that it started."""
    ticks = 0
    for each in descendants(pid):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


Runs = dict[tuple[str, int, int], list[Figures]]
"""Figures of each round, by label, seeds and connections."""


def measure_all(found: dict[str, Server], folder: Path, rounds: int, seconds: int) -> Runs:
    subjects, runs = subjects_of(found), Runs()
    draw = np.random.default_rng(1)
    files: dict[tuple[str, int], Path] = {}
    for subject in subjects:
        server = found[subject.server]
        for seeds, bodies in _BODIES.items():
            path = files[subject.label, seeds] = folder / f"{len(files)}.requests"
            drawn = [draw.integers(0, _NODES, seeds).tolist() for _ in range(bodies)]
            write_requests(path, [REQUESTS[subject.form](server.http_port, nodes) for nodes in drawn])
    for number in range(rounds):
        for subject in subjects if number % 2 else reversed(subjects):
            for seeds in _BODIES:
                # One connection is for a latency to know, and no verdict is on it.
                for connections in _CONNECTIONS if number == 0 else _CONNECTIONS[-1:]:
                    figures = measure(
                        subject, found[subject.server], files[subject.label, seeds], connections, seconds
                    )  # fmt: skip
                    runs.setdefault((subject.label, seeds, connections), []).append(figures)
        print(f"round {number + 1} of {rounds}", flush=True)
    return runs


# What it says


def ratio(runs: Runs, label: str, other: str, seeds: int) -> float:
    """Requests per second by 16 connections, of one subject over the other's: the geometric mean over rounds."""
    of, beside = runs[label, seeds, _CONNECTIONS[-1]], runs[other, seeds, _CONNECTIONS[-1]]
    logs = [
        math.log(one["requests_per_s"] / two["requests_per_s"]) for one, two in zip(of, beside, strict=True)
    ]  # fmt: skip
    return math.exp(math.fsum(logs) / len(logs))


def verdicts(runs: Runs) -> dict[str, Any]:
    found = {}
    for seeds in _BODIES:
        over_binary = ratio(runs, f"{OURS}, {BINARY}", f"{OURS}, {V2_BINARY}", seeds)
        over_echo = ratio(runs, f"{OURS}, {GRPC}", ECHO, seeds)
        nodes = "1 seed" if seeds == 1 else f"{seeds:,} seeds"
        found[f"v2 bytes over arrays, time per request, {nodes}"] = {
            "wanted": f"at most {MOST_V2_OVER_BINARY}", "measured": round(over_binary, 3),
            "passed": over_binary <= MOST_V2_OVER_BINARY,
        }  # fmt: skip
        found[f"gRPC over a bare gRPC echo, requests/s, {nodes}"] = {
            "wanted": f"at least {LEAST_GRPC_OVER_ECHO}", "measured": round(over_echo, 3),
            "passed": over_echo >= LEAST_GRPC_OVER_ECHO,
        }  # fmt: skip
    return found


def medians(runs: Runs) -> list[dict[str, Any]]:
    rows = []
    for (label, seeds, connections), rounds in runs.items():
        middle = {name: round(float(np.median([each[name] for each in rounds])), 4) for name in rounds[0]}
        rows.append({"subject": label, "seeds": seeds, "connections": connections, "rounds": len(rounds), **middle})
    return rows


def show(rows: list[dict[str, Any]], of_all: dict[str, Any]) -> None:
    for seeds in _BODIES:
        table = Table(title=f"{seeds:,} {'seed' if seeds == 1 else 'seeds'} a request", title_justify="left")
        table.add_column("form")
        for name in ("p50, 1 conn.", "p99", "requests/s, 16 conn.", "p50", "p99", "server's processor"):
            table.add_column(name, justify="right")
        labels = dict.fromkeys(row["subject"] for row in rows)
        for label in labels:
            alone, many = (
                next(row for row in rows if (row["subject"], row["seeds"], row["connections"]) == (label, seeds, of))
                for of in _CONNECTIONS
            )
            table.add_row(
                label, f"{alone['p50_ms']:.3f} ms", f"{alone['p99_ms']:.3f} ms", f"{many['requests_per_s']:,.0f}",
                f"{many['p50_ms']:.2f} ms", f"{many['p99_ms']:.2f} ms", f"{many['processor_us']:,.0f} µs",
            )  # fmt: skip
        Console(width=120).print(table)
    for figure, verdict in of_all.items():
        state = "as wanted" if verdict["passed"] else "missed"
        print(f"{figure}: {verdict['measured']} ({verdict['wanted']}): {state}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.protocol", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of this server alone: does it work at all?")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    names, rounds, installed = [OURS, ECHO], 1 if options.quick else options.rounds, {}
    if not options.quick:
        for subject in SUBJECTS:
            if subject.environment is not None and _is_built(subject.environment):
                names.append(subject.label)
                installed[subject.label] = versions(subject.environment)
    with tempfile.TemporaryDirectory(prefix="gnnserve-protocol-") as name, servers(names, Path(name)) as found:
        runs = measure_all(found, Path(name), rounds, 1)
    rows, of_all = medians(runs), verdicts(runs)
    show(rows, of_all)
    body = {"rounds": rounds, "secondsEach": 1, "peers": installed, "verdicts": of_all, "figures": rows}
    write_result("protocol", options.quick, body)


def _is_built(environment: Environment) -> bool:
    try:
        build(environment)
    except (OSError, RuntimeError) as error:
        print(f"{environment.name} is left out: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    main()
