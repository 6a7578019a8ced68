"""GCN's weighted sums on a GPU: the CPU's answers, whatever the table and through a cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.gpu.gpu_revisions import assert_answers_are_the_cpus, engine_of, projected_revision, revision

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.arrays import DeviceAggregation
from gnnserve_worker.gpu.placement import roots_bytes
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own

pytestmark = pytest.mark.usefixtures("chunks_of_4")


@pytest.mark.parametrize("fanouts", [(5,), (4, 3), (3, 2, 2)], ids=str)
def test_answers_are_the_cpus(fanouts: tuple[int, ...], accelerator: Accelerator) -> None:
    assert_answers_are_the_cpus(revision("GCN", fanouts), accelerator)


@pytest.mark.parametrize("storage", [Storage.BFLOAT16, Storage.INT8])
def test_answers_are_the_cpus_from_stored_tables(storage: Storage, accelerator: Accelerator) -> None:
    assert_answers_are_the_cpus(revision("GCN", storage=storage), accelerator)


def test_answers_are_the_cpus_from_projected_tables(accelerator: Accelerator) -> None:
    assert_answers_are_the_cpus(projected_revision("GCN", (4, 3), Storage.FLOAT32), accelerator)


def test_roots_are_counted_with_the_graph(accelerator: Accelerator) -> None:
    loaded = revision("GCN")

    stats = engine_of(loaded, accelerator).stats()

    assert roots_bytes(loaded) == 4 * loaded.graph.nodes
    assert stats.memory_bytes["graph"] == loaded.graph.indptr.nbytes + loaded.graph.indices.nbytes + roots_bytes(loaded)


def test_an_aggregation_without_its_weights_is_refused() -> None:
    weighted = Aggregation(Aggregator.NORMALISED_SUM, Own.ADDED, 1.0, np.zeros(0, dtype=np.float32), relu=False)

    with pytest.raises(ValueError, match="a normalised sum with weights: False"):
        DeviceAggregation.of(weighted, torch.device("cpu"))
