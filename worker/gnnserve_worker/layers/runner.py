"""Runs a network that is listed layer by layer where a program is run by another process (`programs/runner.py`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import InputRole, ProgramManifest, ProgramOutput
from gnnserve_worker.layers.aggregates import NO_ROWS
from gnnserve_worker.layers.lists import NormalisedWeights, RelationLists
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.layers.network import LayersNetwork, LayersSample
from gnnserve_worker.layers.shapes import columns_of, problems_of, tensor_shapes


class LayersRunner:
    """One network; asked from any thread."""

    def __init__(self, tensors: Mapping[str, np.ndarray], program: ProgramManifest, schema: GraphSchema) -> None:
        """ValueError, with a sentence: the description has problems, or the tensors are not those of its layers."""
        if program.layers is UNSET:
            raise ValueError("the program has no layers")
        columns = columns_of(schema)
        scored = schema.place_of(program.scored_type(schema))
        if problems := problems_of(program.layers, schema, columns, scored):
            raise ValueError("; ".join(problems))
        self._network = LayersNetwork.build(
            program.layers, schema, columns, checked_tensors(tensors, tensor_shapes(program.layers, schema, columns))
        )
        self._embeddings = None if program.embeddings is None else program.embeddings.name
        self._reading = _Reading(program, schema)
        self._memory = _ThreadMemory()

    def run(
        self, inputs: Mapping[str, np.ndarray], outputs: Sequence[ProgramOutput], rows: int | Sequence[int]
    ) -> tuple[np.ndarray, ...]:
        """The first rows of each output, float32 [rows, columns]: as many of all, or of each its own."""
        memory = self._memory.room
        memory.begin()
        types = [self._reading.types[each.type] for each in outputs]
        found = self._network.run(self._reading.sample(inputs), tuple(sorted(set(types))), memory)
        counts = [rows] * len(outputs) if isinstance(rows, int) else rows
        # Copies: the memory is the next run's.
        return tuple(
            (found[type_].embeddings if each.name == self._embeddings else found[type_].scores)[:count].copy()
            for each, type_, count in zip(outputs, types, counts, strict=True)
        )

    @property
    def network(self) -> LayersNetwork:
        """The network with its weights, which a GPU computes in its own way."""
        return self._network

    def close(self) -> None:
        """Nothing is open."""


def checked_tensors(tensors: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The tensors that layers are made of, float32 in C order. ValueError names each that is missing, left over, or of
    another shape."""
    problems = [
        f"{key} is missing, expected {list(shape)}"
        if key not in tensors
        else f"{key} is {list(tensors[key].shape)}, expected {list(shape)}"
        for key, shape in shapes.items()
        if key not in tensors or tensors[key].shape != shape
    ]
    problems += [f"{key} is of no layer" for key in sorted(tensors.keys() - shapes.keys())]
    if problems:
        raise ValueError("; ".join(problems))
    # Copies: arrays that may not be written are of another type, which kernels would be compiled for once more.
    return {key: np.array(tensors[key], np.float32, order="C") for key in shapes}


class _ThreadMemory(threading.local):
    def __init__(self) -> None:
        self.room = RunMemory()


class _Reading:
    """Finds what a network reads among the inputs of its program."""

    def __init__(self, program: ProgramManifest, schema: GraphSchema) -> None:
        self.types = {kind.name: place for place, kind in enumerate(schema.types)}
        # Outputs without a type are of the one that is classified.
        self.types[""] = schema.place_of(program.scored_type(schema)) if "" not in self.types else self.types[""]
        relations = {(one.source, one.name, one.target): place for place, one in enumerate(schema.relations)}
        self._targets = {place: self.types[one.target] for place, one in enumerate(schema.relations)}
        named: dict[InputRole, dict[int, str]] = {role: {} for role in InputRole}
        self._weights: dict[bool, str] = {}
        for each in program.inputs:
            if each.is_of_sample:
                self._weights[each.of_targets] = each.name
            elif each.role.is_of_type:
                named[each.role][self.types[each.type]] = each.name
            else:
                key = each.relation
                named[each.role][relations[key.source, key.name, key.target]] = each.name
        self._features, self._nodes = named[InputRole.FEATURES], named[InputRole.NODES_PER_HOP]
        self._edges, self._edge_features = named[InputRole.EDGES], named[InputRole.EDGE_FEATURES]

    def sample(self, inputs: Mapping[str, np.ndarray]) -> LayersSample:
        nodes = {type_: inputs[name] for type_, name in self._nodes.items()}
        of_graph = None
        if self._weights:
            of_graph = NormalisedWeights(inputs[self._weights[False]], inputs[self._weights[True]])
        lists = {
            place: RelationLists(
                inputs[name],
                inputs[self._edge_features[place]] if place in self._edge_features else NO_ROWS,
                of_graph,
                int(nodes[self._targets[place]][:-1].sum()),
            )
            for place, name in self._edges.items()
        }
        return LayersSample({type_: inputs[name] for type_, name in self._features.items()}, nodes, lists)
