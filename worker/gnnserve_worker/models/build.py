"""Building a network from a manifest of the repository and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from gnnserve_api.profile import Compute
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models.architecture import Axis, LayerWeights
from gnnserve_worker.models.network import Layer, Network
from gnnserve_worker.models.registry import ARCHITECTURES, spec_of


def compute_for(architecture: Architecture, storage: Storage) -> Compute:
    """Precision of the products of a variant over such a table, on this machine."""
    return ARCHITECTURES[architecture].compute_for(storage)


def build_network(
    manifest: NetworkManifest,
    tensors: Mapping[str, np.ndarray],
    columns: int,
    projected: bool,
    compute: Compute,
) -> Network:
    """The network of a variant that reads `columns` columns of its table. ValueError names a tensor that does not fit.

    Where the processor lacks `compute`, products are made in float32.
    """
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
