"""Networks over relations whose first layer reads feature columns in place of products of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_worker.columns.type_attention import TypeAttention
from gnnserve_worker.columns.type_means import TypeMeans
from gnnserve_worker.models.architecture import RelationalShape, layer_of
from gnnserve_worker.models.network import Network, NetworkLayer
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.models.relation_table import RelationTable


def network_over_columns(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], compute: Compute, reads: RelationTable
) -> Network[NetworkLayer]:
    """The network of a variant that reads the first columns of each type. ValueError names a tensor that does not
    fit."""
    layer, relu = RelationalShape.of(reads.schema, manifest).with_heads(layer_of(0, tensors), 0), manifest.layers > 1
    if layer.heads is None:
        first: TypeMeans | TypeAttention = TypeMeans.build(layer, reads, relu=relu, compute=compute)
        width = first.outputs
    else:
        first, width = TypeAttention.build(layer, reads, relu=relu), layer.columns
    # Its first layer reads products: it is made of the same tensors, and left out.
    later = build_network(manifest, tensors, width, projected=True, compute=compute, relations=reads).layers[1:]
    return Network((first, *later), manifest.classes)
