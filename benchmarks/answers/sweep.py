"""A sweep of concurrency over one graph: the plateau, and whether the five parts of the latency are all of it.

Parts are summed in two ways that know nothing of each other. What clients were told and measured themselves, of every
eighth request, is held against the client's mean over all answers. What the server told is held against its own
histogram `gnnserve_request_seconds`, from a request's arrival to its encoded answer. Client and server share the
machine, as in `make run`.
"""

from __future__ import annotations

import argparse
import http.client
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.answers.load_pictures import draw_sweep
from benchmarks.answers.serving import ANSWER_TIMEOUT_S, ROOT, WARM_UP_S, running_server
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import given
from gnnserve_cli.client import fetch_variants
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.requests import build_predictions
from gnnserve_cli.loadgen.statistics import LoadPlan, LoadReport, summarize
from gnnserve_cli.loadgen.sweep import sweep_table
from gnnserve_cli.render import output, put
from gnnserve_client.address import Endpoint

CONNECTIONS = (1, 2, 4, 8, 16, 32, 64)
WANTED_PERCENT = 5.0
PICTURE = ROOT / "docs/images/concurrency.png"
_RESIDENCE = re.compile(r"^gnnserve_request_seconds_(count|sum)\{.*\} (\S+)$", re.MULTILINE)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--manifest", type=Path, default=ROOT / "examples/digits.yaml")
    parser.add_argument("--repository", type=Path, default=ROOT / ".gnnserve")
    parser.add_argument("--picture", type=Path, help="where to draw it; a quick run draws nothing by itself")


def run_all(run: Run) -> dict[str, Any]:
    options, duration_s = run.options, 1.0 if run.quick else 10.0
    with running_server(options.manifest, options.repository) as endpoint:
        nodes = fetch_variants(endpoint).nodes
        points = [measure(endpoint, nodes, connections, duration_s) for connections in CONNECTIONS]
    reports = [report for report, _ in points]
    put(output(), sweep_table(reports))
    picture = options.picture or (None if run.quick else PICTURE)
    if picture is not None:
        draw_sweep(picture, reports)
    found = [of_point for _, of_point in points]
    return {"manifest": options.manifest.name, "secondsPerPoint": duration_s, "points": found}


def measure(endpoint: Endpoint, nodes: int, connections: int, duration_s: float) -> tuple[LoadReport, dict[str, Any]]:
    requests = build_predictions(endpoint, nodes, 1, None, seed=0)
    for seconds in (WARM_UP_S, duration_s):
        plan = LoadPlan(connections, seconds, requests.seeds_each)
        before = read_residence(endpoint)
        record = generate_load(endpoint, requests, plan, None, ANSWER_TIMEOUT_S)
        after = read_residence(endpoint)
    report = summarize(plan, record)
    if report.errors or report.parts is None:
        raise SystemExit(f"{connections} connections: {report.answers} answers and errors {report.errors}")
    latencies_ms = record.latencies_ms
    measured = {
        "mean_ms": math.fsum(latencies_ms) / len(latencies_ms),
        "residence_ms": (after[1] - before[1]) / (after[0] - before[0]) * 1000,
    }
    return report, {**msgspec.to_builtins(report), **measured}


def read_residence(endpoint: Endpoint) -> tuple[float, float]:
    """How many requests the server has answered, and for how many seconds it had them, altogether."""
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode()
    finally:
        connection.close()
    sums = {"count": 0.0, "sum": 0.0}
    for kind, value in _RESIDENCE.findall(lines):
        sums[kind] += float(value)
    return sums["count"], sums["sum"]


def verdicts(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def off_percent(point: dict[str, Any]) -> tuple[float, float]:
        parts, mean_ms = point["parts"], point["mean_ms"]
        told_ms = parts["serverTransferMs"] + parts["waitMs"] + parts["computeMs"]
        return (
            100 * (parts["sumMs"] - mean_ms) / mean_ms,
            100 * (told_ms - point["residence_ms"]) / mean_ms,
        )

    of_client, of_server = zip(*map(off_percent, points), strict=True)
    return {
        "Five parts against the client's own mean, worst concurrency": _verdict(of_client),
        "What the server tells against its own histogram, of the client's mean, worst concurrency": _verdict(of_server),
    }


def _verdict(off_percent: Sequence[float]) -> dict[str, Any]:
    worst = max(off_percent, key=abs)
    return {
        "wanted": f"within {WANTED_PERCENT:g} %",
        "measured": f"{worst:+.1f} %",
        "passed": abs(worst) <= WANTED_PERCENT,
    }


BENCHMARK = Benchmark(
    "sweep",
    (Part("all", run_all, ("gnnserve_cli.commands.run",)),),
    lambda found: given(verdicts(found["points"])),
    about=__doc__,
    options=add_options,
)

if __name__ == "__main__":
    main(BENCHMARK)
