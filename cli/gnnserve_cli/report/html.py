"""The report as one page: its sections, one after the other. What any page is made of is `page.py`."""

from __future__ import annotations

from html import escape

from gnnserve_cli.report import figures, page, tables
from gnnserve_cli.report.data import Chosen, ModelFit, Report
from gnnserve_cli.report.facts import made_facts, model_facts
from gnnserve_cli.report.words import METRIC, ms, nodes, percent


def build_page(report: Report) -> str:
    sections = [
        ("accuracy", "Accuracy against latency", _frontier(report)),
        ("tolerance", "Latency under an accuracy tolerance", _tolerances(report)),
        ("stages", "Where the time goes", _stages(report)),
        ("window", "The paper's window and the whole request", _window(report)),
        ("costs", "Bytes, memory and size", _costs(report)),
        ("widths", "Which width meets a latency", _widths(report)),
        ("model", "Performance model", _models(report)),
        ("drift", "Validation against test", _drift(report)),
        ("ranking", "Stability of the ranking", _stability(report)),
        ("made", "How it was made", page.facts(made_facts(report))),
    ]
    title = f"{report.service}: accuracy against latency"
    under = f"Revision {report.revision}, published {_day(report)}"
    return page.build_frame(
        title,
        under,
        _summary(report),
        sections,
        f"Written by {escape(report.written_by)}. Yik et al., <cite>Dynamic GNN inference as-a-service via "
        "accuracy-performance trade-offs</cite>, is “the paper” here.",
    )


def _day(report: Report) -> str:
    return report.provenance.created_at[:10]


# --- sections


def _summary(report: Report) -> str:
    summary = report.summary
    cards = (
        ("Most accurate", summary.best),
        ("Fastest within one point", summary.within_one_point),
        ("Fastest", summary.fastest),
    )
    told = "".join(f"<div><dt>{escape(name)}</dt>{_card(chosen, report)}</div>" for name, chosen in cards)
    minds = "".join(f"<li>{escape(caution)}</li>" for caution in report.cautions)
    return (
        f'<section aria-label="Summary"><dl class="summary">{told}</dl>{page.says(summary.says)}'
        f'<h3>To keep in mind</h3><ul class="mind">{minds}</ul></section>\n'
    )


def _card(chosen: Chosen, report: Report) -> str:
    test = report.variant(chosen.variant).test
    on_test = "" if test is None else f", {percent(test.share)} on test nodes"
    return (
        f"<dd>{escape(chosen.variant)}</dd><dd>{percent(chosen.accuracy)} {METRIC[report.metric]}{on_test}</dd>"
        f"<dd>{ms(chosen.latency_ms)} for {nodes(report.seeds)}</dd>"
    )


def _frontier(report: Report) -> str:
    storages = list(dict.fromkeys(row.storage for row in report.variants))
    keys = [(f"s-{storage}", str(storage)) for storage in storages] if len(storages) > 1 else []
    if any(not row.on_frontier for row in report.variants):
        keys.append((f"s-{storages[0]} hollow", "another is as accurate and faster"))
    if any(row.projected for row in report.variants):
        keys.append((f"s-{storages[0]} diamond", "first layer stored per node: nothing lost but rounding"))
    drawn = page.figure(lambda width: figures.draw_frontier(report, width), keys=page.keys(keys) if keys else "")
    return page.says(report.says.frontier) + drawn + page.table(tables.variants_table(report))


def _tolerances(report: Report) -> str:
    told = report.tolerances
    caption = f"Latency of the fastest variant within the tolerance, in % of {report.summary.best.variant}'s."
    drawn = page.figure(lambda width: figures.draw_tolerances(report, width), caption)
    advice = page.says("Permille are what `spec.objective.accuracyTolerancePermille` and requests take.")
    tiers = f"<h3>Tiers</h3>{page.says(told.says_tiers)}{page.table(tables.tiers_table(report))}{advice}"
    return page.says(told.says) + drawn + page.table(tables.tolerances_table(report)) + tiers


def _stages(report: Report) -> str:
    def draw(seeds: int) -> str:
        return page.figure(lambda width: figures.draw_stages(report, seeds, width))

    keys = page.keys([(class_, name) for _, class_, name in figures.STAGES])
    drawn = "".join(draw(size.seeds) for size in report.variants[0].sizes)
    note = page.says("Medians of stages, which need not add up to the median of the whole.")
    return (
        page.says(report.says.stages)
        + keys
        + drawn
        + page.details("All times", note + page.table(tables.stages_table(report)))
    )


def _window(report: Report) -> str:
    keys = page.keys([("c2", "gathering and computing"), ("c1", "the rest of the request: sampling")])
    drawn = page.figure(lambda width: figures.draw_window(report, width), keys=keys)
    return page.says(report.says.window) + drawn + page.table(tables.window_table(report))


def _costs(report: Report) -> str:
    def draw(cost: figures.Cost) -> str:
        return page.figure(lambda width: figures.draw_cost(report, cost, width))

    drawn = "".join(draw(cost) for cost in figures.Cost)
    return page.says(report.says.costs) + drawn + page.details("All figures", page.table(tables.costs_table(report)))


def _widths(report: Report) -> str:
    told = report.latencies
    drawn = page.figure(lambda width: figures.draw_widths(report, width))
    answers = "".join(page.says(answer.says) for answer in told.answers)
    widths = [width for answer in told.answers for width in answer.widths]
    note = page.says("* Fewer than any measured variant reads.") if any(width.extrapolated for width in widths) else ""
    if any(width.capped or width.model_capped for width in widths):
        note += page.says("≥ As wide as was measured; more may fit.")
    return page.says(told.says) + drawn + answers + page.table(tables.widths_table(report)) + note


def _models(report: Report) -> str:
    return page.says(report.says.models) + "".join(
        _model(fit, with_heading=len(report.models) > 1) for fit in report.models
    )


def _model(fit: ModelFit, *, with_heading: bool) -> str:
    keys = [(f"s-{fit.storage}", "measured"), (f"s-{fit.storage} hollow", "measured, and fitted to")]
    if fit.paper_gigabytes_per_s is not None:
        keys.append(("paper stroke", "paper's model"))
    if fit.gather_fixed_ms is not None:
        keys.append(("corrected stroke", "corrected model"))
    drawn = page.figure(lambda width: figures.draw_model(fit, width), keys=page.keys(keys))
    problems = "".join(page.says(problem, "problem") for problem in fit.problems)
    heading = f"<h3>{escape(str(fit.storage))}</h3>" if with_heading else ""
    return (
        heading
        + page.says(fit.says)
        + problems
        + drawn
        + page.table(tables.model_table(fit))
        + page.facts(model_facts(fit))
    )


def _drift(report: Report) -> str:
    drift = report.drift
    if drift is None:
        return page.says(tables.NO_TEST_NODES)
    verdict = f'<p class="verdict v-{drift.verdict}">Verdict: {tables.VERDICTS[drift.verdict]}.</p>'
    drawn = page.figure(
        lambda width: figures.draw_drift(report, width),
        "Left of the line: worse on test nodes. A bar that crosses it may be chance.",
    )
    return verdict + page.says(drift.says) + drawn + page.table(tables.drift_table(report))


def _stability(report: Report) -> str:
    keys = page.keys([("c2", "agreed on"), ("marker stroke", "by chance")])
    drawn = page.figure(lambda width: figures.draw_stability(report, width), keys=keys)
    return page.says(report.stability.says) + drawn + page.table(tables.stability_table(report))
