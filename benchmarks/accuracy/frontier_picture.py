"""The picture of README.md: accuracy against latency of one graph's variants, an SVG that `make figures` writes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from benchmarks.page.figure_blocks import Results
from gnnserve_api.tiers import Point, frontier

GRAPH, SEEDS = "facebook_pages", "1024"
VARIANTS = ("x1", "x2", "x4", "x8", "projected-int8", "stored1-int8", "mlp2-int8", "mlp0-int8")
"""Variants that README.md explains, one of each kind, in their fastest format."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 380, 64, 24, 46, 52
"""Pixels: of the picture, and of the margins around its axes."""
_TICKS_MS = (0.1, 1, 10, 100, 1000)
_TICKS_PERCENT = (87, 88, 89, 90, 91, 92, 93)
_BLUE, _GREY, _INK = "#1f5f99", "#d9dee4", "#24292f"


def draw_frontier(results: Results) -> str:
    """The SVG: medians of batches of `SEEDS` nodes, and accuracies of test nodes in percent, means of the trainings.
    Its line joins the variants than which no other is as accurate and faster."""
    (graph,) = (found for found in results["frontier"]["graphs"] if found["graph"] == GRAPH)
    points = [
        Point(one["name"], 100 * sum(one["accuracies"]) / len(one["accuracies"]), one["p50_ms"][SEEDS])
        for one in graph["points"]
        if one["name"] in VARIANTS
    ]
    best = frontier(points)[::-1]  # the fastest first
    path = " ".join(f"{_x(point.latency_ms):.1f},{_y(point.accuracy):.1f}" for point in best)
    within = _y(max(point.accuracy for point in points) - 1)
    parts = [
        _text(_LEFT, 24, f"Variants of one model on {GRAPH}, {graph['nodes']:,} nodes", size=16, weight="bold"),
        *_axes(),
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{within:.1f}" y2="{within:.1f}" stroke="{_BLUE}" '
        'stroke-dasharray="5 4"/>',
        _text(_WIDTH - _RIGHT, within + 17, "one point below the best", anchor="end", colour=_BLUE),
        f'<polyline points="{path}" fill="none" stroke="{_BLUE}" stroke-width="2"/>',
        *(_mark(point, is_best=point in best) for point in points),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="system-ui, sans-serif" '
        f'role="img" aria-label="Accuracy against latency of {len(points)} variants">'
    )
    paper = f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, paper, *parts, "</svg>\n"])


def _axes() -> Iterable[str]:
    right, floor = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value in _TICKS_PERCENT:
        y = _y(value)
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GREY}"/>'
        yield _text(_LEFT - 10, y + 4, f"{value} %", anchor="end")
    for value in _TICKS_MS:
        yield f'<line x1="{_x(value):.1f}" x2="{_x(value):.1f}" y1="{_TOP}" y2="{floor}" stroke="{_GREY}"/>'
        yield _text(_x(value), floor + 18, f"{value:g}", anchor="middle")
    yield _text((_LEFT + right) / 2, _HEIGHT - 12, "milliseconds for 1,024 nodes (logarithmic)", anchor="middle")


def _mark(point: Point, *, is_best: bool) -> str:
    x, y = _x(point.latency_ms), _y(point.accuracy)
    fill = _BLUE if is_best else "#ffffff"
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{_BLUE}" stroke-width="2"/>'
    return circle + _text(x + 10, y - 7, point.name, weight="bold" if is_best else "normal")


def _text(
    x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", weight: str = "normal", colour: str = _INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(words)}</text>'
    )


def _x(latency_ms: float) -> float:
    low, high = math.log10(_TICKS_MS[0]), math.log10(_TICKS_MS[-1])
    return _LEFT + (math.log10(latency_ms) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)


def _y(percent: float) -> float:
    low, high = _TICKS_PERCENT[0], _TICKS_PERCENT[-1]
    return _HEIGHT - _BOTTOM - (percent - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
