"""How soon a worker answers, and what memory it keeps: the program of a pod, over a graph of 1 GB in a warm page cache.

Once with kernels that were compiled ahead, as the image ships them, and once without any. The revision is made up:
what its weights are worth costs no time. Anonymous memory (RssAnon) is what a pod needs beside the page cache; mapped
files (RssFile) can be taken away under pressure and are shared between processes. It is read when the worker is ready,
after requests one by one, and after a burst of requests of mixed sizes over many connections at once.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tests.support.kubernetes.configmap_server import NAMESPACE, configmap_server
from tests.support.pods.pods import WorkerPod, worker_pod

from benchmarks.memory import MemoryWatch, read_memory
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, at_most, below
from benchmarks.wrk import encode_post
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_api.variants import Storage, projected_name, variant_name
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.requests import Requests
from gnnserve_cli.loadgen.statistics import LoadPlan
from gnnserve_client.address import Endpoint
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.repository.repository import Repository

READY_TIMEOUT_S = 300.0
POLL_S = 0.005
RECIPE = "startup"
FACTORS = (1, 2, 4, 8)
HIDDEN, CLASSES = 128, 40
FANOUTS = (25, 10)
SERVICE = "digits"
"""Name of the tests' worker."""
LARGE_EVERY, LARGE_SEEDS = 100, 1024
BURST_CONNECTIONS = 32
BURST_SEEDS = (1, 32, 1024)
"""Seeds of the requests, one after another."""
BURST_BODIES = 300
ANSWER_TIMEOUT_S = 30.0
WATCH_S = 0.05
WANTED_S, WANTED_MB = 3.0, 300.0
MOMENTS = ("whenReady", "afterRequests", "duringBurst", "afterBurst")
_LOADED = re.compile(r"verified and opened in ([\d.]+) s, warmed up in ([\d.]+) s")
"""What `following/loader.py` says."""


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    degree: int
    features: int
    requests: int
    burst_s: float
    rounds: int


FULL = Size(nodes=500_000, degree=120, features=256, requests=1000, burst_s=3.0, rounds=5)
QUICK = Size(nodes=20_000, degree=20, features=64, requests=100, burst_s=1.0, rounds=1)


def run_starts(run: Run) -> dict[str, Any]:
    size = QUICK if run.quick else FULL
    with tempfile.TemporaryDirectory(prefix="gnnserve-startup-") as name:
        folder = Path(name)
        revision = publish(folder / "repository", size)
        stored_bytes = sum(path.stat().st_size for path in (folder / "repository").rglob("*") if path.is_file())
        print(f"published {stored_bytes / 2**30:.2f} GiB, now in the page cache", flush=True)
        kernels = folder / "kernels"
        # As the image does when it is built, but for the place.
        subprocess.run([sys.executable, "-m", "gnnserve_worker.compile_kernels"], env=_environment(kernels), check=True)
        starts: list[dict[str, Any]] = []
        for number in range(size.rounds):
            starts.append(measure(folder, revision, kernels, size) | {"kernels": "shipped"})
            starts.append(measure(folder, revision, folder / f"empty-{number}", size) | {"kernels": "none"})
    return {
        "graph": {"nodes": size.nodes, "edges": size.nodes * size.degree, "features": size.features},
        "repositoryBytes": stored_bytes,
        "rounds": size.rounds,
        "requests": size.requests,
        "burst": {"connections": BURST_CONNECTIONS, "seeds": list(BURST_SEEDS), "seconds": size.burst_s},
        "cases": [summarize(starts, kernels) for kernels in ("shipped", "none")],
    }


def publish(root: Path, size: Size) -> str:
    """A revision with every pruning factor over one table, and a projected variant. Returns its name."""
    network = NetworkManifest(architecture="GraphSAGE", hidden=HIDDEN, fanouts=FANOUTS, classes=CLASSES)
    graph = made_up_graph(size.nodes, size.degree, size.features, CLASSES)
    variants = [
        *(MadeUpVariant(variant_name(factor), factor, "features", Storage.FLOAT32, "float32") for factor in FACTORS),
        MadeUpVariant(projected_name(Storage.BFLOAT16), 1, "projected", Storage.BFLOAT16, "bfloat16"),
    ]
    return publish_made_up(Repository(root, NAMESPACE, SERVICE), graph, network, variants).revision


def measure(folder: Path, revision: str, kernels: Path, size: Size) -> dict[str, Any]:
    with configmap_server() as api:
        api.put(RoutingTable(revision, RECIPE))
        started, started_s = time.time(), time.monotonic()
        with worker_pod(folder, api, environ=_environment(kernels), imports_anew=True) as pod:
            _wait_until_ready(pod)
            ready_s = time.monotonic() - started_s
            pid = pod.process.pid
            when_ready = _memory(pid)
            _ask(pod, size)
            after_requests = _memory(pid)
            with MemoryWatch(lambda: read_memory([pid]), WATCH_S) as watch:
                _ask_at_once(pod, size)
            answering = next(line for line in pod.log if line["message"].startswith("answering on port"))
            loaded = next(found for line in pod.log if (found := _LOADED.search(line["message"])))
            return {
                "readyS": ready_s,
                "importsS": datetime.fromisoformat(answering["time"]).timestamp() - started,
                "openS": float(loaded[1]),
                "warmUpS": float(loaded[2]),
                "whenReady": when_ready,
                "afterRequests": after_requests,
                "duringBurst": {"anonymousBytes": watch.most_anonymous_bytes},
                "afterBurst": _memory(pid),
            }


def _environment(kernels: Path) -> dict[str, str]:
    return {**os.environ, "NUMBA_CACHE_DIR": str(kernels)}


def _wait_until_ready(pod: WorkerPod) -> None:
    give_up_at_s = time.monotonic() + READY_TIMEOUT_S
    while pod.get("/readyz")[0] != 200:
        if time.monotonic() > give_up_at_s or pod.process.poll() is not None:
            raise SystemExit(f"the worker did not become ready within {READY_TIMEOUT_S:g} s: {pod.log}")
        time.sleep(POLL_S)


def _ask(pod: WorkerPod, size: Size) -> None:
    draw = np.random.default_rng(1)
    connection = pod.connect()
    for number in range(size.requests):
        seeds = LARGE_SEEDS if number % LARGE_EVERY == 0 else 1
        body = json.dumps({"nodes": draw.integers(0, size.nodes, seeds).tolist()})
        connection.request("POST", "/v1/predict", body)
        _require_ok(connection.getresponse())


def _ask_at_once(pod: WorkerPod, size: Size) -> None:
    draw = np.random.default_rng(2)
    payloads = [
        encode_post(pod.port, "/v1/predict", "application/json", json.dumps({"nodes": nodes.tolist()}).encode())
        for nodes in (
            draw.integers(0, size.nodes, BURST_SEEDS[number % len(BURST_SEEDS)]) for number in range(BURST_BODIES)
        )
    ]
    mean = round(sum(BURST_SEEDS) / len(BURST_SEEDS))
    plan = LoadPlan(BURST_CONNECTIONS, size.burst_s, mean)
    record = generate_load(Endpoint("127.0.0.1", pod.port), Requests(payloads, mean), plan, None, ANSWER_TIMEOUT_S)
    if record.errors or not record.latencies_ms:
        raise SystemExit(f"the burst: {len(record.latencies_ms)} answers and errors {dict(record.errors)}: no figure")


def _require_ok(response: http.client.HTTPResponse) -> None:
    answer = response.read()
    if response.status != 200:
        raise SystemExit(f"the worker answered {response.status}: {answer.decode()}")


def _memory(pid: int) -> dict[str, int]:
    memory = read_memory([pid])
    return {"anonymousBytes": memory.anonymous_bytes, "fileBytes": memory.file_bytes}


def summarize(starts: Sequence[Mapping[str, Any]], kernels: str) -> dict[str, Any]:
    """Medians of the times; the most of the memory."""
    chosen = [start for start in starts if start["kernels"] == kernels]
    return {
        "kernels": kernels,
        **{
            name: round(float(np.median([start[name] for start in chosen])), 3)
            for name in ("readyS", "importsS", "openS", "warmUpS")
        },
        **{
            when: {name: max(start[when][name] for start in chosen) for name in chosen[0][when]}
            for when in ("whenReady", "afterRequests", "duringBurst", "afterBurst")
        },
    }


def show(found: Any) -> None:
    table = Table("Kernels", title="From the start of a worker's process to /readyz, and its memory, MiB anonymous")
    for header in ("Ready s", "Imports s", "Verify and open s", "Warm up s"):
        table.add_column(header, justify="right")
    for header in ("when ready", "after requests", "in a burst", "after it", "Files MiB"):
        table.add_column(header, justify="right")
    for case in found["cases"]:
        table.add_row(
            case["kernels"],
            *(f"{case[name]:.2f}" for name in ("readyS", "importsS", "openS", "warmUpS")),
            *(
                f"{case[when]['anonymousBytes'] / 2**20:,.0f}"
                for when in ("whenReady", "afterRequests", "duringBurst", "afterBurst")
            ),
            f"{case['afterBurst']['fileBytes'] / 2**20:,.0f}",
        )
    Console(width=120).print(table)


_WORKER = ("gnnserve_worker.pods.serve", "gnnserve_worker.compile_kernels", "tests.support.pods.worker_pod")


def _shipped(found: Any) -> Mapping[str, Any]:
    """With kernels that were compiled ahead, as images have them."""
    return {case["kernels"]: case for case in found["cases"]}["shipped"]


VERDICTS = (
    Verdict("a graph of 1 GB in the page cache: ready, after imports", at_most(WANTED_S, "s"),
            lambda found: round(_shipped(found)["readyS"] - _shipped(found)["importsS"], 3)),
    Verdict("memory beside the mapped files, in a burst too", below(WANTED_MB, "MB"),
            lambda found: round(max(_shipped(found)[when]["anonymousBytes"] for when in MOMENTS) / 1e6, 1)),
)  # fmt: skip
BENCHMARK = Benchmark("startup", (Part("all", run_starts, _WORKER),), VERDICTS, about=__doc__, show=show)

if __name__ == "__main__":
    main(BENCHMARK)
