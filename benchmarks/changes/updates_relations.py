"""A made-up graph of several types whose edges come and go: users buy items and know each other, items have tags.

About as large as ogbn-arxiv's shape. Nothing is trained: weights are drawn, since what they are makes no difference to
what changes take.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

from benchmarks.changes.updates_changes import MIXED
from benchmarks.shapes import CACHE
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.model import Architecture, Model
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, TextIds
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.registry import relational_spec_of

NAME = "typed"
_CLASSES, _FEATURES, _HIDDEN, _FANOUTS = 16, 64, 128, (15, 10)
_NODES = {"user": 100_000, "item": 60_000, "tag": 10_000}
_EDGES = {("user", "buys", "item"): 800_000, ("user", "knows", "user"): 300_000, ("item", "has", "tag"): 120_000}
_WEIGHTS = "model.safetensors"
_POOL = 1 << 17
"""Edges of each relation that are drawn to leave."""


def typed_manifest() -> dict[str, Any]:
    """A GNNService of the graph, made unless an earlier run did, with projected and stored1 in float32."""
    folder = CACHE / f"updates-{NAME}"
    source = {"npz": {"uri": (folder / "graph").resolve().as_uri()}}
    weights = folder / _WEIGHTS
    if not weights.is_file():  # the last of its files
        _write_graph(folder / "graph")
        _write_weights(weights, source)
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": NAME},
        "spec": {
            "graph": {"source": {"typed": source}},
            "model": {
                "hidden": _HIDDEN,
                "fanouts": list(_FANOUTS),
                "checkpoint": {"uri": weights.resolve().as_uri()},
            },
            "variants": {"stored": [1]},
        },
    }


def _write_graph(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for kind, nodes in _NODES.items():
        arrays: dict[str, np.ndarray] = {"num_nodes": np.array(nodes)}
        if kind != "tag":
            arrays["features"] = draw.standard_normal((nodes, _FEATURES), dtype=np.float32)
        if kind == "user":
            arrays |= {"labels": draw.permutation(np.arange(nodes) % _CLASSES)}
        np.savez(folder / f"nodes_{kind}.npz", **arrays)
    for (source, relation, target), edges in _EDGES.items():
        ends = {"src": draw.integers(0, _NODES[source], edges), "dst": draw.integers(0, _NODES[target], edges)}
        np.savez(folder / f"edges_{source}__{relation}__{target}.npz", **ends)


def _write_weights(path: Path, source: dict[str, Any]) -> None:
    data = load_source(GraphSource.model_validate({"typed": source}), Path("unused"))
    layers = Model(hidden=_HIDDEN, fanouts=_FANOUTS).network(_CLASSES).layers
    shape = RelationalShape(data.schema, _HIDDEN, _CLASSES, layers)
    draw = np.random.default_rng(1)
    shapes = relational_spec_of(Architecture.GRAPHSAGE).shapes(shape)
    safetensors.numpy.save_file(
        {key: (draw.standard_normal(sizes) / 10).astype(np.float32) for key, sizes in shapes.items()}, path
    )


class TypedStream:
    """Batches of edges that come and as many that leave, the same for the same seed; each of one relation, relations by
    their numbers of edges. Small ones have new users and other features of items too."""

    def __init__(self, graph: Graph, seed: int) -> None:
        """`graph`: as generated."""
        self._draw = np.random.default_rng(seed)
        self._width = max(kind.features or 0 for kind in graph.schema.types)
        self._relations = [one for one in graph.schema.relations if one.reverse_of is None]
        # An edge that goes both ways is in two lists.
        edges = np.array([one.edges / (1 + one.both_ways) for one in self._relations])
        self._shares = edges / edges.sum()
        self._nodes = {kind.name: kind.nodes for kind in graph.schema.types}
        self._next_user = self._nodes["user"]
        self._pools = [self._entries(graph, one.source, one.name) for one in self._relations]
        """Edges that are there, positions of source and target within their types: int64 [edges, 2]."""

    def _entries(self, graph: Graph, source: str, relation: str) -> np.ndarray:
        typed = graph.schema
        place = next(p for p, one in enumerate(typed.relations) if (one.source, one.name) == (source, relation))
        target = typed.place_of(typed.relations[place].target)
        firsts = typed.first_nodes[typed.place_of(source)], typed.first_nodes[target]
        found: list[np.ndarray] = []
        nodes, count = typed.types[target].nodes, 0
        for node in self._draw.permutation(nodes).tolist():
            listed = dict(graph.lists_by_relation(firsts[1] + node))[place]
            found.append(np.stack((listed - firsts[0], np.full(len(listed), node)), axis=1))
            count += len(listed)
            if count >= _POOL:
                break
        return np.concatenate(found).astype(np.int64)

    def small(self, size: int) -> ChangeBatch:
        """A batch of so many changes, however few: each of a kind that is drawn."""
        new, overrides, edges = self._draw.multinomial(size, MIXED.shares).tolist()
        first, self._next_user = self._next_user, self._next_user + new
        texts = [f"user/{number}" for number in range(first, self._next_user)]
        overridden = self._draw.choice(self._nodes["item"], overrides, replace=False)
        texts += [f"item/{number}" for number in overridden.tolist()]
        batch = self.batch(edges)
        ids = batch.ids
        assert isinstance(ids, TextIds)  # noqa: S101
        own, offsets = lay_out(texts)
        joined = TextIds(
            np.concatenate((own, ids.texts)), np.concatenate((offsets, offsets[-1] + ids.offsets[1:])), TEXTS_WITH_TYPES
        )
        counts = msgspec.structs.replace(batch.counts, new_nodes=new, overrides=overrides)
        rows = self._draw.standard_normal((new + overrides, self._width), dtype=np.float32)
        return ChangeBatch(counts, joined, rows)

    def batches(self, size: int, count: int) -> Iterator[ChangeBatch]:
        return (self.batch(size) for _ in range(count))

    def batch(self, size: int) -> ChangeBatch:
        which = int(self._draw.choice(len(self._relations), p=self._shares))
        one, pool = self._relations[which], self._pools[which]
        removed = size // 2
        added = size - removed
        sources, targets = (self._draw.integers(0, self._nodes[kind], added) for kind in (one.source, one.target))
        places = self._draw.choice(len(pool), removed, replace=False)
        leaving = pool[places]
        pool[places] = np.stack((sources, targets), axis=1)[:removed]
        texts: list[str] = []
        for first, second in (*zip(sources.tolist(), targets.tolist(), strict=True), *leaving.tolist()):
            texts += (f"{one.source}/{first}", one.name, f"{one.target}/{second}")
        counts = ChangeCounts(edges=added, removed_edges=removed)
        rows = np.zeros((0, self._width), np.float32)
        return ChangeBatch(counts, TextIds(*lay_out(texts), TEXTS_WITH_TYPES), rows)
