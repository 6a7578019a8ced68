"""Runs of `gnnserve load` as pictures, from what it prints with --json: a run over time, or a sweep of concurrency.

gnnserve load http://127.0.0.1:8080 --scenario bursts --rate 500 --latency-ms 200 --json > run.json
python -m benchmarks.answers.load_pictures run.json bursts.png
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gnnserve_cli.loadgen.statistics import LoadReport, Slice
from gnnserve_cli.render import count

_OFFERED, _ON_TIME, _REFUSED, _OBJECTIVE = "#444444", "#1b7f5c", "#c0392b", "#c0392b"
_STYLE: Any = {
    "svg.hashsalt": "gnnserve",  # the same run, the same file
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
_PARTS = (
    ("client send", "client_send_ms", "#444444"),
    ("network and server receive/send", "network_ms", "#c8a45c"),
    ("wait", "wait_ms", "#b0473b"),
    ("compute", "compute_ms", "#2f6ca3"),
    ("client receive", "client_receive_ms", "#a9a9a9"),
)
"""From the bottom to the top, in the order in which they happen."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.answers.load_pictures", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("report", type=Path, help="the file of the JSON")
    parser.add_argument("picture", type=Path, help="a .svg or .png")
    options = parser.parse_args()
    draw(options.picture, json.loads(options.report.read_text(encoding="utf-8")))


def draw(path: Path, printed: Mapping[str, Any]) -> None:
    """`printed`: what --json prints, of one run of a rate, or of a sweep. Raises SystemExit for a closed loop."""
    if "points" in printed:
        draw_sweep(path, msgspec.convert(printed["points"], list[LoadReport]))
        return
    report = msgspec.convert(printed, LoadReport)
    if not report.slices:
        raise SystemExit("a closed loop has no course over time: give `gnnserve load` a --rate, or a --sweep")
    draw_run(path, report)


# --- a run over time: offered load, latency against the objective, who answered, and what was attained


def draw_run(path: Path, report: LoadReport) -> None:
    slices = report.slices
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 8.4), layout="constrained")
        load, latency, shares, attained = figure.subplots(
            4, 1, sharex=True, gridspec_kw={"height_ratios": (1.1, 1.1, 1.1, 0.8)}
        )
        figure.suptitle(_title(report), fontsize=10.5, fontweight="bold", x=0.01, ha="left")
        _draw_load(load, slices)
        _draw_latency(latency, slices, report)
        _draw_shares(shares, slices, sorted(report.variants))
        _draw_attained(attained, slices, report)
        attained.set_xlabel("seconds since the start")
        attained.set_xlim(0, slices[-1].end_s)
        _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
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


def _edges(slices: Sequence[Slice]) -> list[float]:
    return [*(part.start_s for part in slices), slices[-1].end_s]


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
    _draw_legend(axes)


def _draw_latency(axes: Axes, slices: Sequence[Slice], report: LoadReport) -> None:
    middles = [(part.start_s + part.end_s) / 2 for part in slices]
    for name, color, values in (
        ("p50", "#7fa8d1", [part.p50_ms for part in slices]),
        ("p99", "#1f4e80", [part.p99_ms for part in slices]),
    ):
        axes.plot(middles, [float("nan") if value is None else value for value in values], color=color, label=name)
    _draw_objective(axes, report)
    axes.set_title("Latency of the answers in ms, due to answered")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    _draw_legend(axes)


def _draw_objective(axes: Axes, report: LoadReport) -> None:
    if report.objective is not None and report.objective.latency_ms is not None:
        axes.axhline(report.objective.latency_ms, color=_OBJECTIVE, linestyle="--", linewidth=1.2, label="objective")


def _draw_shares(axes: Axes, slices: Sequence[Slice], variants: Sequence[str]) -> None:
    edges = _edges(slices)
    below = [0.0] * len(slices)
    for number, name in enumerate(variants):
        color = colormaps["YlGnBu"](0.95 - 0.7 * number / max(1, len(variants) - 1))
        above = [base + 100 * part.variants.get(name, 0.0) for base, part in zip(below, slices, strict=True)]
        axes.stairs(above, edges, baseline=below, fill=True, color=color, label=name)
        below = above
    axes.set_title("Shares of the variants in the answers, in %")
    axes.set_ylim(0, 100)
    _draw_legend(axes, reverse=True)  # as they lie on each other


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


def _draw_legend(axes: Axes, *, reverse: bool = False) -> None:
    """Draws the legend beside the axes: inside, it would lie over what it explains."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=1.4, reverse=reverse)


# --- a sweep of concurrency: throughput, latency, and where its time went


def draw_sweep(path: Path, reports: Sequence[LoadReport]) -> None:
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 8.0), layout="constrained")
        throughput, latency, parts = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (1.0, 1.0, 1.4)})
        first = reports[0]
        form = "arrays" if first.binary else "JSON"
        title = f"closed loop, {count(first.seeds_per_request, 'seed')} each, {form}, {first.duration_s:,.3g} s a point"
        figure.suptitle(title, fontsize=10.5, fontweight="bold", x=0.01, ha="left")
        throughput.plot([report.answers_per_second for report in reports], color=_ON_TIME, marker="o", markersize=4)
        throughput.set_title("Answers per second")
        throughput.set_ylim(bottom=0)
        throughput.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        _draw_latencies(latency, reports)
        _draw_parts(parts, reports)
        parts.set_xticks(range(len(reports)), [f"{report.connections:,}" for report in reports])
        parts.set_xlabel("connections")
        _save(figure, path)


def _draw_latencies(axes: Axes, reports: Sequence[LoadReport]) -> None:
    for name, color in (("p50", "#7fa8d1"), ("p99", "#1f4e80")):
        values = [float("nan") if report.latency_ms is None else getattr(report.latency_ms, name) for report in reports]
        axes.plot(values, color=color, label=name, marker="o", markersize=4)
    _draw_objective(axes, reports[0])
    axes.set_title("Latency in ms, sent to answered")
    axes.set_yscale("log")
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(_label_of)
    _draw_legend(axes)


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
    _draw_legend(axes, reverse=True)


if __name__ == "__main__":
    main()
