"""Words that the style leaves out: persons that stand for programs, and docstrings that need the line above them."""

from __future__ import annotations

import ast
import re
import subprocess

from tests.support.pages.pages import ROOT

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
SUBJECTLESS = re.compile(r"(?:The same|Those|As|What)\b")


def test_plain_words() -> None:
    """STYLE: a subject, a verb, the field's term; a docstring names its thing first."""
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in _tracked(".py", ".md")
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        if PERSONS.search(line) or FRAGMENT.search(line)
    ]
    assert not found, "\n".join(found)


def test_docstrings_of_modules_and_classes_have_a_subject_of_their_own() -> None:
    """Their first word is a noun of the domain, or a verb: each is read without the line above it."""
    found = [
        f"{name}:{node.body[0].lineno}: {text.splitlines()[0]}"
        for name in _tracked(".py")
        # To parse all files takes seconds.
        if re.search(rf'"""\s*{SUBJECTLESS.pattern}', source := (ROOT / name).read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Module, ast.ClassDef))
        and (text := ast.get_docstring(node) or "")
        and SUBJECTLESS.match(text)
    ]
    assert not found, "begin with a noun of the domain, or a verb:\n" + "\n".join(found)


def _tracked(*suffixes: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if name.endswith(suffixes) and (ROOT / name).exists()]
