"""Helpers that tests share lie in tests/support: no module imports a test's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.pages.pages import ROOT

FOLDERS = ("benchmarks", "tests", "tools")
_IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) )?import (\([^)]*\)|.*)", re.MULTILINE)
"""A statement; to parse all files takes seconds."""


def imported(source: str) -> Iterator[str]:
    """Names of modules, and of what is imported from them."""
    for module, names in _IMPORT.findall(source):
        yield from (f"{module}.{name}" if module else name for name in re.findall(r"[\w.]+", names))


def test_imports_of_all_forms_are_seen() -> None:
    source = "import tests.a.test_b\nfrom tests import (\n    c,\n    test_d as e,\n)\n  from tests.test_f import g\n"
    assert {"tests.a.test_b", "tests.test_d", "tests.test_f.g"} <= {*imported(source)}


def test_no_module_imports_one_of_a_test() -> None:
    found = [
        f"{file.relative_to(ROOT)} imports {name}"
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        for name in imported(file.read_text(encoding="utf-8"))
        if name.startswith("tests.") and ".test_" in name
    ]
    assert not found, "\n".join(found)
