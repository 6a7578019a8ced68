"""Layers of torch_geometric that choose a product by a number that they read back, made to compute by tensors alone.

The scores stay the same, which the comparison with the live module shows; its own layers are not touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@contextmanager
def exportable(module: torch.nn.Module) -> Iterator[None]:
    """Within it the module's layers can be exported, as far as ways are known."""
    changed = []
    for each in module.modules():
        found = _METHODS.get(type(each).__name__)
        if found is not None and type(each).__module__.startswith("torch_geometric."):
            setattr(each, found.name, found.make(each))
            changed.append((each, found.name))
    backend: Any = getattr(sys.modules.get("torch_geometric"), "backend", None)
    before = getattr(backend, "use_segment_matmul", None)
    if backend is not None:
        # RGCNConv otherwise measures its relations to choose between two products.
        backend.use_segment_matmul = False
    try:
        yield
    finally:
        if backend is not None:
            backend.use_segment_matmul = before
        for each, name in changed:
            delattr(each, name)


def _hetero_linear(layer: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Products of each row with the matrix of its type, without sorting rows (HGTConv)."""

    def forward(x: torch.Tensor, type_vec: torch.Tensor) -> torch.Tensor:
        made = x.new_zeros(x.shape[0], layer.out_channels)
        for kind in range(layer.num_types):
            made = torch.where((type_vec == kind).unsqueeze(1), x @ layer.weight[kind], made)
        return made if layer.bias is None else made + layer.bias[type_vec]

    return forward


def _attention(layer: Any) -> Callable[..., torch.Tensor]:
    """Shares of neighbours without asking whether there are any edges (GATConv)."""
    softmax = sys.modules["torch_geometric.utils"].softmax

    def edge_update(
        alpha_j: torch.Tensor, alpha_i: torch.Tensor | None, edge_attr: torch.Tensor | None, index: torch.Tensor,
        ptr: torch.Tensor | None, dim_size: int | None,
    ) -> torch.Tensor:  # fmt: skip
        alpha = alpha_j if alpha_i is None else alpha_j + alpha_i
        if edge_attr is not None and layer.lin_edge is not None:
            columns = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
            made = layer.lin_edge(columns).view(-1, layer.heads, layer.out_channels)
            alpha = alpha + (made * layer.att_edge).sum(dim=-1)
        alpha = torch.nn.functional.leaky_relu(alpha, layer.negative_slope)
        shares: torch.Tensor = softmax(alpha, index, ptr, dim_size)
        return shares

    return edge_update


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    make: Callable[[Any], Callable[..., torch.Tensor]]


_METHODS: Mapping[str, _Method] = {
    "HeteroLinear": _Method("forward", _hetero_linear),
    "GATConv": _Method("edge_update", _attention),
}
"""Methods that are computed otherwise, by the names of the classes."""
