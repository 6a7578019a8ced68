"""The objects of each architecture, one for each kind of graph that it is for: found by name, or by the keys of
weights, whose first layer they tell and change, for pruning and projections. Networks are built of them: from a
manifest of the repository and its tensors.

A new one is added here, and its torch module in `generation/networks.py`. Nothing here needs torch, so that given
weights are ranked, pruned and projected without importing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import numpy as np

from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models.architecture import (
    ArchitectureSpec,
    Axis,
    FirstLayer,
    LayerWeights,
    OneTypeSpec,
    Projection,
    RelationalLayer,
    RelationalShape,
    RelationalSpec,
    key_of,
    layer_of,
)
from gnnserve_worker.models.gat import GatSpec, RelationalGatSpec
from gnnserve_worker.models.gcn import GcnSpec
from gnnserve_worker.models.gin import GinSpec
from gnnserve_worker.models.graphsage import GraphSageSpec, RelationalGraphSageSpec
from gnnserve_worker.models.light_gcn import LightGcnSpec
from gnnserve_worker.models.network import Layer, Linear, Network, NetworkLayer
from gnnserve_worker.models.relation_attention import RelationAttention
from gnnserve_worker.models.relation_means import RelationMeans
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.models.rgcn import RgcnSpec
from gnnserve_worker.models.sgc import SgcSpec
from gnnserve_worker.models.sign import SignSpec


@dataclass(frozen=True, slots=True)
class RegisteredArchitecture:
    """An architecture, and what it is over each kind of graph."""

    architecture: Architecture
    one_type: OneTypeSpec | None = None
    """Over graphs of one type; None: it is not for them."""
    relational: RelationalSpec | None = None
    """Over graphs of several types or relations; None: it is not for them."""

    @property
    def specs(self) -> tuple[ArchitectureSpec, ...]:
        """Its objects, that over one type first."""
        return tuple(spec for spec in (self.one_type, self.relational) if spec is not None)


ARCHITECTURES: Mapping[Architecture, RegisteredArchitecture] = {
    one.architecture: one
    for one in (
        RegisteredArchitecture(Architecture.GRAPHSAGE, GraphSageSpec(), RelationalGraphSageSpec()),
        RegisteredArchitecture(Architecture.GIN, GinSpec()),
        RegisteredArchitecture(Architecture.GCN, GcnSpec()),
        RegisteredArchitecture(Architecture.SGC, SgcSpec()),
        RegisteredArchitecture(Architecture.SIGN, SignSpec()),
        RegisteredArchitecture(Architecture.GAT, GatSpec(), RelationalGatSpec()),
        RegisteredArchitecture(Architecture.LIGHT_GCN, LightGcnSpec()),
        RegisteredArchitecture(Architecture.RGCN, relational=RgcnSpec()),
    )
}
OF_ONE_TYPE: Mapping[Architecture, OneTypeSpec] = {
    name: one.one_type for name, one in ARCHITECTURES.items() if one.one_type is not None
}
RELATIONAL: Mapping[Architecture, RelationalSpec] = {
    name: one.relational for name, one in ARCHITECTURES.items() if one.relational is not None
}


def spec_of(architecture: str) -> OneTypeSpec:
    """Find what an architecture is over graphs of one type, by name. ValueError: this version does not know the name;
    a newer one may have written it."""
    return OF_ONE_TYPE[Architecture(architecture)]


def relational_spec_of(architecture: str) -> RelationalSpec:
    """Find what it is over graphs of several types or relations. ValueError: as `spec_of`."""
    return RELATIONAL[Architecture(architecture)]


# --- weights under torch_geometric's keys, whichever architecture they are of


Tensors = dict[str, np.ndarray]
"""Weights of a network, as a state dict."""
DECODER = "decoder."
"""Beginning of the keys of a decoder's weights where they stand beside a network's."""


def spec_of_tensors(keys: Iterable[str]) -> OneTypeSpec:
    """The architecture of a whole state dict under torch_geometric's keys, by the tensors of its first layer."""
    found = {key for key in keys if key.startswith(key_of(0, ""))}
    for spec in OF_ONE_TYPE.values():
        if {key_of(0, weight) for weight in spec.shapes} == found:
            return spec
    raise ValueError(f"no architecture has a first layer of {', '.join(sorted(found)) or 'no tensors'}")


def first_layer(tensors: Mapping[str, np.ndarray]) -> FirstLayer:
    return spec_of_tensors(tensors).split_first_layer(tensors)


def projection_of(tensors: Mapping[str, np.ndarray]) -> Projection:
    return spec_of_tensors(tensors).project(tensors)


def with_first_layer(tensors: Mapping[str, np.ndarray], first: FirstLayer) -> Tensors:
    changed = spec_of_tensors(tensors).first_layer_tensors(first)
    return {
        **tensors,
        **{key_of(0, weight): np.ascontiguousarray(value, dtype=np.float32) for weight, value in changed.items()},
    }


def keep_columns_of(tensors: Mapping[str, np.ndarray], columns: np.ndarray) -> Tensors:
    """The network with the first layer reduced to the given columns, in the given order."""
    return with_first_layer(tensors, first_layer(tensors).keep(columns))


def without_first_product(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """The network of a projected variant, whose table holds the first product already."""
    products = spec_of_tensors(tensors).first_product_keys()
    return {key: value for key, value in tensors.items() if key not in products}


def with_decoder(network: Mapping[str, np.ndarray], decoder: Mapping[str, np.ndarray]) -> Tensors:
    """A network's weights and those of the decoder that was learnt beside it as one set, to be kept together."""
    return {**network, **{f"{DECODER}{key}": tensor for key, tensor in decoder.items()}}


def without_decoder(tensors: Mapping[str, np.ndarray]) -> tuple[Tensors, Tensors]:
    """The network's weights and the decoder's."""
    network = {key: value for key, value in tensors.items() if not key.startswith(DECODER)}
    return network, {key.removeprefix(DECODER): tensors[key] for key in tensors if key.startswith(DECODER)}


# --- networks, of a manifest and its tensors


def compute_for(architecture: Architecture, storage: Storage) -> Compute:
    """Precision of the products of a variant over such a table, on this machine."""
    return spec_of(architecture).compute_for(storage)


@overload
def build_network(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, projected: bool, compute: Compute
) -> Network[Layer]: ...


@overload
def build_network(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, projected: bool, compute: Compute,
    relations: RelationTable,
) -> Network[NetworkLayer]: ...  # fmt: skip


def build_network(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, projected: bool, compute: Compute,
    relations: RelationTable | None = None,
) -> Network[Layer] | Network[NetworkLayer]:  # fmt: skip
    """The network of a variant that reads `columns` columns of its table. ValueError names a tensor that does not fit.

    Where the processor lacks `compute`, products are made in float32. `relations`: where the table has rows of each
    relation; None: it has the rows of nodes, whichever relation reads them.
    """
    if relations is not None:
        build = _layers_of_means if manifest.attention is None else _layers_of_attention
        return Network(build(manifest, tensors, columns, compute, relations), manifest.classes)
    if projected and columns != (wanted := manifest.projected_columns):
        raise ValueError(f"a projected table has {columns} columns, expected {wanted}: the first product's outputs")
    spec = spec_of(manifest.architecture)
    layers: list[Layer] = []
    all_sizes = layer_sizes(manifest, columns)
    for number, sizes in enumerate(all_sizes):
        weights = LayerWeights(tensors, number, spec.shapes, sizes, manifest.attention)
        relu = number < len(all_sizes) - 1
        if projected and number == 0:
            layers.append(spec.build_projected_layer(weights, relu=relu))
        else:
            layers.append(spec.build_layer(weights, relu=relu, compute=compute))
    return Network(tuple(layers), manifest.classes)


def layer_sizes(manifest: NetworkManifest, columns: int) -> list[dict[Axis, int]]:
    """The axes of each layer of a network over `columns` feature columns."""
    widths = [columns, *[manifest.hidden] * (len(manifest.fanouts) - 1), manifest.classes]
    return [
        {
            Axis.INPUTS: inputs,
            Axis.INNER: manifest.mlp_hidden or outputs,
            Axis.OUTPUTS: outputs,
            **head_sizes(manifest, layer, outputs),
            Axis.ONE: 1,
        }
        for layer, (inputs, outputs) in enumerate(pairwise(widths))
    ]


def head_sizes(manifest: NetworkManifest, layer: int, outputs: int) -> dict[Axis, int]:
    """Sizes of the axes of heads. Heads are side by side in hidden layers, and averaged in the last one."""
    heads = manifest.heads_of(layer)
    each = outputs if layer == manifest.layers - 1 else outputs // heads
    return {Axis.HEADS: heads, Axis.HEAD_OUTPUTS: each, Axis.ALL_OUTPUTS: heads * each}


def table_layer(layer: RelationalLayer, columns: int, relations: RelationTable, *, relu: bool) -> NetworkLayer:
    """A layer over a table of its products, of `columns` columns."""
    if layer.heads is None:
        return RelationMeans(columns, columns, relations, {}, relu)
    return RelationAttention(columns, columns, relations, layer.heads, layer.biases, {}, {}, relu)


def _layers_of_means(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, compute: Compute,
    relations: RelationTable,
) -> tuple[NetworkLayer, ...]:  # fmt: skip
    later = [layer_of(number, tensors) for number in range(1, manifest.layers)]
    widths = [columns, *(layer.outputs for layer in later)]
    if widths[-1] != manifest.classes:
        raise ValueError(f"the last layer has {widths[-1]} outputs, expected {manifest.classes}, one for each class")
    return (
        RelationMeans(columns, columns, relations, {}, relu=bool(later)),
        *(
            RelationMeans(
                inputs,
                layer.outputs,
                relations,
                _products_of_types(layer, inputs, relations, relu=layer is not later[-1], compute=compute),
                relu=layer is not later[-1],
            )
            for layer, inputs in zip(later, widths[:-1], strict=True)
        ),
    )


def _products_of_types(
    layer: RelationalLayer, inputs: int, relations: RelationTable, *, relu: bool, compute: Compute
) -> dict[int, Linear]:
    """The product of each type's means beside each other, and of the row itself, of hidden states of `inputs`
    columns."""
    products, schema = {}, relations.schema
    nothing = np.zeros((inputs, layer.outputs), np.float32)
    for kind, bias in layer.biases.items():
        name = schema.types[kind].name
        read = [place for place, relation in enumerate(schema.relations) if relation.target == name]
        matrices = [*(layer.relations.get(place, nothing) for place in read), layer.own.get(kind, nothing)]
        for matrix in matrices:
            if matrix.shape != (inputs, layer.outputs):
                found, expected = list(matrix.shape), [inputs, layer.outputs]
                raise ValueError(f"a matrix of a layer for type {name} has shape {found}, expected {expected}")
        products[kind] = Linear.build(np.concatenate(matrices), bias, relu=relu, compute=compute)
    return products


def _layers_of_attention(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, compute: Compute,
    relations: RelationTable,
) -> tuple[NetworkLayer, ...]:  # fmt: skip
    """Products are made in float32, whatever `compute` is."""
    shape = RelationalShape.of(relations.schema, manifest)
    first, *later = (shape.with_heads(layer_of(number, tensors), number) for number in range(manifest.layers))
    return (
        table_layer(first, columns, relations, relu=bool(later)),
        *(_attending_layer(layer, manifest.hidden, relations, relu=layer is not later[-1]) for layer in later),
    )


def _attending_layer(layer: RelationalLayer, inputs: int, relations: RelationTable, *, relu: bool) -> RelationAttention:
    """A layer that attends over hidden states of `inputs` columns."""
    width = layer.columns

    def product(matrix: np.ndarray) -> Linear:
        if len(matrix) != inputs:
            raise ValueError(f"a matrix of a layer has {len(matrix)} inputs, expected {inputs}")
        wide = np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])))
        return Linear.build(wide, np.zeros(width, np.float32), relu=False, compute="float32")

    assert layer.heads is not None  # noqa: S101 - only such layers come here
    return RelationAttention(
        inputs,
        width,
        relations,
        layer.heads,
        layer.biases,
        {place: product(matrix) for place, matrix in layer.relations.items()},
        {kind: product(matrix) for kind, matrix in layer.own.items()},
        relu,
    )
