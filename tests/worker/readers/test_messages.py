"""Files that once sent their users the wrong way: what is said of each where an architecture is wanted.

Each message names the tensors that the architecture does not read, what the file looks like, and a way that leads on:
layers that `gnnserve model inspect` writes, or a program. A file whose layers it offers is read as a whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_worker.generation import networks  # noqa: F401  (torch_geometric warns where it is imported before)
from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows
from gnnserve_worker.readers.misfit import AS_LAYERS, AS_PROGRAM, MisfitError
from gnnserve_worker.readers.reading import read_layers

COLUMNS, HIDDEN, CLASSES = 6, 16, 3
_WRONG_WAYS = (
    "label a node of each class", "set spec.model.hidden", "set spec.model.architecture", "rename", "fan-outs",
    "leave the tensor out", "give the graph that", "must be a multiple",
)  # fmt: skip


class _Parts(nn.Module):
    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.ModuleList(part) if isinstance(part, list) else part)


def _pyg() -> Any:
    import torch_geometric.nn as pyg

    return pyg


def _convs(kind: str, *widths: int, **options: Any) -> list[Any]:
    conv = getattr(_pyg(), kind)
    return [conv(inputs, outputs, **options) for inputs, outputs in pairwise(widths)]


def _gin(inputs: int, outputs: int) -> Any:
    parts = nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Linear(outputs, outputs)
    return _pyg().GINConv(nn.Sequential(*parts))


def _pna() -> Any:
    return _pyg().PNA(
        COLUMNS, HIDDEN, 2, CLASSES, aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"], deg=torch.tensor([1, 2, 3]),
    )  # fmt: skip


def _hgt() -> nn.Module:
    metadata = (["a", "b"], [("a", "to", "b"), ("b", "from", "a")])
    return _Parts(conv1=_pyg().HGTConv({"a": 4, "b": 5}, 8, metadata, heads=2), lin=nn.Linear(8, CLASSES))


_LISTED: dict[str, tuple[Callable[[], nn.Module], str, tuple[str, ...]]] = {
    "a Linear behind the last convolution": (
        lambda: _Parts(convs=_convs("SAGEConv", COLUMNS, HIDDEN, HIDDEN), lin=nn.Linear(HIDDEN, CLASSES)),
        "a Linear behind the last convolution (lin)", ("lin.weight", "lin.bias"),
    ),
    "jumping knowledge": (
        lambda: _pyg().GraphSAGE(COLUMNS, HIDDEN, 2, CLASSES, jk="cat"), 'jumping knowledge "cat"', ("lin.weight",)
    ),
    "GATv2": (
        lambda: _Parts(convs=_convs("GATv2Conv", COLUMNS, HIDDEN, CLASSES)), "2 GATv2Conv layers", ("convs.0.att",)
    ),
    "PNA": (_pna, "2 PNAConv layers", ("convs.0.aggr_module.avg_deg_lin",)),
    "hidden layers of 64 and 32": (
        lambda: _Parts(convs=_convs("SAGEConv", COLUMNS, 64, 32, CLASSES)), "hidden layers are 64 and 32 wide", ()
    ),
    "hidden layers of 128, 64 and 32": (
        lambda: _Parts(convs=_convs("SAGEConv", COLUMNS, 128, 64, 32, CLASSES)), "128 and 64 and 32 wide", ()
    ),
    "GIN with a norm": (
        lambda: _Parts(conv1=_gin(COLUMNS, HIDDEN), conv2=_gin(HIDDEN, CLASSES)),
        "2 layers of GINConv with a norm in its nn", ("conv1.nn.1.weight",),
    ),
    "GCNII of four layers": (
        lambda: _Parts(lins=[nn.Linear(COLUMNS, HIDDEN), nn.Linear(HIDDEN, CLASSES)],
                       convs=[_pyg().GCN2Conv(HIDDEN, 0.1) for _ in range(4)]),
        "4 layers of GCN2Conv (GCNII)", ("convs.0.weight1",),
    ),
    "TransformerConv of 3 heads": (
        lambda: _Parts(conv1=_pyg().TransformerConv(COLUMNS, 16, heads=3), conv2=_pyg().TransformerConv(48, CLASSES)),
        "2 TransformerConv layers", ("conv1.lin_key.weight",),
    ),
    "HGT": (_hgt, "a HGTConv (conv1)", ()),
    "a Linear before the first convolution": (
        lambda: _Parts(node_emb=nn.Linear(COLUMNS, HIDDEN), convs=_convs("SAGEConv", HIDDEN, HIDDEN, CLASSES)),
        "a Linear before the first convolution (node_emb)", ("node_emb.weight",),
    ),
    "a prefix of one's own, and a head": (
        lambda: _Parts(gnn=_pyg().GraphSAGE(COLUMNS, HIDDEN, 2, HIDDEN), out=nn.Linear(HIDDEN, CLASSES)),
        "2 SAGEConv layers (gnn.convs.0, gnn.convs.1)", ("out.weight",),
    ),
}  # fmt: skip


def _state(model: nn.Module) -> dict[str, np.ndarray]:
    return {key: one.numpy() for key, one in model.state_dict().items() if one.is_floating_point()}


def _said(state: dict[str, np.ndarray], **fields: Any) -> str:
    model = Model(
        **{"hidden": HIDDEN, "fanouts": (25, 10), **fields}, checkpoint=Checkpoint(uri="file:///m.safetensors")
    )
    with pytest.raises(MisfitError) as refused:
        WantedOverRows(model, model.row_columns(COLUMNS), CLASSES).fit(state)
    return f"{refused.value.problem}; {refused.value.remedy}"


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN"])
@pytest.mark.parametrize("name", _LISTED)
def test_layers_of_no_architecture_are_named_and_can_be_listed(name: str, architecture: str) -> None:
    make, looks, unread = _LISTED[name]
    state = _state(make())

    said = _said(state, architecture=architecture)

    assert looks in said
    assert all(key in said for key in unread)
    assert AS_LAYERS in said
    assert not any(wrong in said for wrong in _WRONG_WAYS)
    assert read_layers(state).is_whole


_PROGRAMS: dict[str, tuple[Callable[[], dict[str, np.ndarray]], str]] = {
    "ARMA": (lambda: _state(_Parts(convs=_convs("ARMAConv", COLUMNS, HIDDEN, CLASSES))), "2 ARMAConv layers"),
    "an embedding of each node": (
        lambda: _state(_Parts(emb=nn.Embedding(40, HIDDEN), convs=_convs("SAGEConv", HIDDEN, HIDDEN, CLASSES))),
        "an Embedding (emb)",
    ),
    "a norm over the graph": (
        lambda: _state(_pyg().GraphSAGE(COLUMNS, HIDDEN, 2, CLASSES, norm="GraphNorm")), "a GraphNorm (norms.0)"
    ),
    "a layer that nobody knows": (
        lambda: {**_state(_Parts(convs=_convs("SAGEConv", COLUMNS, HIDDEN, CLASSES))),
                 "gate.theta": np.ones(3, np.float32)},
        "tensors of no layer that is known (gate.theta)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _PROGRAMS)
def test_a_file_that_no_layers_read_has_the_program_as_its_way(name: str) -> None:
    make, looks = _PROGRAMS[name]
    state = make()

    said = _said(state)

    assert looks in said
    assert "not read" in said
    assert AS_PROGRAM in said
    assert AS_LAYERS not in said
    assert not any(wrong in said for wrong in _WRONG_WAYS)
    read = read_layers(state)
    assert not read.is_whole
    assert read.unread
