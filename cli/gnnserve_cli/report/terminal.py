"""The report on a terminal: the page's sentences and tables, without its drawings."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gnnserve_cli.render import facts_table
from gnnserve_cli.report import tables
from gnnserve_cli.report.data import DriftVerdict, Report
from gnnserve_cli.report.facts import made_facts, model_facts

SEARCH_HEADING = "What the search kept (+), what it did not (-), and why"
_STYLES = {DriftVerdict.WITHIN_CHANCE: "green", DriftVerdict.SMALL: "yellow", DriftVerdict.DRIFT: "red"}


def render_report(report: Report) -> list[RenderableType]:
    """Names and paths of the user's are texts here, never markup."""
    shown: list[RenderableType] = [
        Text(f"{report.service}: accuracy against latency", style="bold"),
        Text(f"Revision {report.revision}, published {report.provenance.created_at[:10]}"),
        "",
        Text(report.summary.says),
        *(Text(f"- {caution}") for caution in report.cautions),
    ]
    shown += _part("Accuracy against latency", report.says.frontier, tables.variants_table(report))
    if (measures := tables.measures_table(report)) is not None:
        shown += ["", _table(measures)]
    if report.search:
        shown += _part(SEARCH_HEADING, "\n".join(report.search), None)
    shown += _part("Latency under an accuracy tolerance", report.tolerances.says, tables.tolerances_table(report))
    shown += _part("Tiers", report.tolerances.says_tiers, tables.tiers_table(report))
    shown += _part("Where the time goes", report.says.stages, tables.stages_table(report))
    shown += _part("The paper's window and the whole request", report.says.window, tables.window_table(report))
    shown += _part("Bytes, memory and size", report.says.costs, tables.costs_table(report))
    answers = "\n".join(answer.says for answer in report.latencies.answers)
    shown += _part("Which width meets a latency", f"{report.latencies.says}\n{answers}", tables.widths_table(report))
    shown += _part("Performance model", report.says.models, None)
    for fit in report.models:
        shown += [
            Text("\n".join([fit.says, *fit.problems])),
            _table(tables.model_table(fit)),
            facts_table(model_facts(fit)),
        ]
    if report.drift is None:
        shown += _part("Validation against test", tables.NO_TEST_NODES, None)
    else:
        shown += _part("Validation against test", report.drift.says, tables.drift_table(report))
        verdict = report.drift.verdict
        shown.append(Text(f"Verdict: {tables.VERDICTS[verdict]}", style=f"bold {_STYLES[verdict]}"))
    for layer in report.stale_layers:
        shown += _part("Stored layers that may be stale", layer.says, tables.stale_table(layer.measured))
    shown += _part("Stability of the ranking", report.stability.says, tables.stability_table(report))
    shown += [*_part("How it was made", "", None), facts_table(made_facts(report))]
    return shown


def _part(heading: str, says: str, cells: tables.Cells | None) -> list[RenderableType]:
    shown: list[RenderableType] = ["", Text(heading, style="bold underline")]
    if says:
        shown.append(Text(says.replace("`", "")))
    if cells is not None:
        shown.append(_table(cells))
    return shown


def _table(cells: tables.Cells) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    first, *rest = cells.headers
    table.add_column(Text(first), style="bold", overflow="fold")
    for header in rest:
        table.add_column(Text(header), justify="right", overflow="fold")
    for row in cells.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
