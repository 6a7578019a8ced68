"""The figures of the pages are those of the committed results."""

from __future__ import annotations

import re

import pytest
from benchmarks.figure_blocks import RENDERERS, fill, render
from benchmarks.figures import PAGES, ROOT

TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_figures_of_the_committed_results(name: str) -> None:
    assert TEXTS[name] == fill(TEXTS[name]), "run make figures"


def test_every_block_of_figures_is_on_a_page_once() -> None:
    found = [name for text in TEXTS.values() for name in re.findall(r"<!-- figures: ([\w-]+) -->", text)]
    assert sorted(found) == sorted(RENDERERS)


def test_a_block_says_when_and_at_which_commit_its_figures_were_measured() -> None:
    assert re.search(r"`routing` at [0-9a-f]{7} on \d{4}-\d{2}-\d{2}\.\n$", render("routing"))


def test_an_unknown_block_is_named() -> None:
    with pytest.raises(KeyError, match="velocity"):
        fill("<!-- figures: velocity -->\n<!-- end of figures -->\n")
