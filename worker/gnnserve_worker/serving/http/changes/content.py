"""A batch of the log in JSON, as `POST /v1/changes` would take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema, PayloadManifest
from gnnserve_api.http.changes import ChangesContent, NodeLabel, TypedNewNode
from gnnserve_api.http.protocol import TypedNodeFeatures
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.change_ids import RelationName
from gnnserve_worker.graph.feature_columns import FeatureColumns

ColumnsOf = Callable[[Any], FeatureColumns | None]
"""By the id of a node, the columns of its features; None: its type has none, or is none of the graph's."""


ContentOf = Callable[[ChangeBatch], ChangesContent]
"""A batch in JSON, over a graph."""
PayloadOf = Callable[[RelationName], PayloadManifest | None]
"""By a relation, what its edges have; None: nothing."""


def payload_of(schema: GraphSchema, relation: RelationName) -> PayloadManifest | None:
    found = next((one for one in schema.relations if (one.source, one.name, one.target) == relation), None)
    return None if found is None or found.payload is UNSET else found.payload


def content_of(batch: ChangeBatch, columns_of: ColumnsOf, payload_of: PayloadOf = lambda _: None) -> ChangesContent:
    """Features of new nodes, and those of overrides that name every column, are lists."""
    counts = batch.counts
    ids = iter(batch.ids.listed())
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

    nodes = tuple(TypedNewNode(id_, row, next(labels)) for id_, row in zip(new, brought, strict=True))
    labelled: tuple[NodeLabel[Any], ...] = tuple(NodeLabel(next(ids), next(labels)) for _ in range(counts.labelled))
    added = edges(counts.edges)
    return ChangesContent(
        nodes=nodes,
        overrides=tuple(TypedNodeFeatures(id_, row) for id_, row in zip(overridden, others, strict=True)),
        labels=labelled,
        edges=added,
        **_payload_told(batch, _payloads_of(batch, added, payload_of) if batch.has_payload else ()),
        removed_edges=edges(counts.removed_edges),
        removed_nodes=tuple(ids),
    )


def _payloads_of(
    batch: ChangeBatch, edges: Sequence[Sequence[Any]], payload_of: PayloadOf
) -> list[PayloadManifest | None]:
    """What edges of the relation of each edge have."""
    relations = [batch.ids.form.relation_of(edge) for edge in edges]
    found = {relation: payload_of(relation) for relation in set(relations)}
    return [found[relation] for relation in relations]


def _payload_told(batch: ChangeBatch, payloads: Sequence[PayloadManifest | None]) -> dict[str, Any]:
    """Features and times of edges as JSON has them. `payloads`: what edges of the relation of each have."""
    told: dict[str, Any] = {}
    if batch.edge_features.shape[1] and payloads:
        rows = zip(payloads, batch.edge_features, strict=True)
        told["edge_features"] = tuple(None if one is None else row[: len(one.columns)].tolist() for one, row in rows)
    if len(batch.edge_times) and payloads:
        times = zip(payloads, batch.edge_times.tolist(), strict=True)
        told["edge_times"] = tuple(time if one is not None and one.time else None for one, time in times)
    return told


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
