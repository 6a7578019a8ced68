"""Limits for an answer beside the echo and the best other server, on each shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.verdicts import Verdict, at_least, at_most

_READING = "a request adds reading the 276 rows of its seed, which are in no cache, to the bytes and calls of an echo"


def verdicts(found: Mapping[str, Any]) -> Iterator[Verdict]:
    for shape, measured in found["shapes"].items():
        yield Verdict(
            f"{shape}: one seed, over an echo on uvicorn", at_most(1.5, "times"),
            partial(_figure, shape, "echoRatios", "one_seed_p50_over_echo"), _READING,
        )  # fmt: skip
        yield Verdict(
            f"{shape}: requests/s at 32 connections, of the echo's", at_least(0.7),
            partial(_figure, shape, "echoRatios", "throughput_32_of_echo"), _READING,
        )  # fmt: skip
        # x1 is in no result of before it was measured.
        for key, variant in (("ratios", ""), ("x1Ratios", ", by x1")):
            if key in measured:
                yield Verdict(
                    f"{shape}: requests/s at 32 connections, over the best other server's{variant}",
                    at_least(10, "times"),
                    partial(_figure, shape, key, "throughput_32"), _READING,
                )  # fmt: skip


def _figure(shape: str, ratios: str, name: str, found: Mapping[str, Any]) -> float:
    return float(found["shapes"][shape][ratios][name])
