"""Counters of workers as Prometheus samples them: what it would answer, from what a test says happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gnnserve_routing.signals import Sample, Series

NOW_S = 1_800_000_000.0
"""Prometheus' clock."""

Points = Iterable[tuple[float, float]]
"""Seconds before now (negative), and value."""


def series(metric: str, points: Points, **labels: str) -> Series:
    """`metric` without prefix and suffix, as `offered_seeds`."""
    name = f"gnnserve_{metric}_total"
    return Series({"__name__": name, **labels}, tuple(Sample(NOW_S + at_s, value) for at_s, value in points))


def offered(pod: str, *points: tuple[float, float], **labels: str) -> Series:
    return series("offered_seeds", points, pod=pod, instance=f"{pod}:8080", **labels)


def batches(
    pod: str, variant: str, times_s: Sequence[float], per_scrape: Sequence[tuple[int, float]], **labels: str
) -> list[Series]:
    """Samples of a worker that, between two scrapes, computes these batches, of so many seeds in so many seconds."""
    sums: Mapping[str, float] = {
        "batches": len(per_scrape),
        "batch_seeds": sum(seeds for seeds, _ in per_scrape),
        "batch_seconds": sum(seconds for _, seconds in per_scrape),
        "batch_seeds_squared": sum(seeds**2 for seeds, _ in per_scrape),
        "batch_seed_seconds": sum(seeds * seconds for seeds, seconds in per_scrape),
    }
    return [
        series(
            metric,
            ((at_s, 1000 + number * value) for number, at_s in enumerate(times_s)),
            pod=pod, instance=f"{pod}:8080", variant=variant, **labels,
        )
        for metric, value in sums.items()
    ]  # fmt: skip
