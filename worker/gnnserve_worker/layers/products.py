"""Places of the products of a layer in the rows that it reads, where these are products.

For each convolution there is that of a neighbour and behind it that of the node itself, then that of the node's type,
and last that of a projected residual. A type has only those that are made of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnnserve_api.files.layers import LayerManifest, Residual
from gnnserve_worker.layers.convolutions.kind import Ends
from gnnserve_worker.layers.convolutions.projected import PROJECTED, Matrix
from gnnserve_worker.layers.dense import Tensors, below

NOTHING = slice(0, 0)


@dataclass(frozen=True, slots=True)
class ProductPlaces:
    columns: Mapping[int, int]
    """Columns of the rows of each type."""
    neighbours: tuple[slice, ...]
    """Columns that each convolution reads of a neighbour's row."""
    own: tuple[slice, ...]
    """Columns that it reads of the node's own row."""
    beside: Mapping[str, Mapping[int, slice]]
    """Columns that are added for each type, by what keys of their matrices begin with: `own` and `residuals`."""


def why_not_over_products(layer: LayerManifest) -> str:
    """Why the layer cannot read products in place of rows, as a clause; empty: it can."""
    if layer.is_pre_activated:
        return "norm and activation stand before its convolutions"
    if layer.residual not in (Residual.NONE, Residual.PROJECTED):
        return f"residual {layer.residual} adds rows as they are"
    for conv in layer.convs:
        kind = PROJECTED.get(conv.conv)
        problem = "it does not commute with products of rows" if kind is None else kind.why_not(conv)
        if problem:
            return f"conv {conv.conv}: {problem}"
    return ""


@dataclass(frozen=True, slots=True)
class TypeEnds:
    """Places of the types at both ends of a convolution."""

    source: int
    target: int


def place_products(
    layer: LayerManifest, types: Sequence[TypeEnds], ends: Sequence[Ends], outputs: Mapping[int, int],
    read: Iterable[int],
) -> ProductPlaces:  # fmt: skip
    """`types`, `ends`: of each convolution; `outputs`: columns that the layer writes of each type; `read`: types that
    have rows."""
    taken: dict[int, int] = {}

    def take(type_: int, columns: int) -> slice:
        first = taken.get(type_, 0)
        taken[type_] = first + columns
        return slice(first, first + columns)

    neighbours, own = [], []
    for conv, at, each in zip(layer.convs, types, ends, strict=True):
        columns = PROJECTED[conv.conv].columns(conv, each)
        neighbours.append(take(at.source, columns.neighbour))
        own.append(take(at.target, columns.own) if columns.own else neighbours[-1] if columns.is_shared else NOTHING)
    there = [type_ for type_ in outputs if type_ in set(read)]
    is_there = {"own": layer.own, "residuals": layer.residual is Residual.PROJECTED}
    beside = {
        name: {type_: take(type_, outputs[type_]) for type_ in there} for name, is_so in is_there.items() if is_so
    }
    return ProductPlaces(taken, tuple(neighbours), tuple(own), beside)


def ends_of_products(places: ProductPlaces, ends: Sequence[Ends]) -> tuple[Ends, ...]:
    """The ends of convolutions over these products."""
    return tuple(
        replace(each, source=neighbour.stop - neighbour.start, target=own.stop - own.start, are_products=True)
        for each, neighbour, own in zip(ends, places.neighbours, places.own, strict=True)
    )


def product_matrices(
    layer: LayerManifest, types: Sequence[TypeEnds], places: ProductPlaces, tensors: Tensors
) -> dict[int, Matrix]:
    """One product of the rows of each type that gives all of them beside each other. `tensors`: of the layer over rows,
    those below `layers.<number>`."""
    found: dict[int, list[tuple[slice, Matrix]]] = {type_: [] for type_ in places.columns}
    at = zip(layer.convs, layer.keys, types, places.neighbours, places.own, strict=True)
    for conv, key, ends, neighbour, own in at:
        of_neighbour, of_own = PROJECTED[conv.conv].matrices(conv, below(tensors, f"convs.{key}"))
        found[ends.source].append((neighbour, of_neighbour))
        is_shared = ends.source == ends.target and own == neighbour
        if of_own is not None and own != NOTHING and not is_shared:
            found[ends.target].append((own, of_own))
    for name, of_types in places.beside.items():
        for type_, columns in of_types.items():
            key = f"{name}.{type_}"
            found[type_].append((columns, Matrix(tensors[f"{key}.weight"], tensors[f"{key}.bias"])))
    return {type_: _beside(parts, places.columns[type_]) for type_, parts in found.items()}


def _beside(parts: Sequence[tuple[slice, Matrix]], columns: int) -> Matrix:
    weight = np.zeros((columns, parts[0][1].weight.shape[1]), np.float32)
    bias = np.zeros(columns, np.float32)
    for place, matrix in parts:
        weight[place] = matrix.weight
        bias[place] = 0 if matrix.bias is None else matrix.bias
    return Matrix(weight, bias)
