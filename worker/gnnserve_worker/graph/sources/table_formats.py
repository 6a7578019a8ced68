"""Formats of a source's tables, Parquet and CSV: how one is opened, and what its files are known by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, assert_never

from gnnserve_api.errors import InputError
from gnnserve_api.spec.heterogeneous import CsvByType, ParquetByType
from gnnserve_api.spec.paths import DataPath
from gnnserve_api.spec.tables import CsvSource, DecimalMark, ParquetSource
from gnnserve_worker.graph.sources.files import digest_of
from gnnserve_worker.graph.sources.table_csv import CSV_SUFFIXES, CsvTable
from gnnserve_worker.graph.sources.table_files import SourceTable, table_paths
from gnnserve_worker.graph.sources.table_parquet import PARQUET_SUFFIXES, ParquetTable
from gnnserve_worker.parallel import map_parallel


class TableOptions(Protocol):
    """A table of nodes or edges in a manifest."""

    @property
    def uri(self) -> DataPath: ...  # pragma: no cover


class SourceTableFormat(Protocol):
    @property
    def field(self) -> str:
        """Field of the source in the manifest, for messages."""
        ...  # pragma: no cover

    @property
    def suffixes(self) -> Sequence[str]:
        """What names of files may end in."""
        ...  # pragma: no cover

    def open(self, field: str, table: TableOptions) -> SourceTable:
        """`field`: of the table."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class _Parquet:
    field: str
    suffixes: Sequence[str] = PARQUET_SUFFIXES

    def open(self, field: str, table: TableOptions) -> SourceTable:
        return ParquetTable(field, table.uri.path)


@dataclass(frozen=True, slots=True)
class _Csv:
    field: str
    delimiter: str
    """Between values of tables that have none of their own."""
    decimal: DecimalMark
    suffixes: Sequence[str] = CSV_SUFFIXES

    def open(self, field: str, table: TableOptions) -> SourceTable:
        own: str | None = getattr(table, "delimiter", None)
        return CsvTable(field, table.uri.path, self._checked_delimiter(field, own), self.decimal)

    def _checked_delimiter(self, table: str, of_table: str | None) -> str:
        """The delimiter of a table: its own, or the source's."""
        field, delimiter = (f"{self.field}.delimiter", self.delimiter)
        if of_table is not None:
            field, delimiter = f"{table}.delimiter", of_table
        if not delimiter.isascii() or delimiter in '"\r\n':
            raise InputError(
                field, f"is {delimiter!r}, expected an ASCII character that is neither a quotation mark nor the end of "
                "a line", "name the character between values",
            )  # fmt: skip
        return delimiter


def format_of(field: str, source: ParquetSource | CsvSource | ParquetByType | CsvByType) -> SourceTableFormat:
    """`field`: of the source's kind, as `spec.graph.source`."""
    match source:
        case ParquetSource() | ParquetByType():
            return _Parquet(f"{field}.parquet")
        case CsvSource() | CsvByType():
            return _Csv(f"{field}.csv", source.delimiter, source.decimal)
        case _:
            assert_never(source)


def file_digests(given: SourceTableFormat, tables: Sequence[tuple[str, TableOptions]]) -> list[str]:
    """Name and digest of each file of the tables, which come with what they are called in the source, as `nodes`."""
    files: list[tuple[str, str, Path]] = []
    for name, table in tables:
        is_folder = table.uri.path.is_dir()
        field = f"{given.field}.{name}"
        paths = table_paths(field, table.uri.path, given.suffixes)
        files += [(f"{name}/{path.name if is_folder else ''}", f"{field}.uri", path) for path in paths]
    digests = map_parallel(lambda each: digest_of(*files[each][1:]), len(files))
    return [f"{name} {digest}" for (name, *_), digest in zip(files, digests, strict=True)]
