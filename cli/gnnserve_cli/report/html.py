"""The report as one page: the figures, tables and values that `templates/report.html` shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from gnnserve_api.families import point_of
from gnnserve_cli.render import metric_name
from gnnserve_cli.report import figures, tables
from gnnserve_cli.report.data import ModelFit, Report, StaleLayer
from gnnserve_cli.report.drawing import MarkShape, show
from gnnserve_cli.report.facts import made_facts, model_facts
from gnnserve_cli.report.page import render_page
from gnnserve_cli.report.stale import name_changes

_HEADINGS = {
    "accuracy": "Accuracy against latency",
    "mind": "To keep in mind",
    "tolerance": "Latency under an accuracy tolerance",
    "stages": "Where the time goes",
    "window": "The paper's window and the whole request",
    "costs": "Bytes, memory and size",
    "widths": "Which width meets a latency",
    "model": "Performance model",
    "drift": "Validation against test",
    "stale": "Stored layers that may be stale",
    "ranking": "Stability of the ranking",
    "made": "How it was made",
}
Signs = list[tuple[str, str]]
"""The key of a figure: the classes of each sign in the style, and what it stands for."""


def build_page(report: Report) -> str:
    summary = report.summary
    return render_page(
        "report.html",
        title=f"{report.service}: accuracy against latency",
        under=f"Revision {report.revision}, published {report.provenance.created_at[:10]}",
        headings={name: text for name, text in _HEADINGS.items() if name != "stale" or report.stale_layers},
        report=report,
        metric=metric_name(report.metric),
        cards=(
            ("Most accurate", summary.best),
            ("Fastest within one point", summary.within_one_point),
            ("Fastest", summary.fastest),
        ),
        figures=_figures(report),
        signs={
            "frontier": _frontier_signs(report),
            "stages": [(colour, name) for _, colour, name in figures.STAGES],
        },
        tables={
            "variants": tables.variants_table(report),
            "measures": tables.measures_table(report),
            "tolerances": tables.tolerances_table(report),
            "tiers": tables.tiers_table(report),
            "stages": tables.stages_table(report),
            "window": tables.window_table(report),
            "costs": tables.costs_table(report),
            "widths": tables.widths_table(report),
            "drift": tables.drift_table(report),
            "stability": tables.stability_table(report),
        },
        width_notes=_width_notes(report),
        models=[_model(fit) for fit in report.models],
        stale_layers=[_stale_layer(one) for one in report.stale_layers],
        items=f"{report.variants[0].judged.item}s",
        verdicts=tables.VERDICTS,
        no_test_nodes=tables.NO_TEST_NODES,
        made=made_facts(report),
    )


def _figures(report: Report) -> dict[str, Markup | list[Markup]]:
    sizes = [size.seeds for size in report.variants[0].sizes]
    return {
        "frontier": show(partial(figures.draw_frontier, report)),
        "tolerances": show(partial(figures.draw_tolerances, report)),
        "stages": [show(partial(figures.draw_stages, report, seeds)) for seeds in sizes],
        "window": show(partial(figures.draw_window, report)),
        "costs": [show(partial(figures.draw_cost, report, cost)) for cost in figures.Cost],
        "widths": show(partial(figures.draw_widths, report)),
        "drift": show(partial(figures.draw_drift, report)),
        "stability": show(partial(figures.draw_stability, report)),
    }


def _frontier_signs(report: Report) -> Signs:
    storages = list(dict.fromkeys(row.storage for row in report.variants))
    keys = [(f"s-{storage}", str(storage)) for storage in storages] if len(storages) > 1 else []
    if any(not row.on_frontier for row in report.variants):
        keys.append((f"s-{storages[0]} hollow", "another is as accurate and faster"))
    told = {figures.shape_of(point): point.description for point in map(point_of, report.variants)}
    keys += [(f"s-{storages[0]} {shape}", text) for shape, text in told.items() if shape is not MarkShape.CIRCLE]
    return keys


def _width_notes(report: Report) -> list[str]:
    widths = [width for answer in report.latencies.answers for width in answer.widths]
    notes = ["* Fewer than any measured variant reads."] if any(width.extrapolated for width in widths) else []
    if any(width.capped or width.model_capped for width in widths):
        notes.append("≥ As wide as was measured; more may fit.")
    return notes


@dataclass(frozen=True, slots=True)
class _Model:
    fit: ModelFit
    drawn: Markup
    signs: Signs
    table: tables.Cells
    facts: list[tuple[str, str]]


def _model(fit: ModelFit) -> _Model:
    keys = [(f"s-{fit.storage}", "measured"), (f"s-{fit.storage} hollow", "measured, and fitted to")]
    if fit.gather_fixed_ms is not None:
        keys.append(("predicted stroke", "predicted"))
    drawn = show(partial(figures.draw_model, fit))
    return _Model(fit, drawn, keys, tables.model_table(fit), model_facts(fit))


@dataclass(frozen=True, slots=True)
class _StaleLayer:
    says: str
    drawn: Markup
    signs: Signs
    table: tables.Cells


def _stale_layer(one: StaleLayer) -> _StaleLayer:
    signed = zip(one.measured.changes, figures.STALE_SIGNS, strict=False)
    keys = [(sign, name_changes(changes)) for changes, (_, sign) in signed]
    return _StaleLayer(
        one.says, show(partial(figures.draw_stale, one.measured)), keys, tables.stale_table(one.measured)
    )
