"""Features in batches of changes: which columns a node has, by its type or its id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.graph.feature_columns import FeatureColumns

TypeColumns = Sequence[FeatureColumns | None]
"""Columns of the nodes of each type, as in the source; None: the type has no features."""


class ChangedFeatures(Protocol):
    """Methods raise RequestError where the revision does not tell what features its nodes have."""

    def width(self) -> int:
        """Columns of a row of a batch: those of the type that has most."""

    def of_types(self) -> TypeColumns: ...

    def columns_of(self, id_: Any) -> FeatureColumns | None:
        """Columns of a node's features, as in the source, by its id in a batch; None: its type has none, or is none of
        the graph's."""


@dataclass(frozen=True, slots=True)
class KnownFeatures:
    types: TypeColumns
    place_of: Callable[[Any], int]
    """The place of a node's type, by the node's id in a batch; -1: there is no such type. A log may have batches whose
    ids are of another form than the graph's."""

    def width(self) -> int:
        return max(0 if columns is None else columns.features for columns in self.types)

    def of_types(self) -> TypeColumns:
        return self.types

    def columns_of(self, id_: Any) -> FeatureColumns | None:
        place = self.place_of(id_)
        return None if place < 0 else self.types[place]


@dataclass(frozen=True, slots=True)
class UnknownFeatures:
    why: str
    remedy: str = "choose variants that read the graph as it is, or generate it again"

    def width(self) -> NoReturn:
        raise self._error()

    def of_types(self) -> NoReturn:
        raise self._error()

    def columns_of(self, id_: Any) -> NoReturn:
        raise self._error()

    def _error(self) -> RequestError:
        problem = f"the revision cannot take changes: {self.why}"
        return RequestError(ErrorCode.NO_UPDATES, "body", problem, self.remedy)
