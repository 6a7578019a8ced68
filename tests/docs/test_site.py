"""The site of docs/: every page is on a shelf, every link of every page leads somewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.support.pages.pages import DOCS, ROOT, read_page


def pages_of(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case list():
            for each in nav:
                yield from pages_of(each)
        case dict():
            yield from pages_of(list(nav.values()))


def test_every_page_is_on_a_shelf_and_on_the_first_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = {path.name for path in DOCS.glob("*.md")}
    assert {name for name in pages_of(nav) if "/" not in name} == pages
    first = read_page("index.md")
    assert [name for name in sorted(pages - {"index.md"}) if f"]({name}" not in first] == []


def test_it_is_built_without_a_broken_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "repository" / "examples" / "shop" / "index.html").exists()
