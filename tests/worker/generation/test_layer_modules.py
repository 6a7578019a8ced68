"""Torch modules of networks as layers have the tensors of their description, and the answers of torch_geometric."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.support.models.random_layers import (
    RandomGraph,
    case_of,
    draw_case,
    one_type,
    products,
    scores_of,
    several_types,
)

from gnnserve_api.files.layers import (
    Activation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
)
from gnnserve_worker.generation import networks
from gnnserve_worker.generation.layer_convolutions import CONVOLUTIONS, Learning
from gnnserve_worker.generation.layer_modules import LayersModule, canonical, load_canonical
from gnnserve_worker.generation.layer_rows import GraphNorm
from gnnserve_worker.layers.shapes import problems_of, tensor_shapes

pyg = networks.pyg  # imported there without its warnings


def test_each_convolution_has_its_module() -> None:
    assert list(CONVOLUTIONS) == list(Convolution)


@pytest.mark.campaign
@pytest.mark.parametrize("make", [one_type, several_types])
@pytest.mark.parametrize("kind", Convolution)
def test_the_tensors_are_those_of_the_description(kind: Convolution, make: Any) -> None:
    for seed in range(4):
        case = draw_case(seed, make, kind)
        schema, columns = case.graph.data.schema, case.graph.columns
        assert problems_of(case.layers, schema, columns) == []
        assert {key: one.shape for key, one in case.tensors.items()} == tensor_shapes(case.layers, schema, columns)
        assert msgspec.json.decode(msgspec.json.encode(case.layers), type=LayersManifest) == case.layers


def test_weights_are_given_and_taken() -> None:
    case = draw_case(3, one_type, Convolution.GATV2)
    module = LayersModule(case.layers, case.graph.data.schema, case.graph.columns)
    load_canonical(module, case.tensors)
    for key, one in canonical(module).items():
        np.testing.assert_array_equal(one, case.tensors[key])


def test_weights_that_do_not_fit_are_named() -> None:
    case = draw_case(3, one_type, Convolution.GATV2)
    module = LayersModule(case.layers, case.graph.data.schema, case.graph.columns)
    key, *_ = case.tensors
    with pytest.raises(ValueError, match=rf"{key} is \[1\], and the module has \["):
        load_canonical(module, {**case.tensors, key: np.zeros(1, np.float32)})
    with pytest.raises(KeyError, match="do not both have another"):
        load_canonical(module, {**case.tensors, "another": np.zeros(1, np.float32)})


# --- beside models as their users write them


def _shares(case_scores: np.ndarray, expected: torch.Tensor) -> None:
    wanted = expected.detach().numpy()
    np.testing.assert_allclose(case_scores, wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())


BASIC = {
    "GraphSAGE": (pyg.GraphSAGE, Convolution.GRAPH_SAGE, {}),
    "GCN": (pyg.GCN, Convolution.GCN, {}),
    "GATv2": (lambda *sizes, **options: pyg.GAT(*sizes, v2=True, heads=2, **options), Convolution.GATV2, {"heads": 2}),
}


@pytest.mark.parametrize("jumping", [JumpingKnowledge.CAT, JumpingKnowledge.MAX, JumpingKnowledge.LSTM])
@pytest.mark.parametrize("name", BASIC)
def test_it_is_torch_geometrics_own_model(name: str, jumping: JumpingKnowledge) -> None:
    """Norm, activation, jumping knowledge and the product behind it stand where BasicGNN has them."""
    make, kind, fields = BASIC[name]
    graph = one_type(np.random.default_rng(5))
    torch.manual_seed(1)
    model = make(7, 8, 3, 4, norm="batch_norm", act="elu", jk=jumping.lower()).eval()
    for norm in model.norms:
        norm.module.running_mean.normal_()
        norm.module.running_var.uniform_(0.5, 1.5)
    layer = LayerManifest(
        (ConvolutionManifest(kind, width=8, **fields),), norm=Norm.BATCH, activation=Activation.ELU
    )  # fmt: skip
    layers = LayersManifest((layer,) * 3, jumping_knowledge=jumping, head=(DenseManifest(4),))
    module = LayersModule(layers, graph.data.schema, graph.columns).eval()
    load_canonical(module, _as_layers(model, module))
    read = graph.tensors(torch.float32)
    _shares(scores_of(module, graph, torch.float32), model(read.features[0], read.edges[0]))


def _as_layers(model: Any, module: LayersModule) -> dict[str, np.ndarray]:
    """Weights of a model of torch_geometric under the keys of layers."""
    found = {}
    for key, one in model.state_dict().items():
        name = key.replace("jk.", "jumping.")
        if key.startswith("convs."):
            name = "layers.{1}.convs.0.{2}".format(*key.split(".", 2))
        if key.startswith("norms."):
            name = "layers.{1}.norms.0.{3}".format(*key.split(".", 3))
        if key.startswith("lin."):
            name = f"head.0.{key.removeprefix('lin.')}"
        found[name] = one.numpy()
    return {key: one for key, one in found.items() if key in canonical(module)}


def test_it_is_torch_geometrics_own_layer_over_several_types() -> None:
    graph = several_types(np.random.default_rng(2))
    schema, (users, items, tags) = graph.data.schema, graph.columns
    columns = {"user": users, "item": items, "tag": tags}
    torch.manual_seed(1)
    convs = {
        (one.source, one.name, one.target): pyg.SAGEConv((columns[one.source], columns[one.target]), 6)
        for one in schema.relations
    }
    model = pyg.HeteroConv(convs, aggr="mean").eval()
    made = tuple(ConvolutionManifest(Convolution.GRAPH_SAGE, place, 6) for place in range(len(convs)))
    layers = LayersManifest((LayerManifest(made, Combination.MEAN),))
    module = LayersModule(layers, schema, graph.columns).eval()
    tensors = {
        f"layers.0.convs.{place}.{key}": one.numpy()
        for place, conv in enumerate(convs.values())
        for key, one in conv.state_dict().items()
    }
    load_canonical(module, tensors)
    read = graph.tensors(torch.float32)
    features = {kind.name: one for kind, one in zip(schema.types, read.features, strict=True)}
    expected = model(features, dict(zip(convs, read.edges, strict=True)))
    _shares(scores_of(module, graph, torch.float32), expected["user"])


def test_graph_norm_has_the_statistics_of_the_rows_it_learnt_from() -> None:
    """Once these are those of all rows, it is torch_geometric's."""
    torch.manual_seed(2)
    rows, ours, theirs = torch.randn(50, 4) * 3 + 1, GraphNorm(4, 1e-5), pyg.GraphNorm(4)
    with torch.no_grad():
        for one in (ours, theirs):
            one.mean_scale.copy_(torch.tensor([0.5, 1.0, 0.1, 0.9]))
        for _ in range(300):
            ours(rows)
        torch.testing.assert_close(ours.eval()(rows), theirs(rows), rtol=1e-5, atol=1e-5)


def test_rows_are_left_out_in_training_alone() -> None:
    graph = one_type(np.random.default_rng(5))
    layers = LayersManifest(
        (LayerManifest((ConvolutionManifest(Convolution.GRAPH_SAGE, width=8),)),),
        head=products(np.random.default_rng(1), [3]),
    )
    module = LayersModule(layers, graph.data.schema, graph.columns, learning=Learning(dropout=0.5))
    first, second = (scores_of(module.train(), graph, torch.float32) for _ in range(2))
    assert (first != second).any()
    first, second = (scores_of(module.eval(), graph, torch.float32) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_a_network_without_layers_reads_its_own_row() -> None:
    draw = np.random.default_rng(9)
    graph = one_type(draw)
    layers = LayersManifest((), head=(DenseManifest(5, activation=Activation.RELU), DenseManifest(2)))
    case = case_of(draw, RandomGraph(graph.data), layers)
    hidden = graph.data.features @ case.tensors["head.0.weight"].T + case.tensors["head.0.bias"]
    expected = np.maximum(hidden, 0) @ case.tensors["head.1.weight"].T + case.tensors["head.1.bias"]
    np.testing.assert_allclose(case.scores, expected, atol=1e-5)
