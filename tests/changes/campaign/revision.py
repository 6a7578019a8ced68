"""A revision whose scores tell what they were computed from: weights that are made by hand, over a small graph."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tests.changes.campaign.graph import Batch, FirstGraph, PlainGraph
from tests.support.graphs import Tensors
from tests.support.living import FEATURES, RandomModels, batch_of, publish_generated

from gnnserve_api.edges import Direction, EdgeRules
from gnnserve_api.repository import RevisionManifest
from gnnserve_worker.graph.change_batch import encode_batch
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.repository.repository import Repository

NODES = 40
VALUES = 4096
"""Values are whole numbers below it, so that sums of them are exact in float32."""
VARIANTS = ("x1", "projected", "stored1")
_EDGES = 60
_HIDDEN = 8
_OWN, _MEAN = 0, 1
"""Hidden channels: a node's own value, and the mean of its neighbours'."""


class HandMadeModels(RandomModels):
    """The value is the feature in column 0, and nothing else is read. A score each: the value, the mean of the
    neighbours' values, the mean of their means."""

    def master(self, name: str) -> Tensors:
        return _weights(np.arange(FEATURES))

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        return _weights(columns)


def _weights(columns: np.ndarray) -> Tensors:
    first = {side: np.zeros((_HIDDEN, len(columns)), np.float32) for side in "lr"}
    then = {side: np.zeros((3, _HIDDEN), np.float32) for side in "lr"}
    # lin_r is of the node itself, lin_l of the mean of its neighbours.
    first["r"][_OWN, columns == 0] = first["l"][_MEAN, columns == 0] = 1
    then["r"][0, _OWN] = then["r"][1, _MEAN] = then["l"][2, _MEAN] = 1
    layers = (first, then)
    tensors = {f"convs.{i}.lin_{side}.weight": layer[side] for i, layer in enumerate(layers) for side in "lr"}
    return tensors | {f"convs.{i}.lin_l.bias": np.zeros(len(layer["l"]), np.float32) for i, layer in enumerate(layers)}


def draw_graph(draw: random.Random) -> FirstGraph:
    values = {node: float(draw.randrange(1, VALUES)) for node in range(NODES)}
    edges: set[tuple[int, int]] = set()
    while len(edges) < _EDGES:
        source, target = sorted(draw.sample(range(NODES), 2))
        edges.add((source, target))
    return FirstGraph(values, tuple(sorted(edges)))


def publish(repository: Repository, first: FirstGraph) -> RevisionManifest:
    features = np.zeros((NODES, FEATURES), np.float32)
    features[:, 0] = [first.values[node] for node in range(NODES)]
    neighbours = PlainGraph.of(first).neighbours
    lists = [sorted(neighbours[node]) for node in range(NODES)]
    indptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    graph = Graph(indptr, np.array([other for row in lists for other in row], np.int32))
    data = graph, features, EdgeRules(Direction.UNDIRECTED)
    variants: dict[str, object] = {"pruning": {"factors": [1]}, "stored": [1]}
    return publish_generated(repository, "campaign", "GraphSAGE", data, variants=variants, models_of=HandMadeModels)


def to_json(batch: Batch) -> dict[str, object]:
    """The body of `POST /v1/changes`."""
    return {
        "nodes": [{"id": node, "features": _row(value)} for node, value in batch.new],
        "overrides": [{"id": node, "features": {"0": value}} for node, value in batch.overrides],
        "edges": batch.edges,
        "removedEdges": batch.removed_edges,
        "removedNodes": batch.removed,
    }


def to_binary(batch: Batch) -> bytes:
    rows = np.full((len(batch.new) + len(batch.overrides), FEATURES), np.nan, np.float32)
    rows[: len(batch.new)] = 0
    rows[:, 0] = [value for _, value in (*batch.new, *batch.overrides)]
    new, overrides = ([node for node, _ in rows_of] for rows_of in (batch.new, batch.overrides))
    return encode_batch(
        batch_of(rows, new, overrides, [*batch.edges], [*batch.removed_edges], [*batch.removed])  # type: ignore[arg-type]
    )


def from_json(content: Mapping[str, Any]) -> Batch:
    """A record's content, as `GET /v1/changes` has it. Raises where it has what no client of these runs sends."""
    if more := content.keys() - to_json(Batch()).keys():
        raise ValueError(f"a record has {sorted(more)}")
    return Batch(
        new=tuple((node["id"], _value(node["features"])) for node in content.get("nodes", ())),
        overrides=tuple((node["id"], _value(node["features"])) for node in content.get("overrides", ())),
        edges=tuple((source, target) for source, target in content.get("edges", ())),
        removed_edges=tuple((source, target) for source, target in content.get("removedEdges", ())),
        removed=tuple(content.get("removedNodes", ())),
    )


def _row(value: float) -> list[float]:
    return [value] + [0.0] * (FEATURES - 1)


def _value(features: Mapping[str, float] | Sequence[float]) -> float:
    if isinstance(features, Mapping):
        (value,) = (features[name] for name in features.keys() & {"0"})
        if len(features) > 1:
            raise ValueError(f"a record has the columns {sorted(features)}")
        return value
    if [*features] != _row(features[0]):
        raise ValueError(f"a record has the features {features}")
    return features[0]
