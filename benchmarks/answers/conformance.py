"""Which calls of the Open Inference Protocol do servers answer as it says, and which errors?

The calls are those of tests/conformance that concern the protocol alone, sent over HTTP to this server, Triton and
MLServer, each of which has a model of the same name, tensors and answers. A call that is right has to get 200, a
prediction the right labels and its identifier; a call that is wrong has to get a status from 400 to 499 and an object
whose `error` is a text. The words of the error do not count.

KServe's own clients, of an environment of their own, ask this server over HTTP and over gRPC
(`peers/programs/conformance_kserve.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from tests.conformance.open_inference_calls import ANSWERED, INFER, PROTOCOL, TOLD, WRONG, Call, asking, nodes

from benchmarks.peers.environments import Environment, build, versions
from benchmarks.peers.processes import Running, running
from benchmarks.peers.servers import free_ports
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, exactly

_PROGRAMS = Path(__file__).parents[1] / "peers" / "programs"
_ROOT = Path(__file__).parents[2]
_LIMIT_S = 120.0
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A server that is asked."""

    label: str
    command: tuple[str, ...]
    """`{port}`, `{port1}` and `{port2}` stand for free ports; the first is the one that is asked."""
    environment: Environment | None = None
    """Its Python environment; None: gnnserve's own."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def start(self, log: Path, ports: Sequence[int]) -> AbstractContextManager[Running]:
        """`ports`: three free ones."""
        named = {f"{{port{index or ''}}}": str(port) for index, port in enumerate(ports)}
        command = [_fill(argument, named) for argument in self.command]
        variables = {name: _fill(value, named) for name, value in self.variables.items()}
        call = Call("", INFER, asking(nodes(3)))
        return running(command, {**os.environ, **variables}, log, ports[0], lambda: _answers(ports[0], call), _LIMIT_S)


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


_TRITON = Environment("triton_alone", ("numpy==1.26.4", "nvidia-pytriton==0.7.0"), python="/usr/bin/python3.11")
_MLSERVER = Environment("mlserver_alone", ("mlserver==1.7.1",))
_KSERVE = Environment("kserve", ("kserve==0.21.0",))
SUBJECTS = (
    Subject(
        "gnnserve",
        (sys.executable, "-m", "benchmarks.answers.conformance_worker", "{port}", "{port1}"),
        variables={"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
    ),
    Subject(
        "Triton",
        (_TRITON.executable("python"), str(_PROGRAMS / "conformance_triton.py"), "{port}", "{port1}"),
        _TRITON,
        {"PYTHONPATH": ""},
    ),
    Subject(
        "MLServer",
        (_MLSERVER.executable("mlserver"), "start", str(_PROGRAMS / "conformance_mlserver")),
        _MLSERVER,
        {
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_HTTP_PORT": "{port}",
            "MLSERVER_GRPC_PORT": "{port1}",
            "MLSERVER_METRICS_PORT": "{port2}",
            "MLSERVER_PARALLEL_WORKERS": "0",
            "PYTHONPATH": str(_PROGRAMS / "conformance_mlserver"),
        },
    ),
)


def run_all(run: Run) -> dict[str, Any]:
    """Quick: gnnserve alone."""
    subjects = SUBJECTS[:1] if run.quick else SUBJECTS
    calls = [call for call in (*TOLD, *ANSWERED, *WRONG) if call.name in PROTOCOL]
    found: dict[str, list[str]] = {}
    clients: dict[str, str] = {}
    used: dict[str, dict[str, str]] = {}
    with TemporaryDirectory() as folder:
        for subject in subjects:
            if subject.environment is not None:
                build(subject.environment)
                used[subject.label] = versions(subject.environment)
            ports = free_ports(3)
            with subject.start(Path(folder) / f"{subject.label}.log", ports) as server:
                found[subject.label] = [why_wrong(server.port, call) for call in calls]
                if subject is SUBJECTS[0] and not run.quick:
                    build(_KSERVE)
                    used["KServe's clients"] = versions(_KSERVE)
                    clients = ask_as_kserve(*ports[:2])
    show([call.name for call in calls], found)
    if clients:
        show([*clients], {"KServe's client": [*clients.values()]})
    return {
        "peers": used,
        "passed": {label: sum(not why for why in whys) for label, whys in found.items()},
        "calls": [
            {"name": call.name, "wrong": call in WRONG, **{label: whys[index] for label, whys in found.items()}}
            for index, call in enumerate(calls)
        ],
        "clients": clients,
    }


def ask_as_kserve(port: int, grpc_port: int) -> dict[str, str]:
    """What is wrong with what KServe's clients get, by call; empty: nothing."""
    command = [_KSERVE.executable("python"), str(_PROGRAMS / "conformance_kserve.py"), str(port), str(grpc_port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"KServe's clients ended with {done.returncode}: {done.stderr[-800:].strip()}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def why_wrong(port: int, call: Call) -> str:
    """What is wrong with the answer; empty: nothing."""
    try:
        response = _send(port, call)
    except httpx.HTTPError as error:
        return f"no answer ({type(error).__name__})"
    return judge(call, response.status_code, response.text)


def judge(call: Call, status: int, text: str) -> str:
    """What is wrong with an answer of this status and body; empty: nothing."""
    try:
        answer: Any = json.loads(text) if text else None
    except ValueError:
        answer = text
    if call in WRONG:
        is_error = isinstance(answer, dict) and isinstance(answer.get("error"), str) and answer["error"]
        if status < 400:
            return f"{status}, answered"
        return "" if status < 500 and is_error else f"{status}, {'with' if is_error else 'no'} error"
    if status != 200 or call not in ANSWERED:
        return "" if status == 200 else f"{status}"
    try:
        labels = next(one["data"] for one in answer["outputs"] if one["name"] == "labels")
        is_right = _flat(labels) == [40, 10] and call.has.get("id") in (None, answer.get("id"))
    except (KeyError, StopIteration, TypeError):
        is_right = False
    return "" if is_right else "another answer"


def _flat(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in _flat(value)] if isinstance(values, list) else [values]


def _send(port: int, call: Call) -> httpx.Response:
    method = call.method or ("GET" if call.body is None else "POST")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_TIMEOUT_S) as client:
        return client.request(method, call.path, content=call.body, headers=dict(call.headers))


def _answers(port: int, call: Call) -> None:
    """Raises OSError or ValueError where the server does not answer yet."""
    try:
        status = _send(port, call).status_code
    except httpx.HTTPError as error:
        raise OSError(str(error)) from error
    if status != 200:
        raise ValueError(f"status {status}")


def show(calls: Sequence[str], found: Mapping[str, Sequence[str]]) -> None:
    table = Table(title="the protocol's calls and errors")
    for column in ("call", *found):
        table.add_column(column)
    for index, name in enumerate(calls):
        table.add_row(name, *(whys[index] or "ok" for whys in found.values()))
    table.add_row(f"of {len(calls)}", *(str(sum(not why for why in whys)) for whys in found.values()), style="bold")
    Console(width=160).print(table)


VERDICTS = (
    Verdict(
        "calls that gnnserve does not answer as the protocol says", exactly(0),
        lambda found: sum(call["gnnserve"] != "" for call in found["calls"]),
    ),
    Verdict(
        "calls of KServe's clients that get another answer than the right one", exactly(0),
        lambda found: sum(why != "" for why in found["clients"].values()) if found["clients"] else None,
    ),
)  # fmt: skip
BENCHMARK = Benchmark(
    "conformance", (Part("all", run_all, ("benchmarks.answers.conformance_worker",)),), VERDICTS, about=__doc__
)

if __name__ == "__main__":
    main(BENCHMARK)
