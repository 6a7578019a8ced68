"""Edges of a revision that are taken out and come back, as changes: which there are, and their batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from gnnserve_api.files.edges import Direction
from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch, ChangeCounts
from gnnserve_worker.graph.found_nodes import distinct
from gnnserve_worker.graph.overlay import Overlay, overlay_arranger
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision

EDGES_OF_BATCH = 4096
_MOST_ENTRIES = 1 << 22
"""Entries of lists among which edges are drawn; of more, so many are drawn first."""


class Edges(NamedTuple):
    """Edges as changes name them."""

    relations: np.ndarray
    """Place of each one's relation, int64 [edges]."""
    ends: np.ndarray
    """Numbers of source and target, int64 [edges, 2]."""

    def part(self, chosen: np.ndarray | slice) -> Edges:
        return Edges(self.relations[chosen], self.ends[chosen])


class PlayedChanges:
    """Changes of edges of a revision that was opened for changes; edges have no payload."""

    def __init__(self, loaded: LoadedRevision, living: LivingRevision) -> None:
        self._loaded, self._living, self._graph = loaded, living, living.graph
        relations = self._graph.stored.relations
        self._own = [place for place, one in enumerate(relations) if one.reverse_of is None]
        """Relations whose edges are no other's reverse."""

    def count(self) -> int:
        """How many edges the graph has, about: a self-loop counts as half of one where edges go both ways."""
        places, lists, found = self._graph.places, self._graph.lists, 0
        kept = self._graph.kept
        for relation in self._own:
            readers = kept[places.kinds_of(kept) == places.targets[relation]]
            entries = int(lists.lengths(places.list_by(relation, readers)).sum())
            goes_both_ways = places.rules[relation].direction is Direction.UNDIRECTED
            found += entries // 2 if goes_both_ways else entries
        return found

    def draw(self, random: np.random.Generator) -> Edges:
        """Edges in a random order: all, or of a large graph a few million."""
        graph = self._graph
        lists = graph.places.lists_of(graph.kept)
        ends = np.cumsum(graph.lists.lengths(lists))
        total = int(ends[-1]) if len(ends) else 0
        if total <= _MOST_ENTRIES:
            entries = graph.lists.entries_of(lists)
        else:
            drawn = np.unique(random.integers(total, size=_MOST_ENTRIES // 2))
            places = np.searchsorted(ends, drawn, side="right")
            chosen = lists[places]
            at = graph.lists.bounds[chosen, 1] - (ends[places] - drawn)
            entries = np.stack((chosen, graph.lists.indices[at].astype(np.int64)), axis=1)
        edges = self._edges_of(entries)
        return edges.part(random.permutation(len(edges.ends)))

    def joining(self, nodes: np.ndarray) -> Edges:
        """All edges that begin or end at one of these nodes (int64)."""
        graph = self._graph
        own = graph.lists.entries_of(graph.places.lists_of(nodes))
        return self._edges_of(np.concatenate((own, graph.entries_reading(nodes))))

    def _edges_of(self, entries: np.ndarray) -> Edges:
        """The edges, each once, that these entries are of: (list, sender), int64 [entries, 2]."""
        places = self._graph.places
        readers = places.readers_of_lists(entries[:, 0])
        kinds, nodes = places.kinds_of(readers), int(places.first_nodes[-1])
        relations, found = list[np.ndarray](), list[np.ndarray]()
        for relation in self._own:
            chosen = np.flatnonzero(kinds == places.targets[relation])
            chosen = chosen[places.list_by(relation, readers[chosen]) == entries[chosen, 0]]
            direction = places.rules[relation].direction
            ends = np.stack((entries[chosen, 1], readers[chosen]), axis=1)
            if direction is Direction.REVERSED:
                ends = ends[:, ::-1]
            if direction is Direction.UNDIRECTED:
                ends = np.sort(ends, axis=1)
            # Single numbers are sorted in a fraction of the time of pairs.
            codes = np.unique(ends[:, 0] * nodes + ends[:, 1])
            found.append(np.stack((codes // nodes, codes % nodes), axis=1))
            relations.append(np.full(len(codes), relation))
        return Edges(np.concatenate(relations), np.concatenate(found))

    def come(self, edges: Edges) -> bool:
        """Let these edges come; False: there was no room for some."""
        return all(self._apply(part, adds=True) for part in _parts(edges))

    def leave(self, edges: Edges) -> bool:
        """Take these edges out; False: there was no room to note some."""
        return all(self._apply(part, adds=False) for part in _parts(edges))

    def brought(self, edges: Edges, nodes: np.ndarray) -> tuple[Overlay, np.ndarray]:
        """An overlay that brings copies of these nodes (int64) with their edges, and their numbers in it (int64).
        `edges`: those that no node has in the graph."""
        places, loaded = self._graph.places, self._loaded
        new, first_new = distinct([nodes]), loaded.graph.nodes
        own = edges.part(np.flatnonzero(np.isin(edges.ends, new).any(axis=1)))
        ends = np.where(np.isin(own.ends, new), first_new + np.searchsorted(new, own.ends), own.ends)
        arranger = overlay_arranger(loaded.graph, places)
        overlay, seeds = arranger.arrange(
            np.zeros((len(new), loaded.new_nodes.width), np.float32), np.zeros(0, np.int64), ends,
            first_new + np.searchsorted(new, nodes), places.kinds_of(new), own.relations,
        )  # fmt: skip
        return msgspec.structs.replace(overlay, stand_ins=new), seeds

    def _apply(self, edges: Edges, *, adds: bool) -> bool:
        batches = [self._batch(edges, relation, adds=adds) for relation in np.unique(edges.relations).tolist()]
        said = self._living.apply(self._living.offset + 1, batches)
        return len(said) == len(batches) and all(isinstance(one, BatchEffect) for one in said)

    def _batch(self, edges: Edges, relation: int, *, adds: bool) -> ChangeBatch:
        places, ids, stored = self._graph.places, self._loaded.ids.by_type, self._graph.stored
        kinds = np.array([places.sources[relation], places.targets[relation]])
        own = edges.ends[edges.relations == relation] - places.first_nodes[kinds]
        source, target = (ids[stored.types[kind].name] for kind in kinds)
        counts = ChangeCounts(edges=len(own)) if adds else ChangeCounts(removed_edges=len(own))
        names = self._graph.names.write_edges(relation, (source, target), own)
        return ChangeBatch(counts, names, np.zeros((0, self._loaded.new_nodes.features), np.float32))


def _parts(edges: Edges) -> Iterator[Edges]:
    for start in range(0, len(edges.ends), EDGES_OF_BATCH):
        yield edges.part(slice(start, start + EDGES_OF_BATCH))


def without(edges: Edges, nodes: np.ndarray) -> Edges:
    """Edges that neither begin nor end at one of these nodes (int64)."""
    return edges.part(np.flatnonzero(~np.isin(edges.ends, nodes).any(axis=1)))
