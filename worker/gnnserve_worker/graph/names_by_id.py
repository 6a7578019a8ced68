"""Nodes of a graph of one type, by the ids that batches of changes name them by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.change_ids import FORM_OF_KIND, BatchForm, ChangeIds, IntegerIds, TextIds
from gnnserve_worker.graph.change_run import ChangeRun, NamedIds
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.ids import NodeIds, texts_of
from gnnserve_worker.graph.living_graph import LivingGraph, first_repeated, no_room, refused


@dataclass(frozen=True, slots=True)
class NamesById:
    """A `living_graph.Names`."""

    forms = frozenset(FORM_OF_KIND.values())
    remedy = "use ids as GET /v1/variants (`nodeIds`) says"

    def form(self, graph: LivingGraph) -> BatchForm:
        return graph.ids.form

    def find(self, graph: LivingGraph, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        counts, ids, room = batch.counts, graph.ids, int(graph.places.first_nodes[-1])
        positions = ids.find(batch.ids)
        new = counts.new_nodes
        if new:
            values = batch.ids.comparable()
            if (refusal := _check_new(batch, positions, values)) is not None:
                return refusal
            _place_new(positions, values, new, ids.count)
        if len(positions) and positions.min() < 0:
            first = int(positions.argmin())
            remedy = "name a node that the graph has, or bring it in `nodes`"
            return refused(batch, first, ChangeProblem.UNKNOWN_NODE, "is no node of the graph", remedy)
        bounds = np.cumsum([0, new, counts.overrides, counts.labelled, 2 * counts.edges, 2 * counts.removed_edges])
        for number in (1, 5):
            start, end = int(bounds[number]), int(bounds[number + 1]) if number < 5 else len(positions)
            if (again := first_repeated(positions[start:end])) >= 0:
                remedy = "give each node once"
                return refused(batch, start + again, ChangeProblem.REPEATED_NODE, "is there twice", remedy)
        if ids.count + new > room:
            return no_room(f"{ids.count:,} nodes have been there, and there is room for {room:,}")
        return FoundNodes(
            np.arange(ids.count, ids.count + new),
            positions[bounds[1] : bounds[2]],
            positions[bounds[2] : bounds[3]],
            positions[bounds[3] : bounds[4]].reshape(-1, 2),
            positions[bounds[4] : bounds[5]].reshape(-1, 2),
            positions[bounds[5] :],
            new_ids=(batch.ids,),
        )

    def name(self, graph: LivingGraph, batch: ChangeBatch) -> NamedIds:
        ids, codes, none = graph.ids, batch.ids.codes(), np.zeros(0, np.int64)
        first = np.array([ids.count])
        room = graph.places.first_nodes[-1:] - first
        return NamedIds(codes, ids.find(batch.ids), np.zeros(len(codes), np.int64), first, room, none, none, {})

    def complete(self, graph: LivingGraph, run: ChangeRun, named: NamedIds, found: FoundNodes) -> FoundNodes:
        del graph, named
        return replace(found, new_ids=(run.batch.ids,))

    def write_nodes(self, kind: int, ids: NodeIds | None, nodes: np.ndarray) -> ChangeIds:
        del kind  # there is one
        return ids_at(ids, nodes)

    def write_edges(self, relation: int, ids: tuple[NodeIds | None, NodeIds | None], edges: np.ndarray) -> ChangeIds:
        del relation  # there is one
        return ids_at(ids[0], edges.ravel())


def ids_at(ids: NodeIds | None, nodes: np.ndarray) -> ChangeIds:
    """Ids of nodes at these positions (int64), in their order."""
    if ids is None:
        return IntegerIds(nodes)
    if not len(ids.offsets):
        return IntegerIds(np.asarray(ids.values[nodes]))
    return TextIds(*texts_of(ids.values, ids.offsets, nodes))


def _check_new(batch: ChangeBatch, positions: np.ndarray, values: np.ndarray) -> ChangeRefusal | None:
    """`values`: ids as `ChangeIds.comparable` has them."""
    new = batch.counts.new_nodes
    if positions[:new].max() >= 0:
        first = int((positions[:new] >= 0).argmax())
        remedy = "give a new node an id of its own; other features of a stored one go into `overrides`"
        return refused(batch, first, ChangeProblem.STORED_NODE, "is a node of the graph", remedy)
    if (again := first_repeated(values[:new])) >= 0:
        return refused(batch, again, ChangeProblem.REPEATED_NODE, "is there twice", "give each node once")
    return None


def _place_new(positions: np.ndarray, values: np.ndarray, new: int, first: int) -> None:
    """Write the positions that new nodes would get, also where edges name them, in place."""
    missing = np.flatnonzero(positions < 0)
    order = np.argsort(values[:new], kind="stable")
    places = np.minimum(np.searchsorted(values[:new], values[missing], sorter=order), new - 1)
    candidates = order[places]
    is_new = values[candidates] == values[missing]
    positions[missing[is_new]] = first + candidates[is_new]
