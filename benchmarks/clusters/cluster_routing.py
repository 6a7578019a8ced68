"""Does the slow loop follow the load, and can the fast one do without it? A real Kubernetes and a real Prometheus.

Mode Metrics: the load rises and falls again; every change of the base variant is told with its time, as the worker
follows it. Mode Adaptive: the same changing load twice, once with Prometheus and once with Prometheus killed, with all
that it has measured, for most of the time. Open loop; worker, generator and cluster share the machine.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.installation import RELEASE, SYSTEM_NAMESPACE, installed_operator
from tests.cluster.harness.prometheus import Prometheus
from tests.cluster.harness.services import Service
from tests.cluster.harness.session import running_cluster

from benchmarks.clusters.cluster_routing_bench import FULL, QUICK, SEEDS, Bench, Extent, Load, Log, Watch
from benchmarks.load.communities import prepare
from benchmarks.results import Benchmark, Run, main, part_in_a_cluster
from benchmarks.verdicts import Verdict, Worded, at_most, that
from gnnserve_api.pods.routing import Route
from gnnserve_cli.loadgen.record import LoadRecord
from gnnserve_cli.loadgen.scenario import RateCurve, Scenario, build_curve
from gnnserve_routing.costs import capacity_seeds_per_s

MAX_SEEDS = 1024
FULL_BATCHES = 2.4
"""The objective, in full batches of the most accurate variant, as in `benchmarks.load.routing`."""
STEP_S = 0.01
UTILISATION = 0.85
"""Above it the slow loop wants a faster variant."""
PEAKS = {Scenario.STEP: 2.8, Scenario.DIURNAL: 3.5, Scenario.BURSTS: 3.0}
"""Peak load over the capacity of the most accurate variant, as in the simulator; never beyond what the fastest one
carries."""
FASTEST_SHARE = 0.6
TARGET = 2
"""The variant that the risen load is for, the most accurate being 0: neither end, so that it can be missed both ways.
"""
HALF = 0.5
"""Share of the variant's capacity by the profile that is offered to measure its real capacity."""
LOW_SHARE = 0.3
"""Quiet load before the rise and after the fall, as a share of the most accurate variant's capacity."""
WANTED_INTERVALS, WANTED_CHANGES, WANTED_POINTS = 2, 2, 1.0
QUIET_INTERVALS = 2


def run_all(run: Run) -> dict[str, Any]:
    extent = QUICK if run.quick else FULL
    with running_cluster() as cluster, installed_operator(cluster), prepared(cluster, extent) as profiled:
        bench = warmed_up(profiled)
        followed = measure_following(bench, profiled.capacities)
        outage = measure_outage(bench)
    return {
        "interval_s": extent.interval_s,
        "scrape_s": extent.scrape_s,
        "graph": asdict(extent.graph),
        "objective_ms": bench.objective_ms,
        "profiled_capacity_seeds_per_s": _whole(profiled.capacities),
        "capacity_seeds_per_s": _whole(bench.capacities),
        "metrics": followed,
        "outage": outage,
    }


@contextmanager
def prepared(cluster: Cluster, extent: Extent) -> Iterator[Bench]:
    """A service of four variants that accuracy tells apart, and a Prometheus that scrapes its worker."""
    if cluster.node is None:
        raise SystemExit("Prometheus and the graph are mounted from this machine: unset KUBECONFIG")
    namespace = cluster.create_workspace(f"bench-{uuid.uuid4().hex[:4]}")
    with ExitStack() as stack:
        stack.callback(namespace.delete)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gnnserve-graph-")))
        folder.chmod(0o755)
        shutil.copy(prepare(extent.graph), folder / "graph.npz")
        (folder / "graph.npz").chmod(0o644)
        namespace.bind_folder("graphs", folder)
        service = Service(namespace, "routed")
        prometheus = Prometheus(namespace, f"{RELEASE}.{SYSTEM_NAMESPACE}.svc:8080", extent.scrape_s)
        one_processor = {"resources": {"limits": {"cpu": 1}}}
        service.apply(
            {
                "graph": {
                    "source": {"npz": {"uri": "file:///data/graph.npz"}},
                    "volume": {"claimName": "graphs"},
                    "normalization": "Disabled",
                },
                "model": {
                    "hidden": 128,
                    "fanouts": [25, 10],
                    "training": {"epochs": 4, "batchSize": 512, "dropout": 0.2},
                },
                "variants": {"pruning": {"method": "Random", "factors": [1, 2, 4, 8]}, "projection": "Disabled"},
                "generation": one_processor,
                "worker": {"batching": {"maxSeeds": MAX_SEEDS}, **one_processor},
                "routing": {"intervalSeconds": extent.interval_s, "prometheus": {"url": prometheus.url}},
            }
        )
        prometheus.install()
        print("generating", flush=True)
        service.wait_until_ready(1200)
        route = msgspec.convert(service.route(), Route)
        objective_ms = float(round(FULL_BATCHES * route.variants[0].profiled.at(MAX_SEEDS)))
        service.patch({"objective": {"latencyMs": objective_ms}})
        service.wait_until_ready()
        capacities = {
            variant.name: capacity_seeds_per_s(variant.profiled, objective_ms, MAX_SEEDS) for variant in route.variants
        }
        print(
            f"objective {objective_ms:.0f} ms; capacity by the profile, in seeds/s: {_rounded(capacities)}", flush=True
        )
        yield Bench(extent, service, prometheus, tuple(capacities), capacities, objective_ms)


def warmed_up(bench: Bench) -> Bench:
    """The service with capacities as measured under load: worker and generator share a machine on which the profile was
    alone."""
    extent, target = bench.extent, bench.variants[TARGET]
    set_mode(bench, "Static", target)
    rate_per_s = HALF * bench.capacities[target] / SEEDS
    curve = RateCurve(STEP_S, (rate_per_s,) * round(extent.warm * extent.interval_s / STEP_S))
    load = Load(bench, curve, Log())
    load.start()
    load.join()
    capacities = _published_capacities(bench)
    if capacities.keys() != bench.capacities.keys():
        raise SystemExit(f"the operator published capacities of {list(capacities)} only: {bench.service.status()}")
    print(f"as measured: {_rounded(capacities)}", flush=True)
    return replace(bench, capacities=capacities)


def set_mode(bench: Bench, mode: str, variant: str | None = None) -> None:
    bench.service.patch({"routing": {"mode": mode, "variant": variant}})
    wait_for(f"the worker to follow mode {mode}", lambda: bench.service.route()["mode"] == mode)


# Mode Metrics


def measure_following(bench: Bench, profiled: Mapping[str, float]) -> dict[str, Any]:
    extent = bench.extent
    low, high = _low_and_high(bench, profiled)
    phases = [(low, extent.quiet), (high, extent.high), (low, extent.back)]
    steps = round(extent.interval_s / STEP_S)
    curve = RateCurve(STEP_S, tuple(rate / SEEDS for rate, count in phases for _ in range(count * steps)))
    rise_s = extent.quiet * extent.interval_s
    fall_s = rise_s + extent.high * extent.interval_s

    set_mode(bench, "Metrics")
    with Watch(bench) as watch:
        load = Load(bench, curve, watch.log)
        load.start()
        watch.wait_until(rise_s)
        watch.log.note(f"the load rises from {low:,.0f} to {high:,.0f} seeds/s", rise_s)
        watch.wait_until(fall_s)
        measured = _published_capacities(bench)
        watch.log.note(f"the load falls to {low:,.0f} seeds/s", fall_s)
        load.join()
    changes = [event for event in watch.log.events if "base" in event]
    return {
        "low_seeds_per_s": round(low),
        "high_seeds_per_s": round(high),
        "capacity_under_high_load_seeds_per_s": _whole(measured),
        "rise": judge_rise(bench, changes, measured, high, rise_s, fall_s),
        "fall": judge_fall(bench, changes, fall_s),
        "events": sorted(watch.log.events, key=lambda event: event["at_s"]),
    }


def _low_and_high(bench: Bench, profiled: Mapping[str, float]) -> tuple[float, float]:
    """High: in the middle of what the target carries and more accurate ones do not.

    By the profile and by what was measured under load, since the operator goes from one belief to the other meanwhile:
    a load between the two is right for one variant at first and for another later.
    """
    beliefs = [[UTILISATION * known[name] for name in bench.variants] for known in (profiled, bench.capacities)]
    too_little, enough = (max(b[TARGET - 1] for b in beliefs), min(b[TARGET] for b in beliefs))
    return LOW_SHARE * beliefs[1][0], (too_little * enough) ** 0.5


def _published_capacities(bench: Bench) -> dict[str, float]:
    """Capacities as the operator has corrected them."""
    found = bench.prometheus.query("gnnserve_operator_routing_capacity_seeds_per_second")
    published = {series["metric"]["variant"]: float(series["value"][1]) for series in found}
    return {name: published[name] for name in bench.variants if name in published}


def judge_rise(
    bench: Bench, changes: Sequence[dict[str, Any]], capacities: Mapping[str, float], offered: float, *span_s: float
) -> dict[str, Any]:
    began_s, ended_s = span_s
    made = [change for change in changes if began_s <= change["at_s"] < ended_s]
    right = next((name for name in bench.variants if UTILISATION * capacities[name] >= offered), bench.variants[-1])
    reached_s = made[-1]["at_s"] - began_s if made else None
    good = (
        reached_s is not None
        and made[-1]["base"] == right
        and reached_s <= WANTED_INTERVALS * bench.extent.interval_s
        and len(made) <= WANTED_CHANGES
    )
    return {
        "right": right,
        "changes": len(made),
        "reached_after_s": None if reached_s is None else round(reached_s, 2),
        "good": good,
    }


def judge_fall(bench: Bench, changes: Sequence[dict[str, Any]], began_s: float) -> dict[str, Any]:
    bases = [change["base"] for change in changes if change["at_s"] < began_s][-1:]
    made = [change for change in changes if change["at_s"] >= began_s]
    times_s = [began_s, *(change["at_s"] for change in made)]
    positions = [bench.variants.index(base) for base in (*bases, *(change["base"] for change in made))]
    one_by_one = all(new == old - 1 for old, new in pairwise(positions))
    gaps = [round((end - begin) / bench.extent.interval_s, 2) for begin, end in pairwise(times_s)]
    # Ticks wander by what a look takes; the first comes at any moment of an interval, the second an interval later.
    on_time = all(abs(gap - QUIET_INTERVALS) < 0.5 for gap in gaps[1:]) and all(gap > 1 for gap in gaps[:1])
    good = bool(made) and one_by_one and on_time and positions[-1] == 0
    return {"changes": len(made), "gaps_in_intervals": gaps, "one_by_one": one_by_one, "good": good}


# Mode Adaptive


def measure_outage(bench: Bench) -> dict[str, Any]:
    extent, service = bench.extent, bench.service
    total_s = extent.outage_s + 2 * extent.around_s
    curve = _changing_load(bench, total_s)
    set_mode(bench, "Adaptive")
    runs = {}
    for name, is_killed in (("with Prometheus", False), ("Prometheus killed", True)):
        print(name, flush=True)
        service.wait_for("MetricsAvailable", "Measured", timeout_s=20 * extent.interval_s)
        with Watch(bench) as watch:
            load = Load(bench, curve, watch.log)
            load.start()
            if is_killed:
                watch.wait_until(extent.around_s)
                bench.prometheus.kill()
                watch.log.note("Prometheus killed")
                watch.wait_until(extent.around_s + extent.outage_s)
                bench.prometheus.start()
                watch.log.note("Prometheus is back")
            load.join()
        runs[name] = {**_attainment(bench, load.record), "events": watch.log.events}
    kept, lost = runs.values()
    points = {
        what: round(kept[what] - lost[what], 3) for what in ("attained_percent", "attained_in_the_outage_percent")
    }
    return {"runs": runs, "lost_points": points, "good": max(points.values()) <= WANTED_POINTS}


def _changing_load(bench: Bench, total_s: float) -> RateCurve:
    """One scenario after the other."""
    accurate, fastest = (bench.capacities[name] for name in (bench.variants[0], bench.variants[-1]))
    rates: list[float] = []
    for scenario, peak in PEAKS.items():
        peak_per_s = min(peak * accurate, FASTEST_SHARE * fastest) / SEEDS
        curve = build_curve(scenario, peak_per_s, total_s / len(PEAKS), seed=0)
        rates += _with_steps(curve)
    return RateCurve(STEP_S, tuple(rates))


def _with_steps(curve: RateCurve) -> list[float]:
    """Sampled anew, since curves of short runs have shorter steps."""
    count = round(len(curve.rates_per_s) * curve.step_s / STEP_S)
    return [curve.rates_per_s[int(number * len(curve.rates_per_s) / count)] for number in range(count)]


def _attainment(bench: Bench, record: LoadRecord) -> dict[str, Any]:
    extent, rows = bench.extent, record.rows
    is_met = [latency_ms <= bench.objective_ms for latency_ms in rows.latencies_ms]
    inside = [extent.around_s <= due_s < extent.around_s + extent.outage_s for due_s in rows.dues_s]
    met_inside = [met for met, is_inside in zip(is_met, inside, strict=True) if is_inside]
    shares = dict.fromkeys(bench.variants, 0)
    for answerer in rows.answerers:
        if answerer >= 0:
            shares[record.names[answerer]] += 1
    answered = sum(shares.values())
    return {
        "requests": len(rows),
        "attained_percent": round(100 * sum(is_met) / len(rows), 3),
        "attained_in_the_outage_percent": round(100 * sum(met_inside) / len(met_inside), 3),
        "shares": {name: round(count / answered, 4) for name, count in shares.items()},
        "errors": dict(record.errors),
        "generator_late": record.late,
    }


def show(result: Mapping[str, Any]) -> None:
    followed, outage = result["metrics"], result["outage"]
    interval_s = result["interval_s"]
    table = Table("Time", "In intervals", "Event", title=f"Mode Metrics, intervals of {interval_s} s")
    for event in followed["events"]:
        table.add_row(f"{event['at_s']:.1f} s", f"{event['at_s'] / interval_s:.1f}", event["event"])
    Console().print(table)
    rise, fall = followed["rise"], followed["fall"]
    verdicts = Table("What", "Measured", "Wanted", "")
    verdicts.add_row(
        f"rise to {rise['right']}",
        f"after {rise['reached_after_s']} s in {rise['changes']} changes",
        f"{WANTED_INTERVALS * interval_s} s, {WANTED_CHANGES} changes",
        _mark(rise["good"]),
    )
    verdicts.add_row(
        "fall", f"intervals between changes: {fall['gaps_in_intervals']}", f"one step, {QUIET_INTERVALS} intervals",
        _mark(fall["good"]),
    )  # fmt: skip
    for name, run in outage["runs"].items():
        verdicts.add_row(
            name,
            f"{run['attained_percent']:.2f} % attained, {run['attained_in_the_outage_percent']:.2f} % in the outage",
            "",
            "",
        )
    lost = max(outage["lost_points"].values())
    verdicts.add_row(
        "lost without Prometheus", f"{lost:.2f} points", f"{WANTED_POINTS:.0f} point", _mark(outage["good"])
    )
    Console().print(verdicts)


def _mark(good: bool) -> str:
    return "yes" if good else "NO"


def _whole(values: Mapping[str, float]) -> dict[str, int]:
    return {name: round(value) for name, value in values.items()}


def _rounded(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in values.items())


def _rise(found: Mapping[str, Any]) -> Worded:
    rise = found["metrics"]["rise"]
    return Worded(rise["good"], f"{rise['right']} after {rise['reached_after_s']} s, by {rise['changes']} changes")


def _fall(found: Mapping[str, Any]) -> Worded:
    fall = found["metrics"]["fall"]
    gaps = ", ".join(f"{gap:g}" for gap in fall["gaps_in_intervals"])
    return Worded(fall["good"], f"{fall['changes']} changes, {gaps} intervals after what was before")


def lost_points(found: Mapping[str, Any]) -> float:
    """Most points of attained requests that are lost without Prometheus, over the whole run and in the outage."""
    kept, lost = found["outage"]["runs"].values()
    return max(round(kept[what] - lost[what], 3) for what in ("attained_percent", "attained_in_the_outage_percent"))


VERDICTS = (
    Verdict(
        "mode Metrics, the load rises",
        that(f"the right variant within {WANTED_INTERVALS} intervals, by {WANTED_CHANGES} changes at most"), _rise,
    ),
    Verdict(
        "mode Metrics, the load falls", that("back to the first, one variant at a time, each after quiet intervals"),
        _fall,
    ),
    Verdict(
        "mode Adaptive, attained less without Prometheus", at_most(WANTED_POINTS, "points"),
        lost_points,
    ),
)  # fmt: skip

BENCHMARK = Benchmark(
    "cluster_routing",
    (part_in_a_cluster("all", run_all),),
    VERDICTS,
    about=__doc__,
    show=show,
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
