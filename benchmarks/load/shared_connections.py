"""A service with few connections beside another one with many, in one server: what does it keep of its requests?

Two services over the digits, with equal shares, answer from one server on a core of its own; `wrk` has the other core.
One service has 4 connections, alone and beside 256 connections to the other one, in turns. Each connection sends one
node as soon as it is answered, so that nearly all of the server's time goes to sockets and requests, and little to
batches.
"""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.wrk import Load, encode_post, finish_load, start_load, write_requests

FEW, MANY = 4, 256
WANTED_KEPT, WANTED_P99 = 0.40, 3.0
NAMES = ("shared-many", "shared-few")
_AHEAD_S, _NODES = 1, 1024

Figures = dict[str, float]


def write_manifests(folder: Path) -> dict[str, Path]:
    """The manifest of each service by its name; they differ by that alone."""
    manifests = {}
    for name in NAMES:
        manifest = {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": name},
            "spec": {
                "graph": {"source": {"builtin": "Digits"}},
                "model": {
                    "architecture": "GraphSAGE",
                    "hidden": 64,
                    "fanouts": [25, 10],
                    "training": {"epochs": 3, "batchSize": 256},
                },
                "variants": {"pruning": {"factors": [1, 4]}},
            },
        }
        manifests[name] = folder / f"{name}.yaml"
        manifests[name].write_text(yaml.safe_dump(manifest))
    return manifests


def measure(ports: Sequence[int], folder: Path, before: Sequence[str], seconds: int, rounds: int) -> dict[str, Any]:
    """Figures of each round. `ports`: of the service with many connections, and of the one with few. `before`: words of
    the generators' command lines before their own."""
    many_port, few_port = ports
    many, few = _requests(many_port, folder), _requests(few_port, folder)
    for port, requests in ((many_port, many), (few_port, few)):
        finish_load(start_load(port, requests, FEW, 2, before), 2)  # what is made for the first request is there
    alone: list[Figures] = []
    beside: list[Figures] = []
    others: list[Figures] = []
    for _ in range(rounds):
        began_s = _generators_s()
        alone.append(_figures(finish_load(start_load(few_port, few, FEW, seconds, before), seconds)))
        alone[-1]["generators_busy"] = round((_generators_s() - began_s) / seconds, 3)
        began_s, longer = _generators_s(), seconds + 2 * _AHEAD_S
        other = start_load(many_port, many, MANY, longer, before)
        time.sleep(_AHEAD_S)
        beside.append(_figures(finish_load(start_load(few_port, few, FEW, seconds, before), seconds)))
        others.append(_figures(finish_load(other, longer)))
        beside[-1]["generators_busy"] = round((_generators_s() - began_s) / longer, 3)
    kept = [
        with_other["requests_per_s"] / by_itself["requests_per_s"]
        for with_other, by_itself in zip(beside, alone, strict=True)
    ]
    slower = [with_other["p99_ms"] / by_itself["p99_ms"] for with_other, by_itself in zip(beside, alone, strict=True)]
    return {
        "connections": {"few": FEW, "many": MANY},
        "alone": alone,
        "beside": beside,
        "other": others,
        "kept": round(statistics.median(kept), 3),
        "p99_ratio": round(statistics.median(slower), 2),
    }


def _requests(port: int, folder: Path) -> Path:
    path = folder / f"requests-{port}"
    bodies = (json.dumps({"nodes": [node]}).encode() for node in range(_NODES))
    write_requests(path, (encode_post(port, "/v1/predict", "application/json", body) for body in bodies))
    return path


def _generators_s() -> float:
    """Processor time of all generators that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _figures(load: Load) -> Figures:
    if load.errors:
        raise SystemExit(f"requests failed: {load.errors}")
    return {"requests_per_s": load.requests_per_s, "p50_ms": load.p50_ms, "p99_ms": load.p99_ms}


def judge(measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    alone, beside = measured["alone"], measured["beside"]
    return {
        f"requests that a service with {FEW} connections keeps beside {MANY} connections to another one": {
            "wanted": f"at least {WANTED_KEPT:.0%}",
            "measured": f"{measured['kept']:.0%} ({_median(beside, 'requests_per_s'):,.0f} of "
            f"{_median(alone, 'requests_per_s'):,.0f} a second)",
            "passed": measured["kept"] >= WANTED_KEPT,
        },
        "its p99 there, over alone": {
            "wanted": f"at most {WANTED_P99:g}",
            "measured": f"{measured['p99_ratio']:.2f} ({_median(beside, 'p99_ms'):.2f} and "
            f"{_median(alone, 'p99_ms'):.2f} ms)",
            "passed": measured["p99_ratio"] <= WANTED_P99,
        },
    }


def _median(rounds: Sequence[Figures], figure: str) -> float:
    return statistics.median(one[figure] for one in rounds)


def show(measured: dict[str, Any]) -> None:
    rounds = len(measured["alone"])
    table = Table(title=f"one node a request; medians of {rounds} rounds")
    for column in ("service", "connections", "requests/s", "p50 ms", "p99 ms", "generators' core busy %"):
        table.add_column(column, justify="left" if column == "service" else "right")
    for name, connections in (("alone", FEW), ("beside", FEW), ("other", MANY)):
        of = measured[name]
        busy = f"{_median(of, 'generators_busy'):.0%}" if "generators_busy" in of[0] else ""
        table.add_row(
            name, str(connections), f"{_median(of, 'requests_per_s'):,.0f}", f"{_median(of, 'p50_ms'):.2f}",
            f"{_median(of, 'p99_ms'):.2f}", busy,
        )  # fmt: skip
    Console().print(table)
