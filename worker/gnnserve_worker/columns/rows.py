"""Rows of a table of feature columns of several types, made of the features of nodes that the table has no row for.

Which columns these are of each type stands beside what features were scaled by, in the file of the row source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.models.architecture import RelationalLayer
from gnnserve_worker.models.feature_products import ScaledColumns, Scaling
from gnnserve_worker.models.rows import RowMaker
from gnnserve_worker.models.type_rows import type_row_maker
from gnnserve_worker.tables.table import Table


def columns_key(kind: int) -> str:
    """Key of the columns (ids) of a type that tables of features have, in their order: int64. `kind`: its place."""
    return f"types.{kind}.columns"


def column_row_maker(
    table: Table, layout: np.ndarray, scalings: Sequence[Scaling], widths: Sequence[int],
    tensors: Mapping[str, np.ndarray], prefix: str = "",
) -> RowMaker:  # fmt: skip
    """`layout`: `pack_layout` of the graph. `scalings`, `widths`: of the features of each type, or of what stands in
    their place. `tensors`: of the row source, in which keys begin with `prefix`. KeyError and ValueError: something is
    missing, or does not fit."""
    kept = [tensors[prefix + columns_key(kind)] for kind in range(len(widths))]
    for kind, (columns, width) in enumerate(zip(kept, widths, strict=True)):
        if columns.dtype != np.int64 or columns.ndim != 1 or not np.isin(columns, np.arange(width)).all():
            found = f"{columns.dtype} {list(columns.shape)}"
            raise ValueError(f"{prefix}{columns_key(kind)} is {found}, expected int64 ids below {width}")
    maker = type_row_maker(table, layout, scalings, [len(columns) for columns in kept])
    made_of = tuple(
        ScaledColumns(scaling, columns, numbers=(kind,))
        for kind, (scaling, columns) in enumerate(zip(scalings, kept, strict=True))
    )
    return replace(maker, made_of=made_of)


def over_all_columns(
    first: RelationalLayer, graph: GraphSchema, widths: Sequence[int], tensors: Mapping[str, np.ndarray]
) -> RelationalLayer:
    """A first layer over columns of each type as one over all of them, in the order of the source, whose other weights
    are 0. `widths`, `tensors`: as of `column_row_maker`."""

    def spread(matrix: np.ndarray, kind: int) -> np.ndarray:
        whole = np.zeros((widths[kind], matrix.shape[1]), np.float32)
        whole[tensors[columns_key(kind)][: len(matrix)]] = matrix
        return whole

    sources = {place: graph.place_of(one.source) for place, one in enumerate(graph.relations)}
    relations = {place: spread(matrix, sources[place]) for place, matrix in first.relations.items()}
    return replace(first, relations=relations, own={kind: spread(matrix, kind) for kind, matrix in first.own.items()})
