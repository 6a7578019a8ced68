"""The pages of docs/, as far as tests look into them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tools.docs_site import slug

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def read_page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """The part of a page from a heading of the second level to the next one."""
    return page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(page: str) -> list[str]:
    """What is in code style in the first cell of each row of its tables."""
    rows = (line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """Anchors that GitHub makes from headings."""
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}


def links(page: str) -> Iterable[tuple[str, str]]:
    """File and anchor of each relative link; either may be empty."""
    without_code = re.sub(r"`[^`\n]*`", "", page)
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            yield file, anchor
