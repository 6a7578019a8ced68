"""Convolutions of DGL, computed by torch alone: its wheel does not install beside this torch.

They take edges in place of a graph object, and have the rules and the names of DGL's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.utils import scatter, softmax

Ends = tuple[Tensor, Tensor]
"""Rows of the nodes that are read, and of those that read them."""


def ends_of(feat: Tensor | Ends) -> Ends:
    return feat if isinstance(feat, tuple) else (feat, feat)


class SageConv(nn.Module):
    """dgl.nn.SAGEConv, aggregator "mean"."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.fc_self, self.fc_neigh = nn.Linear(columns, width), nn.Linear(columns, width, bias=False)

    def forward(self, edges: Tensor, feat: Tensor | Ends) -> Tensor:
        read, own = ends_of(feat)
        mean = scatter(read[edges[0]], edges[1], dim=0, dim_size=own.size(0), reduce="mean")
        found: Tensor = self.fc_self(own) + self.fc_neigh(mean)
        return found


class GraphConv(nn.Module):
    """dgl.nn.GraphConv; `norm`: "both" divides by the roots of degrees of both ends, "right" by that of the reader."""

    def __init__(
        self,
        columns: int,
        width: int,
        norm: Literal["both", "right"] = "both",
        *,
        weight: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(columns, width))) if weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, edges: Tensor, feat: Tensor | Ends, weight: Tensor | None = None) -> Tensor:
        read, own = ends_of(feat)
        ones = read.new_ones(edges.size(1))
        if self.norm == "both":
            leaving = scatter(ones, edges[0], dim=0, dim_size=read.size(0)).clamp(min=1)
            read = read * leaving.pow(-0.5).unsqueeze(1)
        weight = self.weight if weight is None else weight
        read = read if weight is None else read @ weight
        found: Tensor = scatter(read[edges[0]], edges[1], dim=0, dim_size=own.size(0))
        entering = scatter(ones, edges[1], dim=0, dim_size=own.size(0)).clamp(min=1)
        found = found * entering.pow(-0.5 if self.norm == "both" else -1.0).unsqueeze(1)
        return found if self.bias is None else found + self.bias


class GatConv(nn.Module):
    """dgl.nn.GATConv: [nodes, heads, width], no edge from a node to itself is added."""

    def __init__(
        self, columns: int, width: int, heads: int, *, feat_drop: float = 0.0, attn_drop: float = 0.0,
        activation: Callable[[Tensor], Tensor] | None = None, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.fc = nn.Linear(columns, width * heads, bias=False)
        self.attn_l, self.attn_r = (nn.Parameter(torch.randn(1, heads, width) / width) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(width * heads)) if bias else None
        self.heads, self.width, self.activation = heads, width, activation
        self.feat_drop, self.attn_drop = nn.Dropout(feat_drop), nn.Dropout(attn_drop)

    def forward(self, edges: Tensor, feat: Tensor | Ends) -> Tensor:
        read, own = (self.fc(self.feat_drop(each)).view(-1, self.heads, self.width) for each in ends_of(feat))
        left, right = (read * self.attn_l).sum(-1), (own * self.attn_r).sum(-1)
        logits = functional.leaky_relu(left[edges[0]] + right[edges[1]], 0.2)
        shares = self.attn_drop(softmax(logits, edges[1], num_nodes=own.size(0)))
        found = scatter(read[edges[0]] * shares.unsqueeze(-1), edges[1], dim=0, dim_size=own.size(0))
        found = found if self.bias is None else found + self.bias.view(1, self.heads, self.width)
        return found if self.activation is None else self.activation(found)


class RelGraphConv(nn.Module):
    """dgl.nn.RelGraphConv, regularizer "basis": weights of edges by their kinds, without the node itself."""

    def __init__(self, columns: int, width: int, relations: int, bases: int) -> None:
        super().__init__()
        self.bases = nn.Parameter(torch.randn(bases, columns, width) / columns)
        self.coefficients = nn.Parameter(torch.randn(relations, bases))
        self.h_bias = nn.Parameter(torch.zeros(width))

    def forward(self, edges: Tensor, feat: Tensor, etypes: Tensor, norm: Tensor) -> Tensor:
        weights = torch.einsum("rb,bio->rio", self.coefficients, self.bases)
        read = feat[edges[0]]
        message = torch.zeros(read.size(0), weights.size(2))
        for kind in range(weights.size(0)):
            message = torch.where((etypes == kind).unsqueeze(1), read @ weights[kind], message)
        found: Tensor = scatter(message * norm.unsqueeze(1), edges[1], dim=0, dim_size=feat.size(0))
        return found + self.h_bias
