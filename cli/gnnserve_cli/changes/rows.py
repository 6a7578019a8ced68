"""Changes as a file has them, one in each row: what a row must say, in whatever format the file is.

Columns are `change`, `id`, `source`, `target`, `label` and `features` (a list of all), and beside them the graph's own
feature columns, by their names. Where edges of the graph have features or a time, those of an edge that comes stand in
`edgeFeatures` (a list of all) and `edgeTime`. A file with a column `relation` is of a graph of several types: an edge
names its relation there, and ids name their types, `user/17`, or have them in `type`, `sourceType` and `targetType`.
The header alone decides, so that files are read as they are sent: a feature of that name stands in `features`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from gnnserve_api.errors import InputError

Label = int | str | list[int | str]
_RELATION = "relation"
"""The column that files of graphs of several types have."""
_TYPE_OF = {"id": "type", "source": "sourceType", "target": "targetType"}
"""The column that may give the type of an id, by the column of the id."""
_TEXTS = frozenset({"change"})
"""Columns of texts in any file, besides ids and labels."""
EDGE_FEATURES, EDGE_TIME = "edgeFeatures", "edgeTime"
_FIXED = ("change", "id", "source", "target", "label", "features", EDGE_FEATURES, EDGE_TIME)
"""Columns of any file that are no features of nodes."""


class ChangeKind(StrEnum):
    """Kinds of changes of a row, in the order in which a batch is applied."""

    ADD_NODE = "add-node"
    SET_FEATURES = "set-features"
    SET_LABEL = "set-label"
    ADD_EDGE = "add-edge"
    REMOVE_EDGE = "remove-edge"
    REMOVE_NODE = "remove-node"


_EDGES = frozenset({ChangeKind.ADD_EDGE, ChangeKind.REMOVE_EDGE})
_WITH_FEATURES = frozenset({ChangeKind.ADD_NODE, ChangeKind.SET_FEATURES})
_WITH_LABEL = frozenset({ChangeKind.ADD_NODE, ChangeKind.SET_LABEL})


class Columns(Protocol):
    """Columns by which the rows of a file name nodes and relations. Methods raise InputError."""

    @property
    def fixed(self) -> tuple[str, ...]:
        """Columns that are no features of nodes."""
        ...  # pragma: no cover

    @property
    def texts(self) -> frozenset[str]:
        """Columns that have texts alone."""
        ...  # pragma: no cover

    def named_by(self, kind: ChangeKind) -> frozenset[str]:
        """Columns that name what such a row changes."""
        ...  # pragma: no cover

    def id(self, column: str, cells: Mapping[str, Any]) -> int | str | None:
        """The id in a column."""
        ...  # pragma: no cover

    def relation(self, kind: ChangeKind, cells: Mapping[str, Any], where: str) -> str | None:
        """The relation of an edge; None: the row names none."""
        ...  # pragma: no cover


class _Ids:
    """Ids alone."""

    fixed = _FIXED
    texts = _TEXTS

    def named_by(self, kind: ChangeKind) -> frozenset[str]:
        return frozenset(_needed(kind))

    def id(self, column: str, cells: Mapping[str, Any]) -> int | str | None:
        id_: int | str | None = cells.get(column)
        return id_

    def relation(self, kind: ChangeKind, cells: Mapping[str, Any], where: str) -> str | None:
        return None


class _IdsWithTypes:
    """Ids that name their types, or have them in a column beside, and edges that name their relation."""

    fixed = (*_FIXED, _RELATION, *_TYPE_OF.values())
    texts = _TEXTS | {_RELATION, *_TYPE_OF.values()}

    def named_by(self, kind: ChangeKind) -> frozenset[str]:
        needed = _needed(kind)
        relation = {_RELATION} if kind in _EDGES else frozenset[str]()
        return frozenset({*needed, *(_TYPE_OF[name] for name in needed), *relation})

    def id(self, column: str, cells: Mapping[str, Any]) -> int | str | None:
        id_: int | str | None = cells.get(column)
        type_ = cells.get(_TYPE_OF[column])
        return id_ if id_ is None or type_ is None else f"{type_}/{id_}"

    def relation(self, kind: ChangeKind, cells: Mapping[str, Any], where: str) -> str | None:
        if kind not in _EDGES:
            return None
        if _RELATION not in cells:
            raise InputError(where, f"{kind} needs `{_RELATION}`, which is empty", "give the name of a relation")
        relation: str = cells[_RELATION]
        return relation


_IDS_ALONE: Columns = _Ids()
_COLUMNS: Mapping[str, Columns] = {_RELATION: _IdsWithTypes()}
"""By the column that only such files have."""


def columns_of(header: Collection[str]) -> Columns:
    """How rows of a file with that header name nodes and relations."""
    return next((columns for name, columns in _COLUMNS.items() if name in header), _IDS_ALONE)


def _needed(kind: ChangeKind) -> tuple[str, ...]:
    """Columns of ids that such a row has."""
    return ("source", "target") if kind in _EDGES else ("id",)


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One row. Ids and labels of a CSV file are texts."""

    number: int
    """The row's place: in a CSV file its line, in a Parquet file its number from 1."""
    kind: ChangeKind
    id: int | str | None = None
    source: int | str | None = None
    target: int | str | None = None
    label: Label | None = None
    relation: str | None = None
    """The relation of an edge; None: the file is of a graph of one type, or the row of no edge."""
    features: list[float] | dict[str, float | list[float]] = field(default_factory=dict)
    edge_features: list[float] | None = None
    """None: the row gives none."""
    edge_time: int | None = None


def read_change(number: int, cells: Mapping[str, Any], where: str, columns: Columns) -> ChangeRow:
    """`cells`: those of a row that are not empty, by their columns; `where`: names the row in messages; `columns`:
    `columns_of` the file."""
    given = cells.get("change")
    if given is None:
        raise InputError(where, "it has no `change`", f"give one of {', '.join(ChangeKind)}")
    try:
        kind = ChangeKind(given)
    except ValueError:
        raise InputError(where, f"{given!r} is no change", f"give one of {', '.join(ChangeKind)}") from None
    for name in _needed(kind):
        if name not in cells:
            raise InputError(where, f"{kind} needs `{name}`, which is empty", "give the id of a node")
    relation = columns.relation(kind, cells, where)
    named = {name: value for name, value in cells.items() if name not in columns.fixed}
    possible = {"change", *columns.named_by(kind)}
    if kind in _WITH_LABEL:
        possible.add("label")
    if kind in _WITH_FEATURES:
        possible |= {"features", *named}
    if kind is ChangeKind.ADD_EDGE:
        possible |= {EDGE_FEATURES, EDGE_TIME}
    for name in cells:
        if name not in possible:
            raise InputError(where, f"{kind} has no `{name}`", _remedy_of_needless(name, kind))
    if "features" in cells and named:
        raise InputError(where, f"it has `features` and also `{next(iter(named))}`", "give all features in one way")
    if kind is ChangeKind.SET_FEATURES and not named and "features" not in cells:
        raise InputError(where, f"{kind} has no features", "give at least one column, or `features`")
    return ChangeRow(
        number,
        kind,
        columns.id("id", cells),
        columns.id("source", cells),
        columns.id("target", cells),
        cells.get("label"),
        relation,
        cells.get("features", named),
        cells.get(EDGE_FEATURES),
        cells.get(EDGE_TIME),
    )


def _remedy_of_needless(name: str, kind: ChangeKind) -> str:
    """What to do about a cell that changes of that kind do not have."""
    if name in (_RELATION, EDGE_FEATURES, EDGE_TIME) and kind in _WITH_FEATURES:
        return f"leave the cell empty; if {name!r} is a feature, give all features as a list in a column `features`"
    if kind is ChangeKind.ADD_EDGE and name not in _FIXED:
        return f"leave the cell empty; if it is a feature of the edge, give all of its features in `{EDGE_FEATURES}`"
    return "leave the cell empty"
