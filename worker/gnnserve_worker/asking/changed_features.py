"""Features in batches of changes: which columns a node has, by its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.graph.feature_columns import FeatureColumns


class ChangedFeatures(Protocol):
    """Methods raise RequestError where the revision does not tell what features its nodes have."""

    def width(self) -> int:
        """Columns of a row of a batch: those of the type that has most."""

    def columns_of(self, id_: Any) -> FeatureColumns | None:
        """Columns of a node's features, as in the source, by its id; None: its type has none, or is none of the
        graph's."""

    def columns_of_type(self, name: str) -> FeatureColumns | None:
        """Columns of the nodes of a type; empty: of a graph of one."""


@dataclass(frozen=True, slots=True)
class PlainFeatures:
    """All nodes have the same columns."""

    columns: FeatureColumns

    def width(self) -> int:
        return self.columns.features

    def columns_of(self, id_: Any) -> FeatureColumns | None:
        return self.columns

    def columns_of_type(self, name: str) -> FeatureColumns | None:
        return self.columns


@dataclass(frozen=True, slots=True)
class FeaturesByType:
    """Nodes of each type have columns of their own, and ids name the type."""

    columns: Mapping[str, FeatureColumns | None]
    """By the name of the type."""
    widest: int

    def width(self) -> int:
        return self.widest

    def columns_of(self, id_: Any) -> FeatureColumns | None:
        # A log may have batches about a graph of one type too, whose ids may be integers.
        return self.columns.get(id_.partition("/")[0]) if isinstance(id_, str) else None

    def columns_of_type(self, name: str) -> FeatureColumns | None:
        return self.columns[name]


@dataclass(frozen=True, slots=True)
class UnknownFeatures:
    why: str
    remedy: str = "choose variants that read the graph as it is, or generate it again"

    def width(self) -> NoReturn:
        raise self._error()

    def columns_of(self, id_: Any) -> NoReturn:
        raise self._error()

    def columns_of_type(self, name: str) -> NoReturn:
        raise self._error()

    def _error(self) -> RequestError:
        problem = f"the revision cannot take changes: {self.why}"
        return RequestError(ErrorCode.NO_UPDATES, "body", problem, self.remedy)
