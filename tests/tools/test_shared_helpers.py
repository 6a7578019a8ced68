"""Helpers that tests share lie in tests/support: no module imports a test's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.pages.pages import ROOT

FOLDERS = ("benchmarks", "tests", "tools")


def imported(file: Path) -> Iterator[str]:
    """Names of modules, and of what is imported from them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_one_of_a_test() -> None:
    found = [
        f"{file.relative_to(ROOT)} imports {name}"
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for name in imported(file)
        if name.startswith("tests.") and ".test_" in name
    ]
    assert not found, "\n".join(found)
