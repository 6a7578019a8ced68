"""The table of `answers/protocol.py`: every form of every server, as medians of its runs with their range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.answers.protocol_verdicts import ALONE, CONNECTED, MULTIPLEXED, Figure, Load, figure_of
from benchmarks.page.figure_blocks import figures, paragraphs, table


@figures("protocol")
def render_protocol(found: Any) -> str:
    columns = (
        "", "seeds", "p50 / p99, 1 call, ms", "requests/s, 16 connections", "p50 / p99, ms",
        "requests/s, 16 calls on one", "p50 / p99, ms", "server's processor time, µs",
    )  # fmt: skip
    rows = (
        (
            subject,
            f"{seeds:,}",
            _latency(found, subject, seeds, ALONE),
            *_loaded(found, subject, seeds, CONNECTED),
            *_loaded(found, subject, seeds, MULTIPLEXED),
            _processor(found, subject, seeds),
        )
        for subject, by_seeds in found["figures"].items()
        for seeds in map(int, by_seeds)
    )
    return paragraphs(table(columns, rows), *_said(found))


def _said(found: Any) -> Iterator[str]:
    runs = min(
        len(of["p50_ms"])
        for by_seeds in found["figures"].values()
        for loads in by_seeds.values()
        for of in loads.values()
    )
    yield (
        f"Medians of {runs} run{'' if runs == 1 else 's'}, each of servers that were just started, and in brackets the "
        "least and the most of them. A dash: not measured, as 16 calls on one connection over HTTP."
    )
    yield from found.get("limits", {}).values()


def _latency(found: Any, subject: str, seeds: int, load: Load) -> str:
    p50, p99 = (figure_of(found, subject, seeds, load, name).median for name in ("p50_ms", "p99_ms"))
    return f"{p50:.3f} / {p99:.3f}"


def _loaded(found: Any, subject: str, seeds: int, load: Load) -> tuple[str, str]:
    try:
        rate = figure_of(found, subject, seeds, load, "requests_per_s")
    except LookupError:
        return "–", "–"
    return _with_range(rate), _latency(found, subject, seeds, load)


def _with_range(figure: Figure) -> str:
    if figure.least == figure.most:
        return f"{figure.median:,.0f}"
    return f"{figure.median:,.0f} ({figure.least:,.0f} to {figure.most:,.0f})"


def _processor(found: Any, subject: str, seeds: int) -> str:
    """Time for a request, with 16 under way."""
    for load in (CONNECTED, MULTIPLEXED):
        try:
            return f"{figure_of(found, subject, seeds, load, 'processor_us').median:,.0f}"
        except LookupError:
            continue
    return "–"
