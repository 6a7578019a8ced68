"""What a request brings to a graph of several types, arranged for sampling: as `overlay.py`, relation by relation.

Stored nodes are called by their number, 0 to N - 1, and N + k is the k-th new node of the request. In what is arranged
an overlay node has an entry for the list of each slot, `stride` of them (`sampling/relations.py`), so that the j-th is
called N + j · stride there. Edges become entries by the rules of their relation: a reverse that importing added gains
the edge too, and a relation within a type that goes both ways lets either end read the other.

Requests bring a few nodes and edges, so this is not compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.graph.typed_lists import TypedGraph

MOST_EMBEDDED = 4096
"""Most columns of an embedding: those of the widest hidden layer."""
_Entries = dict[tuple[int, int], set[int] | list[int]]
"""By reader and slot: the nodes that its list gains."""


def arrange_typed_overlay(
    graph: TypedGraph, features: np.ndarray, new_types: np.ndarray, overridden: np.ndarray, edges: np.ndarray,
    seeds: np.ndarray,
) -> tuple[Overlay, np.ndarray]:  # fmt: skip
    """Arrange an overlay; returns it, and the seeds in its numbering (int64).

    `features`: float32 [new nodes and overridden, columns of the widest type], in this order. `new_types`: places of
    the types of new nodes, int64. `overridden`: distinct numbers of stored nodes, int64. `edges`: the place of the
    relation, source and target, int64 [edges, 3]; these and `seeds`, int64, are numbers, or N + k for the k-th new
    node. All are in range and of the right types; nothing is checked.
    """
    typed, stored = graph.typed, graph.nodes
    stride, new_nodes = int(graph.layout[1]), len(new_types)
    origins = [-1 - kind for kind in new_types.tolist()] + overridden.tolist()
    places = {origin: new_nodes + place for place, origin in enumerate(overridden.tolist())}
    entries: _Entries = {}
    for relation, reader, sender in _readings(typed, edges):
        if reader < stored and reader not in places:
            places[reader] = len(origins)
            origins.append(reader)
        merges = typed.relations[relation].merges
        slot = _slot_of(typed, relation)
        if merges and reader < stored and sender < stored and _lists(graph, reader, slot, sender):
            continue
        place = places[reader] if reader < stored else reader - stored
        gained = entries.setdefault((place, slot), set() if merges else [])
        gained.add(sender) if isinstance(gained, set) else gained.append(sender)
    nodes = len(origins) * stride
    listed: list[int] = []
    starts = []
    for place in range(len(origins)):
        for slot in range(stride):
            starts.append(len(listed))
            # In order, so that what is drawn does not depend on the order of the edges in the request.
            listed += sorted(_called(one, stored, stride, {}) for one in entries.get((place, slot), ()))
    starts.append(len(listed))
    of_entries = np.full(nodes, -1, dtype=np.int64)
    of_entries[::stride] = origins
    header = [nodes, len(listed), len(features) * stride, len(overridden), len(origins) - new_nodes]
    packed = np.concatenate([header, of_entries, starts, listed]).astype(np.int64)
    arranged = np.array([_called(seed, stored, stride, places) for seed in seeds.tolist()], np.int64)
    features = np.ascontiguousarray(features, np.float32)
    return Overlay(new_nodes, features, packed, nodes, len(listed), stride), arranged


def arrange_stand_in(
    graph: TypedGraph, node: int, width: int, lists: Sequence[np.ndarray]
) -> tuple[Overlay, np.ndarray]:
    """A new node with the rows of a stored one and lists of its own, which no other node reads; returns it as an
    overlay, and as the one seed (int64).

    `width`: columns of a row of features. `lists`: numbers of stored nodes, ascending, for each relation that the type
    of `node` reads, in their order.
    """
    stride, kind = int(graph.layout[1]), int(np.searchsorted(graph.typed.first_nodes, node, side="right")) - 1
    lengths = [len(listed) for listed in lists] + [0] * (stride - len(lists))
    origins = np.full(stride, -1, np.int64)
    origins[0] = -1 - kind
    entries = sum(lengths)
    header = [stride, entries, stride, 0, 0]
    packed = np.concatenate([header, origins, [0], np.cumsum(lengths), *lists]).astype(np.int64)
    features = np.zeros((1, width), np.float32)
    stands_for = np.array([node], np.int64)
    return Overlay(1, features, packed, stride, entries, stride, stands_for), np.array([graph.nodes], np.int64)


def smallest_typed_overlay(graph: TypedGraph) -> Overlay:
    """One new node of the first type, and one of each relation that it reads; for kernels that are to be compiled."""
    typed, nodes = graph.typed, graph.nodes
    read = [place for place, relation in enumerate(typed.relations) if relation.target == typed.target.name]
    edges = [(place, typed.first_nodes[typed.place_of(typed.relations[place].source)], nodes) for place in read]
    features = np.zeros((1, max(1, *(kind.features or MOST_EMBEDDED for kind in typed.types))), np.float32)
    nothing = np.zeros(0, np.int64)
    overlay, _ = arrange_typed_overlay(
        graph, features, np.zeros(1, np.int64), nothing, np.array(edges, np.int64).reshape(-1, 3), np.array([nodes])
    )
    return overlay


def _readings(typed: TypedGraphManifest, edges: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Relation, reader and sender of each entry that the edges become."""
    # More than one where the source lists a reverse itself, under another name or several.
    reverses: dict[tuple[str, str, str], list[int]] = {}
    for place, one in enumerate(typed.relations):
        if one.reverse_of is not None:
            reverses.setdefault((one.target, one.reverse_of, one.source), []).append(place)
    for relation, source, target in edges.tolist():
        described = typed.relations[relation]
        yield relation, target, source
        if described.both_ways and source != target:
            yield relation, source, target
        for reverse in reverses.get((described.source, described.name, described.target), ()):
            yield reverse, source, target


def _slot_of(typed: TypedGraphManifest, relation: int) -> int:
    """The place of a relation among those that its target type reads, which stand together."""
    target = typed.relations[relation].target
    return sum(one.target == target for one in typed.relations[:relation])


def _lists(graph: TypedGraph, reader: int, slot: int, sender: int) -> bool:
    """Whether the stored list, which is ascending, has the sender."""
    listed = graph.one_list(graph.first_list_of(reader) + slot)
    place = int(np.searchsorted(listed, sender))
    return place < len(listed) and int(listed[place]) == sender


def _called(node: int, stored: int, stride: int, places: dict[int, int]) -> int:
    """The number of a node in what is arranged. `places`: those of stored nodes that are overlay nodes."""
    if node >= stored:
        return stored + (node - stored) * stride
    place = places.get(node)
    return node if place is None else stored + place * stride
