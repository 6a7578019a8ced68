"""Slow, obvious twins of the compiled samplers, in plain Python integers, lists and sets."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.graphs import neighbours_of

from gnnserve_worker.graph.store import Graph

_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """SplitMix64's finaliser, from Steele, Lea and Flood, OOPSLA 2014."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64
    return z ^ (z >> 31)


def stream(key: int, depth: int, slot: int) -> int:
    return mix(mix((key + (depth + 1) * _GOLDEN) & _64) ^ slot)


def choose(degree: int, count: int, state: int) -> list[int]:
    """Floyd's algorithm with a set."""
    chosen: list[int] = []
    for top in range(degree - count, degree):
        state = (state + _GOLDEN) & _64
        pick = ((mix(state) >> 32) * (top + 1)) >> 32
        chosen.append(top if pick in set(chosen) else pick)
    return chosen


def children_of(graph: Graph, node: int, fanout: int, key: int, depth: int, slot: int) -> list[int]:
    neighbours = neighbours_of(graph, node)
    if fanout < 0 or len(neighbours) <= fanout:
        return neighbours
    return [neighbours[i] for i in choose(len(neighbours), fanout, stream(key, depth, slot))]


@dataclass
class TreeReference:
    ids: list[list[int]]
    counts: list[list[int]] = field(default_factory=list)


def sample_tree(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int) -> TreeReference:
    tree = TreeReference([seeds])
    for depth, fanout in enumerate(fanouts):
        level: list[int] = []
        counts = []
        for slot, node in enumerate(tree.ids[-1]):
            children = [] if node < 0 else children_of(graph, node, fanout, key, depth, slot)
            level += children + [-1] * (fanout - len(children))
            counts.append(len(children))
        tree.ids.append(level)
        tree.counts.append(counts)
    return tree


@dataclass
class SubgraphReference:
    nodes: list[int]
    ends: list[int]
    children: list[list[int]]
    """Global ids of the sampled neighbours of every expanded node."""


def sample_subgraph(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int) -> SubgraphReference:
    nodes = list(dict.fromkeys(seeds))
    found = SubgraphReference(nodes, [len(nodes)], [])
    frontier = list(nodes)
    for depth, fanout in enumerate(fanouts):
        fresh: list[int] = []
        for place, node in enumerate(frontier):
            children = children_of(graph, node, fanout, key, depth, place)
            found.children.append(children)
            for child in children:
                if child not in nodes:
                    nodes.append(child)
                    fresh.append(child)
        found.ends.append(len(nodes))
        frontier = fresh
    return found
