"""Papers are cited by the short titles of docs/papers.md, never by a private numbering."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from tests.support.pages.pages import ROOT, read_page

PAGE = read_page("papers.md")
TITLES = {
    *re.findall(r"^## (.+)$", PAGE, re.MULTILINE),
    *(row.split(" |")[0] for row in re.findall(r"^\| (.+)$", PAGE, re.MULTILINE)),
}
"""Heads of sections, and first cells: of them only those of the last table are titles, the others are numbers."""
FOLDERS = ("worker", "operator", "cli", "crds", "docs", "benchmarks", "tests", "README.md", "CHANGELOG.md")
PRIVATE = re.compile(r"\bSPEC [A-E]\b|\bSPEC [A-E]?\.?\d|\b[Pp]aper [A-E]\b|\b[A-E]\.?\d{1,2}\b")
"""What numbers of private notes look like: a letter for the paper, and perhaps a requirement's number."""
CITED = re.compile(r", (?:sections? \d|tables? [1-9](?! ?[\d,.GM]))")
"""What follows a title: a section or table of it; a table of so many MiB is none of a paper."""
NO_TITLE = re.compile(r"[.:;()\n]")
"""Characters that no title has."""


def sources() -> Iterator[tuple[str, str]]:
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in tracked.splitlines():
        if name.endswith((".py", ".md")) and not name.endswith("test_papers.py") and (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def sentences(text: str) -> str:
    """Without line breaks and comment signs inside of sentences."""
    return re.sub(r"(?<=\S)\n\s*(?:#\s*)?(?=\S)", " ", text)


def cited_in(text: str) -> Iterator[str]:
    begin = 0
    for cited in CITED.finditer(text):
        *_, title = NO_TITLE.split(text[begin : cited.start()])
        if title := title.rstrip("*"):
            yield title
        begin = cited.end()


def test_private_numbers_are_not_cited() -> None:
    found = {f"{name}: {match}" for name, text in sources() for match in PRIVATE.findall(text)}
    assert not found


def test_every_cited_title_is_on_the_page() -> None:
    cited = {(name, title) for name, text in sources() for title in cited_in(sentences(text))}
    unknown = {f"{name}: {title}" for name, title in cited if not title.strip(" *").endswith(tuple(TITLES))}
    assert not unknown
    assert len(cited) > len(unknown)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z]+/[^`]+)`", PAGE))))
def test_what_the_page_names_exists(path: str) -> None:
    assert (ROOT / path).exists()
