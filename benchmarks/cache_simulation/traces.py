"""Request traces: the seeds of each request in order, and the nodes that they make the worker read.

Generators model the traffic of a service: uniform targets; a fixed popularity (Zipf); a hot subgraph that most requests
ask for and that moves all at once; popularity that drifts. Equal arguments make equal traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.growth import enlarged
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.progress import Progress, ProgressListener, silent
from gnnserve_worker.sampling.neighbours import Scratch, sample_neighbours

_RECURRING = 3
"""Hot subgraphs that take turns in the recurring trace."""
_REPORTED = 256
"""Requests that are expanded between two reports of progress."""


class TraceKind(StrEnum):
    UNIFORM = "uniform"
    """Every node is as likely a seed as any other."""
    ZIPF = "zipf"
    """The node of popularity rank r is asked for with a probability that falls as r^-exponent, for good."""
    MOVING = "moving"
    """Most seeds are of a hot subgraph, which moves to another part of the graph all at once."""
    RECURRING = "recurring"
    """Like moving, among three hot subgraphs in turn, which come back."""
    DRIFTING = "drifting"
    """Like zipf, while nodes pass on their ranks to others, a few after each request."""


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    seeds: np.ndarray
    """Node ids of all requests, concatenated, int64."""
    starts: np.ndarray
    """Position in `seeds` where each request begins, int64 [requests + 1]."""
    moves: tuple[int, ...] = ()
    """Numbers of the requests before which the hot set moved."""
    moving: bool = False
    """Whether popularity changes during the trace."""

    @property
    def requests(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True, slots=True)
class TraceSettings:
    requests: int = 10_000
    seeds: int = 16
    """Seeds per request."""
    seed: int = 1
    exponent: float = 1.0
    """Exponent of popularity, for zipf and drifting."""
    hot_nodes: int = 1_000
    """Nodes of the hot subgraph, for moving and recurring."""
    hot_share: float = 0.9
    """Share of the seeds that are drawn from the hot subgraph."""
    moves: int = 5
    """How often the hot subgraph moves, at equal distances; for drifting, how often each rank is passed on, on
    average."""


def build_trace(kind: TraceKind, graph: Graph, settings: TraceSettings) -> Trace:
    # A stream of its own per kind, so that two traces of one seed have nothing in common.
    draw = np.random.default_rng([settings.seed, *kind.encode()])
    count = settings.requests * settings.seeds
    starts = np.arange(0, count + 1, settings.seeds, dtype=np.int64)
    match kind:
        case TraceKind.UNIFORM:
            return Trace(kind, draw.integers(graph.nodes, size=count), starts)
        case TraceKind.ZIPF:
            names = draw.permutation(graph.nodes)
            return Trace(kind, names[_zipf_ranks(graph.nodes, settings.exponent, count, draw)], starts)
        case TraceKind.MOVING | TraceKind.RECURRING:
            phases = settings.moves + 1
            subgraphs = phases if kind is TraceKind.MOVING else min(phases, _RECURRING)
            hot = [hot_subgraph(graph, settings.hot_nodes, draw) for _ in range(subgraphs)]
            begins = [phase * settings.requests // phases for phase in range(phases + 1)]
            seeds = _hot_seeds(graph.nodes, hot, begins, settings, draw)
            return Trace(kind, seeds, starts, tuple(begins[1:-1]), settings.moves > 0)
        case TraceKind.DRIFTING:
            names = draw.permutation(graph.nodes)
            ranks = _zipf_ranks(graph.nodes, settings.exponent, count, draw)
            swaps = settings.moves * graph.nodes / (2 * max(1, settings.requests))
            seeds = _drifting_seeds(names, ranks, settings.seeds, swaps, draw)
            return Trace(kind, seeds, starts, (), settings.moves > 0)


def _zipf_ranks(nodes: int, exponent: float, count: int, draw: np.random.Generator) -> np.ndarray:
    cumulated = np.cumsum(np.arange(1, nodes + 1, dtype=np.float64) ** -exponent)
    ranks: np.ndarray = np.searchsorted(cumulated, draw.random(count) * cumulated[-1], side="right")
    np.minimum(ranks, nodes - 1, out=ranks)
    return ranks


def _hot_seeds(
    nodes: int, hot: Sequence[np.ndarray], begins: Sequence[int], settings: TraceSettings, draw: np.random.Generator
) -> np.ndarray:
    """Seeds, of which from request begins[i] on `hot_share` are drawn from hot[i] (i modulo the number of
    subgraphs)."""
    seeds = draw.integers(nodes, size=settings.requests * settings.seeds)
    for phase, (begin, end) in enumerate(pairwise(begins)):
        names = hot[phase % len(hot)]
        places = slice(begin * settings.seeds, end * settings.seeds)
        count = places.stop - places.start
        is_hot = draw.random(count) < settings.hot_share
        seeds[places] = np.where(is_hot, names[draw.integers(len(names), size=count)], seeds[places])
    return seeds


def hot_subgraph(graph: Graph, nodes: int, draw: np.random.Generator) -> np.ndarray:
    """`nodes` nodes around a random one, nearest first; where a component is too small, around another one too."""
    wanted = min(nodes, graph.nodes)
    found = np.zeros(graph.nodes, dtype=np.bool_)
    order = np.empty(wanted, dtype=np.int64)
    count = 0
    for start in draw.permutation(graph.nodes):
        count = _grow(graph.indptr, graph.indices, int(start), found, order, count)
        if count == wanted:
            break
    return order


@kernel
def _grow(indptr: np.ndarray, indices: np.ndarray, start: int, found: np.ndarray, order: np.ndarray, count: int) -> int:
    """Search breadth first from `start` into order[count:], until it is full or the component ends. Returns the
    length."""
    if found[start] or count == len(order):
        return count
    found[start] = True
    order[count] = start
    turn = count
    count += 1
    while turn < count:
        node = order[turn]
        turn += 1
        for edge in range(indptr[node], indptr[node + 1]):
            if count == len(order):
                return count
            neighbour = indices[edge]
            if not found[neighbour]:
                found[neighbour] = True
                order[count] = neighbour
                count += 1
    return count


def _drifting_seeds(
    names: np.ndarray, ranks: np.ndarray, seeds_per_request: int, swaps: float, draw: np.random.Generator
) -> np.ndarray:
    """Seeds by Zipf's law, where `swaps` random pairs of nodes exchange their ranks after each request."""
    requests = len(ranks) // max(1, seeds_per_request)
    until = np.floor(np.arange(requests + 1) * swaps).astype(np.int64)
    pairs = draw.integers(len(names), size=(int(until[-1]), 2))
    return _exchange(names.copy(), ranks, seeds_per_request, until, pairs)


@kernel
def _exchange(
    names: np.ndarray, ranks: np.ndarray, seeds_per_request: int, until: np.ndarray, pairs: np.ndarray
) -> np.ndarray:
    seeds = np.empty(len(ranks), dtype=np.int64)
    for i in range(len(ranks)):
        if i % seeds_per_request == 0:
            request = i // seeds_per_request
            for swap in range(until[request - 1] if request else 0, until[request]):
                first, second = pairs[swap, 0], pairs[swap, 1]
                names[first], names[second] = names[second], names[first]
        seeds[i] = names[ranks[i]]
    return seeds


# --- a user's own trace


# --- the reads of a trace


@dataclass(frozen=True, slots=True)
class TraceReads:
    """Reads of rows, in the order of requests: each node that a request gathers, once, in the order of first meeting.

    A cache admits nothing between the reads of one gather, so a node that a gather meets again is not counted again.
    """

    nodes: np.ndarray
    """int32 [reads]."""
    starts: np.ndarray
    """Position in `nodes` where the reads of each request begin, int64 [requests + 1]."""


def expand_trace(
    trace: Trace, graph: Graph, fanouts: tuple[int, ...], key: int, listener: ProgressListener = silent
) -> TraceReads:
    """Sample every request as serving would, with a key of its own."""
    scratch = Scratch()
    nodes = np.empty(1 << 16, dtype=np.int32)
    starts = np.zeros(trace.requests + 1, dtype=np.int64)
    last_met = np.full(graph.nodes, -1, dtype=np.int32)
    end = 0
    for request in range(trace.requests):
        if request % _REPORTED == 0:
            listener(Progress(f"sample {trace.name}", request, trace.requests))
        seeds = trace.seeds[trace.starts[request] : trace.starts[request + 1]]
        sample = sample_neighbours(graph.indptr, graph.indices, seeds, fanouts, key + request, scratch, share=True)
        most = end + len(sample.nodes) + len(sample.neighbours)
        nodes = enlarged(nodes, end, most)
        for met in (sample.nodes, sample.neighbours):
            end = _append_new(met, request, last_met, nodes, end)
        starts[request + 1] = end
    listener(Progress(f"sample {trace.name}", trace.requests, trace.requests))
    return TraceReads(nodes[:end].copy(), starts)


@kernel
def _append_new(met: np.ndarray, request: int, last_met: np.ndarray, nodes: np.ndarray, end: int) -> int:
    for node in met:
        if last_met[node] != request:
            last_met[node] = request
            nodes[end] = node
            end += 1
    return end
