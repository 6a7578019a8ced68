"""Running a program over whole neighbourhoods of a graph, before there is a revision of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import scipy.sparse as sp
from msgspec import UNSET

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import InputRole, ProgramManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, NO_NEIGHBOURS
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.ranking import columns_by_type
from gnnserve_worker.generation.training_set import (
    NormalizedFeatures,
    keep_columns,
    normalization_of,
    scaled_features,
)
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.store import Features, Graph, GraphData
from gnnserve_worker.parallel import map_parallel, thread_count
from gnnserve_worker.programs.answers import Runner, run_program
from gnnserve_worker.programs.contract import LaidOut, lay_out
from gnnserve_worker.programs.facts import FIELD
from gnnserve_worker.programs.failure import ProgramFailedError, ProgramFailure
from gnnserve_worker.programs.race import LEAST_ROWS, check_repeats
from gnnserve_worker.repository.revision_files import RowLayout
from gnnserve_worker.sampling.neighbours import NeighbourSample, Sampler, Scratch, sample_neighbours
from gnnserve_worker.sampling.normalised import inverse_roots, weigh
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.sampling.relations import sample_relations

CHECKED_LANES = 2
"""Runs at once before there is a revision."""
_SEEDS_AT_ONCE = 256
_PART_NODES = 1024
"""Nodes that a thread computes at a time, of all nodes."""
_MOST_ALONE = 256
"""Most nodes that are computed one by one."""
MOST_NEIGHBOURHOOD_EDGES = 20_000_000
"""Edges that one node's neighbourhood may have: over more of them a run takes gigabytes and many seconds."""


_SAMPLERS: Mapping[RowLayout, Callable[[Graph], Sampler]] = {
    RowLayout.BY_NODE: lambda _: sample_neighbours,
    RowLayout.BY_TYPE: lambda lists: partial(sample_relations, layout=lists.layout),
}


@dataclass(frozen=True, slots=True, eq=False)
class ProgramGraph:
    """A graph as programs read it."""

    lists: Graph
    """The lists of all types, with their schema."""
    features: Sequence[Features]
    """Features of each type as programs read them: scaled, in their columns' order. A type without has no column."""
    payloads: Sequence[EdgePayload | None]
    """Features and times of the edges of each relation; None: it has none."""

    @property
    def numbers(self) -> int:
        """Features of all nodes."""
        return sum(one.shape[0] * one.shape[1] for one in self.features)

    @property
    def has_payload(self) -> bool:
        return any(one is not None for one in self.payloads)

    @property
    def sample(self) -> Sampler:
        """Draws neighbours, as a revision of it does."""
        return _SAMPLERS[RowLayout.of_nodes(self.lists.schema)](self.lists)

    def rows(self, nodes: np.ndarray, kind: int) -> np.ndarray:
        """Rows of nodes of the type at that place, by their numbers: float32 [nodes, columns]."""
        found = self.features[kind][nodes - self.lists.schema.first_nodes[kind]]
        dense = found if isinstance(found, np.ndarray) else found.toarray()
        return np.asarray(dense, np.float32, order="C")


_NOT_THE_GRAPHS = (
    "look for a constant of a huge size, or a loop that does not end, in the program: a node without neighbours takes "
    "as much; if it is that large, give spec.model.program.limits more"
)


class ProgramSamples:
    """Samples of a graph, laid out for a program. To be used by one thread at a time."""

    def __init__(self, contract: ProgramManifest, graph: ProgramGraph, fanouts: tuple[int, ...] | None = None) -> None:
        """`fanouts`: None: whole lists."""
        self._contract, self._graph = contract, graph
        self.fanouts = (FULL_NEIGHBOURHOOD,) * contract.sampled_hops or NO_NEIGHBOURS if fanouts is None else fanouts
        self._scratch = Scratch()
        self._roots = (
            inverse_roots(graph.lists.indptr, graph.lists.indices) if contract.weighs_neighbours else np.zeros(0)
        )

    def lay_out(self, nodes: np.ndarray, key: int = 0) -> LaidOut:
        """Inputs of a run over these nodes. Equal keys draw the same neighbours."""
        graph, contract = self._graph, self._contract
        sample = self.sample(nodes, key)
        if contract.reads_payload:
            payload = gather_payload(graph.lists, graph.payloads, sample)
            sample = msgspec.structs.replace(sample, payload=payload)

        def read(names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray:
            return graph.rows(names, kind)

        return lay_out(contract, graph.lists.schema, sample, read)

    def sample(self, nodes: np.ndarray, key: int = 0) -> NeighbourSample:
        lists, contract = self._graph.lists, self._contract
        sample = self._graph.sample(
            lists.indptr, lists.indices, nodes.astype(np.int64), self.fanouts, key, self._scratch, share=True,
            names_leaves=True, names_positions=contract.reads_payload,
        )  # fmt: skip
        return weigh(sample, lists.indptr, self._roots, self._scratch) if contract.weighs_neighbours else sample


class ProgramScores:
    """Scores of nodes by a program."""

    def __init__(
        self, contract: ProgramManifest, graph: ProgramGraph, runner: Runner,
        called: Callable[[int], object] = int, fanouts: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        """`called`: what the source calls a node. `fanouts`: None: whole lists."""
        self._contract, self._graph, self._runner, self._called = contract, graph, runner, called
        self._columns = contract.scores.columns
        self._samples = ProgramSamples(contract, graph, fanouts)

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        """float32 [nodes, classes], of many nodes at once. InputError: a neighbourhood is larger than the limits of a
        run allow."""
        found = np.empty((len(nodes), self._columns), np.float32)
        for start in range(0, len(nodes), _SEEDS_AT_ONCE):
            part = slice(start, start + _SEEDS_AT_ONCE)
            found[part] = self._scores(nodes[part])
        return found

    def scores_alone(self, nodes: np.ndarray) -> np.ndarray:
        """As `scores`, some of the nodes each by itself, as the only one of a request: what a layer reads beyond a
        node's own neighbourhood is there by chance where others are asked about too."""
        found = self.scores(nodes) if len(nodes) > _MOST_ALONE else np.empty((len(nodes), self._columns), np.float32)
        for place in np.unique(np.linspace(0, len(nodes) - 1, min(len(nodes), _MOST_ALONE)).astype(np.int64)):
            found[place] = self._scores(nodes[[place]])[0]
        return found

    def _scores(self, nodes: np.ndarray) -> np.ndarray:
        """Fewer at once where all of them are too much for a run."""
        try:
            return self._run(nodes)
        except ProgramFailedError as error:
            if error.is_too_large and len(nodes) > 1:
                halves = np.array_split(nodes, 2)
                return np.concatenate([self._scores(half) for half in halves])
            raise self._refusal(nodes, error) from error

    def _run(self, nodes: np.ndarray) -> np.ndarray:
        scores = np.empty((len(nodes), self._columns), np.float32)
        run_program(self._runner, self._contract, self._graph.lists.schema, self.lay_out(nodes), scores)
        return scores

    def lay_out(self, nodes: np.ndarray) -> LaidOut:
        """Inputs of a run over these nodes."""
        return self._samples.lay_out(nodes)

    def check_repeats(self, nodes: np.ndarray) -> None:
        """Run a batch of thousands of rows twenty times. InputError: runs differ."""
        for count in (64, _SEEDS_AT_ONCE, 1024, 4096):
            laid = self.lay_out(nodes[:count])
            if count >= len(nodes) or _rows_of(self._contract, laid) >= LEAST_ROWS:
                break
        schema = self._graph.lists.schema
        scored = schema.place_of(self._contract.scored_type(schema))
        own = laid.seeds if laid.kinds is None else laid.seeds[laid.kinds == scored]
        rows = int(own.max(initial=-1)) + 1
        try:
            check_repeats(self._runner, laid.arrays, (self._contract.scores,), rows)
        except ProgramFailedError as error:
            raise self._refusal(nodes[:count], error) from error

    def check_largest(self, nodes: np.ndarray) -> None:
        """Run the node whose neighbourhood has most edges. InputError: it is larger than the limits allow."""
        hops = len(self._samples.fanouts)
        node = nodes[[int(np.argmax(_edges_around(self._graph.lists, nodes, hops)))]]
        edges = len(self._samples.sample(node).neighbours)
        if edges > MOST_NEIGHBOURHOOD_EDGES:
            raise InputError(
                FIELD, f"node {self._called(int(node[0]))!r} has {edges:,} edges within {hops} hops, "
                f"more than the {MOST_NEIGHBOURHOOD_EDGES:,} that one node may have", self._remedy,
            )  # fmt: skip
        self.scores(node)

    def _refusal(self, nodes: np.ndarray, error: ProgramFailedError) -> InputError:
        if error.is_too_large:
            edges, hops = len(self._samples.sample(nodes[:1]).neighbours), len(self._samples.fanouts)
            whole = f"node {self._called(int(nodes[0]))!r} has {edges:,} edges within {hops} hops"
            problem = f"{whole}, and the program {error.problem}"
            return InputError(f"{FIELD}.limits", problem, self._remedy if edges else _NOT_THE_GRAPHS)
        if error.failure is ProgramFailure.MEMORY:
            return InputError(f"{FIELD}.limits.memory", f"is too little: the program {error.problem}", "give it more")
        problem = f"over this graph the program {error.problem}"
        return InputError(FIELD, problem, "describe the model over this graph, or correct the file")

    @property
    def _remedy(self) -> str:
        if self._contract.layers is not UNSET:
            return "sample neighbours by spec.model.fanouts"
        if self._contract.reads_degrees:
            return (
                "give spec.model.program.limits more, if the service may take that long, or train a model whose layers "
                "do not count edges, which may sample neighbours"
            )
        return "sample neighbours by spec.model.program.fanouts, or give spec.model.program.limits more"


def _rows_of(contract: ProgramManifest, laid: LaidOut) -> int:
    rows = [laid.arrays[each.name] for each in contract.inputs if each.role in (InputRole.FEATURES, InputRole.ROWS)]
    return max((len(one) for one in rows), default=len(laid.seeds))


def _edges_around(graph: Graph, nodes: np.ndarray, hops: int) -> np.ndarray:
    """Entries of lists that walks of so many steps meet, an upper bound of a neighbourhood's edges, float64 [nodes]."""
    ones, bounds = np.ones(graph.edges, np.float32), _bounds_of_nodes(graph)
    lists = sp.csr_array((ones, graph.indices, bounds), shape=(graph.nodes, graph.nodes))
    degrees = np.diff(bounds).astype(np.float64)
    walks = np.zeros(graph.nodes)
    for _ in range(hops):
        walks = degrees + lists @ walks
    return np.asarray(walks[nodes])


def _bounds_of_nodes(graph: Graph) -> np.ndarray:
    """Where the entries of each node begin, whichever of its lists has them, and behind them all: int64 [nodes + 1]."""
    schema = graph.schema
    counts = np.repeat(np.array(schema.slots, np.int64), [kind.nodes for kind in schema.types])
    bounds: np.ndarray = graph.indptr[np.concatenate([[0], np.cumsum(counts)])]
    return bounds


def compute_all(
    payloads: Sequence[EdgePayload | None], runner: Runner, program: ProgramManifest, lists: Graph,
    rows: Sequence[Features],
) -> Iterator[np.ndarray]:  # fmt: skip
    """A `ListedRows.compute`, once edges have their payloads: on all processors, so that nothing but some parts
    is in memory."""
    threads, graph, schema = thread_count(), ProgramGraph(lists, rows, payloads), lists.schema
    runs = [ProgramScores(program, graph, runner) for _ in range(threads)]
    place = schema.place_of(program.scored_type(schema))
    nodes = schema.first_nodes[place] + np.arange(schema.types[place].nodes)
    parts = np.array_split(nodes, -(-len(nodes) // _PART_NODES)) if len(nodes) else []
    for first in range(0, len(parts), threads):
        now = parts[first : first + threads]
        yield from map_parallel(lambda place, now=now: runs[place].scores(now[place]), len(now))  # type: ignore[misc]


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTeacher:
    """The `lessons.Teacher` of a program."""

    digest: str
    contract: ProgramManifest
    graph: ProgramGraph
    """With the lists that training may see."""
    runner: Callable[[int], Runner]
    """Begins to run it, as many at a time as the argument says."""
    fanouts: tuple[int, ...] | None
    decoder: Mapping[str, np.ndarray]
    embedded: Mapping[int, np.ndarray] = field(default_factory=dict)

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        with closing(self.runner(CHECKED_LANES)) as runner:
            return ProgramScores(self.contract, self.graph, runner, fanouts=self.fanouts).scores(nodes)


def read_graph(
    spec: GNNServiceSpec, data: GraphData, columns: Sequence[int] | None, method: Normalization | None = None
) -> ProgramGraph:
    """A graph as a program of the spec reads it. `columns`: as of `GivenProgram`. `method`: of scaling features; None:
    the spec's."""
    scaled = scaled_features(data, spec.model.training.scope, method or normalization_of(spec))
    features = served_features(scaled, data)
    if columns is not None:
        kept = columns_by_type(np.array(columns, np.int64), [one.shape[1] for one in features])
        features = [keep_columns(one, own) for one, own in zip(features, kept, strict=True)]
    return ProgramGraph(joined_lists(data), features, [one.payload for one in data.relations])


def served_features(scaled: Sequence[NormalizedFeatures | None], data: GraphData) -> list[Features]:
    """Features of each type as tables have them; a type without has no column."""
    return [
        np.zeros((kind.nodes, 0), np.float32) if one is None else one.features
        for one, kind in zip(scaled, data.types, strict=True)
    ]


def called_by(data: GraphData) -> Callable[[int], object]:
    """What the source calls a node."""
    ids = data.names or data.target.ids
    return int if ids is None else lambda node: ids.shown(node, node + 1)[0]
