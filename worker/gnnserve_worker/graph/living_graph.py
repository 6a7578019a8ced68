"""A graph that changes: which nodes there are, what they are called, and whose features each of them reads.

Nodes have one numbering, type after type, with room for new ones behind those of each type: a node that comes has the
next number of its type, and kernels find its lists as they find all others. No number is given twice. A node that has
left keeps its number and its row, which nothing reads any more. Edges become entries of lists by the rules of their
relation, as those of an overlay do (`overlay.py`). How batches name nodes is `names_by_id.py` and `names_by_type.py`;
features and what is made of them are `inference/living.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.files.edges import Duplicates, SelfLoops
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeProblem, ChangeRefusal
from gnnserve_worker.graph.change_ids import BatchForm, ChangeIds
from gnnserve_worker.graph.change_run import ChangeRun, NamedIds, fold_rows, place_ids
from gnnserve_worker.graph.found_nodes import (
    Effect,
    EntryChanges,
    FoundNodes,
    FoundRun,
    distinct,
    edge_changes,
    kind_of_change,
)
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds
from gnnserve_worker.graph.living_lists import ADDED, REMOVED, LivingLists, PayloadChange, entries_of_edges
from gnnserve_worker.graph.living_payload import LivingPayload, fits_payload, payload_problem
from gnnserve_worker.graph.relation_lists import TypePlaces
from gnnserve_worker.graph.store import Graph

_NO_ENTRIES = np.zeros((0, 2), np.int64)
_FIELDS = ("nodes", "overrides", "labels", "edges", "removedEdges", "removedNodes")
"""The lists of a batch in JSON, in the order of its ids."""


class Names(Protocol):
    """How batches name the nodes of a graph, and the relations of edges."""

    @property
    def forms(self) -> frozenset[BatchForm]:
        """Forms that batches of such a graph may have, by the ids of its nodes."""
        ...  # pragma: no cover

    @property
    def remedy(self) -> str:
        """What to do about a batch of another form."""
        ...  # pragma: no cover

    def form(self, graph: LivingGraph) -> BatchForm:
        """The form that batches of the graph have."""
        ...  # pragma: no cover

    def find(self, graph: LivingGraph, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        """Find the nodes of a batch of the graph's form; or what is wrong with them."""
        ...  # pragma: no cover

    def name(self, graph: LivingGraph, batch: ChangeBatch) -> NamedIds:
        """The nodes that the ids of joined batches name, also where some are wrong."""
        ...  # pragma: no cover

    def complete(self, graph: LivingGraph, run: ChangeRun, named: NamedIds, found: FoundNodes) -> FoundNodes:
        """The nodes of a run with the ids of new ones, and the relations of its edges."""
        ...  # pragma: no cover

    def write_nodes(self, kind: int, ids: NodeIds | None, nodes: np.ndarray) -> ChangeIds:
        """Ids of nodes of a type (its place) as batches have them. `ids`: of the type; `nodes`: positions, int64."""
        ...  # pragma: no cover

    def write_edges(self, relation: int, ids: tuple[NodeIds | None, NodeIds | None], edges: np.ndarray) -> ChangeIds:
        """Edges of a relation (its place) as batches have them: (source, target), int64 [edges, 2], positions by the
        ids of either type."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True, eq=False)
class LivingGraph:
    graph: Graph
    """As kernels read it: its arrays are those of `lists`, which change in place."""
    lists: LivingLists
    """Lists of all nodes, numbered as in `places`."""
    readers: LivingLists | None
    """For each node the lists that name it; None: edges go both ways, so that the node's own list says it."""
    places: TypePlaces
    """Where nodes and lists of each type stand, with the room for new ones."""
    ids_of: tuple[LivingIds, ...]
    """Ids of each type."""
    is_gone: np.ndarray
    """Whether each node has left, bool [room for nodes]. Ids of each type note it there."""
    names: Names
    stored: GraphSchema
    """Types and relations as the revision has them, without room."""
    payloads: tuple[LivingPayload | None, ...] = ()
    """Payload of the edges of each relation, which a reverse one shares; None: they have none. Empty: no relation has
    any."""

    @property
    def ids(self) -> LivingIds:
        """Ids of the first type, which is the one that is classified."""
        return self.ids_of[0]

    @property
    def taken(self) -> int:
        """Numbers that are taken, those of nodes that have left among them."""
        return sum(ids.count for ids in self.ids_of)

    @property
    def kept(self) -> np.ndarray:
        """Numbers of the nodes that are there: int64, ascending."""
        firsts = zip(self.places.first_nodes.tolist(), self.ids_of, strict=False)
        return np.concatenate([first + ids.kept for first, ids in firsts])

    @property
    def naming(self) -> LivingLists:
        """For each node the lists that name it, whichever way edges go."""
        return self.readers or self.lists

    def readers_of(self, nodes: np.ndarray) -> np.ndarray:
        """Nodes that read any of these (int64): int64, ascending, distinct."""
        return distinct((self.all_readers_of(nodes),))

    def all_readers_of(self, nodes: np.ndarray) -> np.ndarray:
        """Nodes that read any of these (int64), each as often as it does: int64."""
        return self.nodes_of_lists(self.naming.of(nodes))

    def nodes_of_lists(self, lists: np.ndarray) -> np.ndarray:
        """The nodes that these lists (int64) are of: int64."""
        return self.places.readers_of_lists(lists)

    def readers_counts(self, nodes: np.ndarray) -> np.ndarray:
        """How many entries of lists name each of these nodes (int64): int64 [nodes]."""
        return self.naming.lengths(nodes)

    def entries_reading(self, nodes: np.ndarray) -> np.ndarray:
        """Entries of lists that name any of these nodes (int64): (list, sender), int64 [entries, 2]."""
        if not len(nodes):
            return _NO_ENTRIES
        return np.ascontiguousarray(self.naming.entries_of(nodes)[:, ::-1])

    def find(self, batch: ChangeBatch) -> FoundNodes | ChangeRefusal:
        """Find its nodes; or what is wrong with them, or with the payload of its edges."""
        form = self.names.form(self)
        if batch.ids.form is not form:
            problem = f"its ids are {batch.ids.form.called}, and those of the graph are {form.called}"
            return ChangeRefusal(ChangeProblem.INVALID_VALUE, "body", problem, self.names.remedy)
        found = self.names.find(self, batch)
        if isinstance(found, ChangeRefusal) or not (self.payloads or batch.has_payload):
            return found
        if (misfit := payload_problem(self.payloads, batch, found.relations)) is not None:
            return misfit.refusal
        return replace(found, edge_features=batch.edge_features, edge_times=batch.edge_times)

    def joins(self, batch: ChangeBatch) -> bool:
        """Whether the batch can be one of a run."""
        if (self.payloads or batch.has_payload) and not fits_payload(self.payloads, batch):
            return False
        return batch.ids.form is self.names.form(self)

    def find_run(self, run: ChangeRun) -> FoundRun | int:
        """Find the nodes of batches that come one after the other; or the first of them that may be refused."""
        named = self.names.name(self, run.batch)
        if isinstance(placed := place_ids(run, named), int):
            return placed
        bounds, per_edge = run.bounds, run.batch.per_edge
        new, overridden, labelled, edges, removed_edges, removed = (
            placed[start:end] for start, end in pairwise(bounds)
        )
        folded, rows = fold_rows(new, overridden, run.batch.features)
        ends = slice(None, None, per_edge - 1)
        found = FoundNodes(
            new,
            folded,
            labelled,
            edges.reshape(-1, per_edge)[:, ends],
            removed_edges.reshape(-1, per_edge)[:, ends],
            removed,
            edge_records=run.edge_records(),
            edge_features=run.batch.edge_features,
            edge_times=run.batch.edge_times,
        )
        completed = self.names.complete(self, run, named, found)
        if self.payloads and (problem := payload_problem(self.payloads, run.batch, completed.relations)) is not None:
            return int(run.edge_records().added[problem.edge])
        return FoundRun(msgspec.structs.replace(run.batch, features=rows), completed)

    def apply(self, found: FoundNodes) -> Effect:
        """Apply what `find` or `find_run` found right."""
        self._add(found)
        changes = EntryChanges.joined(self._entry_changes(found), found)
        changed, replaced = self._change_by_relation(changes, self._add_payload(found))
        is_removed = changes.kinds == REMOVED
        added, removed = changes.entries[changed & ~is_removed], changes.entries[changed & is_removed]
        unchanged = changes.unchanged(changed | replaced, found)
        if len(found.removed):
            self._leave(found.removed)
            own = self.lists.entries_of(self.places.lists_of(found.removed))
            removed = np.concatenate((removed, self._remove_entries(own, self.entries_reading(found.removed))))
        return Effect(added, removed, unchanged, changes.entries[replaced])

    def follow_nodes(self, found: FoundNodes) -> None:
        """Let nodes come and go as in the graph that the batch was applied to. Lists follow on their own
        (`LivingLists.follow`), those of new nodes before."""
        self._add(found)
        self._leave(found.removed)

    def _add(self, found: FoundNodes) -> None:
        if len(found.new):
            counts = np.bincount(self.places.kinds_of(found.new), minlength=len(self.ids_of)).tolist()
            for ids, new, count in zip(self.ids_of, found.new_ids, counts, strict=True):
                if count:
                    ids.add(new, count)

    def _leave(self, nodes: np.ndarray) -> None:
        kinds = self.places.kinds_of(nodes)
        for kind in np.unique(kinds).tolist():
            self.ids_of[kind].remove(nodes[kinds == kind] - self.places.first_nodes[kind])

    def _entry_changes(self, found: FoundNodes) -> list[EntryChanges]:
        """What becomes of the edges that come, and then of those that leave: entries that name lists in place of
        readers."""
        parts = []
        for edges, numbers, adds in edge_changes(found):
            for relation, own in _by_relation(found.relations if adds else found.removed_relations):
                rules = self.places.rules[relation]
                given, of = entries_of_edges(edges[own], rules), numbers[own]
                parts.append(self._changes_by(relation, given.entries, of[given.edges], adds=adds))
                for reverse in self.places.reverses[relation]:
                    ends = edges[own]
                    goes = np.ones(len(ends), np.bool_)
                    if rules.self_loops is SelfLoops.REMOVE:
                        goes = ends[:, 0] != ends[:, 1]
                    parts.append(self._changes_by(reverse, ends[goes], of[goes], adds=adds, count=False))
        return parts

    def _changes_by(
        self, relation: int, pairs: np.ndarray, edges: np.ndarray, *, adds: bool, count: bool = True
    ) -> EntryChanges:
        """What becomes of lists by the relation. `pairs`: (reader, sender); `edges`: the number of each one's edge."""
        entries = np.stack((self.places.list_by(relation, pairs[:, 0]), pairs[:, 1]), axis=1)
        is_merged = self.places.rules[relation].duplicates is Duplicates.MERGE
        kind = kind_of_change(adds=adds, is_merged=is_merged)
        return EntryChanges.alike(entries, kind, edges, relation, count=count)

    def _add_payload(self, found: FoundNodes) -> np.ndarray:
        """Rows of payload of the edges that come, and -1 for those that leave: int32 [edges]; [0]: no edge has any."""
        if not self.payloads:
            return np.zeros(0, np.int32)
        rows = np.full(len(found.edges) + len(found.removed_edges), -1, np.int32)
        for relation, own in _by_relation(found.relations) if len(found.edges) else ():
            if (payload := self.payloads[relation]) is not None:
                numbers = np.arange(len(found.edges))[own]
                features = found.edge_features[own] if payload.columns else found.edge_features
                times = found.edge_times[own] if payload.time_column else found.edge_times
                rows[numbers] = payload.add(features, times, len(numbers))
        return rows

    def _change_by_relation(self, changes: EntryChanges, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which entries came or left, and which stay and have other payload: bool [entries] each. `rows`: of payload,
        of each edge."""
        replaced = np.zeros(len(changes.entries), np.bool_)
        if not self.payloads:
            return self._change_entries(changes.entries, changes.kinds), replaced
        changed = replaced.copy()
        # A list is of one relation, so that the order of relations does not count.
        for relation in np.unique(changes.relations).tolist():
            own = np.flatnonzero(changes.relations == relation)
            payload, has_other = self.payloads[relation], np.zeros(len(own), np.bool_)
            times = np.zeros(0, np.int64) if payload is None else payload.times
            given = PayloadChange(rows[changes.edges[own]], times, has_other)
            changed[own] = self._change_entries(changes.entries[own], changes.kinds[own], given)
            replaced[own] = has_other
        return changed, replaced

    def _change_entries(
        self, entries: np.ndarray, kinds: np.ndarray, payload: PayloadChange | None = None
    ) -> np.ndarray:
        """As `LivingLists.change`, of all lists."""
        if not len(entries):
            return np.zeros(0, np.bool_)
        changed = self.lists.change(entries, kinds, payload)
        if self.readers is not None:
            reversed_ = np.ascontiguousarray(entries[changed, ::-1])
            self.readers.change(reversed_, np.minimum(kinds[changed], ADDED))
        return changed

    def _remove_entries(self, own: np.ndarray, reading: np.ndarray) -> np.ndarray:
        """Remove what nodes that leave read, and what reads them; the entries that were there."""
        # An entry between two of the nodes is in both. From the ends of lists on, where nothing has to move up.
        entries = np.ascontiguousarray(np.concatenate((own, reading))[::-1])
        return np.asarray(entries[self._change_entries(entries, np.full(len(entries), REMOVED, np.int8))])


def _by_relation(relations: np.ndarray) -> Iterator[tuple[int, np.ndarray | slice]]:
    """Each relation of these, which edges are of, and which edges those are. None: all are of the first one."""
    if not len(relations):
        yield 0, slice(None)
    for relation in np.unique(relations).tolist():
        yield relation, relations == relation


def no_room(message: str) -> ChangeRefusal:
    return ChangeRefusal(ChangeProblem.NO_ROOM, "body", message, "raise spec.updates.maxDelta")


def place_in_batch(batch: ChangeBatch, index: int) -> str:
    """Where the id stands that is `index` in their order, as a field of the JSON form."""
    counts, per_edge = batch.counts, batch.per_edge
    sizes = (counts.new_nodes, counts.overrides, counts.labelled, counts.edges, counts.removed_edges)
    for name, size in zip(_FIELDS, (*sizes, counts.removed_nodes), strict=True):
        is_edge = name in ("edges", "removedEdges")
        ids = per_edge * size if is_edge else size
        if index < ids:
            if is_edge:
                return f"{name}[{index // per_edge}][{index % per_edge}]"
            return f"{name}[{index}]" if name == "removedNodes" else f"{name}[{index}].id"
        index -= ids
    raise IndexError(index)


def refused(batch: ChangeBatch, index: int, problem: ChangeProblem, words: str, remedy: str) -> ChangeRefusal:
    """What is wrong with the id that is `index` in their order, which the message begins with."""
    return ChangeRefusal(problem, place_in_batch(batch, index), f"{batch.ids.shown(index)} {words}", remedy)


def first_repeated(values: np.ndarray) -> int:
    """The place of the first value that was there before; -1: there is none."""
    if len(values) < 2:
        return -1
    order = np.argsort(values, kind="stable")
    same = values[order[1:]] == values[order[:-1]]
    return int(order[1:][same].min()) if same.any() else -1
