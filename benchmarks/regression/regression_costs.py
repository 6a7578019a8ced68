"""Costs of one commit: of servers over HTTP, of the engine, of decisions and of an operator, each started anew."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.commits import Commit
from benchmarks.memory import read_memory
from benchmarks.peers.protocols import GNNSERVE_JSON
from benchmarks.peers.servers import free_ports, service_manifest
from benchmarks.shapes import CACHE, Shape, ShapeFiles, prepare, prepare_sources
from benchmarks.wrk import Load, generate_load, write_requests

_START_LIMIT_S, _GENERATION_LIMIT_S = 300.0, 1800.0
_POLL_S = 0.005
_BODIES = {1: 8192, 1024: 64}
_SERVICES = 50
"""GNNServices that an operator knows when its memory is read."""

Measure = Callable[[Commit], dict[str, float]]
"""Costs by figure."""
MeasurePair = Callable[[Sequence[Commit]], Mapping[str, Mapping[str, float]]]
"""Measures both commits in this order: costs by the commit's name and by figure."""


def one_by_one(measure: Measure) -> MeasurePair:
    return lambda order: {commit.name: measure(commit) for commit in order}


# --- serving over HTTP


@dataclass(frozen=True, slots=True)
class Subject:
    """Service of both commits: one shape, from one repository that the old commit made."""

    files: ShapeFiles
    manifest: Path
    repository: Path
    scratch: Path

    def command(self, port: int) -> list[str]:
        return [
            sys.executable, "-m", "gnnserve_cli", "run", str(self.manifest), "--repository", str(self.repository),
            "--port", str(port),
        ]  # fmt: skip

    def write_requests(self, commit: Commit, port: int, seeds: int) -> Path:
        path = self.scratch / f"{commit.name}-{seeds}.requests"
        draw = np.random.default_rng(seeds)
        nodes = draw.integers(0, self.files.shape.seeds_end, (_BODIES[seeds], seeds)).tolist()
        write_requests(path, [GNNSERVE_JSON.request(port, of_one) for of_one in nodes])
        return path


def publish(shape: Shape, scratch: Path, base: Commit) -> Subject:
    """Has the old commit generate the revision, unless an earlier run did."""
    files = prepare(shape)
    manifest = scratch / f"{shape.name}.yaml"
    manifest.write_text(yaml.safe_dump(service_manifest(files, prepare_sources(files), "float32"), sort_keys=False))
    repository = CACHE / "regression" / f"repository-{shape.name}-{base.id[:12]}"
    subject = Subject(files, manifest, repository, scratch)
    with started(base, subject, _GENERATION_LIMIT_S):
        pass
    return subject


@dataclass(frozen=True, slots=True)
class Started:
    port: int
    start_s: float
    """From the start of `gnnserve run` to `/readyz`."""


@contextmanager
def started(commit: Commit, subject: Subject, limit_s: float = _START_LIMIT_S) -> Iterator[Started]:
    """The commit's server. SystemExit where it does not become ready."""
    (port,) = free_ports(1)
    command, log = subject.command(port), subject.scratch / f"{commit.name}.log"
    with log.open("w") as output:
        began_s = time.perf_counter()
        with subprocess.Popen(
            command, env=commit.variables, cwd=subject.scratch, stdout=output, stderr=subprocess.STDOUT
        ) as process:
            try:
                if not _becomes_ready(process, port, began_s + limit_s):
                    raise SystemExit(f"gnnserve run of {commit.name} did not become ready: {log.read_text()[-400:]}")
                yield Started(port, time.perf_counter() - began_s)
            finally:
                process.terminate()


def _becomes_ready(process: subprocess.Popen[bytes], port: int, give_up_at_s: float) -> bool:
    while time.perf_counter() < give_up_at_s and process.poll() is None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return True
        time.sleep(_POLL_S)
    return False


@dataclass(frozen=True, slots=True)
class HttpCost:
    figure: str
    seeds: int
    connections: int
    of_load: Callable[[Load], float]


OVER_FIRST = (
    HttpCost("one seed, p50 ms", 1, 1, lambda load: load.p50_ms),
    HttpCost("32 connections, ms per request", 1, 32, lambda load: 1e3 / load.requests_per_s),
)
"""All that is compared with `FIRST_BASELINE`."""
HTTP_COSTS = (*OVER_FIRST, HttpCost("1024 seeds over HTTP, p50 ms", 1024, 1, lambda load: load.p50_ms))
SECOND_START = "second start, s"


def measure_serving(subject: Subject, seconds: int, wanted: Sequence[HttpCost], *, starts: bool) -> MeasurePair:
    """Starts both servers anew, so that what a process happened to get (its place in memory, its huge pages) differs
    from pair to pair as it does between users. The same load then goes to one right after the other. `starts`: whether
    the time of a start is a cost too."""

    def measure(order: Sequence[Commit]) -> dict[str, dict[str, float]]:
        costs: dict[str, dict[str, float]] = {}
        with ExitStack() as stack:
            servers = {}
            for commit in order:
                servers[commit] = stack.enter_context(started(commit, subject))
                costs[commit.name] = {SECOND_START: servers[commit].start_s} if starts else {}
            for cost, commit in itertools.product(wanted, order):
                port = servers[commit].port
                requests = subject.write_requests(commit, port, cost.seeds)
                load = generate_load(port, requests, cost.connections, seconds)
                if load.errors:
                    raise SystemExit(f"{commit.name}: errors {load.errors}: no figure to report")
                costs[commit.name][cost.figure] = cost.of_load(load)
        return costs

    return measure


# --- in process


def measure_engine(subject: Subject, seconds: float) -> Measure:
    """In a process that is started anew, for the same reason as servers are."""
    program = Path(__file__).with_name("regression_engine.py")

    def measure(commit: Commit) -> dict[str, float]:
        ended = subprocess.run(
            [sys.executable, str(program), subject.files.shape.name, str(subject.repository), str(seconds)],
            env=commit.variables, cwd=commit.folder, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
        return dict(json.loads(ended.stdout))

    return measure


def measure_decision(commit: Commit) -> dict[str, float]:
    """Runs the commit's own benchmark, whose result stays in its checkout."""
    folder = commit.folder / "benchmarks/results"
    (folder / "decision.quick.json").unlink(missing_ok=True)
    # An older commit has it elsewhere.
    module = "benchmarks.load.decision" if (commit.folder / "benchmarks/load").exists() else "benchmarks.decision"
    subprocess.run(
        [sys.executable, "-m", module, "--quick"], env=commit.variables, cwd=commit.folder,
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return {f"decision, {case['name']}, p50 µs": case["decision_p50_us"] for case in read_decisions(folder)}


def read_decisions(folder: Path) -> list[dict[str, Any]]:
    """Cases of a quick run of `decision`, which has a file of its own since results have parts."""
    by_parts = folder / "decision.quick.json"
    if by_parts.exists():
        return list(json.loads(by_parts.read_text())["parts"]["all"]["found"]["cases"])
    return list(json.loads((folder / "decision.json").read_text())["cases"])


# --- the operator


def measure_operator(scratch: Path, settles_s: float) -> Measure:
    """Anonymous memory of an operator that knows services which cannot go on for want of a node, in an environment of
    what its commit declares: kopf imports some packages wherever they are installed."""
    # Imported here: the tests' API server in memory.
    from tests.support.kubernetes.fake_api import fake_api
    from tests.support.kubernetes.fake_cluster import FakeCluster
    from tests.support.operator.declared_environment import link_declared
    from tests.support.operator.operator import gnnservice

    def measure(commit: Commit) -> dict[str, float]:
        cluster = FakeCluster()
        for number in range(_SERVICES):
            service = gnnservice()
            service["metadata"]["name"] = f"digits-{number}"
            cluster.create(service)
        settings = scratch / f"settings-{commit.name}.yaml"
        settings.write_text(yaml.safe_dump({"workerImage": "worker:test", "httpPort": 0}))
        declared = scratch / f"operator-{commit.name}"
        if not declared.exists():
            declared.mkdir()
            link_declared("operator", declared, commit.folder)
        with fake_api(cluster) as api:
            variables = {
                **commit.variables,
                "PYTHONPATH": os.pathsep.join((commit.variables["PYTHONPATH"], str(declared))),
                "KUBECONFIG": str(api.write_kubeconfig(scratch)),
                "GNNSERVE_SETTINGS": str(settings),
            }
            # -S: without what else is installed here.
            with subprocess.Popen(
                [sys.executable, "-S", "-m", "gnnserve_operator"], env=variables, stderr=subprocess.DEVNULL
            ) as process:
                try:
                    cluster.wait_until(lambda: _all_told(cluster))
                    time.sleep(settles_s)
                    return {f"operator beside {_SERVICES} services, bytes": read_memory([process.pid]).anonymous_bytes}
                finally:
                    process.terminate()

    return measure


def _all_told(cluster: Any) -> bool:
    services = [found for (kind, _, _), found in cluster.objects.items() if kind == "GNNService"]
    return all((found.get("status") or {}).get("conditions") for found in services)
