"""Parts of inspections: columns, bars, and remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from gnnserve_cli.render import facts_table, format_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from gnnserve_worker.graph.inspection import ClassCount, FindingNote, TakenColumn

_BAR_WIDTH = 30
_SHOWN_CLASSES = 12
_SHOWN_COLUMNS = 40
_SHORTENED_RUN = 4
"""Fewest columns of a numbered run, such as `interest0` to `interest3`, that is shown by its first and last column."""


def remarks(findings: Sequence[FindingNote], notes: Sequence[str]) -> list[RenderableType]:
    """What importing did, and what may be a mistake."""
    parts: list[RenderableType] = []
    if findings:
        shown = [
            (f"{noted.count:,}", f"{noted.what}{f': {noted.example}' * bool(noted.example)}") for noted in findings
        ]
        parts += ["Done while reading", facts_table(shown), ""]
    if notes:
        parts += ["Worth a look", *(f"- {note}" for note in notes)]
    return parts


def taken_columns(columns: Sequence[TakenColumn]) -> str:
    """Names of the columns that are features. Runs that are numbered without a gap are shortened."""
    runs: list[list[tuple[str, int]]] = []
    follower: tuple[str, int, int] | None = None
    """Stem, number and width of the column that would continue the last run."""
    for column in columns:
        stem = column.name.rstrip("0123456789")
        number = column.name[len(stem) :]
        numbered = (stem, int(number), column.width) if number else None
        if numbered is not None and numbered == follower:
            runs[-1].append((column.name, column.width))
        else:
            runs.append([(column.name, column.width)])
        follower = None if numbered is None else (stem, numbered[1] + 1, column.width)
    shown = []
    for run in runs:
        lists = f" (lists of {run[0][1]:,})" * (run[0][1] > 1)
        if len(run) < _SHORTENED_RUN:
            shown += [f"{name}{lists}" for name, _ in run]
        else:
            shown.append(f"{run[0][0]} … {run[-1][0]} ({len(run):,} columns){lists}")
    if len(shown) > _SHOWN_COLUMNS:
        half = _SHOWN_COLUMNS // 2
        shown[half:-half] = [f"… {len(shown) - 2 * half:,} more …"]
    return ", ".join(shown)


def class_bars(classes: Sequence[ClassCount]) -> list[RenderableType]:
    """The largest classes."""
    by_size = sorted(classes, key=lambda entry: -entry.nodes)
    parts = [bars("Class", [(format_name(entry.label), entry.nodes) for entry in by_size[:_SHOWN_CLASSES]]), ""]
    if len(by_size) > _SHOWN_CLASSES:
        parts[-1:] = [f"and {len(by_size) - _SHOWN_CLASSES:,} more classes", ""]
    return parts


def bars(title: str, rows: list[tuple[str, int]]) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True, max_width=40)
    table.add_column("Nodes", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    most = max((nodes for _, nodes in rows), default=0)
    for name, nodes in rows:
        table.add_row(Text(name), f"{nodes:,}", "█" * round(_BAR_WIDTH * nodes / most) if most else "")
    return table
