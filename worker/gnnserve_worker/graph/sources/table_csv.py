"""Tables in CSV files, compressed or not: Arrow reads the values, and a pass over the text finds lines for messages."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from gnnserve_api.errors import InputError
from gnnserve_api.spec.tables import DecimalMark
from gnnserve_worker.graph.sources.table_columns import are_numbers, numbers_of, shortened
from gnnserve_worker.graph.sources.table_files import (
    ReadingReporter,
    SourceTable,
    TableRows,
    explained,
    require_distinct,
    unreadable,
)

_COMPRESSIONS = ("", ".gz", ".zst", ".bz2")
CSV_SUFFIXES = tuple(f".{kind}{compression}" for kind in ("csv", "tsv") for compression in _COMPRESSIONS)
_BLOCK_BYTES = 4 << 20
"""Bytes of a block; blocks are parsed in parallel. Smaller ones cost time, larger ones memory."""
_MIB = 1 << 20


class CsvTable(SourceTable):
    """A CSV table. Every value is a text, and an empty one is missing: whether `007` is a number depends on its use."""

    def __init__(self, field: str, path: Path, delimiter: str, decimal: DecimalMark = DecimalMark.POINT) -> None:
        self._delimiter = delimiter
        self._decimal = decimal
        super().__init__(field, path, CSV_SUFFIXES)

    def numbers(self, array: Any) -> np.ndarray:
        return numbers_of(array, self._decimal)

    def how_to_read(self, texts: Any) -> str:
        other = DecimalMark.COMMA if self._decimal is DecimalMark.POINT else DecimalMark.POINT
        return f'set {self.field.rpartition(".")[0]}.decimal to "{other}"' if are_numbers(texts, other) else ""

    def place(self, path: Path, row: int) -> str:
        """The line of a row, for messages. Reads the file up to there, since a batch knows only rows."""
        records = itertools.islice(_csv_records(path, self._delimiter), row + 1, None)
        line = next((number for number, _ in records), None)
        return str(path) if line is None else f"{path}: line {line}"

    def _naming(self, name: str) -> str:
        # A single column whose name contains a delimiter: the file uses another delimiter than the manifest.
        marks = [mark for mark in ";\t|, " if len(self.columns) == 1 and mark in next(iter(self.columns))]
        if marks:
            return f"if {marks[0]!r} is between values, set {self.field}.delimiter to it"
        return super()._naming(name)

    def _columns_of(self, path: Path) -> dict[str, Any]:
        _require_text(path)
        with _opened(path) as file:
            names = self._reader(path, file, None, []).schema.names
        require_distinct(path, names)
        return dict.fromkeys(names, pa.string())

    def _read(self, names: Sequence[str], batch_rows: int, reporter: ReadingReporter) -> Iterator[TableRows]:
        read_bytes = 0
        for path in self.paths:
            with _opened(path) as file:
                first = 0
                refused: list[Any] = []
                reader = self._reader(path, file, names, refused)
                for block in explained(reader, partial(self._problem, path, refused)):
                    for start in range(0, block.num_rows, batch_rows):
                        batch = block.slice(start, batch_rows)
                        yield TableRows(path, first, batch)
                        first += batch.num_rows
                    reporter.report((read_bytes + file.tell()) // _MIB, block.num_rows)
            read_bytes += path.stat().st_size

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self.paths) // _MIB

    def _reader(self, path: Path, file: Any, names: Sequence[str] | None, refused: list[Any]) -> Any:
        """Open a reader. `refused` collects rows with another number of values than the header, before the error is
        raised."""

        def refuse(row: Any) -> str:
            refused.append(row)
            return "error"

        try:
            compressed = pa.CompressedInputStream(file, _codec(path)) if _codec(path) else file
            return pa_csv.open_csv(
                compressed,
                read_options=pa_csv.ReadOptions(block_size=_BLOCK_BYTES),
                parse_options=pa_csv.ParseOptions(
                    delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=refuse
                ),
                convert_options=pa_csv.ConvertOptions(
                    default_column_type=pa.string(),
                    include_columns=None if names is None else list(names),
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._problem(path, refused, error) from error

    def _problem(self, path: Path, refused: Sequence[Any], error: Exception) -> InputError:
        if refused:
            row = refused[0]
            line = self._first_line(path, lambda record: record.rstrip("\r\n") == row.text.rstrip("\r\n"))
            return InputError(
                f"{path}: line {line}" if line else str(path),
                f"has {row.actual_columns} values, expected {row.expected_columns} as in the header line: "
                f"{shortened(row.text)}",
                f"correct the line, or the manifest's delimiter, which is {self._delimiter!r}",
            )
        if "invalid UTF8" in str(error) and (line := self._first_line(path, _is_not_utf8)):
            return InputError(f"{path}: line {line}", "is not UTF-8", "save the file as UTF-8")
        return unreadable(path, "CSV", error)

    def _first_line(self, path: Path, matches: Callable[[str], bool]) -> int | None:
        return next((number for number, record in _csv_records(path, self._delimiter) if matches(record)), None)


_NO_TEXT = {
    b"PK\x03\x04": ("is a zip archive, or a workbook of a spreadsheet", "extract it, or save it as CSV"),
    b"\xff\xfe": ("is UTF-16", "save the file as UTF-8"),
    b"\xfe\xff": ("is UTF-16", "save the file as UTF-8"),
    b"\x1f\x8b": ("is compressed by gzip", "end its name in .csv.gz, or decompress it"),
    b"\x28\xb5\x2f\xfd": ("is compressed by zstd", "end its name in .csv.zst, or decompress it"),
    b"BZh9": ("is compressed by bzip2", "end its name in .csv.bz2, or decompress it"),
    b"PAR1\x15": ("is a Parquet file", "name it in spec.graph.source.parquet, or save it as CSV"),
}
"""Problem and remedy by a file's first bytes, for formats that stand under the name of a CSV."""


def _require_text(path: Path) -> None:
    if _codec(path) is not None:
        return
    with _opened(path) as file:
        begins = bytes(file.read(8))
    for mark, (problem, remedy) in _NO_TEXT.items():
        if begins.startswith(mark):
            raise InputError(str(path), problem, remedy)


def _codec(path: Path) -> str | None:
    return {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.get(path.suffix.lower())


def _opened(path: Path) -> Any:
    try:
        return pa.OSFile(str(path))
    except OSError as error:
        raise unreadable(path, "CSV", error) from error


def _csv_records(path: Path, delimiter: str) -> Iterator[tuple[int, str]]:
    """The line where each record begins, from 1, and its text; the header first. Blank lines are skipped."""
    codec = _codec(path)
    with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, codec) if codec else file as raw:
        lines = io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", newline=None)
        begins, is_open = 0, False
        record: list[str] = []
        for number, line in enumerate(lines, 1):
            if not record:
                if line == "\n":
                    continue
                begins = number
            record.append(line)
            is_open = _ends_in_quotes(line.removeprefix("\ufeff") if number == 1 else line, delimiter, is_open)
            if not is_open:
                yield begins, "".join(record)
                record = []
        if record:
            yield begins, "".join(record)


def _ends_in_quotes(line: str, delimiter: str, is_open: bool) -> bool:
    """Whether a quoted value continues after `line`; `is_open` tells whether one is open at its beginning. As in Arrow,
    a quotation mark opens a value only as its first character, and a doubled one does not close it."""
    at = 0
    if not is_open and line.startswith('"'):
        is_open, at = True, 1
    while True:
        if is_open:
            at = line.find('"', at) + 1
            if at == 0:
                return True
            if line.startswith('"', at):
                at += 1
                continue
        at = line.find(f'{delimiter}"', at) + 2
        if at == 1:
            return False
        is_open = True


def _is_not_utf8(record: str) -> bool:
    try:
        record.encode()
    except UnicodeEncodeError:
        return True
    return False
