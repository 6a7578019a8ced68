"""What a module that was saved whole says of itself is no assumption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from gnnserve_api.files.layers import Aggregation, Convolution
from gnnserve_worker.readers.files import WeightsFile, read_weights_file
from gnnserve_worker.readers.reading import read_layers

COLUMNS, WIDTH = 6, 8


class Model(nn.Module):
    def __init__(self, conv: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.conv, self.out = conv, nn.Linear(width, 3)


def saved(module: nn.Module, folder: Path) -> WeightsFile:
    torch.save(module, folder / "model.pt")
    return read_weights_file(folder / "model.pt")


CASES: Mapping[str, tuple[Callable[[], nn.Module], Mapping[str, Any], str]] = {
    "SAGEConv": (
        lambda: pyg.SAGEConv(COLUMNS, WIDTH, aggr="max", normalize=True),
        {"aggregations": (Aggregation.MAX,), "has_unit_rows": True}, "aggregations",
    ),
    "GCNConv": (
        lambda: pyg.GCNConv(COLUMNS, WIDTH, add_self_loops=False, normalize=False),
        {"self_loops": False, "is_normalised": False}, "selfLoops",
    ),
    "GATConv": (
        lambda: pyg.GATConv(COLUMNS, WIDTH, 2, concat=False, negative_slope=0.1, bias=False),
        {"heads": 2, "averages_heads": True, "width": WIDTH, "negative_slope": 0.1}, "negativeSlope",
    ),
    "TransformerConv": (
        lambda: pyg.TransformerConv(COLUMNS, WIDTH // 4, 4), {"heads": 4, "averages_heads": False}, "heads",
    ),
    "TransformerConv, averaged, without its own row": (
        lambda: pyg.TransformerConv(COLUMNS, WIDTH, 3, concat=False, root_weight=False),
        {"heads": 3, "averages_heads": True, "width": WIDTH}, "",
    ),
    "TAGConv": (lambda: pyg.TAGConv(COLUMNS, WIDTH, K=2), {"conv": Convolution.TAG, "hops": 2}, "conv"),
    "ChebConv": (lambda: pyg.ChebConv(COLUMNS, WIDTH, K=3), {"conv": Convolution.CHEBYSHEV, "hops": 2}, "conv"),
    "SGConv": (lambda: pyg.SGConv(COLUMNS, WIDTH, K=3), {"hops": 3}, "hops"),
    "GCN2Conv": (lambda: pyg.GCN2Conv(COLUMNS, alpha=0.3), {"alpha": 0.3}, "alpha"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_options_of_a_convolution_are_read(name: str, tmp_path: Path) -> None:
    make, fields, assumed = CASES[name]
    conv = make()
    file = saved(Model(conv, COLUMNS if name == "GCN2Conv" else WIDTH), tmp_path)

    read, of_tensors = read_layers(file.tensors, facts=file.facts), read_layers(file.tensors)

    (made,) = read.layers.layers[0].convs
    assert {field: getattr(made, field) for field in fields} == fields
    assert not any(one.startswith(f"layers[].{assumed}:") for one in read.assumed)
    assert not assumed or any(one.startswith(f"layers[].{assumed}:") for one in of_tensors.assumed)


def test_an_attribute_of_a_class_of_ones_own_that_means_something_else_is_left(tmp_path: Path) -> None:
    conv = pyg.GCNConv(COLUMNS, WIDTH)
    conv.normalize, conv.add_self_loops = "rows", 2
    file = saved(Model(conv), tmp_path)
    read = read_layers(file.tensors, facts=file.facts)
    assert read.layers == read_layers(file.tensors).layers
    assert any(one.startswith("layers[].selfLoops:") for one in read.assumed)
