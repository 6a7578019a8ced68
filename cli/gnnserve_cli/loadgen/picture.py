"""A run as a picture: offered load, latency against the objective, who answered, and what was attained.

matplotlib is imported only where a picture is drawn: it is not installed everywhere, and takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnserve_api.errors import InputError
from gnnserve_api.extras import PICTURES
from gnnserve_cli.loadgen.record import Record
from gnnserve_cli.loadgen.statistics import Accuracies, LoadPlan, LoadReport, Slice, slice_up
from gnnserve_cli.render import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PARTS = 120
LEAST_REQUESTS = 40
"""Fewest requests per part of the picture, on average: a percentile of fewer says little."""
_ENDINGS = (".svg", ".png")
_OFFERED, _ON_TIME, _REFUSED, OBJECTIVE_COLOR = "#444444", "#1b7f5c", "#c0392b", "#c0392b"
STYLE: Any = {
    "svg.hashsalt": "gnnserve",  # the same run, the same file
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def check_picture(path: Path) -> None:
    """Raises where the picture cannot be written. It is called before the run, whose end is too late to learn that."""
    if path.suffix.lower() not in _ENDINGS:
        raise InputError("--picture", f"{str(path)!r} ends neither in .svg nor in .png", "give the file one of the two")
    PICTURES.require("--picture", "matplotlib")
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise InputError(
            "--picture", f"{str(path)!r} cannot be written: {error.strerror}", "name a file in a folder that can"
        ) from error
    if is_new:
        path.unlink()  # a run that is stopped leaves no empty picture


def draw_picture(path: Path, plan: LoadPlan, record: Record, report: LoadReport, accuracies: Accuracies) -> None:
    from matplotlib import rc_context  # noqa: PLC0415 - not installed everywhere, and slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    parts = max(10, min(MOST_PARTS, report.requests // LEAST_REQUESTS))
    slices = slice_up(plan, record, parts, accuracies)
    with rc_context(STYLE):
        figure = Figure(figsize=(9.0, 8.4), layout="constrained")
        load, latency, shares, attained = figure.subplots(
            4, 1, sharex=True, gridspec_kw={"height_ratios": (1.1, 1.1, 1.1, 0.8)}
        )
        figure.suptitle(_title(report), fontsize=10.5, fontweight="bold", x=0.01, ha="left")
        _draw_load(load, slices)
        _draw_latency(latency, slices, report)
        _draw_shares(shares, slices, _most_accurate_first(report, accuracies), accuracies)
        _draw_attained(attained, slices, report)
        attained.set_xlabel("seconds since the start")
        attained.set_xlim(0, plan.duration_s)
        save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
    figure.savefig(path, dpi=110, metadata=metadata)


def _title(report: LoadReport) -> str:
    peak = " at the peak" if report.scenario else ""
    seeds = count(report.seeds_per_request, "seed")
    parts = [f"{report.scenario or 'load'}: {report.offered_per_second:,.10g} requests/s of {seeds}{peak}"]
    if report.attained_percent is not None and report.objective is not None:
        parts.append(f"{report.attained_percent:.2f} % within {report.objective.latency_ms:,.10g} ms")
    if report.accuracy_percent is not None:
        parts.append(f"{report.accuracy_split} accuracy {report.accuracy_percent:.2f} %")
    return "; ".join(parts)


def _most_accurate_first(report: LoadReport, accuracies: Accuracies) -> list[str]:
    return sorted(report.variants, key=lambda name: (-accuracies.percent.get(name, 0.0), name))


def _edges(slices: Sequence[Slice]) -> list[float]:
    return [*(part.start_s for part in slices), slices[-1].end_s]


def _middles(slices: Sequence[Slice]) -> list[float]:
    return [(part.start_s + part.end_s) / 2 for part in slices]


def _draw_load(axes: Axes, slices: Sequence[Slice]) -> None:
    edges = _edges(slices)
    axes.stairs([part.offered_per_second for part in slices], edges, color=_OFFERED, label="offered", linewidth=1.4)
    if any(part.on_time_per_second is not None for part in slices):
        on_time = [part.on_time_per_second or 0.0 for part in slices]
        axes.stairs(on_time, edges, fill=True, color=_ON_TIME, alpha=0.35, label="answered on time")
    refused = [part.refused / (part.end_s - part.start_s) for part in slices]
    if any(refused):
        axes.stairs(refused, edges, color=_REFUSED, label="refused", linewidth=1.4)
    axes.set_title("Requests per second")
    axes.set_ylim(bottom=0)
    draw_legend(axes)


def _draw_latency(axes: Axes, slices: Sequence[Slice], report: LoadReport) -> None:
    times = _middles(slices)
    for name, color, values in (
        ("p50", "#7fa8d1", [part.p50_ms for part in slices]),
        ("p99", "#1f4e80", [part.p99_ms for part in slices]),
    ):
        axes.plot(times, [float("nan") if value is None else value for value in values], color=color, label=name)
    if report.objective is not None and report.objective.latency_ms is not None:
        axes.axhline(
            report.objective.latency_ms, color=OBJECTIVE_COLOR, linestyle="--", linewidth=1.2, label="objective"
        )
    axes.set_title("Latency of the answers in ms, due to answered")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    draw_legend(axes)


def _draw_shares(axes: Axes, slices: Sequence[Slice], order: Sequence[str], accuracies: Accuracies) -> None:
    from matplotlib import colormaps  # noqa: PLC0415 - as above

    edges = _edges(slices)
    below = [0.0] * len(slices)
    for number, name in enumerate(order):
        color = colormaps["YlGnBu"](0.95 - 0.7 * number / max(1, len(order) - 1))
        above = [base + 100 * part.variants.get(name, 0.0) for base, part in zip(below, slices, strict=True)]
        accuracy = accuracies.percent.get(name)
        label = name if accuracy is None else f"{name} ({accuracy:.1f} %)"
        axes.stairs(above, edges, baseline=below, fill=True, color=color, label=label)
        below = above
    axes.set_title("Shares of the variants in the answers, in %")
    axes.set_ylim(0, 100)
    draw_legend(axes, reverse=True)  # as they lie on each other


def _draw_attained(axes: Axes, slices: Sequence[Slice], report: LoadReport) -> None:
    if report.attained_percent is None:
        # Where all were refused, rounding would leave a little less than nothing.
        values = [
            100 * max(0.0, 1 - part.refused / max(1.0, part.offered_per_second * (part.end_s - part.start_s)))
            for part in slices
        ]
        axes.set_title("Requests not refused, in %: no latency is asked for")
    else:
        values = [float("nan") if part.attained_percent is None else part.attained_percent for part in slices]
        axes.set_title("Requests answered on time, in %")
    axes.stairs(values, _edges(slices), color=_ON_TIME, baseline=None, linewidth=1.4)
    lowest = min((value for value in values if not math.isnan(value)), default=0.0)
    axes.set_ylim(next((low for low in (95, 90, 80, 50) if low <= lowest), 0), 100.5)


def draw_legend(axes: Axes, *, reverse: bool = False) -> None:
    """Draws the legend beside the axes: inside, it would lie over what it explains."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.4, reverse=reverse)
