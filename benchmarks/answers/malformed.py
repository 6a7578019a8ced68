"""Traces that malformed requests and hostile overlays leave behind: none; and that what is right is answered right.

Part `requests`: a worker's program as a pod runs it gets requests that are wrong in every way that
tests/support/serving/malformed.py knows, and one valid request in ten, whose answer must be right; for every ten of
them also a call over gRPC, with messages that are wrong in ways of their own.

Part `overlays`: requests that bring nodes and edges, hostile in every way of
tests/support/overlays/hostile_overlays.py, in JSON and as arrays over HTTP, and as tensors over HTTP and gRPC, to
graphs of two kinds of edge rules. Every answer that is not a refusal is compared with an oracle that shares no code
with the worker; every refusal has to begin with the place of the mistake; and others meanwhile ask for what is right.

Memory (RssAnon), descriptors and threads are looked at in even steps after a warm-up whose length is fixed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.support.generation.repository import NODES
from tests.support.kubernetes.configmap_server import configmap_server
from tests.support.overlays.overlay_clients import NotedOverlays, send_overlays
from tests.support.overlays.overlay_oracle import RULES, publish
from tests.support.pods.pods import WorkerPod, answers_of, publish_answering, table_of, worker_pod
from tests.support.serving.malformed import KINDS, Noted, send_all
from tests.support.serving.malformed_messages import NotedCalls, send_messages

from benchmarks.answers.looks import Look, count_errors, growth_of_floor, wait_until_idle
from benchmarks.memory import MemoryWatch, read_memory
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, at_most, exactly
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.pods.interface import GRPC_VARIABLE

REQUESTS, QUICK_REQUESTS = 100_000, 10_000
OVERLAYS, QUICK_OVERLAYS = 100_000, 5_000
WARM_UP_REQUESTS, WARM_UP_OVERLAYS = 10_000, 5_000
"""Requests before the first look, in a quick run too; overlays of each graph. The process had 108 MiB after 1,000
requests, 129 after 3,000 and 130 after 60,000, with single looks 10 MiB higher: the first body that grows to 16 MiB as
it is read raises the size from which on the C library maps blocks by themselves, and the first large overlays come."""
STEPS = 10
"""Looks after the warm-up, at even distances."""
CONNECTIONS = 16
CALLS_SHARE = 10
"""One call over gRPC for so many requests over HTTP."""
ALLOWED_GROWTH_MIB = 8.0
"""Most growth of the floor of memory from the first half of the looks to the second that is no leak: 160 bytes a
request of a whole run would show."""
ALLOWED_PEAK_MIB = 32.0
"""Most memory at any moment above the look after the warm-up: 16 requests at once, each of one or two MiB."""
WATCH_S = 0.05
LABEL = 3


def are_right(nodes: list[int], labels: list[int]) -> bool:
    return labels == answers_of(LABEL, nodes)


def is_right(nodes: list[int], body: bytes) -> bool:
    return bool(json.loads(body).get("labels") == answers_of(LABEL, nodes))


@contextmanager
def serving(publish_in: Callable[[Path], RevisionManifest]) -> Iterator[tuple[WorkerPod, int]]:
    """A worker of what is published in that folder, and its port for gRPC."""
    with TemporaryDirectory(prefix="gnnserve-malformed-") as name, configmap_server() as api:
        api.put(table_of(publish_in(Path(name) / "repository")))
        with worker_pod(Path(name), api, environ={**os.environ, GRPC_VARIABLE: "0"}) as pod:
            pod.wait_until("/readyz", "ok")
            yield pod, int(pod.logged("for gRPC on port")["message"].rpartition(" ")[2])


def looked_at(pod: WorkerPod, numbers: range, warm_up: range, send: Callable[[range], None]) -> dict[str, Any]:
    """Send the warm-up, then the rest in steps with a look after each. Returns what was seen of the process."""
    idle = wait_until_idle(pod).descriptors
    send(warm_up)
    looks = [wait_until_idle(pod, idle)]
    size = -(-len(numbers) // STEPS)
    with MemoryWatch(lambda: read_memory([pod.process.pid]), WATCH_S) as watch:
        for first in range(0, len(numbers), size):
            send(numbers[first : first + size])
            looks.append(wait_until_idle(pod, looks[0].descriptors))
    return {**told_of(looks, watch.most_anonymous_bytes / 2**20), "tracebacks": count_errors(pod.log)}


def told_of(looks: list[Look], most_mib: float) -> dict[str, Any]:
    """`looks`: after the warm-up, and after each step."""
    before, after = looks[0], looks[-1]
    anonymous_mib = [one.anonymous_mib for one in looks[1:]]
    return {
        "before": asdict(before),
        "after": asdict(after),
        "anonymousMiB": anonymous_mib,
        "memoryGrowthMiB": growth_of_floor(before.anonymous_mib, anonymous_mib),
        "mostMiB": round(most_mib, 1),
        "descriptorsLeft": max(0, after.descriptors - before.descriptors),
    }


def growth_mib(seen: Any) -> float:
    return growth_of_floor(seen["before"]["anonymous_mib"], seen["anonymousMiB"])


def peak_mib(seen: Any) -> float:
    return round(seen["mostMiB"] - seen["before"]["anonymous_mib"], 1)


# Malformed requests


def run_requests(run: Run) -> dict[str, Any]:
    count = QUICK_REQUESTS if run.quick else REQUESTS
    noted, calls = Noted(), NotedCalls()
    with serving(lambda root: publish_answering(root, "recipe", LABEL)) as (pod, grpc_port):

        def send(numbers: range) -> None:
            noted.add(send_all(pod.port, numbers, NODES, is_right, CONNECTIONS))
            called = range(numbers.start // CALLS_SHARE, numbers.stop // CALLS_SHARE)
            calls.add(asyncio.run(send_messages(grpc_port, called, NODES, are_right, CONNECTIONS)))

        seen = looked_at(pod, range(count), range(count, count + WARM_UP_REQUESTS), send)
    if calls.wrong:
        print(f"wrong over gRPC: {calls.wrong[:10]} (numbers of tests.support.serving.malformed_messages.make)")
    if noted.unanswered or noted.wrong:
        print(
            f"unanswered: {noted.unanswered[:10]}, wrong: {noted.wrong[:10]} (of tests.support.serving.malformed.make)"
        )
    return {
        "requests": {kind: noted.requests[kind] for kind in KINDS},
        "statuses": dict(sorted(noted.statuses.items())),
        "calls": dict(sorted(calls.statuses.items())),
        "unanswered": len(noted.unanswered),
        "wrong": len(noted.wrong) + len(calls.wrong),
        "warmUpRequests": WARM_UP_REQUESTS,
        **seen,
    }


# Hostile overlays


def run_overlays(run: Run) -> dict[str, Any]:
    count = (QUICK_OVERLAYS if run.quick else OVERLAYS) // len(RULES)
    noted, seen = NotedOverlays(), []
    for number, rules in enumerate(RULES):
        # Other numbers for each graph: requests of their own.
        start = number * (OVERLAYS + WARM_UP_OVERLAYS)
        seen.append(_overlays_over(rules, range(start, start + count), noted))
    for wrong, why in noted.wrong[:10]:
        print(f"wrong: {wrong} of tests.support.overlays.hostile_overlays.make: {why}")
    for why in noted.wrong_bystanders[:10]:
        print(f"wrong, to another: {why}")
    forms, kinds = Counter[str](), Counter[str]()
    for name, sent in noted.kinds.items():
        form, _, kind = name.partition(": ")
        forms[form] += sent
        kinds[kind] += sent
    return {
        "overlays": {
            "forms": dict(sorted(forms.items())),
            "kinds": dict(sorted(kinds.items())),
            "statuses": {str(status): sent for status, sent in sorted(noted.statuses.items())},
            "accepted": noted.statuses[200],
            "wrong": len(noted.wrong),
            "postponed": noted.postponed,
            "ofOthers": noted.bystanders,
            "wrongOfOthers": len(noted.wrong_bystanders),
            "warmUpRequests": WARM_UP_OVERLAYS,
            "graphs": [{"rules": rules.in_words, **one} for rules, one in zip(RULES, seen, strict=True)],
        }
    }


def _overlays_over(rules: EdgeRules, numbers: range, noted: NotedOverlays) -> dict[str, Any]:
    with TemporaryDirectory(prefix="gnnserve-oracle-") as name:
        _, oracle = publish(Path(name), rules)
    with serving(lambda root: publish(root, rules)[0]) as (pod, grpc_port):
        warm_up = range(numbers.stop, numbers.stop + WARM_UP_OVERLAYS)

        def send(some: range) -> None:
            noted.add(send_overlays(pod.port, grpc_port, some, oracle, CONNECTIONS))

        return looked_at(pod, numbers, warm_up, send)


# What is said


def show(found: Any) -> None:
    table = Table("What")
    table.add_column("Count", justify="right")
    for kind, count in found.get("requests", {}).items():
        table.add_row(f"{kind} requests", f"{count:,}")
    for status, count in found.get("statuses", {}).items():
        table.add_row("ended without an answer" if status == "none" else f"answers {status}", f"{count:,}")
    for status, count in found.get("calls", {}).items():
        table.add_row(f"gRPC: {status}", f"{count:,}")
    overlays = found.get("overlays", {"forms": {}, "kinds": {}, "statuses": {}})
    for words in ("forms", "kinds", "statuses"):
        for name, count in overlays[words].items():
            table.add_row(f"overlays: {name}", f"{count:,}")
    Console(width=100).print(table)


def _most_of_graphs(of_graph: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda found: max(map(of_graph, found["overlays"]["graphs"]))


VERDICTS = (
    Verdict("malformed requests: without the answer that is due", exactly(0), lambda found: found["unanswered"]),
    Verdict("malformed requests: wrong answers", exactly(0), lambda found: found["wrong"]),
    Verdict("malformed requests: errors and tracebacks in the log", exactly(0), lambda found: found["tracebacks"]),
    Verdict("malformed requests: descriptors left open", exactly(0), lambda found: found.get("descriptorsLeft")),
    Verdict(
        "malformed requests: growth of memory after the warm-up", at_most(ALLOWED_GROWTH_MIB, "MiB"),
        growth_mib,
    ),
    Verdict("hostile overlays: wrong answers", exactly(0), lambda found: found["overlays"]["wrong"]),
    Verdict(
        "hostile overlays: wrong answers to others meanwhile", exactly(0),
        lambda found: found["overlays"]["wrongOfOthers"],
    ),
    Verdict(
        "hostile overlays: errors and tracebacks in the log", exactly(0), _most_of_graphs(itemgetter("tracebacks"))
    ),
    Verdict("hostile overlays: descriptors left open", exactly(0), _most_of_graphs(itemgetter("descriptorsLeft"))),
    Verdict(
        "hostile overlays: growth of memory after the warm-up", at_most(ALLOWED_GROWTH_MIB, "MiB"),
        _most_of_graphs(growth_mib),
    ),
    Verdict("hostile overlays: most memory at once", at_most(ALLOWED_PEAK_MIB, "MiB"), _most_of_graphs(peak_mib)),
)  # fmt: skip
_WORKER = ("gnnserve_worker.pods.serve", "tests.support.pods.worker_pod")
BENCHMARK = Benchmark(
    "malformed",
    (Part("requests", run_requests, _WORKER), Part("overlays", run_overlays, _WORKER)),
    VERDICTS,
    about=__doc__,
    show=show,
    must_pass=True,
)

if __name__ == "__main__":
    main(BENCHMARK)
