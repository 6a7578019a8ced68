"""Slow, obvious twins of the compiled samplers, in plain Python integers, lists and sets."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.graphs.graphs import neighbours_of

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
    """A few out of many: the first distinct draws. Otherwise Floyd's algorithm with a set."""
    chosen: list[int] = []
    if count <= 64 and degree >= 2 * count:
        while len(chosen) < count:
            state = (state + _GOLDEN) & _64
            pick = ((mix(state) >> 32) * degree) >> 32
            if pick not in chosen:
                chosen.append(pick)
        return chosen
    for top in range(degree - count, degree):
        state = (state + _GOLDEN) & _64
        pick = ((mix(state) >> 32) * (top + 1)) >> 32
        chosen.append(top if pick in set(chosen) else pick)
    return chosen


def children_of(graph: Graph, node: int, fanout: int, key: int, depth: int, slot: int) -> list[int]:
    """`slot` picks the stream of draws: the node itself for serving, its place in the frontier for training."""
    neighbours = neighbours_of(graph, node)
    if fanout < 0 or len(neighbours) <= fanout:
        return neighbours
    return [neighbours[i] for i in choose(len(neighbours), fanout, stream(key, depth, slot))]


@dataclass
class NeighbourReference:
    ends: list[int]
    nodes: list[int]
    neighbours: list[list[int]]
    """Global ids, of each row."""
    children: list[list[int]]
    """Rows of the neighbours, of each row but those of the last hop."""
    seed_rows: list[int]


def sample_neighbours(
    graph: Graph, seeds: list[int], fanouts: tuple[int, ...], key: int, *, share: bool
) -> NeighbourReference:
    frontier = list(dict.fromkeys(seeds)) if share else list(seeds)
    found = NeighbourReference(
        [], [], [], [], [frontier.index(seed) for seed in seeds] if share else list(range(len(seeds)))
    )
    for depth, fanout in enumerate(fanouts):
        found.nodes += frontier
        found.ends.append(len(found.nodes))
        drawn = [children_of(graph, node, fanout, key, depth, node) for node in frontier]
        found.neighbours += drawn
        if depth == len(fanouts) - 1:
            break
        met = [child for children in drawn for child in children]
        frontier = list(dict.fromkeys(met)) if share else met
        first = found.ends[-1]
        rows = iter(range(first, first + len(met)))
        place = {node: first + i for i, node in enumerate(frontier)}
        found.children += [[place[child] if share else next(rows) for child in children] for children in drawn]
    return found


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
