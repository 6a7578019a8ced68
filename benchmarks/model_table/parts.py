"""Parts that many models of the table consist of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

Act = Callable[[torch.Tensor], torch.Tensor]


class Stack(torch.nn.Module):
    """Convolutions with dropout, norms and an activation between them, and perhaps a head behind: what most examples
    are."""

    def __init__(
        self, convolutions: Sequence[torch.nn.Module], act: Act = functional.relu, *,
        norms: Sequence[torch.nn.Module] = (), head: torch.nn.Module | None = None, dropout: float = 0.5,
        acts_last: bool = False, end: Act | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.convs, self.norms = torch.nn.ModuleList(convolutions), torch.nn.ModuleList(norms)
        self.act, self.head, self.dropout, self.acts_last, self.end = act, head, dropout, acts_last, end

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for place, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if place < len(self.norms):
                x = self.norms[place](x)
            if place < len(self.convs) - 1 or self.acts_last:
                x = functional.dropout(self.act(x), p=self.dropout, training=self.training)
        x = x if self.head is None else self.head(x)
        return x if self.end is None else self.end(x)


class OverData(torch.nn.Module):
    """A model whose forward takes one object that has the tensors."""

    def __init__(self, module: torch.nn.Module, *names: str) -> None:
        super().__init__()
        self.module, self.names = module, names or ("x", "edge_index")

    def forward(self, data: Any) -> Any:
        return self.module(*(getattr(data, name) for name in self.names))


def log_softmax(scores: torch.Tensor) -> torch.Tensor:
    return functional.log_softmax(scores, dim=-1)
