"""Figures and picture of README.md, figures of docs/gpu.md, docs/models.md and docs/benchmarks.md, from the committed
results.

No figure on a page is typed by hand: `make figures` writes them, `make check` compares.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.accuracy.frontier_picture import draw_frontier
from benchmarks.dependencies import History, NoHistoryError, history
from benchmarks.model_table.table import fill_models
from benchmarks.page.ages import MOST_COMMITS, OLD, settled
from benchmarks.page.figure_blocks import Results
from benchmarks.page.gpu_figures import fill_cards
from benchmarks.page.page import render_page
from benchmarks.page.summary_figures import fill_summary

ROOT = Path(__file__).parents[2]
_README = "README.md"

Render = Callable[[str, Results, History], str]
PAGES: Mapping[str, Render] = {
    _README: fill_summary,
    "docs/gpu.md": fill_cards,
    "docs/models.md": fill_models,
    "docs/benchmarks.md": lambda _, results, at: render_page(results, at),
    "docs/images/frontier.svg": lambda _, results, __: draw_frontier(results),
}
"""How each page becomes what it should be, from what it is."""


def differences(name: str, page: str, fresh: str) -> Iterator[str]:
    """Differences of a page from the one that the results make. How many commits have passed is not compared:
    each commit changes it. That a figure has become old meanwhile is, where README.md quotes it."""
    if settled(page) != settled(fresh):
        yield f"{name} is not what benchmarks/results and benchmarks/about make"
    elif name == _README:
        lines = zip(page.splitlines(), fresh.splitlines(), strict=True)
        for _ in (new for old, new in lines if OLD in new and OLD not in old):
            yield f"{name} quotes a figure that is old: over {MOST_COMMITS} commits have touched what it depends on"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page differs")
    options = parser.parse_args()
    try:
        at = history()
    except NoHistoryError as error:
        sys.exit(f"how old figures are cannot be told: {error}")
    found = list[str]()
    for name, render in PAGES.items():
        file = ROOT / name
        page = file.read_text(encoding="utf-8") if file.exists() else ""
        fresh = render(page, Results(), at)
        if options.check:
            found += differences(name, page, fresh)
        elif fresh != page:
            file.write_text(fresh, encoding="utf-8")
            print(f"wrote {name}")
    if found:
        sys.exit("\n".join([*found, "run make figures"]))


if __name__ == "__main__":
    main()
