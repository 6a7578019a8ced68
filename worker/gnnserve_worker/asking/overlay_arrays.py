"""Arrays that requests bring: tensors of the Open Inference Protocol, and the binary form.

Both have a matrix of features for each type of nodes, as wide as the type's own columns, and the payload of edges by
relation. Tensors name nodes as JSON does; the binary form has integers, which its parts divide (`overlay_parts.py`). A
graph of one type has one part, and tensors whose names end in none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.edge_payload import EdgePayloads, PayloadArrays, PayloadFields
from gnnserve_worker.asking.features import TypeFeatures, places_by_kind
from gnnserve_worker.asking.overlay_checks import check_edge_bytes, check_finite, check_sizes
from gnnserve_worker.asking.overlay_ids import NumberedIds, OverlayIds, OverlayRequestIds, PlacedIds
from gnnserve_worker.asking.overlay_parts import Counts, OverlayParts, Part
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted
from gnnserve_worker.graph.overlay import ALL_OF_FIRST, EdgeRows, Overlay

PAYLOAD = PayloadFields("overlay.edgeFeatures", "overlay.edgeTimes")
"""What JSON and the binary form call what edges come with."""
_NODES, _OVERRIDES = "overlay.nodes", "overlay.overrides"
_NO_ROWS = np.zeros((0, 0), np.float32)


class Arrange(Protocol):
    """`OverlayArranger.arrange` of the revision's graph."""

    def __call__(
        self,
        features: np.ndarray,
        overridden: np.ndarray,
        edges: np.ndarray,
        seeds: np.ndarray,
        new_types: np.ndarray = ALL_OF_FIRST,
        relations: np.ndarray = ALL_OF_FIRST,
        payload: EdgeRows | None = None,
        /,
    ) -> tuple[Overlay, np.ndarray]: ...  # pragma: no cover


class TypeColumns(NamedTuple):
    """Features of nodes of one type."""

    place: int
    suffix: str
    """What the names of its tensors end in."""
    columns: int


class RelationColumns(NamedTuple):
    """Payload of edges of one relation."""

    place: int
    suffix: str
    columns: int
    has_time: bool


class ArrayForm(NamedTuple):
    """Form of the arrays that a request may bring. Types and relations without features and times are left out."""

    are_taken: bool
    """False: none at all."""
    has_text_ids: bool
    """Whether tensors of ids are of texts."""
    names_types: bool
    """Whether edges name their relation, and the binary form its types."""
    types: tuple[TypeColumns, ...] = ()
    relations: tuple[RelationColumns, ...] = ()


NO_ARRAYS = ArrayForm(are_taken=False, has_text_ids=False, names_types=False)
TypeRows = Mapping[int, np.ndarray]
"""Features of nodes by the place of their type: float32 [nodes of the type, its columns], in their order."""


Places = Mapping[int, np.ndarray]
"""Places of the nodes of each type: int64, ascending."""


class NumberArrays(msgspec.Struct, frozen=True):
    """Features and payload in the binary form, part after part, each part with columns of its own."""

    features: np.ndarray
    """Rows of new nodes and overrides, one after the other: float32."""
    edge_features: np.ndarray
    """float32"""
    edge_times: np.ndarray
    """int64"""


class ArrayOverlays:
    """Reads arrays by what a graph has, and arranges them over it. Methods raise RequestError."""

    def __init__(
        self, ids: OverlayIds, types: Sequence[TypeFeatures], payloads: EdgePayloads, arrange: Arrange
    ) -> None:
        self._ids = ids
        self._types = types
        self._payloads = payloads
        self._arrange = arrange
        self._width = max(one.width for one in types)
        of_types = enumerate(zip(ids.type_suffixes, types, strict=True))
        of_relations = (
            RelationColumns(place, suffix, payloads.columns_of(place), payloads.has_time(place))
            for place, suffix in ids.relation_suffixes.items()
        )
        self.form = ArrayForm(
            True, ids.are_texts, ids.names_types,
            tuple(TypeColumns(place, suffix, one.given) for place, (suffix, one) in of_types if one.given),
            tuple(one for one in of_relations if one.columns or one.has_time),
        )  # fmt: skip

    def check(self, counts: Counts, limits: OverlayLimits) -> None:
        check_sizes(counts.new, counts.overrides, counts.edges, self._width, limits)
        check_edge_bytes(counts.edges, self._payloads.width)

    def read_parts(self, text: bytes, counts: Counts) -> OverlayParts:
        return self._ids.read_parts(text, counts)

    def features_in(self, parts: OverlayParts) -> int:
        """Numbers that the features of its nodes have."""
        return sum(self._types[kind].given * count for kind, count in (*parts.nodes, *parts.overrides))

    def payload_in(self, parts: OverlayParts) -> tuple[int, int]:
        """Numbers that the features of its edges have, and how many of these have a time."""
        payloads = self._payloads
        return (
            sum(payloads.columns_of(kind) * count for kind, count in parts.edges),
            sum(count for kind, count in parts.edges if payloads.has_time(kind)),
        )

    def arrange_numbers(self, ids: NumberedIds, arrays: NumberArrays) -> tuple[Overlay, np.ndarray]:
        parts, counts = ids.parts, ids.counts
        new, behind = self._divided(arrays.features, parts.nodes)
        other, _ = self._divided(behind, parts.overrides)
        features = self._features(_places_of(parts.nodes), new, _places_of(parts.overrides), other)
        placed = self._ids.place_numbers(ids, arrays.features, partial(check_finite, features, counts.new))
        payload, rows, times = dict[int, PayloadArrays](), arrays.edge_features, arrays.edge_times
        for kind, count in parts.edges if self._payloads.takes_any else ():
            own, timed = count * self._payloads.columns_of(kind), count * self._payloads.has_time(kind)
            payload[kind] = PayloadArrays(PAYLOAD, rows[:own], times[:timed])
            rows, times = rows[own:], times[timed:]
        return self._arranged(features, placed, payload)

    def arrange_named(
        self, ids: OverlayRequestIds, new: TypeRows, other: TypeRows, payload: Mapping[int, PayloadArrays]
    ) -> tuple[Overlay, np.ndarray]:
        """`new`, `other`: of new nodes and overrides, of each type of `form`. `payload`: of each relation of it."""
        placed = self._ids.place(ids)
        of_new = dict(places_by_kind(placed.new_types, len(ids.new)))
        of_overrides = dict(places_by_kind(placed.overridden_types, len(ids.overridden)))
        features = self._features(of_new, new, of_overrides, other)
        check_finite(features, len(ids.new))
        return self._arranged(features, placed, payload)

    def _divided(self, rows: np.ndarray, parts: Sequence[Part]) -> tuple[TypeRows, np.ndarray]:
        """Features of the nodes of each part, and what is behind them. `rows`: float32, row after row."""
        found = dict[int, np.ndarray]()
        for kind, count in parts:
            columns = self._types[kind].given
            found[kind], rows = rows[: count * columns].reshape(count, columns), rows[count * columns :]
        return found, rows

    def _features(self, of_new: Places, new: TypeRows, of_overrides: Places, other: TypeRows) -> np.ndarray:
        """Features of all nodes, new ones first: float32 [new nodes and overrides, columns of the widest type]."""
        first = sum(map(len, of_new.values()))
        features = np.zeros((first + sum(map(len, of_overrides.values())), self._width), np.float32)
        self._check_rows(new, of_new, _NODES)
        for kind, places in of_new.items():
            own = self._types[kind]
            features[places, : own.width] = own.rows_of_new(new.get(kind, _NO_ROWS))
        overridden = {kind: places for kind, places in of_overrides.items() if len(places)}
        for kind, places in overridden.items():
            self._types[kind].check_overrides(int(places[0]))
        self._check_rows(other, of_overrides, _OVERRIDES)
        for kind, places in overridden.items():
            features[first + places, : self._types[kind].width] = other[kind]
        return features

    def _check_rows(self, rows: TypeRows, places: Places, field: str) -> None:
        for kind, given in rows.items():
            nodes, suffix = len(places.get(kind, ())), self._ids.type_suffixes[kind]
            if len(given) != nodes:
                of_type = f" of type {suffix[1:]}" if suffix else ""
                problem = f"{counted(len(given), 'row')}, where {field} has {counted(nodes, 'node')}{of_type}"
                remedy = "give a row of all features for each"
                raise RequestError(ErrorCode.WRONG_FEATURES, f"{field}.features{suffix}", problem, remedy)

    def _arranged(
        self, features: np.ndarray, placed: PlacedIds, given: Mapping[int, PayloadArrays]
    ) -> tuple[Overlay, np.ndarray]:
        payload, edges = None, len(placed.edges)
        if self._payloads.takes_any:
            payload = self._payloads.read_arrays(given, placed.relations, edges)
        return self._arrange(
            features, placed.overridden, placed.edges, placed.asked, placed.new_types, placed.relations, payload
        )


def _places_of(parts: Sequence[Part]) -> Places:
    places, begin = dict[int, np.ndarray](), 0
    for kind, count in parts:
        places[kind] = np.arange(begin, begin + count)
        begin += count
    return places
