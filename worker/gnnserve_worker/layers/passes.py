"""Passes over networks that are listed layer by layer: networks that give the same of rows that are made ahead of time.

Pure. A pass returns the network that is left, which says in `stored` what it reads; beside it a function says where it
does not hold, and why. What residuals, jumping knowledge and heads read of stored layers stands beside their output in
the rows. One pass makes an equal network of the same layers: its last products before them are the first layer's, which
then reads these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    DenseManifest,
    JumpingKnowledge,
    LayersManifest,
    StoredLayersManifest,
    StoredRowsManifest,
    TypeProductsManifest,
)
from gnnserve_worker.layers.dense import below
from gnnserve_worker.layers.products import (
    ProductPlaces,
    place_products,
    product_matrices,
    why_not_over_products,
)
from gnnserve_worker.layers.shapes import (
    CLASSIFIED,
    NetworkWidths,
    needed_by_layers,
    tensor_shapes,
    types_of,
    widths_of,
)


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
    output = widths.layers[count - 1].outputs if count else _read_before(widths)
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


def _read_before(widths: NetworkWidths) -> Mapping[int, int]:
    """Columns of the rows of each type before the first layer: where these are products, of none that is not read."""
    products = widths.layers[0].products if widths.layers else None
    return widths.inputs if products is None else products.columns


def rows_behind(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], count: int, wanted: Sequence[int] = CLASSIFIED
) -> dict[int, StoredRowsManifest]:
    """Rows behind the first `count` layers, by the place of their type; arguments as of `stored`."""
    rest = stored(layers, schema, columns, count, wanted)
    return {} if rest.stored is UNSET else {row.type: row for row in rest.stored.rows}


def widest_row(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], count: int, wanted: Sequence[int] = CLASSIFIED
) -> int:
    """Columns of a row behind the first `count` layers, of the widest type; arguments as of `stored`."""
    return max((row.columns for row in rows_behind(layers, schema, columns, count, wanted).values()), default=0)


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


# --- products of the first layer


def why_not_projected(layers: LayersManifest, schema: GraphSchema, wanted: Sequence[int] = CLASSIFIED) -> str:
    """Why the first layer cannot read products that are made of each node alone; empty: it can."""
    if layers.stored is not UNSET or not layers.layers:
        return "there is no layer over features"
    if problem := why_not_over_products(layers.layers[0]):
        return f"layers[0]: {problem}"
    _, of_input = needed_by_layers(msgspec.structs.replace(layers, layers=layers.layers[1:]), schema, wanted)
    return "later layers read what stands before the first one" if of_input else ""


def projected(layers: LayersManifest, schema: GraphSchema, columns: Sequence[int]) -> LayersManifest:
    """The equal network whose first layer reads products, which the last products before it give. Arguments as of
    `stored`. ValueError: `why_not_projected`."""
    if problem := why_not_projected(layers, schema):
        raise ValueError(problem)
    first = msgspec.structs.replace(layers.layers[0], reads_products=True)
    before = {each.type: each.products for each in layers.before}
    for type_, width in _places(layers, schema, columns).columns.items():
        before[type_] = (*before.get(type_, ()), DenseManifest(width))
    made = tuple(TypeProductsManifest(type_, products) for type_, products in sorted(before.items()))
    return msgspec.structs.replace(layers, layers=(first, *layers.layers[1:]), before=made)


def projected_tensors(
    tensors: Mapping[str, np.ndarray], layers: LayersManifest, schema: GraphSchema, columns: Sequence[int]
) -> dict[str, np.ndarray]:
    """Weights of the network that `projected` makes of these layers, whose own ones are `tensors`."""
    places, first = _places(layers, schema, columns), layers.layers[0]
    matrices = product_matrices(first, types_of(first, schema), places, below(tensors, "layers.0"))
    before = {each.type: len(each.products) for each in layers.before}
    made = {
        f"before.{type_}.{before.get(type_, 0)}.{name}": one
        for type_, matrix in matrices.items()
        for name, one in (("weight", matrix.weight), ("bias", matrix.bias))
        if one is not None
    }
    return {
        key: made[key] if key in made else tensors[key]
        for key in tensor_shapes(projected(layers, schema, columns), schema, columns)
    }


def over_own_rows(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], wanted: Sequence[int] = CLASSIFIED
) -> LayersManifest | None:
    """The equal network whose rows before the first layer, of each node alone, are the narrowest: behind products that
    there are, or behind the first layer's. None: there are no products before the first aggregation."""
    found = [] if why_not_projected(layers, schema, wanted) else [projected(layers, schema, columns)]
    found += [layers] if layers.before else []
    return min(found, key=lambda each: widest_row(each, schema, columns, 0, wanted), default=None)


def over_narrow_rows(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], wanted: Sequence[int] = CLASSIFIED
) -> LayersManifest | None:
    """The same, if these rows are narrower than features; None: they are not."""
    found = over_own_rows(layers, schema, columns, wanted)
    return None if found is None or widest_row(found, schema, columns, 0, wanted) >= max(columns) else found


def _places(layers: LayersManifest, schema: GraphSchema, columns: Sequence[int]) -> ProductPlaces:
    """Places of the first layer's products, of a network whose layer reads rows."""
    first, widths = layers.layers[0], widths_of(layers, schema, columns)
    ends, outputs = widths.layers[0].ends, widths.layers[0].outputs
    return place_products(first, types_of(first, schema), ends, outputs, widths.inputs)


# --- weights


def tensors_behind(
    tensors: Mapping[str, np.ndarray], rest: LayersManifest, schema: GraphSchema, columns: Sequence[int]
) -> dict[str, np.ndarray]:
    """Weights of what a pass has left of a network. `tensors`: of the whole network."""
    first = 0 if rest.stored is UNSET else rest.stored.layers

    def key_of(key: str) -> str:
        part, *below = key.split(".")
        return ".".join([part, str(int(below[0]) + first), *below[1:]]) if part == "layers" else key

    return {key: tensors[key_of(key)] for key in tensor_shapes(rest, schema, columns)}
