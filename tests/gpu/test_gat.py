"""GAT's attention on a GPU: the CPU's answers, whatever the table and through a cache."""

from __future__ import annotations

import pytest
import torch
from tests.support.gpu.gpu_revisions import assert_answers_are_the_cpus, projected_revision, revision

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import DeviceAggregation
from gnnserve_worker.gpu.buffers import plan_lane
from gnnserve_worker.gpu.network import DeviceNetwork
from gnnserve_worker.gpu.networks import weights_bytes
from gnnserve_worker.tables.table import Aggregator, Own

pytestmark = pytest.mark.usefixtures("chunks_of_4")


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("fanouts", [(5,), (4, 3), (3, 2, 2)], ids=str)
def test_answers_are_the_cpus(fanouts: tuple[int, ...], heads: int, accelerator: Accelerator) -> None:
    assert_answers_are_the_cpus(revision("GAT", fanouts, heads=heads), accelerator)


@pytest.mark.parametrize("storage", [Storage.BFLOAT16, Storage.INT8])
def test_answers_are_the_cpus_from_stored_tables(storage: Storage, accelerator: Accelerator) -> None:
    assert_answers_are_the_cpus(revision("GAT", storage=storage, heads=2), accelerator)


@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.INT8])
@pytest.mark.parametrize("fanouts", [(4,), (4, 3)], ids=str)
def test_answers_are_the_cpus_from_projected_tables(
    fanouts: tuple[int, ...], storage: Storage, accelerator: Accelerator
) -> None:
    assert_answers_are_the_cpus(projected_revision("GAT", fanouts, storage, heads=4), accelerator)


def test_weights_and_rooms_are_counted_as_they_lie() -> None:
    variant = revision("GAT", (4, 3), heads=4).variants["x1"]
    network = DeviceNetwork.of(variant.network, torch.device("cpu"))

    vectors = sum(layer.aggregation.attention.vectors.nbytes for layer in network.layers)  # type: ignore[union-attr]
    of_products = sum(
        p.dense.nbytes + p.bias.nbytes
        for layer in variant.network.layers
        for each in layer.products
        for p in each.linears
    )
    sizes = plan_lane([variant])

    assert weights_bytes(variant.network) == vectors + of_products
    # Scores and shares of 1 + 4 + 12 places of a seed, and the shares of its 5 rows.
    assert sizes.attention_numbers == sizes.seeds * 4 * (3 * 17 + 5)


def test_an_aggregation_without_its_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="aggregator attention, with attention: False"):
        DeviceAggregation(Aggregator.ATTENTION, Own.ADDED, 1.0, None, relu=False)
