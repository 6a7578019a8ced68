"""Features and times of edges in columns of a table: read with the ends, a row for each edge that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gnnserve_api.errors import InputError
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.sources.checks import as_float32
from gnnserve_worker.graph.sources.table_columns import (
    NotANumberError,
    integers_of,
    is_number,
    is_text,
    microseconds_of,
    missing_rows,
    parsed_integers,
    plain,
    shortened,
)
from gnnserve_worker.graph.sources.table_csv import CsvTable
from gnnserve_worker.graph.sources.table_files import SourceTable, TableRows

_MOST = 2**63 - 1
_MOST_OF_UNIT = {"s": _MOST // 10**6, "ms": _MOST // 10**3, "us": _MOST, "ns": _MOST}
"""Largest timestamp of each unit whose microseconds fit 64 bits."""
_BEYOND, _SMALLER = "beyond an integer of 64 bits with a sign", "write smaller times, such as seconds since 1970"
_LONGEST = 40
"""Characters of a text that is looked at as an integer."""


class PayloadColumns:
    """Collects the payload of edges batch by batch. Raises InputError that names the row, the column and the value."""

    def __init__(self, table: SourceTable, ends: Sequence[str], features: Sequence[str], time: str | None) -> None:
        """`ends`: columns of the ends. `features`, `time`: as the manifest names them."""
        self._table, self._features, self._time = table, tuple(features), time
        named = [(f"features[{place}]", name) for place, name in enumerate(features)]
        named += [] if time is None else [("time", time)]
        for place, (option, name) in enumerate(named):
            table.require(option, name)
            if name in ends or name in [other for _, other in named[:place]]:
                problem = f"names the column {name!r}, which source, target, features or time names already"
                raise InputError(f"{table.field}.{option}", problem, "name each column once")
        self.names = [name for _, name in named]
        self._rows: list[np.ndarray] = []
        self._times: list[np.ndarray] = []

    def add(self, rows: TableRows, kept: np.ndarray) -> None:
        """`kept`: bool [rows], whose ends are nodes."""
        features = np.empty((int(kept.sum()), len(self._features)), np.float32)
        for place, name in enumerate(self._features):
            features[:, place] = self._numbers(rows, name)[kept]
        self._rows.append(features)
        if self._time is not None:
            self._times.append(self._integers(rows, self._time)[kept])

    def joined(self) -> EdgePayload | None:
        """The payload of all edges; None: none is read."""
        if not self.names:
            return None
        features = np.concatenate([np.zeros((0, len(self._features)), np.float32), *self._rows])
        times = np.concatenate([np.zeros(0, np.int64), *self._times])
        return EdgePayload(self._features, features, self._time or "", times)

    def _numbers(self, rows: TableRows, name: str) -> np.ndarray:
        array = plain(rows.batch.column(name))
        if not (isinstance(self._table, CsvTable) or is_number(array.type) or pa.types.is_null(array.type)):
            raise self._wrong_type(rows, name, array.type, "numbers")
        try:
            numbers = self._table.numbers(array)
        except NotANumberError as error:
            option = self._table.how_to_read(array.slice(error.row, 1))
            raise self._error(
                rows, error.row, name, f"is {shortened(error.value)}, expected a number",
                f"correct it, or {option or f'leave the column out of {self._table.field}.features'}",
            ) from error  # fmt: skip
        values = as_float32(numbers)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            row = int(bad[0])
            shown = "is missing" if np.isnan(numbers[row]) else f"is {numbers[row]}"
            raise self._error(
                rows, row, name, f"{shown}, expected a number that float32 has",
                f"write one for every edge, or leave the column out of {self._table.field}.features",
            )  # fmt: skip
        return values

    def _integers(self, rows: TableRows, name: str) -> np.ndarray:
        array = plain(rows.batch.column(name))
        remedy = f"write one for every edge, or leave {self._table.field}.time out"
        missing = missing_rows(array)
        if len(missing):
            raise self._error(rows, int(missing[0]), name, "is missing, expected an integer", remedy)
        if isinstance(self._table, CsvTable) and is_text(array.type):
            values, are_integers = parsed_integers(array)
            if not are_integers.all():
                row = int(are_integers.argmin())
                text = array[row].as_py()
                if _is_large_integer(text):
                    raise self._error(rows, row, name, f"is {shortened(text)}, {_BEYOND}", _SMALLER)
                raise self._error(
                    rows, row, name, f"is {shortened(text)}, expected an integer of 64 bits",
                    "write times as integers, such as seconds since 1970, or the table in Parquet with timestamps",
                )  # fmt: skip
            return values
        if pa.types.is_timestamp(array.type):
            try:
                return np.asarray(microseconds_of(array).to_numpy(zero_copy_only=False))
            except pa.ArrowInvalid as error:
                counts, most = integers_of(array.cast(pa.int64()))[0], _MOST_OF_UNIT[array.type.unit]
                row = int(((counts < -most) | (counts > most)).argmax())
                problem = f"is {counts[row]} {array.type.unit} since 1970, which microseconds in 64 bits do not reach"
                raise self._error(rows, row, name, problem, "write a time up to the year 294247") from error
        if not pa.types.is_integer(array.type):
            raise self._wrong_type(rows, name, array.type, "integers or timestamps")
        values, beyond = integers_of(array)
        if beyond >= 0:
            raise self._error(rows, beyond, name, f"is {array[beyond].as_py()}, {_BEYOND}", _SMALLER)
        return values

    def _wrong_type(self, rows: TableRows, name: str, found: Any, expected: str) -> InputError:
        remedy = f"write it as {expected}, or name another column in {self._table.field}"
        return InputError(f"{rows.path}: column {name!r}", f"is {found}, expected {expected}", remedy)

    def _error(self, rows: TableRows, row: int, name: str, problem: str, remedy: str) -> InputError:
        return self._table.error(rows.path, rows.first + row, name, problem, remedy)


def _is_large_integer(text: str) -> bool:
    """Whether it is written as an integer, and 64 bits with a sign do not hold it."""
    if not text.removeprefix("-").isdecimal():
        return False
    return len(text) > _LONGEST or not -_MOST - 1 <= int(text) <= _MOST
