"""Counts the Python calls that a request takes in a warm server: a cost with little noise, to set beside times.

    python -m tools.calls [--checkout FOLDER] [--only WORDS] [--json | --functions]

Counted are calls of our own functions, compiled kernels among them, and apart those of built-in functions and of
libraries, on all threads. A service over a small graph is asked on one connection, one request after the other; what a
request takes is the difference of two counts, divided by the requests between, so that start and stop are left out. A
function that not every fifth request calls is none of a request's. The clock is in it at one place: batches are
observed at most once a millisecond, so that a slow machine has up to 5 own calls more, and 14 others. A checkout that
does not know a protocol or a task has no count of it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("operator", "cli", "client", "describe", "worker", "crds")
_FEWEST = 0.2
"""Calls per request below which a function is none of a request's: what is done now and then."""
_WARM_UP, _COUNTED = 500, 1000
"""Requests before the first count, and between the two."""
_START_LIMIT_S = 600.0
_POLL_S = 0.2
_JSON = {"Content-Type": "application/json"}
_GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"


# --- what is asked

Body = Callable[[int], bytes]
"""The body of the request of that number."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    body: Body
    path: str = "/v1/predict"
    """Empty: it is asked over gRPC."""


def _nodes(count: int) -> Body:
    return lambda number: msgspec.json.encode({"nodes": [(number * 37 + node) % _DIGITS for node in range(count)]})


def _v2(number: int) -> bytes:
    tensor = {"name": "nodes", "shape": [1], "datatype": "INT64", "data": [number % _DIGITS]}
    return msgspec.json.encode({"inputs": [tensor]})


def _grpc(number: int) -> bytes:
    from gnnserve_worker.serving.grpc.messages import ModelInferRequest  # noqa: PLC0415 - one case needs it

    message = ModelInferRequest(model_name=_NAME)
    message.inputs.add(name="nodes", datatype="INT64", shape=[1])
    message.raw_input_contents.append((number % _DIGITS).to_bytes(8, "little"))
    encoded: bytes = message.SerializeToString()
    return encoded


def _user(number: int) -> bytes:
    return msgspec.json.encode({"nodes": [f"user/u{number % 600}"]})


def _pair(number: int) -> bytes:
    return msgspec.json.encode({"pairs": [[f"user/u{number % 600}", f"item/i{number % 240}"]]})


_DIGITS = 1797
"""Nodes of the graph of digits."""
_NAME = "counted"
_SPEC: Mapping[str, Any] = {
    "graph": {"source": {"builtin": "Digits"}},
    "model": {
        "architecture": "GraphSAGE", "hidden": 64, "fanouts": [25, 10], "training": {"epochs": 3, "batchSize": 256},
    },
    "variants": {"pruning": {"factors": [1, 4]}},
}  # fmt: skip
ONE_NODE = "JSON, one node"


def _of_example(name: str) -> Mapping[str, Any]:
    """The spec of an example, which reads tables beside it, trained for two epochs."""
    spec: dict[str, Any] = yaml.safe_load((ROOT / "examples" / name / f"{name}.yaml").read_text())["spec"]
    spec["model"]["training"]["epochs"] = 2
    return spec


@dataclass(frozen=True, slots=True)
class Service:
    repository: str
    """Folder of its repository, which services with the same revision share."""
    spec: Callable[[], Mapping[str, Any]]
    cases: tuple[Case, ...]
    example: str = ""
    """Folder of `examples` that has its tables; empty: it needs none."""

    @property
    def has_grpc(self) -> bool:
        return any(not case.path for case in self.cases)


SERVICES = (
    Service(
        "digits", lambda: _SPEC,
        (
            Case(ONE_NODE, _nodes(1)), Case("JSON, 32 nodes", _nodes(32)),
            Case("v2, one node", _v2, f"/v2/models/{_NAME}/infer"),
        ),
    ),
    Service("digits", lambda: _SPEC, (Case("gRPC, one node", _grpc, ""),)),
    Service(
        "digits", lambda: {**_SPEC, "updates": {"log": {"sqlite": {}}}},
        (Case("JSON, one node of a graph that changes", _nodes(1)),),
    ),
    Service("reviews", lambda: _of_example("reviews"), (Case("JSON, one node of several types", _user),), "reviews"),
    Service("shop", lambda: _of_example("shop"), (Case("JSON, one pair", _pair),), "shop"),
)  # fmt: skip


# --- counting

Counts = Mapping[tuple[str, str, int, str], int]
"""Calls by thread, file, line and function."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that one request takes."""

    own: float
    """Calls of functions of ours."""
    modules: int
    """Modules of ours that these are in."""
    others: float
    """Calls of built-in functions and of libraries."""
    elsewhere: Mapping[str, float]
    """Calls of either kind by thread, where it is not the main one."""
    functions: Sequence[str]
    """Each that is called, with its calls, as lines to read."""


def calls_between(before: Counts, after: Counts, requests: int, folder: Path) -> Calls:
    """Calls per request, of two counts with so many requests between. `folder`: the checkout, whose functions are its
    own."""
    everywhere: Counter[tuple[str, int, str]] = Counter()
    elsewhere: Counter[str] = Counter()
    for (thread, file, line, name), number in after.items():
        made = number - before.get((thread, file, line, name), 0)
        if made > _FEWEST * requests:
            everywhere[file, line, name] += made
            elsewhere[thread] += made
    del elsewhere["main"]
    called = {function: number / requests for function, number in everywhere.items()}
    own = {function: number for function, number in called.items() if _is_own(function[0], folder)}
    return Calls(
        own=round(sum(own.values()), 1),
        modules=len({file for file, _, _ in own}),
        others=round(sum(called.values()) - sum(own.values()), 1),
        elsewhere={thread: round(number / requests, 1) for thread, number in elsewhere.items()},
        functions=[
            f"{number:6.1f}  {os.path.relpath(file, folder) if file else 'built-in'}:{line} {name}"
            for (file, line, name), number in sorted(called.items(), key=lambda item: (item[0] not in own, item[0]))
        ],
    )


def _is_own(file: str, folder: Path) -> bool:
    return file.startswith(f"{folder}/") and "/site-packages/" not in file


class Ask(Protocol):
    def __call__(self, number: int) -> None:
        """Send the request of that number and wait for its answer. ValueError: the server refuses it."""
        ...  # pragma: no cover


@contextmanager
def _asking(case: Case, port: int, grpc_port: int) -> Iterator[Ask]:
    if case.path:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(number: int) -> None:
            connection.request("POST", case.path, case.body(number), _JSON)
            answer = connection.getresponse()
            if (said := answer.read()) and answer.status != 200:
                raise ValueError(f"{answer.status}: {said.decode()[:200]}")

        yield ask
        connection.close()
        return
    import grpc  # noqa: PLC0415 - one case needs it

    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        method = channel.unary_unary(_GRPC_METHOD)

        def call(number: int) -> None:
            try:
                method(case.body(number))
            except grpc.RpcError as error:
                raise ValueError(str(error)) from None

        yield call


@dataclass(slots=True)
class _Server:
    port: int
    grpc_port: int
    counting: socket.socket

    def counts(self) -> Counts:
        self.counting.sendall(b".")
        found: Counter[tuple[str, str, int, str]] = Counter()
        with self.counting.makefile("rb") as file:
            for thread, path, line, name, number in json.loads(file.readline()):
                found[thread, path, line, name] += number
        return found


@contextmanager
def _served(service: Service, variables: Mapping[str, str], folder: Path) -> Iterator[_Server]:
    """A server that counts. ValueError: it does not start."""
    manifest = folder / service.repository / f"{_NAME}.yaml"
    if service.example:
        shutil.copytree(ROOT / "examples" / service.example, manifest.parent)
    manifest.parent.mkdir(exist_ok=True)
    head = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": _NAME}}
    manifest.write_text(yaml.safe_dump({**head, "spec": dict(service.spec())}))
    port, grpc_port = _free_ports()
    arguments = ["run", str(manifest), "--port", str(port), "--repository", str(manifest.parent / "repository")]
    if service.has_grpc:
        arguments += ["--grpc-port", str(grpc_port)]
    ours, theirs = socket.socketpair()
    program, log = Path(__file__).with_name("counted_server.py"), manifest.with_suffix(".log")
    with ours, theirs, log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", str(program), str(theirs.fileno()), *arguments], env={**variables}, cwd=folder,
            stdout=output, stderr=output, pass_fds=(theirs.fileno(),),
        )  # fmt: skip
        try:
            _wait_until_ready(process, port, log)
            yield _Server(port, grpc_port, ours)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up_at_s = time.monotonic() + _START_LIMIT_S
    while process.poll() is None and time.monotonic() < give_up_at_s:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        time.sleep(_POLL_S)
    raise ValueError(f"no server: {log.read_text()[-400:]}")


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def variables_of(folder: Path) -> dict[str, str]:
    """The environment of a checkout's processes: its own packages before the installed ones.

    Without PYTHONDONTWRITEBYTECODE: installed packages have their bytecode, and where every start compiles all modules,
    the start of whichever commit has more source looks slower than it is.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    packages = (folder, *(folder / package for package in _PACKAGES))
    return {**inherited, "PYTHONPATH": os.pathsep.join(map(str, packages)), "PYTHONUNBUFFERED": "1"}


def count_calls(folder: Path, variables: Mapping[str, str], only: str = "") -> dict[str, Calls]:
    """Calls per request of the checkout in `folder`, by case; without those that it does not know, which standard error
    tells. `only`: words of the cases that are counted."""
    found: dict[str, Calls] = {}
    with tempfile.TemporaryDirectory(prefix="gnnserve-calls-") as name:
        for service in SERVICES:
            if not (cases := [case for case in service.cases if only in case.name]):
                continue
            try:
                with _served(service, variables, Path(name)) as server:
                    for case in cases:
                        print(case.name, file=sys.stderr, flush=True)
                        found |= _count(case, server, folder.resolve())
            except ValueError as error:
                print(f"{', '.join(case.name for case in cases)}: {error}", file=sys.stderr)
    return found


def _count(case: Case, server: _Server, folder: Path) -> dict[str, Calls]:
    try:
        with _asking(case, server.port, server.grpc_port) as ask:
            for number in range(_WARM_UP):
                ask(number)
            before = server.counts()
            for number in range(_COUNTED):
                ask(number)
            return {case.name: calls_between(before, server.counts(), _COUNTED, folder)}
    except ValueError as error:
        print(f"{case.name}: {error}", file=sys.stderr)
        return {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.calls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose server is counted; default: this one")
    parser.add_argument("--only", metavar="WORDS", default="", help="cases whose names have these words; default: all")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true")
    shown.add_argument("--functions", action="store_true", help="each function that is called")
    options = parser.parse_args(arguments)
    folder = options.checkout.resolve()
    found = count_calls(folder, variables_of(folder), options.only)
    if options.json:
        print(msgspec.json.encode(found).decode())
        return 0
    for name, calls in found.items():
        moved = "".join(f"; {number} on the thread {thread}" for thread, number in calls.elsewhere.items())
        print(f"{name}: {calls.own} own calls in {calls.modules} modules, {calls.others} others{moved}")
        if options.functions:
            print(*calls.functions, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
