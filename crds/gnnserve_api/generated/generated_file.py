"""A file in the tree that is generated from the types: written on request, compared in every check.

What is in it is the caller's: `schema.py` makes the CRD, `reference.py` the page of fields.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

_DIFF_LINES = 20


def write_or_compare(path: Path, wanted: str, *, check: bool) -> int:
    """An exit code: 1 when `check` found the file to differ, whose first differences are printed."""
    if not check:
        path.write_text(wanted, encoding="utf-8")
        return 0
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == wanted:
        return 0
    print(f"{path.name} differs from the types; run `make generate`", file=sys.stderr)
    differences = list(difflib.unified_diff(found.splitlines(), wanted.splitlines(), "file", "types", n=1, lineterm=""))
    print("\n".join(differences[:_DIFF_LINES]), file=sys.stderr)
    if len(differences) > _DIFF_LINES:
        print(f"... and {len(differences) - _DIFF_LINES} more lines", file=sys.stderr)
    return 1
