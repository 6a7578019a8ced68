"""Files that GraphStorm saves: what is read of them computes what its layers compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gnnserve_api.files.graph_schema import AS_LISTED, GraphSchema, TypeManifest, one_type, relation_manifest
from gnnserve_api.files.layers import Activation, LayersManifest, Norm
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.layers.shapes import columns_of, tensor_shapes
from gnnserve_worker.readers.files import read_weights_file
from gnnserve_worker.readers.matching import match
from gnnserve_worker.readers.misfit import MisfitError
from gnnserve_worker.readers.reading import ReadLayers, read_layers

TYPES = {"paper": (9, 5), "author": (7, 4)}
"""Nodes and features of each type; papers are scored."""
RELATIONS = (("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "written_by", "author"))
HIDDEN, CLASSES, HEADS, BASES = 8, 3, 2, 2


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FEATURES = {name: _random(*shape, seed=place) for place, (name, shape) in enumerate(TYPES.items())}
EDGES = {
    (source, name, target): torch.stack([
        torch.randint(0, TYPES[end][0], (12,), generator=torch.Generator().manual_seed(10 + place + 50 * at))
        for at, end in enumerate((source, target))
    ])
    for place, (source, name, target) in enumerate(RELATIONS)
}  # fmt: skip


def _schema(order: tuple[int, ...] = (0, 1, 2)) -> GraphSchema:
    return GraphSchema(
        tuple(TypeManifest(name, nodes, columns, "Positions") for name, (nodes, columns) in TYPES.items()),
        tuple(relation_manifest(*RELATIONS[place], 12, None, AS_LISTED) for place in order),
    )


def _scattered(rows: Tensor, targets: Tensor, count: int) -> Tensor:
    return torch.zeros(count, *rows.shape[1:]).index_add_(0, targets, rows)


class _Basis(nn.Module):
    """DGL's WeightBasis."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(_random(BASES, HIDDEN, HIDDEN, seed=1))
        self.w_comp = nn.Parameter(_random(len(RELATIONS), BASES, seed=2))

    def forward(self) -> Tensor:
        return torch.einsum("rb,bio->rio", self.w_comp, self.weight)


class _Attention(nn.Module):
    """DGL's GATConv without a bias."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.fc = nn.Linear(HIDDEN, HIDDEN, bias=False)
        each = HIDDEN // HEADS
        self.attn_l, self.attn_r = (nn.Parameter(_random(1, HEADS, each, seed=seed + at)) for at in range(2))

    def forward(self, edges: Tensor, read: Tensor, own: Tensor) -> Tensor:
        left, right = (self.fc(rows).view(-1, HEADS, HIDDEN // HEADS) for rows in (read, own))
        scores = (left * self.attn_l).sum(-1)[edges[0]] + (right * self.attn_r).sum(-1)[edges[1]]
        shares = nn.functional.leaky_relu(scores, 0.2).exp()
        shares = shares / _scattered(shares, edges[1], len(own))[edges[1]]
        return _scattered(left[edges[0]] * shares.unsqueeze(-1), edges[1], len(own)).flatten(1)


class _Layer(nn.Module):
    def __init__(self, kind: str, seed: int, norm: type[nn.Module] | None, is_last: bool, loops: bool) -> None:
        super().__init__()
        self.is_last = is_last
        if kind == "rgat":
            self.conv = nn.Module()
            self.conv.mods = nn.ModuleDict({str(one): _Attention(seed + 5 * at) for at, one in enumerate(RELATIONS)})
        elif kind == "bases":
            self.basis = _Basis()
        else:
            self.weight = nn.Parameter(_random(len(RELATIONS), HIDDEN, HIDDEN, seed=seed))
        self.h_bias = nn.Parameter(_random(HIDDEN, seed=seed + 1))
        if loops:
            self.loop_weight = nn.Parameter(_random(HIDDEN, HIDDEN, seed=seed + 2))
        if norm is not None and not is_last:
            self.norm = nn.ParameterDict({name: norm(HIDDEN) for name in TYPES})

    def forward(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {name: torch.zeros(len(one), HIDDEN) for name, one in rows.items()}
        for place, (source, name, target) in enumerate(RELATIONS):
            edges = EDGES[source, name, target]
            if hasattr(self, "conv"):
                made = self.conv.mods[str((source, name, target))](edges, rows[source], rows[target])
            else:
                weight = self.basis() if hasattr(self, "basis") else self.weight
                counts = torch.bincount(edges[1], minlength=len(rows[target])).clamp(min=1).unsqueeze(1)
                made = _scattered((rows[source] @ weight[place])[edges[0]], edges[1], len(rows[target])) / counts
            found[target] = found[target] + made
        if hasattr(self, "loop_weight"):
            found = {name: one + rows[name] @ self.loop_weight for name, one in found.items()}
        found = {name: one + self.h_bias for name, one in found.items()}
        if hasattr(self, "norm"):
            found = {name: self.norm[name](one) for name, one in found.items()}
        return found if self.is_last else {name: one.relu() for name, one in found.items()}


class _TypedLayer(nn.Module):
    """GraphStorm's HGTLayer."""

    def __init__(self, seed: int, norm: type[nn.Module] | None) -> None:
        super().__init__()
        each = HIDDEN // HEADS
        torch.manual_seed(seed)
        for name in ("k_linears", "q_linears", "v_linears", "a_linears"):
            setattr(self, name, nn.ParameterDict({type_: nn.Linear(HIDDEN, HIDDEN) for type_ in TYPES}))
        self.skip = nn.ParameterDict({
            type_: nn.Parameter(_random(1, seed=seed + place)) for place, type_ in enumerate(TYPES)
        })  # fmt: skip
        joined = ["_".join(one) for one in RELATIONS]
        self.relation_pri = nn.ParameterDict({name: nn.Parameter(torch.rand(HEADS) + 0.5) for name in joined})
        for name in ("relation_att", "relation_msg"):
            made = {one: nn.Parameter(torch.randn(HEADS, each, each)) for one in joined}
            setattr(self, name, nn.ParameterDict(made))
        if norm is not None:
            self.norms = nn.ParameterDict({type_: norm(HIDDEN) for type_ in TYPES})

    def forward(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        for source, name, target in RELATIONS:
            edges, joined = EDGES[source, name, target], f"{source}_{name}_{target}"
            key, value, query = (
                getattr(self, part)[type_](rows[type_]).view(-1, HEADS, HIDDEN // HEADS)
                for part, type_ in (("k_linears", source), ("v_linears", source), ("q_linears", target))
            )
            key = torch.einsum("bij,ijk->bik", key, self.relation_att[joined])
            value = torch.einsum("bij,ijk->bik", value, self.relation_msg[joined])
            scores = (query[edges[1]] * key[edges[0]]).sum(-1) * self.relation_pri[joined] / (HIDDEN // HEADS) ** 0.5
            shares = (scores - scores.max()).exp()
            shares = shares / _scattered(shares, edges[1], len(query))[edges[1]]
            made = _scattered(value[edges[0]] * shares.unsqueeze(-1), edges[1], len(query)).flatten(1)
            found.setdefault(target, []).append(made)
        written = {}
        for type_, one in rows.items():
            own, gate = self.a_linears[type_](one), self.skip[type_].sigmoid()
            written[type_] = torch.stack(found[type_]).mean(0) * gate + own * (1 - gate) if type_ in found else own
            if hasattr(self, "norms"):
                written[type_] = self.norms[type_](written[type_])
        return {type_: one.relu() for type_, one in written.items()}


class _Model(nn.Module):
    """Its parts have the names under which GraphStorm saves them."""

    def __init__(
        self, kind: str, *, norm: type[nn.Module] | None = None, loops: bool = True, ffn: bool = False,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.node_embed, self.gnn, self.decoder = nn.Module(), nn.Module(), nn.Module()
        self.node_embed.input_projs = nn.ParameterDict({
            name: nn.Parameter(_random(columns, HIDDEN, seed=70 + columns)) for name, (_, columns) in TYPES.items()
        })  # fmt: skip
        self.node_embed.ngnn_mlp = nn.ModuleDict({name: nn.Module() for name in TYPES})
        for place, module in enumerate(self.node_embed.ngnn_mlp.values()):
            module.ngnn_gnn = nn.ParameterList([nn.Parameter(_random(HIDDEN, HIDDEN, seed=80 + place))] if ffn else [])
        layers: list[nn.Module] = [_Layer(kind, 20, norm, False, loops), _Layer(kind, 40, norm, True, loops)]
        self.gnn._layers = nn.ModuleList([_TypedLayer(20, norm), _TypedLayer(40, norm)] if kind == "hgt" else layers)
        self.decoder.decoder = nn.Parameter(_random(HIDDEN, CLASSES, seed=90))
        if bias:
            self.decoder.bias = nn.Parameter(_random(CLASSES, seed=91))

    def forward(self) -> Tensor:
        rows = {}
        for name, one in FEATURES.items():
            rows[name] = one @ self.node_embed.input_projs[name]
            for matrix in self.node_embed.ngnn_mlp[name].ngnn_gnn:
                rows[name] = (rows[name] @ matrix).relu()
        for layer in self.gnn._layers:
            rows = layer(rows)
        return rows["paper"] @ self.decoder.decoder + getattr(self.decoder, "bias", 0.0)  # type: ignore[no-any-return]

    def saved(self, path: Path) -> Path:
        parts = {name: module.state_dict() for name, module in self.named_children()}
        torch.save(parts, path)
        return path


def _trained(model: _Model) -> _Model:
    """With running statistics of its norms, in evaluation mode."""
    with torch.no_grad():
        for _ in range(3):
            model()
    return model.eval()


def _scores(layers: LayersManifest, tensors: Any, schema: GraphSchema, order: tuple[int, ...]) -> np.ndarray:
    module = LayersModule(layers, schema, [columns for _, columns in TYPES.values()]).eval()
    load_canonical(module, tensors)
    graph = GraphTensors([*FEATURES.values()], [EDGES[RELATIONS[place]] for place in order], [{}] * len(order))
    with torch.no_grad():
        return module(graph).numpy()  # type: ignore[no-any-return]


def _read(path: Path, schema: GraphSchema | None) -> tuple[ReadLayers, Any]:
    tensors = read_weights_file(path).tensors
    return read_layers(tensors, schema), tensors


MODELS: dict[str, dict[str, Any]] = {
    "an RGCN": {"kind": "rgcn"},
    "an RGCN of bases": {"kind": "bases"},
    "an RGCN with batch norms": {"kind": "rgcn", "norm": nn.BatchNorm1d},
    "an RGAT with layer norms": {"kind": "rgat", "norm": nn.LayerNorm},
    "an RGAT without the node itself": {"kind": "rgat", "loops": False},
    "an HGT": {"kind": "hgt"},
    "an HGT with layer norms": {"kind": "hgt", "norm": nn.LayerNorm},
    "an HGT with batch norms": {"kind": "hgt", "norm": nn.BatchNorm1d},
    "an RGCN with products of the input": {"kind": "rgcn", "ffn": True, "bias": False},
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_read_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    model = _trained(_Model(**MODELS[name]))
    read, tensors = _read(model.saved(tmp_path / "model.bin"), _schema())
    assert read.is_whole, (read.unread, read.unplaced, read.problem)
    expected = model().detach().numpy()
    found = _scores(read.layers, read.tensors(tensors), _schema(), (0, 1, 2))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


class _SageLayer(nn.Module):
    """GraphStorm's SAGEConv, around DGL's."""

    def __init__(self, seed: int, *, pools: bool, norm: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Module()
        if pools:
            self.conv.fc_pool = nn.Linear(HIDDEN, HIDDEN)
        self.conv.fc_neigh, self.conv.fc_self = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
        if norm:
            self.norm = nn.BatchNorm1d(HIDDEN)

    def forward(self, rows: Tensor, edges: Tensor) -> Tensor:
        read = self.conv.fc_pool(rows).relu() if hasattr(self.conv, "fc_pool") else rows
        places = edges[1].unsqueeze(1).expand(-1, HIDDEN)
        reduce = "amax" if hasattr(self.conv, "fc_pool") else "mean"
        found = torch.zeros_like(rows).scatter_reduce(0, places, read[edges[0]], reduce, include_self=False)
        made = self.conv.fc_self(rows) + self.conv.fc_neigh(found)
        return (self.norm(made) if hasattr(self, "norm") else made).relu()


@pytest.mark.parametrize("pools", [False, True], ids=["means", "largest of products"])
@pytest.mark.parametrize("is_known", [False, True], ids=["the file alone", "a graph"])
def test_a_sage_over_one_type_is_read(tmp_path: Path, pools: bool, is_known: bool) -> None:
    rows, edges = FEATURES["paper"], EDGES[RELATIONS[1]]
    model = nn.Module()
    model.node_embed, model.gnn, model.decoder = nn.Module(), nn.Module(), nn.Module()
    model.node_embed.input_projs = nn.ParameterDict({"_N": nn.Parameter(_random(5, HIDDEN, seed=1))})
    model.gnn._layers = nn.ModuleList([_SageLayer(2, pools=pools, norm=True), _SageLayer(3, pools=pools, norm=False)])
    model.decoder.decoder = nn.Parameter(_random(HIDDEN, CLASSES, seed=4))
    with torch.no_grad():
        for layer in model.gnn._layers:
            layer(rows @ model.node_embed.input_projs["_N"], edges)
        model.eval()
        made = rows @ model.node_embed.input_projs["_N"]
        for layer in model.gnn._layers:
            made = layer(made, edges)
        expected = (made @ model.decoder.decoder).numpy()
    torch.save({name: one.state_dict() for name, one in model.named_children()}, tmp_path / "model.bin")
    schema = one_type(len(rows), edges.shape[1], rows.shape[1])
    read, tensors = _read(tmp_path / "model.bin", schema if is_known else None)
    assert read.is_known and read.description.says().startswith("GraphStorm's SAGE: 2 layers")
    module = LayersModule(read.layers, schema, [rows.shape[1]]).eval()
    load_canonical(module, read.tensors(tensors))
    with torch.no_grad():
        found = module(GraphTensors([rows], [edges], [{}])).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_aggregations_of_sage_that_no_layer_has_are_said(tmp_path: Path) -> None:
    layer = _SageLayer(2, pools=False, norm=False)
    del layer.conv.fc_self
    parts = {"gnn": {f"_layers.0.{key}": one for key, one in layer.state_dict().items()}, "decoder": {}}
    parts["node_embed"] = {"input_projs._N": _random(5, HIDDEN, seed=1)}
    torch.save(parts, tmp_path / "model.bin")
    read, _ = _read(tmp_path / "model.bin", None)
    assert not read.is_known and "aggregate by gcn" in read.problem


@pytest.mark.parametrize("kind", ["rgcn", "rgat"])
def test_a_manifest_says_in_which_order_matrices_are(kind: str, tmp_path: Path) -> None:
    """A graph has relations in another order than the one that was trained on."""
    model, order = _trained(_Model(kind)), (2, 0, 1)
    read, tensors = _read(model.saved(tmp_path / "model.bin"), _schema())
    schema = _schema(order)
    convs = tuple(
        msgspec.structs.replace(conv, relation=order.index(conv.relation)) for conv in read.layers.layers[0].convs
    )
    layers = msgspec.structs.replace(
        read.layers, layers=tuple(msgspec.structs.replace(one, convs=convs) for one in read.layers.layers)
    )
    taken = match(layers, schema, tensors, tensor_shapes(layers, schema, columns_of(schema)))
    expected = model().detach().numpy()
    found = _scores(layers, taken, schema, order)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_file_alone_tells_types_and_what_it_does_not_name(tmp_path: Path) -> None:
    read, _ = _read(_Model("rgcn", norm=nn.BatchNorm1d).saved(tmp_path / "model.bin"), None)
    assert read.is_known and {*read.names.types} == {*TYPES}
    assert [one.name for one in read.names.relations] == ["relation_0", "relation_1", "relation_2"]
    assert read.description.says() == "GraphStorm's RGCN: 2 layers over 3 relations"
    assert any("g.canonical_etypes" in one for one in read.assumed)
    first, last = read.layers.layers
    assert (first.norm, first.activation, last.norm, last.activation) == (
        Norm.BATCH, Activation.RELU, Norm.NONE, Activation.NONE,
    )  # fmt: skip
    for kind in ("rgat", "hgt"):
        named, _ = _read(_Model(kind).saved(tmp_path / f"{kind}.bin"), None)
        assert {(one.source, one.name, one.target) for one in named.names.relations} == {*RELATIONS}
        assert not any("canonical_etypes" in one for one in named.assumed)


def test_embeddings_of_nodes_stand_beside_the_file(tmp_path: Path) -> None:
    model = _Model("rgcn")
    del model.node_embed.input_projs["author"]
    model.node_embed.proj_matrix = nn.ParameterDict({"author": nn.Parameter(_random(HIDDEN, HIDDEN, seed=3))})
    read, _ = _read(model.saved(tmp_path / "model.bin"), None)
    assert read.is_known
    assert "features of author: rows of author/sparse_emb_*.pt (embeddings)" in read.assumed


@pytest.mark.parametrize("gone", ["skip.author", "relation_pri.paper_cites_paper", "q_linears.paper.bias"])
def test_a_part_of_hgt_that_is_not_there_is_named(gone: str, tmp_path: Path) -> None:
    path = _Model("hgt").saved(tmp_path / "model.bin")
    parts = torch.load(path, weights_only=True)
    del parts["gnn"][f"_layers.1.{gone}"]
    torch.save(parts, path)
    for schema in (None, _schema()):
        read, _ = _read(path, schema)
        assert not read.is_known and f"has a layer of its HGT without {gone}" in read.problem


def test_attention_over_a_relation_that_the_graph_does_not_have_is_named(tmp_path: Path) -> None:
    fewer = GraphSchema(_schema().types, _schema().relations[:2])
    read, _ = _read(_Model("hgt").saved(tmp_path / "model.bin"), fewer)
    assert "attention over the relation 'paper_written_by_author', which the graph does not have" in read.problem


@pytest.mark.parametrize("what", ["products between layers", "embeddings beside features", "an unknown layer"])
def test_what_no_layers_have_is_said(what: str, tmp_path: Path) -> None:
    model = _Model("rgcn")
    if what == "products between layers":
        words = "has products between its layers"
        model.gnn._layers[0].ngnn_mlp = nn.Module()
        model.gnn._layers[0].ngnn_mlp.ngnn_gnn = nn.ParameterList([nn.Parameter(torch.ones(HIDDEN, HIDDEN))])
    elif what == "embeddings beside features":
        words = "adds an embedding of each node to the features of paper"
        model.node_embed.proj_matrix = nn.ParameterDict({"paper": nn.Parameter(torch.ones(2 * HIDDEN, HIDDEN))})
    else:
        words = "those of none of its RGCN, RGAT, HGT and SAGE"
        del model.gnn._layers[0].weight
    read, _ = _read(model.saved(tmp_path / "model.bin"), None)
    assert not read.is_known and words in read.problem


def test_a_graph_with_other_relations_is_refused_with_both_numbers(tmp_path: Path) -> None:
    schema = GraphSchema(_schema().types, _schema().relations[:2])
    read, tensors = _read(_Model("rgcn").saved(tmp_path / "model.bin"), schema)
    assert "has matrices of 3 relations, and 2 are given" in read.problem
    layers = msgspec.structs.replace(_read(tmp_path / "model.bin", _schema())[0].layers)
    one = msgspec.structs.replace(layers.layers[0], convs=layers.layers[0].convs[:2])
    fewer = msgspec.structs.replace(layers, layers=(one, msgspec.structs.replace(one, activation=Activation.NONE)))
    with pytest.raises(MisfitError, match="has matrices of 3 relations, and 2 are given"):
        match(fewer, schema, tensors, tensor_shapes(fewer, schema, columns_of(schema)))
