"""Conclusions of `protocol.py`: medians over its runs, how far runs are apart, and what was wanted of them.

Pure functions of what the file has. Verdicts are ratios of medians of the same part, whose runs were made one after the
other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.verdicts import Verdict, at_least, at_most

OURS, ECHO = "gnnserve", "bare gRPC echo"
PYTRITON, TRITON_BACKEND, MLSERVER = "PyTriton", "Triton's Python backend", "MLServer"
JSON, BINARY, V2_JSON, V2_BINARY, GRPC = "JSON", "arrays", "v2 JSON", "v2 bytes", "gRPC"
SEEDS = {"1-seed": 1, "1024-seeds": 1024}
"""Seeds of a request, by the part that asks for them."""
MOST_V2_OVER_BINARY = 1.15
LEAST_GRPC_OVER_ECHO = 0.7
LEAST_OVER_OTHERS = 1.0
NOISE = 0.05
"""Allowed on top of each limit, and stated before the runs."""

_REASONS = {GRPC: "Triton reads and writes gRPC in C++, and this server by gRPC's library for Python"}
"""Why a form may be slower than another server's."""


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: so many calls under way, over so many connections."""

    name: str
    connections: int
    calls: int


ALONE, CONNECTED, MULTIPLEXED = (
    Load("1 call", 1, 1), Load("16 connections", 16, 16), Load("16 calls on one connection", 1, 16)
)  # fmt: skip
"""The last is gRPC's alone: HTTP/1.1 has one call on a connection."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over the runs, and the least and the most of them."""

    median: float
    least: float
    most: float


def figure_of(found: Any, subject: str, seeds: int, load: Load, name: str) -> Figure:
    """Raises LookupError where it was not measured."""
    runs = found["figures"][subject][f"{seeds}"][load.name][name]
    return Figure(statistics.median(runs), min(runs), max(runs))


def rate_over(found: Any, subject: str, other: str, seeds: int, load: Load) -> float:
    """Requests per second of one subject over the other's, of medians."""
    of, beside = (figure_of(found, one, seeds, load, "requests_per_s").median for one in (subject, other))
    return round(of / beside, 3)


def over_others(found: Any, form: str, seeds: int, load: Load) -> float:
    """Requests per second over those of the fastest other server that answers this form. Raises LookupError where
    Triton without its binding was not measured, beside which others say little."""
    others = [TRITON_BACKEND, *(one for one in (PYTRITON, MLSERVER) if f"{one}, {form}" in found["figures"])]
    return min(rate_over(found, f"{OURS}, {form}", f"{one}, {form}", seeds, load) for one in others)


def verdicts() -> Iterator[Verdict]:
    noise = f"({{:g}}, and {NOISE:g} for noise)"
    for seeds in SEEDS.values():
        words = "1 seed" if seeds == 1 else f"{seeds:,} seeds"
        yield Verdict(
            f"v2 bytes over arrays, time per request, {words}",
            at_most(round(MOST_V2_OVER_BINARY + NOISE, 3), noise.format(MOST_V2_OVER_BINARY)),
            lambda found, seeds=seeds: rate_over(
                found, f"{OURS}, {BINARY}", f"{OURS}, {V2_BINARY}", seeds, CONNECTED
            ),
        )  # fmt: skip
        for load, on in ((MULTIPLEXED, "16 calls on one channel"), (CONNECTED, "16 channels")):
            yield Verdict(
                f"gRPC over a bare gRPC echo, requests/s, {on}, {words}",
                at_least(round(LEAST_GRPC_OVER_ECHO - NOISE, 3), noise.format(LEAST_GRPC_OVER_ECHO)),
                lambda found, seeds=seeds, load=load: rate_over(found, f"{OURS}, {GRPC}", ECHO, seeds, load),
            )
        for form, load in ((V2_JSON, CONNECTED), (V2_BINARY, CONNECTED), (GRPC, MULTIPLEXED)):
            yield Verdict(
                f"{form} over the fastest other server, requests/s, {load.name}, {words}",
                at_least(round(LEAST_OVER_OTHERS - NOISE, 3), noise.format(LEAST_OVER_OTHERS)),
                lambda found, seeds=seeds, load=load, form=form: over_others(found, form, seeds, load),
                _REASONS.get(form, ""),
            )
