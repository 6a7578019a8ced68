"""Words that the style leaves out: persons that stand for programs, and docstrings that need the line above them."""

from __future__ import annotations

import re
import subprocess

from tests.support.pages import ROOT

FOLDERS = (
    "worker",
    "operator",
    "cli",
    "client",
    "crds",
    "describe",
    "benchmarks",
    "tools",
    "docs",
    "README.md",
    "charts/gnnserve/README.md",
)
PERSONS = re.compile(r"\b(?:some|no|every|any)body\b|\bwho(?:m)?ever\b|\bpolitely\b", re.IGNORECASE)
FRAGMENT = re.compile(r'"""Of ')


def test_plain_words() -> None:
    """STYLE: a subject, a verb, the field's term; a docstring names its thing first."""
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked.splitlines()
        if name.endswith((".py", ".md")) and (ROOT / name).exists()
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if PERSONS.search(line) or FRAGMENT.search(line)
    ]
    assert not found, "\n".join(found)
