"""Inputs of an exported program: one of our own samples laid out as they are, and padded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnnserve_worker.inference.batch import draw_sample
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.programs.layered import (
    EDGE_WEIGHTS,
    EDGES,
    OWN_ROWS,
    OWN_WEIGHTS,
    ROWS,
    TARGETS,
    counted_edges,
    edges_of_layer,
    nodes_and_leaves,
    targets_of_layer,
)
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch
from gnnserve_worker.tables.table import Aggregator, Rows, is_attention, is_weighted

Inputs = Mapping[str, np.ndarray]
"""Arrays by the names of an exported program's inputs."""


def draw_inputs(revision: LoadedRevision, variant: LoadedVariant, seeds: np.ndarray, key: int) -> dict[str, np.ndarray]:
    """What `infer_batch` reads for these seeds (int64, each once) and this key."""
    sample = draw_sample(revision, variant, seeds, key, None, Scratch(), share=False)
    own, columns = variant.table.own, variant.columns
    if variant.network.layers[0].aggregation.aggregator is Aggregator.NONE:
        return {ROWS: _decode(own, sample.nodes, columns)}
    inputs = {ROWS: _decode(variant.table.rows, nodes_and_leaves(sample), columns)}
    if own is not variant.table.rows:
        inputs[OWN_ROWS] = _decode(own, sample.nodes, columns)
    for number, layer in enumerate(variant.network.layers, start=1):
        inputs |= _inputs_of_layer(sample, number, layer.aggregation.aggregator)
    return inputs


def _inputs_of_layer(sample: NeighbourSample, number: int, aggregator: Aggregator) -> dict[str, np.ndarray]:
    edges, count = edges_of_layer(sample, number), targets_of_layer(sample, number)
    counted = np.full(edges.shape[1], fill_value=True)
    if is_attention(aggregator) or is_weighted(aggregator):
        # A node counts once in such a sum, whether it is in its own list or not.
        counted = counted_edges(sample, edges)
    inputs = {f"{EDGES}_{number}": edges[:, counted], f"{TARGETS}_{number}": np.arange(count)}
    if is_weighted(aggregator) and sample.weights is not None:
        inputs[f"{EDGE_WEIGHTS}_{number}"] = sample.weights.of_neighbours[: edges.shape[1]][counted]
        inputs[f"{OWN_WEIGHTS}_{number}"] = sample.weights.of_itself[:count].copy()
    return inputs


def _decode(rows: Rows, nodes: np.ndarray, columns: int) -> np.ndarray:
    scales = rows.scales[nodes] if rows.format.has_scales else None
    return np.ascontiguousarray(rows.format.decode(rows.values[nodes], scales)[:, :columns])


def pad_inputs(inputs: Inputs, more: int) -> dict[str, np.ndarray]:
    """The same question in larger arrays: `more` rows, edges and targets of each kind, none of which counts.

    Answers about targets stay where they were; those behind them mean nothing.
    """
    return {name: _pad(name, inputs, more) for name in inputs}


def join_inputs(blocks: Sequence[Inputs]) -> dict[str, np.ndarray]:
    """Several questions beside each other in one: rows, edges and targets of the first, then of the second, and so
    on."""
    return {name: np.concatenate(_moved(name, blocks), axis=1 if _is_edges(name) else 0) for name in blocks[0]}


def _moved(name: str, blocks: Sequence[Inputs]) -> list[np.ndarray]:
    """Arrays of this name, whose positions count from where each block begins."""
    kind, _, number = name.rpartition("_")
    if kind not in (EDGES, TARGETS):
        return [block[name] for block in blocks]
    is_first = number == "1"
    sources = ROWS if is_first else f"{TARGETS}_{int(number) - 1}"
    own = OWN_ROWS if is_first and OWN_ROWS in blocks[0] else sources
    if kind == TARGETS:
        return [block[name] + begin for block, begin in zip(blocks, _begins(own, blocks), strict=True)]
    begins = np.stack([_begins(sources, blocks), _begins(f"{TARGETS}_{number}", blocks)], axis=1)
    return [block[name] + begin[:, None] for block, begin in zip(blocks, begins, strict=True)]


def _begins(name: str, blocks: Sequence[Inputs]) -> np.ndarray:
    return np.cumsum([0, *(len(block[name]) for block in blocks[:-1])])


def shuffle_edges(inputs: Inputs, random: np.random.Generator) -> dict[str, np.ndarray]:
    """The same question with the edges of each layer, and their weights, in another order."""
    shuffled = dict(inputs)
    for name in filter(_is_edges, inputs):
        order = random.permutation(inputs[name].shape[1])
        shuffled[name] = inputs[name][:, order]
        weights = name.replace(EDGES, EDGE_WEIGHTS)
        if weights in inputs:
            shuffled[weights] = inputs[weights][order]
    return shuffled


def _is_edges(name: str) -> bool:
    return name.rpartition("_")[0] == EDGES


def _pad(name: str, inputs: Inputs, more: int) -> np.ndarray:
    kind, _, number = name.rpartition("_")
    given = inputs[name]
    if kind != EDGES:
        return np.pad(given, [(0, more)] + [(0, 0)] * (given.ndim - 1))
    edges = np.pad(given, ((0, 0), (0, more)))
    # Targets are padded too, and an edge without a target has the number of them.
    edges[1, given.shape[1] :] = len(inputs[f"{TARGETS}_{number}"]) + more
    return edges
