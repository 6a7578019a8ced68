"""A small graph that is made up, with rows of the user's: levels of nodes, each of which reads the next level.

So it is known how far a node is from the first level, and no node of the user's graph is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from gnnserve_api.files.programs import MAX_HOPS, RelationKey
from gnnserve_describe.graph import Blocks, GraphTensors

PROBED_HOPS = (8, 32, MAX_HOPS)
"""Most hops that are measured, over a graph of as many levels: a larger one is made where a module reads further."""
_WIDTH = 5
"""Nodes of each type and level."""
_SEEDS = 3
"""Nodes of the first level that are scored; the others read nodes that these read, too."""
_APART = 7
"""Nodes of each type that the others are not joined to; some types have a few more."""


@dataclass(frozen=True, slots=True)
class ProbeShape:
    """Properties of the user's graph that the made-up one shares."""

    reverses: Mapping[RelationKey, RelationKey]
    """Relations that have each edge of another one the other way round; a relation may be its own."""
    with_loops: frozenset[RelationKey]
    """Relations that have edges from a node to itself."""
    is_sorted: bool
    """Whether edges stand in the order of the nodes that read them."""


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    graph: GraphTensors
    seeds: Mapping[str, np.ndarray]
    """Nodes of each type at the first level."""
    joined: Mapping[str, int]
    """How many nodes of each type are joined to each other; those behind them are apart."""
    most_hops: int
    """Most hops that can be measured over it."""

    def apart(self, kind: str) -> tuple[int, int]:
        """A node that reads none, and one that reads one other, which reads none."""
        return self.joined[kind] + _APART - 1, self.joined[kind] + _APART - 3


def shape_of(graph: GraphTensors) -> ProbeShape:
    most = max(graph.nodes(kind) for kind in graph.types)
    pairs = {key: edges.numpy() for key, edges in graph.edges.items()}
    numbers = {key: np.unique(found[0] * most + found[1]) for key, found in pairs.items()}
    reverses = {}
    for key, found in pairs.items():
        turned = np.unique(found[1] * most + found[0])
        for other, theirs in numbers.items():
            if (other.source, other.target) == (key.target, key.source) and np.array_equal(theirs, turned):
                reverses[key] = other
                break
    loops = {key for key, found in pairs.items() if key.source == key.target and (found[0] == found[1]).any()}
    is_sorted = all(bool((np.diff(found[1]) >= 0).all()) for found in pairs.values())
    return ProbeShape(reverses, frozenset(loops), is_sorted)


def make_probe(like: GraphTensors, shape: ProbeShape, seed: int, levels: int = PROBED_HOPS[0] + 4) -> Probe:
    """`like`: the user's graph, whose rows are drawn for nodes and edges."""
    random = np.random.default_rng(seed)
    joined = dict.fromkeys(like.types, _WIDTH * levels)
    edges: dict[RelationKey, np.ndarray] = {}
    for key in like.edges:
        if key in edges:
            continue
        edges[key] = _edges(random, joined[key.source], joined[key.target], levels)
        other = shape.reverses.get(key)
        if other == key:
            edges[key] = np.concatenate([edges[key], edges[key][::-1]], axis=1)
        elif other is not None:
            behind = _edges(random, joined[other.source], joined[other.target], levels)
            edges[other] = np.concatenate([behind, edges[key][::-1]], axis=1)
            edges[key] = np.concatenate([edges[key], behind[::-1]], axis=1)
        if key in shape.with_loops:
            some = random.choice(joined[key.source], joined[key.source] // 3, replace=False)
            edges[key] = np.concatenate([edges[key], np.stack([some, some])], axis=1)
    # As many of no two types, so that what is of one is not taken for the other's.
    nodes = {kind: count + _APART + place for place, (kind, count) in enumerate(joined.items())}
    # Nodes of a sample have other numbers than here, which nothing may depend on.
    numbers = {kind: np.concatenate([random.permutation(count), np.arange(count, nodes[kind])])
               for kind, count in joined.items()}  # fmt: skip
    for key, ends in edges.items():
        edges[key] = np.stack([numbers[key.source][ends[0]], numbers[key.target][ends[1]]])
    graph = GraphTensors(
        {kind: _drawn(random, blocks, nodes[kind]) for kind, blocks in like.features.items()},
        # In the user's order, which some layers depend on (HGTConv).
        {key: torch.from_numpy(np.ascontiguousarray(edges[key])) for key in like.edges},
        {key: _drawn(random, blocks, edges[key].shape[1]) for key, blocks in like.payload.items()},
    )
    graph = graph.sorted_by_reader() if shape.is_sorted else graph
    return Probe(graph, {kind: found[:_SEEDS] for kind, found in numbers.items()}, joined, levels - 4)


def _edges(random: np.random.Generator, sources: int, targets: int, levels: int) -> np.ndarray:
    """Each node of a level reads one or two nodes of the next level, the last one all; nodes that are apart read each
    other."""
    first = np.arange((levels - 1) * _WIDTH)
    level = first // _WIDTH + 1
    read = level * _WIDTH + random.integers(0, _WIDTH, len(first))
    twice = np.flatnonzero(random.random(len(first)) < 0.6)
    more = level[twice] * _WIDTH + (read[twice] + random.integers(1, _WIDTH, len(twice))) % _WIDTH
    last = np.repeat(first[_WIDTH - 1 :: _WIDTH], _WIDTH)
    whole = (last // _WIDTH + 1) * _WIDTH + np.tile(np.arange(_WIDTH), levels - 1)
    is_new = ~np.isin(last * sources + whole, np.concatenate([first * sources + read, first[twice] * sources + more]))
    apart = np.arange(_APART - 2)
    return np.concatenate(
        [
            np.stack([read, first]),
            np.stack([more, first[twice]]),
            np.stack([whole[is_new], last[is_new]]),
            np.stack([sources + apart + 1, targets + apart]),
        ],
        axis=1,
    )


def _drawn(random: np.random.Generator, blocks: Blocks, rows: int) -> Blocks:
    """Rows of the user's; in all blocks of the same."""
    if not blocks:
        return {}
    there = len(next(iter(blocks.values())))
    chosen = torch.from_numpy(random.choice(there, rows, replace=rows > there) if there else np.zeros(0, np.int64))
    if not there:
        return {name: torch.zeros((rows, *block.shape[1:]), dtype=block.dtype) for name, block in blocks.items()}
    return {name: block[chosen] for name, block in blocks.items()}
