"""Layers of torch_geometric that choose a product by a number that they read back, made to compute by tensors alone.

The scores stay the same, which the comparison with the live module shows; its own layers are not touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def exportable(module: torch.nn.Module) -> Iterator[None]:
    """Within it the module's layers can be exported, as far as ways are known."""
    changed = []
    for each in module.modules():
        make = _FORWARDS.get(type(each).__name__)
        if make is not None and type(each).__module__.startswith("torch_geometric."):
            each.forward = make(each)
            changed.append(each)
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
        for each in changed:
            del each.forward


def _hetero_linear(layer: Any) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Products of each row with the matrix of its type, without sorting rows (HGTConv)."""

    def forward(x: torch.Tensor, type_vec: torch.Tensor) -> torch.Tensor:
        made = x.new_zeros(x.shape[0], layer.out_channels)
        for kind in range(layer.num_types):
            made = torch.where((type_vec == kind).unsqueeze(1), x @ layer.weight[kind], made)
        return made if layer.bias is None else made + layer.bias[type_vec]

    return forward


_FORWARDS: Mapping[str, Callable[[Any], Callable[..., torch.Tensor]]] = {"HeteroLinear": _hetero_linear}
"""By the names of the classes."""
