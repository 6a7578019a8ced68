"""Features and times of the edges that a client gives: what an edge of each relation has, and rows of it, checked.

Every mistake is told by its place in what was sent, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import WITHOUT_NAMES, PayloadManifest, RelationManifest, SchemaNames, one_type
from gnnserve_worker.asking.features import RANGE_REMEDY, places_by_kind
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, cut, shown_value
from gnnserve_worker.graph.overlay import EdgeRows

_NONE = PayloadManifest((), "", 0)
_NOWHERE = np.zeros(0, np.int64)
_TIMES = range(-(2**63), 2**63)
_SHOWN_COLUMNS = 4


class PayloadFields(msgspec.Struct, frozen=True):
    """Where a form has the payload of edges."""

    features: str
    times: str


class PayloadArrays(NamedTuple):
    """Payload of edges of one relation as arrays, an entry for each of them, in their order."""

    fields: PayloadFields
    """What messages call the two."""
    features: np.ndarray
    """float32, row after row."""
    times: np.ndarray
    """int64"""


class EdgePayloads:
    """Payload that edges of each relation of a graph have. Methods raise RequestError."""

    def __init__(self, relations: Sequence[RelationManifest], names: SchemaNames) -> None:
        """`names`: of the graph, for messages."""
        self._relations, self._names = relations, names
        self._payloads = [_NONE if one.payload is UNSET else one.payload for one in relations]
        self.width = max((len(one.columns) for one in self._payloads), default=0)
        """Columns of the relation that has most."""
        self.has_times = any(one.time for one in self._payloads)
        self.takes_any = self.width > 0 or self.has_times

    def read_lists(
        self,
        features: Sequence[list[float] | None],
        times: Sequence[int | None],
        relations: np.ndarray,
        edges: int,
        fields: PayloadFields,
    ) -> EdgeRows:
        """What comes as JSON. `relations`: places of the relations of the edges, int64; empty: all are of the first."""
        kinds = relations.tolist() or [0] * edges
        return EdgeRows(self._read_features(features, kinds, fields), self._read_times(times, kinds, fields))

    def columns_of(self, kind: int) -> int:
        """Features of an edge of the relation at that place."""
        return len(self._payloads[kind].columns)

    def has_time(self, kind: int) -> bool:
        return bool(self._payloads[kind].time)

    def read_arrays(self, given: Mapping[int, PayloadArrays], relations: np.ndarray, edges: int) -> EdgeRows:
        """What comes as arrays. `given`: of every relation whose edges have something, by its place. `relations`: as of
        `read_lists`."""
        features = np.zeros((edges, self.width), np.float32)
        times = np.zeros(edges if self.has_times else 0, np.int64)
        of_kind = dict(places_by_kind(relations, edges))
        for kind, arrays in given.items():
            places = of_kind.get(kind, _NOWHERE)
            columns, count = self.columns_of(kind), len(places)
            if columns:
                features[places, :columns] = self._rows_of(kind, arrays, count)
            if self.has_time(kind):
                self._check_times(kind, arrays, count)
                times[places] = arrays.times
        return EdgeRows(features, times)

    def _rows_of(self, kind: int, arrays: PayloadArrays, edges: int) -> np.ndarray:
        columns, where = self.columns_of(kind), arrays.fields.features
        rows = len(arrays.features) // columns
        if edges and not rows:
            raise self._without_features(kind, where)
        if rows != edges:
            raise _wrong_count(rows, edges, where)
        whole = arrays.features.reshape(edges, columns)
        _check_finite(whole, whole, arrays.fields)
        return whole

    def _check_times(self, kind: int, arrays: PayloadArrays, edges: int) -> None:
        rows, where = len(arrays.times), arrays.fields.times
        if edges and not rows:
            raise self._without_time(kind, where)
        if rows != edges:
            raise _wrong_count(rows, edges, where)

    def _read_features(
        self, given: Sequence[list[float] | None], kinds: Sequence[int], fields: PayloadFields
    ) -> np.ndarray:
        rows = np.zeros((len(kinds), self.width), np.float32)
        if not given and not any(self._payloads[kind].columns for kind in set(kinds)):
            return rows
        if not given:
            place = next(place for place, kind in enumerate(kinds) if self._payloads[kind].columns)
            raise self._without_features(kinds[place], f"{fields.features}[{place}]")
        if len(given) != len(kinds):
            raise _wrong_count(len(given), len(kinds), fields.features)
        with np.errstate(over="ignore"):
            for place, (kind, row) in enumerate(zip(kinds, given, strict=True)):
                columns, numbers = self._payloads[kind].columns, row or ()
                if len(numbers) != len(columns):
                    raise self._wrong_length(kind, len(numbers), f"{fields.features}[{place}]")
                rows[place, : len(columns)] = numbers
        _check_finite(rows, given, fields)
        return rows

    def _read_times(self, given: Sequence[int | None], kinds: Sequence[int], fields: PayloadFields) -> np.ndarray:
        if not given:
            place = next((place for place, kind in enumerate(kinds) if self._payloads[kind].time), None)
            if place is not None:
                raise self._without_time(kinds[place], f"{fields.times}[{place}]")
            return np.zeros(len(kinds) if self.has_times else 0, np.int64)
        if len(given) != len(kinds):
            raise _wrong_count(len(given), len(kinds), fields.times)
        for place, (kind, time) in enumerate(zip(kinds, given, strict=True)):
            where, name = f"{fields.times}[{place}]", self._payloads[kind].time
            if time is None and name:
                raise self._without_time(kind, where)
            if time is not None and not name:
                problem, remedy = f"{shown_value(time)}, where {self._edges_of(kind)} have no time", "give null"
                raise RequestError(ErrorCode.INVALID_VALUE, where, problem, remedy)
            if time is not None and time not in _TIMES:
                problem = f"{shown_value(time)} is beyond 64 bits with a sign"
                raise RequestError(ErrorCode.INVALID_VALUE, where, problem, "give an integer of 64 bits")
        times = np.array([time or 0 for time in given], np.int64)
        return times if self.has_times else times[:0]

    def _edges_of(self, kind: int) -> str:
        return self._names.edges_of(self._relations[kind].key)

    def _without_features(self, kind: int, where: str) -> RequestError:
        remedy = (
            f"{self._edges_of(kind)} have {_named(self._payloads[kind].columns)}: give a list of them for each edge"
        )
        return RequestError(ErrorCode.MISSING_FIELD, where, "it is missing", remedy)

    def _without_time(self, kind: int, where: str) -> RequestError:
        remedy = f"{self._edges_of(kind)} have a time, {cut(self._payloads[kind].time)}: give an integer for each edge"
        return RequestError(ErrorCode.MISSING_FIELD, where, "it is missing", remedy)

    def _wrong_length(self, kind: int, length: int, where: str) -> RequestError:
        columns = self._payloads[kind].columns
        expected = _named(columns) if columns else "no features"
        remedy = f"give {counted(len(columns), 'number')} for the edge" if columns else "give null or an empty list"
        problem = f"{counted(length, 'number')}, where {self._edges_of(kind)} have {expected}"
        return RequestError(ErrorCode.WRONG_FEATURES, where, problem, remedy)


BARE_EDGES = EdgePayloads(one_type(0, 0).relations, WITHOUT_NAMES)
"""Edges of one relation, without payload."""


def _named(columns: Sequence[str]) -> str:
    shown = ", ".join(map(cut, columns[:_SHOWN_COLUMNS]))
    more = f" and {len(columns) - _SHOWN_COLUMNS:,} more" if len(columns) > _SHOWN_COLUMNS else ""
    return f"{counted(len(columns), 'feature')}, {shown}{more}"


def _wrong_count(given: int, edges: int, where: str) -> RequestError:
    problem = f"{counted(given, 'row')}, where there are {counted(edges, 'edge')}"
    return RequestError(ErrorCode.WRONG_FEATURES, where, problem, "give one for each edge, in the order of the edges")


def _check_finite(rows: np.ndarray, given: Sequence[Any] | np.ndarray, fields: PayloadFields) -> None:
    """`given`: the numbers that became the rows."""
    are_finite = np.isfinite(rows)
    if not are_finite.all():
        row, column = divmod(int(are_finite.argmin()), rows.shape[1])
        problem = f"{float(given[row][column])} is no number that float32 has"
        raise RequestError(ErrorCode.INVALID_VALUE, f"{fields.features}[{row}][{column}]", problem, RANGE_REMEDY)
