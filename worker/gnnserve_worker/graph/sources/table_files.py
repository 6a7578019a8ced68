"""Tables in files, read in batches of rows: their columns, and a row's place in a file for messages.

This module has what all formats share; Parquet and CSV have a module each beside it. None of them knows what a column
means. A table is a file, or a folder of files that are read in the order of their names; memory holds one batch of the
requested columns, not the table.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gnnserve_api.errors import InputError, remedy_of
from gnnserve_worker.graph.sources.files import require_file, why_unreadable
from gnnserve_worker.graph.sources.table_columns import kind_of, numbers_of
from gnnserve_worker.progress import Progress, ProgressListener

_SHOWN_CHARACTERS = 200
"""Characters of a library's own words that a message shows."""


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

    def __init__(self, field: str, path: Path, suffixes: Sequence[str]) -> None:
        self.field = field
        self.paths = table_paths(field, path, suffixes)
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
        reporter = ReadingReporter(progress, stage, self._size())
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
    def _read(self, names: Sequence[str], batch_rows: int, reporter: ReadingReporter) -> Iterator[TableRows]: ...


class RowFiles:
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


class ReadingReporter:
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


def table_paths(field: str, path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The file, or the files of a folder that end in one of `suffixes`."""
    try:
        if not path.is_dir():
            require_file(f"{field}.uri", path)
            path.open("rb").close()
            return [path]
        inside = sorted(path.iterdir(), key=lambda entry: entry.name)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise InputError(f"{field}.uri", *why_unreadable(path, error)) from error
    _refuse_logged_table(field, path)
    # Names that begin with a dot or an underscore are files that other programs leave beside the data: _SUCCESS,
    # .part.crc.
    seen = [entry for entry in inside if not entry.name.startswith((".", "_"))]
    if (folder := next((entry for entry in seen if entry.is_dir()), None)) is not None:
        column, is_value, _ = folder.name.partition("=")
        if is_value:
            raise InputError(
                f"{field}.uri", f"the folder {path} is partitioned by {column!r}: it has folders such as "
                f"{folder.name!r}, whose names hold values of a column that its files lack",
                "write the rows into one folder with that column in its files, as "
                "pyarrow.parquet.write_table(pyarrow.dataset.dataset(FOLDER, partitioning='hive').to_table(), FILE) "
                "does, and name that",
            )  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class _LoggedTable:
    """A kind of table in a folder whose log says which of its files are live: others are left beside them."""

    name: str
    marks: str
    """Pattern of what lies in such a folder."""
    log: str
    """What the log is called there."""
    rewrite: str
    """How its live rows become a file of their own."""
    data: str = ""
    """The folder in it that has the files; empty: they lie in it, and in folders of partitions."""


_LOGGED_TABLES = (
    _LoggedTable(
        "a Delta Lake table", "_delta_log", "_delta_log",
        "as pyarrow.parquet.write_table(deltalake.DeltaTable(FOLDER).to_pyarrow_table(), FILE) does",
    ),
    _LoggedTable(
        "an Iceberg table", "metadata/*.metadata.json", "metadata",
        "as pyarrow.parquet.write_table(pyiceberg.table.StaticTable.from_metadata(METADATA_FILE).scan().to_arrow(), "
        "FILE) does",
        "data",
    ),
    _LoggedTable("a Hudi table", ".hoodie", ".hoodie", "with the engine that writes it"),
)  # fmt: skip


def _refuse_logged_table(field: str, folder: Path) -> None:
    """Refuse a folder that is such a table, or lies in one."""
    for place in (folder, *folder.parents):
        for kind in _LOGGED_TABLES:
            inside = folder.relative_to(place).parts[:1]
            if (kind.data and inside not in {(), (kind.data,)}) or next(place.glob(kind.marks), None) is None:
                continue
            what = "is" if place == folder else f"lies in {place}, which is"
            raise InputError(
                f"{field}.uri", f"the folder {folder} {what} {kind.name}: {kind.log} says which files are live, and "
                "files of rows that were removed may lie beside them",
                f"write the live rows to a file or folder of their own, {kind.rewrite}, and name that",
            )  # fmt: skip


def explained(batches: Iterator[Any], explain: Callable[[Exception], InputError]) -> Iterator[Any]:
    """Yield `batches`; an error is raised again as `explain` tells it, with the file's name."""
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise explain(error) from error
        if batch is None:
            return
        yield batch


def unreadable(path: Path, kind: str, error: Exception) -> InputError:
    problem = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
    # It quotes the file, which may be none of text at all: a terminal might obey that.
    shown = "".join(letter if letter.isprintable() else "?" for letter in problem[:_SHOWN_CHARACTERS])
    return InputError(str(path), f"is not a readable {kind} file: {shown}", "write it again")


def require_distinct(path: Path, names: Sequence[str]) -> None:
    for name in dict.fromkeys(names):
        if name and names.count(name) > 1:
            raise InputError(str(path), f"has {names.count(name)} columns {name!r}", "rename all but one")


def listed_names(names: Sequence[str] | dict[str, Any]) -> str:
    """The first twenty names, and the number of further ones."""
    shown = [repr(name) for name in names][:20]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "") if shown else "no columns"
