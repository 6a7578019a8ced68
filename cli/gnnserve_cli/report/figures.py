"""The figures of a report: what of it is drawn, and how. Each is drawn for a width in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from gnnserve_cli.render import format_bytes
from gnnserve_cli.report.data import ModelFit, Prediction, Report, SizeRow, VariantRow, at_size
from gnnserve_cli.report.svg import (
    Bar,
    Box,
    Part,
    Plot,
    Scale,
    bar_plot,
    fixed_scale,
    shorten,
    spread_scale,
    text_width,
    tick,
    zero_scale,
)
from gnnserve_cli.report.words import ms, nodes, percent, plain_ms, signed_points

_LEFT, _TOP, _RIGHT, _BOTTOM = 46.0, 10.0, 12.0, 38.0
STAGES = (("sample", "c1", "Sampling"), ("gather", "c2", "Gathering"), ("compute", "c3", "Computing"))


def draw_frontier(report: Report, width: float) -> Plot:
    rows, seeds = report.variants, report.seeds
    times = {row.name: at_size(row, seeds).p50_ms for row in rows}
    told = "; ".join(f"{row.name} {percent(row.validation.share)} in {ms(times[row.name])}" for row in rows)
    plot = Plot(
        width, min(380.0, 0.62 * width + 60), f"Validation accuracy against latency of {seeds:,} nodes: {told}."
    )
    right, bottom = width - _RIGHT, plot.height - _BOTTOM
    x = spread_scale(times.values(), _LEFT, right, int(width / 75))
    y = spread_scale([100 * edge for row in rows for edge in (row.validation.low, row.validation.high)], bottom, _TOP)
    plot.x_axis(x, _TOP, bottom)
    plot.y_axis(y, _LEFT, right)
    scale = ", logarithmic" if x.log else ""
    plot.text((_LEFT + right) / 2, plot.height - 5, f"median latency of {seeds:,} nodes in ms{scale}", anchor="middle")
    for row in rows:
        at = x.at(times[row.name])
        plot.whisker(at, y.at(100 * row.validation.low), at, y.at(100 * row.validation.high), "whisker")
    joined = sorted((row for row in rows if row.on_frontier), key=lambda row: times[row.name])
    plot.path([(x.at(times[row.name]), y.at(100 * row.validation.share)) for row in joined], "frontier")
    # Those on the frontier last, so that they lie on top, and first when labels are placed.
    for row in sorted(rows, key=lambda row: row.on_frontier):
        kind = f"s-{row.storage} {'solid' if row.on_frontier else 'hollow'}"
        accuracy = f"{percent(row.validation.share)} ({percent(row.validation.low)} to {percent(row.validation.high)})"
        plot.mark(
            x.at(times[row.name]), y.at(100 * row.validation.share), kind,
            f"{row.name}: {accuracy} in {ms(times[row.name])}", shape="diamond" if row.projected else "circle",
        )  # fmt: skip
    for row in sorted(rows, key=lambda row: not row.on_frontier):
        plot.try_label(x.at(times[row.name]), y.at(100 * row.validation.share), row.name)
    return plot


def draw_tolerances(report: Report, width: float) -> Plot:
    """A step for each tier."""
    tiers = report.tolerances.tiers
    told = "; ".join(
        f"from {tier.answer.loss_points:.2f} points {tier.answer.variant} at {percent(tier.answer.relative_latency, 0)}"
        for tier in tiers
    )
    plot = Plot(width, min(300.0, 0.45 * width + 70), f"Latency under accuracy tolerance: {told}.")
    right, bottom = width - _RIGHT, plot.height - _BOTTOM
    last = max([tier.answer.loss_points for tier in tiers] + [1.0])
    x = fixed_scale(0, last * 1.18, _LEFT, right, int(width / 80))
    y = fixed_scale(0, 108, bottom, _TOP)
    plot.x_axis(x, _TOP, bottom)
    plot.y_axis(y, _LEFT, right)
    plot.text((_LEFT + right) / 2, plot.height - 5, "accuracy tolerance in points", anchor="middle")
    corners: list[tuple[float, float]] = []
    for tier in tiers:
        at, height = x.at(tier.answer.loss_points), y.at(100 * tier.answer.relative_latency)
        if corners:
            corners.append((at, corners[-1][1]))
        corners.append((at, height))
    corners.append((right, corners[-1][1]))
    plot.path(corners, "frontier strong")
    for tier in tiers:
        at, height = x.at(tier.answer.loss_points), y.at(100 * tier.answer.relative_latency)
        share = percent(tier.answer.relative_latency, 0)
        plot.mark(at, height, "s-float32 solid", f"{tier.answer.variant}: {share} of the latency", radius=4.0)
    for tier in tiers:
        at, height = x.at(tier.answer.loss_points), y.at(100 * tier.answer.relative_latency)
        share = percent(tier.answer.relative_latency, 0)
        for text in (f"{tier.answer.variant} {share}", tier.answer.variant):
            if plot.try_label(at, height, text):
                break
    return plot


def draw_stages(report: Report, seeds: int, width: float) -> Plot:
    def parts(size: SizeRow) -> tuple[Part, ...]:
        return tuple(
            Part(getattr(size, f"{stage}_ms"), class_, f"{name} {ms(getattr(size, f'{stage}_ms'))}")
            for stage, class_, name in STAGES
        )

    bars = []
    for row in report.variants:
        size = at_size(row, seeds)
        made = parts(size)
        bars.append(Bar(row.name, made, plain_ms(sum(part.value for part in made))))
    told = "; ".join(f"{bar.name}: {', '.join(part.told for part in bar.parts)}" for bar in bars)
    title = "1 node, ms" if seeds == 1 else f"{seeds:,} nodes, ms"
    return bar_plot(bars, width, f"Stages of a batch of {title}: {told}.", title)


def draw_window(report: Report, width: float) -> Plot:
    bars = []
    for row in report.variants:
        size = at_size(row, report.seeds)
        rest = max(0.0, size.p50_ms - size.window_ms)
        parts = (
            Part(size.window_ms, "c2", f"{row.name}: {ms(size.window_ms)} in the paper's window"),
            Part(rest, "c1", f"{row.name}: {ms(rest)} outside of it"),
        )
        bars.append(Bar(row.name, parts, f"{plain_ms(size.window_ms)} of {plain_ms(size.p50_ms)}"))
    told = "; ".join(f"{bar.name} {bar.shown} ms" for bar in bars)
    return bar_plot(
        bars, width, f"Time in the paper's window, of the whole request: {told}.", f"{report.seeds:,} nodes, ms"
    )


class Cost(StrEnum):
    READ = "Read"
    MEMORY = "Memory"
    WEIGHTS = "Weights"


def draw_cost(report: Report, cost: Cost, width: float) -> Plot:
    match cost:
        case Cost.READ:
            sizes = [at_size(row, report.seeds).gathered_bytes for row in report.variants]
            return _draw_bytes(report.variants, sizes, width, f"Read for {nodes(report.seeds)}")
        case Cost.MEMORY:
            return _draw_bytes(report.variants, [row.memory_bytes for row in report.variants], width, cost)
        case Cost.WEIGHTS:
            return _draw_bytes(report.variants, [row.size_bytes for row in report.variants], width, cost)


def _draw_bytes(rows: Sequence[VariantRow], sizes: Sequence[int], width: float, title: str) -> Plot:
    unit, divisor = "B", 1.0
    for larger in ("KiB", "MiB", "GiB"):
        if max(sizes) >= 1024 * divisor:
            unit, divisor = larger, divisor * 1024
    bars = [
        Bar(row.name, (Part(size / divisor, "c2", f"{row.name}: {format_bytes(size)}"),), format_bytes(size))
        for row, size in zip(rows, sizes, strict=True)
    ]
    told = "; ".join(f"{bar.name} {bar.shown}" for bar in bars)
    return bar_plot(bars, width, f"{title}: {told}.", f"{title}, {unit}")


def draw_drift(report: Report, width: float) -> Plot | None:
    """Test minus validation with its interval, a row per variant."""
    drift = report.drift
    if drift is None:
        return None
    row_height, top = 20.0, 8.0
    told = "; ".join(f"{row.variant} {signed_points(row.difference_points)}" for row in drift.rows)
    plot = Plot(width, top + row_height * len(drift.rows) + 40, f"Test minus validation accuracy in points: {told}.")
    left = min(max(text_width(row.variant) for row in drift.rows) + 10, width * 0.34)
    right, bottom = width - _RIGHT, top + row_height * len(drift.rows)
    edges = [edge for row in drift.rows for edge in (row.low_points, row.high_points)]
    margin = 0.05 * (max([*edges, 0]) - min([*edges, 0])) or 1.0
    x = fixed_scale(min([*edges, 0]) - margin, max([*edges, 0]) + margin, left, right, int((right - left) / 60))
    plot.x_axis(x, top, bottom, signed_tick)
    plot.line(x.at(0), top, x.at(0), bottom, "zero")
    plot.text((left + right) / 2, plot.height - 5, "test minus validation, points", anchor="middle")
    for index, row in enumerate(drift.rows):
        y = top + row_height * (index + 0.5)
        plot.text(left - 6, y + 4, shorten(row.variant, left - 10), "name", anchor="end")
        plot.line(x.at(row.low_points), y, x.at(row.high_points), y, f"range v-{row.verdict}")
        interval = f"{signed_points(row.low_points)} to {signed_points(row.high_points)}"
        told = f"{row.variant}: {signed_points(row.difference_points)} points ({interval})"
        plot.mark(x.at(row.difference_points), y, f"point v-{row.verdict}", told, radius=4.0)
    return plot


def signed_tick(value: float) -> str:
    return tick(value).replace("-", "−") if value <= 0 else f"+{tick(value)}"


def draw_stability(report: Report, width: float) -> Plot | None:
    measured = report.stability.measured
    if measured is None or not measured.top:
        return None
    bars = [
        Bar(
            f"{top.columns:,} columns" if top.columns > 1 else "1 column",
            (
                Part(
                    100 * top.in_common,
                    "c2",
                    f"{percent(top.in_common, 0)} in common, {percent(top.by_chance, 0)} by chance",
                ),
            ),
            percent(top.in_common, 0),
            marker=100 * top.by_chance,
        )
        for top in measured.top
    ]
    told = "; ".join(f"{bar.name} {bar.shown}, by chance {bar.marker or 0:.0f} %" for bar in bars)
    return bar_plot(
        bars, width, f"Share of the chosen columns that two seeds agree on: {told}.", "In common, %", high=100
    )


def draw_model(fit: ModelFit, width: float) -> Plot:
    """Measured and predicted windows against columns."""
    shown = sorted(fit.predictions, key=lambda p: p.columns)
    told = "; ".join(
        f"{p.variant} measured {ms(p.measured_ms)}{_told(p.paper_ms, 'paper')}{_told(p.corrected_ms, 'corrected')}"
        for p in shown
    )
    plot = Plot(width, min(320.0, 0.5 * width + 70), f"Paper's window against columns, {fit.storage}: {told}.")
    right, bottom = width - _RIGHT, plot.height - _BOTTOM
    x = zero_scale([p.columns for p in shown], _LEFT, right, int(width / 80))
    values = [v for p in shown for v in (p.measured_ms, p.paper_ms, p.corrected_ms) if v is not None]
    y = zero_scale([1.05 * max(values)], bottom, _TOP)
    plot.x_axis(x, _TOP, bottom)
    plot.y_axis(y, _LEFT, right)
    plot.text((_LEFT + right) / 2, plot.height - 5, "columns; window in ms", anchor="middle")
    for class_, times_ms in (
        ("paper", {p.variant: p.paper_ms for p in shown}), ("corrected", {p.variant: p.corrected_ms for p in shown})
    ):  # fmt: skip
        line = []
        for p in shown:
            predicted_ms = times_ms[p.variant]
            if predicted_ms is None:
                continue
            if p.projected:
                told = f"{p.variant}: {ms(predicted_ms)} predicted"
                plot.mark(x.at(p.columns), y.at(predicted_ms), f"point {class_}", told, radius=3.0)
            else:
                line.append((x.at(p.columns), y.at(predicted_ms)))
        plot.path(line, f"series {class_}")
    for p in shown:
        plot.mark(
            x.at(p.columns), y.at(p.measured_ms), f"s-{fit.storage} {_filling(p)}",
            f"{p.variant}: {ms(p.measured_ms)} measured", shape="diamond" if p.projected else "circle", radius=4.0,
        )  # fmt: skip
    for p in shown:
        plot.try_label(x.at(p.columns), y.at(p.measured_ms), p.variant)
    return plot


def _filling(prediction: Prediction) -> str:
    return "hollow" if prediction.calibrated_with or prediction.paper_calibrated_with else "solid"


def _told(value: float | None, what: str) -> str:
    return "" if value is None else f", {what} {ms(value)}"


def draw_widths(report: Report, width: float) -> Plot | None:
    """Median latency against columns, with the latencies that were asked for."""
    storages = [curve.storage for curve in report.latencies.curves]
    if not storages:
        return None
    rows = [row for row in report.variants if not row.projected and row.storage in storages]
    times = {row.name: at_size(row, report.seeds).p50_ms for row in rows}
    told = "; ".join(f"{row.name} {row.columns:,} columns {ms(times[row.name])}" for row in rows)
    plot = Plot(width, min(320.0, 0.5 * width + 70), f"Median latency against columns: {told}.")
    right, bottom = width - _RIGHT, plot.height - _BOTTOM
    x = zero_scale([row.columns for row in rows], _LEFT, right, int(width / 80))
    asked = [answer.latency_ms for answer in report.latencies.answers]
    highest = max(times.values())
    y = zero_scale([1.05 * max([highest, *(latency for latency in asked if latency <= 1.5 * highest)])], bottom, _TOP)
    plot.x_axis(x, _TOP, bottom)
    plot.y_axis(y, _LEFT, right)
    label = f"columns; median latency of {report.seeds:,} nodes in ms"
    plot.text((_LEFT + right) / 2, plot.height - 5, label, anchor="middle")
    for latency in asked:
        if latency <= y.high:
            plot.line(_LEFT, y.at(latency), right, y.at(latency), "limit")
            plot.text(right, y.at(latency) - 4, ms(latency), anchor="end")
            plot.taken.append(Box(right - 60, y.at(latency) - 15, right, y.at(latency)))
    for storage in storages:
        line = sorted((row for row in rows if row.storage is storage), key=lambda row: row.columns)
        plot.path([(x.at(row.columns), y.at(times[row.name])) for row in line], f"series l-{storage}")
        _mark_all(plot, line, times, x, y)
    for row in rows:
        plot.try_label(x.at(row.columns), y.at(times[row.name]), row.name)
    return plot


def _mark_all(plot: Plot, rows: Sequence[VariantRow], times: dict[str, float], x: Scale, y: Scale) -> None:
    for row in rows:
        told = f"{row.name}: {row.columns:,} columns, {ms(times[row.name])}"
        plot.mark(x.at(row.columns), y.at(times[row.name]), f"s-{row.storage} solid", told, radius=4.0)
