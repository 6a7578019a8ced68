"""Reading rows of changes from CSV and Parquet files, and the digest by which a file is known again."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gnnserve_api import decoding
from gnnserve_api.errors import InputError, ResourceError, remedy_of
from gnnserve_cli.changes.rows import EDGE_FEATURES, EDGE_TIME, ChangeRow, columns_of, read_change
from gnnserve_cli.printable import printable_line

_BLOCK_BYTES = 1024 * 1024
_ROWS_AT_ONCE = 10_000
_SHOWN_COLUMNS = 8
"""Columns of a file that a message shows."""
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(inf|infinity|nan)", re.IGNORECASE)
"""What is a number in a CSV file. `float()` would also accept underscores and digits of other scripts."""
_INTEGER = re.compile(r"[-+]?[0-9]{1,19}")
_TIMES = range(-(2**63), 2**63)
_IDS = frozenset({"id", "source", "target"})
_labels = decoding.decoder(list[int | str])
_numbers = decoding.decoder(list[float])


def digest_of(file: Path) -> tuple[str, int]:
    """The digest of a file's content, and how many lines it has, with or without a line end behind the last one."""
    digest, lines, last = hashlib.blake2b(digest_size=16), 0, b"\n"
    with _readable(file), file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
            lines += block.count(b"\n")
            last = block[-1:]
    return digest.hexdigest(), lines + (last != b"\n")


def read_changes(file: Path) -> tuple[Iterator[ChangeRow], int | None]:
    """Changes of a file, which is read as they are taken, and how many there are; None: as many as it has lines."""
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InputError("FILE", f"{str(file)!r} is neither .csv nor .parquet", "name a file in one of these formats")
    return reader(file)


def _read_csv(file: Path) -> tuple[Iterator[ChangeRow], int | None]:
    def rows() -> Iterator[ChangeRow]:
        with _readable(file), file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = next(reader, [])
            _check_columns(file, header)
            columns = columns_of(header)
            texts = columns.texts | _IDS
            for cells in reader:
                if not cells:
                    continue
                where = f"{file}:{reader.line_num}"
                if len(cells) != len(header):
                    problem = f"{len(cells):,} cells, where the header has {len(header):,}"
                    raise InputError(where, problem, "give each row as many cells")
                given = {name: cell for name, cell in zip(header, cells, strict=True) if cell}
                yield read_change(reader.line_num, _parsed(given, where, texts), where, columns)

    return rows(), None


def _parsed(cells: dict[str, str], where: str, texts: Set[str]) -> dict[str, Any]:
    """Numbers and lists of a row of a CSV file; ids, and what else is in the columns of `texts`, stay as they are."""
    return {name: cell if name in texts else _value(name, cell, where) for name, cell in cells.items()}


def _value(name: str, cell: str, where: str) -> Any:
    is_list = cell.startswith("[")
    if name == EDGE_TIME:
        return _time(cell.strip(), where)
    try:
        if name == "label":
            return _labels.decode(cell) if is_list else cell
        if name == "features" or is_list:
            return _numbers.decode(cell)
        number = _number(cell)
    except (ValueError, msgspec.DecodeError):
        wanted = "a list of numbers, [0.5, 2]," if name == "features" else "a number, or a list [0.5, 2],"
        raise InputError(
            where, f"{cell[:40]!r} in column {name!r} cannot be read", f"give {wanted} or leave it empty"
        ) from None
    if not math.isfinite(number):
        raise InputError(where, f"{cell!r} in column {name!r} is not finite", "give a number, or leave it empty")
    return [number] if name == EDGE_FEATURES else number


def _time(cell: str, where: str) -> int:
    if _INTEGER.fullmatch(cell) is None or int(cell) not in _TIMES:
        problem = f"{cell[:40]!r} in column {EDGE_TIME!r} is no integer of 64 bits"
        raise InputError(where, problem, "write times as integers, such as seconds since 1970")
    return int(cell)


def _number(cell: str) -> float:
    """Raises ValueError where the cell is no number."""
    if _NUMBER.fullmatch(cell.strip()) is None:
        raise ValueError(cell)
    return float(cell)


def _read_parquet(file: Path) -> tuple[Iterator[ChangeRow], int | None]:
    try:
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ModuleNotFoundError:
        problem = "Parquet needs pyarrow, which is not installed; `pip install pyarrow` brings it, or give a CSV file"
        raise ResourceError(f"{file}: {problem}") from None
    with _readable(file):
        try:
            opened = parquet.ParquetFile(file)
        except pa.ArrowInvalid as error:
            raise _not_read(file, "Parquet", error) from None
    _check_columns(file, opened.schema_arrow.names)
    columns = columns_of(opened.schema_arrow.names)

    def rows() -> Iterator[ChangeRow]:
        number = 0
        with _readable(file), opened:
            for batch in opened.iter_batches(_ROWS_AT_ONCE):
                for cells in _with_integer_times(batch, file).to_pylist():
                    number += 1
                    where = f"{file}: row {number:,}"
                    given = {name: value for name, value in cells.items() if value is not None}
                    _check_types(given, where, columns.texts)
                    if isinstance(features := given.get(EDGE_FEATURES), int | float):
                        given[EDGE_FEATURES] = [features]
                    yield read_change(number, given, where, columns)

    return rows(), opened.metadata.num_rows


def _with_integer_times(batch: Any, file: Path) -> Any:
    """The rows with timestamps of edges as integers, as importing takes them."""
    import pyarrow as pa  # noqa: PLC0415

    from gnnserve_worker.graph.sources.table_columns import microseconds_of  # noqa: PLC0415

    place = batch.schema.get_field_index(EDGE_TIME)
    if place < 0 or not pa.types.is_timestamp(batch.schema.field(place).type):
        return batch
    try:
        return batch.set_column(place, EDGE_TIME, microseconds_of(batch.column(place)))
    except pa.ArrowInvalid:
        problem = "holds a time that microseconds since 1970 in 64 bits do not reach"
        raise InputError(f"{file}: column {EDGE_TIME!r}", problem, "write other times") from None


def _check_types(cells: dict[str, Any], where: str, texts: Set[str]) -> None:
    """`texts`: columns that have texts alone."""
    for name, value in cells.items():
        entries = value if isinstance(value, list) else [value]
        if name in _IDS or name == "label":
            fits = all(isinstance(entry, int | str) and not isinstance(entry, bool) for entry in entries)
            fits &= name == "label" or not isinstance(value, list)
            wanted = "an integer or a text"
        elif name in texts:
            fits, wanted = isinstance(value, str), "a text"
        elif name == EDGE_TIME:
            fits = isinstance(value, int) and not isinstance(value, bool) and value in _TIMES
            wanted = "an integer of 64 bits, or a timestamp"
        else:
            fits = all(isinstance(entry, int | float) and math.isfinite(entry) for entry in entries)
            fits &= name != "features" or isinstance(value, list)
            wanted = "a list of numbers" if name == "features" else "a number, or a list of numbers"
        if not fits:
            raise InputError(where, f"{str(value)[:40]!r} in column {name!r} is not possible", f"give {wanted}")


def _check_columns(file: Path, columns: list[str]) -> None:
    if "change" not in columns:
        found = ", ".join(map(repr, columns[:_SHOWN_COLUMNS])) + ", …" * (len(columns) > _SHOWN_COLUMNS)
        raise InputError(
            str(file),
            f"it has no column `change`, but {printable_line(found) or 'no columns at all'}",
            f"begin it with the names of its columns, separated by commas: {', '.join(columns_of(columns).fixed)}, "
            "and those of features",
        )
    for name in columns:
        if name != name.strip() and name.strip() in columns_of([*columns, name.strip()]).fixed:
            raise InputError(str(file), f"its column {name!r} has blanks around its name", "take them out")
    if repeated := [name for name in columns if columns.count(name) > 1]:
        raise InputError(str(file), f"it has two columns {repeated[0]!r}", "give each column a name of its own")


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            "FILE", f"{str(file)!r} cannot be read: {error.strerror or error}", remedy_of(error, "check the path")
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_read(file, "CSV in UTF-8", error) from None


def _not_read(file: Path, what: str, error: Exception) -> InputError:
    return InputError("FILE", f"{str(file)!r} is not {what}: {printable_line(str(error))}", "check the file")


_READERS: dict[str, Callable[[Path], tuple[Iterator[ChangeRow], int | None]]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
