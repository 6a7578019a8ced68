"""What a graph is after a log of changes, plainly: dictionaries, and an answer for each node at each offset.

The network of these runs is made by hand (`revision.py`), so that an answer tells what it was computed from: a node's
own value, the mean of its neighbours' values, and the mean of its neighbours' means.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Edge = tuple[int, int]
Answer = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that are applied together, in the order of these fields."""

    new: tuple[tuple[int, float], ...] = ()
    """New nodes and their values."""
    overrides: tuple[tuple[int, float], ...] = ()
    edges: tuple[Edge, ...] = ()
    removed_edges: tuple[Edge, ...] = ()
    removed: tuple[int, ...] = ()

    @property
    def items(self) -> int:
        return sum(map(len, (self.new, self.overrides, self.edges, self.removed_edges, self.removed)))


@dataclass(frozen=True, slots=True)
class FirstGraph:
    """What there is before any change. Edges go both ways, and each is there once."""

    values: Mapping[int, float]
    edges: tuple[Edge, ...]


@dataclass(slots=True)
class PlainGraph:
    values: dict[int, float]
    neighbours: dict[int, set[int]]

    @staticmethod
    def of(first: FirstGraph) -> PlainGraph:
        graph = PlainGraph(dict(first.values), {node: set() for node in first.values})
        for edge in first.edges:
            graph._link(edge)
        return graph

    def refuses(self, batch: Batch) -> bool:
        """Whether the batch as a whole stays without effect."""
        new = [node for node, _ in batch.new]
        overridden = [node for node, _ in batch.overrides]
        if any(node in self.values for node in new) or any(map(_repeats, (new, overridden, batch.removed))):
            return True
        ends = [end for edge in (*batch.edges, *batch.removed_edges) for end in edge]
        known = self.values.keys() | set(new)
        return not known.issuperset((*overridden, *ends, *batch.removed))

    def apply(self, batch: Batch) -> set[int]:
        """Apply a batch that is not refused; the nodes whose answers may be others."""
        for node, value in batch.new:
            self.values[node], self.neighbours[node] = value, set()
        for node, value in batch.overrides:
            self.values[node] = value
        for edge in batch.edges:
            self._link(edge)
        changed = {end for edge in (*batch.edges, *batch.removed_edges) for end in edge}
        changed.update(node for node, _ in (*batch.new, *batch.overrides))
        for source, target in batch.removed_edges:
            self.neighbours[source].discard(target)
            self.neighbours[target].discard(source)
        for node in batch.removed:
            changed |= self.neighbours[node] | {node}
            for other in self.neighbours.pop(node):
                self.neighbours[other].discard(node)
            del self.values[node]
        # Those that read a mean of which something changed. Ends of edges that went are in it already.
        near = changed.union(*(self.neighbours[node] for node in changed if node in self.values))
        return near.union(*(self.neighbours[node] for node in near if node in self.values))

    def answer(self, node: int) -> Answer | None:
        """None: there is no such node."""
        if node not in self.values:
            return None
        near = self.neighbours[node]
        return self.values[node], self._mean(node), _mean([self._mean(other) for other in near])

    def _mean(self, node: int) -> float:
        return _mean([self.values[other] for other in self.neighbours[node]])

    def _link(self, edge: Edge) -> None:
        source, target = edge
        self.neighbours[source].add(target)
        self.neighbours[target].add(source)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _repeats(nodes: Sequence[int]) -> bool:
    return len(set(nodes)) < len(nodes)


@dataclass(slots=True)
class Timeline:
    """Every answer that a node ever had."""

    offsets: list[int] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)

    def between(self, low: int, high: int) -> Iterator[Answer | None]:
        """Answers at the offsets from `low` to `high`."""
        first = max(0, bisect_right(self.offsets, low) - 1)
        yield from self.answers[first : bisect_right(self.offsets, high)]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a log makes of a graph, at every offset."""

    timelines: Mapping[int, Timeline]
    refused: frozenset[int]
    """Offsets of batches without effect."""
    last: PlainGraph

    def answers_between(self, node: int, low: int, high: int) -> list[Answer | None]:
        found = self.timelines.get(node)
        return [None] if found is None else [*found.between(low, high)]


def replay(first: FirstGraph, batches: Iterable[Batch]) -> Replay:
    graph, refused = PlainGraph.of(first), set()
    timelines = {node: Timeline([0], [graph.answer(node)]) for node in graph.values}
    for offset, batch in enumerate(batches, start=1):
        if graph.refuses(batch):
            refused.add(offset)
            continue
        for node in graph.apply(batch):
            timeline = timelines.setdefault(node, Timeline([0], [None]))
            answer = graph.answer(node)
            if answer != timeline.answers[-1]:
                timeline.offsets.append(offset)
                timeline.answers.append(answer)
    return Replay(timelines, frozenset(refused), graph)
