"""Weights as a state dict of numpy arrays under torch_geometric's keys, and what pruning does to their first layer.

Nothing here needs torch, so that given weights are ranked, pruned and projected without importing it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_worker.models.architecture import FirstLayer, Projection, key_of
from gnnserve_worker.models.registry import spec_of_tensors

Tensors = dict[str, np.ndarray]
_DECODER = "decoder."
"""Beginning of the keys of a decoder's weights where they stand beside a network's."""


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
    return {**network, **{f"{_DECODER}{key}": tensor for key, tensor in decoder.items()}}


def without_decoder(tensors: Mapping[str, np.ndarray]) -> tuple[Tensors, Tensors]:
    """The network's weights and the decoder's."""
    network = {key: value for key, value in tensors.items() if not key.startswith(_DECODER)}
    return network, {key.removeprefix(_DECODER): tensors[key] for key in tensors if key.startswith(_DECODER)}
