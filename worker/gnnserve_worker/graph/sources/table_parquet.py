"""Tables in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gnnserve_worker.graph.sources.table_columns import first_broken_text
from gnnserve_worker.graph.sources.table_files import (
    ReadingReporter,
    SourceTable,
    TableRows,
    explained,
    require_distinct,
    unreadable,
)

PARQUET_SUFFIXES = (".parquet", ".pq")
_BUFFER_BYTES = 1 << 20


class ParquetTable(SourceTable):
    def __init__(self, field: str, path: Path) -> None:
        super().__init__(field, path, PARQUET_SUFFIXES)

    def place(self, path: Path, row: int) -> str:
        return f"{path}: row {row}"

    def _open(self, path: Path) -> Any:
        try:
            # Not mapped and not pre-buffered: both would count whole row groups as this process's memory.
            return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise unreadable(path, "Parquet", error) from error

    def _columns_of(self, path: Path) -> dict[str, Any]:
        schema = self._open(path).schema_arrow
        require_distinct(path, schema.names)
        return {
            field.name: field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
            for field in schema
        }

    def _read(self, names: Sequence[str], batch_rows: int, reporter: ReadingReporter) -> Iterator[TableRows]:
        done = 0
        for path in self.paths:
            batches = self._open(path).iter_batches(batch_size=batch_rows, columns=list(names))
            first = 0
            for batch in explained(batches, partial(unreadable, path, "Parquet")):
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
