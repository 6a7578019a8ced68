"""Graphs that earlier releases wrote."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.repository import ChangedSource
from gnnserve_worker.graph.ids import integer_ids, lay_out, string_ids
from gnnserve_worker.graph.store import FeatureColumn, Graph, GraphData, NodeType, Relation, Splits

NOBODY = np.array([], dtype=np.int64)
MADE_OF = ChangedSource("plain", "uid", 3, 5, 17)
COLUMNS = (FeatureColumn("age", 1), FeatureColumn("interests", 3, (0.0, 0.5, 1.0)))
LISTED, ONCE = EdgeRules(Direction.DIRECTED, Duplicates.KEEP), EdgeRules(Direction.UNDIRECTED)


def lists(starts: list[int], entries: list[int]) -> Graph:
    return Graph(np.array(starts, np.int64), np.array(entries, np.int32))


def one_type(digest: str, **other: Any) -> GraphData:
    return GraphData.of_one_type(
        source="builtin Tiny", digest=digest, graph=lists([0, 2, 3, 3, 5, 6, 7], [1, 2, 0, 0, 4, 3, 5]),
        features=np.arange(24, dtype=np.float32).reshape(6, 4), labels=np.array([0, 1, 0, 1, -1, 0]), classes=(3, 7),
        splits=Splits(np.array([0, 1, 2]), np.array([3]), NOBODY), edge_rules=EdgeRules(Direction.REVERSED), **other,
    )  # fmt: skip


def several_types(digest: str, **other: Any) -> GraphData:
    return GraphData(
        source="2 types", digest=digest,
        types=(
            NodeType("user", 3, np.arange(12, dtype=np.float32).reshape(3, 4), COLUMNS),
            NodeType("item", 2, None, (), integer_ids(np.array([70, -3]))),
        ),
        relations=(
            Relation("user", "knows", "user", lists([0, 1, 3, 4], [1, 0, 2, 1]), None, ONCE),
            Relation("item", "rev_buys", "user", lists([0, 2, 2, 3], [0, 1, 1]), "buys", LISTED),
            Relation("user", "buys", "item", lists([0, 1, 3], [0, 0, 2]), None, LISTED),
        ),
        labels=np.array([0, 1, -1]), classes=("b", "s"), splits=Splits(np.array([0]), np.array([1]), NOBODY), **other,
    )  # fmt: skip


GRAPHS = {
    "plain": one_type("plain"),
    "named": one_type("named", ids=string_ids(*lay_out(["a", "b", "c", "d", "e", "f"]))),
    "version": one_type("version", made_of=MADE_OF, feature_columns=COLUMNS),
    "types": several_types("types"),
    "version-of-types": several_types("version-of-types", made_of=MADE_OF),
}
