"""From the repository's words to a network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_api.gnnservice import Architecture
from gnnserve_api.profile import Compute
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.models import gin, graphsage
from gnnserve_worker.models.dense import preferred_compute
from gnnserve_worker.models.network import Layer, Network

_ARCHITECTURES = {Architecture.GRAPHSAGE: graphsage, Architecture.GIN: gin}


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
    architecture = _ARCHITECTURES[Architecture(manifest.architecture)]
    depth = len(manifest.fanouts)
    widths = [columns, *[manifest.hidden] * (depth - 1), manifest.classes]
    if projected and widths[1] != columns:
        raise ValueError(f"a projected table has {columns} columns, expected {widths[1]}: the first layer's outputs")
    layers: list[Layer] = []
    for i in range(depth):
        relu = i < depth - 1
        if projected and i == 0:
            layers.append(architecture.build_projected_layer(tensors, widths[1], relu=relu))
        else:
            layers.append(architecture.build_layer(tensors, i, widths[i], widths[i + 1], relu=relu, compute=compute))
    return Network(tuple(layers), manifest.classes)
