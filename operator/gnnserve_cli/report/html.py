"""The report as one page that needs nothing else: no script, no font, no picture from anywhere.

Every figure is drawn twice, for wide and for narrow screens, and the style shows one: text in a drawing that was merely
made smaller could not be read on a phone. All text that is not this module's own goes through `escape`; a policy that
allows the page's own style alone would keep even what got past it from doing anything.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from html import escape
from importlib import resources

from gnnserve_cli.report import figures, tables
from gnnserve_cli.report.data import Chosen, ModelFit, Report
from gnnserve_cli.report.facts import made_facts, model_facts
from gnnserve_cli.report.svg import Plot
from gnnserve_cli.report.words import METRIC, ms, nodes, percent

_WIDE, _NARROW = 760.0, 360.0
Draw = Callable[[float], Plot | None]


def build_page(report: Report) -> str:
    style = resources.files("gnnserve_cli.report").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
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
        ("made", "How it was made", _facts(made_facts(report))),
    ]
    title = f"{report.service}: accuracy against latency"
    links = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading, _ in sections)
    body = "".join(_section(name, heading, content) for name, heading, content in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{digest}'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>"
        f'<p class="under">Revision {escape(report.revision)}, published {escape(_day(report))}</p></header>\n'
        f'<nav aria-label="Contents"><ol>{links}</ol></nav>\n'
        f"<main>{_summary(report)}{body}</main>\n"
        f"<footer><p>Written by {escape(report.written_by)}. Yik et al., <cite>Dynamic GNN inference as-a-service via "
        "accuracy-performance trade-offs</cite>, is “paper A” here.</p></footer>\n</body>\n</html>\n"
    )


def _day(report: Report) -> str:
    return report.provenance.created_at[:10]


def _section(name: str, heading: str, content: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{escape(heading)}</h2>{content}</section>\n'
    )


def _says(text: str, class_: str = "") -> str:
    attribute = f' class="{class_}"' if class_ else ""
    # Names of settings stand between backticks in the sentences.
    parts = escape(text).split("`")
    marked = "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
    return f"<p{attribute}>{marked}</p>"


def _figure(draw: Draw, caption: str = "", keys: str = "") -> str:
    wide, narrow = draw(_WIDE), draw(_NARROW)
    if wide is None or narrow is None:
        return ""
    told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{wide.render('wide')}{narrow.render('narrow')}{keys}{told}</figure>"


def _keys(entries: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f'<li><i class="{class_}"></i>{escape(text)}</li>' for class_, text in entries)
    return f'<ul class="keys">{listed}</ul>'


def _table(cells: tables.Cells | None) -> str:
    if cells is None:
        return ""
    head = "".join(f'<th scope="col">{escape(header)}</th>' for header in cells.headers)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in cells.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(cells.label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


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
        f'<section aria-label="Summary"><dl class="summary">{told}</dl>{_says(summary.says)}'
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
    drawn = _figure(lambda width: figures.draw_frontier(report, width), keys=_keys(keys) if keys else "")
    return _says(report.says.frontier) + drawn + _table(tables.variants_table(report))


def _tolerances(report: Report) -> str:
    told = report.tolerances
    caption = f"Latency of the fastest variant within the tolerance, in % of {report.summary.best.variant}'s."
    drawn = _figure(lambda width: figures.draw_tolerances(report, width), caption)
    advice = _says("Permille are what `spec.objective.accuracyTolerancePermille` and requests take.")
    tiers = f"<h3>Tiers</h3>{_says(told.says_tiers)}{_table(tables.tiers_table(report))}{advice}"
    return _says(told.says) + drawn + _table(tables.tolerances_table(report)) + tiers


def _stages(report: Report) -> str:
    def draw(seeds: int) -> str:
        return _figure(lambda width: figures.draw_stages(report, seeds, width))

    keys = _keys([(class_, name) for _, class_, name in figures.STAGES])
    drawn = "".join(draw(size.seeds) for size in report.variants[0].sizes)
    note = _says("Medians of stages, which need not add up to the median of the whole.")
    return _says(report.says.stages) + keys + drawn + _details("All times", note + _table(tables.stages_table(report)))


def _window(report: Report) -> str:
    keys = _keys([("c2", "gathering and computing"), ("c1", "the rest of the request: sampling")])
    drawn = _figure(lambda width: figures.draw_window(report, width), keys=keys)
    return _says(report.says.window) + drawn + _table(tables.window_table(report))


def _costs(report: Report) -> str:
    def draw(cost: figures.Cost) -> str:
        return _figure(lambda width: figures.draw_cost(report, cost, width))

    drawn = "".join(draw(cost) for cost in figures.Cost)
    return _says(report.says.costs) + drawn + _details("All figures", _table(tables.costs_table(report)))


def _widths(report: Report) -> str:
    told = report.latencies
    drawn = _figure(lambda width: figures.draw_widths(report, width))
    answers = "".join(_says(answer.says) for answer in told.answers)
    widths = [width for answer in told.answers for width in answer.widths]
    note = _says("* Fewer than any measured variant reads.") if any(width.extrapolated for width in widths) else ""
    if any(width.capped or width.model_capped for width in widths):
        note += _says("≥ As wide as was measured; more may fit.")
    return _says(told.says) + drawn + answers + _table(tables.widths_table(report)) + note


def _models(report: Report) -> str:
    return _says(report.says.models) + "".join(
        _model(fit, with_heading=len(report.models) > 1) for fit in report.models
    )


def _model(fit: ModelFit, *, with_heading: bool) -> str:
    keys = [(f"s-{fit.storage}", "measured"), (f"s-{fit.storage} hollow", "measured, and fitted to")]
    if fit.paper_gigabytes_per_s is not None:
        keys.append(("paper stroke", "paper's model"))
    if fit.gather_fixed_ms is not None:
        keys.append(("corrected stroke", "corrected model"))
    drawn = _figure(lambda width: figures.draw_model(fit, width), keys=_keys(keys))
    problems = "".join(_says(problem, "problem") for problem in fit.problems)
    heading = f"<h3>{escape(str(fit.storage))}</h3>" if with_heading else ""
    return heading + _says(fit.says) + problems + drawn + _table(tables.model_table(fit)) + _facts(model_facts(fit))


def _drift(report: Report) -> str:
    drift = report.drift
    if drift is None:
        return _says(tables.NO_TEST_NODES)
    verdict = f'<p class="verdict v-{drift.verdict}">Verdict: {tables.VERDICTS[drift.verdict]}.</p>'
    drawn = _figure(
        lambda width: figures.draw_drift(report, width),
        "Left of the line: worse on test nodes. A bar that crosses it may be chance.",
    )
    return verdict + _says(drift.says) + drawn + _table(tables.drift_table(report))


def _stability(report: Report) -> str:
    keys = _keys([("c2", "agreed on"), ("marker stroke", "by chance")])
    drawn = _figure(lambda width: figures.draw_stability(report, width), keys=keys)
    return _says(report.stability.says) + drawn + _table(tables.stability_table(report))


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f'<dl class="facts">{listed}</dl>'
