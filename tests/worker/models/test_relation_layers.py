"""Layers over several relations, where there is one: they answer as layers over one relation do."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs.graphs import (
    dense_features,
    network_manifest,
    projected_table_of,
    random_graph,
    random_tensors,
)
from tests.support.models.pyg import assert_close
from tests.support.models.serving_path import SHARE, infer, sample_of

from gnnserve_api.files.graph_schema import GraphSchema, RelationManifest, TypeManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.kernels.layout import pack_layout
from gnnserve_worker.models.architecture import RelationalLayer, layer_tensors
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.models.relation_table import RelationTable

NODES, WIDTH = 70, 9


@SHARE
@pytest.mark.parametrize("fanouts", [(6,), (4, 3), (3, 2, 2), (-1, -1)], ids=str)
def test_over_one_relation_they_answer_as_graphsage_does(fanouts: tuple[int, ...], share: bool) -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2, mean_degree=6), dense_features(NODES, WIDTH, seed=2)
    manifest = network_manifest("GraphSAGE", fanouts)
    tensors = random_tensors(manifest, WIDTH, 3)
    of_neighbours, of_itself, biases = (
        [tensors[f"convs.{layer}.{weight}"].T for layer in range(len(fanouts))]
        for weight in ("lin_l.weight", "lin_r.weight", "lin_l.bias")
    )
    rows, own = features @ of_neighbours[0], features @ of_itself[0]
    first_products = ("convs.0.lin_l.weight", "convs.0.lin_r.weight")
    left = {key: tensor for key, tensor in tensors.items() if key not in first_products}
    plain = build_network(manifest, left, rows.shape[1], True, "float32")

    later: dict[str, np.ndarray] = {}
    for number in range(1, len(fanouts)):
        layer = RelationalLayer({0: of_neighbours[number]}, {0: of_itself[number]}, {0: biases[number]})
        later |= layer_tensors(number, layer)
    schema = GraphSchema(
        (TypeManifest("paper", NODES, WIDTH, "Positions"),),
        (RelationManifest("paper", "cites", "paper", graph.edges, None, merges=False, both_ways=False),),
    )
    reads = RelationTable(schema, pack_layout([NODES], [(0, 0)]), np.zeros(1, np.int64), (0,))
    relational = build_network(manifest, later, rows.shape[1], True, "float32", reads)

    sample = sample_of(graph, [*range(0, NODES, 2), 8, 8], fanouts, share=share)
    expected = infer(plain, projected_table_of(rows, own, Storage.FLOAT32), sample)
    found = infer(relational, projected_table_of(rows, own + biases[0], Storage.FLOAT32), sample)
    assert_close(found[0], expected[0])
    assert (found[1] is None) == (expected[1] is None) == (len(fanouts) == 1)
    if found[1] is not None and expected[1] is not None:
        assert_close(found[1], expected[1])
