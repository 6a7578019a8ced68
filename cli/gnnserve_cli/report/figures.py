"""The figures of a report: what of it is drawn, and how. Each is drawn for a width in pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from gnnserve_api.families import ColumnAxis, HopAxis, NetworkAxis, RowAxis, VariantPoint, point_of
from gnnserve_api.files.profile import StaleLayerProfile
from gnnserve_cli.render import format_bytes
from gnnserve_cli.report.data import DriftVerdict, ModelFit, Report, SizeRow, VariantRow, at_size
from gnnserve_cli.report.drawing import (
    Bar,
    BarPart,
    Drawing,
    MarkShape,
    Scale,
    draw_bars,
    name_rows,
    position_scale,
    spread_scale,
    text_width,
    tick,
    zero_scale,
)
from gnnserve_cli.report.stale import name_changes
from gnnserve_cli.report.words import ms, nodes, percent, plain_ms, signed_points

_OF_ROWS: Mapping[RowAxis, MarkShape] = {
    RowAxis.FEATURES: MarkShape.CIRCLE,
    RowAxis.PRODUCTS: MarkShape.DIAMOND,
    RowAxis.HIDDEN: MarkShape.PENTAGON,
    RowAxis.STAGES: MarkShape.SQUARE,
}
_OF_NETWORKS: Mapping[NetworkAxis, MarkShape] = {
    NetworkAxis.PROGRAM: MarkShape.SQUARE,
    NetworkAxis.PERCEPTRON: MarkShape.PENTAGON,
}
"""Shapes of networks that are not of the model's layers."""
STAGES = (("sample", "c1", "Sampling"), ("gather", "c2", "Gathering"), ("compute", "c3", "Computing"))


def shape_of(point: VariantPoint) -> MarkShape:
    if point.hops is HopAxis.FEWER:
        return MarkShape.TRIANGLE
    if point.columns is ColumnAxis.CHOSEN:
        return MarkShape.SQUARE
    return _OF_NETWORKS.get(point.network, _OF_ROWS[point.rows])


def draw_frontier(report: Report, width: float) -> Drawing:
    rows, seeds = report.variants, report.seeds
    times = {row.name: at_size(row, seeds).p50_ms for row in rows}
    told = "; ".join(f"{row.name} {percent(row.validation.share)} in {ms(times[row.name])}" for row in rows)
    label = f"Validation accuracy against latency of {seeds:,} nodes: {told}."
    drawing = Drawing.of_size(label, width, min(380.0, 0.62 * width + 60))
    latencies = spread_scale(list(times.values()), int(width / 75))
    drawing.scale_x(latencies)
    drawing.scale_y(position_scale(100 * edge for row in rows for edge in (row.validation.low, row.validation.high)))
    drawing.below(f"median latency of {seeds:,} nodes in ms{', logarithmic' if latencies.log else ''}")
    for row in rows:
        ends = [(times[row.name], 100 * edge) for edge in (row.validation.low, row.validation.high)]
        drawing.curve(ends, "soft", width=1.3, alpha=0.45)
    joined = sorted((row for row in rows if row.on_frontier), key=lambda row: times[row.name])
    drawing.curve([(times[row.name], 100 * row.validation.share) for row in joined], "soft", width=1.5)
    # Those on the frontier last, so that they lie on top, and first when names are placed.
    for row in sorted(rows, key=lambda row: row.on_frontier):
        accuracy = f"{percent(row.validation.share)} ({percent(row.validation.low)} to {percent(row.validation.high)})"
        drawing.mark(
            times[row.name], 100 * row.validation.share, row.storage,
            f"{row.name}: {accuracy} in {ms(times[row.name])}", shape=shape_of(point_of(row)),
            hollow=not row.on_frontier,
        )  # fmt: skip
    for row in sorted(rows, key=lambda row: not row.on_frontier):
        drawing.try_name(times[row.name], 100 * row.validation.share, row.name)
    return drawing


def draw_tolerances(report: Report, width: float) -> Drawing:
    """A step for each tier."""
    answers = [tier.answer for tier in report.tolerances.tiers]
    told = "; ".join(
        f"from {answer.loss_points:.2f} points {answer.variant} at {percent(answer.relative_latency, 0)}"
        for answer in answers
    )
    label = f"Latency under accuracy tolerance: {told}."
    drawing = Drawing.of_size(label, width, min(300.0, 0.45 * width + 70))
    last = 1.18 * max([answer.loss_points for answer in answers] + [1.0])
    drawing.scale_x(Scale(0.0, last, int(width / 80)))
    drawing.scale_y(Scale(0.0, 108.0, 5))
    drawing.below("accuracy tolerance in points")
    steps = [(answer.loss_points, 100 * answer.relative_latency) for answer in answers]
    ends = [*(loss for loss, _ in steps[1:]), last]
    corners = [
        corner for (loss, share), end in zip(steps, ends, strict=True) for corner in ((loss, share), (end, share))
    ]
    drawing.curve(corners, "float32", width=2)
    shares = {answer.variant: percent(answer.relative_latency, 0) for answer in answers}
    for answer, (loss, share) in zip(answers, steps, strict=True):
        told = f"{answer.variant}: {shares[answer.variant]} of the latency"
        drawing.mark(loss, share, "float32", told, radius=4.0)
    for answer, (loss, share) in zip(answers, steps, strict=True):
        for text in (f"{answer.variant} {shares[answer.variant]}", answer.variant):
            if drawing.try_name(loss, share, text):
                break
    return drawing


def draw_stages(report: Report, seeds: int, width: float) -> Drawing:
    def parts(size: SizeRow) -> tuple[BarPart, ...]:
        return tuple(
            BarPart(getattr(size, f"{stage}_ms"), colour, f"{name} {ms(getattr(size, f'{stage}_ms'))}")
            for stage, colour, name in STAGES
        )

    bars = []
    for row in report.variants:
        made = parts(at_size(row, seeds))
        bars.append(Bar(row.name, made, plain_ms(sum(part.value for part in made))))
    told = "; ".join(f"{bar.name}: {', '.join(part.told for part in bar.parts)}" for bar in bars)
    title = "1 node, ms" if seeds == 1 else f"{seeds:,} nodes, ms"
    return draw_bars(bars, width, f"Stages of a batch of {title}: {told}.", title)


def draw_window(report: Report, width: float) -> Drawing:
    bars = []
    for row in report.variants:
        size = at_size(row, report.seeds)
        rest = max(0.0, size.p50_ms - size.window_ms)
        parts = (
            BarPart(size.window_ms, "c2", f"{row.name}: {ms(size.window_ms)} in the paper's window"),
            BarPart(rest, "c1", f"{row.name}: {ms(rest)} outside of it"),
        )
        bars.append(Bar(row.name, parts, f"{plain_ms(size.window_ms)} of {plain_ms(size.p50_ms)}"))
    told = "; ".join(f"{bar.name} {bar.shown} ms" for bar in bars)
    label = f"Time in the paper's window, of the whole request: {told}."
    return draw_bars(bars, width, label, f"{report.seeds:,} nodes, ms")


class Cost(StrEnum):
    READ = "Read"
    MEMORY = "Memory"
    WEIGHTS = "Weights"


def draw_cost(report: Report, cost: Cost, width: float) -> Drawing:
    match cost:
        case Cost.READ:
            sizes = [at_size(row, report.seeds).gathered_bytes for row in report.variants]
            return _draw_bytes(report.variants, sizes, width, f"Read for {nodes(report.seeds)}")
        case Cost.MEMORY:
            return _draw_bytes(report.variants, [row.memory_bytes for row in report.variants], width, cost)
        case Cost.WEIGHTS:
            return _draw_bytes(report.variants, [row.size_bytes for row in report.variants], width, cost)


def _draw_bytes(rows: Sequence[VariantRow], sizes: Sequence[int], width: float, title: str) -> Drawing:
    unit, divisor = "B", 1.0
    for larger in ("KiB", "MiB", "GiB"):
        if max(sizes) >= 1024 * divisor:
            unit, divisor = larger, divisor * 1024
    bars = [
        Bar(row.name, (BarPart(size / divisor, "c2", f"{row.name}: {format_bytes(size)}"),), format_bytes(size))
        for row, size in zip(rows, sizes, strict=True)
    ]
    told = "; ".join(f"{bar.name} {bar.shown}" for bar in bars)
    return draw_bars(bars, width, f"{title}: {told}.", f"{title}, {unit}")


_VERDICT_COLOURS = {DriftVerdict.WITHIN_CHANCE: "good", DriftVerdict.SMALL: "warn", DriftVerdict.DRIFT: "bad"}


def draw_drift(report: Report, width: float) -> Drawing | None:
    """Test minus validation with its interval, a row per variant."""
    drift = report.drift
    if drift is None:
        return None
    told = "; ".join(f"{row.variant} {signed_points(row.difference_points)}" for row in drift.rows)
    left = min(max(text_width(row.variant) for row in drift.rows) + 10, width * 0.34)
    drawing = Drawing.of_size(
        f"Test minus validation accuracy in points: {told}.", width, 48.0 + 20.0 * len(drift.rows), left=left, top=8.0,
        bottom=40.0,
    )  # fmt: skip
    edges = [0.0, *(edge for row in drift.rows for edge in (row.low_points, row.high_points))]
    margin = 0.05 * (max(edges) - min(edges)) or 1.0
    drawing.scale_x(Scale(min(edges) - margin, max(edges) + margin, int((width - left) / 60)), signed_tick)
    name_rows(drawing, [row.variant for row in drift.rows])
    drawing.curve([(0.0, -0.5), (0.0, len(drift.rows) - 0.5)], "soft", width=1)
    drawing.below("test minus validation, points")
    for index, row in enumerate(drift.rows):
        name = _VERDICT_COLOURS[row.verdict]
        drawing.curve([(row.low_points, index), (row.high_points, index)], name, width=2.5, alpha=0.5)
        interval = f"{signed_points(row.low_points)} to {signed_points(row.high_points)}"
        told = f"{row.variant}: {signed_points(row.difference_points)} points ({interval})"
        drawing.mark(row.difference_points, index, name, told, radius=4.0)
    return drawing


def signed_tick(value: float) -> str:
    return tick(value).replace("-", "−") if value <= 0 else f"+{tick(value)}"


def draw_stability(report: Report, width: float) -> Drawing | None:
    measured = report.stability.measured
    if measured is None or not measured.top:
        return None
    bars = []
    for top in measured.top:
        told = f"{percent(top.in_common, 0)} in common, {percent(top.by_chance, 0)} by chance"
        name = f"{top.columns:,} columns" if top.columns > 1 else "1 column"
        part = BarPart(100 * top.in_common, "c2", told)
        bars.append(Bar(name, (part,), percent(top.in_common, 0), marker=100 * top.by_chance))
    told = "; ".join(f"{bar.name} {bar.shown}, by chance {bar.marker or 0:.0f} %" for bar in bars)
    label = f"Share of the chosen columns that two seeds agree on: {told}."
    return draw_bars(bars, width, label, "In common, %", high=100)


def draw_model(fit: ModelFit, width: float) -> Drawing:
    """Measured and predicted windows against columns."""
    shown = sorted(fit.predictions, key=lambda p: p.columns)
    predicted = [(p, time) for p in shown if (time := p.corrected_ms) is not None]
    told = "; ".join(
        [f"{p.variant} measured {ms(p.measured_ms)}" for p in shown]
        + [f"{p.variant} predicted {ms(time)}" for p, time in predicted]
    )
    drawing = _against_columns(
        f"Gathering and computing against columns, {fit.storage}: {told}.",
        width,
        [p.columns for p in shown],
        max([p.measured_ms for p in shown] + [time for _, time in predicted]),
    )
    drawing.below("columns; gathering and computing in ms")
    drawing.curve([(float(p.columns), time) for p, time in predicted if point_of(p).spans_widths], "good")
    for p, time in predicted:
        if not point_of(p).spans_widths:
            drawing.mark(p.columns, time, "good", f"{p.variant}: {ms(time)} predicted", radius=3.0)
    for p in shown:
        drawing.mark(
            p.columns, p.measured_ms, fit.storage, f"{p.variant}: {ms(p.measured_ms)} measured",
            shape=shape_of(point_of(p)), hollow=p.calibrated_with, radius=4.0,
        )  # fmt: skip
    for p in shown:
        drawing.try_name(p.columns, p.measured_ms, p.variant)
    return drawing


def _against_columns(label: str, width: float, columns: Sequence[int], highest_ms: float) -> Drawing:
    drawing = Drawing.of_size(label, width, min(320.0, 0.5 * width + 70))
    drawing.scale_x(zero_scale(columns, int(width / 80)))
    drawing.scale_y(zero_scale([1.05 * highest_ms]))
    return drawing


def draw_widths(report: Report, width: float) -> Drawing | None:
    """Median latency against columns, with the latencies that were asked for."""
    storages = [curve.storage for curve in report.latencies.curves]
    if not storages:
        return None
    rows = [row for row in report.variants if point_of(row).spans_widths and row.storage in storages]
    times = {row.name: at_size(row, report.seeds).p50_ms for row in rows}
    told = "; ".join(f"{row.name} {row.columns:,} columns {ms(times[row.name])}" for row in rows)
    highest = max(times.values())
    asked = [answer.latency_ms for answer in report.latencies.answers if answer.latency_ms <= 1.5 * highest]
    drawing = _against_columns(
        f"Median latency against columns: {told}.", width, [row.columns for row in rows], max([highest, *asked])
    )
    drawing.below(f"columns; median latency of {report.seeds:,} nodes in ms")
    for latency in asked:
        drawing.limit(latency, ms(latency))
    for storage in storages:
        line = sorted((row for row in rows if row.storage is storage), key=lambda row: row.columns)
        drawing.curve([(float(row.columns), times[row.name]) for row in line], storage, width=1.5)
        for row in line:
            told = f"{row.name}: {row.columns:,} columns, {ms(times[row.name])}"
            drawing.mark(row.columns, times[row.name], storage, told, radius=4.0)
    for row in rows:
        drawing.try_name(row.columns, times[row.name], row.name)
    return drawing


STALE_SIGNS = (("c1", "c1"), ("c2", "c2"), ("c3", "c3"), ("good", "predicted"))
"""Colour of a line, and the class of its sign in the style, for each of the changes."""


def draw_stale(measured: StaleLayerProfile, width: float) -> Drawing:
    """Answers that differ against the share of stale rows that is made anew, a line for each of the changes."""
    told = "; ".join(
        f"{name_changes(changes)}: " + ", ".join(f"{percent(point.differing)}" for point in changes.points)
        for changes in measured.changes
    )
    drawing = Drawing.of_size(
        f"Differing answers against rows made anew: {told}.", width, min(300.0, 0.45 * width + 70)
    )
    drawing.scale_x(Scale(0.0, 104.0, int(width / 80)))
    drawing.scale_y(zero_scale([100 * point.differing for changes in measured.changes for point in changes.points]))
    drawing.below("stale rows made anew, %; answers that differ from exact ones, %")
    for changes, (name, _) in zip(measured.changes, STALE_SIGNS, strict=False):
        points = [(100 * point.recomputed, 100 * point.differing) for point in changes.points]
        drawing.curve(points, name, width=2)
        for (x, y), point in zip(points, changes.points, strict=True):
            told = f"{name_changes(changes)}: {percent(point.differing)} in {ms(point.p50_ms)}"
            drawing.mark(x, y, name, told, radius=4.0)
    return drawing
