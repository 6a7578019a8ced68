"""Hidden states of all nodes, each over all of its neighbours: what tables of stored layers are made of.

By the kernels that serve, layer after layer from the table of the layer before, in blocks on all processors: nothing
but a block is in memory, so the graph may be larger than it. Pruning of channels holds them all (`hidden_states`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.models.network import Activations, Layer, finish_aggregation, linear_part
from gnnserve_worker.models.registry import build_network, projection_of, spec_of, without_first_product
from gnnserve_worker.models.tail import tail_of, tail_tensors
from gnnserve_worker.models.whole_lists import LayerScratch
from gnnserve_worker.parallel import map_parallel, thread_count
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import NO_SCALES, Rows, Table, projected_blocks

_PART_EDGES = 2**20
"""Entries of neighbour lists that a thread reads at a time, at most where no single list is longer."""
_PART_BYTES = 2**24


_space = LayerScratch()


def aggregated_blocks(
    graph: Graph, layer: Layer, table: Table, wanted: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """What the layer aggregates of each node's whole list and its own row, without bias and ReLU: float32 blocks that
    add up to [nodes, layer.aggregated]. `table`: the layer's inputs, or products of them. `wanted`: positions of nodes,
    int64; None: all."""
    linear = linear_part(layer)
    roots = inverse_roots(graph.indptr, graph.indices) if linear.weighs_neighbours else None

    def aggregate(nodes: np.ndarray) -> np.ndarray:
        sample = _space.sample(graph, nodes, roots)
        flat = linear.gather(table, sample, _space.activations)
        return flat[: len(nodes) * linear.aggregated].reshape(len(nodes), linear.aggregated).copy()

    def part_of(start: int, end: int) -> np.ndarray:
        return np.arange(start, end) if wanted is None else wanted[start:end]

    bounds = ranges_of_nodes(graph.indptr if wanted is None else _read_by(graph.indptr, wanted), linear.aggregated)
    threads = thread_count()
    for first in range(0, len(bounds), threads):
        parts = bounds[first : first + threads]
        yield from map_parallel(lambda i, parts=parts: aggregate(part_of(*parts[i])), len(parts))  # type: ignore[misc]


def _read_by(indptr: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Where the lists of these nodes would begin and end if they stood behind each other: int64 [nodes + 1]."""
    return np.concatenate([[0], np.cumsum(indptr[nodes + 1] - indptr[nodes])]).astype(np.int64)


def hidden_blocks(aggregated: Rows, layer: Layer) -> Iterator[np.ndarray]:
    """The layer's output, float32 blocks that add up to [nodes, layer.outputs]. `aggregated`: what it aggregates, as
    `aggregated_blocks` makes it, in float32."""
    scratch, width = Activations(), layer.aggregated
    step = max(1, _PART_BYTES // (4 * max(width, layer.outputs)))
    for start in range(0, len(aggregated.values), step):
        block = np.array(aggregated.values[start : start + step, :width])
        finish_aggregation(layer, block, block.ravel())
        made = layer.multiply(block.ravel(), len(block), scratch)
        yield made[: len(block) * layer.outputs].reshape(len(block), layer.outputs).copy()


@dataclass(frozen=True, slots=True)
class LayerStates:
    """Output of a layer for each node, in memory."""

    inner: np.ndarray | None
    """What the second product of the layer reads, float32 [nodes, inner]; None: it has one product."""
    outputs: np.ndarray
    """float32 [nodes, outputs]."""


def hidden_states(
    network: NetworkManifest, tensors: Mapping[str, np.ndarray], features: Features, graph: Graph
) -> list[LayerStates]:
    """What every layer computes of all nodes. `features` are what the first one reads."""
    states: list[LayerStates] = []
    rows = features
    for number in range(network.layers):
        own, tail = tail_of(network, number), tail_tensors(tensors, number)
        projection = projection_of(tail)
        matrices = [projection.rows, *([] if projection.own is None else [projection.own])]
        products = [_in_memory(np.concatenate(list(projected_blocks(rows, matrix)))) for matrix in matrices]
        table = Table("projected", own.projected_columns, products[0], products[-1])
        left = without_first_product(tail)
        layer = build_network(own, left, own.projected_columns, projected=True, compute="float32").layers[0]
        aggregated = _in_memory(np.concatenate(list(aggregated_blocks(graph, layer, table))))
        outputs = np.concatenate(list(hidden_blocks(aggregated, layer)))
        inner = None
        if spec_of(network.architecture).split_inner(tail) is not None:
            first = replace(layer, outputs=layer.aggregated, products=())
            inner = np.concatenate(list(hidden_blocks(aggregated, first)))
        states.append(LayerStates(inner, outputs))
        rows = outputs
    return states


def _in_memory(values: np.ndarray) -> Rows:
    columns, float32 = values.shape[1], FORMATS[Storage.FLOAT32]
    return Rows(float32, np.pad(values, ((0, 0), (0, float32.padded_columns(columns) - columns))), NO_SCALES)


def ranges_of_nodes(indptr: np.ndarray, width: int) -> list[tuple[int, int]]:
    """Ranges of nodes, one after the other, none of which reads or writes much more than fits a cache of some MB."""
    nodes = len(indptr) - 1
    most_nodes = max(1, _PART_BYTES // (4 * width))
    bounds = [0]
    while bounds[-1] < nodes:
        start = bounds[-1]
        end = int(np.searchsorted(indptr, indptr[start] + _PART_EDGES, side="right")) - 1
        bounds.append(min(max(end, start + 1), start + most_nodes, nodes))
    return list(pairwise(bounds))
