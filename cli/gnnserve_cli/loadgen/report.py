"""A report as people read it: facts, and a table of the course of the run."""

from __future__ import annotations

from rich import box
from rich.table import Table

from gnnserve_cli.loadgen.parts import MeanParts
from gnnserve_cli.loadgen.requests import Sizes
from gnnserve_cli.loadgen.statistics import LATE_MS, LoadReport, Percentiles
from gnnserve_cli.parts import format_parts
from gnnserve_cli.render import format_ms


def facts_of(report: LoadReport) -> list[tuple[str, str]]:
    latency_from = "sent to answered" if report.mode == "closed" else "due to answered"
    facts = [
        ("loop", _loop(report)),
        ("objective", _objective(report)),
        ("requests", f"{report.requests:,} in {report.duration_s:,.2f} s{_retried(report)}"),
        ("answers", f"{report.answers:,}: {report.answers_per_second:,.1f}/s, {report.seeds_per_second:,.1f} seeds/s"),
        ("latency ms", f"{_format(report.latency_ms)}  ({latency_from})"),
    ]
    if report.parts is not None:
        facts.append(("its parts", f"{format_parts(report.parts.as_parts())}  (means; {_sum_of(report.parts)})"))
    if report.mode == "open":
        late = f"; {report.late:,} came to over {LATE_MS:g} ms late" if report.late else ""
        facts.append(("own lag ms", f"{_format(report.lag_ms)}  (due to sent{late})"))
    if report.attained_percent is not None:
        facts.append(("attained", f"{report.attained_percent:.2f} % answered on time"))
    if report.goodput_per_second is not None:
        facts.append(("goodput", f"{report.goodput_per_second:,.1f} answers/s on time"))
    if report.accuracy_percent is not None:
        of_whom = "answers" if report.attained_percent is None else "answers on time"
        facts.append(("accuracy", f"{report.accuracy_percent:.2f} % ({report.accuracy_split}, mean of the {of_whom})"))
    if report.variants:
        facts.append(("variants", ", ".join(f"{name} {share:.1%}" for name, share in report.variants.items())))
    if report.objective_met_share is not None:
        facts.append(("objective met", f"{report.objective_met_share:.1%} of the answers, as the server says"))
    if report.refused:
        facts.append(("refused", f"{report.refused:,}: {report.refused / report.requests:.1%}"))
    facts.append(("statuses", _counts(report.statuses)))
    if report.errors:
        facts.append(("errors", _counts(report.errors)))
        facts += [("", f"{reason}: {sentence}") for reason, sentence in report.sentences.items()]
    return facts


def _loop(report: LoadReport) -> str:
    kind = "closed"
    if report.offered_per_second is not None:
        peak = f"{report.scenario}, peak " if report.scenario else ""
        kind = f"open, {peak}{report.offered_per_second:,.10g} requests/s"
    mean = "about " if report.sizes is Sizes.LOGNORMAL else ""
    form = "binary" if report.binary else "JSON"
    seeds = f"{mean}{report.seeds_per_request:,}"
    if report.new_nodes:
        seeds += f" (new nodes, {report.new_edges:,} edges each)"
    return f"{kind}; connections: {report.connections:,}, seeds per request: {seeds}, {form}"


def _objective(report: LoadReport) -> str:
    objective = report.objective
    if objective is None:
        return "none"
    parts = []
    if objective.latency_ms is not None:
        parts.append(f"{objective.latency_ms:,.10g} ms")
    if objective.accuracy_tolerance_permille is not None:
        parts.append(f"tolerance {objective.accuracy_tolerance_permille:,.10g} permille")
    return f"{', '.join(parts)} ({'of the service' if objective.stated_by == 'service' else 'stated by each request'})"


def _sum_of(parts: MeanParts) -> str:
    return f"sum {format_ms(parts.sum_ms)}, sent to answered {format_ms(parts.total_ms)}"


def _retried(report: LoadReport) -> str:
    return f", {report.tries:,} tries" if report.tries > report.requests else ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items()) or "none"


def _format(times: Percentiles | None) -> str:
    if times is None:
        return "none"
    named = {"p50": times.p50, "p90": times.p90, "p99": times.p99, "max": times.max}
    return "  ".join(f"{name} {format_ms(value)}" for name, value in named.items())


def slices_table(report: LoadReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    names = list(report.variants)
    for header in ("From s", "Offered/s", "On time", "Refused", "p50 ms", "p99 ms", "Accuracy", *names):
        table.add_column(header, justify="right", no_wrap=True)
    for part in report.slices:
        table.add_row(
            f"{part.start_s:,.1f}",
            f"{part.offered_per_second:,.1f}",
            "-" if part.attained_percent is None else f"{part.attained_percent:.2f} %",
            f"{part.refused:,}",
            "-" if part.p50_ms is None else format_ms(part.p50_ms),
            "-" if part.p99_ms is None else format_ms(part.p99_ms),
            "-" if part.accuracy_percent is None else f"{part.accuracy_percent:.2f}",
            *(f"{100 * part.variants.get(name, 0.0):.1f} %" for name in names),
        )
    return table
