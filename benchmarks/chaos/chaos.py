"""All that can be killed or paused, at random moments and under load: what do users notice, and does it converge?

On the harness's own node with Prometheus: two GNNServices of two workers each, asked through their Services' addresses,
and a third one whose graph changes meanwhile (`chaos_living.py`). Events are drawn from a printed seed: processes of
the operator, of workers, of Prometheus, of PostgreSQL and of Kubernetes itself are killed or paused, pods deleted,
specs edited. The harness starts again what systemd would on a real node; everything else has to mend itself. A request
may fail only if it was in flight at a worker that was killed; of each other failure this tells when, why, and which pod
its connection led to.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.cluster.harness.diagnosis import diagnose
from tests.cluster.harness.installation import RELEASE, SYSTEM_NAMESPACE, Installation, installed_operator
from tests.cluster.harness.prometheus import Prometheus
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.cluster.harness.session import running_cluster

from benchmarks.chaos.chaos_checks import (
    INTERVAL_S,
    ROUTING_UPDATE,
    Checks,
    await_convergence,
    count_writes,
    most_routing_updates,
)
from benchmarks.chaos.chaos_events import LIVING, SERVICES, WORKERS, draw, was_in_flight
from benchmarks.chaos.chaos_living import clients_at_work, figures_of, living_service
from benchmarks.chaos.chaos_load import Load
from benchmarks.chaos.chaos_world import CONVERGENCE_LIMIT_S, World, run_events
from benchmarks.results import Benchmark, Run, main, part_in_a_cluster
from benchmarks.verdicts import Verdict, Worded, below, exactly, that

DEFAULT_MINUTES, QUICK_MINUTES = 10.0, 0.5
RATE_PER_S = 40.0
SCRAPE_S = 5.0
QUIET_S, QUICK_QUIET_S = 60.0, 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--length", type=float, help=f"minutes of events under load; {DEFAULT_MINUTES:g} by default")
    parser.add_argument("--seed", type=int, help="of the events; random by default")


def run_all(run: Run) -> dict[str, Any]:
    """Quick: half a minute."""
    seed = run.options.seed if run.options.seed is not None else random.SystemRandom().randrange(10**6)
    minutes = run.options.length or (QUICK_MINUTES if run.quick else DEFAULT_MINUTES)
    print(f"seed {seed}, {minutes:g} minutes", flush=True)
    with running_cluster() as cluster, installed_operator(cluster) as operator, prepared(operator, seed) as world:
        result = measure(world, seed, minutes, QUICK_QUIET_S if run.quick else QUIET_S)
        if result["violations"] or not result["converged"]:
            print(diagnose(world.namespace))
    return {"seed": seed, "minutes": minutes, **result}


@contextmanager
def prepared(operator: Installation, seed: int) -> Iterator[World]:
    cluster = operator.cluster
    if cluster.node is None:
        raise SystemExit("the node's own processes are killed: unset KUBECONFIG")
    namespace = cluster.create_workspace(f"chaos-{uuid.uuid4().hex[:4]}")
    try:
        prometheus = Prometheus(namespace, f"{RELEASE}.{SYSTEM_NAMESPACE}.svc:8080", SCRAPE_S)
        services = tuple(Service(namespace, name) for name in SERVICES)
        for service in services:
            service.apply(
                {
                    **SMALL_SPEC,
                    "worker": {"replicas": WORKERS},
                    "routing": {"intervalSeconds": INTERVAL_S, "prometheus": {"url": prometheus.url}},
                }
            )
        prometheus.install()
        with living_service(namespace, seed) as living:
            for service in (*services, living.service):
                service.wait_until_ready()
            yield World(cluster, operator, services, living)
    finally:
        namespace.delete()


def measure(world: World, seed: int, minutes: float, quiet_s: float) -> dict[str, Any]:
    checks = Checks(world)
    with ExitStack() as stack:
        loads = [stack.enter_context(Load(service, RATE_PER_S)) for service in world.services]
        stack.enter_context(checks)
        clients = stack.enter_context(clients_at_work(world.living, partial(world.workers, LIVING), seed))
        run_events(world, draw(seed), minutes * 60)
        ended_s = time.monotonic()
        converged_s = await_convergence(world, ended_s)
        finished = clients.finish()
        # Under load still: that it ends is an event too, of which the operator tells.
        writes = None if converged_s is None else count_writes(world, quiet_s)
    living = figures_of(finished)
    updates = 0 if writes is None else writes.pop(ROUTING_UPDATE, 0)
    failures = [failure for load in loads for failure in load.tally.failures]
    in_flight = [failure for failure in failures if was_in_flight(failure, world.kills)]
    others = [failure for failure in failures if failure not in in_flight]
    return {
        "services": len(world.services),
        "workers_each": WORKERS,
        "rate_per_s_each": RATE_PER_S,
        "requests": sum(load.tally.requests for load in loads),
        "answered": sum(load.tally.answered for load in loads),
        "longest_answer_s": round(max(load.tally.longest_s for load in loads), 2),
        "connections": sum(load.tally.connections for load in loads),
        "connections_tried_again": dict(sum((load.tally.failed_connections for load in loads), Counter())),
        "failed": len(failures),
        "in_flight_at_a_killed_worker": len(in_flight),
        "failures_by_cause": dict(Counter(failure.cause.value for failure in failures)),
        "violations": [world.described(failure) for failure in others]
        + checks.violations
        + world.problems
        + living.pop("violations"),
        "living": living,
        "answers_checked_while_ready": checks.made,
        "converged": converged_s is not None and not writes and updates <= most_routing_updates(quiet_s),
        "converged_after_s": converged_s,
        "writes_after_convergence": writes,
        "routing_updates_after_convergence": updates,
        "quiet_s": quiet_s,
        "events_by_kind": dict(Counter(event["event"] for event in world.events if "left_out" not in event)),
        "events": sorted(world.events, key=lambda event: event["at_s"]),
        "kills": [
            {**asdict(kill), "at_s": world.since(kill.at_s), "gone_at_s": world.since(kill.gone_at_s)}
            for kill in world.kills
        ],
    }


def show(result: Mapping[str, Any]) -> None:
    table = Table(f"{result['minutes']:g} minutes of chaos, seed {result['seed']}", "measured", "wanted")
    table.add_row("events", f"{sum(result['events_by_kind'].values())}, {len(result['kills'])} workers killed", "")
    table.add_row("requests", f"{result['requests']:,}, answered {result['answered']:,}", "")
    table.add_row("longest answer, from when it was due", f"{result['longest_answer_s']:.2f} s", "")
    table.add_row("in flight at a killed worker", f"{result['in_flight_at_a_killed_worker']} requests failed", "")
    for cause, number in result["failures_by_cause"].items():
        table.add_row(f"  failed by: {cause}", str(number), "")
    again = ", ".join(f"{number} {problem}" for problem, number in result["connections_tried_again"].items())
    table.add_row("connections made again before anything was sent", again or "0", "")
    table.add_row("violations: every other failure", str(len(result["violations"])), "0")
    for violation in result["violations"][:10]:
        table.add_row(f"  {violation['service']}: {violation['cause']}", json.dumps(violation), "")
    living = result["living"]
    told = f"{living['batches_acknowledged']:,} batches, {living['compacted_to']:,} of them compacted; "
    table.add_row("the graph that changes", f"{told}{living['reads']:,} reads of {living['processes']} processes", "")
    table.add_row("answers checked while Ready=True", str(result["answers_checked_while_ready"]), "")
    after_s = result["converged_after_s"]
    table.add_row(
        "converged after the last event",
        "never" if after_s is None else f"{after_s:.1f} s",
        f"< {CONVERGENCE_LIMIT_S:.0f} s",
    )
    table.add_row(
        f"writes in {result['quiet_s']:.0f} s after that", json.dumps(result["writes_after_convergence"] or 0), "0"
    )
    updates = str(result["routing_updates_after_convergence"])
    table.add_row("  and updates of routing tables", updates, f"<= {most_routing_updates(result['quiet_s']):.0f}")
    Console().print(table)


def _converged_after(found: Any) -> Worded:
    after_s = found["converged_after_s"]
    return Worded(math.inf, "never") if after_s is None else Worded(after_s, f"{after_s:g} s")


def _routing_updates(found: Any) -> Worded:
    updates, quiet_s = found["routing_updates_after_convergence"], found["quiet_s"]
    return Worded(updates <= most_routing_updates(quiet_s), f"{updates:,} in {quiet_s:g} s")


VERDICTS = (
    Verdict("violations", exactly(0), lambda found: len(found["violations"])),
    Verdict("all is as declared in the end", exactly(True), lambda found: found["converged"]),
    Verdict("time until then, after the last event", below(CONVERGENCE_LIMIT_S, "s"), _converged_after),
    Verdict("requests that failed, beside those in flight at a killed worker", exactly(0),
            lambda found: found["failed"] - found["in_flight_at_a_killed_worker"]),
    Verdict("writes after that", exactly(0), lambda found: sum(found["writes_after_convergence"].values())),
    Verdict("updates of routing tables after that", that("at most one for each service and interval"),
            _routing_updates),
)  # fmt: skip
BENCHMARK = Benchmark(
    "chaos",
    (part_in_a_cluster("all", run_all),),
    VERDICTS,
    about=__doc__,
    show=show,
    options=add_options,
    must_pass=True,
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
