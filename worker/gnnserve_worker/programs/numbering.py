"""Nodes and edges of a sample as programs are given them: each node once, numbered by type, seeds first.

A sample may have a node in several hops, and as a leaf beside. A program that adds self-loops, or counts edges, is
right alone where such a node is one: it has the list that was drawn of it where it stands first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import slot_of
from gnnserve_worker.sampling.neighbours import NeighbourSample

_NO_VIEWS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Relations:
    """Which lists nodes of each type have."""

    types: int
    stride: int
    """The most lists that a node has."""
    relation_of: np.ndarray
    """The relation of each type and slot, int64 [types · stride]; -1: none."""
    source_of: np.ndarray
    """The type that each relation reads, int64 [relations]."""


@lru_cache(64)
def relations_of(schema: GraphSchema) -> Relations:
    places = {kind.name: place for place, kind in enumerate(schema.types)}
    read = [[at for at, one in enumerate(schema.relations) if one.target == kind.name] for kind in schema.types]
    stride = max(map(len, read), default=0)
    padded = [at for relations in read for at in [*relations, *[-1] * (stride - len(relations))]]
    sources = [places[one.source] for one in schema.relations]
    return Relations(len(places), stride, np.array(padded, np.int64), np.array(sources, np.int64))


class NumberedSample(msgspec.Struct, frozen=True):
    nodes: tuple[np.ndarray, ...]
    """Names in the sample of the nodes of each type, int64, in the order of their numbers."""
    nodes_per_hop: np.ndarray
    """int64 [types, hops + 1]"""
    edges: tuple[np.ndarray, ...]
    """Edges of each relation: the numbers of the node that is read and of the one that reads it, int64 [2, edges]."""
    edges_per_hop: np.ndarray
    """int64 [relations, hops]"""
    places: tuple[np.ndarray, ...]
    """Places of the edges of each relation in the sample's `neighbours`, int64, ascending."""
    seeds: np.ndarray
    """The number of each seed among the nodes of its type, int64."""


def number_sample(sample: NeighbourSample, relations: Relations) -> NumberedSample:
    """`sample`: with leaves by the names that rows have for them, where it was drawn in a view."""
    hops, types, edges = len(sample.ends), relations.types, len(sample.neighbours)
    first_leaf, read_by = first_leaf_of(sample), len(relations.source_of)
    places = len(sample.nodes) + edges - first_leaf
    numbers = np.empty(places, np.int64)
    nodes, pairs, drawn = np.empty(places, np.int64), np.empty(2 * edges, np.int64), np.empty(edges, np.int64)
    nodes_per_hop, edges_per_hop = np.zeros((types, hops + 1), np.int64), np.zeros((read_by, hops), np.int64)
    _number(
        sample.nodes, sample.neighbours, sample.children, sample.segments, sample.type_ends,
        _NO_VIEWS if sample.views is None else sample.views, first_leaf,
        np.array(sample.ends, np.int64), relations.relation_of, relations.source_of, types, relations.stride,
        numbers, nodes, pairs, drawn, nodes_per_hop, edges_per_hop,
    )  # fmt: skip
    # In Python, which for one seed takes half the time of numpy's functions.
    of_types = [*pairwise(accumulate(nodes_per_hop.sum(1).tolist(), initial=0))]
    of_relations = [*pairwise(accumulate(edges_per_hop.sum(1).tolist(), initial=0))]
    return NumberedSample(
        tuple(nodes[start:end] for start, end in of_types),
        nodes_per_hop,
        tuple(pairs[2 * start : 2 * end].reshape(2, -1) for start, end in of_relations),
        edges_per_hop,
        tuple(drawn[start:end] for start, end in of_relations),
        numbers[seed_rows(sample)],
    )


def first_leaf_of(sample: NeighbourSample) -> int:
    """Where the neighbours of the last hop's rows begin, which have no rows of their own."""
    return int(sample.starts[sample.ends[-2]]) if len(sample.ends) > 1 else 0


def sources_of(sample: NeighbourSample) -> np.ndarray:
    """Row that each edge reads, int64; leaves stand behind the rows in the order of their edges."""
    first_leaf = first_leaf_of(sample)
    sources = sample.children[: len(sample.neighbours)].astype(np.int64)
    sources[first_leaf:] = len(sample.nodes) + np.arange(len(sample.neighbours) - first_leaf)
    return sources


def seed_rows(sample: NeighbourSample) -> np.ndarray:
    return np.arange(sample.ends[0]) if sample.seed_rows is None else sample.seed_rows


def kinds_of_seeds(sample: NeighbourSample, types: int) -> np.ndarray:
    """The place of each seed's type, int64: rows of a hop come type after type."""
    return np.searchsorted(sample.type_ends[:types], seed_rows(sample), side="right")


def own_weights(numbered: NumberedSample, starts: np.ndarray, of_rows: np.ndarray) -> np.ndarray:
    """What the nodes of the only type that have a list in the sample weigh themselves by, float32 [nodes]; 1 where the
    list is empty. `starts`: those of the sample; `of_rows`: by its rows."""
    own = np.ones(int(numbered.nodes_per_hop[0, :-1].sum()), np.float32)
    _own_weights(numbered.edges[0][1], numbered.places[0], starts, of_rows, own)
    return own


@kernel
def _own_weights(
    targets: np.ndarray, places: np.ndarray, starts: np.ndarray, of_rows: np.ndarray, own: np.ndarray
) -> None:
    """Edges of a target stand together, and targets in the order of their rows."""
    row = 0
    for edge in range(len(targets)):
        if edge == 0 or targets[edge] != targets[edge - 1]:
            while starts[row + 1] <= places[edge]:
                row += 1
            own[targets[edge]] = of_rows[row]


@kernel
def _number(
    rows: np.ndarray, neighbours: np.ndarray, children: np.ndarray, segments: np.ndarray, type_ends: np.ndarray,
    views: np.ndarray, first_leaf: int, ends: np.ndarray, relation_of: np.ndarray, source_of: np.ndarray,
    types: int, stride: int,
    numbers: np.ndarray, nodes: np.ndarray, pairs: np.ndarray, drawn: np.ndarray,
    nodes_per_hop: np.ndarray, edges_per_hop: np.ndarray,
) -> None:  # fmt: skip
    """Fill in the number of each row and leaf; names, type after type; and of each relation, one behind the other, the
    sources and the targets of its edges, and where these are. Rows come hop by hop, type after type in each."""
    hops, count = len(ends), len(rows)
    places = len(numbers)
    size = 16
    while size < 2 * places:
        size *= 2
    known = np.full(size, -1, np.int64)
    found = np.empty(size, np.int64)
    first = np.empty(places, np.int64)
    kinds = np.empty(places, np.int64)
    hop, kind = 0, 0
    for row in range(count):
        while row >= type_ends[hop * types + kind]:
            kind += 1
            if kind == types:
                hop, kind = hop + 1, 0
        key = np.int64(rows[row])
        if len(views) > 0:
            key += np.int64(views[row]) << np.int64(32)
        _place(row, key, kind, hop, known, found, first, kinds, numbers, nodes_per_hop)
    first_of_last_hop = ends[hops - 2] if hops > 1 else 0
    for row in range(first_of_last_hop, count):
        kind = kinds[row]
        for slot in range(stride):
            segment = row * stride + slot
            for edge in range(segments[segment], segments[segment + 1]):
                key = np.int64(neighbours[edge])
                if len(views) > 0:
                    key += np.int64(views[row]) << np.int64(32)
                source = source_of[relation_of[kind * stride + slot]]
                place = count + edge - first_leaf
                _place(place, key, source, hops, known, found, first, kinds, numbers, nodes_per_hop)
    begins = np.zeros(types + 1, np.int64)
    for kind in range(types):
        begins[kind + 1] = begins[kind] + nodes_per_hop[kind].sum()
    for place in range(places):
        if first[place] == place:
            name = rows[place] if place < count else neighbours[first_leaf + place - count]
            nodes[begins[kinds[place]] + numbers[place]] = name
    hop = 0
    for row in range(count):
        while row >= ends[hop]:
            hop += 1
        if first[row] == row:
            for slot in range(stride):
                segment = row * stride + slot
                length = segments[segment + 1] - segments[segment]
                if length > 0:
                    edges_per_hop[relation_of[kinds[row] * stride + slot], hop] += length
    filled = np.zeros(len(source_of), np.int64)
    starts = np.zeros(len(source_of) + 1, np.int64)
    for relation in range(len(source_of)):
        starts[relation + 1] = starts[relation] + edges_per_hop[relation].sum()
    for row in range(count):
        if first[row] != row:
            continue
        for slot in range(stride):
            segment = row * stride + slot
            relation = relation_of[kinds[row] * stride + slot]
            for edge in range(segments[segment], segments[segment + 1]):
                place = int(children[edge]) if edge < first_leaf else count + edge - first_leaf
                start, total = starts[relation], starts[relation + 1] - starts[relation]
                at = filled[relation]
                pairs[2 * start + at] = numbers[place]
                pairs[2 * start + total + at] = numbers[row]
                drawn[start + at] = edge
                filled[relation] = at + 1


@inlined
def _place(
    place: int, key: np.int64, kind: int, hop: int, known: np.ndarray, found: np.ndarray, first: np.ndarray,
    kinds: np.ndarray, numbers: np.ndarray, nodes_per_hop: np.ndarray,
) -> None:  # fmt: skip
    """Give a row or a leaf the number that its node has, or the next one of its type, and note where the node stands
    for the first time. `key`: its name, and the view that it is seen in."""
    slot = slot_of(int(key), known)
    kinds[place] = kind
    if known[slot] == -1:
        known[slot], found[slot] = key, place
        first[place] = place
        number = 0
        for each in range(nodes_per_hop.shape[1]):
            number += nodes_per_hop[kind, each]
        numbers[place] = number
        nodes_per_hop[kind, hop] += 1
    else:
        first[place] = found[slot]
        numbers[place] = numbers[found[slot]]
