"""A batch of the log in JSON, as `POST /v1/changes` would take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.changes import ChangesContent, NodeLabel, TypedNewNode
from gnnserve_api.protocol import TypedNodeFeatures
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeIds
from gnnserve_worker.graph.feature_columns import FeatureColumns

ColumnsOf = Callable[[Any], FeatureColumns | None]
"""By the id of a node, the columns of its features; None: its type has none, or is none of the graph's."""


def content_of(batch: ChangeBatch, columns_of: ColumnsOf) -> ChangesContent:
    """Features of new nodes, and those of overrides that name every column, are lists."""
    counts = batch.counts
    ids = iter(_ids_of(batch.ids))
    labels = iter(msgspec.json.decode(batch.labels) if batch.labels else [None] * counts.new_nodes)
    new = [next(ids) for _ in range(counts.new_nodes)]
    overridden = [next(ids) for _ in range(counts.overrides)]
    features = [
        None if (columns := columns_of(id_)) is None else _given(row[: columns.features], columns)
        for id_, row in zip([*new, *overridden], batch.features, strict=True)
    ]
    brought, others = features[: len(new)], features[len(new) :]

    def edges(count: int) -> tuple[tuple[Any, ...], ...]:
        return tuple(tuple(next(ids) for _ in range(batch.per_edge)) for _ in range(count))

    return ChangesContent(
        nodes=tuple(TypedNewNode(id_, row, next(labels)) for id_, row in zip(new, brought, strict=True)),
        overrides=tuple(TypedNodeFeatures(id_, row) for id_, row in zip(overridden, others, strict=True)),
        labels=tuple(NodeLabel(next(ids), next(labels)) for _ in range(counts.labelled)),
        edges=edges(counts.edges),
        removed_edges=edges(counts.removed_edges),
        removed_nodes=tuple(ids),
    )


def _ids_of(ids: ChangeIds) -> list[int] | list[str]:
    if ids.integers is not None:
        integers: list[int] = ids.integers.tolist()
        return integers
    if ids.texts is None or ids.offsets is None:
        return []
    text, bounds = ids.texts.tobytes(), ids.offsets.tolist()
    return [text[low:high].decode("utf-8", "replace") for low, high in pairwise(bounds)]


def _given(row: np.ndarray, columns: FeatureColumns) -> list[float] | dict[str, float | list[float]]:
    if not np.isnan(row).any():
        numbers: list[float] = row.tolist()
        return numbers
    return dict(_named(row, columns))


def _named(row: np.ndarray, columns: FeatureColumns) -> Iterator[tuple[str, float | list[float]]]:
    """The columns that are given; a column of lists is given as a whole."""
    if not columns.columns:
        for feature in np.flatnonzero(~np.isnan(row)).tolist():
            yield str(feature), float(row[feature])
        return
    start = 0
    for column in columns.columns:
        numbers = row[start : start + column.width]
        start += column.width
        if not np.isnan(numbers).any():
            yield column.name, float(numbers[0]) if column.width == 1 else numbers.tolist()
