"""Nodes and edges of a sample as programs are given them: each node once, numbered by type, seeds first.

A sample may have a node in several hops, and as a leaf beside. A program that adds self-loops, or counts edges, is
right alone where such a node is one: it has the list that was drawn of it where it stands first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_worker.sampling.neighbours import NeighbourSample

_VIEW = 1 << 32
"""More than any name of a node in a sample."""


@dataclass(frozen=True, slots=True)
class Relations:
    """Which lists nodes of each type have."""

    types: int
    stride: int
    """The most lists that a node has."""
    relation_of: tuple[int, ...]
    """The relation of each type and slot, [types · stride]; -1: none."""
    source_of: tuple[int, ...]
    """The type that each relation reads."""


@lru_cache(64)
def relations_of(schema: GraphSchema) -> Relations:
    places = {kind.name: place for place, kind in enumerate(schema.types)}
    read = [[at for at, one in enumerate(schema.relations) if one.target == kind.name] for kind in schema.types]
    stride = max(map(len, read), default=0)
    padded = tuple(at for relations in read for at in [*relations, *[-1] * (stride - len(relations))])
    return Relations(len(places), stride, padded, tuple(places[one.source] for one in schema.relations))


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
    rows, hops = len(sample.nodes), len(sample.ends)
    read_by = np.repeat(np.arange(rows), np.diff(sample.starts))
    row_types, by_relation = _types_of_rows(sample, relations), _relations_of_edges(sample, relations)
    first_leaf = first_leaf_of(sample)
    leaves = sample.neighbours[first_leaf:]
    names = np.concatenate([sample.nodes, leaves]).astype(np.int64)
    source_of = np.array(relations.source_of, np.int64)
    types = np.concatenate([row_types, source_of[by_relation[first_leaf:]]])
    hop = np.full(len(names), hops)
    hop[:rows] = np.repeat(np.arange(hops), np.diff(sample.ends, prepend=0))
    first = _first_of_each(names, read_by[first_leaf:], sample.views)
    is_first = first == np.arange(len(first))
    numbers = np.empty(len(names), np.int64)
    nodes, per_hop = [], np.empty((relations.types, hops + 1), np.int64)
    for kind in range(relations.types):
        members = np.flatnonzero(is_first & (types == kind))
        numbers[members] = np.arange(len(members))
        nodes.append(names[members])
        per_hop[kind] = np.bincount(hop[members], minlength=hops + 1)
    numbers = numbers[first]
    sources = sources_of(sample)
    is_kept = is_first[read_by]
    edges, places, edges_per_hop = [], [], np.empty((len(source_of), hops), np.int64)
    for relation in range(len(source_of)):
        kept = np.flatnonzero(is_kept & (by_relation == relation))
        edges.append(np.stack([numbers[sources[kept]], numbers[read_by[kept]]]))
        places.append(kept)
        edges_per_hop[relation] = np.bincount(hop[read_by[kept]], minlength=hops)
    return NumberedSample(tuple(nodes), per_hop, tuple(edges), edges_per_hop, tuple(places), numbers[seed_rows(sample)])


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


def _types_of_rows(sample: NeighbourSample, relations: Relations) -> np.ndarray:
    rows = np.diff(sample.type_ends, prepend=0)
    return np.repeat(np.arange(len(rows)) % relations.types, rows)


def _relations_of_edges(sample: NeighbourSample, relations: Relations) -> np.ndarray:
    lists = np.repeat(np.arange(len(sample.segments) - 1), np.diff(sample.segments))
    row, slot = lists // relations.stride, lists % relations.stride
    return np.array(relations.relation_of, np.int64)[_types_of_rows(sample, relations)[row] * relations.stride + slot]


def _first_of_each(names: np.ndarray, read_by: np.ndarray, views: np.ndarray | None) -> np.ndarray:
    """Where each node, by its name and the view that it is seen in, stands for the first time. `read_by`: the rows that
    read the leaves."""
    keys = names if views is None else names + _VIEW * np.concatenate([views, views[read_by]]).astype(np.int64)
    _, places, which = np.unique(keys, return_index=True, return_inverse=True)
    first: np.ndarray = places[which]
    return first
