"""The network of a variant on a GPU, whichever kind it is of."""

from __future__ import annotations

import torch

from gnnserve_worker.gpu.arrays import DeviceWeights
from gnnserve_worker.gpu.listed.network import DeviceListedNetwork, listed_network
from gnnserve_worker.gpu.listed.network import weights_bytes as weights_bytes_of_listed
from gnnserve_worker.gpu.network import DeviceNetwork
from gnnserve_worker.models.network import Layer, VariantNetwork, in_layers

AnyDeviceNetwork = DeviceNetwork | DeviceListedNetwork


def network_on(device: torch.device, network: VariantNetwork, weights: DeviceWeights | None) -> AnyDeviceNetwork:
    """`weights`: of the graph, where it has any; taken where the network reads them."""
    listed = listed_network(network)
    if listed is not None:
        return DeviceListedNetwork.of(listed, device, weights)
    return DeviceNetwork.of(in_layers(network), device, weights)


def weights_bytes(network: VariantNetwork) -> int:
    """Bytes of the network's weights in a GPU's memory."""
    listed = listed_network(network)
    if listed is not None:
        return weights_bytes_of_listed(listed)
    layers: tuple[Layer, ...] = network.layers
    return sum(
        product.dense.size * (2 if product.compute == "bfloat16" else 4) + product.bias.nbytes
        for layer in layers
        for each in layer.products
        for product in each.linears
    ) + sum(layer.aggregation.nbytes for layer in layers)
