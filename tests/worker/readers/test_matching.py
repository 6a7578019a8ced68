"""Tensors of files for networks that are stated: which are taken where, and sentences where they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from gnnserve_api.files.graph_schema import one_type
from gnnserve_api.files.layers import (
    Activation,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
    TypeProductsManifest,
)
from gnnserve_worker.generation import networks  # noqa: F401  (torch_geometric warns where it is imported before)
from gnnserve_worker.layers.shapes import tensor_shapes
from gnnserve_worker.readers.matching import match
from gnnserve_worker.readers.misfit import MisfitError
from gnnserve_worker.readers.reading import read_layers, without_copies

COLUMNS, HIDDEN, CLASSES = 6, 16, 3
SCHEMA = one_type(12, 40, COLUMNS)
SAGE = Convolution.GRAPH_SAGE
Tensors = Mapping[str, np.ndarray]


class _Parts(nn.Module):
    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)


def _convs(kind: str, *widths: int, **options: Any) -> list[Any]:
    import torch_geometric.nn as pyg

    return [getattr(pyg, kind)(inputs, outputs, **options) for inputs, outputs in pairwise(widths)]


def _state(model: nn.Module) -> dict[str, np.ndarray]:
    return {key: one.numpy() for key, one in model.state_dict().items() if one.is_floating_point()}


def _file() -> dict[str, np.ndarray]:
    """Two SAGEConvs with a BatchNorm between them, and a head."""
    torch.manual_seed(0)
    return _state(
        _Parts(conv1=_convs("SAGEConv", COLUMNS, HIDDEN)[0], conv2=_convs("SAGEConv", HIDDEN, HIDDEN)[0],
               bn=nn.BatchNorm1d(HIDDEN), fc=nn.Linear(HIDDEN, CLASSES))
    )  # fmt: skip


def _layer(width: int = HIDDEN, conv: Convolution = SAGE, **fields: Any) -> LayerManifest:
    own = {name: fields.pop(name) for name in ("bias", "root", "heads", "shares_weights") if name in fields}
    return LayerManifest((ConvolutionManifest(conv, width=width, **own),), **fields)


def _network(*layers: LayerManifest, **fields: Any) -> LayersManifest:
    return LayersManifest(layers, **{"head": (DenseManifest(CLASSES),), **fields})


STATED = _network(_layer(norm=Norm.BATCH, activation=Activation.RELU), _layer(activation=Activation.RELU))


def _matched(layers: LayersManifest, tensors: Tensors, columns: int = COLUMNS) -> dict[str, np.ndarray]:
    return match(layers, SCHEMA, tensors, tensor_shapes(layers, SCHEMA, [columns]))


def test_each_tensor_is_taken_for_its_place() -> None:
    state = _file()
    found = _matched(STATED, state)
    assert found.keys() == tensor_shapes(STATED, SCHEMA, [COLUMNS]).keys()
    for key, name in (
        ("layers.0.convs.0.lin_l.weight", "conv1.lin_l.weight"),
        ("layers.1.convs.0.lin_r.weight", "conv2.lin_r.weight"),
        ("layers.0.norms.0.running_var", "bn.running_var"), ("head.0.bias", "fc.bias"),
    ):  # fmt: skip
        assert np.array_equal(found[key], state[name])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "gnn.encoder."])
def test_a_prefix_makes_no_difference(prefix: str) -> None:
    state = _file()
    found = _matched(STATED, {f"{prefix}{key}": one for key, one in state.items()})
    assert np.array_equal(found["head.0.weight"], state["fc.weight"])


def test_a_norm_is_taken_where_it_is_stated() -> None:
    behind_second = _network(_layer(), _layer(norm=Norm.BATCH))
    found = _matched(behind_second, _file())
    assert np.array_equal(found["layers.1.norms.0.weight"], _file()["bn.weight"])


def test_one_norm_of_a_file_may_stand_behind_several_layers() -> None:
    twice = _network(_layer(norm=Norm.BATCH), _layer(norm=Norm.BATCH))
    found = _matched(twice, _file())
    assert np.array_equal(found["layers.0.norms.0.weight"], found["layers.1.norms.0.weight"])


def test_the_network_s_own_names_are_taken_as_they_are() -> None:
    found = _matched(STATED, _file())
    again = _matched(STATED, found)
    assert all(again[key] is found[key] or np.array_equal(again[key], found[key]) for key in found)


def test_products_are_told_apart_by_what_is_stated() -> None:
    """All of one width: without a description, what is a head and what a residual could be either."""
    torch.manual_seed(0)
    state = _state(
        _Parts(
            lin_in=nn.Linear(HIDDEN, HIDDEN), convs=_convs("GCNConv", HIDDEN, HIDDEN, HIDDEN),
            lins=[nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)], lin_out=nn.Linear(HIDDEN, HIDDEN),
        )
    )  # fmt: skip
    layer = _layer(conv=Convolution.GCN, residual=Residual.PROJECTED)
    layers = _network(
        layer, layer, before=(TypeProductsManifest(0, (DenseManifest(HIDDEN),)),), head=(DenseManifest(HIDDEN),)
    )
    found = _matched(layers, state, HIDDEN)
    for key, name in (
        ("before.0.0.weight", "lin_in"), ("layers.0.residuals.0.weight", "lins.0"),
        ("layers.1.residuals.0.weight", "lins.1"), ("head.0.weight", "lin_out"),
    ):  # fmt: skip
        assert np.array_equal(found[key], state[f"{name}.weight"])


def test_layers_without_tensors_are_passed_over() -> None:
    """APPNP behind an MLP."""
    torch.manual_seed(0)
    state = _state(_Parts(lin1=nn.Linear(COLUMNS, HIDDEN), lin2=nn.Linear(HIDDEN, CLASSES)))
    products = (DenseManifest(HIDDEN, activation=Activation.RELU), DenseManifest(CLASSES))
    appnp = LayerManifest((ConvolutionManifest(Convolution.APPNP, width=CLASSES, hops=10, alpha=0.1),))
    found = _matched(LayersManifest((appnp,), before=(TypeProductsManifest(0, products),)), state)
    assert np.array_equal(found["before.0.1.weight"], state["lin2.weight"])


def test_a_bias_that_a_model_does_without_is_zeros() -> None:
    layers = _network(_layer(CLASSES), head=())
    found = _matched(layers, _state(_Parts(conv=_convs("SAGEConv", COLUMNS, CLASSES, bias=False)[0])))
    assert not found["layers.0.convs.0.lin_l.bias"].any()


@pytest.mark.parametrize("repeated", [True, False])
def test_shared_weights_of_gatv2_may_be_repeated_in_a_file(repeated: bool) -> None:
    state = _state(_Parts(conv=_convs("GATv2Conv", COLUMNS, CLASSES, share_weights=True)[0]))
    layers = _network(_layer(CLASSES, Convolution.GATV2, shares_weights=True), head=())
    if not repeated:
        state = {key: one for key, one in state.items() if "lin_r" not in key}
    assert np.array_equal(_matched(layers, state)["layers.0.convs.0.lin_l.weight"], state["conv.lin_l.weight"])
    if repeated:
        state["conv.lin_r.weight"] = state["conv.lin_r.weight"] + 1
        with pytest.raises(MisfitError, match=r"conv\.lin_r\.weight has no place"):
            _matched(layers, state)


def _gcn_of_old() -> tuple[Tensors, Tensors]:
    """As torch_geometric below 2.0 and DGL have it, and as it is called today."""
    new = _state(_Parts(convs=_convs("GCNConv", COLUMNS, HIDDEN, HIDDEN, CLASSES)))
    return {key.replace("lin.", ""): one.T if one.ndim == 2 else one for key, one in new.items()}, new


def _sage_of_dgl() -> tuple[Tensors, Tensors]:
    new = _state(_Parts(convs=_convs("SAGEConv", COLUMNS, HIDDEN, HIDDEN, CLASSES)))
    names = {"lin_l.weight": "fc_neigh.weight", "lin_r.weight": "fc_self.weight", "lin_l.bias": "fc_self.bias"}
    old = {}
    for key, one in new.items():
        layer, name = key.split(".", 2)[1], key.split(".", 2)[2]
        old[f"layers.{layer}.{names[name]}"] = one
    return old, new


def _gat_of_old() -> tuple[Tensors, Tensors]:
    new = _state(_Parts(convs=_convs("GATConv", COLUMNS, HIDDEN, HIDDEN, CLASSES)))
    old = {}
    for key, one in new.items():
        renamed = key.replace("att_src", "att_l").replace("att_dst", "att_r")
        if key.endswith("lin.weight"):
            old[key.replace("lin.", "lin_l.")] = old[key.replace("lin.", "lin_r.")] = one
        else:
            old[renamed] = one
    return old, new


@pytest.mark.parametrize("files", [_gcn_of_old, _sage_of_dgl, _gat_of_old])
def test_names_of_old_and_of_dgl_are_read_as_those_of_today(files: Callable[[], tuple[Tensors, Tensors]]) -> None:
    torch.manual_seed(0)
    old, new = files()
    found, wanted = read_layers(old), read_layers(new)
    assert found.is_whole
    assert found.layers == wanted.layers
    expected = wanted.tensors(new)
    assert all(np.array_equal(one, expected[key]) for key, one in found.tensors(old).items())


def test_heads_that_dgl_averages_have_biases_and_residuals_of_their_mean() -> None:
    draw = np.random.default_rng(0).standard_normal
    state = {
        "gat.fc.weight": draw((6, COLUMNS)), "gat.attn_l": draw((1, 2, 3)), "gat.attn_r": draw((1, 2, 3)),
        "gat.bias": draw(6), "gat.res_fc.weight": draw((6, COLUMNS)),
    }  # fmt: skip
    state = {key: one.astype(np.float32) for key, one in state.items()}
    read = read_layers(state)
    found = read.tensors(state)
    (layer,) = read.layers.layers
    assert (layer.convs[0].width, layer.convs[0].averages_heads, layer.residual) == (3, True, Residual.PROJECTED)
    assert np.allclose(found["layers.0.convs.0.bias"], state["gat.bias"].reshape(2, 3).mean(0))
    assert np.allclose(found["layers.0.residuals.0.weight"], state["gat.res_fc.weight"].reshape(2, 3, COLUMNS).mean(0))


def test_a_moving_average_beside_the_weights_is_left_alone() -> None:
    state = _file()
    both = {
        **{f"model.{key}": one for key, one in state.items()},
        **{f"ema_model.{key}": one for key, one in state.items()},
    }
    assert all(key.startswith("model.") for key in without_copies({key: one.shape for key, one in both.items()}))
    assert np.array_equal(_matched(STATED, both)["head.0.weight"], state["fc.weight"])


_MISFITS: dict[str, tuple[LayersManifest, Callable[[dict[str, np.ndarray]], Tensors], tuple[str, ...]]] = {
    "another width": (
        _network(_layer(32, norm=Norm.BATCH), _layer()), dict,
        ("conv1.lin_l.weight is [16, 6], and spec.model.layers[0] has [32, 6] there",),
    ),
    "other columns": (
        STATED, lambda state: {**state, "conv1.lin_l.weight": np.ones((HIDDEN, 9), np.float32),
                               "conv1.lin_r.weight": np.ones((HIDDEN, 9), np.float32)},
        ("conv1.lin_l.weight is [16, 9], and spec.model.layers[0] has [16, 6] there",),
    ),
    "a norm that is not stated": (
        _network(_layer(), _layer()), dict, ("bn.bias, bn.running_mean", "have no place in spec.model"),
    ),
    "a norm that the file does not have": (
        _network(_layer(norm=Norm.BATCH), _layer(norm=Norm.BATCH)),
        lambda state: {key.replace("bn.", "bn1."): one for key, one in state.items()},
        ("spec.model.layers[1] needs layers.1.norms.0.weight [16], which no tensor of the file is",),
    ),
    "a head that is not stated": (
        _network(_layer(norm=Norm.BATCH), _layer(), head=()), dict, ("fc.bias, fc.weight have no place",)
    ),
    "another convolution": (
        _network(_layer(conv=Convolution.GATV2, norm=Norm.BATCH), _layer(conv=Convolution.GATV2)), dict,
        ("layer 0 is of GraphSAGE, and spec.model.layers[0] is GATv2",),
    ),
    "fewer layers": (
        _network(_layer(norm=Norm.BATCH)), dict, ("2 layers that are read, and spec.model.layers states 1",)
    ),
    "no bias": (
        _network(_layer(norm=Norm.BATCH, bias=False), _layer()), dict, ("conv1.lin_l.bias has no place in spec.model",)
    ),
    "jumping knowledge": (
        msgspec.structs.replace(STATED, jumping_knowledge=JumpingKnowledge.CAT), dict, ("fc.bias, fc.weight",)
    ),
    "layers that do not follow each other": (
        STATED, lambda state: {**state, "conv2.lin_l.weight": np.ones((HIDDEN, 9), np.float32),
                               "conv2.lin_r.weight": np.ones((HIDDEN, 9), np.float32)},
        ("conv2 reads 9 columns, and conv1 before it gives 16",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _MISFITS)
def test_what_does_not_fit_is_named_with_both_shapes_and_a_way_on(name: str) -> None:
    layers, change, said = _MISFITS[name]
    with pytest.raises(MisfitError) as refused:
        _matched(layers, change(_file()))
    assert all(part in refused.value.problem for part in said), refused.value.problem
    assert "gnnserve model inspect FILE" in refused.value.remedy or "gnnserve-describe" in refused.value.remedy
