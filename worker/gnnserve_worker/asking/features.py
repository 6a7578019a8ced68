"""Features that a request brings, from lists of numbers, or from objects with the names of columns, to rows.

Every mistake is told by its place in the request, the value and the remedy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from gnnserve_api.http.protocol import NodeFeatures, TypedNodeFeatures
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, cut, shown_value
from gnnserve_worker.graph.feature_columns import FeatureColumns

RANGE_REMEDY = f"give a number from {np.finfo(np.float32).min:.7g} to {np.finfo(np.float32).max:.7g}"
_SHOWN_COLUMNS = 4
_Named = Mapping[str, float | list[float]]
"""Features by the names of columns."""
AnyNode = NodeFeatures[Any] | TypedNodeFeatures
"""A node that a request brings, or gives other features."""


def runs_of(types: np.ndarray, nodes: int) -> Sequence[tuple[int, int, int]]:
    """Runs of nodes of one type: the place of the type, and where the run begins and ends. `types`: of so many nodes,
    int64; empty: all are of the first one."""
    if not len(types):
        return ((0, 0, nodes),)
    bounds = [0, *(np.flatnonzero(np.diff(types)) + 1).tolist(), nodes]
    return [(int(types[begin]), begin, end) for begin, end in pairwise(bounds)]


def places_by_kind(kinds: np.ndarray, count: int) -> Sequence[tuple[int, np.ndarray]]:
    """Places of nodes of each type, or of edges of each relation, that is among them: int64, ascending. `kinds`: places
    of their types, of so many nodes; empty: all are of the first one."""
    if not len(kinds):
        return ((0, np.arange(count)),)
    return [(kind, np.flatnonzero(kinds == kind)) for kind in np.unique(kinds).tolist()]


class StoredFeatures(Protocol):
    """Features of stored nodes, a part of `overlay.py: OverlaySupport`."""

    @property
    def columns(self) -> FeatureColumns: ...

    @property
    def features_of(self) -> Callable[[np.ndarray], np.ndarray] | None: ...


class TypeFeatures(Protocol):
    """Features that requests bring to nodes of one type. Methods raise RequestError. `first`: the place of the first
    of the nodes among all of the request. `rows`: float32 [nodes, `width`], all 0, each row C-contiguous."""

    @property
    def width(self) -> int:
        """Columns of a row."""

    @property
    def given(self) -> int:
        """Columns of a row that arrays have; 0: nodes of the type come without features."""

    @property
    def lists(self) -> int:
        """Columns that have names, and of which each may be a list in JSON."""

    def rows_of_new(self, given: np.ndarray) -> np.ndarray:
        """Rows of new nodes whose features come as an array: float32 [nodes, `given`], or what stands for them."""

    def check_overrides(self, first: int) -> None:
        """Raises RequestError where stored nodes of the type take no other features."""

    def write(self, nodes: Sequence[AnyNode], first: int, rows: np.ndarray) -> None:
        """Write what new nodes come with."""

    def replace(self, overrides: Sequence[AnyNode], first: int, positions: np.ndarray, rows: np.ndarray) -> None:
        """Write other features of stored nodes (their numbers, int64)."""


class GivenFeatures:
    """Features of a type that has them in the source."""

    def __init__(self, columns: FeatureColumns, features_of: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        """`features_of`: features of stored nodes; None: the revision does not keep them, or not exactly."""
        self._columns = columns
        self._features_of = features_of
        self.width = self.given = columns.features
        self.lists = len(columns.columns)

    def rows_of_new(self, given: np.ndarray) -> np.ndarray:
        return given

    def check_overrides(self, first: int) -> None:
        """Accept all: overrides may have any features."""

    def write(self, nodes: Sequence[AnyNode], first: int, rows: np.ndarray) -> None:
        write_features(nodes, "overlay.nodes", self._columns, rows, first=first)

    def replace(self, overrides: Sequence[AnyNode], first: int, positions: np.ndarray, rows: np.ndarray) -> None:
        _keep_features(overrides, first, positions, self._columns, self._features_of, rows)
        write_features(overrides, "overlay.overrides", self._columns, rows, are_kept=True, first=first)


class LearntFeatures:
    """A type without features in the source: a new node of it begins with the mean of the type's embeddings, if there
    are any."""

    given = lists = 0

    def __init__(self, name: str, default: np.ndarray) -> None:
        """`name`: of the type. `default`: that mean, float32; of no column: it has no embeddings."""
        self._name = name
        self._default = default
        begins = ": a new node begins with the mean of the embeddings of its type" if len(default) else ""
        self._remedy = f"leave them out{begins}"
        self.width = len(default)

    def rows_of_new(self, given: np.ndarray) -> np.ndarray:
        return self._default

    def check_overrides(self, first: int) -> None:
        raise self._error(f"overlay.overrides[{first}]", "leave the override out")

    def write(self, nodes: Sequence[AnyNode], first: int, rows: np.ndarray) -> None:
        for place, node in enumerate(nodes, first):
            if node.features is not None:
                raise self._error(f"overlay.nodes[{place}].features", self._remedy)
        rows[:] = self._default

    def replace(self, overrides: Sequence[AnyNode], first: int, positions: np.ndarray, rows: np.ndarray) -> None:
        self.check_overrides(first)

    def _error(self, where: str, remedy: str) -> RequestError:
        return RequestError(ErrorCode.WRONG_FEATURES, where, f"nodes of type {self._name} have no features", remedy)


def why_not_kept(shown: str) -> str:
    """Problem of a column that is not given for a stored node. `shown`: the node's id."""
    return (
        f"it is missing, and this revision does not keep what node {shown} has: it stores products of features, or no "
        "table of all of them in float32, or rows were divided by their norms"
    )


def _keep_features(
    overrides: Sequence[AnyNode],
    first: int,
    positions: np.ndarray,
    columns: FeatureColumns,
    features_of: Callable[[np.ndarray], np.ndarray] | None,
    rows: np.ndarray,
) -> None:
    """Write the stored features of nodes of which some columns are not given. `rows`: float32 [overrides, features]."""
    most = len(columns.columns) or columns.features
    partly = [
        i for i, node in enumerate(overrides) if isinstance(node.features, dict) and len(node.features) < most
    ]  # fmt: skip
    if not partly:
        return
    if features_of is not None:
        rows[partly] = features_of(positions[partly])
        return
    override = overrides[partly[0]]
    given = override.features or ()
    names = (column.name for column in columns.columns) if columns.columns else map(str, range(columns.features))
    raise RequestError(
        ErrorCode.MISSING_COLUMN,
        f"overlay.overrides[{first + partly[0]}].features.{cut(next(name for name in names if name not in given))}",
        why_not_kept(shown_value(override.id)),
        f"give all {most:,} columns",
    )


def write_features(
    given: Sequence[AnyNode],
    field: str,
    columns: FeatureColumns,
    rows: np.ndarray,
    *,
    are_kept: bool = False,
    first: int = 0,
) -> None:
    """Write one row for each node; `rows`: float32 [at least as many, features], each C-contiguous. `are_kept`: they
    hold what columns that are not given stay at; otherwise those get what missing values get. `first`: the place of the
    first node among those of `field`."""
    for i, node in enumerate(given):
        values = node.features
        if not isinstance(values, list) or len(values) != columns.features:
            write_row(values, f"{field}[{first + i}].features", columns, rows[i], are_kept=are_kept)
            continue
        try:
            columns.row.pack_into(rows[i].data, 0, *values)
        except OverflowError:
            raise _out_of_range(f"{field}[{first + i}].features", enumerate(values)) from None


def write_row(
    values: list[float] | _Named | None, where: str, columns: FeatureColumns, row: np.ndarray, *, are_kept: bool = False
) -> None:
    """Write the row of one node; `row`: float32 [features], C-contiguous."""
    if values is None:
        remedy = f"nodes of its type have {columns.features:,} features: give them"
        raise RequestError(ErrorCode.MISSING_FIELD, where, "it is missing", remedy)
    if not isinstance(values, list):
        _write_named(values, where, columns, row, are_kept=are_kept)
        return
    if len(values) != columns.features:
        raise _wrong_length(where, len(values), columns)
    try:
        columns.row.pack_into(row.data, 0, *values)
    except OverflowError:
        raise _out_of_range(where, enumerate(values)) from None


def _write_named(values: _Named, where: str, columns: FeatureColumns, row: np.ndarray, *, are_kept: bool) -> None:
    # From the quickest way on: a row of 602 columns takes them 14, 39 and 148 µs.
    if not _write_all_numbers(values, columns, row) and not _write_some_numbers(
        values, columns, row, are_kept=are_kept
    ):
        _write_each(values, where, columns, row, are_kept=are_kept)


def _write_all_numbers(values: _Named, columns: FeatureColumns, row: np.ndarray) -> bool:
    """Write a number for each column of the source; False: something else is given, and the row may be half written."""
    if columns.in_order is None or len(values) != len(columns.columns):
        return False
    try:
        columns.row.pack_into(row.data, 0, *columns.in_order(values))
    except (KeyError, OverflowError, struct.error):
        return False
    return True


def _write_some_numbers(values: _Named, columns: FeatureColumns, row: np.ndarray, *, are_kept: bool) -> bool:
    """Write a number for each column that is given; False, and nothing is written: some are lists, wrong or missing."""
    if not are_kept and not columns.required <= values.keys():
        return False
    try:
        places = np.fromiter(map(columns.single.__getitem__, values), np.intp, len(values))
        packed = struct.pack(f"={len(values)}f", *values.values())
    except (KeyError, OverflowError, struct.error):
        return False
    if not are_kept:
        row[:] = columns.filled
    row[places] = np.frombuffer(packed, np.float32)
    return True


def _write_each(values: _Named, where: str, columns: FeatureColumns, row: np.ndarray, *, are_kept: bool) -> None:
    """Write the number or list of each column that is given. Raises RequestError for what is wrong."""
    places: list[int] = []
    numbers: list[float] = []
    for name, value in values.items():
        start, width = columns.place(name) or (0, 0)
        if isinstance(value, list):
            if len(value) != width or not width:
                raise _wrong_column(where, name, value, width, columns)
            places += range(start, start + width)
            numbers += value
        elif width != 1:
            raise _wrong_column(where, name, value, width, columns)
        else:
            places.append(start)
            numbers.append(value)
    if not are_kept:
        _check_required(values, where, columns)
        row[:] = columns.filled
    try:
        row[places] = np.frombuffer(struct.pack(f"={len(numbers)}f", *numbers), np.float32)
    except OverflowError:
        raise _out_of_range(where, values.items()) from None


def _check_required(values: Mapping[str, object], where: str, columns: FeatureColumns) -> None:
    if not columns.required or len(values) == len(columns.columns):
        return
    for column in columns.columns:
        if column.fill is None and column.name not in values:
            raise RequestError(
                ErrorCode.MISSING_COLUMN,
                f"{where}.{cut(column.name)}",
                "it is missing, and missing values are refused, as in the graph's source",
                f"give {_described(column.width)}",
            )


def _described(width: int) -> str:
    return "a number" if width == 1 else f"a list of {width:,} numbers"


def _wrong_length(where: str, numbers: int, columns: FeatureColumns) -> RequestError:
    return RequestError(
        ErrorCode.WRONG_FEATURES,
        where,
        f"{counted(numbers, 'number')}, where the graph has {columns.features:,} features",
        f"give {columns.features:,} numbers, or an object with the names of columns",
    )


def _wrong_column(
    where: str, name: str, value: float | list[float], width: int, columns: FeatureColumns
) -> RequestError:
    where = f"{where}.{cut(name)}"
    if not width:
        known = [column.name for column in columns.columns[:_SHOWN_COLUMNS]]
        more = ", …" if len(columns.columns) > len(known) else ""
        remedy = f"its columns are {cut(', '.join(known))}{more}"
        if not known:
            remedy = f"it does not name them, so they are called by their numbers, 0 to {columns.features - 1}"
        return RequestError(ErrorCode.UNKNOWN_COLUMN, where, "the graph's source has no such column", remedy)
    found = counted(len(value), "number") if isinstance(value, list) else shown_value(value)
    return RequestError(
        ErrorCode.WRONG_FEATURES, where, f"expected {_described(width)}, got {found}", f"give {_described(width)}"
    )


def _out_of_range(where: str, given: Iterable[tuple[int | str, float | list[float]]]) -> RequestError:
    """Names the first number that float32 cannot hold. `given`: by the name of its column, or by its index."""
    for name, value in given:
        place = f"{where}[{name}]" if isinstance(name, int) else f"{where}.{cut(name)}"
        for index, number in enumerate(value if isinstance(value, list) else [value]):
            try:
                struct.pack("=f", number)
            except OverflowError:
                place = f"{place}[{index}]" if isinstance(value, list) else place
                return RequestError(
                    ErrorCode.INVALID_VALUE,
                    place,
                    f"{shown_value(number)} is beyond the range of float32",
                    RANGE_REMEDY,
                )
    raise AssertionError("float32 holds every number")
