"""Passes over networks that are listed layer by layer: networks that give the same of rows that are made ahead of time.

Pure. A pass returns the network that is left, which says in `stored` what it reads; beside it a function says where it
does not hold, and why. What residuals, jumping knowledge and heads read of stored layers stands beside their output in
the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    JumpingKnowledge,
    LayersManifest,
    StoredLayersManifest,
    StoredRowsManifest,
)
from gnnserve_worker.layers.shapes import CLASSIFIED, needed_by_layers, tensor_shapes, widths_of


def why_not_stored(layers: LayersManifest, count: int) -> str:
    """Why the first `count` layers cannot be stored; empty: they can."""
    if layers.stored is not UNSET:
        return f"{layers.stored.layers} layers before these are stored already"
    there = len(layers.layers)
    return "" if count <= there else f"{count} is no layer of the network, which has {there}"


def stored(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], count: int, wanted: Sequence[int] = CLASSIFIED
) -> LayersManifest:
    """The network behind its first `count` layers, whose output is computed over all neighbours. 0: behind the products
    before the first layer. `columns`: features of each type; `wanted`: types that are asked about, by their places.
    ValueError: `why_not_stored`."""
    if problem := why_not_stored(layers, count):
        raise ValueError(problem)
    widths = widths_of(layers, schema, columns)
    output = widths.layers[count - 1].outputs if count else widths.inputs
    rest = msgspec.structs.replace(layers, layers=layers.layers[count:], before=())
    _, of_input = needed_by_layers(rest, schema, wanted)
    jumps = layers.jumping_knowledge is not JumpingKnowledge.LAST
    rows = (
        StoredRowsManifest(
            type_,
            # Of types that are not read, too: layers have weights for all that they write.
            output=output.get(type_, 0),
            written=tuple(each.outputs[type_] for each in widths.layers[: max(0, count - 1)])
            if jumps and type_ in wanted
            else (),
            network_input=widths.inputs.get(type_, 0) if count and of_input else 0,
            features=widths.features[type_] if layers.head_reads_input and type_ in wanted else 0,
        )
        for type_ in range(len(schema.types))
    )
    return msgspec.structs.replace(rest, stored=StoredLayersManifest(count, tuple(row for row in rows if row.columns)))


def rows_behind(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], count: int, wanted: Sequence[int] = CLASSIFIED
) -> dict[int, StoredRowsManifest]:
    """Rows behind the first `count` layers, by the place of their type; arguments as of `stored`."""
    rest = stored(layers, schema, columns, count, wanted)
    return {} if rest.stored is UNSET else {row.type: row for row in rest.stored.rows}


def one_layer(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], number: int,
    wanted: Sequence[int] = CLASSIFIED,
) -> LayersManifest:  # fmt: skip
    """The network of the layer of this number alone, the first being 1, over the rows behind the layer before it. 0: of
    the products before the first layer, over features."""
    over_features = msgspec.structs.replace(layers, layers=())
    read = stored(layers, schema, columns, number - 1, wanted) if number else over_features
    return msgspec.structs.replace(
        read, layers=read.layers[:1], jumping_knowledge=JumpingKnowledge.LAST, head=(), head_reads_input=False,
        head_by_type=False,
    )  # fmt: skip


def tensors_behind(
    tensors: Mapping[str, np.ndarray], rest: LayersManifest, schema: GraphSchema, columns: Sequence[int]
) -> dict[str, np.ndarray]:
    """Weights of what a pass has left of a network. `tensors`: of the whole network."""
    first = 0 if rest.stored is UNSET else rest.stored.layers

    def key_of(key: str) -> str:
        part, *below = key.split(".")
        return ".".join([part, str(int(below[0]) + first), *below[1:]]) if part == "layers" else key

    return {key: tensors[key_of(key)] for key in tensor_shapes(rest, schema, columns)}
