"""Choosing the feature columns of a node table by a manifest's names and patterns, before any value is read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gnnserve_api.errors import InputError
from gnnserve_api.spec.tables import NodeColumns
from gnnserve_worker.graph.sources.table_files import SourceTable, listed_names

_WILDCARDS = "*?"


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    names: tuple[str, ...]
    """Columns in the order in which they become features."""
    asked_for: bool
    """Whether the manifest names them; otherwise these are all columns without another use, and columns that turn out
    not to hold numbers are left out."""


def is_pattern(table: SourceTable, name: str) -> bool:
    """Whether the name is a pattern. A column of exactly that name takes precedence."""
    return name not in table.columns and any(mark in name for mark in _WILDCARDS)


def chosen_columns(table: SourceTable, nodes: NodeColumns, used: Collection[str]) -> ChosenColumns:
    """Choose the columns. `used`: columns with another use. Raises InputError for a name or pattern that matches no
    column."""
    excluded: set[str] = set()
    for place, given in enumerate(nodes.exclude_features):
        option = f"excludeFeatures[{place}]"
        found = _matching(table, option, given, used)
        if given in nodes.features:
            raise InputError(f"{table.field}.{option}", f"names {given!r}, which features names too", "leave one out")
        excluded.update(found)
    free = [name for name in table.columns if name not in used]
    if not nodes.features:
        left = tuple(name for name in free if name not in excluded)
        if free and not left:
            problem = f"leaves no column of {table.paths[0]} to be a feature"
            raise InputError(f"{table.field}.excludeFeatures", problem, "exclude fewer")
        return ChosenColumns(left, asked_for=False)
    names: dict[str, None] = {}
    for place, given in enumerate(nodes.features):
        names.update(dict.fromkeys(_matching(table, f"features[{place}]", given, used)))
    chosen = tuple(name for name in names if name not in excluded)
    if not chosen:
        raise InputError(
            f"{table.field}.excludeFeatures", "leaves no column of those that features names", "exclude fewer"
        )
    return ChosenColumns(chosen, asked_for=True)


def _matching(table: SourceTable, option: str, given: str, used: Collection[str]) -> Sequence[str]:
    if not is_pattern(table, given):
        table.require(option, given)
        return [given]
    # Only `*` and `?` are special: many names contain brackets.
    pattern = given.replace("[", "[[]")
    found = [name for name in table.columns if name not in used and fnmatchcase(name, pattern)]
    if not found:
        there = listed_names([name for name in table.columns if name not in used])
        raise InputError(
            f"{table.field}.{option}", f"is the pattern {given!r}, which no column of {table.paths[0]} matches; it has "
            f"{there}", "correct it, or leave it out",
        )  # fmt: skip
    return found
