"""From the repository's words to a network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_api.gnnservice import Architecture
from gnnserve_api.repository import NetworkManifest
from gnnserve_worker.models.gin import GINLayer
from gnnserve_worker.models.graphsage import SAGELayer
from gnnserve_worker.models.network import Aggregation, Layer, Network


def build_network(manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int) -> Network:
    """The network of a variant that reads `columns` columns. ValueError names a tensor that does not fit."""
    depth = len(manifest.fanouts)
    widths = [columns, *[manifest.hidden] * (depth - 1), manifest.classes]
    layers: tuple[Layer, ...]
    aggregation: Aggregation
    match Architecture(manifest.architecture):
        case Architecture.GRAPHSAGE:
            layers = tuple(SAGELayer.build(tensors, i, widths[i], widths[i + 1]) for i in range(depth))
            aggregation = "mean"
        case Architecture.GIN:
            layers = tuple(GINLayer.build(tensors, i, widths[i], widths[i + 1]) for i in range(depth))
            aggregation = "sum"
    return Network(layers, aggregation, manifest.classes)
