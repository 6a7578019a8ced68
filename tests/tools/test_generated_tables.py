"""Tables of pages that the code writes: an option is described once, and a block that nothing fills is told."""

from __future__ import annotations

import pytest
from tests.support.pages.pages import DOCS, read_page
from tools.pages import BLOCK, blocks, filled

BLOCKS = blocks()
PAGES = sorted(path.name for path in DOCS.glob("*.md") if BLOCK.search(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    assert filled(read_page(page), BLOCKS) == read_page(page), "python -m tools.pages"


def test_every_table_is_on_a_page() -> None:
    assert {name for page in PAGES for _, name, _ in BLOCK.findall(read_page(page))} == set(BLOCKS)


def test_an_option_of_several_commands_is_described_once() -> None:
    assert "`--repository DIR` |" in BLOCKS["common options"]
    assert "[Common](#common-options)" in BLOCKS["options of generate"]
    (row,) = (row for row in BLOCKS["options of serve"].splitlines() if "--port" in row)
    assert row.endswith("| As for [`run`](#gnnserve-run). |")


def test_a_block_of_another_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        filled("<!-- generated: nothing -->\n<!-- end of generated -->", BLOCKS)
