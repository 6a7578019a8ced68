"""The graph of a described model as a worker holds it, and what computes scores over its samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np
import onnxruntime

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import (
    AS_LISTED,
    GraphSchema,
    TypeManifest,
    relation_manifest,
)
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import InputRole, ProgramManifest, ProgramOutput, RelationKey, contract_problems
from gnnserve_api.files.repository import program_network
from gnnserve_describe import Description
from gnnserve_describe.layout import layout_of
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.programs.allowed import facts_of
from gnnserve_worker.programs.contract import lay_out
from gnnserve_worker.programs.facts import check_contract
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.sampling.normalised import inverse_roots, weigh
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.sampling.relations import sample_relations


class Engine(Protocol):
    """Program or network that computes outputs of a contract."""

    def run(self, arrays: Mapping[str, np.ndarray], output: ProgramOutput, rows: int) -> np.ndarray:
        """The first rows of an output."""
        ...


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """The graph as a worker holds it."""

    lists: Graph
    features: Mapping[int, np.ndarray]
    """Rows by the place of their type."""
    payload: tuple[EdgePayload | None, ...]

    @classmethod
    def of(cls, described: Description) -> ServedGraph:
        example = described.example
        layout = layout_of(example.graph)
        tensors = dict(zip(layout.inputs, (each.numpy() for each in layout.tensors_of(example.graph)), strict=True))
        types = sorted(example.graph.types, key=lambda kind: kind != example.target)
        counts = {kind: example.graph.nodes(kind) for kind in types}
        graph, payload = _graph_of(tensors, types, counts)
        features = {types.index(each.type): rows for each, rows in tensors.items() if each.role is InputRole.FEATURES}
        return cls(graph, features, payload)

    @property
    def schema(self) -> GraphSchema:
        return self.lists.schema

    @property
    def columns(self) -> tuple[int, ...]:
        """Features of each type."""
        return tuple(kind.features or 0 for kind in self.schema.types)


@dataclass(frozen=True, slots=True)
class Served:
    """A model over samples of a graph."""

    program: ProgramManifest
    graph: ServedGraph
    engine: Engine

    @classmethod
    def program_of(cls, described: Description, graph: ServedGraph) -> Served:
        """The program in ONNX Runtime."""
        program = described.program
        file = described.folder / program.file
        check_contract(facts_of(file), program)
        if problems := contract_problems(program, graph.schema):
            raise ValueError("; ".join(problems))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return cls(program, graph, _OnnxEngine(session))

    @classmethod
    def layers_of(
        cls, layers: LayersManifest, tensors: Mapping[str, np.ndarray], graph: ServedGraph, kinds: tuple[str, ...]
    ) -> Served:
        """Listed layers in the worker's own kernels. `kinds`: types of the rows that are asked about."""
        schema = graph.schema
        answered = [schema.place_of(kind) for kind in kinds]
        program = program_of(layers, schema, graph.columns, answered)
        return cls(program, graph, _LayersEngine(LayersRunner(tensors, program, schema)))

    def scores(self, nodes: np.ndarray, kind: str | None = None) -> np.ndarray:
        """Scores [nodes, columns] of nodes of a type, by their positions among them; None: of the first type."""
        schema = self.graph.schema
        place = 0 if kind is None else schema.place_of(kind)
        output = self.program.scores_of(schema.types[place].name, schema)
        if output is None:
            raise ValueError(f"the program has no output for nodes of {kind}")
        sample = self._sample(nodes + schema.first_nodes[place])
        if self.program.reads_payload:
            sample = msgspec.structs.replace(
                sample, payload=gather_payload(self.graph.lists, self.graph.payload, sample)
            )
        first = schema.first_nodes

        def read(names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray:
            del own
            rows: np.ndarray = self.graph.features[kind][names - first[kind]]
            return rows

        laid = lay_out(self.program, schema, sample, read)
        found = self.engine.run(laid.arrays, output, int(laid.seeds.max()) + 1)
        scores: np.ndarray = found[laid.seeds]
        return scores

    def _sample(self, seeds: np.ndarray) -> NeighbourSample:
        lists, fanouts = self.graph.lists, program_network(self.program).fanouts
        named, scratch = self.program.reads_payload, Scratch()
        if len(self.graph.schema.relations) > 1 or len(self.graph.schema.types) > 1:
            return sample_relations(
                lists.indptr, lists.indices, seeds, fanouts, 0, scratch, layout=lists.layout, share=True,
                names_positions=named,
            )  # fmt: skip
        sample = sample_neighbours(
            lists.indptr, lists.indices, seeds, fanouts, 0, scratch, share=True, names_leaves=True,
            names_positions=named,
        )  # fmt: skip
        if not self.program.weighs_neighbours:
            return sample
        return weigh(sample, lists.indptr, inverse_roots(lists.indptr, lists.indices), scratch)


@dataclass(frozen=True, slots=True)
class _OnnxEngine:
    session: onnxruntime.InferenceSession

    def run(self, arrays: Mapping[str, np.ndarray], output: ProgramOutput, rows: int) -> np.ndarray:
        there = {each.name for each in self.session.get_inputs()}
        given = {name: array for name, array in arrays.items() if name in there}
        return np.asarray(self.session.run([output.name], given)[0])[:rows]


@dataclass(frozen=True, slots=True)
class _LayersEngine:
    runner: LayersRunner

    def run(self, arrays: Mapping[str, np.ndarray], output: ProgramOutput, rows: int) -> np.ndarray:
        (found,) = self.runner.run(arrays, (output,), rows)
        return found


def _graph_of(
    tensors: Mapping[Any, np.ndarray], types: list[str], counts: Mapping[str, int]
) -> tuple[Graph, tuple[EdgePayload | None, ...]]:
    by_role = {(each.role, each.relation): found for each, found in tensors.items()}
    keys = [each.relation for each in tensors if each.role is InputRole.EDGES]
    keys.sort(key=lambda key: (types.index(key.target), f"{key.source}/{key.name}/{key.target}/"))
    payload = tuple(_payload_of(by_role, key) for key in keys)
    columns = {each.type: found.shape[1] for each, found in tensors.items() if each.role is InputRole.FEATURES}
    schema = GraphSchema(
        tuple(TypeManifest(kind, counts[kind], columns[kind], "Positions") for kind in types),
        tuple(
            relation_manifest(
                key.source, key.name, key.target, by_role[InputRole.EDGES, key].shape[1], None,
                _rules_of(key, by_role[InputRole.EDGES, key]), *(() if found is None else (found.manifest,)),
            )
            for key, found in zip(keys, payload, strict=True)
        ),
    )  # fmt: skip
    return _lists(by_role, keys, payload, schema), payload


def _rules_of(key: RelationKey, edges: np.ndarray) -> EdgeRules:
    """Rules by which lists came to be that have these entries."""
    there, back = (np.unique(each, axis=1) for each in (edges, edges[::-1]))
    is_both_ways = key.source == key.target and np.array_equal(there, back)
    return EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP) if is_both_ways else AS_LISTED


def _payload_of(by_role: Mapping[Any, np.ndarray], key: RelationKey) -> EdgePayload | None:
    features, times = (by_role.get((role, key)) for role in (InputRole.EDGE_FEATURES, InputRole.EDGE_TIMES))
    if features is None and times is None:
        return None
    rows = by_role[InputRole.EDGES, key].shape[1]
    features = np.zeros((rows, 0), np.float32) if features is None else features
    names = tuple(str(place) for place in range(features.shape[1]))
    return EdgePayload(
        names, features, "" if times is None else "time", np.zeros(0, np.int64) if times is None else times
    )


def _lists(
    by_role: Mapping[Any, np.ndarray], keys: list[RelationKey], payload: tuple[EdgePayload | None, ...],
    schema: GraphSchema,
) -> Graph:  # fmt: skip
    """Lists of neighbours: of each node one for each relation that its type reads."""
    first_nodes, slots = schema.first_nodes, schema.slots
    first_lists = np.cumsum([0, *(kind.nodes * each for kind, each in zip(schema.types, slots, strict=True))])
    places = {kind.name: place for place, kind in enumerate(schema.types)}
    taken = dict.fromkeys(places, 0)
    lists, sources, rows = [], [], []
    for key, found in zip(keys, payload, strict=True):
        source, target = by_role[InputRole.EDGES, key]
        kind = places[key.target]
        lists.append(first_lists[kind] + target * slots[kind] + taken[key.target])
        sources.append(source + first_nodes[places[key.source]])
        rows.append(np.full(len(source), -1) if found is None else np.arange(len(source)))
        taken[key.target] += 1
    of_list = np.concatenate(lists)
    order = np.argsort(of_list, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(of_list, minlength=int(first_lists[-1])))]).astype(np.int64)
    indices = np.concatenate(sources)[order].astype(np.int32)
    has_payload = any(found is not None for found in payload)
    payload_rows = np.concatenate(rows)[order].astype(np.int32) if has_payload else np.zeros(0, np.int32)
    return Graph(indptr, indices, schema, payload_rows)
