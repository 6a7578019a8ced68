"""Files of models as people write them, read layer by layer: what is read computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, PayloadManifest, one_type
from gnnserve_api.files.layers import Activation, Aggregation, LayersManifest, Residual, ResidualPlace
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.readers.matching import match
from gnnserve_worker.readers.reading import read_layers

COLUMNS, HIDDEN, CLASSES, NODES = 6, 16, 3, 12
EDGE_COLUMNS = ("edge_0", "edge_1", "edge_2", "edge_3")
SCHEMA: GraphSchema = one_type(
    NODES, 40, COLUMNS, edge_rules=EdgeRules(Direction.UNDIRECTED, Duplicates.MERGE),
    payload=PayloadManifest(EDGE_COLUMNS, "", 40),
)  # fmt: skip


def _pyg() -> Any:
    import torch_geometric.nn as pyg

    return pyg


def _edges() -> torch.Tensor:
    """Both ways, so that Chebyshev's degrees are the same at either end."""
    generator = torch.Generator().manual_seed(1)
    one = torch.randint(0, NODES, (2, 20), generator=generator)
    one = one[:, one[0] != one[1]]
    return torch.unique(torch.cat([one, one.flip(0)], dim=1), dim=1)


EDGES = _edges()
FEATURES = torch.randn(NODES, COLUMNS, generator=torch.Generator().manual_seed(2))
OF_EDGES = torch.randn(EDGES.shape[1], len(EDGE_COLUMNS), generator=torch.Generator().manual_seed(3))


class Written(nn.Module):
    """A model as users write it: parts by attribute, and a forward."""

    def __init__(self, forward: Callable[..., torch.Tensor], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, of_edges: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x, edges, of_edges)


def _whole(model: Any) -> Written:
    """A model of torch_geometric."""
    return Written(lambda self, x, edges, _: self.model(x, edges), model=model)


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    stated: Callable[[LayersManifest], LayersManifest] = field(default=lambda layers: layers)
    """What a user corrects of what was assumed."""


def _each_layer(**fields: Any) -> Callable[[LayersManifest], LayersManifest]:
    return lambda layers: msgspec.structs.replace(
        layers, layers=tuple(msgspec.structs.replace(one, **fields) for one in layers.layers)
    )


def _hidden_layers(**fields: Any) -> Callable[[LayersManifest], LayersManifest]:
    return lambda layers: msgspec.structs.replace(
        layers,
        layers=(*(msgspec.structs.replace(one, **fields) for one in layers.layers[:-1]), layers.layers[-1]),
    )


def _each_convolution(**fields: Any) -> Callable[[LayersManifest], LayersManifest]:
    return lambda layers: msgspec.structs.replace(
        layers,
        layers=tuple(
            msgspec.structs.replace(one, convs=tuple(msgspec.structs.replace(conv, **fields) for conv in one.convs))
            for one in layers.layers
        ),
    )


def _then(*changes: Callable[[LayersManifest], LayersManifest]) -> Callable[[LayersManifest], LayersManifest]:
    def changed(layers: LayersManifest) -> LayersManifest:
        for change in changes:
            layers = change(layers)
        return layers

    return changed


def _without_activation_before(layers: LayersManifest) -> LayersManifest:
    before = tuple(
        msgspec.structs.replace(
            each,
            products=tuple(msgspec.structs.replace(one, activation=Activation.NONE) for one in each.products),
        )
        for each in layers.before
    )
    return msgspec.structs.replace(layers, before=before)


def _relu_between(convs: str = "convs") -> Callable[..., torch.Tensor]:
    def forward(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        *hidden, last = getattr(self, convs)
        for conv in hidden:
            x = conv(x, edges).relu()
        return last(x, edges)

    return forward


def _linear_head(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x = self.conv1(x, edges).relu()
    return self.fc(self.conv2(x, edges).relu())


def _ogb(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    for conv, norm in zip(self.convs[:-1], self.bns, strict=True):
        x = F.relu(norm(conv(x, edges)))
    return self.convs[-1](x, edges)


def _ppi(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x = F.elu(self.conv1(x, edges) + self.lin1(x))
    x = F.elu(self.conv2(x, edges) + self.lin2(x))
    return self.conv3(x, edges) + self.lin3(x)


def _gcnii(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x = first = self.lins[0](x).relu()
    for conv in self.convs:
        x = conv(x, first, edges).relu()
    return self.lins[1](x)


def _tuned(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x = self.lin_in(x)
    for conv, lin, norm in zip(self.local_convs, self.lins, self.lns, strict=True):
        x = F.relu(norm(conv(x, edges) + lin(x)))
    return self.pred_local(x)


def _concatenated(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    hidden = self.conv2(self.conv1(x, edges).relu(), edges).relu()
    return self.out(torch.cat([x, hidden], dim=1))


def _by_edges(self: Any, x: torch.Tensor, edges: torch.Tensor, of_edges: torch.Tensor) -> torch.Tensor:
    return self.g2(self.g1(x, edges, of_edges).relu(), edges, of_edges)


def _behind_activation(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x = self.norm1(self.conv1(x, edges).relu())
    return self.mlp(self.norm2(self.conv2(x, edges).relu()))


def _averaged_residual(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    x = self.node_emb(x)
    for layer in self.layers:
        x = x + layer["norm"](layer["conv"](x, edges)).relu()
    return self.classifier(x)


def _numbered(self: Any, x: torch.Tensor, edges: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    first = F.elu(self.bn1(self.conv1(x, edges))) + self.skip(x)
    second = F.gelu(self.ln(self.conv2(first, edges))) + first
    return self.mlp(torch.cat([first, second], dim=1))


def _as_numbered(layers: LayersManifest) -> LayersManifest:
    first, second = layers.layers
    first = msgspec.structs.replace(first, activation=Activation.ELU, residual_place=ResidualPlace.BEHIND_ACTIVATION)
    second = msgspec.structs.replace(second, activation=Activation.GELU, residual=Residual.ADDED)
    return msgspec.structs.replace(layers, layers=(first, second))


def _gin(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def _cases() -> Mapping[str, Case]:
    pyg = _pyg()
    sage, gcn, gat = pyg.SAGEConv, pyg.GCNConv, pyg.GATConv
    elu = {"activation": Activation.ELU}
    degrees = torch.bincount(torch.bincount(EDGES[1], minlength=NODES))
    names = {"mean": Aggregation.MEAN, "max": Aggregation.MAX, "sum": Aggregation.SUM}
    layer = {"norm": nn.LayerNorm(HIDDEN), "conv": sage(HIDDEN, HIDDEN)}
    return {
        "a Linear head": Case(
            lambda: Written(_linear_head, conv1=sage(COLUMNS, HIDDEN), conv2=sage(HIDDEN, HIDDEN),
                            fc=nn.Linear(HIDDEN, CLASSES))
        ),
        **{
            f"BasicGNN {kind.__name__} with {norm} and {jk}": Case(
                lambda kind=kind, norm=norm, jk=jk: _whole(kind(COLUMNS, HIDDEN, 3, CLASSES, norm=norm, jk=jk)),
                _each_layer() if jk != "max" else lambda layers: msgspec.structs.replace(
                    layers, jumping_knowledge="Max"
                ),
            )
            for kind, norm, jk in (
                (pyg.GraphSAGE, "BatchNorm", "cat"), (pyg.GCN, None, "lstm"), (pyg.GIN, "BatchNorm", None),
                (pyg.GAT, "BatchNorm", "cat"), (pyg.GCN, "BatchNorm", "max"),
            )
        },
        "OGB's GCN": Case(
            lambda: Written(_ogb, convs=[gcn(COLUMNS, HIDDEN), gcn(HIDDEN, 8), gcn(8, CLASSES)],
                            bns=[nn.BatchNorm1d(HIDDEN), nn.BatchNorm1d(8)])
        ),
        "GAT of PPI": Case(
            lambda: Written(
                _ppi, conv1=gat(COLUMNS, 4, heads=4), lin1=nn.Linear(COLUMNS, 16), conv2=gat(16, 4, heads=4),
                lin2=nn.Linear(16, 16), conv3=gat(16, CLASSES, heads=6, concat=False), lin3=nn.Linear(16, CLASSES),
            ),
            _hidden_layers(**elu),
        ),
        "GCNII": Case(
            lambda: Written(_gcnii, lins=[nn.Linear(COLUMNS, HIDDEN), nn.Linear(HIDDEN, CLASSES)],
                            convs=[pyg.GCN2Conv(HIDDEN, 0.1, 0.5, place + 1) for place in range(4)])
        ),
        "tunedGNN": Case(
            lambda: Written(
                _tuned, lin_in=nn.Linear(COLUMNS, HIDDEN), local_convs=[gcn(HIDDEN, HIDDEN) for _ in range(2)],
                lins=[nn.Linear(HIDDEN, HIDDEN) for _ in range(2)], lns=[nn.LayerNorm(HIDDEN) for _ in range(2)],
                pred_local=nn.Linear(HIDDEN, CLASSES),
            ),
            _without_activation_before,
        ),
        "a head over [x, h]": Case(
            lambda: Written(_concatenated, conv1=sage(COLUMNS, HIDDEN), conv2=sage(HIDDEN, HIDDEN),
                            out=nn.Linear(HIDDEN + COLUMNS, CLASSES))
        ),
        "Sequential": Case(
            lambda: _whole(pyg.Sequential("x, edge_index", [
                (gcn(COLUMNS, HIDDEN), "x, edge_index -> x"), nn.BatchNorm1d(HIDDEN), nn.PReLU(),
                (gcn(HIDDEN, HIDDEN), "x, edge_index -> x"), nn.ReLU(), nn.Linear(HIDDEN, CLASSES),
            ]))
        ),
        **{
            f"{kind.__name__} with columns of edges": Case(
                lambda kind=kind: Written(_by_edges, g1=kind(COLUMNS, HIDDEN, edge_dim=4),
                                          g2=kind(HIDDEN, CLASSES, edge_dim=4)),
            )
            for kind in (gat, pyg.GATv2Conv, pyg.TransformerConv)
        },
        "GINE": Case(
            lambda: Written(_by_edges, g1=pyg.GINEConv(_gin(COLUMNS, HIDDEN), edge_dim=4),
                            g2=pyg.GINEConv(_gin(HIDDEN, CLASSES), edge_dim=4))
        ),
        "PNA": Case(
            lambda: _whole(pyg.PNA(
                COLUMNS, HIDDEN, 2, CLASSES, aggregators=["mean", "min", "max", "std"],
                scalers=["identity", "amplification", "attenuation"], deg=degrees, towers=1,
            ))
        ),
        "GATv2 and TransformerConv that average heads": Case(
            lambda: Written(
                _relu_between(), convs=[
                    pyg.GATv2Conv(COLUMNS, HIDDEN, heads=2, concat=False),
                    pyg.TransformerConv(HIDDEN, CLASSES, heads=3, concat=False, beta=True),
                ],
            )
        ),
        "GATv2 with residual=True": Case(
            lambda: Written(_relu_between(), convs=[pyg.GATv2Conv(COLUMNS, 8, heads=2, residual=True),
                                                    pyg.GATv2Conv(16, CLASSES, residual=True)])
        ),
        "Chebyshev": Case(
            lambda: Written(_relu_between(), convs=[pyg.ChebConv(COLUMNS, HIDDEN, 3), pyg.ChebConv(HIDDEN, CLASSES, 2)])
        ),
        "SGC": Case(
            lambda: Written(_relu_between(), convs=[pyg.SGConv(COLUMNS, CLASSES, K=2)])
        ),
        "GraphConv": Case(
            lambda: Written(_relu_between(), convs=[pyg.GraphConv(COLUMNS, HIDDEN), pyg.GraphConv(HIDDEN, CLASSES)])
        ),
        "SAGE that sums": Case(
            lambda: Written(_relu_between(), convs=[sage(COLUMNS, HIDDEN, "sum"), sage(HIDDEN, CLASSES, "sum")]),
            _each_convolution(aggregations=(names["sum"],)),
        ),
        "SAGE with project, without bias, without its own row": Case(
            lambda: Written(_relu_between(), convs=[sage(COLUMNS, HIDDEN, project=True, bias=False),
                                                    sage(HIDDEN, CLASSES, root_weight=False)])
        ),
        "SAGE of two aggregations and of a learned softmax": Case(
            lambda: Written(_relu_between(), convs=[
                sage(COLUMNS, HIDDEN, ["mean", "max"]),
                sage(HIDDEN, CLASSES, "softmax", aggr_kwargs={"learn": True}),
            ])
        ),
        "norms behind activations, and an MLP with a norm": Case(
            lambda: Written(
                _behind_activation, conv1=sage(COLUMNS, HIDDEN), norm1=nn.BatchNorm1d(HIDDEN),
                conv2=sage(HIDDEN, HIDDEN), norm2=nn.BatchNorm1d(HIDDEN),
                mlp=nn.Sequential(nn.Linear(HIDDEN, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)),
            ),
            _each_layer(is_norm_behind=True),
        ),
        "residuals in a ModuleList of layers": Case(
            lambda: Written(_averaged_residual, node_emb=nn.Linear(COLUMNS, HIDDEN), layers=[nn.ModuleDict(layer)],
                            classifier=nn.Linear(HIDDEN, CLASSES)),
            _then(_without_activation_before,
                  _each_layer(residual=Residual.ADDED, residual_place=ResidualPlace.BEHIND_ACTIVATION)),
        ),
        "a numbered norm, one without a number, a skip and jumping knowledge": Case(
            lambda: Written(
                _numbered, conv1=pyg.GATv2Conv(COLUMNS, 4, heads=4), bn1=nn.BatchNorm1d(HIDDEN),
                skip=nn.Linear(COLUMNS, HIDDEN), conv2=sage(HIDDEN, HIDDEN), ln=nn.LayerNorm(HIDDEN),
                mlp=nn.Sequential(nn.Linear(2 * HIDDEN, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(),
                                  nn.Linear(8, CLASSES)),
            ),
            _as_numbered,
        ),
        "a perceptron": Case(
            lambda: Written(lambda self, x, edges, _: self.mlp(x), mlp=pyg.MLP([COLUMNS, 8, CLASSES]))
        ),
    }  # fmt: skip


CASES = _cases()


def _with_statistics(model: nn.Module) -> nn.Module:
    """With norms that are not the identity."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, tensor in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
        for name, tensor in model.named_parameters():
            if tensor.dim() == 1 and "eps" not in name:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.2)
    return model.eval()


def _state(model: nn.Module) -> dict[str, np.ndarray]:
    return {key: one.numpy() for key, one in model.state_dict().items() if one.is_floating_point()}


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_of_a_file_computes_what_its_model_does(name: str) -> None:
    torch.manual_seed(0)
    model = _with_statistics(CASES[name].make())
    state = _state(model)
    read = read_layers(state, SCHEMA)
    assert not read.unread
    assert not read.problem
    layers = CASES[name].stated(read.layers)
    network = LayersModule(layers, SCHEMA, [COLUMNS]).eval()
    shapes = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items() if "num_batches" not in key}

    matched = match(layers, SCHEMA, state, shapes)

    load_canonical(network, matched)
    columns = dict(zip(EDGE_COLUMNS, OF_EDGES.unbind(1), strict=True))
    with torch.no_grad():
        expected = model(FEATURES, EDGES, OF_EDGES)
        found = network(GraphTensors([FEATURES], [EDGES], [columns]))
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_what_it_is_read_as_and_every_tensor_once(name: str) -> None:
    torch.manual_seed(0)
    state = _state(CASES[name].make())
    read = read_layers(state)
    assert read.is_whole
    tensors = read.tensors(state)
    assert {key for one in read.taken.values() for key in one.keys} == state.keys()
    assert all(tensor.dtype == np.float32 and tensor.flags.c_contiguous for tensor in tensors.values())
    again = match(read.layers, SCHEMA, tensors, {key: tensor.shape for key, tensor in tensors.items()})
    assert all(np.array_equal(again[key], tensors[key]) for key in tensors)


def test_a_file_of_many_products_is_read_in_their_order() -> None:
    pyg = _pyg()
    parts = [nn.Linear(HIDDEN, HIDDEN) for _ in range(12)]
    model = Written(
        lambda self, x, edges, _: x, lin_in=nn.Linear(COLUMNS, HIDDEN), conv=pyg.SAGEConv(HIDDEN, HIDDEN), mlp=parts,
        out=nn.Linear(HIDDEN, CLASSES),
    )  # fmt: skip
    read = read_layers(_state(model))
    assert read.is_whole
    assert [len(read.layers.before[0].products), len(read.layers.head)] == [1, 13]


def test_convolutions_under_different_names_are_listed_as_an_assumption() -> None:
    pyg = _pyg()
    model = Written(
        lambda self, x, edges, _: x, first=pyg.SAGEConv(COLUMNS, HIDDEN), last=pyg.SAGEConv(HIDDEN, CLASSES)
    )
    read = read_layers(_state(model))
    assert read.is_whole
    assert "layers: first, last (one behind the other, over the same edges)" in read.assumed


def test_a_norm_that_fits_nowhere_is_named_beside_what_is_read() -> None:
    pyg = _pyg()
    convs = [pyg.SAGEConv(COLUMNS, HIDDEN), pyg.SAGEConv(HIDDEN, CLASSES)]
    read = read_layers(_state(Written(lambda self, x, edges, _: x, convs=convs, norm=nn.LayerNorm(COLUMNS))))
    assert read.is_known
    assert not read.is_whole
    assert read.unplaced == ("norm.bias", "norm.weight")
    assert len(read.layers.layers) == 2
