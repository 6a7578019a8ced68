"""Building a network over several types from the tensors of a repository, and these from a checkpoint's layers.

A variant's file has the layers behind its table in the form of `architecture.py`, whatever architecture they are of:
`layers.<number>.relations.<place>`, `.own.<place>` and `.biases.<place>`, places being those of the graph's manifest.
Those that tables are made by have `.shifts.<place>` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gnnserve_api.profile import Compute
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.graph.typed_lists import TypedGraph
from gnnserve_worker.models.dense import Linear
from gnnserve_worker.models.network import Network
from gnnserve_worker.models.typed.architecture import RelationalLayer, TypedShape
from gnnserve_worker.models.typed.attention import AttentionLayer, TypedAttentionNetwork
from gnnserve_worker.models.typed.network import TypedLayer, TypedNetwork

_PARTS = ("relations", "own", "biases", "shifts")


def default_key(kind: int) -> str:
    """Key of what new nodes of a type without features begin with, float32 [hidden]. `kind`: the place of the type."""
    return f"types.{kind}.default"


def moment_key(kind: int, moment: str) -> str:
    """Key of the mean or deviation of a type's columns, float64."""
    return f"types.{kind}.{moment}"


def layer_tensors(number: int, layer: RelationalLayer) -> dict[str, np.ndarray]:
    """A layer as tensors of a file. `number`: of the layer, from 0."""
    return {
        f"layers.{number}.{part}.{place}": np.ascontiguousarray(matrix, dtype=np.float32)
        for part in _PARTS
        for place, matrix in getattr(layer, part).items()
    }


def layer_of(number: int, tensors: Mapping[str, np.ndarray]) -> RelationalLayer:
    """The layer that `layer_tensors` wrote. ValueError: there is none."""
    found: dict[str, dict[int, np.ndarray]] = {part: {} for part in _PARTS}
    for key, tensor in tensors.items():
        group, layer, part, place = key.split(".") if key.count(".") == 3 else ("", "", "", "")
        if group == "layers" and layer == str(number) and part in found:
            found[part][int(place)] = np.asarray(tensor, dtype=np.float32)
    if not found["biases"] and not found["own"]:
        raise ValueError(f"weights lack layer {number}; they have {', '.join(sorted(tensors)) or 'nothing'}")
    return RelationalLayer(found["relations"], found["own"], found["biases"], found["shifts"])


def build_typed_network(
    manifest: NetworkManifest,
    tensors: Mapping[str, np.ndarray],
    graph: TypedGraph,
    first_rows: Sequence[int | None],
    columns: int,
    compute: Compute,
) -> Network:
    """The network of a variant whose table has `columns` columns and rows of each relation from `first_rows` on.
    ValueError names what does not fit."""
    rows = np.array([-1 if first is None else first for first in first_rows], np.int64)
    if manifest.attention is not None:
        return _build_attending(manifest, tensors, graph, rows, columns)
    layers = [layer_of(number, tensors) for number in range(1, manifest.layers)]
    widths = [columns, *(layer.outputs for layer in layers)]
    if widths[-1] != manifest.classes:
        raise ValueError(f"the last layer has {widths[-1]} outputs, expected {manifest.classes}, one for each class")
    later = tuple(
        build_layer(layer, graph.typed, inputs, relu=number < len(layers), compute=compute)
        for number, (layer, inputs) in enumerate(zip(layers, widths[:-1], strict=True), start=1)
    )
    return TypedNetwork((), manifest.classes, graph.layout, rows, columns, later)


def build_first_layer(
    layer: RelationalLayer, graph: TypedGraph, first_rows: Sequence[int | None], columns: int
) -> tuple[Network, int]:
    """The first layer alone, over a table of its products with `columns` columns and rows of each relation from
    `first_rows` on, without its ReLU; and how many columns it gives."""
    rows = np.array([-1 if first is None else first for first in first_rows], np.int64)
    if layer.heads is None:
        return TypedNetwork((), columns, graph.layout, rows, columns, ()), columns
    sources = tuple(graph.typed.place_of(relation.source) for relation in graph.typed.relations)
    attending = AttentionLayer(layer.heads, layer.biases, {}, {}, columns)
    outputs = layer.heads.outputs
    return TypedAttentionNetwork((), outputs, graph.layout, rows, sources, (attending,)), outputs


def _build_attending(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], graph: TypedGraph, first_rows: np.ndarray,
    columns: int,
) -> TypedAttentionNetwork:  # fmt: skip
    shape = TypedShape(graph.typed, manifest.hidden, manifest.classes, manifest.layers, attention=manifest.attention)
    attending = []
    for number in range(manifest.layers):
        heads = shape.heads_of(number)
        layer = replace(layer_of(number, tensors), heads=heads)
        if number == 0:
            attending.append(AttentionLayer(heads, layer.biases, {}, {}, columns))
            continue
        width = layer.columns

        def product(matrix: np.ndarray, width: int = width) -> Linear:
            wide = np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])))
            if len(wide) != manifest.hidden:
                raise ValueError(f"a matrix of a layer has {len(wide)} inputs, expected {manifest.hidden}")
            return Linear.build(wide, np.zeros(width, np.float32), relu=False, compute="float32")

        relations = {place: product(matrix) for place, matrix in layer.relations.items()}
        own = {kind: product(matrix) for kind, matrix in layer.own.items()}
        attending.append(AttentionLayer(heads, layer.biases, relations, own, width))
    sources = tuple(graph.typed.place_of(relation.source) for relation in graph.typed.relations)
    return TypedAttentionNetwork((), manifest.classes, graph.layout, first_rows, sources, tuple(attending))


def build_layer(
    layer: RelationalLayer, graph: TypedGraphManifest, inputs: int, *, relu: bool, compute: Compute
) -> TypedLayer:
    """A layer that reads hidden states of `inputs` columns."""
    products = {}
    nothing = np.zeros((inputs, layer.outputs), np.float32)
    for kind, bias in layer.biases.items():
        name = graph.types[kind].name
        read = [place for place, relation in enumerate(graph.relations) if relation.target == name]
        matrices = [*(layer.relations.get(place, nothing) for place in read), layer.own.get(kind, nothing)]
        for matrix in matrices:
            if matrix.shape != (inputs, layer.outputs):
                found, expected = list(matrix.shape), [inputs, layer.outputs]
                raise ValueError(f"a matrix of a layer for type {name} has shape {found}, expected {expected}")
        products[kind] = Linear.build(np.concatenate(matrices), bias, relu=relu, compute=compute)
    return TypedLayer(inputs, layer.outputs, products)
