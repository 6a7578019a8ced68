"""The servers that are measured: how each is started, asked, and what it is.

All of them load the same files, and every one is verified against exact scores before it is measured.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.peers.environments import BENTOML, GRAPHBOLT, LITSERVE, MLSERVER, PYG, RAY, TRITON, Environment
from benchmarks.peers.protocols import ECHO, GNNSERVE_JSON, SEEDS_JSON, V2_JSON, Protocol
from benchmarks.shapes import FANOUTS, ProbedGraph, ShapeFiles, prepare_sources
from gnnserve_api.variants import Storage, projected_name, variant_name

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


def fastapi_server(
    name: str, label: str, environment: Environment, model: str, *, workers: int = 1, threads: int = 1
) -> Server:
    """FastAPI with a model of `programs`, that module's `Model`, in processes of uvicorn."""
    variables = {"PEER_MODEL": model, "PEER_THREADS": str(threads)}
    return Server(name, label, _uvicorn(environment, workers), SEEDS_JSON, environment, variables)


def _triton(name: str, label: str, instances: int) -> Server:
    return Server(name, label, _program(TRITON, "serve_triton.py", "{port1}", str(instances)), V2_JSON, TRITON)


def _litserve(name: str, label: str, workers: int) -> Server:
    return Server(name, label, _program(LITSERVE, "serve_litserve.py", str(workers)), SEEDS_JSON, LITSERVE)


def _ray(name: str, label: str, replicas: int) -> Server:
    command = _program(RAY, "serve_ray.py", str(replicas))
    return Server(name, label, command, SEEDS_JSON, RAY, {"RAY_USAGE_STATS_ENABLED": "0"})


_PYG_ALONE = fastapi_server("pyg", "PyG behind FastAPI", PYG, "pyg_model")
_FASTAPI = (
    _PYG_ALONE,
    fastapi_server("pyg_2_processes", "the same, 2 uvicorn processes", PYG, "pyg_model", workers=2),
    fastapi_server("pyg_2_threads", "the same, 2 torch threads", PYG, "pyg_model", threads=2),
    fastapi_server("graphbolt", "DGL GraphBolt behind FastAPI", GRAPHBOLT, "graphbolt_model"),
    fastapi_server("graphbolt_2_threads", "the same, 2 torch threads", GRAPHBOLT, "graphbolt_model", threads=2),
)
_TRITON = (
    _triton("triton", "Triton, dynamic batching", 1),
    _triton("triton_2_instances", "the same, 2 instances", 2),
)
_LITSERVE_AND_RAY = (
    _litserve("litserve", "LitServe, batches", 1),
    _litserve("litserve_2_instances", "the same, 2 workers", 2),
    _ray("ray", "Ray Serve, batches", 1),
    _ray("ray_2_instances", "the same, 2 replicas", 2),
)
_WITH_ONE_WORKER = (
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

Groups = tuple[tuple[Server, ...], ...]
"""Peers by group: those of a group are up at the same time."""
QUICK_GROUPS: Groups = ((_PYG_ALONE,),)
GROUPS: Groups = ((*_FASTAPI, *_TRITON),)
FULL_GROUPS: Groups = ((*_FASTAPI, *_WITH_ONE_WORKER), (*_TRITON, *_LITSERVE_AND_RAY))
"""Two groups, because all servers at once need more than the 24 GB of the machine on Reddit's shape. One instance and
two of the same server are in one group, where they compare."""


def choose_groups(names: Collection[str], groups: Groups = FULL_GROUPS) -> Groups:
    """Groups of the named peers alone."""
    chosen = (tuple(peer for peer in group if peer.name in names) for group in groups)
    return tuple(group for group in chosen if group)


ECHO_SERVER = Server("echo", "an empty echo on uvicorn", (sys.executable, str(_PROGRAMS / "echo.py"), "{port}"), ECHO)


def gnnserve_server(files: ShapeFiles, storage: str) -> Server:
    """`gnnserve run`, generating what is not published yet; the fastest of the exact variants answers."""
    return _gnnserve("gnnserve", "gnnserve, JSON", files, storage, None)


def projected_server(files: ShapeFiles, storage: str) -> Server:
    """Pinned to `projected`, whose first layer is multiplied ahead of time: left to choose, a server whose costs have
    drifted may answer single seeds by x1."""
    variant = projected_name(Storage(storage))
    return _gnnserve("gnnserve", f"gnnserve, JSON, {variant}", files, storage, variant)


def x1_server(files: ShapeFiles, storage: str) -> Server:
    """The same revision pinned to `x1`, which computes the whole first layer in each request, as the peers do."""
    variant = variant_name(1, Storage(storage))
    return _gnnserve("gnnserve_x1", f"gnnserve, JSON, {variant}", files, storage, variant)


def _gnnserve(name: str, label: str, files: ShapeFiles, storage: str, variant: str | None) -> Server:
    folder = prepare_sources(files)
    manifest = folder.parent / f"{storage if variant is None else f'{storage}-{variant}'}.yaml"
    manifest.write_text(yaml.safe_dump(service_manifest(files, folder, storage, variant), sort_keys=False))
    return gnnserve_run(name, label, manifest, folder.parent / "repository")


def gnnserve_run(name: str, label: str, manifest: Path, repository: Path) -> Server:
    """`gnnserve run` of a manifest, asked in JSON."""
    command = (
        sys.executable, "-m", "gnnserve_cli", "run", str(manifest), "--repository", str(repository), "--port", "{port}",
    )  # fmt: skip
    return Server(name, label, command, GNNSERVE_JSON)


def service_manifest(files: ShapeFiles, sources: Path, storage: str, variant: str | None = None) -> dict[str, object]:
    """Unpruned. Its variants differ by rounding alone, so a tolerance of 1 permille leaves speed to choose, unless a
    variant is given, which then answers everything."""
    shape = files.shape
    pinned = {} if variant is None else {"routing": {"mode": "Static", "variant": variant}}
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
            **pinned,
        },
    }


def variables_of(server: Server, files: ProbedGraph, ports: tuple[int, ...]) -> dict[str, str]:
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
