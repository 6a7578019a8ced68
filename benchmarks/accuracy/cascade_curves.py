"""Where a cascade lies beside the single variants: hulls, margins and verdicts. Pure.

Two variants that take turns at random reach every point between them, so a cascade is worth something only above the
convex hull of the single variants, in accuracy over cost. Costs are the p50 of a batch, and
the bytes that it reads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Costed(Protocol):
    @property
    def validation(self) -> tuple[float, ...]: ...
    @property
    def test(self) -> tuple[float, ...]: ...
    @property
    def p50_ms(self) -> float: ...
    @property
    def gathered_bytes(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Single:
    """A variant that is no cascade. Accuracies: a fraction of 1 for each seed of training."""

    name: str
    validation: tuple[float, ...]
    test: tuple[float, ...]
    p50_ms: float
    """Time of a batch of 1,024 test nodes; the bytes are of such a batch, too."""
    gathered_bytes: float


@dataclass(frozen=True, slots=True)
class Threshold:
    """A cascade with one threshold."""

    percent: float
    """Percent of the validation nodes that are passed on."""
    passed_on: float
    """Share of the test nodes that are: mean over the seeds, as the next two."""
    first_right: float
    """Share of these about which the first stage is right."""
    then_right: float
    validation: tuple[float, ...]
    test: tuple[float, ...]
    p50_ms: float
    gathered_bytes: float


@dataclass(frozen=True, slots=True)
class Oracle:
    """Decision that knows the labels and passes on nodes about which the first stage is wrong, and the other right."""

    share: float
    test: float


@dataclass(frozen=True, slots=True)
class Curve:
    first: str
    then: str
    temperature: float
    """As fitted with the first seed."""
    points: tuple[Threshold, ...]
    oracle: Oracle


@dataclass(frozen=True, slots=True)
class Graph:
    graph: str
    metric: str
    nodes: int
    singles: tuple[Single, ...]
    curves: tuple[Curve, ...]
    seconds: float


Cost = Callable[[Costed], float]
COSTS: dict[str, Cost] = {"p50": lambda one: one.p50_ms, "bytes": lambda one: one.gathered_bytes}


def hull_at(points: Iterable[tuple[float, float]], cost: float) -> float:
    """The most accuracy (cost, accuracy) that any mixture of the points has at no more than this cost; below the least
    cost, the accuracy of the point that has it."""
    best = sorted(points)
    cheapest = max(accuracy for at, accuracy in best if at == best[0][0])
    affordable = [accuracy for at, accuracy in best if at <= cost]
    mixed = [
        low + (high - low) * (cost - low_at) / (high_at - low_at)
        for low_at, low in best
        for high_at, high in best
        if low_at <= cost < high_at
    ]
    return max([cheapest, *affordable, *mixed])


def margin_points(graph: Graph, one: Costed, cost: Cost, *, validation: bool = False) -> float:
    """Points of mean accuracy above the hull, on test nodes or on validation nodes."""

    def accuracy(of: Costed) -> float:
        return statistics.mean(of.validation if validation else of.test)

    hull = hull_at([(cost(single), accuracy(single)) for single in graph.singles], cost(one))
    return 100 * (accuracy(one) - hull)


def chosen(graph: Graph, cost: Cost) -> tuple[Curve, Threshold]:
    """The cascade that is highest above the hull on validation nodes: test nodes only judge it."""
    every = [(curve, point) for curve in graph.curves for point in curve.points]
    return max(every, key=lambda each: margin_points(graph, each[1], cost, validation=True))


def highest(graph: Graph, cost: Cost) -> float:
    """The largest margin of any threshold on test nodes: with so many, partly by chance."""
    return max(margin_points(graph, point, cost) for curve in graph.curves for point in curve.points)


def verdicts_of(graph: Graph) -> Iterable[tuple[str, dict[str, Any]]]:
    for name, cost in COSTS.items():
        curve, point = chosen(graph, cost)
        margin = margin_points(graph, point, cost)
        yield (
            f"{graph.graph}, accuracy over {name}",
            {
                "wanted": "above the convex hull of the single variants, on test nodes, where validation nodes put it",
                "measured": (
                    f"{curve.first} then {curve.then}, {point.percent:g} %: {margin:+.2f} points (the most of any "
                    f"threshold on test nodes: {highest(graph, cost):+.2f})"
                ),
                "reason": _says_why(curve, point),
                "passed": margin > 0,
            },
        )


def _says_why(curve: Curve, point: Threshold) -> str:
    return (
        f"of the {100 * point.passed_on:.1f} % of test nodes that were passed on {curve.first} is right about "
        f"{100 * point.first_right:.1f} % and {curve.then} about {100 * point.then_right:.1f} %; an oracle that passes "
        f"on the {100 * curve.oracle.share:.1f} % that only {curve.then} is right about would reach "
        f"{curve.oracle.test:.4f}, and the cascade has {statistics.mean(point.test):.4f}"
    )


def body_of(graph: Graph) -> Sequence[dict[str, Any]]:
    """Margins of every threshold."""
    return [
        {
            "first": curve.first,
            "then": curve.then,
            "percent": point.percent,
            **{f"{name}MarginPoints": round(margin_points(graph, point, cost), 3) for name, cost in COSTS.items()},
        }
        for curve in graph.curves
        for point in curve.points
    ]
