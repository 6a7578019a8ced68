"""Feature columns of tables: choosing them by a manifest's names and patterns, before any value is read, their numbers
as one float32 matrix, and filling missing ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnserve_api.errors import InputError
from gnnserve_api.spec.tables import MissingFeature, NodeColumns
from gnnserve_worker.graph.sources.checks import as_float32
from gnnserve_worker.graph.sources.density import FeatureBlocks, sparse_finding
from gnnserve_worker.graph.sources.table_columns import (
    NotANumberError,
    is_list,
    is_number,
    numbers_of,
    plain,
    shortened,
)
from gnnserve_worker.graph.sources.table_csv import CsvTable
from gnnserve_worker.graph.sources.table_files import RowFiles, SourceTable, TableRows, listed_names
from gnnserve_worker.graph.store import FeatureColumn, Features, Finding
from gnnserve_worker.progress import silent

# --- which columns


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


# --- their numbers


_NAMES_SHOWN = 5
_PEEKED_ROWS = 1024


@dataclass(slots=True)
class _Column:
    name: str
    width: int
    """Features of the column: 1, or the length of its lists."""
    is_list: bool
    left_out: str = ""
    """Why the column is left out, once that is known; only for columns that the manifest does not name."""
    how_to_read: str = ""
    """The option that would make all texts of a column that is left out readable as numbers; else empty."""
    first_missing: tuple[int, str] | None = None
    """Row of the first missing number, and what the table has there."""
    missing: int = 0
    present: int = 0


@dataclass(slots=True)
class FeatureCollector:
    """Collects features batch by batch. A column that the manifest does not name is left out if its first values are
    not numbers."""

    _table: SourceTable
    _nodes: NodeColumns
    _places: RowFiles
    _columns: list[_Column]
    _never: dict[str, str]
    """Columns that cannot be features by their name or type, and why."""
    _asked_for: bool
    """Whether the manifest names the columns: then none is left out."""
    _blocks: FeatureBlocks = field(default_factory=FeatureBlocks)
    _sums: np.ndarray = field(default_factory=lambda: np.empty(0))
    _fill_with: np.ndarray = field(default_factory=lambda: np.empty(0))
    """float32 [width], once all is read."""

    @property
    def names(self) -> list[str]:
        """Names of the columns that have to be read."""
        return [column.name for column in self._columns]

    @property
    def width(self) -> int:
        return sum(column.width for column in self._columns)

    def add(self, rows: TableRows, first_row: int) -> None:
        # nan stands for missing values until everything is read and the means are known.
        block = np.zeros((rows.batch.num_rows, self.width), dtype=np.float32)
        start = 0
        for column in self._columns:
            if not column.left_out:
                part = block[:, start : start + column.width]
                self._fill(part, column, plain(rows.batch.column(column.name)), first_row)
            start += column.width
        if self._nodes.missing is MissingFeature.MEAN:
            if not len(self._sums):
                self._sums = np.zeros(self.width)
            self._sums += np.nansum(block, axis=0, dtype=np.float64)
        self._blocks.add(block)

    def _fill(self, part: np.ndarray, column: _Column, array: Any, first_row: int) -> None:
        try:
            numbers = self._lists(column, array, first_row) if column.is_list else self._table.numbers(array)[:, None]
        except NotANumberError as error:
            shown, row = shortened(error.value), first_row + error.row
            if self._asked_for:
                option = self._table.how_to_read(array.slice(error.row, 1))
                raise self._places.error(
                    row, column.name, f"is {shown}, expected a number",
                    f"correct it, or {option or 'name other columns in features'}",
                ) from error  # fmt: skip
            before = array.slice(0, error.row)
            if column.present or (not column.is_list and np.isfinite(self._table.numbers(before)).any()):
                # A column of numbers with one bad value is not a column of texts: leaving it out would only show as
                # lower accuracy.
                option = self._table.how_to_read(array.slice(error.row, 1))
                raise self._places.error(
                    row, column.name, f"is {shown}, where the rows before it have numbers",
                    f"correct it{', or ' * bool(option)}{option}; or, to do without this column, name it in "
                    f"{self._table.field}.excludeFeatures",
                ) from error  # fmt: skip
            column.left_out = shown
            column.how_to_read = "" if column.is_list else self._table.how_to_read(array)
            return
        part[:] = as_float32(numbers)
        bad = ~np.isfinite(part)
        if not bad.any():
            column.present += part.size
            return
        beyond = np.argwhere(bad & np.isfinite(numbers))
        if len(beyond):
            row, place = beyond[0].tolist()
            raise self._places.error(
                first_row + row, column.name, f"is {numbers[row, place]}, which float32 cannot hold",
                "scale the column before you write it",
            )  # fmt: skip
        row, place = np.argwhere(bad)[0].tolist()
        if column.first_missing is None:
            shown = "is missing" if np.isnan(numbers[row, place]) else f"is {numbers[row, place]}"
            column.first_missing = first_row + row, shown
        part[bad] = np.nan
        missing = int(bad.sum())
        column.missing += missing
        column.present += part.size - missing

    def _lists(self, column: _Column, array: Any, first_row: int) -> np.ndarray:
        """A list column as float64 [rows, width]; nan where the list is missing."""
        lengths = np.asarray(pc.list_value_length(array).fill_null(column.width).to_numpy(zero_copy_only=False))
        wrong = np.flatnonzero(lengths != column.width)
        if len(wrong):
            raise self._places.error(
                first_row + int(wrong[0]), column.name,
                f"has {lengths[wrong[0]]} numbers, expected {column.width} as in the first row",
                "give all lists of the column one length, or leave it out of features",
            )  # fmt: skip
        numbers = numbers_of(plain(array.flatten())).reshape(-1, column.width)
        if array.null_count == 0:
            return numbers
        all_rows = np.full((len(array), column.width), np.nan)
        all_rows[array.is_valid().to_numpy(zero_copy_only=False)] = numbers
        return all_rows

    def finds_any(self) -> bool:
        """Whether a column is left that holds numbers. To be called once everything is read."""
        for column in self._columns:
            if not column.left_out and not column.present and not self._asked_for:
                column.left_out = "no number"
        return any(not column.left_out for column in self._columns)

    def to_matrix(self, positions: np.ndarray | None) -> tuple[Features, list[Finding]]:
        """The features, float32 [nodes, columns], row i at `positions[i]`, dense or sparse by their values, and the
        findings."""
        if not self.finds_any():
            left_out = self._left_out()
            why = f"left out: {left_out.example}" if left_out.count else "it has no others than its manifest names"
            raise InputError(
                f"{self._table.field}.features",
                f"no column of {self._table.paths[0]} can be a feature; {why}",
                "add a column of numbers",
            )
        self._refuse_missing()
        self._fill_with = self._fill_values()
        kept = np.repeat(
            [not column.left_out for column in self._columns], [column.width for column in self._columns]
        )  # fmt: skip
        features = self._blocks.to_features(kept, self._fill_with, positions)
        return features, [*self._findings(), *sparse_finding(features)]

    def _refuse_missing(self) -> None:
        found = [
            (column.first_missing, column) for column in self._columns if column.first_missing and not column.left_out
        ]
        if self._nodes.missing is MissingFeature.MEAN:
            for _, column in found:
                if not column.present:
                    raise InputError(
                        f"{self._table.field}.features", f"column {column.name!r} has no number, and so no mean",
                        "leave it out, or set missing to Zero",
                    )  # fmt: skip
        if found and self._nodes.missing is MissingFeature.REFUSE:
            (row, shown), column = min(found, key=lambda each: each[0])
            missing = sum(column.missing for _, column in found)
            raise self._places.error(
                row, column.name, f"{shown}, expected a finite number ({missing:,} such values)",
                f"fill it in, or set {self._table.field}.missing to Zero or Mean",
            )  # fmt: skip

    def _fill_values(self) -> np.ndarray:
        """Values for missing numbers, float32 [width]."""
        values = np.zeros(self.width, dtype=np.float32)
        if self._nodes.missing is MissingFeature.MEAN:
            present = self._places.rows - self._blocks.missing_per_column(self.width)
            values[:] = np.divide(self._sums, present, out=np.zeros(self.width), where=present > 0)
        return values

    def _findings(self) -> list[Finding]:
        findings = []
        filled = [column for column in self._columns if column.missing and not column.left_out]
        if filled:
            what = "0" if self._nodes.missing is MissingFeature.ZERO else "the mean of their column"
            findings.append(
                Finding(
                    f"missing features set to {what}", sum(column.missing for column in filled),
                    _shown([column.name for column in filled]),
                )
            )  # fmt: skip
        left_out = self._left_out()
        findings += [left_out] if left_out.count else []
        readable = [column for column in self._columns if column.how_to_read]
        if readable:
            names = _shown([column.name for column in readable])
            findings.append(
                Finding(
                    f"columns left out whose texts would be numbers: {readable[0].how_to_read}", len(readable), names
                )
            )
        return findings

    def taken(self) -> tuple[FeatureColumn, ...]:
        """The columns that became features, in their order. To be called once everything is read."""
        starts = [*accumulate((column.width for column in self._columns), initial=0)]
        refused = self._nodes.missing is MissingFeature.REFUSE
        return tuple(
            FeatureColumn(
                column.name,
                column.width,
                None if refused else tuple(self._fill_with[start : start + column.width].tolist()),
            )
            for column, start in zip(self._columns, starts, strict=False)
            if not column.left_out
        )

    def _left_out(self) -> Finding:
        reasons = self._never | {column.name: column.left_out for column in self._columns if column.left_out}
        return Finding(
            "columns left out of the features", len(reasons),
            _shown([f"{name or repr(name)} ({why})" for name, why in reasons.items()]),
        )  # fmt: skip


def feature_columns(
    table: SourceTable, nodes: NodeColumns, chosen: ChosenColumns, places: RowFiles
) -> FeatureCollector:
    """Prepare the columns that become features. The first list of a list column is read, to learn its length."""
    never: dict[str, str] = {}
    if chosen.asked_for:
        for name in chosen.names:
            if not _may_be_numbers(table, name):
                place = f"[{nodes.features.index(name)}]" if name in nodes.features else ""
                raise InputError(
                    f"{table.field}.features{place}",
                    f"column {name!r} of {table.paths[0]} is {table.columns[name]}, expected numbers, true and false, "
                    "or lists of numbers", "convert the column, or leave it out",
                )  # fmt: skip
    else:
        never = {name: reason for name in chosen.names if (reason := _never_a_feature(table, name))}
    columns = []
    for name in chosen.names:
        if name in never:
            continue
        kind = table.columns[name]
        width = _list_length(table, name) if is_list(kind) else 1
        if width:
            columns.append(_Column(name, width, is_list(kind)))
        elif chosen.asked_for:
            raise InputError(
                f"{table.field}.features", f"the lists of column {name!r} are all missing or empty", "leave it out"
            )
        else:
            never[name] = "no number"
    return FeatureCollector(table, nodes, places, columns, never, chosen.asked_for)


def _never_a_feature(table: SourceTable, name: str) -> str:
    """Why a column that the manifest does not name cannot be a feature, whatever its values; else empty."""
    if not name:
        return "no name"
    if name.startswith("__index_level_"):
        return "an index of pandas"
    return "" if _may_be_numbers(table, name) else str(table.columns[name])


def _may_be_numbers(table: SourceTable, name: str) -> bool:
    kind = table.columns[name]
    return is_number(kind.value_type if is_list(kind) else kind) or isinstance(table, CsvTable)


def _list_length(table: SourceTable, name: str) -> int:
    """Length of the first list that is not missing."""
    kind = table.columns[name]
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    for rows in table.read([name], _PEEKED_ROWS, silent, ""):
        lengths = pc.list_value_length(plain(rows.batch.column(name))).drop_null()
        if len(lengths):
            return int(lengths[0].as_py())
    return 0


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
