"""Inputs and outputs of an exported program: names, types, shapes, and what each means."""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_api.files.export import ExportedArray
from gnnserve_worker.models.network import Layer
from gnnserve_worker.opening.loaded import LoadedVariant
from gnnserve_worker.programs.layered import (
    EDGE_WEIGHTS,
    EDGES,
    EMBEDDINGS,
    OWN_ROWS,
    OWN_WEIGHTS,
    ROWS,
    SCORES,
    TARGETS,
)
from gnnserve_worker.tables.table import Aggregator

_EDGES_MEAN = (
    "Edges that layer {number} aggregates: in the first row where each source is in {sources}, in the second which of "
    "{targets} it is a neighbour of. The number of {targets} stands for none: such an edge counts for nothing."
)
_SELF_EDGES: Mapping[Aggregator, str] = {
    Aggregator.MEAN: "",
    Aggregator.SUM: "",
    Aggregator.NORMALISED_SUM: " A node is in its own sum: an edge from it to itself is left out.",
    Aggregator.ATTENTION: " A node attends to itself: an edge from it to itself is left out.",
    Aggregator.NONE: "",
}


def inputs_of(variant: LoadedVariant) -> tuple[ExportedArray, ...]:
    """The inputs, in their order."""
    columns, layers = variant.columns, variant.network.layers
    has_own = variant.table.own is not variant.table.rows
    nodes = "the nodes that are read" if _samples(layers[0]) else "the nodes that are asked about"
    inputs = [ExportedArray(ROWS, "float32", (ROWS, columns), f"Rows of {nodes}, as the table has them.")]
    if has_own:
        meaning = "Rows that are read of nodes themselves: the first ones of those in `rows` are enough."
        inputs.append(ExportedArray(OWN_ROWS, "float32", (OWN_ROWS, columns), meaning))
    for number, layer in enumerate(layers, start=1):
        if _samples(layer):
            inputs += _inputs_of_layer(number, layer, has_own_rows=has_own and number == 1)
    return tuple(inputs)


def _inputs_of_layer(number: int, layer: Layer, *, has_own_rows: bool) -> list[ExportedArray]:
    edges, targets = f"{EDGES}_{number}", f"{TARGETS}_{number}"
    sources = f"`{ROWS}`" if number == 1 else f"`{TARGETS}_{number - 1}`"
    meaning = _EDGES_MEAN.format(number=number, sources=sources, targets=f"`{targets}`")
    own = f"`{OWN_ROWS}`" if has_own_rows else sources
    inputs = [
        ExportedArray(edges, "int64", (2, edges), meaning + _SELF_EDGES[layer.aggregation.aggregator]),
        ExportedArray(targets, "int64", (targets,), f"Where each node that layer {number} writes is in {own}."),
    ]
    if layer.aggregation.weighted:
        inputs += [
            ExportedArray(
                f"{EDGE_WEIGHTS}_{number}", "float32", (edges,),
                f"Weight of each edge of `{edges}`: 1 / sqrt(d(source) · d(target)), times its neighbours over "
                "those that were drawn of it. d(i) is 1 + the neighbours of i in the whole graph but i itself.",
            ),
            ExportedArray(
                f"{OWN_WEIGHTS}_{number}", "float32", (targets,), "1 / d(i) of each node that the layer writes."
            ),
        ]  # fmt: skip
    return inputs


def outputs_of(variant: LoadedVariant, scores: str, *, gives_embeddings: bool) -> tuple[ExportedArray, ...]:
    """The outputs, in their order. `scores`: a sentence about the scores."""
    layers = variant.network.layers
    # A layer that reads its own row alone writes what it was given.
    sampled = [number for number, layer in enumerate(layers, start=1) if _samples(layer)]
    answered = f"{TARGETS}_{sampled[-1]}" if sampled else ROWS
    outputs = [ExportedArray(SCORES, "float32", (answered, variant.network.classes), scores)]
    if gives_embeddings:
        shape = (answered, variant.network.hidden)
        outputs.append(ExportedArray(EMBEDDINGS, "float32", shape, "The last hidden layer."))
    return tuple(outputs)


def _samples(layer: Layer) -> bool:
    return layer.aggregation.aggregator is not Aggregator.NONE
