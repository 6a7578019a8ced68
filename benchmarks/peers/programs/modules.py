"""Models as their authors write them: torch_geometric's layers with a norm and a head, and its GAT.

Read by the benchmark, which exports them, and by peers, which run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, SAGEConv

HEADS = 4


class SageWithHead(nn.Module):
    """Module that no architecture of gnnserve describes: a BatchNorm behind each layer, and a head behind them."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(features, hidden), SAGEConv(hidden, hidden)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden), nn.BatchNorm1d(hidden)])
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, edge_index)).relu()
        return self.head(x)

    def cut(self, x: Tensor, edges: list[Tensor], targets: list[int]) -> Tensor:
        """The same, where each layer reads its own edges and writes its first targets alone."""
        for conv, norm, own, wanted in zip(self.convs, self.norms, edges, targets, strict=True):
            x = norm(conv((x, x[:wanted]), own)).relu()
        return self.head(x)


class Gat(nn.Module):
    """Also an architecture of gnnserve, under the same names of weights.

    `GATConv` takes edges from a node to itself out before it adds one, by a mask, whose size torch cannot export.
    Graphs of these benchmarks have none, so they are added here.
    """

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        first = GATConv(features, hidden // HEADS, heads=HEADS, add_self_loops=False)
        second = GATConv(hidden, classes, heads=1, concat=False, add_self_loops=False)
        self.convs = nn.ModuleList([first, second])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first, second = self.convs
        edges = _with_self(edge_index, x.shape[0])
        return second(first(x, edges).relu(), edges)

    def cut(self, x: Tensor, edges: list[Tensor], targets: list[int]) -> Tensor:
        first, second = self.convs
        hidden = first((x, x[: targets[0]]), _with_self(edges[0], targets[0])).relu()
        return second((hidden, hidden[: targets[1]]), _with_self(edges[1], targets[1]))


def _with_self(edges: Tensor, targets: int) -> Tensor:
    loops = torch.arange(targets, device=edges.device)
    return torch.cat([edges, torch.stack([loops, loops])], dim=1)


MODULES: Mapping[str, Callable[[int, int, int], nn.Module]] = {"sage_head": SageWithHead, "gat": Gat}


def random_module(name: str, features: int, hidden: int, classes: int) -> nn.Module:
    """Weights by torch's own start, and norms that have seen something."""
    torch.manual_seed(1)
    module = MODULES[name](features, hidden, classes)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return module.eval()
