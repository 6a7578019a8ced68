"""Runs by card: docs/gpu.md's table, and the tables of what was measured there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from benchmarks.dependencies import History
from benchmarks.gpu.figures import SHEETS
from benchmarks.page.ages import commit_in_words, day_of
from benchmarks.page.figure_blocks import PartRead, Results, figures, paragraphs, table

RUN_ON_CARDS = ("gpu_tests", "gpu")
_BLOCK = re.compile(r"(<!-- figures: cards -->\n).*?(<!-- end of figures -->)", re.DOTALL)


@figures("gpu")
def measured(found: Any) -> str:
    made = [(sheet(found[name]), name) for name, sheet in SHEETS.items() if name in found]
    return paragraphs(
        *(
            f"{sheet.title} (`{name}`, on {found['cards'][name]['name']}):\n\n{table(sheet.head, sheet.rows)}"
            for sheet, name in made
        )
    )


@figures("gpu_tests")
def tested(found: Any) -> str:
    return table(
        ("part", "card", "passed", "failed", "skipped"),
        (
            (name, found["cards"][name]["name"], *(f"{outcome[count]:,}" for count in ("passed", "failed", "skipped")))
            for name, outcome in found["outcomes"].items()
        ),
    )


def fill_cards(page: str, results: Results, _: History) -> str:
    """The page with its table rendered anew. Raises ValueError where it has none."""
    filled, found = _BLOCK.subn(lambda found: f"{found[1]}{render_cards(results)}\n{found[2]}", page)
    if found != 1:
        raise ValueError(f"docs/gpu.md has {found} blocks `<!-- figures: cards -->`, and one is filled")
    return filled


def render_cards(results: Results) -> str:
    known = results.names()
    rows = [_row(part) for name in RUN_ON_CARDS if name in known for part in results.parts(name)]
    if not rows:
        return "Nothing has been run on a GPU yet."
    return table(("card", "driver", "torch, Triton", "what", "outcome", "at"), rows)


def _row(part: PartRead) -> tuple[str, ...]:
    found = part.record["found"]
    card = found["cards"][part.name]
    target = "test-gpu" if part.benchmark == "gpu_tests" else "bench-gpu"
    return (
        card["name"], card.get("driver", "unknown"), f"{card['torch']}, {card['triton']}",
        f"`make {target} ONLY={part.name}`", ", ".join(_outcome(found, part.name)),
        f"{commit_in_words(part)}, {day_of(part)}",
    )  # fmt: skip


def _outcome(found: Any, part: str) -> Iterator[str]:
    if "outcomes" not in found:
        yield "measured ([benchmarks.md](benchmarks.md#on-a-gpu))"
        return
    outcome = found["outcomes"][part]
    yield from (f"{outcome[count]:,} {count}" for count in ("passed", "failed", "skipped") if outcome[count])
