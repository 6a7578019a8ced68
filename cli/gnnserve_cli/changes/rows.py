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
from typing import Any

from gnnserve_api.errors import InputError

Label = int | str | list[int | str]
RELATION = "relation"
"""The column that files of graphs of several types have."""
_TYPE_OF = {"id": "type", "source": "sourceType", "target": "targetType"}
"""The column that may give the type of an id, by the column of the id."""
TEXT_COLUMNS = frozenset({"change", RELATION, *_TYPE_OF.values()})
"""Columns of texts, besides ids and labels."""
EDGE_FEATURES, EDGE_TIME = "edgeFeatures", "edgeTime"
_ONE_TYPE = ("change", "id", "source", "target", "label", "features", EDGE_FEATURES, EDGE_TIME)


def fixed_columns(columns: Collection[str]) -> tuple[str, ...]:
    """Columns that are no features. `columns`: all that a file has."""
    return (*_ONE_TYPE, RELATION, *_TYPE_OF.values()) if RELATION in columns else _ONE_TYPE


class Kind(StrEnum):
    """What a row changes, in the order in which a batch is applied."""

    ADD_NODE = "add-node"
    SET_FEATURES = "set-features"
    SET_LABEL = "set-label"
    ADD_EDGE = "add-edge"
    REMOVE_EDGE = "remove-edge"
    REMOVE_NODE = "remove-node"


_EDGES = frozenset({Kind.ADD_EDGE, Kind.REMOVE_EDGE})
_WITH_FEATURES = frozenset({Kind.ADD_NODE, Kind.SET_FEATURES})
_WITH_LABEL = frozenset({Kind.ADD_NODE, Kind.SET_LABEL})


@dataclass(frozen=True, slots=True)
class Change:
    """One row. Ids and labels of a CSV file are texts."""

    number: int
    """The row's place: in a CSV file its line, in a Parquet file its number from 1."""
    kind: Kind
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


def read_change(number: int, cells: Mapping[str, Any], where: str, fixed: Collection[str] = _ONE_TYPE) -> Change:
    """`cells`: those of a row that are not empty, by their columns; `where`: names the row in messages; `fixed`:
    `fixed_columns` of the file."""
    given = cells.get("change")
    if given is None:
        raise InputError(where, "it has no `change`", f"give one of {', '.join(Kind)}")
    try:
        kind = Kind(given)
    except ValueError:
        raise InputError(where, f"{given!r} is no change", f"give one of {', '.join(Kind)}") from None
    has_types = RELATION in fixed
    needed = ("source", "target") if kind in _EDGES else ("id",)
    for name in needed:
        if name not in cells:
            raise InputError(where, f"{kind} needs `{name}`, which is empty", "give the id of a node")
    if has_types and kind in _EDGES and RELATION not in cells:
        raise InputError(where, f"{kind} needs `{RELATION}`, which is empty", "give the name of a relation")
    named = {name: value for name, value in cells.items() if name not in fixed}
    possible = {"change", *needed}
    if has_types:
        possible |= {_TYPE_OF[name] for name in needed} | ({RELATION} if kind in _EDGES else set())
    if kind in _WITH_LABEL:
        possible.add("label")
    if kind in _WITH_FEATURES:
        possible |= {"features", *named}
    if kind is Kind.ADD_EDGE:
        possible |= {EDGE_FEATURES, EDGE_TIME}
    for name in cells:
        if name not in possible:
            raise InputError(where, f"{kind} has no `{name}`", _remedy_of_needless(name, kind))
    if "features" in cells and named:
        raise InputError(where, f"it has `features` and also `{next(iter(named))}`", "give all features in one way")
    if kind is Kind.SET_FEATURES and not named and "features" not in cells:
        raise InputError(where, f"{kind} has no features", "give at least one column, or `features`")
    return Change(
        number,
        kind,
        _id_of("id", cells, has_types=has_types),
        _id_of("source", cells, has_types=has_types),
        _id_of("target", cells, has_types=has_types),
        cells.get("label"),
        cells[RELATION] if has_types and kind in _EDGES else None,
        cells.get("features", named),
        cells.get(EDGE_FEATURES),
        cells.get(EDGE_TIME),
    )


def _remedy_of_needless(name: str, kind: Kind) -> str:
    """What to do about a cell that changes of that kind do not have."""
    if name in (RELATION, EDGE_FEATURES, EDGE_TIME) and kind in _WITH_FEATURES:
        return f"leave the cell empty; if {name!r} is a feature, give all features as a list in a column `features`"
    if kind is Kind.ADD_EDGE and name not in _ONE_TYPE:
        return f"leave the cell empty; if it is a feature of the edge, give all of its features in `{EDGE_FEATURES}`"
    return "leave the cell empty"


def _id_of(name: str, cells: Mapping[str, Any], *, has_types: bool) -> int | str | None:
    """The id in a column, with its type where that stands in another one."""
    id_: int | str | None = cells.get(name)
    type_ = cells.get(_TYPE_OF[name]) if has_types else None
    return id_ if id_ is None or type_ is None else f"{type_}/{id_}"
