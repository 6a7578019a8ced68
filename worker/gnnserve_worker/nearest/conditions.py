"""Conditions on the numbers of one column."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gnnserve_api.http.recommend import ColumnCondition

_LARGEST = float(np.finfo(np.float32).max)
_COMPARED: Mapping[str, Callable[[Any, Any], np.ndarray]] = {
    "below": operator.lt,
    "above": operator.gt,
    "at_least": operator.ge,
    "at_most": operator.le,
    "equals": operator.eq,
    "between": lambda values, ends: (values >= ends[0]) & (values <= ends[1]),
    "one_of": np.isin,
}
"""By the field of a condition: float32 numbers compared with what it gives."""


def passing(values: np.ndarray, condition: ColumnCondition) -> np.ndarray:
    """Which numbers pass, bool [nodes]. `values`: float32 [nodes]; what is not a number does not pass."""
    found = np.ones(len(values), bool)
    for name, compare in _COMPARED.items():
        if (given := getattr(condition, name)) is not None:
            found &= compare(values, np.clip(np.array(given, np.float64), -_LARGEST, _LARGEST).astype(np.float32))
    return found


def why_none_passes(condition: ColumnCondition) -> str:
    """Why no number can pass, in words; empty: some can."""
    told = {name: getattr(condition, name) for name in _COMPARED if getattr(condition, name) is not None}
    if not told:
        return "it says nothing of the column"
    if told.get("one_of") == ():
        return "oneOf is an empty list"
    first, last = told.get("between", (-np.inf, np.inf))
    lower = max(told.get("above", -np.inf), told.get("at_least", -np.inf), first)
    upper = min(told.get("below", np.inf), told.get("at_most", np.inf), last)
    is_open = told.get("above") == lower or told.get("below") == upper
    if lower > upper or (lower == upper and is_open):
        return f"no number is in the range from {lower:g} to {upper:g}"
    listed = (*told.get("one_of", ()), *((told["equals"],) if "equals" in told else ()))
    if listed and len(told) > 1 and not passing(np.array(listed, np.float32), condition).any():
        return "no number that equals or oneOf gives meets the rest"
    return ""
