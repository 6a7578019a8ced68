"""Tables in Parquet and CSV files, read in batches of rows: their columns, and a row's place in a file for messages.

This module does not know what a column means. A table is a file, or a folder of files that are read in the order of
their names; memory holds one batch of the requested columns, not the table.
"""

from __future__ import annotations

import difflib
import io
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from gnnserve_api.errors import InputError, remedy_of
from gnnserve_api.spec.tables import DecimalMark
from gnnserve_worker.graph.sources.files import file_path, require_file, why_unreadable
from gnnserve_worker.graph.sources.table_columns import (
    are_numbers,
    first_broken_text,
    kind_of,
    numbers_of,
    shortened,
)
from gnnserve_worker.progress import Progress, ProgressListener

PARQUET_SUFFIXES = (".parquet", ".pq")
_COMPRESSIONS = ("", ".gz", ".zst", ".bz2")
CSV_SUFFIXES = tuple(f".{kind}{compression}" for kind in ("csv", "tsv") for compression in _COMPRESSIONS)
_BUFFER_BYTES = 1 << 20
_CSV_BLOCK_BYTES = 4 << 20
"""Bytes of a block; blocks are parsed in parallel. Smaller ones cost time, larger ones memory."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class TableRows:
    """Some consecutive rows of a table."""

    path: Path
    first: int
    """Number of the first row in its file, from 0; a CSV's header is not counted."""
    batch: Any
    """The rows as a pyarrow.RecordBatch."""


class SourceTable(ABC):
    """A table of nodes or edges. `field` is the manifest's field that names it: `spec.graph.source.csv.nodes`."""

    def __init__(self, field: str, uri: str, suffixes: Sequence[str]) -> None:
        self.field = field
        self.paths = table_paths(field, uri, suffixes)
        self.columns = self._columns_of(self.paths[0])
        """Columns of the first file with their pyarrow types, in the file's order; all are texts in a CSV."""

    def read(
        self, names: Sequence[str], batch_rows: int, progress: ProgressListener, stage: str
    ) -> Iterator[TableRows]:
        """Read every row. Refuses a further file whose columns are missing, or have another type than in the first
        file."""
        for path in self.paths:
            if path != self.paths[0]:
                there = self._columns_of(path)
                for name in names:
                    if name not in there:
                        raise InputError(
                            str(path),
                            f"has no column {name!r}, as {self.paths[0].name} has; it has {listed_names(there)}",
                            "give all files of the folder the same columns",
                        )  # fmt: skip
                    self._require_kind(path, name, there[name])
        reporter = _Reporter(progress, stage, self._size())
        yield from self._read(names, batch_rows, reporter)
        reporter.end()

    def _require_kind(self, path: Path, name: str, found: Any) -> None:
        expected = self.columns[name]
        if kind_of(found) != kind_of(expected) and not pa.types.is_null(found):
            raise InputError(
                f"{path}: column {name!r}", f"is {found}, but {expected} in {self.paths[0].name}",
                "write all files of the folder with the same types",
            )  # fmt: skip

    def require(self, option: str, name: str) -> None:
        """Refuse a manifest that names a missing column. `option`: the field's name, such as `label`."""
        if name not in self.columns:
            raise InputError(
                f"{self.field}.{option}",
                f"names a column {name!r}, but {self.paths[0]} has {listed_names(self.columns)}",
                self._naming(name),
            )

    def _naming(self, name: str) -> str:
        """The remedy for a missing column."""
        folded = {column.strip().casefold(): column for column in self.columns}
        if near := difflib.get_close_matches(name.strip().casefold(), folded, n=1):
            return f"did you mean {folded[near[0]]!r}?"
        return "name one of them"

    def numbers(self, array: Any) -> np.ndarray:
        """Parse numbers as `numbers_of` does, in this table's notation."""
        return numbers_of(array)

    def how_to_read(self, texts: Any) -> str:
        """The option with which these texts would be numbers; empty where there is none."""
        return ""

    def error(self, path: Path, row: int, column: str, problem: str, remedy: str) -> InputError:
        return InputError(f"{self.place(path, row)}, column {column!r}", problem, remedy)

    @abstractmethod
    def place(self, path: Path, row: int) -> str:
        """A row's place for messages: the file, and the row or line in it."""

    @abstractmethod
    def _columns_of(self, path: Path) -> dict[str, Any]: ...

    @abstractmethod
    def _size(self) -> int:
        """Size of all files, in the unit that `_read` reports."""

    @abstractmethod
    def _read(self, names: Sequence[str], batch_rows: int, reporter: _Reporter) -> Iterator[TableRows]: ...


class RowPlaces:
    """Maps a row of the whole table to its file."""

    def __init__(self, table: SourceTable) -> None:
        self._table = table
        self._starts: list[tuple[int, Path]] = []
        self.rows = 0

    def add(self, rows: TableRows) -> None:
        if rows.first == 0:
            self._starts.append((self.rows, rows.path))
        self.rows += rows.batch.num_rows

    def in_file(self, row: int) -> tuple[Path, int]:
        start, path = [(start, path) for start, path in self._starts if start <= row][-1]
        return path, row - start

    def place(self, row: int) -> str:
        return self._table.place(*self.in_file(row))

    def error(self, row: int, column: str, problem: str, remedy: str) -> InputError:
        return self._table.error(*self.in_file(row), column, problem, remedy)


class ParquetTable(SourceTable):
    def __init__(self, field: str, uri: str) -> None:
        super().__init__(field, uri, PARQUET_SUFFIXES)

    def place(self, path: Path, row: int) -> str:
        return f"{path}: row {row}"

    def _open(self, path: Path) -> Any:
        try:
            # Not mapped and not pre-buffered: both would count whole row groups as this process's memory.
            return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(path, "Parquet", error) from error

    def _columns_of(self, path: Path) -> dict[str, Any]:
        schema = self._open(path).schema_arrow
        _require_distinct(path, schema.names)
        return {
            field.name: field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
            for field in schema
        }

    def _read(self, names: Sequence[str], batch_rows: int, reporter: _Reporter) -> Iterator[TableRows]:
        done = 0
        for path in self.paths:
            batches = self._open(path).iter_batches(batch_size=batch_rows, columns=list(names))
            first = 0
            for batch in _reading(batches, partial(_unreadable, path, "Parquet")):
                yield self._checked(TableRows(path, first, batch), names)
                first += batch.num_rows
                done += batch.num_rows
                reporter.report(done, batch.num_rows)

    def _checked(self, rows: TableRows, names: Sequence[str]) -> TableRows:
        """Check that texts are UTF-8, and give a column without values in this file the type that it has in the first
        file."""
        arrays = [rows.batch.column(name) for name in names]
        for place, (name, array) in enumerate(zip(names, arrays, strict=True)):
            if (row := first_broken_text(array)) >= 0:
                raise self.error(rows.path, rows.first + row, name, "is not UTF-8", "write texts as UTF-8")
            if pa.types.is_null(array.type):
                arrays[place] = pa.nulls(len(array), self.columns[name])
        return TableRows(rows.path, rows.first, pa.RecordBatch.from_arrays(arrays, names=list(names)))

    def _size(self) -> int:
        return int(sum(self._open(path).metadata.num_rows for path in self.paths))


class CsvTable(SourceTable):
    """A CSV table. Every value is a text, and an empty one is missing: whether `007` is a number depends on its use."""

    def __init__(self, field: str, uri: str, delimiter: str, decimal: DecimalMark = DecimalMark.POINT) -> None:
        self._delimiter = delimiter
        self._decimal = decimal
        super().__init__(field, uri, CSV_SUFFIXES)

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
        _require_distinct(path, names)
        return dict.fromkeys(names, pa.string())

    def _read(self, names: Sequence[str], batch_rows: int, reporter: _Reporter) -> Iterator[TableRows]:
        read_bytes = 0
        for path in self.paths:
            with _opened(path) as file:
                first = 0
                refused: list[Any] = []
                reader = self._reader(path, file, names, refused)
                for block in _reading(reader, partial(self._problem, path, refused)):
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
                read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
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
        return _unreadable(path, "CSV", error)

    def _first_line(self, path: Path, matches: Callable[[str], bool]) -> int | None:
        return next((number for number, record in _csv_records(path, self._delimiter) if matches(record)), None)


_NO_TEXT = {
    b"PK\x03\x04": ("is a zip archive, or a workbook of a spreadsheet", "extract it, or save it as CSV"),
    b"\xff\xfe": ("is UTF-16", "save the file as UTF-8"),
    b"\xfe\xff": ("is UTF-16", "save the file as UTF-8"),
}
"""Problem and remedy by a file's first bytes, for formats that spreadsheets save under the name of a CSV."""


def _require_text(path: Path) -> None:
    with _opened(path) as file:
        begins = bytes(file.read(4))
    for mark, (problem, remedy) in _NO_TEXT.items():
        if begins.startswith(mark):
            raise InputError(str(path), problem, remedy)


class _Reporter:
    """Reports the progress of reading, and never its end before the end."""

    def __init__(self, progress: ProgressListener, stage: str, total: int) -> None:
        self._progress = progress
        self._stage = stage
        self._total = max(total, 1)
        self._rows = 0
        progress(Progress(stage, 0, self._total))

    def report(self, done: int, rows: int) -> None:
        """`done` of the total so far, and `rows` more rows."""
        self._rows += rows
        self._progress(Progress(self._stage, min(done, self._total - 1), self._total, f"{self._rows:,} rows"))

    def end(self) -> None:
        self._progress(Progress(self._stage, self._total, self._total, f"{self._rows:,} rows"))


def table_paths(field: str, uri: str, suffixes: Sequence[str]) -> list[Path]:
    """The file, or the files of a folder that end in one of `suffixes`."""
    path = file_path(uri)
    try:
        if not path.is_dir():
            require_file(f"{field}.uri", path)
            path.open("rb").close()
            return [path]
        inside = sorted(path.iterdir(), key=lambda entry: entry.name)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise InputError(f"{field}.uri", *why_unreadable(path, error)) from error
    # Names that begin with a dot or an underscore are files that other programs leave beside the data: _SUCCESS,
    # .part.crc.
    seen = [entry for entry in inside if not entry.name.startswith((".", "_"))]
    if (folder := next((entry for entry in seen if entry.is_dir()), None)) is not None:
        raise InputError(
            f"{field}.uri", f"the folder {path} has the folder {folder.name!r} in it, whose files would not be read",
            "put all files of the table into one folder, and nothing else",
        )  # fmt: skip
    parts = [entry for entry in seen if entry.name.lower().endswith(tuple(suffixes))]
    for part in parts:
        try:
            require_file(f"{field}.uri", part)
        except OSError as error:
            raise InputError(
                f"{field}.uri",
                f"cannot read {part}: {error.strerror}",
                remedy_of(error, "write the file, or remove its name"),
            ) from error
    if not parts:
        raise InputError(
            f"{field}.uri", f"the folder {path} has no file that ends in {', '.join(suffixes)}",
            "check the path, or name one file",
        )  # fmt: skip
    return parts


def _reading(batches: Iterator[Any], explain: Callable[[Exception], InputError]) -> Iterator[Any]:
    """Yield `batches`; errors are raised again with the file's name."""
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise explain(error) from error
        if batch is None:
            return
        yield batch


def _unreadable(path: Path, kind: str, error: Exception) -> InputError:
    problem = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    return InputError(str(path), f"is not a readable {kind} file: {problem}", "write it again")


def _require_distinct(path: Path, names: Sequence[str]) -> None:
    for name in dict.fromkeys(names):
        if name and names.count(name) > 1:
            raise InputError(str(path), f"has {names.count(name)} columns {name!r}", "rename all but one")


def listed_names(names: Sequence[str] | dict[str, Any]) -> str:
    """The first twenty names, and the number of further ones."""
    shown = [repr(name) for name in names][:20]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "") if shown else "no columns"


def _codec(path: Path) -> str | None:
    return {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.get(path.suffix.lower())


def _opened(path: Path) -> Any:
    try:
        return pa.OSFile(str(path))
    except OSError as error:
        raise _unreadable(path, "CSV", error) from error


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
