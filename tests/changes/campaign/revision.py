"""A service whose scores tell what they were computed from: weights that are made by hand, over a small graph."""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import safetensors.numpy
from tests.changes.campaign.graph import Batch, FirstGraph
from tests.support.changes.living import batch_of
from tests.support.graphs.graphs import Tensors

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.graph.change_batch import encode_batch

NODES = 40
VALUES = 4096
"""Values are whole numbers below it, so that sums of them are exact in float32."""
VARIANTS = ("x1", "projected", "stored1")
NAMESPACE, SERVICE = "default", "digits"
_NODES, _EDGES, _WEIGHTS = "nodes.csv", "edges.csv", "weights.safetensors"
_COLUMNS = ("value", "nothing")
_EDGES_AT_FIRST = 60
_HIDDEN, _CLASSES = 8, 3
_OWN, _MEAN = 0, 1
"""Hidden channels: a node's own value, and the mean of its neighbours'."""


def draw_graph(draw: random.Random) -> FirstGraph:
    values = {node: float(draw.randrange(1, VALUES)) for node in range(NODES)}
    edges: set[tuple[int, int]] = set()
    while len(edges) < _EDGES_AT_FIRST:
        source, target = sorted(draw.sample(range(NODES), 2))
        edges.add((source, target))
    return FirstGraph(values, tuple(sorted(edges)))


def write_source(folder: Path, first: FirstGraph) -> None:
    """Write graph and weights."""
    nodes = [(node, node % _CLASSES, *_row(value)) for node, value in first.values.items()]
    _write_table(folder / _NODES, ("id", "label", *_COLUMNS), nodes)
    _write_table(folder / _EDGES, ("source", "target"), first.edges)
    (folder / _WEIGHTS).write_bytes(safetensors.numpy.save(_weights()))


def spec_of(folder: PurePath) -> dict[str, Any]:
    """The spec of a service over what is written there, as whoever generates sees that folder."""
    source = {
        "nodes": {"uri": (folder / _NODES).as_uri(), "label": "label"},
        "edges": {"uri": (folder / _EDGES).as_uri()},
    }
    return {
        "graph": {"source": {"csv": source}, "normalization": "Disabled"},
        "model": {
            "architecture": "GraphSAGE",
            "hidden": _HIDDEN,
            "fanouts": [-1, -1],
            "checkpoint": {"uri": (folder / _WEIGHTS).as_uri()},
        },
        "variants": {"pruning": {"factors": [1]}, "stored": [1]},
    }


def service_of(folder: Path) -> GNNService:
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE},
            "spec": spec_of(folder),
        }
    )


def _weights() -> Tensors:
    """The value is the first feature, and nothing else is read. A score each: the value, the mean of the neighbours'
    values, the mean of their means."""
    first = {side: np.zeros((_HIDDEN, len(_COLUMNS)), np.float32) for side in "lr"}
    then = {side: np.zeros((_CLASSES, _HIDDEN), np.float32) for side in "lr"}
    # lin_r is of the node itself, lin_l of the mean of its neighbours.
    first["r"][_OWN, 0] = first["l"][_MEAN, 0] = 1
    then["r"][0, _OWN] = then["r"][1, _MEAN] = then["l"][2, _MEAN] = 1
    layers = (first, then)
    tensors = {f"convs.{i}.lin_{side}.weight": layer[side] for i, layer in enumerate(layers) for side in "lr"}
    return tensors | {f"convs.{i}.lin_l.bias": np.zeros(len(layer["l"]), np.float32) for i, layer in enumerate(layers)}


def to_json(batch: Batch) -> dict[str, object]:
    """The body of `POST /v1/changes`."""
    return {
        "nodes": [{"id": node, "features": _row(value)} for node, value in batch.new],
        "overrides": [{"id": node, "features": {_COLUMNS[0]: value}} for node, value in batch.overrides],
        "edges": batch.edges,
        "removedEdges": batch.removed_edges,
        "removedNodes": batch.removed,
    }


def to_binary(batch: Batch) -> bytes:
    rows = np.full((len(batch.new) + len(batch.overrides), len(_COLUMNS)), np.nan, np.float32)
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
    return [value] + [0.0] * (len(_COLUMNS) - 1)


def _value(features: Mapping[str, float] | Sequence[float]) -> float:
    if isinstance(features, Mapping):
        ((name, value),) = features.items()
        if name != _COLUMNS[0]:
            raise ValueError(f"a record has the column {name}")
        return value
    if [*features] != _row(features[0]):
        raise ValueError(f"a record has the features {features}")
    return features[0]


def _write_table(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows((head, *rows))
