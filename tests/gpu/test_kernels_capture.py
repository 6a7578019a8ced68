"""What can only be seen on a GPU: kernels in a captured graph read seeds and key of every replay anew."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.graphs.graphs import dense_features, random_graph, table_of
from tests.support.lacks import needs_gpu

from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.arrays import DeviceAggregation, DeviceGraph, DeviceRows, PaddedTree, tensor_over
from gnnserve_worker.gpu.kernels.aggregate import aggregate_hidden
from gnnserve_worker.gpu.kernels.gather import gather_rows
from gnnserve_worker.gpu.kernels.sample import sample_tree
from gnnserve_worker.tables.table import Aggregation, Aggregator, Own


@pytest.mark.gpu
@needs_gpu()
def test_a_captured_batch_answers_for_the_seeds_and_key_of_each_replay() -> None:
    gpu = torch.device("cuda", 0)
    graph = random_graph(300, seed=1, mean_degree=12)
    on_device = DeviceGraph(tensor_over(graph.indptr).to(gpu), tensor_over(graph.indices).pin_memory())
    stored = table_of(dense_features(300, 40, 2), Storage.FLOAT16).rows
    rows = DeviceRows(tensor_over(stored.values, stored.format).pin_memory(), None)
    mean = DeviceAggregation.of(
        Aggregation(Aggregator.MEAN, Own.BESIDE, 1.0, np.zeros(0, dtype=np.float32), relu=False), gpu
    )
    seeds, key = torch.zeros(16, dtype=torch.int64, device=gpu), torch.zeros(1, dtype=torch.int64, device=gpu)
    tree = PaddedTree.allocate(16, (5, 3), gpu)
    aggregated = torch.empty(tree.rows, 80, device=gpu)
    answers = torch.empty(tree.seeds, 160, device=gpu)

    def batch() -> None:
        sample_tree(on_device, seeds, key, tree)
        gather_rows(rows, rows, 40, tree, mean, aggregated, None)
        aggregate_hidden(aggregated, tree, tree.seeds, mean, answers)

    batch()  # compiles, which a capture may not
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        batch()
    for replay in range(5):
        seeds.copy_(torch.randint(-1, 300, (16,), generator=torch.Generator().manual_seed(replay)))
        key.fill_(replay)
        captured.replay()
        torch.cuda.synchronize()
        found = answers.clone()
        answers.zero_()

        batch()

        assert torch.equal(found, answers)
