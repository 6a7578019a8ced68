"""Inputs of a program: a sample and rows of its nodes laid out as the contract says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, RelationKey
from gnnserve_worker.programs.layered import counted_edges, edges_of_layer, nodes_and_leaves, targets_of_layer
from gnnserve_worker.programs.numbering import (
    NumberedSample,
    kinds_of_seeds,
    number_sample,
    own_weights,
    relations_of,
    seed_rows,
)
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampledPayload, SampleWeights


class ReadRows(Protocol):
    """Rows of nodes by their names in a sample (int64): float32 [nodes, columns], of the type at that place. `own`: as
    they are read of nodes themselves."""

    def __call__(self, names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray: ...  # pragma: no cover


class LaidOut(msgspec.Struct, frozen=True):
    arrays: Mapping[str, np.ndarray]
    """By the names of the inputs, in C order."""
    seeds: np.ndarray
    """The row of each seed in the outputs of its type, int64."""
    kinds: np.ndarray | None = None
    """The place of each seed's type, int64; None: all are of the only one."""


def lay_out(program: ProgramManifest, schema: GraphSchema, sample: NeighbourSample, read: ReadRows) -> LaidOut:
    """`sample`: of `program.sampled_hops` hops; with weights where the program weighs neighbours, and with payload
    where it reads any."""
    if program.is_layered:
        return LaidOut(
            {each.name: _in_order(_BY_LAYER[each.role](each, sample, read)) for each in program.inputs},
            seed_rows(sample).astype(np.int64),
        )
    numbered = number_sample(sample, relations_of(schema))
    source = _Source(schema, sample, numbered, read)
    arrays = {each.name: _in_order(_OF_GRAPH[each.role](each, source)) for each in program.inputs}
    return LaidOut(arrays, numbered.seeds, kinds_of_seeds(sample, len(schema.types)) if len(schema.types) > 1 else None)


class _Source(msgspec.Struct, frozen=True):
    schema: GraphSchema
    sample: NeighbourSample
    numbered: NumberedSample
    read: ReadRows

    def place_of_type(self, each: ProgramInput) -> int:
        return self.schema.place_of(each.type)

    def place_of_relation(self, each: ProgramInput) -> int:
        return next(
            place
            for place, one in enumerate(self.schema.relations)
            if RelationKey(one.source, one.name, one.target) == each.relation
        )

    def edges_within(self, each: ProgramInput) -> int:
        """How many of the relation's edges the input has: the first ones."""
        return int(self.numbered.edges_per_hop[self.place_of_relation(each), : each.hops].sum())

    def payload_of(self, each: ProgramInput) -> tuple[SampledPayload, np.ndarray]:
        """Payload of the relation, and the row there of each edge that the input has."""
        place, payload = self.place_of_relation(each), self.sample.payload
        found = payload[place] if place < len(payload) else None
        if found is None:
            raise ValueError(f"{each.name} reads what edges have, and those of the sample have nothing")
        return found, np.searchsorted(found.edges, self.numbered.places[place][: self.edges_within(each)])


def _features(each: ProgramInput, source: _Source) -> np.ndarray:
    place = source.place_of_type(each)
    return source.read(source.numbered.nodes[place], place)


def _edges(each: ProgramInput, source: _Source) -> np.ndarray:
    laid: np.ndarray = source.numbered.edges[source.place_of_relation(each)][:, : source.edges_within(each)]
    return laid


def _edge_features(each: ProgramInput, source: _Source) -> np.ndarray:
    found, rows = source.payload_of(each)
    laid: np.ndarray = found.features[rows]
    return laid


def _edge_times(each: ProgramInput, source: _Source) -> np.ndarray:
    found, rows = source.payload_of(each)
    laid: np.ndarray = found.times[rows]
    return laid


def _nodes_per_hop(each: ProgramInput, source: _Source) -> np.ndarray:
    laid: np.ndarray = source.numbered.nodes_per_hop[source.place_of_type(each)]
    return laid


def _edges_per_hop(each: ProgramInput, source: _Source) -> np.ndarray:
    laid: np.ndarray = source.numbered.edges_per_hop[source.place_of_relation(each)]
    return laid


def _seed_count(each: ProgramInput, source: _Source) -> np.ndarray:
    del each
    return np.asarray(source.numbered.nodes_per_hop[:, 0].sum(), np.int64)


def _weights(each: ProgramInput, source: _Source) -> np.ndarray:
    """Weights of the edges of the only relation, in their order; or those of each node that has a list in the sample,
    where a node with an empty list has 1."""
    weights = _weights_of(each, source.sample)
    if each.of_targets:
        return own_weights(source.numbered, source.sample.starts, weights.of_itself)
    laid: np.ndarray = weights.of_neighbours[source.numbered.places[0]]
    return laid


_OF_GRAPH: Mapping[InputRole, Callable[[ProgramInput, _Source], np.ndarray]] = {
    InputRole.FEATURES: _features,
    InputRole.EDGES: _edges,
    InputRole.EDGE_FEATURES: _edge_features,
    InputRole.EDGE_TIMES: _edge_times,
    InputRole.NODES_PER_HOP: _nodes_per_hop,
    InputRole.EDGES_PER_HOP: _edges_per_hop,
    InputRole.SEED_COUNT: _seed_count,
    InputRole.NORMALISED_WEIGHTS: _weights,
}


def _rows(each: ProgramInput, sample: NeighbourSample, read: ReadRows) -> np.ndarray:
    del each
    return read(nodes_and_leaves(sample).astype(np.int64), 0)


def _own_rows(each: ProgramInput, sample: NeighbourSample, read: ReadRows) -> np.ndarray:
    del each
    return read(sample.nodes.astype(np.int64), 0, own=True)


def _layer_edges(each: ProgramInput, sample: NeighbourSample, read: ReadRows) -> np.ndarray:
    del read
    edges = edges_of_layer(sample, _number_of(each))
    return edges[:, counted_edges(sample, edges)] if each.without_self else edges


def _layer_targets(each: ProgramInput, sample: NeighbourSample, read: ReadRows) -> np.ndarray:
    del read
    return np.arange(targets_of_layer(sample, _number_of(each)))


def _normalised_weights(each: ProgramInput, sample: NeighbourSample, read: ReadRows) -> np.ndarray:
    del read
    number, weights = _number_of(each), _weights_of(each, sample)
    if each.of_targets:
        return weights.of_itself[: targets_of_layer(sample, number)]
    edges = edges_of_layer(sample, number)
    of_neighbours = weights.of_neighbours[: edges.shape[1]]
    return of_neighbours[counted_edges(sample, edges)] if each.without_self else of_neighbours


def _weights_of(each: ProgramInput, sample: NeighbourSample) -> SampleWeights:
    if sample.weights is None:
        raise ValueError(f"{each.name} is weights of neighbours, and the sample was drawn without them")
    return sample.weights


def _number_of(each: ProgramInput) -> int:
    if each.layer is None:
        raise ValueError(f"{each.name} names no layer")
    return each.layer


def _in_order(array: np.ndarray) -> np.ndarray:
    """In C order; unlike `numpy.ascontiguousarray` it leaves a number a number."""
    return np.asarray(array, order="C")


_BY_LAYER: Mapping[InputRole, Callable[[ProgramInput, NeighbourSample, ReadRows], np.ndarray]] = {
    InputRole.ROWS: _rows,
    InputRole.OWN_ROWS: _own_rows,
    InputRole.LAYER_EDGES: _layer_edges,
    InputRole.LAYER_TARGETS: _layer_targets,
    InputRole.NORMALISED_WEIGHTS: _normalised_weights,
}
