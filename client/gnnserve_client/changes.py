"""Changes of a graph that is served, as a user states them, in parts, and in both forms that are sent."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from gnnserve_api.errors import InputError
from gnnserve_api.http.changes import CHANGES_TYPE
from gnnserve_client.arrays import (
    FeatureRows,
    Features,
    Ids,
    NamedFeatures,
    are_texts,
    as_rows,
    pack_features,
    read_edge_features,
    read_edge_times,
    read_edges,
    read_features,
    read_labels,
    read_overrides,
    read_some_ids,
)
from gnnserve_client.sending import BatchBody

_HEADER = struct.Struct("<10q")
_INTEGERS, _TEXTS = 1, 2
"""Kinds of ids in the binary form."""
_PAYLOAD_HEADER = struct.Struct("<2q")
_HAS_PAYLOAD = 8
"""The bit of the kind that says that edges have features or times."""


class Changes:
    """Changes that last, applied in the order of these arguments.

    `nodes` are ids of new nodes, with a row of `features` and perhaps a label (`node_labels`) for each. `overrides` are
    nodes of the graph with new features: rows in which NaN leaves a column as it is, or mappings by the columns' names;
    these may also stand beside the ids, `overrides={17: {"amount": 0}}`. `labels` gives nodes their labels, None for
    none. Edges are pairs of source and target; where edges of the graph have features or times, new ones have them too:
    `edge_features` is a matrix with a row for each of `edges`, `edge_times` has an integer for each.
    """

    def __init__(
        self,
        *,
        nodes: ArrayLike | None = None,
        features: Features | None = None,
        node_labels: Sequence[Any] | ArrayLike | None = None,
        overrides: ArrayLike | Mapping[Any, NamedFeatures] | None = None,
        override_features: Features | None = None,
        labels: Mapping[Any, Any] | None = None,
        edges: ArrayLike | None = None,
        edge_features: ArrayLike | None = None,
        edge_times: ArrayLike | None = None,
        removed_edges: ArrayLike | None = None,
        removed_nodes: ArrayLike | None = None,
    ) -> None:
        labels = {} if labels is None else labels
        self.nodes = read_some_ids(nodes, "nodes")
        self.features = read_features(features, len(self.nodes), "features")
        self.node_labels = (
            [None] * len(self.nodes)
            if node_labels is None
            else read_labels(node_labels, len(self.nodes), "node_labels")
        )
        self.overrides, self.override_features = read_overrides(overrides, override_features, "overrides")
        self.labelled = read_some_ids(list(labels), "labels")
        self.labels = read_labels(list(labels.values()), len(labels), "labels")
        self.edges = read_edges(edges, "edges")
        self.edge_features = read_edge_features(edge_features, len(self.edges), "edge_features")
        self.edge_times = read_edge_times(edge_times, len(self.edges), "edge_times")
        self.removed_edges = read_edges(removed_edges, "removed_edges")
        self.removed_nodes = read_some_ids(removed_nodes, "removed_nodes")
        self.are_texts = are_texts(*self._ids())

    def __len__(self) -> int:
        """How many items there are."""
        return sum(map(len, self._ids()))

    def split(self, most: int) -> Iterator[Changes]:
        """Parts of at most `most` items. Applied in order they come to the same graph, each as a whole."""
        if most < 1:
            raise InputError("batch", f"{most} changes", "give at least 1")
        for first in range(0, len(self), most):
            yield self._part(first, first + most)

    def to_batch(self) -> BatchBody:
        """Arrays where features are matrices, JSON where they go by the names of columns."""
        named = [part for part in (self.features, self.override_features) if isinstance(part, list)]
        if named:
            return BatchBody(self._to_json(), "application/json", len(self))
        return BatchBody(self._to_bytes(), CHANGES_TYPE, len(self))

    def _ids(self) -> tuple[Ids, ...]:
        return self.nodes, self.overrides, self.labelled, self.edges, self.removed_edges, self.removed_nodes

    def _part(self, first: int, end: int) -> Changes:
        part, begin = object.__new__(Changes), 0
        taken = []
        for ids in self._ids():
            taken.append(slice(max(first - begin, 0), max(end - begin, 0)))
            begin += len(ids)
        nodes, overrides, labelled, edges, removed_edges, removed_nodes = taken
        part.nodes, part.features = self.nodes[nodes], self.features[nodes]
        part.node_labels = self.node_labels[nodes]
        part.overrides, part.override_features = self.overrides[overrides], self.override_features[overrides]
        part.labelled, part.labels = self.labelled[labelled], self.labels[labelled]
        part.edge_features, part.edge_times = self.edge_features[edges], self.edge_times[edges]
        part.edges, part.removed_edges = self.edges[edges], self.removed_edges[removed_edges]
        part.removed_nodes, part.are_texts = self.removed_nodes[removed_nodes], self.are_texts
        return part

    def _to_json(self) -> bytes:
        new = _rows(self.nodes, self.features, "features")
        for row, label in zip(new, self.node_labels, strict=True):
            if label is not None:
                row["label"] = label
        parts = {
            "nodes": new,
            "overrides": _rows(self.overrides, self.override_features, "override_features"),
            "labels": [
                {"id": node, "label": label} for node, label in zip(self.labelled.tolist(), self.labels, strict=True)
            ],
            "edges": self.edges.tolist(),
            "edgeFeatures": self.edge_features.tolist(),
            "edgeTimes": self.edge_times.tolist(),
            "removedEdges": self.removed_edges.tolist(),
            "removedNodes": self.removed_nodes.tolist(),
        }
        return msgspec.json.encode({name: part for name, part in parts.items() if part})

    def _to_bytes(self) -> bytes:
        width, features = pack_features(self.features, self.override_features)
        labels = [*self.node_labels, *self.labels]
        told = msgspec.json.encode(labels) if self.labels or any(label is not None for label in labels) else b""
        ids, texts = self._laid_out_ids()
        kind, columns = _TEXTS if self.are_texts else _INTEGERS, self.edge_features.shape[1]
        head, payload = b"", b""
        if len(self.edges) and (columns or len(self.edge_times)):
            kind |= _HAS_PAYLOAD
            head = _PAYLOAD_HEADER.pack(columns, len(self.edge_times) > 0)
            rows = np.ascontiguousarray(self.edge_features, "<f4").tobytes()
            payload = _padded(rows) + np.ascontiguousarray(self.edge_times, "<i8").tobytes()
        counts = _HEADER.pack(kind, *map(len, self._ids()), width, len(texts), len(told))
        return b"".join((counts, head, ids, _padded(texts), _padded(features), payload, told))

    def _laid_out_ids(self) -> tuple[bytes, bytes]:
        """Integers, and no texts; or where each text begins and the last one ends, and the texts."""
        if not self.are_texts:
            return b"".join(np.ascontiguousarray(ids, "<i8").tobytes() for ids in self._ids()), b""
        texts = [text.encode() for ids in self._ids() for text in ids.ravel().tolist()]
        offsets = np.cumsum([0, *map(len, texts)])
        return offsets.astype("<i8").tobytes(), b"".join(texts)


def _rows(ids: Ids, features: FeatureRows, where: str) -> list[dict[str, Any]]:
    rows = as_rows(features, where)
    return [{"id": node, "features": row} for node, row in zip(ids.tolist(), rows, strict=True)]


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8)
