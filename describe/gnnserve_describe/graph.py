"""A graph as tensors, as a module is called with it; lists of neighbours, and samples of them.

All nodes of one type have the type `""`, and their edges the relation without names, as a program's contract has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from gnnserve_api.files.programs import RelationKey

Blocks = Mapping[str, torch.Tensor]
"""Tensors by their names, a row for each node or edge."""


@dataclass(frozen=True, slots=True, eq=False)
class GraphTensors:
    features: Mapping[str, Blocks]
    """By type."""
    edges: Mapping[RelationKey, torch.Tensor]
    """By relation, int64 [2, edges]: the node that is read, and the node that reads it."""
    payload: Mapping[RelationKey, Blocks]
    """What edges have, by relation; of relations whose edges have nothing there is an empty mapping."""

    def nodes(self, kind: str) -> int:
        return next(iter(self.features[kind].values())).shape[0]

    @property
    def types(self) -> Sequence[str]:
        return list(self.features)

    @property
    def only_count(self) -> int:
        """How many nodes there are of the only type. ValueError: there are several types."""
        (kind,) = self.features
        return self.nodes(kind)

    def without(self, place: str | RelationKey, name: str) -> GraphTensors | None:
        """Without a tensor of a type or relation; None: a type would have none left."""
        if isinstance(place, RelationKey):
            return replace(self, payload={**self.payload, place: _others(self.payload[place], name)})
        left = _others(self.features[place], name)
        return replace(self, features={**self.features, place: left}) if left else None

    def copied(self) -> GraphTensors:
        return GraphTensors(
            {kind: {name: block.clone() for name, block in blocks.items()} for kind, blocks in self.features.items()},
            {key: edges.clone() for key, edges in self.edges.items()},
            {key: {name: block.clone() for name, block in blocks.items()} for key, blocks in self.payload.items()},
        )

    def with_equal_types(self) -> GraphTensors:
        """Each type with as many nodes as all types have together: the added ones come last, and have no edges."""
        counts = {kind: self.nodes(kind) for kind in self.types}
        more = {kind: sum(count for other, count in counts.items() if other != kind) for kind in counts}
        return replace(
            self,
            features={
                kind: {name: _longer(block, more[kind]) for name, block in blocks.items()}
                for kind, blocks in self.features.items()
            },
        )

    def as_double(self) -> GraphTensors:
        """Floating point numbers in float64, others as they are."""
        return replace(
            self,
            features={kind: _double(blocks) for kind, blocks in self.features.items()},
            payload={key: _double(blocks) for key, blocks in self.payload.items()},
        )

    def sorted_by_reader(self) -> GraphTensors:
        """Edges in the order of the nodes that read them, as a server gives them."""
        orders = {key: torch.argsort(edges[1], stable=True) for key, edges in self.edges.items()}
        return replace(
            self,
            edges={key: edges[:, orders[key]] for key, edges in self.edges.items()},
            payload={
                key: {name: block[orders[key]] for name, block in blocks.items()}
                for key, blocks in self.payload.items()
            },
        )

    def part(self, nodes: Mapping[str, np.ndarray], edges: Mapping[RelationKey, np.ndarray]) -> GraphTensors:
        """These nodes, numbered in this order, and these edges, whose ends must be among them."""
        numbers = {}
        for kind, chosen in nodes.items():
            numbers[kind] = np.full(self.nodes(kind), -1)
            numbers[kind][chosen] = np.arange(len(chosen))
        found = {}
        for key, chosen in edges.items():
            ends = self.edges[key].numpy()[:, chosen]
            renumbered = np.stack([numbers[key.source][ends[0]], numbers[key.target][ends[1]]])
            found[key] = torch.from_numpy(renumbered.astype(np.int64).reshape(2, len(chosen)))
        return GraphTensors(
            {kind: _rows(blocks, nodes[kind]) for kind, blocks in self.features.items()},
            found,
            {key: _rows(blocks, edges[key]) for key, blocks in self.payload.items()},
        )


def _others(blocks: Blocks, name: str) -> Blocks:
    return {each: block for each, block in blocks.items() if each != name}


def _longer(block: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.cat([block, block.new_zeros((rows, *block.shape[1:]))])


def _double(blocks: Blocks) -> Blocks:
    return {name: block.double() if block.is_floating_point() else block for name, block in blocks.items()}


def _rows(blocks: Blocks, chosen: np.ndarray) -> Blocks:
    places = torch.from_numpy(np.asarray(chosen, np.int64))
    return {name: block[places] for name, block in blocks.items()}


class NeighbourLists:
    """Edges of a graph by the node that reads."""

    def __init__(self, graph: GraphTensors) -> None:
        self.graph = graph
        self._edges = {key: edges.numpy() for key, edges in graph.edges.items()}
        self._orders, self._starts = {}, {}
        for key, edges in self._edges.items():
            self._orders[key] = np.argsort(edges[1], kind="stable")
            counts = np.bincount(edges[1], minlength=graph.nodes(key.target))
            self._starts[key] = np.concatenate([[0], np.cumsum(counts)])

    def degrees(self, kind: str) -> np.ndarray:
        """Edges that each node of a type reads, by all relations."""
        total = np.zeros(self.graph.nodes(kind), np.int64)
        for key, starts in self._starts.items():
            if key.target == kind:
                total += np.diff(starts)
        return total

    def sample(self, kind: str, seeds: np.ndarray, hops: int) -> GraphTensors:
        """Nodes that seeds of a type reach within so many hops, seeds first, and all edges that nodes fewer hops away
        read: as a server samples them."""
        distances, read = self._walk(kind, seeds, hops)
        nodes = {}
        for each, found in distances.items():
            reached = np.flatnonzero(found >= 0)
            nodes[each] = reached[np.argsort(found[reached], kind="stable")]
        nodes[kind] = np.concatenate([seeds, nodes[kind][~np.isin(nodes[kind], seeds)]])
        return self.graph.part(nodes, read).sorted_by_reader()

    def distances(self, kind: str, seeds: np.ndarray, most: int) -> Mapping[str, np.ndarray]:
        """Hops from the nearest seed of each node, by type; -1: more than `most`, or never."""
        return self._walk(kind, seeds, most)[0]

    def _walk(
        self, kind: str, seeds: np.ndarray, hops: int
    ) -> tuple[dict[str, np.ndarray], dict[RelationKey, np.ndarray]]:
        distances = {each: np.full(self.graph.nodes(each), -1) for each in self.graph.types}
        distances[kind][seeds] = 0
        read: dict[RelationKey, list[np.ndarray]] = {key: [] for key in self._edges}
        for hop in range(hops):
            places = {key: self._read_by(key, np.flatnonzero(distances[key.target] == hop)) for key in self._edges}
            for key, chosen in places.items():
                read[key].append(chosen)
                sources = np.unique(self._edges[key][0, chosen])
                new = sources[distances[key.source][sources] < 0]
                distances[key.source][new] = hop + 1
        nothing = np.zeros(0, np.int64)
        return distances, {key: np.concatenate([nothing, *found]) for key, found in read.items()}

    def _read_by(self, key: RelationKey, nodes: np.ndarray) -> np.ndarray:
        """Edges of a relation that these nodes read."""
        starts = self._starts[key]
        counts = starts[nodes + 1] - starts[nodes]
        firsts = np.repeat(starts[nodes] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        found: np.ndarray = self._orders[key][firsts + np.arange(counts.sum())]
        return found
