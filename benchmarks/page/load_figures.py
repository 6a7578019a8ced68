"""Tables about load that changes: routing in a worker, in simulated time and in a cluster; decisions; a soak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.page.figure_blocks import figures, paragraphs, table

_POLICIES = {"metrics": "by load metrics every 2 s alone (mode Metrics)", "fast": "the fast loop alone"}


@figures("routing")
def routing(found: Any) -> str:
    return paragraphs(_scenarios(found), _overload(found))


def _scenarios(found: Any) -> str:
    scenarios = found["scenarios"]

    def row(words: str, pick: Callable[[Any], Any]) -> list[str]:
        runs = map(pick, scenarios.values())
        return [words, *(f"{run['attained']:.2f} / {run['accuracy']:.2f}" for run in runs)]

    ours, *cells = row("gnnserve", lambda scene: scene["ours"])
    first = next(iter(scenarios.values()))
    return table(
        (f"answered within {found['objectiveMs']:.0f} ms, % / accuracy, %", *scenarios),
        [
            [f"**{ours}**", *(f"**{cell}**" for cell in cells)],
            *(row(f"{name} alone", lambda scene, name=name: scene["static"][name]) for name in first["static"]),  # type: ignore[misc]
            *(row(words, lambda scene, policy=policy: scene[policy]) for policy, words in _POLICIES.items()),  # type: ignore[misc]
        ],
    )


def _overload(found: Any) -> str:
    return table(
        (
            "offered, times the capacity of the fastest variant",
            "tries of a refused request",
            "goodput, share of its peak",
        ),
        (
            (f"{run['timesCapacity']:g}", str(1 + run["retries"]), f"{run['shareOfPeak'] * 100:.0f} %")
            for run in found["overload"]["runs"]
        ),
    )


@figures("simulation")
def simulation(found: Any) -> str:
    alike = table(
        ("requests that are all alike", "attained, %", "accuracy, %", "of the study", "of an oracle", "p99 ms"),
        (
            (
                trace, f"{run['attained']:.2f}", f"{run['accuracy']:.2f}", f"{run['study']['accuracy']:.2f}",
                "" if run["study"]["oracle"] is None else f"{run['study']['oracle']:.2f}", f"{run['p99_ms']:.1f}",
            )
            for trace, run in found["all_alike"].items()
        ),
    )  # fmt: skip
    classes = list(dict.fromkeys(name for run in found["mixed"].values() for name in run))
    mixed = table(
        ("four classes of requests, attained, %", *classes),
        (
            (trace, *(f"{run[name]['attained']:.2f}" for name in classes)) for trace, run in found["mixed"].items()
        ),
    )  # fmt: skip
    return paragraphs(alike, mixed)


@figures("decision")
def decision(found: Any) -> str:
    return table(
        ("queue", "requests a batch", "decision, p50 µs", "p99", "and taking it, p50", "admission, p50 µs", "p99"),
        (
            (
                case["name"],
                f"{case['requests_per_batch']:.1f}",
                *(
                    f"{case[cost]:.1f}"
                    for cost in (
                        "decision_p50_us", "decision_p99_us", "take_p50_us", "admission_p50_us", "admission_p99_us",
                    )
                ),
            )
            for case in found["cases"]
        ),
    )  # fmt: skip


@figures("cluster_routing")
def cluster_routing(found: Any) -> str:
    events = table(
        ("mode Metrics, seconds from the start", "what happened", "reason"),
        ((f"{one['at_s']:.0f}", one["event"], one.get("reason", "")) for one in found["metrics"]["events"]),
    )
    outage = table(
        ("mode Adaptive", "attained, %", "in the outage, %", "requests"),
        (
            (
                name, f"{run['attained_percent']:.2f}", f"{run['attained_in_the_outage_percent']:.2f}",
                f"{run['requests']:,}",
            )
            for name, run in found["outage"]["runs"].items()
        ),
    )  # fmt: skip
    return paragraphs(events, outage)


@figures("soak")
def soak(found: Any) -> str:
    return paragraphs(
        f"{found['offeredPerSecond']:,.0f} requests a second, of a capacity of {found['capacityPerSecond']:,.0f}.",
        table(
            ("minute", "answers", "p50 ms", "p99 ms", "most, ms", "generator late, p99 ms", "errors", "anonymous, MiB"),
            (
                (
                    str(place), f"{one['answers']:,}", f"{one['p50_ms']:.1f}", f"{one['p99_ms']:.1f}",
                    f"{one['max_ms']:.0f}", f"{one['lag_p99_ms']:.1f}", f"{sum(one['errors'].values()):,}",
                    f"{one['anonymous_mib']:.1f}",
                )
                for place, one in enumerate(found["minutes"], 1)
            ),
        ),
    )  # fmt: skip
