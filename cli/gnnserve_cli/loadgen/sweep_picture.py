"""A sweep of concurrency as a picture: throughput, latency, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gnnserve_cli.loadgen.picture import OBJECTIVE_COLOR, STYLE, draw_legend, save_figure
from gnnserve_cli.loadgen.statistics import LoadReport
from gnnserve_cli.render import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_THROUGHPUT = "#1b7f5c"
_PARTS = (
    ("client send", "client_send_ms", "#444444"),
    ("network and server receive/send", "network_ms", "#c8a45c"),
    ("wait", "wait_ms", "#b0473b"),
    ("compute", "compute_ms", "#2f6ca3"),
    ("client receive", "client_receive_ms", "#a9a9a9"),
)
"""From the bottom to the top, in the order in which they happen."""


def draw_sweep(path: Path, reports: Sequence[LoadReport]) -> None:
    from matplotlib import rc_context  # noqa: PLC0415 - not installed everywhere, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context(STYLE):
        figure = Figure(figsize=(9.0, 8.0), layout="constrained")
        throughput, latency, parts = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (1.0, 1.0, 1.4)})
        first = reports[0]
        form = "arrays" if first.binary else "JSON"
        title = f"closed loop, {count(first.seeds_per_request, 'seed')} each, {form}, {first.duration_s:,.3g} s a point"
        figure.suptitle(title, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
        places = range(len(reports))
        _draw_throughput(throughput, reports)
        _draw_latency(latency, reports)
        _draw_parts(parts, reports)
        parts.set_xticks(places, [f"{report.connections:,}" for report in reports])
        parts.set_xlabel("connections")
        save_figure(figure, path)


def _draw_throughput(axes: Axes, reports: Sequence[LoadReport]) -> None:
    axes.plot([report.answers_per_second for report in reports], color=_THROUGHPUT, marker="o", markersize=4)
    axes.set_title("Answers per second")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _draw_latency(axes: Axes, reports: Sequence[LoadReport]) -> None:
    for name, color in (("p50", "#7fa8d1"), ("p99", "#1f4e80")):
        values = [float("nan") if report.latency_ms is None else getattr(report.latency_ms, name) for report in reports]
        axes.plot(values, color=color, label=name, marker="o", markersize=4)
    objective = reports[0].objective
    if objective is not None and objective.latency_ms is not None:
        axes.axhline(objective.latency_ms, color=OBJECTIVE_COLOR, linestyle="--", linewidth=1.2, label="objective")
    axes.set_title("Latency in ms, sent to answered")
    axes.set_yscale("log")
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(_label_of)
    draw_legend(axes)


def _label_of(value: float, _place: float) -> str:
    """Label of a tick on a logarithmic axis: 1, 2 and 5 of each power of ten, since all of them overlap."""
    return f"{value:,.3g}" if f"{value:e}"[0] in "125" else ""


def _draw_parts(axes: Axes, reports: Sequence[LoadReport]) -> None:
    below = [0.0] * len(reports)
    for label, name, color in _PARTS:
        values = [0.0 if report.parts is None else getattr(report.parts, name) for report in reports]
        axes.bar(range(len(reports)), values, 0.7, below, color=color, label=label)
        below = [base + value for base, value in zip(below, values, strict=True)]
    axes.set_title("Where the mean latency goes, in ms")
    draw_legend(axes, reverse=True)
