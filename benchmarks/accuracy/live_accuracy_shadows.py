"""Cost of shadows for requests: one worker, rounds with and without them in turns, so that both see the same machine.

Run as a program, it is the worker: manifest, repository and the core. It prints its port, and takes a share of time in
permille from each line of standard input, which it repeats once that is in effect.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.manifest import load_manifest
from gnnserve_cli.client import fetch_variants
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.requests import build_predictions
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import LoadPlan
from gnnserve_client.address import parse_url
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.server import StartedService, serve_revision

NAME, NAMESPACE = "live-accuracy", "default"
SHADOW_PERMILLE = 5
"""What docs/manifest.md says cannot be noticed."""
SEEDS = 8
LOAD = 0.25
"""Share of the worker's time that the load takes."""
_HTTP_MS = 0.15
"""Time that a request takes beside its batch, to choose the rate by."""
_CONNECTIONS, _TIMEOUT_S, _BOOTSTRAPS = 16, 20.0, 2000


@dataclass(frozen=True, slots=True)
class Rounds:
    count: int
    """Rounds of each kind."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Shadows:
    p99_without_ms: float
    p99_with_ms: float
    ratio: float
    low: float
    """Ends of its interval, in which it is in 95 of 100 bootstrap samples of the rounds."""
    high: float
    requests: int
    rate_per_s: float
    rounds: int
    permille: int


def generate(graph: Path, folder: Path) -> tuple[Path, Path]:
    """A manifest, and the repository with its revision."""
    manifest, repository = folder / "live.yaml", folder / "repository"
    spec: dict[str, Any] = {
        "graph": {"source": {"npz": {"uri": graph.as_uri()}}, "normalization": "Disabled"},
        "model": {"training": {"epochs": 4, "batchSize": 512, "dropout": 0.2}},
        "variants": {"pruning": {"method": "Random", "factors": [1, 2, 4]}, "projection": "Disabled"},
        # The base variant is not the reference, so that a shadow is of another variant, as it would be under load.
        "routing": {"mode": "Static", "variant": "x4"},
    }
    metadata = {"name": NAME, "namespace": NAMESPACE}
    manifest.write_text(  # JSON is YAML
        json.dumps({"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": metadata, "spec": spec})
    )
    command = [sys.executable, "-m", "gnnserve_cli", "generate", str(manifest), "--repository", str(repository)]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
        raise SystemExit("gnnserve generate failed; its last words are above")
    return manifest, repository


def open_published(manifest: Path, repository: Path) -> LoadedRevision:
    stored, recipe = Repository(repository, NAMESPACE, NAME), load_manifest(manifest).spec.recipe()
    published = stored.find(recipe)
    if published is None:
        raise SystemExit(f"{repository} holds no revision with recipe {recipe}")
    return load_revision(stored, published.revision)


def measure_shadows(manifest: Path, repository: Path, rounds: Rounds) -> Shadows:
    """Rounds without and with shadows in turns, each kind first in every second pair."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("one core for the worker and one for the load are needed, and there is one")
    os.sched_setaffinity(0, {cores[0]})
    try:
        with _worker(manifest, repository, cores[-1]) as worker:
            return _measure(worker, rounds)
    finally:
        os.sched_setaffinity(0, set(cores))


def _measure(worker: _Worker, rounds: Rounds) -> Shadows:
    endpoint = parse_url(f"http://127.0.0.1:{worker.port}")
    served = fetch_variants(endpoint)
    batch_ms = next(point.p50_ms for point in served.profile.variant("x4").latency if point.seeds >= SEEDS)
    rate_per_s = LOAD * 1000 / (batch_ms + _HTTP_MS)
    requests = build_predictions(endpoint, served.nodes, SEEDS, None, seed=1)
    found: dict[int, list[np.ndarray]] = {0: [], SHADOW_PERMILLE: []}
    for number in range(-1, rounds.count):  # the first pair warms up
        order = (0, SHADOW_PERMILLE) if number % 2 else (SHADOW_PERMILLE, 0)
        for permille in order:
            worker.use(permille)
            plan = LoadPlan(_CONNECTIONS, rounds.seconds, SEEDS, rate_per_s=rate_per_s)
            schedule = build_schedule(Arrivals.POISSON, rate_per_s, rounds.seconds, seed=number + 1)
            record = generate_load(endpoint, requests, plan, schedule, _TIMEOUT_S)
            if record.errors or set(record.statuses) != {200}:
                raise SystemExit(f"requests failed: {dict(record.errors)}, {dict(record.statuses)}")
            if number >= 0:
                found[permille].append(np.array(record.latencies_ms))
    return compare(found[0], found[SHADOW_PERMILLE], rate_per_s)


def compare(without: Sequence[np.ndarray], with_shadows: Sequence[np.ndarray], rate_per_s: float) -> Shadows:
    """The 99th percentiles over all rounds, and how far their ratio may be off: pairs of rounds are drawn anew."""
    draw, pairs = np.random.default_rng(0), len(without)

    def ratio_of(rounds: np.ndarray) -> float:
        parts = (np.concatenate([kind[i] for i in rounds]) for kind in (without, with_shadows))
        before_ms, after_ms = (float(np.percentile(part, 99)) for part in parts)
        return after_ms / before_ms

    ratios = [ratio_of(draw.integers(pairs, size=pairs)) for _ in range(_BOOTSTRAPS)]
    every = np.arange(pairs)
    return Shadows(
        p99_without_ms=float(np.percentile(np.concatenate(list(without)), 99)),
        p99_with_ms=float(np.percentile(np.concatenate(list(with_shadows)), 99)),
        ratio=ratio_of(every),
        low=float(np.percentile(ratios, 2.5)),
        high=float(np.percentile(ratios, 97.5)),
        requests=sum(map(len, (*without, *with_shadows))),
        rate_per_s=rate_per_s,
        rounds=pairs,
        permille=SHADOW_PERMILLE,
    )


@dataclass(frozen=True, slots=True)
class _Worker:
    process: subprocess.Popen[str]
    port: int

    def use(self, permille: int) -> None:
        assert self.process.stdin is not None  # noqa: S101
        assert self.process.stdout is not None  # noqa: S101
        self.process.stdin.write(f"{permille}\n")
        self.process.stdin.flush()
        if self.process.stdout.readline() != f"{permille}\n":
            raise SystemExit("the worker has ended; its last words are above")


@contextmanager
def _worker(manifest: Path, repository: Path, core: int) -> Iterator[_Worker]:
    program = [
        sys.executable,
        "-m",
        "benchmarks.accuracy.live_accuracy_shadows",
        str(manifest),
        str(repository),
        str(core),
    ]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # noqa: S101
            yield _Worker(process, int(process.stdout.readline()))
        finally:
            process.terminate()


def _serve(manifest: Path, repository: Path, core: int) -> None:
    os.sched_setaffinity(0, {core})
    service, sock = load_manifest(manifest), bind("127.0.0.1", 0)
    revision = served_revision(open_published(manifest, repository))
    table = service.spec.routing_table(revision.manifest.revision)

    def follow(serving: StartedService) -> None:
        for line in sys.stdin:
            serving.route(msgspec.structs.replace(table, shadow_permille=int(line)))
            print(int(line), flush=True)

    def ready(serving: StartedService) -> None:
        print(sock.getsockname()[1], flush=True)
        threading.Thread(target=follow, args=(serving,), daemon=True).start()

    serve_revision(revision, service, sock, ready)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
