"""Where each column of the source lies in a row of features, for features that requests bring."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from gnnserve_api.files.repository import SourceColumn

_MOST_DIGITS = 9
_MOST_NUMBERED = 65_536
"""Numbers of columns up to here are kept as texts, 100 bytes each."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureColumns:
    features: int
    """Numbers of a row."""
    columns: Sequence[SourceColumn]
    """In the order of the features; empty if the source does not name them: their names are then their numbers, from 0,
    and what is missing is 0."""
    filled: np.ndarray = field(init=False)
    """float32 [features]: a row of which nothing is given. 0 where missing values are refused."""
    required: frozenset[str] = field(init=False)
    """Columns whose missing values are refused."""
    in_order: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = field(init=False)
    """Numbers of a row that names every column, in order; raises KeyError where one is missing. None: a column is a
    list, or the source names no columns."""
    row: struct.Struct = field(init=False)
    """Writes a row as float32, and raises OverflowError for a number that is too large for it."""
    single: Mapping[str, int] = field(init=False)
    """Feature of each column that is no list, or has a list of one, by its name; of the first ones, if there are very
    many without names."""
    _places: Mapping[str, tuple[int, int]] = field(init=False)

    def name_of(self, feature: int) -> str:
        """The name of the column that a feature belongs to, with its place where the column is a list."""
        start = 0
        for column in self.columns:
            if feature < start + column.width:
                return column.name if column.width == 1 else f"{column.name}[{feature - start}]"
            start += column.width
        return str(feature)

    def __post_init__(self) -> None:
        places, filled, start = {}, np.zeros(self.features, np.float32), 0
        for column in self.columns:
            places[column.name] = (start, column.width)
            if column.fill is not None:
                filled[start : start + column.width] = column.fill
            start += column.width
        single = {name: start for name, (start, width) in places.items() if width == 1}
        if not self.columns:
            single = {str(number): number for number in range(min(self.features, _MOST_NUMBERED))}
        names = [column.name for column in self.columns]
        are_numbers = all(column.width == 1 for column in self.columns)
        # With a single name itemgetter gives no tuple.
        in_order = itemgetter(*names) if len(names) > 1 and are_numbers else None
        required = frozenset(column.name for column in self.columns if column.fill is None)
        for name, value in (
            ("filled", filled),
            ("required", required),
            ("in_order", in_order),
            ("row", struct.Struct(f"={self.features}f")),
            ("single", single),
            ("_places", places),
        ):
            object.__setattr__(self, name, value)

    def place(self, name: str) -> tuple[int, int] | None:
        """First feature of a column, and how many it has; None: there is no such column."""
        if self.columns:
            return self._places.get(name)
        if not (name.isascii() and name.isdecimal()) or len(name) > _MOST_DIGITS or (name[0] == "0" and name != "0"):
            return None
        number = int(name)
        return (number, 1) if number < self.features else None
