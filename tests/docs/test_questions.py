"""docs/questions.md: each of the forty answers is found in the section that its row links."""

from __future__ import annotations

import re

import pytest
from tests.support.pages.pages import read_page
from tools.docs_site import slug

ROWS = [
    [cell.strip() for cell in re.split(r" \| ", line.strip("| "))]
    for line in read_page("questions.md").splitlines()
    if line.startswith("| ") and not line.startswith("| question")
]


def under(page: str, anchor: str) -> str:
    """The part of a page from a heading to the next one of its level or above."""
    lines = page.splitlines()
    for number, line in enumerate(lines):
        marks, _, heading = line.partition(" ")
        if marks.strip("#") == "" and marks and slug(heading) == anchor:
            behind = "\n".join(lines[number + 1 :])
            return re.split(rf"^#{{1,{len(marks)}}} ", behind, maxsplit=1, flags=re.MULTILINE)[0]
    raise AssertionError(f"no heading #{anchor}")


def test_there_are_forty_and_each_is_asked_once() -> None:
    assert len({row[0] for row in ROWS}) == len(ROWS) == 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_question_is_answered_where_its_row_says(row: list[str]) -> None:
    _, answer, where, asked = row
    file, anchor = re.fullmatch(r"\[[^]]+\]\(([\w.-]+)#([\w-]+)\)", where).groups()  # type: ignore[union-attr]
    names = re.findall(r"`([^`]+)`", answer)
    assert names
    text = under(read_page(file), anchor)
    assert [name for name in names if name not in text] == []
    assert re.search(r"https://github\.com/\S+/(?:issues|pull)/\d+", asked)
