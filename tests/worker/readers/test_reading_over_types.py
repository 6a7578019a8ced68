"""Files of models over several types as people write them: what is read computes what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from gnnserve_api.files.graph_schema import AS_LISTED, GraphSchema, TypeManifest, relation_manifest
from gnnserve_api.files.layers import Activation, Combination, LayersManifest
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.readers.matching import match
from gnnserve_worker.readers.misfit import MisfitError
from gnnserve_worker.readers.reading import read_layers

TYPES = {"paper": (9, 5), "author": (7, 4)}
"""Nodes and features of each type; papers are scored."""
RELATIONS = (("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "written_by", "author"))
SCHEMA = GraphSchema(
    tuple(TypeManifest(name, nodes, columns, "Positions") for name, (nodes, columns) in TYPES.items()),
    tuple(relation_manifest(*one, 12, None, AS_LISTED) for one in RELATIONS),
)
WIDE = {name: columns for name, (_, columns) in TYPES.items()}
COLUMNS = [columns for _, columns in TYPES.values()]
HIDDEN, CLASSES = 8, 3


def _pyg() -> Any:
    import torch_geometric.nn as pyg

    return pyg


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FEATURES = {name: _random(*shape, seed=place) for place, (name, shape) in enumerate(TYPES.items())}
EDGES = {
    (source, name, target): torch.stack([
        torch.randint(0, TYPES[end][0], (12,), generator=torch.Generator().manual_seed(10 + place + 50 * at))
        for at, end in enumerate((source, target))
    ])
    for place, (source, name, target) in enumerate(RELATIONS)
}  # fmt: skip


def _each(make: Callable[[tuple[str, str, str]], Any], aggr: str = "sum") -> Any:
    return _pyg().HeteroConv({relation: make(relation) for relation in RELATIONS}, aggr=aggr)


class _Model(nn.Module):
    """A Linear for each type, HeteroConvs, and a head of the papers."""

    def __init__(self, convs: list[Any], before: bool = True, norm: bool = False, is_plain: bool = False) -> None:
        """`is_plain`: no ReLU stands behind the layers."""
        super().__init__()
        self.lin_dict = nn.ModuleDict()
        if before:
            self.lin_dict.update({name: nn.Linear(columns, HIDDEN) for name, (_, columns) in TYPES.items()})
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(
            nn.ModuleDict({name: nn.BatchNorm1d(HIDDEN) for name in TYPES}) for _ in convs if norm
        )
        self.is_plain = is_plain
        self.lin = nn.Linear(HIDDEN, CLASSES)

    def forward(self, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        rows = {name: self.lin_dict[name](one).relu() if self.lin_dict else one for name, one in rows.items()}
        for place, conv in enumerate(self.convs):
            rows = conv(rows, EDGES)
            if self.norms:
                rows = {name: self.norms[place][name](one) for name, one in rows.items()}
            rows = rows if self.is_plain else {name: one.relu() for name, one in rows.items()}
        return self.lin(rows["paper"])  # type: ignore[no-any-return]


class _ToHetero(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        pyg = _pyg()
        own = pyg.GraphSAGE((-1, -1), HIDDEN, 2, CLASSES, **options)
        self.model = pyg.to_hetero(own, (list(TYPES), list(RELATIONS)))

    def forward(self, rows: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(rows, EDGES)["paper"]  # type: ignore[no-any-return]


def _width(end: str, layer: int) -> int:
    return TYPES[end][1] if layer == 0 else HIDDEN


def _mixed(relation: tuple[str, str, str]) -> Any:
    pyg = _pyg()
    if relation[0] == relation[2]:
        return pyg.GCNConv(HIDDEN, HIDDEN)
    return pyg.GATConv((HIDDEN, HIDDEN), 4, heads=2, add_self_loops=False)


def _sage(layer: int) -> Callable[[tuple[str, str, str]], Any]:
    return lambda relation: _pyg().SAGEConv((_width(relation[0], layer), _width(relation[2], layer)), HIDDEN)


def _by_mean(layers: LayersManifest) -> LayersManifest:
    changed = (msgspec.structs.replace(one, combination=Combination.MEAN) for one in layers.layers)
    return msgspec.structs.replace(layers, layers=tuple(changed))


def _plain(layers: LayersManifest) -> LayersManifest:
    return layers


def _hgt(columns: int | dict[str, int]) -> Any:
    return _pyg().HGTConv(columns, HIDDEN, (list(TYPES), list(RELATIONS)), heads=2)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[LayersManifest], LayersManifest]]] = {
    "HeteroConv of SAGEConv and a head": (lambda: _Model([_each(_sage(0)), _each(_sage(1))], before=False), _plain),
    "a Linear for each type, and different convolutions": (lambda: _Model([_each(_mixed), _each(_mixed)]), _plain),
    "norms of each type, and the mean of the relations": (
        lambda: _Model([_each(_sage(1), "mean"), _each(_sage(1), "mean")], norm=True), _by_mean
    ),
    "HGTConv behind a Linear for each type": (lambda: _Model([_hgt(HIDDEN), _hgt(HIDDEN)], is_plain=True), _plain),
    "HGTConv over features": (
        lambda: _Model([_hgt(WIDE)], before=False, is_plain=True), _plain
    ),
    "to_hetero": (_ToHetero, _plain),
    "to_hetero with norms and jumping knowledge": (lambda: _ToHetero(norm="BatchNorm", jk="cat"), _plain),
}  # fmt: skip


def _state(model: nn.Module) -> dict[str, np.ndarray]:
    with torch.no_grad():
        model(FEATURES)  # lazy widths
        for key, tensor in model.state_dict().items():
            if tensor.dim() == 1 and tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=torch.Generator().manual_seed(len(key))) + 0.3)
    model.eval()
    return {key: one.numpy() for key, one in model.state_dict().items() if one.is_floating_point()}


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_over_types_computes_what_its_model_does(name: str) -> None:
    torch.manual_seed(0)
    make, stated = CASES[name]
    model = make()
    state = _state(model)
    read = read_layers(state, SCHEMA)
    assert read.is_whole, (read.unread, read.problem)
    layers = stated(read.layers)
    network = LayersModule(layers, SCHEMA, COLUMNS).eval()
    shapes = {key: tuple(one.shape) for key, one in network.state_dict().items() if "num_batches" not in key}

    load_canonical(network, match(layers, SCHEMA, state, shapes))

    with torch.no_grad():
        expected = model(FEATURES)
        edges = [EDGES[relation] for relation in RELATIONS]
        found = network(GraphTensors([FEATURES[name] for name in TYPES], edges, [{}] * len(edges)))
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


def test_relations_of_a_file_are_named_where_no_graph_is_known() -> None:
    read = read_layers(_state(CASES["HeteroConv of SAGEConv and a head"][0]()))
    assert read.is_whole
    assert {(one.source, one.name, one.target) for one in read.names.relations} == {*RELATIONS}
    assert "layers[].combine: Sum (of what relations give to a type)" in read.assumed


def test_relations_of_hgt_are_read_in_the_order_in_which_a_layer_lists_them() -> None:
    torch.manual_seed(3)
    turned = RELATIONS[::-1]
    model = _Model([_pyg().HGTConv(HIDDEN, HIDDEN, (list(TYPES), list(turned)), heads=2)], is_plain=True)
    state = _state(model)
    layers = read_layers(state, SCHEMA).layers
    network = LayersModule(layers, SCHEMA, COLUMNS).eval()
    shapes = {key: tuple(one.shape) for key, one in network.state_dict().items()}
    graph = GraphTensors([FEATURES[name] for name in TYPES], [EDGES[one] for one in RELATIONS], [{}] * len(EDGES))
    (layer,) = layers.layers
    listed = msgspec.structs.replace(layers, layers=(msgspec.structs.replace(layer, convs=layer.convs[::-1]),))
    is_right = []
    for stated in (layers, listed):
        load_canonical(network, match(stated, SCHEMA, state, shapes))
        with torch.no_grad():
            rows = {name: model.lin_dict[name](one).relu() for name, one in FEATURES.items()}
            # torch_geometric takes edges in the order of the metadata alone.
            expected = model.lin(model.convs[0](rows, {one: EDGES[one] for one in turned})["paper"])
            is_right.append(torch.allclose(network(graph), expected, atol=1e-5))
    assert is_right == [False, True]


def test_types_of_a_file_of_hgt_are_named_where_no_graph_is_known() -> None:
    read = read_layers(_state(CASES["HGTConv behind a Linear for each type"][0]()))
    assert read.is_whole, (read.unplaced, read.problem)
    assert (len(read.layers.before), {*read.names.types}) == (len(TYPES), {*TYPES})
    assert {one.combination for one in read.layers.layers} == {Combination.ATTENTION}
    assert not any("combine" in assumed for assumed in read.assumed)


def test_a_relation_that_the_graph_does_not_have_is_named() -> None:
    state = _state(CASES["HeteroConv of SAGEConv and a head"][0]())
    layers = read_layers(state, SCHEMA).layers
    network = LayersModule(layers, SCHEMA, COLUMNS)
    shapes = {key: tuple(one.shape) for key, one in network.state_dict().items()}
    other = {key.replace("cites", "quotes"): tensor for key, tensor in state.items()}
    with pytest.raises(MisfitError) as refused:
        match(layers, SCHEMA, other, shapes)
    assert "needs layers.0.convs.1." in refused.value.problem
    assert "<paper___quotes___paper>" in refused.value.problem
    assert Activation.RELU in {one.activation for one in layers.layers}
