"""Changes as a file has them, one in each row: what a row must say, in whatever format the file is.

Columns are `change`, `id`, `source`, `target`, `label` and `features` (a list of all), and beside them the graph's own
feature columns, by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gnnserve_api.errors import InputError

Label = int | str | list[int | str]
FIXED_COLUMNS = ("change", "id", "source", "target", "label", "features")


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
    features: list[float] | dict[str, float | list[float]] = field(default_factory=dict)


def read_change(number: int, cells: Mapping[str, Any], where: str) -> Change:
    """`cells`: those of a row that are not empty, by their columns; `where`: names the row in messages."""
    given = cells.get("change")
    if given is None:
        raise InputError(where, "it has no `change`", f"give one of {', '.join(Kind)}")
    try:
        kind = Kind(given)
    except ValueError:
        raise InputError(where, f"{given!r} is no change", f"give one of {', '.join(Kind)}") from None
    needed = ("source", "target") if kind in _EDGES else ("id",)
    for name in needed:
        if name not in cells:
            raise InputError(where, f"{kind} needs `{name}`, which is empty", "give the id of a node")
    named = {name: value for name, value in cells.items() if name not in FIXED_COLUMNS}
    possible = {"change", *needed}
    if kind in _WITH_LABEL:
        possible.add("label")
    if kind in _WITH_FEATURES:
        possible |= {"features", *named}
    for name in cells:
        if name not in possible:
            raise InputError(where, f"{kind} has no `{name}`", "leave the cell empty")
    if "features" in cells and named:
        raise InputError(where, f"it has `features` and also `{next(iter(named))}`", "give all features in one way")
    if kind is Kind.SET_FEATURES and not named and "features" not in cells:
        raise InputError(where, f"{kind} has no features", "give at least one column, or `features`")
    return Change(
        number,
        kind,
        cells.get("id"),
        cells.get("source"),
        cells.get("target"),
        cells.get("label"),
        cells.get("features", named),
    )
