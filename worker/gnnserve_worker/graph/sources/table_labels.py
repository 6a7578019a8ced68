"""Columns of a node table with the class or classes of a node, and with its split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import Classes
from gnnserve_worker.graph.sources.checks import RANGES, REGRESSION, check_classes, check_splits, listed
from gnnserve_worker.graph.sources.table_columns import (
    NotANumberError,
    integers_of,
    is_integer,
    is_number,
    is_text,
    missing_rows,
    numbers_of,
    parse_integer,
    plain,
    shortened,
)
from gnnserve_worker.graph.sources.table_csv import CsvTable
from gnnserve_worker.graph.sources.table_files import RowFiles, SourceTable, TableRows
from gnnserve_worker.graph.store import Finding, Splits, random_splits

_SPLITS = {"train": 0, "validation": 1, "val": 1, "valid": 1, "test": 2}
_IN_NO_SPLIT = 3


class LabelColumn:
    """Collects a class per node, batch by batch: integers or texts; missing where the class is unknown."""

    def __init__(self, table: SourceTable, column: str, places: RowFiles, *, are_learnt: bool = True) -> None:
        """`are_learnt`: as of `check_classes`."""
        self._are_learnt = are_learnt
        self._table = table
        self._column = column
        self._places = places
        self._chunks: list[Any] = []
        kind = table.columns[column]
        if not (is_text(kind) or is_number(kind) or is_integer(kind)) or pa.types.is_decimal(kind):
            raise InputError(
                f"{table.field}.label", f"column {column!r} of {table.paths[0]} is {kind}, expected classes, which are "
                f"integers or texts; {REGRESSION}", f"convert the column, name another, or {RANGES}",
            )  # fmt: skip
        self._is_text = is_text(kind)

    @property
    def names(self) -> list[str]:
        return [self._column]

    def add(self, rows: TableRows, first_row: int) -> None:
        array = plain(rows.batch.column(self._column))
        if self._is_text:
            self._chunks.append(array.cast(pa.large_string()))
            return
        if pa.types.is_decimal(array.type):
            raise InputError(
                f"{rows.path}: column {self._column!r}",
                f"is {array.type}, expected classes, which are integers; {REGRESSION}",
                f"convert the column, or {RANGES}",
            )
        if pa.types.is_floating(array.type):  # what pandas makes of integers with gaps
            array = self._whole(array, first_row)
        elif pa.types.is_boolean(array.type):
            array = array.cast(pa.int64())
        values, large = integers_of(array)
        if large >= 0:
            raise self._error(first_row + large, f"is {array[large]}, beyond 64 bits with a sign", "number the classes")
        mask = None
        if array.null_count:
            mask = np.zeros(len(array), dtype=np.bool_)
            mask[missing_rows(array)] = True
        self._chunks.append(pa.array(values, mask=mask))

    def _whole(self, array: Any, first_row: int) -> Any:
        numbers = numbers_of(array)
        known = ~np.isnan(numbers)
        # Beyond 2^53 a double does not distinguish consecutive integers.
        broken = np.flatnonzero(known & ~((numbers == np.floor(numbers)) & (np.abs(numbers) < 2**53)))
        if len(broken):
            raise self._error(
                first_row + int(broken[0]), f"is {numbers[broken[0]]}, expected a class, an integer or a text; "
                f"{REGRESSION}", f"name a column of classes, or {RANGES}",
            )  # fmt: skip
        return pa.array(np.where(known, numbers, 0).astype(np.int64), mask=~known)

    def to_labels(self, positions: np.ndarray | None) -> tuple[np.ndarray, Classes, np.ndarray, list[Finding]]:
        """Returns class indices (int64 [nodes]), the classes, which nodes have one (bool [nodes]), and findings."""
        encoded = pa.chunked_array(self._chunks).dictionary_encode().combine_chunks()
        self._chunks = []
        # Checked first: if the ids of millions of nodes are named as classes by mistake, they must not become Python
        # objects.
        where, labelled = f"{self._table.field}.label: column {self._column!r}", len(encoded) - encoded.null_count
        findings = [*check_classes(where, len(encoded.dictionary), labelled, len(encoded), are_learnt=self._are_learnt)]
        distinct = encoded.dictionary.to_pylist()
        if isinstance(self._table, CsvTable):
            integers = [parse_integer(text) for text in distinct]
            findings += _fractions(self._table, distinct) if None in integers else ()
            distinct = distinct if None in integers else integers
        classes: Classes = tuple(sorted(distinct))
        index = {label: number for number, label in enumerate(classes)}
        # The last entry is for missing labels.
        new = np.array([*(index[label] for label in distinct), -1], dtype=np.int64)
        labels = new[encoded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]
        if classes[0] == -1 and (count := int((labels == 0).sum())):
            findings.append(Finding("nodes of class -1: leave the value out where the class is unknown", count))
        labels = _placed(labels, positions)
        return labels, classes, labels >= 0, findings

    def _error(self, row: int, problem: str, remedy: str) -> InputError:
        return self._places.error(row, self._column, problem, remedy)


def _fractions(table: CsvTable, distinct: Sequence[str]) -> tuple[Finding, ...]:
    """A finding about classes, not all of them integers, that are all numbers."""
    try:
        numbers = table.numbers(pa.array(distinct, pa.large_string()))
    except NotANumberError:
        return ()
    if np.isnan(numbers).any():
        return ()
    what = f"classes that are numbers with a fraction, and are taken as texts: {REGRESSION}"
    return (Finding(what, len(distinct), listed(sorted(distinct))),)


class LabelColumns:
    """Collects a matrix of 0 and 1, batch by batch, a column per class. A row without any value has unknown labels."""

    def __init__(self, table: SourceTable, columns: Sequence[str], places: RowFiles) -> None:
        self._table = table
        self._columns = columns
        self._places = places
        self._blocks: list[np.ndarray] = []
        self._known: list[np.ndarray] = []
        for position, column in enumerate(columns):
            kind = table.columns[column]
            if not (is_number(kind) or isinstance(table, CsvTable)):
                raise InputError(
                    f"{table.field}.labels[{position}]",
                    f"column {column!r} of {table.paths[0]} is {kind}, expected 0 and 1", "convert the column",
                )  # fmt: skip

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def add(self, rows: TableRows, first_row: int) -> None:
        block = np.empty((rows.batch.num_rows, len(self._columns)), dtype=np.float64)
        for place, column in enumerate(self._columns):
            try:
                block[:, place] = self._table.numbers(plain(rows.batch.column(column)))
            except NotANumberError as error:
                raise self._bad(first_row + error.row, column, shortened(error.value)) from error
        missing = np.isnan(block)
        known: np.ndarray = missing.sum(axis=1) < len(self._columns)
        bad = np.argwhere((block != 0) & (block != 1) & known[:, None])
        if len(bad):
            row, place = bad[0].tolist()
            shown = "missing, although the row has other labels" if missing[row, place] else f"{block[row, place]:g}"
            raise self._bad(first_row + row, self._columns[place], shown)
        self._known.append(known)
        self._blocks.append((block == 1).astype(np.uint8))

    def to_labels(self, positions: np.ndarray | None) -> tuple[np.ndarray, Classes, np.ndarray, list[Finding]]:
        """Returns labels 0 and 1 (uint8 [nodes, classes]), the classes, which nodes are known (bool [nodes]), and no
        finding."""
        labels = _placed(np.concatenate(self._blocks), positions)
        return labels, tuple(self._columns), _placed(np.concatenate(self._known), positions), []

    def _bad(self, row: int, column: str, shown: str) -> InputError:
        return self._places.error(row, column, f"is {shown}, expected 0 or 1", "correct it")


class SplitColumn:
    """Collects the split of each node, batch by batch."""

    def __init__(self, table: SourceTable, column: str | None) -> None:
        self._table = table
        self._column = column
        self._chunks: list[np.ndarray] = []
        self._others: dict[str, int] = {}
        if column is not None and not is_text(kind := table.columns[column]):
            raise InputError(
                f"{table.field}.split",
                f"column {column!r} of {table.paths[0]} is {kind}, expected texts: train, validation, test",
                "convert the column, or leave split out",
            )

    @property
    def names(self) -> list[str]:
        return [] if self._column is None else [self._column]

    def add(self, rows: TableRows) -> None:
        if self._column is None:
            return
        words = pc.utf8_lower(pc.utf8_trim_whitespace(plain(rows.batch.column(self._column)))).dictionary_encode()
        distinct = words.dictionary.to_pylist()
        codes = np.array([*(_SPLITS.get(word, _IN_NO_SPLIT) for word in distinct), _IN_NO_SPLIT], dtype=np.int8)
        self._chunks.append(codes[words.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)])
        for count in words.value_counts():
            word = count["values"].as_py()
            if word not in _SPLITS:
                shown = "nothing" if word is None else shortened(word)
                self._others[shown] = self._others.get(shown, 0) + count["counts"].as_py()

    def to_splits(self, known: np.ndarray, positions: np.ndarray | None) -> tuple[Splits, list[Finding]]:
        """Returns splits and findings. Nodes without a label are in no split: they can be served, but not trained or
        evaluated on."""
        findings: list[Finding] = []
        if self._column is None:
            splits = random_splits(known)
            where = f"{self._table.field}: the split 60/20/20 of {int(known.sum())} labelled nodes"
            remedy = "give more nodes a label, or name a column with a split of your own in split"
            check_splits(splits, f"{where}: train", f"{where}: validation", remedy)
            return splits, findings
        codes = _placed(np.concatenate(self._chunks), positions)
        train, validation, test = (np.flatnonzero((codes == split) & known).astype(np.int64) for split in range(3))
        if self._others:
            shown = ", ".join(list(self._others)[:5])
            findings.append(Finding("nodes in no split by their word", sum(self._others.values()), shown))
        splits = Splits(train, validation, test)
        where = f"{self._table.field}.split: column {self._column!r}"
        check_splits(splits, f"{where}: train", f"{where}: validation")
        return splits, findings


def _placed(values: np.ndarray, positions: np.ndarray | None) -> np.ndarray:
    """The values with row i at `positions[i]`."""
    if positions is None:
        return values
    placed = np.empty_like(values)
    placed[positions] = values
    return placed
