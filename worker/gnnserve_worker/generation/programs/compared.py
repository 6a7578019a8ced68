"""Expected scores of a program, compared by the process that will run it, over full neighbourhoods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import combinations

import msgspec
import numpy as np
import scipy.sparse as sp
from msgspec import UNSET

from gnnserve_api.errors import InputError
from gnnserve_api.files.given_weights import ComparedScores
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import InputRole, ProgramManifest, contract_problems
from gnnserve_api.spec.graph import GraphSource, Normalization
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.expected.alternatives import CANNOT
from gnnserve_worker.generation.expected.comparison import Cause, compare_listed
from gnnserve_worker.generation.expected.one_relation import TURNED, other_directions
from gnnserve_worker.generation.expected.other_layers import other_layers
from gnnserve_worker.generation.expected.pairs import compare_all_pairs
from gnnserve_worker.generation.given_program import GivenProgram, naming
from gnnserve_worker.generation.programs.running import ProgramGraph, ProgramScores, called_by, read_graph
from gnnserve_worker.generation.training_set import normalization_of
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.programs.answers import Runner, run_program
from gnnserve_worker.programs.contract import LaidOut
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.generated import GivenDecoder

_MOST_HOPS_MORE = 3
"""Hops beyond those of the contract that are tried."""
_MOST_EXCHANGES = 20
"""Pairs of inputs that are tried the other way round."""
_MOST_WHOLE = 5_000_000
"""Edges, and numbers of features, of a graph that the program is tried over as a whole."""
_NORMALIZATIONS = (Normalization.DISABLED, Normalization.ROW_NORMALIZE, Normalization.STANDARDIZE)
_COUNTS_EDGES = "set {}.readsDegrees to true, where layers count edges, as GCN's do; or "
_WITHOUT_HELD_OUT = "without the links that are held out"
_OF_ALL_LINKS = (
    "a program is served with all links of the source, and expected.npz of `gnnserve export` is of a graph without "
    "those that its service held out; give expected scores over all links, or a source without these"
)
_WHOLE_GRAPH = (
    "a layer reads more than a node's neighbourhood, as torch_geometric's LayerNorm by default, GraphNorm, or a mean "
    "over all nodes do, and no server of neighbourhoods can be right there: train the model with "
    "LayerNorm(mode='node') or BatchNorm"
)


def _exchanges(contract: ProgramManifest, schema: GraphSchema) -> Iterator[tuple[str, ProgramManifest]]:
    """Contracts where two inputs are of each other's relation or type, with words for what is exchanged."""
    of_two = [
        (f"the {what}s of {one.name} and {other.name}", {one_is: other_is, other_is: one_is})
        for what, role in (("relation", InputRole.EDGES), ("type", InputRole.FEATURES))
        for one, other in combinations([each for each in contract.inputs if each.role is role], 2)
        if (one_is := (one.type, one.relation)) != (other_is := (other.type, other.relation))
    ]
    for words, becomes in of_two[:_MOST_EXCHANGES]:
        inputs = []
        for each in contract.inputs:
            kind, relation = becomes.get((each.type, each.relation), (each.type, each.relation))
            inputs.append(msgspec.structs.replace(each, type=kind, relation=relation))
        exchanged = msgspec.structs.replace(contract, inputs=tuple(inputs))
        if not contract_problems(exchanged, schema):
            yield words, exchanged


@dataclass(frozen=True, slots=True, eq=False)
class ComparedProgram:
    """A `ComparedNetwork` that is a program."""

    spec: GNNServiceSpec
    given: GivenProgram
    graph: GraphData
    runner: Runner
    load: Callable[[GraphSource], GraphData]
    learnt: Callable[[GraphData], GraphData]
    """As `LearningProblem.learnt_graph`."""

    def scores(self, nodes: np.ndarray) -> np.ndarray:
        with naming(self.given.field):
            return self._scores(self.given.contract, self._read(self.graph), nodes)

    def _read(self, data: GraphData, method: Normalization | None = None) -> ProgramGraph:
        return read_graph(self.spec, data, self.given.columns, method)

    def _scores(self, contract: ProgramManifest, graph: ProgramGraph, nodes: np.ndarray) -> np.ndarray:
        return ProgramScores(contract, graph, self.runner, called_by(self.graph)).scores_alone(nodes)

    def causes(self, nodes: np.ndarray) -> Iterator[Cause]:
        """Other ways to compute the scores of these nodes, the likeliest first; those that cannot be computed are left
        out, and so are those that change nothing."""
        served = self.scores(nodes)
        for words, remedy, compute in self._others(nodes):
            with suppress(InputError, ProgramFailedError):
                scores = compute()
                if not np.array_equal(scores, served):
                    yield Cause(words, remedy, scores.astype(np.float64))

    def _others(self, nodes: np.ndarray) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
        own, contract = self._read(self.graph), self.given.contract
        learnt = self.learnt(self.graph)
        if learnt is not self.graph and not own.has_payload:
            yield _WITHOUT_HELD_OUT, _OF_ALL_LINKS, lambda: self._scores(contract, self._read(learnt), nodes)
        yield from self._other_contracts(own, nodes) if self.given.layers is None else self._other_layers(own, nodes)
        for method in _NORMALIZATIONS:
            if method is not normalization_of(self.spec) and self._may_be_scaled(method):
                yield (
                    f"with features scaled by {method}",
                    f"set spec.graph.normalization to {method}",
                    lambda method=method: self._scores(contract, self._read(self.graph, method), nodes),  # type: ignore[misc]
                )
        if own.lists.schema.slots == (1,) and not own.has_payload:  # lists of one type, which can be turned
            yield from self._other_edges(own, nodes)

    def _other_layers(
        self, own: ProgramGraph, nodes: np.ndarray
    ) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
        """Networks of the same weights whose layers compute in other ways."""
        layers, contract = self.given.layers, self.given.contract
        if layers is None or contract.layers is UNSET:
            return
        for words, remedy, other in other_layers(contract.layers):
            program = layers.like(contract, other)

            def compute(program: ProgramManifest = program) -> np.ndarray:
                with closing(layers.runner(program)) as runner:
                    return ProgramScores(program, own, runner, called_by(self.graph)).scores_alone(nodes)

            yield words, remedy, compute

    def _other_contracts(
        self, own: ProgramGraph, nodes: np.ndarray
    ) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
        contract, field = self.given.contract, self.given.field
        for more in range(1, _MOST_HOPS_MORE + 1):
            hops = contract.sampled_hops + more
            deeper = msgspec.structs.replace(contract, hops=contract.hops + more)
            counts = "" if more > 1 or contract.reads_degrees else _COUNTS_EDGES.format(field)
            remedy = f"{counts}set {field}.hops to {deeper.hops}, the number of layers that read neighbours"
            yield (
                f"over {hops} hops in place of {contract.sampled_hops}",
                remedy,
                lambda deeper=deeper: self._scores(deeper, own, nodes),  # type: ignore[misc]
            )
        if own.lists.edges + own.lists.nodes + own.numbers <= _MOST_WHOLE:
            yield "over the whole graph at once", f"{CANNOT}: {_WHOLE_GRAPH}", lambda: self._over_all(own, nodes)
        for words, exchanged in _exchanges(contract, self.graph.schema):
            yield (
                f"with {words} exchanged",
                f"exchange {words} in {field}.inputs",
                lambda exchanged=exchanged: self._scores(exchanged, own, nodes),  # type: ignore[misc]
            )

    def _may_be_scaled(self, method: Normalization) -> bool:
        return method is not Normalization.STANDARDIZE or not any(
            sp.issparse(kind.features) for kind in self.graph.types
        )

    def _other_edges(self, own: ProgramGraph, nodes: np.ndarray) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
        for direction, source in other_directions(self.spec.graph.source):
            field = f"spec.graph.source.{direction.field}"
            yield (
                f"with edges as {field}: {direction.stated} reads them",
                f"set {field} to {direction.stated}",
                lambda source=source: self._scores(self.given.contract, self._read(self.load(source)), nodes),  # type: ignore[misc]
            )
        remedy = "state the direction of the edges in spec.graph.source, or write them so"
        for words, lists_of in TURNED.items():
            yield (
                words,
                remedy,
                lambda lists_of=lists_of: self._scores(  # type: ignore[misc]
                    self.given.contract,
                    replace(own, lists=replace(lists_of(own.lists), schema=own.lists.schema)),
                    nodes,
                ),
            )

    def _over_all(self, graph: ProgramGraph, nodes: np.ndarray) -> np.ndarray:
        """Scores of nodes where the program is given all nodes and edges, as its module was."""
        contract = self.given.contract
        laid = ProgramScores(contract, graph, self.runner).lay_out(np.arange(graph.lists.nodes))
        asked = LaidOut(laid.arrays, laid.seeds[nodes], None if laid.kinds is None else laid.kinds[nodes])
        scores = np.empty((len(nodes), contract.scores.columns), np.float32)
        run_program(self.runner, contract, graph.lists.schema, asked, scores)
        return scores


def compare_programs(
    compared: Mapping[str, ComparedProgram], digests: Mapping[str, str], decoder: GivenDecoder | None,
    progress: ProgressListener,
) -> Sequence[ComparedScores]:  # fmt: skip
    """Hold all expected scores of the spec against those of the programs, and of pairs against those that `decoder`
    makes of their rows. `compared`: by what `ListedScores` calls their weights, one at least. InputError: scores differ
    by more than they may."""
    first = next(iter(compared.values()))
    found = compare_listed(first.spec, digests, first.graph, "", lambda weights: compared[weights], progress)
    compare_all_pairs(first.spec, first.graph, lambda weights: compared[weights].scores, decoder)
    return found
