"""Figures of `make bench-updates`: what each part measured, and what was wanted of it.

A figure that no part measures yet has no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from benchmarks.changes.updates_measured import (
    WANTED_FAMILIES,
    AnswerErrors,
    Compaction,
    GraphFigures,
    LinkErrors,
    PredictionCost,
    RecommendingFigures,
    Replay,
    ServiceFigures,
    Start,
)

WANTED_CHANGES_PER_S = {"arxiv": 200_000, "products": 100_000}
RIPPLE_PER_S = {"arxiv": 56_000, "products": 7_600}
"""What RIPPLE++ says of the same graphs, with two layers that are kept exact."""
WANTED_ARRIVAL_MS, WANTED_PREDICTION_RATIO, WANTED_SHARE = 50.0, 1.2, 0.5
WANTED_ERROR, WANTED_CHANGES, WANTED_SUM_CHANGES = 1e-5, 100_000, 10_000_000
WANTED_LINK_CHANGES = 10_000
WANTED_POINTS = 0.3
WANTED_COMPACTED = 10_000_000
WANTED_START_S, WANTED_RECORDS = 3.0, 14_258

Verdict = dict[str, Any]
Figures = GraphFigures | AnswerErrors | ServiceFigures | Compaction | Start | Replay | LinkErrors | RecommendingFigures


class Part(StrEnum):
    GRAPH = "graph"
    """Changes in one process."""
    ANSWERS = "answers"
    """Answers beside those of graphs that are built from scratch."""
    SERVICE = "service"
    """Changes through HTTP."""
    COMPACTION = "compaction"
    """A log of edges that becomes part of the graph."""
    START = "start"
    """A log of small batches that a revision applies as it is opened."""
    REPLAY = "replay"
    """Two graphs as they grew."""
    LINKS = "links"
    """Scores of links beside those of graphs that have the changes."""
    RECOMMENDING = "recommending"
    """Recommendations by links beside changes, through HTTP."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a part's entries stand in the file."""

    key: str
    name: str
    """The field that says what an entry is of."""
    figures: type[Figures]


KINDS: Mapping[Part, Kind] = {
    Part.GRAPH: Kind("shapes", "shape", GraphFigures),
    Part.ANSWERS: Kind("answers", "architecture", AnswerErrors),
    Part.SERVICE: Kind("services", "service", ServiceFigures),
    Part.COMPACTION: Kind("compactions", "shape", Compaction),
    Part.START: Kind("starts", "shape", Start),
    Part.REPLAY: Kind("graphs", "graph", Replay),
    Part.LINKS: Kind("links", "service", LinkErrors),
    Part.RECOMMENDING: Kind("recommending", "service", RecommendingFigures),
}


Entries = dict[Part, dict[str, Figures]]
"""By part, and by what was measured: a shape, an architecture, a graph."""


def fragment_of(part: Part, name: str, figures: Figures) -> dict[str, Any]:
    """What a part of the result file holds."""
    kind = KINDS[part]
    return {kind.key: [{kind.name: name, **msgspec.to_builtins(figures)}]}


def entries_of(found: Mapping[str, Any]) -> Entries:
    """All fragments together, read back."""
    return {
        part: {one[kind.name]: msgspec.convert(one, kind.figures) for one in found.get(kind.key, ())}
        for part, kind in KINDS.items()
    }


def verdicts_of(entries: Entries) -> Iterator[tuple[str, Verdict]]:
    """By what is wanted."""
    for shape, figures in _figures(entries, Part.SERVICE, ServiceFigures):
        yield from _of_service(shape, figures)
    yield from _of_answers([figures for _, figures in _figures(entries, Part.ANSWERS, AnswerErrors)])
    yield from _of_links([figures for _, figures in _figures(entries, Part.LINKS, LinkErrors)])
    for service, figures in _figures(entries, Part.RECOMMENDING, RecommendingFigures):
        yield from _of_recommending(service, figures)
    for shape, figures in _figures(entries, Part.GRAPH, GraphFigures):
        if deeper := [rate for rate in figures.rates if rate.layers > 1]:
            best = max(deeper, key=lambda rate: rate.changes_per_s)
            yield (
                f"{shape}: changes per second in one process, stored1 and stored2 exact",
                {
                    "wanted": f"above {RIPPLE_PER_S[shape]:,}, which RIPPLE++ says",
                    "measured": f"{best.changes_per_s:,} in batches of {best.batch:,}",
                    "passed": best.changes_per_s > RIPPLE_PER_S[shape],
                },
            )
    sums = [figures.sums for _, figures in _figures(entries, Part.GRAPH, GraphFigures)]
    if sums:
        changes = max(each.changes for each in sums)
        is_exact = all(each.passed for each in sums)
        yield (
            "sums that were kept by increments",
            {
                "wanted": f"equal to the bit after {WANTED_SUM_CHANGES:,} changes",
                "measured": f"{'equal' if is_exact else 'not equal'} after {changes:,}",
                "passed": is_exact and changes >= WANTED_SUM_CHANGES,
            },
        )
    for shape, compaction in _figures(entries, Part.COMPACTION, Compaction):
        yield (
            f"{shape}: compaction of a log of edges",
            {
                "wanted": f"{WANTED_COMPACTED:,} edges become part of the graph; no time is asked for",
                "measured": f"{compaction.changes:,} edges in {compaction.took_s:,.0f} s; "
                f"then a start takes {compaction.start_after_s:.1f} s, "
                f"in place of {compaction.start_with_log_s:.0f}",
                "passed": compaction.changes >= WANTED_COMPACTED,
            },
        )
    for shape, start in _figures(entries, Part.START, Start):
        yield (
            f"{shape}: start over small batches",
            {
                "wanted": f"< {WANTED_START_S:g} s",
                "measured": f"{start.replay_s:.1f} s for {start.records:,} batches of {start.changes:,} changes",
                "passed": start.replay_s < WANTED_START_S and start.records >= WANTED_RECORDS,
            },
        )
    for graph, replay in _figures(entries, Part.REPLAY, Replay):
        worst = max(replay.variants, key=lambda variant: abs(variant.changed - variant.rebuilt))
        points = 100 * (worst.changed - worst.rebuilt)
        yield (
            f"{graph}: accuracy on the nodes that arrived",
            {
                "wanted": f"within {WANTED_POINTS} points of the rebuilt graph's, every variant",
                "measured": f"{points + 0.0:+.2f} points at most, of {len(replay.variants)} variants ({worst.variant})",
                "passed": abs(points) <= WANTED_POINTS,
            },
        )


def _of_service(shape: str, figures: ServiceFigures) -> Iterator[tuple[str, Verdict]]:
    if figures.rates:
        wanted_per_s = WANTED_CHANGES_PER_S[shape]
        by_batch = "; ".join(f"{rate.changes_per_s:,} in batches of {rate.batch:,}" for rate in figures.rates)
        best = max(rate.changes_per_s for rate in figures.rates)
        yield (
            f"{shape}: durable changes per second through HTTP, {figures.variant} exact",
            {"wanted": f"at least {wanted_per_s:,}", "measured": by_batch, "passed": best >= wanted_per_s},
        )
    if figures.arrivals:
        slowest = max(figures.arrivals, key=lambda arrival: arrival.p99_ms)
        yield (
            f"{shape}: arrival at a second worker, p99",
            {
                "wanted": f"at most {WANTED_ARRIVAL_MS:g} ms after the acknowledgement",
                "measured": f"{slowest.p99_ms:.1f} ms, beside {slowest.offered_per_s:,} changes/s",
                "passed": slowest.p99_ms <= WANTED_ARRIVAL_MS,
            },
        )

    def told(cost: PredictionCost) -> str:
        acknowledged = "" if cost.acknowledged_per_s is None else f", {cost.acknowledged_per_s:,} acknowledged"
        return f"{cost.changes_per_s:,} changes/s offered{acknowledged}"

    yield from _beside_changes(f"{shape}: p99 of predictions", figures.predictions, told)


def _beside_changes(
    name: str, costs: Iterable[PredictionCost], told: Callable[[PredictionCost], str]
) -> Iterator[tuple[str, Verdict]]:
    """`told`: what was measured beside the ratio."""
    for cost in costs:
        if cost.share == WANTED_SHARE:
            yield (
                f"{name} at 70 % load, with changes at half their rate over without",
                {
                    "wanted": f"at most {WANTED_PREDICTION_RATIO}",
                    "measured": f"{cost.ratio} ({cost.low} to {cost.high}), {told(cost)}",
                    "passed": cost.ratio <= WANTED_PREDICTION_RATIO,
                },
            )


def _of_answers(answers: list[AnswerErrors]) -> Iterator[tuple[str, Verdict]]:
    if not answers:
        return
    largest = max(error for each in answers for error in each.errors.values())
    changes = min(each.changes for each in answers)
    missing = sorted(WANTED_FAMILIES.difference(*(each.families for each in answers)))
    lacking = f"; without {', '.join(missing)}" if missing else ""
    architectures = ", ".join(each.architecture for each in answers)
    yield (
        "largest difference from answers of the graph built from scratch",
        {
            "wanted": f"{WANTED_ERROR:g} after {WANTED_CHANGES:,} changes, every family that follows changes",
            "measured": f"{largest:.1e} after {changes:,}, {architectures}{lacking}",
            "passed": largest <= WANTED_ERROR and changes >= WANTED_CHANGES and not missing,
        },
    )


def _of_links(links: list[LinkErrors]) -> Iterator[tuple[str, Verdict]]:
    if not links:
        return
    largest = max(error for each in links for error in each.errors.values())
    changes = min(each.changes for each in links)
    yield (
        "largest difference of scores of links from those of the graph that has the changes",
        {
            "wanted": f"{WANTED_ERROR:g} after {WANTED_LINK_CHANGES:,} changes",
            "measured": f"{largest:.1e} after {changes:,}, {', '.join(each.service for each in links)}",
            "passed": largest <= WANTED_ERROR and changes >= WANTED_LINK_CHANGES,
        },
    )


def _of_recommending(service: str, figures: RecommendingFigures) -> Iterator[tuple[str, Verdict]]:
    best = max(figures.rates, key=lambda rate: rate.changes_per_s)

    def told(cost: PredictionCost) -> str:
        return f"{cost.p99_with_ms} ms, {cost.changes_per_s:,} changes/s offered of {best.changes_per_s:,}"

    yield from _beside_changes(f"{service}: p99 of recommendations", figures.recommendations, told)


def _figures(entries: Entries, part: Part, kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, figures in entries[part].items():
        assert isinstance(figures, kind)  # noqa: S101
        yield name, figures
