"""From the repository's words to a network."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from gnnserve_api.profile import Compute
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models import gin, graphsage
from gnnserve_worker.models.dense import preferred_compute
from gnnserve_worker.models.network import Layer, Network


def compute_for(architecture: Architecture, storage: Storage) -> Compute:
    """In which precision the products of a variant over such a table are made, on this machine.

    GIN's always in float32: sums of many rows lose what little bfloat16 keeps of them.
    """
    return preferred_compute(storage) if architecture is Architecture.GRAPHSAGE else "float32"


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
    architecture = Architecture(manifest.architecture)
    depth = len(manifest.fanouts)
    widths = [columns, *[manifest.hidden] * (depth - 1), manifest.classes]
    if projected and columns != (wanted := manifest.projected_columns):
        raise ValueError(f"a projected table has {columns} columns, expected {wanted}: the first product's outputs")
    layers: list[Layer] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        relu = i < depth - 1
        between = manifest.mlp_hidden or outputs
        match architecture, projected and i == 0:
            case Architecture.GRAPHSAGE, True:
                layer = graphsage.build_projected_layer(tensors, outputs, relu=relu)
            case Architecture.GRAPHSAGE, False:
                layer = graphsage.build_layer(tensors, i, inputs, outputs, relu=relu, compute=compute)
            case Architecture.GIN, True:
                layer = gin.build_projected_layer(tensors, between, outputs, relu=relu)
            case Architecture.GIN, False:
                layer = gin.build_layer(tensors, i, inputs, between, outputs, relu=relu)
        layers.append(layer)
    return Network(tuple(layers), manifest.classes)
