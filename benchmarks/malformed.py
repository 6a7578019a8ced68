"""What 100,000 malformed requests leave behind: nothing.

A worker's program as a pod runs it gets requests that are wrong in every way that tests/support/malformed.py knows, a
quarter of them hostile overlays, and one valid request in ten, whose answer must be right; for every ten of them also a
call over gRPC, with messages that are wrong in ways of their own. After a warm-up of the same
kind its own memory (RssAnon), descriptors and threads are noted, and again at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table
from tests.support.configmap_server import configmap_server
from tests.support.malformed import KINDS, Noted, send_all
from tests.support.malformed_messages import NotedCalls, send_messages
from tests.support.pods import POLL_S, WorkerPod, answers_of, publish_answering, table_of, worker_pod
from tests.support.repository import NODES

from benchmarks.results import write_result
from gnnserve_api.pods import GRPC_VARIABLE

REQUESTS, QUICK_REQUESTS = 100_000, 10_000
WARM_UP_SHARE = 0.1
CONNECTIONS = 16
CALLS_SHARE = 10
"""One call over gRPC for so many requests over HTTP."""
MEMORY_GROWTH_MIB = 8.0
"""Most growth of memory that is no leak: 80 bytes a request would show."""
LABEL = 3


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the worker's process while it gets no requests."""

    anonymous_mib: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Outcome:
    requests: dict[str, int]
    statuses: dict[str, int]
    calls: dict[str, int]
    """Calls over gRPC, by the status that they ended with."""
    unanswered: int
    wrong: int
    tracebacks: int
    before: Look
    after: Look
    seconds: float

    @property
    def memory_growth_mib(self) -> float:
        return round(self.after.anonymous_mib - self.before.anonymous_mib, 1)

    @property
    def passed(self) -> bool:
        # Threads come and go by themselves: some paths have their own, which end after a while without requests.
        left = self.after.descriptors > self.before.descriptors
        return not (
            self.unanswered or self.wrong or self.tracebacks or left or self.memory_growth_mib > MEMORY_GROWTH_MIB
        )


def are_right(nodes: list[int], labels: list[int]) -> bool:
    return labels == answers_of(LABEL, nodes)


def is_right(nodes: list[int], body: bytes) -> bool:
    return json.loads(body).get("labels") == answers_of(LABEL, nodes)


def look(pod: WorkerPod) -> Look:
    folder = Path(f"/proc/{pod.process.pid}")
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return Look(
        anonymous_mib=round(int(fields["RssAnon"].split()[0]) / 1024, 1),
        descriptors=sum(1 for _ in (folder / "fd").iterdir()),
        threads=int(fields["Threads"]),
    )


def wait_until_idle(pod: WorkerPod, descriptors: int | None = None) -> Look:
    """Connections that clients left are gone once the worker has read their end; `descriptors`: as many as before."""
    deadline = time.monotonic() + 30
    while True:
        in_flight = next(
            line for line in pod.get("/metrics")[1].splitlines() if line.startswith("gnnserve_in_flight_requests{")
        )
        seen = look(pod)
        is_idle = in_flight.endswith(" 0.0") and (descriptors is None or seen.descriptors <= descriptors)
        if is_idle or time.monotonic() > deadline:
            return seen
        time.sleep(POLL_S)


def run(requests: int, folder: Path) -> Outcome:
    manifest = publish_answering(folder / "repository", "recipe", LABEL)
    with configmap_server() as api:
        api.put(table_of(manifest))
        with worker_pod(folder, api, environ={**os.environ, GRPC_VARIABLE: "0"}) as pod:
            pod.wait_until("/readyz", "ok")
            port = int(pod.logged("for gRPC on port")["message"].rpartition(" ")[2])

            def send_calls(numbers: range) -> NotedCalls:
                return asyncio.run(send_messages(port, numbers, NODES, are_right, CONNECTIONS))

            idle = wait_until_idle(pod).descriptors
            warm_up = int(requests * WARM_UP_SHARE)
            send_all(pod.port, range(requests, requests + warm_up), NODES, is_right, CONNECTIONS)
            send_calls(range(requests, requests + warm_up // CALLS_SHARE))
            before = wait_until_idle(pod, idle)
            started_s = time.monotonic()
            noted = send_all(pod.port, range(requests), NODES, is_right, CONNECTIONS)
            calls = send_calls(range(requests // CALLS_SHARE))
            seconds = time.monotonic() - started_s
            return judge(pod, noted, calls, before, wait_until_idle(pod, before.descriptors), seconds)


def judge(
    pod: WorkerPod, noted: Noted, calls: NotedCalls, before: Look, after: Look, seconds: float
) -> Outcome:  # fmt: skip
    if calls.wrong:
        print(f"wrong over gRPC: {calls.wrong[:10]} (numbers of tests.support.malformed_messages.make)")
    if noted.unanswered or noted.wrong:
        print(
            f"unanswered: {noted.unanswered[:10]}, wrong: {noted.wrong[:10]} (numbers of tests.support.malformed.make)"
        )
    return Outcome(
        requests={kind: noted.requests[kind] for kind in KINDS},
        statuses=dict(sorted(noted.statuses.items())),
        calls=dict(sorted(calls.statuses.items())),
        unanswered=len(noted.unanswered),
        wrong=len(noted.wrong) + len(calls.wrong),
        tracebacks=sum("exception" in line or line["level"] in {"ERROR", "CRITICAL"} for line in pod.log),
        before=before,
        after=after,
        seconds=round(seconds, 1),
    )


def show(outcome: Outcome) -> None:
    table = Table("What", title=f"{sum(outcome.requests.values()):,} malformed requests in {outcome.seconds:g} s")
    table.add_column("Count", justify="right")
    for kind, count in outcome.requests.items():
        table.add_row(f"{kind} requests", f"{count:,}")
    for status, count in Counter(outcome.statuses).most_common():
        table.add_row("ended without an answer" if status == "none" else f"answers {status}", f"{count:,}")
    for status, count in Counter(outcome.calls).most_common():
        table.add_row(f"gRPC: {status}", f"{count:,}")
    table.add_row("unanswered, with a right to an answer", str(outcome.unanswered))
    table.add_row("wrong", str(outcome.wrong))
    table.add_row("errors and tracebacks in the log", str(outcome.tracebacks))
    before, after = outcome.before, outcome.after
    table.add_row("RssAnon MiB", f"{before.anonymous_mib:g} → {after.anonymous_mib:g}")
    table.add_row("descriptors", f"{before.descriptors} → {after.descriptors}")
    table.add_row("threads", f"{before.threads} → {after.threads}")
    Console(width=100).print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.malformed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REQUESTS:,} requests")
    options = parser.parse_args(arguments)
    with TemporaryDirectory(prefix="gnnserve-malformed-") as folder:
        outcome = run(QUICK_REQUESTS if options.quick else REQUESTS, Path(folder))
    show(outcome)
    body = {**asdict(outcome), "memoryGrowthMiB": outcome.memory_growth_mib, "passed": outcome.passed}
    write_result("malformed", options.quick, body)
    if not outcome.passed:
        raise SystemExit("the worker did not come through it unharmed")


if __name__ == "__main__":
    main()
