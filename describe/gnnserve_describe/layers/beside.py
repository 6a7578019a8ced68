"""Layers that read two kinds of rows of a type, as where both towers of links have layers of their own over one type:
they read both beside each other, each convolution by matrices that are 0 where the other kind stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from gnnserve_api.files.layers import Convolution
from gnnserve_describe.layers.bodies import Body
from gnnserve_describe.layers.values import Beside, Convolved, Value

_MATRICES: Mapping[Convolution, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Convolution.GRAPH_SAGE: (("lin_l.weight",), ("lin_r.weight",)),
    Convolution.GRAPH_CONV: (("lin_rel.weight",), ("lin_root.weight",)),
    Convolution.GAT: (("lin_src.weight",), ("lin_dst.weight",)),
    Convolution.TRANSFORMER: (("lin_key.weight", "lin_value.weight"), ("lin_query.weight", "lin_skip.weight")),
}
"""Matrices of the rows of neighbours, and of those of the nodes that read them."""


def with_rows_beside(bodies: Mapping[str, Body]) -> Mapping[str, Body]:
    """Layers of each type, that read one kind of rows of each type; as they are where they do, or it cannot be so."""
    read: dict[str, dict[Value, None]] = {}
    for kind, body in bodies.items():
        for each in body.convolutions:
            read.setdefault(each.relation.source, {})[each.rows] = None
            read.setdefault(kind, {}).update({} if each.own is None else {each.own: None})
        if body.own is not None:
            read.setdefault(kind, {})[body.own[0]] = None
    several = {kind: Beside(tuple(values)) for kind, values in read.items() if len(values) > 1}
    convolutions = [each for body in bodies.values() for each in body.convolutions]
    is_possible = all(_can_be_widened(each) for each in convolutions)
    if not several or not is_possible or any(body.added is not None for body in bodies.values()):
        return bodies
    return {kind: _widened(kind, body, several) for kind, body in bodies.items()}


def _can_be_widened(convolved: Convolved) -> bool:
    manifest = convolved.manifest
    is_plain = len(manifest.aggregations) == 1 and not manifest.projects and "aggr_module.t" not in convolved.tensors
    return manifest.conv in _MATRICES and is_plain and convolved.first is None


def _widened(kind: str, body: Body, several: Mapping[str, Beside]) -> Body:
    made = []
    for each in body.convolutions:
        of_rows, of_own = _MATRICES[each.manifest.conv]
        source, target = several.get(each.relation.source), several.get(kind)
        tensors = dict(each.tensors)
        if source is not None:
            tensors |= {name: _beside(tensors[name], each.rows, source) for name in of_rows}
        if target is not None and each.own is not None:
            tensors |= {name: _beside(tensors[name], each.own, target) for name in of_own if name in tensors}
        target_rows = each.own if target is None or each.own is None else target
        made.append(replace(each, rows=source or each.rows, own=target_rows, tensors=tensors))
    own = body.own
    if own is not None and kind in several:
        own = several[kind], _beside(own[1], own[0], several[kind]), own[2]
    return replace(body, convolutions=tuple(made), own=own)


def _beside(matrix: torch.Tensor, of: Value, rows: Beside) -> torch.Tensor:
    """A matrix of some rows as one of these among others."""
    first = sum(each.width for each in rows.values[: rows.values.index(of)])
    whole = torch.zeros(len(matrix), rows.width)
    whole[:, first : first + of.width] = matrix
    return whole
