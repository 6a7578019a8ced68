"""The format of Shchur et al.: one `.npz` with adjacency and attributes in CSR and a class per node.

It is read as torch_geometric reads it: attributes become 0 or 1, self-loops are removed. Members with names of nodes
are not read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnnserve_api.files.edges import Direction, SelfLoops
from gnnserve_worker.graph.sources.raw import CsrParts, RawGraph, read_members, unexpected, whole_numbers

_MEMBERS = (
    "adj_indptr", "adj_indices", "adj_shape",
    "attr_data", "attr_indptr", "attr_indices", "attr_shape", "labels",
)  # fmt: skip


def read(path: Path, direction: Direction) -> RawGraph:
    adj_indptr, adj_indices, adj_shape, attr_data, attr_indptr, attr_indices, attr_shape, labels = read_members(
        path, _MEMBERS
    )
    adjacency = CsrParts.of(path, "adj_", adj_indptr, adj_indices, adj_shape)
    attributes = CsrParts.of(path, "attr_", attr_indptr, attr_indices, attr_shape)
    labels = whole_numbers(path, "labels", labels).astype(np.int64)
    for part, found in (("attr_shape", attributes.rows), ("labels", len(labels))):
        if found != adjacency.rows:
            raise unexpected(path, part, f"has {found} rows, but the graph has {adjacency.rows} nodes")
    features = attributes.to_features(attr_data, "attr_data")
    features.data[features.data > 0] = 1
    graph, counts = adjacency.to_graph(direction, SelfLoops.REMOVE)
    return RawGraph(graph, features, labels, None, counts.findings(), SelfLoops.REMOVE)
