"""docs/benchmarks.md, rendered whole from the results and from what is said of each benchmark's method in `about`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.dependencies import History
from benchmarks.page import (  # noqa: F401 - they register their renderers
    accuracy_figures,
    answer_figures,
    engine_figures,
    frontier_figures,
    gpu_figures,
    load_figures,
    models_figures,
    operator_figures,
    peers_figures,
    protocol_figures,
    recommend_figures,
    updates_figures,
    verdict_figures,
)
from benchmarks.page.ages import age_in_words, commit_in_words, commits_since, day_of, most
from benchmarks.page.figure_blocks import RENDERERS, PartRead, Results, paragraphs, table

ABOUT = Path(__file__).parents[1] / "about"
"""A Markdown file for each benchmark: its title, its command with the question that it answers, its method. Links are
as from docs/. No figures that were measured: those would drift."""
INTRODUCTION = "introduction"

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Answers": (
        "peers", "models", "serving", "sweep", "listener", "protocol", "conformance", "tracing", "malformed",
        "relations", "regression",
    ),
    "The engine": ("roofline", "scaling", "shapes", "gpu", "gpu_tests", "cache", "cache_stress"),
    "Load": ("routing", "simulation", "decision", "cluster_routing", "shared_worker", "soak"),
    "Accuracy": (
        "generation", "ranking", "frontier", "channels", "cascade", "links", "live_accuracy",
    ),
    "Graphs that change": ("unseen", "updates", "staleness", "updates_faults", "recommend"),
    "Data and starts": ("import", "startup"),
    "Clusters": ("cluster", "fleet", "faults", "chaos"),
}  # fmt: skip
"""Benchmarks in the order of the page."""
_NAMED_PARTS = 6
"""Parts of one run that are named; of more the number is told."""


@dataclass(frozen=True, slots=True)
class About:
    title: str
    text: str

    @property
    def link(self) -> str:
        return f"[{self.title}](#{anchor(self.title)})"


def read_about(benchmark: str) -> About:
    title, _, text = (ABOUT / f"{benchmark}.md").read_text(encoding="utf-8").partition("\n")
    return About(title.removeprefix("# "), text.strip())


def anchor(title: str) -> str:
    """Anchor that GitHub makes from a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def render_page(results: Results, history: History) -> str:
    introduction = read_about(INTRODUCTION)
    return (
        paragraphs(
            f"# {introduction.title}",
            "<!-- Written by `make figures` from benchmarks/results and benchmarks/about. -->",
            introduction.text,
            _contents(),
            "## Misses",
            render_misses(results),
            *(
                paragraphs(f"## {group}", *(render_section(name, results, history) for name in names))
                for group, names in GROUPS.items()
            ),
            "## Machines",
            render_machines(results),
        )
        + "\n"
    )


def _contents() -> str:
    lines = [f"- {group}: {', '.join(read_about(name).link for name in names)}" for group, names in GROUPS.items()]
    return "\n".join(["- [Misses](#misses)", *lines, "- [Machines](#machines)"])


def render_section(name: str, results: Results, history: History) -> str:
    about = read_about(name)
    heading = f"### {about.title}"
    if name not in results.names():
        return paragraphs(heading, about.text, "Not run yet.")
    return paragraphs(
        heading,
        about.text,
        verdict_table(results.verdicts(name)),
        RENDERERS[name](results[name]),
        _measured(results.parts(name), history),
    )


def verdict_table(verdicts: Mapping[str, Mapping[str, Any]]) -> str:
    return table(
        ("", "wanted", "measured", ""),
        (
            (name, wanted, shown(one["measured"]), "met" if one["passed"] else "**missed**")
            for (name, one), wanted in zip(verdicts.items(), _told_once(_wanted(verdicts.values())), strict=True)
        ),
    )


def _wanted(verdicts: Iterable[Mapping[str, Any]]) -> list[str]:
    return [shown(one["wanted"]) for one in verdicts]


def shown(value: Any) -> str:
    """What was wanted or measured, in a cell."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return {"True": "yes", "False": "no"}.get(str(value), str(value))


def _measured(parts: Iterable[PartRead], history: History) -> str:
    """One sentence: which parts were measured when, at which commit, and how many commits ago."""
    by_run: dict[tuple[str, str], list[PartRead]] = {}
    every = list(parts)
    for part in every:
        by_run.setdefault((day_of(part) or "an unknown day", commit_in_words(part)), []).append(part)
    words = []
    for (day, commit), of_run in sorted(by_run.items()):
        age = age_in_words(most(commits_since(part, history) for part in of_run))
        words.append(f"{_named(of_run, every)} at {commit} on {day} (since then {age})")
    return f"Measured{':' if len(by_run) > 1 else ''}{';'.join(words)}."


def _named(parts: list[PartRead], every: list[PartRead]) -> str:
    """Names of parts after a space; empty for all that there are."""
    if len(parts) == len(every):
        return ""
    if len(parts) > _NAMED_PARTS:
        return f" {len(parts)} parts"
    return f" {', '.join(part.name for part in parts)}"


def render_machines(results: Results) -> str:
    by_machine: dict[str, dict[str, list[PartRead]]] = {}
    for part in every_part(results):
        by_machine.setdefault(machine_in_words(part), {}).setdefault(part.benchmark, []).append(part)
    return table(
        ("machine", "measured on it"),
        (
            (machine, ", ".join(_on_machine(parts, results) for parts in by_benchmark.values()))
            for machine, by_benchmark in sorted(by_machine.items())
        ),
    )


def _on_machine(parts: list[PartRead], results: Results) -> str:
    name = parts[0].benchmark
    named = _named(parts, results.parts(name)).strip()
    return f"`{name}`" + (f" ({named})" if named else "")


def machine_in_words(part: PartRead) -> str:
    machine = part.record["machine"]
    if machine is None:
        return "unknown"
    words = [machine["cpu"].replace("(R)", ""), f"{machine['cores']} cores", f"{machine['memoryGiB']:g} GiB"]
    return ", ".join([*words, *([machine["gpu"]] if machine.get("gpu") else [])])


def render_misses(results: Results) -> str:
    """All verdicts that are missed, of all files."""
    missed = dict[str, dict[str, Mapping[str, Any]]]()
    count = 0
    for name in in_order(results):
        verdicts = results.verdicts(name)
        count += len(verdicts)
        missed[name] = {figure: one for figure, one in verdicts.items() if not one["passed"]}
    met = count - sum(map(len, missed.values()))
    return paragraphs(
        f"{met} of {count} verdicts are met; these are not:",
        table(
            ("", "figure", "wanted", "measured", "why, as far as it is known"),
            (row for name, verdicts in missed.items() for row in _missed_rows(read_about(name).link, verdicts)),
        ),
    )


def _missed_rows(link: str, verdicts: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    wanted, reasons = _wanted(verdicts.values()), [one.get("reason", "") for one in verdicts.values()]
    for (figure, one), bound, reason in zip(verdicts.items(), _told_once(wanted), _told_once(reasons), strict=True):
        yield link, figure, bound, shown(one["measured"]), reason


_SHORT_WORDS = 3
"""Cells of at most so many words are repeated."""


def _told_once(cells: Iterable[str]) -> Iterator[str]:
    """Cells of a column; "as above" where one repeats the row before and is longer than that."""
    before = ""
    for cell in cells:
        yield "as above" if cell == before and len(cell.split()) > _SHORT_WORDS else cell
        before = cell


def every_part(results: Results) -> Iterator[PartRead]:
    for name in in_order(results):
        yield from results.parts(name)


def in_order(results: Results) -> list[str]:
    """Benchmarks that have a result, as the page has them."""
    present = results.names()
    return [name for names in GROUPS.values() for name in names if name in present]
