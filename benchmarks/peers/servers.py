"""The servers that are measured: how each is started, asked, and what it is.

All of them load the same files, and every one is verified against exact scores before it is measured.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.peers.environments import BENTOML, GRAPHBOLT, LITSERVE, MLSERVER, PYG, RAY, TRITON, Environment
from benchmarks.peers.protocols import ECHO, GNNSERVE_JSON, SEEDS_JSON, V2_JSON, Protocol
from benchmarks.shapes import FANOUTS, ShapeFiles, prepare_sources

_PROGRAMS = Path(__file__).parent / "programs"
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    label: str
    command: tuple[str, ...]
    """`{port}`, `{port1}` and `{port2}` stand for free ports; the first is the one that is asked."""
    protocol: Protocol
    environment: Environment | None = None
    """Its Python environment; None: gnnserve's own."""
    variables: Mapping[str, str] = field(default_factory=dict)


def _uvicorn(environment: Environment, workers: int = 1) -> tuple[str, ...]:
    return (
        environment.executable("uvicorn"), "serve_fastapi:app", "--app-dir", str(_PROGRAMS), "--host", "127.0.0.1",
        "--port", "{port}", "--workers", str(workers), "--no-access-log", "--log-level", "warning",
    )  # fmt: skip


def _program(environment: Environment, name: str, *more: str) -> tuple[str, ...]:
    return (environment.executable("python"), str(_PROGRAMS / name), "{port}", *more)


def _fastapi(
    name: str, label: str, environment: Environment, model: str, *, workers: int = 1, threads: int = 1
) -> Server:
    variables = {"PEER_MODEL": model, "PEER_THREADS": str(threads)}
    return Server(name, label, _uvicorn(environment, workers), SEEDS_JSON, environment, variables)


QUICK_PEERS = (_fastapi("pyg", "PyG behind FastAPI", PYG, "pyg_model"),)
PEERS = (
    *QUICK_PEERS,
    _fastapi("pyg_2_processes", "the same, 2 uvicorn processes", PYG, "pyg_model", workers=2),
    _fastapi("pyg_2_threads", "the same, 2 torch threads", PYG, "pyg_model", threads=2),
    Server(
        "triton", "Triton, dynamic batching", _program(TRITON, "serve_triton.py", "{port1}"), V2_JSON, TRITON
    ),
    _fastapi("graphbolt", "DGL GraphBolt behind FastAPI", GRAPHBOLT, "graphbolt_model"),
    _fastapi("graphbolt_2_threads", "the same, 2 torch threads", GRAPHBOLT, "graphbolt_model", threads=2),
)  # fmt: skip
MORE_PEERS = (
    Server("litserve", "LitServe, batches", _program(LITSERVE, "serve_litserve.py"), SEEDS_JSON, LITSERVE),
    Server(
        "ray",
        "Ray Serve, batches",
        _program(RAY, "serve_ray.py"),
        SEEDS_JSON,
        RAY,
        {"RAY_USAGE_STATS_ENABLED": "0"},
    ),
    Server(
        "mlserver",
        "MLServer, adaptive batching",
        (MLSERVER.executable("mlserver"), "start", str(_PROGRAMS / "mlserver_app")),
        V2_JSON,
        MLSERVER,
        {
            "MLSERVER_HOST": "127.0.0.1",
            "MLSERVER_HTTP_PORT": "{port}",
            "MLSERVER_GRPC_PORT": "{port1}",
            "MLSERVER_METRICS_PORT": "{port2}",
            "MLSERVER_PARALLEL_WORKERS": "0",
            "MLSERVER_DEBUG": "false",
            "PYTHONPATH": f"{_PROGRAMS}{os.pathsep}{_PROGRAMS / 'mlserver_app'}",
        },
    ),
    Server(
        "bentoml",
        "BentoML, adaptive batching",
        (BENTOML.executable("bentoml"), "serve", "serve_bentoml:Sage", "--working-dir", str(_PROGRAMS),
         "--host", "127.0.0.1", "--port", "{port}"),
        SEEDS_JSON,
        BENTOML,
        {"DO_NOT_TRACK": "1", "BENTOML_DO_NOT_TRACK": "True"},
    ),
)  # fmt: skip

ECHO_SERVER = Server("echo", "an empty echo on uvicorn", (sys.executable, str(_PROGRAMS / "echo.py"), "{port}"), ECHO)


def gnnserve_server(files: ShapeFiles, storage: str) -> Server:
    """`gnnserve run`, generating what is not published yet; the fastest of the exact variants answers."""
    folder = prepare_sources(files)
    manifest = folder.parent / f"{storage}.yaml"
    manifest.write_text(yaml.safe_dump(service_manifest(files, folder, storage), sort_keys=False))
    command = (
        sys.executable, "-m", "gnnserve_cli", "run", str(manifest), "--repository", str(folder.parent / "repository"),
        "--port", "{port}",
    )  # fmt: skip
    return Server("gnnserve", "gnnserve, JSON", command, GNNSERVE_JSON)


def service_manifest(files: ShapeFiles, sources: Path, storage: str) -> dict[str, object]:
    """Unpruned. Its variants differ by rounding alone, so a tolerance of 1 permille leaves speed to choose."""
    shape = files.shape
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": shape.name},
        "spec": {
            "graph": {
                "source": {"npz": {"uri": (sources / "graph.npz").as_uri()}},
                "normalization": "Disabled",
            },
            "model": {
                "architecture": "GraphSAGE",
                "hidden": shape.hidden,
                "fanouts": list(FANOUTS),
                "checkpoint": {"uri": (sources / "checkpoint.safetensors").as_uri()},
            },
            "variants": {"pruning": {"factors": [1]}, "storage": [storage], "projection": "Auto"},
            "objective": {"accuracyTolerancePermille": 1},
        },
    }


def variables_of(server: Server, files: ShapeFiles, ports: tuple[int, ...]) -> dict[str, str]:
    """The environment of its process."""
    if server.environment is None:
        return {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
    threads = server.variables.get("PEER_THREADS", "1")
    own = {
        "PEER_DATA": str(files.folder),
        "PEER_FANOUTS": ",".join(str(fanout) for fanout in FANOUTS),
        "PEER_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": str(_PROGRAMS),
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **own, **{key: with_ports(value, ports) for key, value in server.variables.items()}}


def with_ports(text: str, ports: tuple[int, ...]) -> str:
    for number, port in enumerate(ports):
        text = text.replace(f"{{port{number or ''}}}", str(port))
    return text


def free_ports(count: int) -> tuple[int, ...]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return tuple(sock.getsockname()[1] for sock in sockets)
