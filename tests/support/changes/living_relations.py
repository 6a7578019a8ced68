"""Graphs of several types that change, beside a plain model of what changes mean that torch_geometric answers over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnnserve_worker.graph.store import Graph, GraphData

Id = int | str


class PlainTypedGraph:
    """What a graph is after changes, by its clients' ids: rows of features, or embeddings, and edges as pairs of reader
    and sender, of each relation."""

    def __init__(self, data: GraphData, model: Any, begins: dict[str, str] | None = None) -> None:
        """`begins`: what ids of a type begin with, where they are texts."""
        self._data, self._model, self._begins = data, model, begins or {}
        self.rows: dict[str, dict[Id, np.ndarray]] = {}
        self._fresh = dict.fromkeys((kind.name for kind in data.types), 1000)
        self._defaults = {}
        for kind in data.types:
            if kind.features is None:
                rows = model.embeddings[kind.name].weight.detach().numpy()
                self._defaults[kind.name] = rows.mean(axis=0)
            else:
                rows = np.asarray(kind.features)
            self.rows[kind.name] = {self.id_of(kind.name, place): rows[place] for place in range(kind.nodes)}
        self.entries: list[list[tuple[Id, Id]]] = []
        for one in data.relations:
            pairs = zip(one.lists.targets().tolist(), one.lists.indices.tolist(), strict=True)
            named = [(self.id_of(one.target, reader), self.id_of(one.source, sender)) for reader, sender in pairs]
            self.entries.append(named)

    def id_of(self, kind: str, number: int) -> Id:
        return f"{self._begins[kind]}{number}" if kind in self._begins else number

    @property
    def target_ids(self) -> list[Id]:
        return [*self.rows[self._data.target.name]]

    def _change(self, place: int, reader: Id, sender: Id, *, adds: bool) -> None:
        entries, entry = self.entries[place], (reader, sender)
        if adds and not (self._data.relations[place].merges and entry in entries):
            entries.append(entry)
        elif not adds and entry in entries:
            entries.remove(entry)

    def change_edge(self, place: int, source: Id, target: Id, *, adds: bool) -> None:
        one = self._data.relations[place]
        self._change(place, target, source, adds=adds)
        if one.both_ways and source != target:
            self._change(place, source, target, adds=adds)
        for other, reverse in enumerate(self._data.relations):
            if (reverse.target, reverse.reverse_of, reverse.source) == (one.source, one.name, one.target):
                self._change(other, source, target, adds=adds)

    def remove_node(self, kind: str, id_: Id) -> None:
        del self.rows[kind][id_]
        for place, one in enumerate(self._data.relations):
            self.entries[place] = [
                (reader, sender)
                for reader, sender in self.entries[place]
                if not ((one.target, reader) == (kind, id_) or (one.source, sender) == (kind, id_))
            ]

    def random_batch(self, draw: np.random.Generator, size: int) -> dict[str, Any]:
        """A batch of all kinds of changes, in JSON, which is applied here at once."""
        body: dict[str, Any] = {name: [] for name in ("nodes", "overrides", "edges", "removedEdges", "removedNodes")}
        kinds, own = self._data.types, [p for p, one in enumerate(self._data.relations) if one.reverse_of is None]
        for _ in range(int(draw.integers(1, max(2, size // 3)))):
            kind = kinds[draw.integers(len(kinds))]
            id_ = self.id_of(kind.name, self._fresh[kind.name])
            self._fresh[kind.name] += 1
            node: dict[str, Any] = {"id": f"{kind.name}/{id_}"}
            row = self._defaults.get(kind.name)
            if kind.features is not None:
                row = draw.normal(size=kind.features.shape[1]).astype(np.float32)
                node["features"] = row.tolist()
            assert row is not None
            self.rows[kind.name][id_] = row
            body["nodes"].append(node)
        for kind in kinds:
            if kind.features is None:
                continue
            for id_ in self._some(draw, kind.name, size // 3):
                row = draw.normal(size=kind.features.shape[1]).astype(np.float32)
                self.rows[kind.name][id_] = row
                body["overrides"].append({"id": {"type": kind.name, "id": id_}, "features": row.tolist()})
        for field, adds in (("edges", True), ("removedEdges", False)):
            for _ in range(int(draw.integers(0, size))):
                place = own[draw.integers(len(own))]
                one = self._data.relations[place]
                ends = [self._some(draw, name, 1)[0] for name in (one.source, one.target)]
                there = [entry for entry in self.entries[place] if not one.both_ways or entry[0] != entry[1]]
                if not adds and there:  # one that is there
                    ends = [*reversed(there[draw.integers(len(there))])]
                self.change_edge(place, ends[0], ends[1], adds=adds)
                body[field].append([f"{one.source}/{ends[0]}", one.name, f"{one.target}/{ends[1]}"])
        for kind in kinds:
            count = int(draw.integers(0, 2))
            if len(self.rows[kind.name]) == 4:
                continue  # edges need some
            for id_ in self._some(draw, kind.name, count):
                self.remove_node(kind.name, id_)
                body["removedNodes"].append(f"{kind.name}/{id_}")
        return body

    def _some(self, draw: np.random.Generator, kind: str, count: int) -> list[Id]:
        ids = [*self.rows[kind]]
        return [ids[place] for place in draw.choice(len(ids), min(count, len(ids) - 3), replace=False).tolist()]

    def built(self) -> tuple[GraphData, dict[str, np.ndarray]]:
        """The graph built anew, nodes in the order of `rows`, and what is read of those of each type."""
        places = {kind: {id_: place for place, id_ in enumerate(rows)} for kind, rows in self.rows.items()}
        inputs = {kind: np.stack([*rows.values()]).astype(np.float32) for kind, rows in self.rows.items()}
        types = tuple(
            replace(
                kind, nodes=len(inputs[kind.name]), features=None if kind.features is None else inputs[kind.name],
            )
            for kind in self._data.types
        )  # fmt: skip
        relations = []
        for one, entries in zip(self._data.relations, self.entries, strict=True):
            pairs = [(places[one.target][reader], places[one.source][sender]) for reader, sender in entries]
            found = np.array(sorted(pairs), np.int64).reshape(-1, 2)
            counts = np.bincount(found[:, 0], minlength=len(inputs[one.target]))
            indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            relations.append(replace(one, lists=Graph(indptr, found[:, 1].astype(np.int32))))
        return replace(self._data, types=types, relations=tuple(relations)), inputs

    def scores(self) -> np.ndarray:
        """What the model says of all nodes of the type that is classified, in the order of their rows."""
        data, inputs = self.built()
        before = dict(self._model.embeddings.items())
        for name in before:
            self._model.embeddings[name] = torch.nn.Embedding.from_pretrained(torch.from_numpy(inputs[name]))
        with torch.no_grad():
            scores: np.ndarray = self._model(data).numpy()
        for name, module in before.items():
            self._model.embeddings[name] = module
        return scores
