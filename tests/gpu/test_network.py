"""Products on the device, in the precision of the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.gpu.gpu_revisions import revision

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.network import DeviceNetwork, DeviceProduct
from gnnserve_worker.gpu.networks import weights_bytes
from gnnserve_worker.models.network import Linear
from gnnserve_worker.tables.formats import FORMATS


def _linear(compute: str, *, relu: bool) -> Linear:
    draw = np.random.default_rng(1)
    weight = draw.normal(size=(24, 5)).astype(np.float32)
    bias = draw.normal(size=5).astype(np.float32)
    built = Linear.build(weight, bias, relu=relu, compute="float32")
    # As a processor with AMX would have it.
    return Linear(24, 5, built.weight, built.dense, bias, relu, compute, built.address)  # type: ignore[arg-type]


@pytest.mark.parametrize("relu", [False, True])
def test_float32_products_are_the_cpus(relu: bool, device: torch.device) -> None:
    linear = _linear("float32", relu=relu)
    rows = np.random.default_rng(2).normal(size=(7, 24)).astype(np.float32)
    expected, found = np.empty(7 * 5, np.float32), torch.empty(7, 5, device=device)

    linear.apply(rows.ravel(), 7, expected)
    DeviceProduct.of(linear, device).apply(torch.tensor(rows, device=device), found)

    np.testing.assert_allclose(found.cpu().numpy(), expected.reshape(7, 5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("relu", [False, True])
def test_bfloat16_products_round_the_factors_and_nothing_else(relu: bool, device: torch.device) -> None:
    linear = _linear("bfloat16", relu=relu)
    rows = np.random.default_rng(2).normal(size=(7, 24)).astype(np.float32)
    found = torch.empty(7, 5, device=device)

    DeviceProduct.of(linear, device).apply(torch.tensor(rows).bfloat16().to(device), found)

    expected = _as_bfloat16(rows).astype(np.float64) @ _as_bfloat16(linear.dense) + linear.bias
    np.testing.assert_allclose(found.cpu().numpy(), np.maximum(expected, 0) if relu else expected, rtol=0, atol=1e-5)


def _as_bfloat16(values: np.ndarray) -> np.ndarray:
    bits, _ = FORMATS[Storage.BFLOAT16].encode(values)
    return FORMATS[Storage.BFLOAT16].decode(bits, None)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
def test_weights_are_counted_as_they_lie(architecture: str, device: torch.device) -> None:
    variant = revision(architecture, (2, 2)).variants["x1"]
    network = DeviceNetwork.of(variant.network, device)

    products = [product for layer in network.layers for product in layer.products]
    assert weights_bytes(variant.network) == sum(product.weight.nbytes + product.bias.nbytes for product in products)
