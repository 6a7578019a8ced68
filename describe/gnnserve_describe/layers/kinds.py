"""Edges that are chosen by their kind, which a column of whole numbers tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gnnserve_api.files.layers import EdgeFilter
from gnnserve_describe.layers.functions import FunctionCall, Read
from gnnserve_describe.layers.values import (
    EdgeColumns,
    EdgeEnds,
    EdgeKinds,
    EdgeMask,
    Edges,
    RowsByKind,
    RowsOfEdges,
    Value,
)


def _equal(call: FunctionCall) -> Read:
    """edge_type == kind"""
    left, right = call.operands
    kinds, number = (left, right) if call.value(left) is not None else (right, left)
    value = call.value(kinds)
    is_number = isinstance(number, int | float) or (torch.is_tensor(number) and number.numel() == 1)
    if not isinstance(value, EdgeKinds) or not is_number or call.value(number) is not None:
        return None
    return call.making.made(EdgeMask, value.relation, EdgeFilter(str(value.column), float(number)))


def _chosen(call: FunctionCall) -> Read:
    """What edges have, of those of a mask: the last of the axes of both ends, and the first of others."""
    value, key = call.value(call.first), call.args[1]
    if isinstance(value, Edges):
        is_all = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], slice) and key[0] == slice(None)
        key = key[1] if is_all else None
    mask = call.value(key)
    if not isinstance(mask, EdgeMask):
        return None
    return _masked(call, value, mask)


def _masked(call: FunctionCall, value: Value | None, mask: EdgeMask) -> Read:
    match value:
        case Edges(relation=mask.relation, where=None):
            return call.making.made(Edges, value.relation, None, mask.where)
        case EdgeEnds(relation=mask.relation, where=None):
            return call.making.made(EdgeEnds, value.relation, value.is_reader, mask.where)
        case EdgeColumns(relation=mask.relation, where=None):
            return call.making.made(EdgeColumns, value.relation, value.first, value.count, mask.where)
        case _:
            return None


def _of_each_kind(call: FunctionCall) -> Read:
    """where(edge_type == kind, rows, rows of other kinds or 0)"""
    if len(call.args) != 3:
        return None
    mask, rows, others = (call.value(each) for each in call.args)
    if not isinstance(mask, EdgeMask) or not isinstance(rows, RowsOfEdges) or rows.where is not None:
        return None
    kinds = others.kinds if isinstance(others, RowsByKind) else ()
    columns = {each.where.column for each in kinds if each.where is not None}
    is_new = columns <= {mask.where.column} and mask.where not in [each.where for each in kinds]
    if not is_new or not (kinds or (others is None and _is_nothing(call.args[2]))):
        return None
    made = call.making.made(RowsOfEdges, rows.rows, rows.relation, rows.weight, mask.where)
    return call.making.made(RowsByKind, (*kinds, made))


def _is_nothing(given: Any) -> bool:
    return not bool(given.any()) if torch.is_tensor(given) else given == 0


KINDS: Mapping[str, Callable[[FunctionCall], Read]] = {
    "eq": _equal,
    "getitem": _chosen,
    "where": _of_each_kind,
}
"""By their plain names; tried where `FUNCTIONS` makes nothing of a call."""
