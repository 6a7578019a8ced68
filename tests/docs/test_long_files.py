"""docs/architecture.md gives a reason for each file over 600 lines."""

from __future__ import annotations

import re
import subprocess

from tests.support.pages.pages import ROOT, read_page, section

MOST_LINES = 600


def test_every_file_over_600_lines_has_a_reason() -> None:
    """A file that grows past the limit is parted, or listed on the page with its reason."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    long = {
        name
        for name in tracked.splitlines()
        if not name.startswith("tests/") and (ROOT / name).exists() and _lines(name) > MOST_LINES
    }
    listed = set(
        re.findall(r"^- `([^`]+\.py)`: .+", section(read_page("architecture.md"), "Files over 600 lines"), re.MULTILINE)
    )
    assert listed == long


def _lines(name: str) -> int:
    return (ROOT / name).read_bytes().count(b"\n")
