"""The tables of a report, as texts: the page and the terminal show the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnnserve_api.files.profile import StaleLayerProfile
from gnnserve_cli.render import format_bytes
from gnnserve_cli.report.data import DriftVerdict, LatencyAnswer, ModelFit, Report, VariantRow, at_size
from gnnserve_cli.report.stale import name_changes
from gnnserve_cli.report.words import nodes, number, percent, plain_ms, signed_points

VERDICTS = {
    DriftVerdict.WITHIN_CHANCE: "within chance",
    DriftVerdict.SMALL: "small, but more than chance",
    DriftVerdict.DRIFT: "drift",
}
_NOTHING = "–"
NO_TEST_NODES = "The graph has no test nodes, so nothing says whether what was profiled holds on other nodes."


@dataclass(frozen=True, slots=True)
class Cells:
    label: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The first cell names its row."""


def _cells(label: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Cells:
    return Cells(label, tuple(headers), tuple(tuple(row) for row in rows))


def variants_table(report: Report) -> Cells:
    headers = ["Variant", "Columns", "Stored as", "Validation", "95 % interval", "Test", "Loss, points",
               "May be chance", "Median, ms", "p99, ms"]  # fmt: skip
    rows = [_variant_row(row, report.seeds) for row in report.variants]
    if any(row.new_nodes for row in report.variants):
        headers.append("New nodes, median ms")
        rows = [[*shown, _new_nodes(row, report.seeds)] for shown, row in zip(rows, report.variants, strict=True)]
    if any(row.in_service for row in report.variants):
        headers.append("In service, by labels")
        rows = [[*shown, _in_service(row)] for shown, row in zip(rows, report.variants, strict=True)]
    return _cells("Variants", headers, rows)


def measures_table(report: Report) -> Cells | None:
    """Figures of the task beside its metric; None: it has none."""
    figures = [row.judged.figures_beside(report.metric) for row in report.variants]
    if not figures[0]:
        return None
    split = "test" if report.test_items else "validation"
    headers = ["Variant", *(f"{name}, {split}" for name in figures[0])]
    rows = [[row.name, *map(percent, of_one.values())] for row, of_one in zip(report.variants, figures, strict=True)]
    return _cells("Other measures", headers, rows)


def _new_nodes(row: VariantRow, seeds: int) -> str:
    return next((plain_ms(point.p50_ms) for point in row.new_nodes if point.seeds == seeds), _NOTHING)


def _in_service(row: VariantRow) -> str:
    found = row.in_service
    if found is None:
        return _NOTHING
    counted = f"{found.nodes:,} {row.judged.item}{'' if found.nodes == 1 else 's'}"
    return f"{percent(found.mean)} ({100 * found.low:.2f} to {100 * found.high:.2f}; {counted})"


def _variant_row(row: VariantRow, seeds: int) -> list[str]:
    size = at_size(row, seeds)
    chance = _NOTHING if row.loss_points == 0 else "yes" if row.loss_may_be_chance else "no"
    return [
        row.name,
        f"{row.columns:,}",
        str(row.storage),
        percent(row.validation.share),
        f"{100 * row.validation.low:.2f} to {100 * row.validation.high:.2f}",
        _NOTHING if row.test is None else percent(row.test.share),
        f"{row.loss_points:.2f}",
        chance,
        plain_ms(size.p50_ms),
        plain_ms(size.p99_ms),
    ]


def tolerances_table(report: Report) -> Cells:
    best = report.summary.best.variant
    rows = [
        [f"{row.tolerance_points:g}", row.answer.variant, f"{row.answer.loss_points:.2f}",
         plain_ms(row.answer.latency_ms), percent(row.answer.relative_latency, 0)]
        for row in report.tolerances.rows
    ]  # fmt: skip
    headers = ["Tolerance, points", "Variant", "Loss, points", "Median, ms", f"Latency of {best}"]
    return _cells("Latency under accuracy tolerance", headers, rows)


def tiers_table(report: Report) -> Cells:
    best = report.summary.best.variant
    rows = [
        [str(tier.tolerance_permille), tier.answer.variant, percent(tier.answer.accuracy),
         f"{tier.answer.loss_points:.2f}", plain_ms(tier.answer.latency_ms), percent(tier.answer.relative_latency, 0)]
        for tier in report.tolerances.tiers
    ]  # fmt: skip
    headers = ["Tier, permille", "Variant", "Validation", "Loss, points", "Median, ms", f"Latency of {best}"]
    return _cells("Tiers", headers, rows)


def stages_table(report: Report) -> Cells:
    rows = [
        [row.name, f"{size.seeds:,}", plain_ms(size.sample_ms), plain_ms(size.gather_ms), plain_ms(size.compute_ms),
         plain_ms(size.p50_ms), plain_ms(size.p99_ms), f"{plain_ms(size.mean_ms)} ± {plain_ms(size.std_ms)}",
         f"{size.runs:,}"]
        for row in report.variants
        for size in row.sizes
    ]  # fmt: skip
    headers = ["Variant", "Nodes", "Sampling", "Gathering", "Computing", "Median, ms", "p99, ms", "Mean ± std", "Runs"]
    return _cells("Stages of a batch", headers, rows)


def window_table(report: Report) -> Cells:
    rows = []
    for row in report.variants:
        size = at_size(row, report.seeds)
        share = _NOTHING if size.gather_to_compute is None else number(size.gather_to_compute)
        rows.append([row.name, plain_ms(size.window_ms), plain_ms(size.window_std_ms), plain_ms(size.p50_ms), share])
    headers = ["Variant", "Window, ms", "± std", "Request, ms", "Gathering / computing"]
    return _cells("The paper's window", headers, rows)


def costs_table(report: Report) -> Cells:
    rows = [
        [row.name, *(format_bytes(size.gathered_bytes) for size in row.sizes), format_bytes(row.memory_bytes),
         format_bytes(row.size_bytes)]
        for row in report.variants
    ]  # fmt: skip
    reads = (f"Read, {nodes(size.seeds)}" for size in report.variants[0].sizes)
    return _cells("Bytes, memory and size", ["Variant", *reads, "Memory", "Weights"], rows)


def widths_table(report: Report) -> Cells:
    headers = [
        "Latency, ms",
        "By median",
        f"By median × {number(report.latencies.tail_ratio)}",
        "Stored as",
        "Columns",
        "k",
        "Columns by the model",
    ]
    rows = [row for answer in report.latencies.answers for row in _width_rows(answer)]
    return _cells("Widths that meet a latency", headers, rows)


def _width_rows(answer: LatencyAnswer) -> list[list[str]]:
    chosen = [f"{answer.latency_ms:,.10g}", answer.by_median or "none", answer.by_p99 or "none"]
    if not answer.widths:
        return [[*chosen, *[_NOTHING] * 4]]
    return [
        [
            *chosen,
            str(width.storage),
            "none"
            if width.columns is None
            else _columns(width.columns, extrapolated=width.extrapolated, capped=width.capped),
            _NOTHING if width.factor is None else f"{width.factor:,}",
            _NOTHING if width.model_columns is None else _columns(width.model_columns, capped=width.model_capped),
        ]
        for width in answer.widths
    ]


def _columns(count: int, *, extrapolated: bool = False, capped: bool) -> str:
    return f"{'≥ ' if capped else ''}{count:,}{' *' if extrapolated else ''}"


def model_table(fit: ModelFit) -> Cells:
    rows = [
        [p.variant, f"{p.columns:,}", plain_ms(p.measured_ms),
         *_predicted(p.corrected_ms, p.corrected_error_percent, fitted=p.calibrated_with)]
        for p in fit.predictions
    ]  # fmt: skip
    headers = ["Variant", "Columns", "Measured, ms", "Predicted, ms", "Error"]
    return _cells(f"Predicted and measured, {fit.storage}", headers, rows)


def _predicted(predicted_ms: float | None, error_percent: float | None, *, fitted: bool) -> tuple[str, str]:
    if predicted_ms is None:
        return _NOTHING, _NOTHING
    error = _NOTHING if error_percent is None else _signed_percent(error_percent)
    return plain_ms(predicted_ms), f"{error} (fitted)" if fitted else error


def _signed_percent(value: float) -> str:
    shown = f"{value:+.0f} %"
    return "0 %" if shown in {"+0 %", "-0 %"} else shown.replace("-", "−")


def drift_table(report: Report) -> Cells | None:
    drift = report.drift
    if drift is None:
        return None
    interval = "95 % interval" if len(drift.rows) == 1 else "Joint 95 % interval"
    headers = ["Variant", "Validation", "Test", "Difference, points", interval, "Verdict",
               f"Validation, ms for {drift.latency_seeds:,}", "Test, ms", "Rows, test / validation"]  # fmt: skip
    rows = [
        [row.variant, percent(row.validation), percent(row.test), signed_points(row.difference_points),
         f"{signed_points(row.low_points)} to {signed_points(row.high_points)}", VERDICTS[row.verdict],
         *(_NOTHING if value is None else plain_ms(value)
           for value in (row.validation_ms, row.test_ms, row.rows_ratio))]
        for row in drift.rows
    ]  # fmt: skip
    return _cells("Validation against test", headers, rows)


def stale_table(measured: StaleLayerProfile) -> Cells:
    rows = [
        [name_changes(changes), percent(point.recomputed, 0), f"{point.rows:.1f}", plain_ms(point.p50_ms),
         percent(point.differing), _NOTHING if point.accuracy is None else percent(point.accuracy)]
        for changes in measured.changes
        for point in changes.points
    ]  # fmt: skip
    rows.append(["no row is stale", _NOTHING, _NOTHING, plain_ms(measured.exact_p50_ms), percent(0), _NOTHING])
    if measured.whole is not None:
        whole = f"whole neighbourhoods, {measured.whole.variant}"
        rows.append([whole, _NOTHING, _NOTHING, plain_ms(measured.whole.p50_ms), _NOTHING, _NOTHING])
    headers = [
        "What came",
        "Stale rows made anew",
        "Rows a request",
        "Median, ms",
        "Differing answers",
        "Right answers",
    ]
    return _cells(f"Stale rows of layer {measured.layer}", headers, rows)


def stability_table(report: Report) -> Cells | None:
    measured = report.stability.measured
    if measured is None or not measured.top:
        return None
    headers = ["Columns chosen", "In common", "Least of a pair", "By chance", "Jaccard", "In every choice"]
    rows = [
        [f"{top.columns:,} of {measured.features:,}", percent(top.in_common, 0), percent(top.least_in_common, 0),
         percent(top.by_chance, 0), f"{top.jaccard:.2f}", f"{top.in_every:,}"]
        for top in measured.top
    ]  # fmt: skip
    return _cells("Stability of the ranking", headers, rows)
