"""Messages about files of weights as people write them: which layers they hold, and advice that is not refused next."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_worker.generation import networks  # noqa: F401  (torch_geometric warns where it is imported before)
from gnnserve_worker.generation.checkpoint import checkpoint_digest, load_checkpoint
from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.readers.description import describe

COLUMNS, HIDDEN, CLASSES = 6, 16, 3


class _Parts(nn.Module):
    """A model of named parts, in the order in which they are given."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)


def _pyg() -> Any:
    import torch_geometric.nn as pyg

    return pyg


def _sage(*widths: int) -> list[Any]:
    return [_pyg().SAGEConv(inputs, outputs) for inputs, outputs in pairwise(widths)]


def _gin(inputs: int, outputs: int, norm: bool) -> Any:
    between = [nn.BatchNorm1d(outputs)] if norm else []
    products = nn.Sequential(nn.Linear(inputs, outputs), *between, nn.ReLU(), nn.Linear(outputs, outputs))
    return _pyg().GINConv(products, train_eps=True)


def _sequential(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _state(model: nn.Module) -> Tensors:
    return {key: tensor.numpy() for key, tensor in model.state_dict().items()}


def _renamed(state: Tensors, **names: str) -> Tensors:
    found = {}
    for key, tensor in state.items():
        new = key
        for old, called in names.items():
            new = new.replace(old, called)
        found[new] = tensor
    return found


def _of_dgl() -> Tensors:
    return {
        f"layers.{layer}.{name}": np.ones(shape, np.float32)
        for layer, (inputs, outputs) in enumerate([(COLUMNS, HIDDEN), (HIDDEN, CLASSES)])
        for name, shape in {
            "fc_self.weight": (outputs, inputs), "fc_neigh.weight": (outputs, inputs), "bias": (outputs,)
        }.items()
    }  # fmt: skip


def _old_gat() -> Tensors:
    return {
        f"conv{layer}.{name}": np.ones(shape, np.float32)
        for layer, (inputs, heads, each, bias) in enumerate([(COLUMNS, 4, 4, HIDDEN), (HIDDEN, 1, CLASSES, CLASSES)], 1)
        for name, shape in {
            "lin_l.weight": (heads * each, inputs), "lin_r.weight": (heads * each, inputs),
            "att_l": (1, heads, each), "att_r": (1, heads, each), "bias": (bias,),
        }.items()
    }  # fmt: skip


def _old_gcn() -> Tensors:
    shapes = [(COLUMNS, HIDDEN), (HIDDEN, CLASSES)]
    return {
        f"conv{layer}.{name}": np.ones(shape, np.float32)
        for layer, (inputs, outputs) in enumerate(shapes, 1)
        for name, shape in {"weight": (inputs, outputs), "bias": (outputs,)}.items()
    }


def _averaged(state: Tensors) -> Tensors:
    """As torch.optim.swa_utils.AveragedModel has it."""
    return {"n_averaged": np.array(7, np.int64), **{f"module.{key}": tensor for key, tensor in state.items()}}


def _attending(kind: str, **options: Any) -> _Parts:
    conv = getattr(_pyg(), kind)
    return _Parts(conv1=conv(COLUMNS, 16, heads=3, **options), conv2=conv(48, CLASSES, heads=1, **options))


def _pna() -> _Parts:
    degrees = torch.tensor([1, 2, 3])
    options = {"aggregators": ["mean", "max"], "scalers": ["identity", "amplification"], "deg": degrees}
    return _Parts(conv1=_pyg().PNAConv(COLUMNS, HIDDEN, **options), conv2=_pyg().PNAConv(HIDDEN, CLASSES, **options))


_FILES: dict[str, tuple[Callable[[], Tensors], str]] = {
    "an average of weights": (lambda: _averaged(_state(_Parts(convs=_sage(COLUMNS, HIDDEN, CLASSES)))), ""),
    "a GCN": (
        lambda: _state(_pyg().GCN(COLUMNS, 24, 3, CLASSES)),
        "looks like 3 GCNConv layers (convs.0, convs.1, convs.2), so it holds a GCN, and spec.model.architecture is "
        "GraphSAGE; set spec.model.architecture to GCN, and give 3 fan-outs, one per layer, and set spec.model.hidden "
        "to 24",
    ),
    "a GAT of several heads": (
        lambda: _state(_Parts(
            conv1=_pyg().GATConv(COLUMNS, 8, heads=8), conv2=_pyg().GATConv(64, CLASSES, heads=1, concat=False)
        )),
        "set spec.model.architecture to GAT, and set spec.model.hidden to 64, and set spec.model.heads to 8, and set "
        "spec.model.outputHeads to 1",
    ),
    "a Linear head": (
        lambda: _state(_Parts(conv1=_sage(COLUMNS, HIDDEN)[0], conv2=_sage(HIDDEN, HIDDEN)[0],
                              fc=nn.Linear(HIDDEN, CLASSES))),
        "looks like 2 SAGEConv layers (conv1, conv2) and a Linear behind the last convolution (fc); fc.bias, fc.weight "
        "were not read; no architecture has such layers",
    ),
    "jumping knowledge": (
        lambda: _state(_pyg().GraphSAGE(COLUMNS, HIDDEN, 2, CLASSES, jk="cat")),
        'looks like 2 SAGEConv layers (convs.0, convs.1) and a Linear that reads the outputs of all layers '
        '(jumping knowledge "cat") (lin); lin.bias, lin.weight were not read',
    ),
    "a Linear before the first convolution": (
        lambda: _state(_Parts(lin_in=nn.Linear(COLUMNS, 12), convs=_sage(12, HIDDEN, CLASSES))),
        "looks like 2 SAGEConv layers (convs.0, convs.1) and a Linear before the first convolution (lin_in)",
    ),
    "norms between layers": (
        lambda: _state(_pyg().GraphSAGE(COLUMNS, HIDDEN, 2, CLASSES, norm="BatchNorm")),
        "looks like 2 SAGEConv layers (convs.0, convs.1) and a BatchNorm (norms.0)",
    ),
    "LayerNorm": (
        lambda: _state(_Parts(convs=_sage(COLUMNS, HIDDEN, CLASSES), norm=nn.LayerNorm(HIDDEN))),
        "and a LayerNorm or another norm (norm); norm.bias, norm.weight were not read",
    ),
    "GATv2": (
        lambda: _state(_attending("GATv2Conv")),
        "looks like 2 GATv2Conv layers (conv1, conv2); ",
    ),
    "GAT with columns of edges": (
        lambda: _state(_attending("GATConv", edge_dim=5)),
        "looks like 2 layers of GATConv with columns of edges (edge_dim) (conv1, conv2); ",
    ),
    "GAT before torch_geometric 2": (
        _old_gat,
        "looks like 2 layers of GATConv of torch_geometric below 2.0 (conv1, conv2); rename conv1.att_l to "
        "convs.0.att_src, conv1.att_r to convs.0.att_dst, ",
    ),
    "GCN before torch_geometric 2": (
        _old_gcn,
        "transpose conv1.weight, conv2.weight; rename conv1.bias to convs.0.bias, conv1.weight to convs.0.lin.weight",
    ),
    "TransformerConv": (lambda: _state(_attending("TransformerConv")), "looks like 2 TransformerConv layers"),
    "PNA": (lambda: _state(_pna()), "looks like 2 PNAConv layers (conv1, conv2); "),
    "widths that differ": (
        lambda: _state(_Parts(convs=_sage(COLUMNS, 64, 32, CLASSES))),
        "its hidden layers are 64 and 32 wide; no setting of an architecture says that: list its layers",
    ),
    "GIN with a norm inside": (
        lambda: _state(_Parts(conv1=_gin(COLUMNS, HIDDEN, True), conv2=_gin(HIDDEN, CLASSES, True))),
        "looks like 2 layers of GINConv with a norm in its nn (conv1, conv2)",
    ),
    "GIN": (
        lambda: _state(_Parts(conv1=_gin(COLUMNS, 12, False), conv2=_gin(12, CLASSES, False))),
        "set spec.model.architecture to GIN, and set spec.model.hidden to 12",
    ),
    "GINE": (
        lambda: _state(_Parts(conv1=_pyg().GINEConv(_sequential(COLUMNS, HIDDEN, CLASSES), edge_dim=4))),
        "looks like a GINEConv (conv1)",
    ),
    "GCNII": (
        lambda: _state(_Parts(
            lins=[nn.Linear(COLUMNS, HIDDEN), nn.Linear(HIDDEN, CLASSES)],
            convs=[_pyg().GCN2Conv(HIDDEN, 0.1) for _ in range(4)],
        )),
        "looks like 4 layers of GCN2Conv (GCNII) (convs.0, convs.1, convs.2, convs.3)",
    ),
    "a perceptron": (
        lambda: _state(_Parts(net=_sequential(COLUMNS, HIDDEN, CLASSES))),
        "looks like a perceptron of 2 layers (net.0, net.2), which reads nothing of a graph; rename net.0.* to "
        "lins.0.*, net.2.* to lins.1.*, if that is the order in which they are applied, and set "
        "spec.model.architecture to SIGN, and set spec.model.fanouts to [0, 0], and set spec.model.hops to 0",
    ),
    "SIGN": (
        lambda: _state(_pyg().MLP([3 * COLUMNS, HIDDEN, CLASSES], norm=None)),
        "set spec.model.architecture to SIGN, and set spec.model.fanouts to [0, 0]",
    ),
    "SGC": (
        lambda: _state(_Parts(conv=_pyg().SGConv(COLUMNS, CLASSES, K=2))),
        "looks like a SGConv (conv), so it holds a SGC, and spec.model.architecture is GraphSAGE; set "
        "spec.model.architecture to SGC, and set spec.model.fanouts to [0]",
    ),
    "a layer alone": (
        lambda: _state(_pyg().SAGEConv(COLUMNS, CLASSES)),
        "looks like a SAGEConv (without a name); rename lin_l.bias to convs.0.lin_l.bias, lin_l.weight to "
        "convs.0.lin_l.weight, lin_r.weight to convs.0.lin_r.weight, and give 1 fan-outs",
    ),
    "a SGConv alone": (
        lambda: _state(_pyg().SGConv(COLUMNS, CLASSES, K=2)),
        "looks like a SGConv (without a name); rename lin.bias to convs.0.lin.bias, lin.weight to convs.0.lin.weight",
    ),
    "DGL": (
        _of_dgl,
        "looks like 2 layers of SAGEConv of DGL (layers.0, layers.1); rename layers.0.bias to convs.0.lin_l.bias, ",
    ),
    "a prefix and a head": (
        lambda: _state(_Parts(gnn=_pyg().GCN(COLUMNS, HIDDEN, 2, HIDDEN), classifier=nn.Linear(HIDDEN, CLASSES))),
        "looks like 2 GCNConv layers (gnn.convs.0, gnn.convs.1) and a Linear behind the last convolution (classifier)",
    ),
    "a regression": (
        lambda: _state(_Parts(convs=_sage(COLUMNS, HIDDEN, 1))),
        "the model gives 1, as a regression does, or one logit for two classes: neither is served yet",
    ),
    "without biases": (
        lambda: _state(_pyg().GCN(COLUMNS, HIDDEN, 2, CLASSES, bias=False)),
        "looks like 2 layers of GCNConv with bias=False (convs.0, convs.1); add convs.0.bias [16], convs.1.bias [3] of "
        "zeros",
    ),
    "no weights of the node itself": (
        lambda: _state(_pyg().GraphSAGE(COLUMNS, HIDDEN, 2, CLASSES, root_weight=False)),
        "add convs.0.lin_r.weight [16, 6], convs.1.lin_r.weight [3, 16] of zeros",
    ),
    "heads beside each other in the last layer": (
        lambda: _state(_Parts(conv1=_pyg().GATConv(COLUMNS, 4, heads=4), conv2=_pyg().GATConv(16, CLASSES, heads=2))),
        "the 2 heads of its last layer stand beside each other (concat=True); no setting of an architecture says that",
    ),
    "GraphConv": (
        lambda: _state(_Parts(conv1=_pyg().GraphConv(COLUMNS, CLASSES))),
        "looks like a GraphConv (conv1)",
    ),
    "an LSTM over layers": (
        lambda: _state(_pyg().GraphSAGE(COLUMNS, HIDDEN, 2, CLASSES, jk="lstm")),
        'JumpingKnowledge("lstm") (jk)',
    ),
}  # fmt: skip


def _load(folder: Path, state: Tensors, fields: dict[str, Any]) -> Tensors:
    path = folder / "model.safetensors"
    safetensors.numpy.save_file({key: np.ascontiguousarray(tensor) for key, tensor in state.items()}, path)
    model = Model(**{"hidden": HIDDEN, "fanouts": (25, 10), **fields}, checkpoint=Checkpoint(uri=path.as_uri()))
    assert model.checkpoint is not None
    columns = model.row_columns(COLUMNS)
    return load_checkpoint(model.checkpoint, checkpoint_digest(model) or "", WantedOverRows(model, columns, CLASSES))


_SETTING = re.compile(r"set spec\.model\.(\w+) to (\[[\d, ]+\]|\w+)")


def _followed(message: str, state: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """The file and the fields of spec.model as the message advises."""
    state, fields = dict(state), {}
    for name, value in _SETTING.findall(message):
        field = {"outputHeads": "output_heads", "mlpHidden": "mlp_hidden"}.get(name, name)
        fields[field] = value if not re.fullmatch(r"[\[\]\d, ]+", value) else eval(value)  # noqa: S307
    if (layers := re.search(r"give (\d+) fan-outs", message)) is not None:
        fields["fanouts"] = (5,) * int(layers[1])
    if (listed := re.search(r"transpose ([^;]+);", message)) is not None:
        state |= {key: state[key].T for key in listed[1].split(", ")}
    for old, new in re.findall(r"([\w.]+)\.\* to ([\w.]+)\.\*", message):
        state = _renamed(state, **{f"{old}.": f"{new}."})
    for old, new in re.findall(r"([\w.]+) to (convs[\w.]+)", message):
        state[new] = state.pop(old)
    if (listed := re.search(r"leave out ([^;]+), which", message)) is not None:
        for key in listed[1].split(", "):
            del state[key]
    if (listed := re.search(r"add (.+) of zeros", message)) is not None:
        for key, shape in re.findall(r"([\w.]+) \[([\d, ]+)\]", listed[1]):
            state[key] = np.zeros([int(size) for size in shape.split(", ")], np.float32)
    return state, fields


@pytest.mark.parametrize("name", _FILES)
def test_advice_about_a_file_is_not_refused_next(tmp_path: Path, name: str) -> None:
    make, said = _FILES[name]
    state = make()
    try:
        _load(tmp_path, state, {})
    except InputError as refused:
        message = str(refused)
    else:
        message = ""
    assert said in message
    if not message:
        assert not said
        return
    changed, fields = _followed(message, state)
    if changed.keys() == state.keys() and not fields and "transpose" not in message:
        assert any(way in message for way in ("gnnserve model inspect", "gnnserve-describe", "neither is served yet"))
        return
    _load(tmp_path, changed, fields)


def test_every_tensor_is_of_a_layer_or_named_as_unknown() -> None:
    for make, _ in _FILES.values():
        state = make()
        description = describe({key: tensor.shape for key, tensor in state.items()})
        of_layers = [name for layer in description.layers for name in layer.tensors]
        assert sorted([*of_layers, *description.others]) == sorted(state)


@pytest.mark.parametrize("relation", ["paper__cites__paper", "<paper___cites___paper>"])
def test_layers_of_relations_are_those_of_a_model_over_types(tmp_path: Path, relation: str) -> None:
    state = {
        f"{layer}.{relation}.{name}": tensor
        for layer, conv in zip(("conv1", "conv2"), _sage(COLUMNS, HIDDEN, CLASSES), strict=True)
        for name, tensor in _state(conv).items()
    }
    state |= {key.replace("paper", "author", 1): tensor for key, tensor in state.items()}

    with pytest.raises(InputError) as refused:
        _load(tmp_path, state, {})

    message = str(refused.value)
    assert "holds layers of the relations author__cites__paper, paper__cites__paper, so it is a model over" in message
    assert "spec.graph.source.typed" in message
    assert "rename" not in message
