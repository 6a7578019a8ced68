"""Limits for the engine beside the bounds of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.verdicts import Verdict, at_most

_LARGE, _UNPRUNED = "1024", {"x1", "projected"}
_FLOATS = {"float32", "float16", "bfloat16"}


def unpruned_reddit_ms(found: Mapping[str, Any]) -> float:
    return float(
        min(
            variant["seeds"][_LARGE]["p50_ms"]
            for name, variant in found["shapes"]["reddit"]["variants"].items()
            if variant["storage"] in _FLOATS and name.partition("-")[0] in _UNPRUNED
        )
    )


def most_over_bound(found: Mapping[str, Any]) -> float:
    return float(
        max(
            variant["seeds"][_LARGE]["over_bound"]
            for shape in found["shapes"].values()
            for variant in shape["variants"].values()
        )
    )


def sampling_us(found: Mapping[str, Any]) -> float:
    return float(max(cost for costs in _samplings(found) for seeds, cost in costs.items() if seeds != "1"))


def _samplings(found: Mapping[str, Any]) -> Iterator[Mapping[str, float]]:
    for shape in found["shapes"].values():
        yield shape["samplingUsPerSeed"]


VERDICTS = (
    Verdict(
        "Reddit's shape, 1024 seeds, unpruned, from 16 or 32 bits", at_most(15, "ms"), unpruned_reddit_ms,
        "the bound alone is most of that in hours in which a shared machine's memory is slow",
    ),
    Verdict(
        "1024 seeds, over the bound, worst variant", at_most(1.5, "times"), most_over_bound,
        "random numbers and counting are not in the bound; and cores may share what multiplies bfloat16",
    ),
    Verdict(
        "sampling alone, a seed, batches of 64 and more", at_most(3, "µs"), sampling_us,
        "each of the 275 draws of a seed takes a random number and a cache line",
    ),
)  # fmt: skip
