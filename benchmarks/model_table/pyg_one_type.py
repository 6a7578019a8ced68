"""torch_geometric's examples over nodes of one type: their networks, written anew, as narrow as a table can be made of.

`pyg_others.py` lists the files that have a network of another one, or none of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.models import GraphUNet, Polynormer, SGFormer
from torch_geometric.utils import softmax

from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import (
    CLASSES,
    COLUMNS,
    EDGE_COLUMNS,
    NODES,
    RELATIONS,
    WIDTH,
    normalised_weights,
    one_type,
    over_attributes,
    over_kinds,
    over_nodes,
    over_weights,
)
from benchmarks.model_table.outcomes import Reason
from benchmarks.model_table.parts import Stack, log_softmax

FAMILY = "torch_geometric: one type"
_LINK = "https://github.com/pyg-team/pytorch_geometric/blob/master/examples/"


class Agnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.prop1, self.prop2 = pyg.AGNNConv(requires_grad=False), pyg.AGNNConv(requires_grad=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.relu(self.lin1(functional.dropout(x, training=self.training)))
        x = self.prop2(self.prop1(x, edge_index), edge_index)
        return log_softmax(self.lin2(functional.dropout(x, training=self.training)))


def arma() -> nn.Module:
    make = partial(pyg.ARMAConv, num_stacks=3, num_layers=2, shared_weights=True, dropout=0.25)
    return Stack([make(COLUMNS, WIDTH), make(WIDTH, CLASSES, act=lambda x: x)], end=log_softmax)


class SplineConv(pyg.MessagePassing):  # type: ignore[misc]
    """SplineConv with kernel_size=2, whose extension is not installed: a message is weighed between a matrix for each
    corner of the columns of its edge, which are from 0 to 1."""

    def __init__(self, columns: int, width: int, dim: int, aggr: str = "mean") -> None:
        super().__init__(aggr=aggr)
        self.weight = nn.Parameter(torch.randn(2**dim, columns, width) / columns)
        self.root, self.dim = nn.Linear(columns, width), dim

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        found: Tensor = self.propagate(edge_index, x=x, edge_attr=edge_attr) + self.root(x)
        return found

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:
        passed = torch.zeros(())
        for corner, weight in enumerate(self.weight):
            share = torch.ones(())
            for place in range(self.dim):
                column = edge_attr[:, place : place + 1]
                share = share * (column if corner >> place & 1 else 1 - column)
            passed = passed + share * (x_j @ weight)
        return passed


class Spline(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SplineConv(COLUMNS, WIDTH, 1), SplineConv(WIDTH, CLASSES, 1)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x = functional.elu(self.conv1(x, edge_index, edge_attr))
        return log_softmax(self.conv2(functional.dropout(x, training=self.training), edge_index, edge_attr))


def spline() -> Made:
    graph = one_type()
    return Made(Spline(), (graph.x, graph.edges, graph.attributes[:, :1].sigmoid()))


class Faust(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [1, 2, *[4] * 5]
        self.convs = nn.ModuleList([SplineConv(*pair, 3, "add") for pair in pairwise(widths)])
        self.lin1, self.lin2 = nn.Linear(4, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, data: Data) -> Tensor:
        x = data.x
        for conv in self.convs:
            x = functional.elu(conv(x, data.edge_index, data.edge_attr))
        x = functional.dropout(functional.elu(self.lin1(x)), training=self.training)
        return log_softmax(self.lin2(x))


def faust() -> Made:
    graph = one_type()
    given = Data(x=torch.ones(NODES, 1), edge_index=graph.edges, edge_attr=graph.attributes.sigmoid())
    return Made(Faust(), (given,))


def cluster_gcn_ppi() -> nn.Module:
    widths = [COLUMNS, *[WIDTH] * 5, CLASSES]
    convs = [pyg.SAGEConv(*pair) for pair in pairwise(widths)]
    return Stack(convs, norms=[pyg.BatchNorm(WIDTH) for _ in range(5)], dropout=0.2)


def sage(layers: int, end: Callable[[Tensor], Tensor] | None = None) -> nn.Module:
    widths = [COLUMNS, *[WIDTH] * (layers - 1), CLASSES]
    return Stack([pyg.SAGEConv(*pair) for pair in pairwise(widths)], end=end)


class DirGnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.DirGNNConv(pyg.SAGEConv(COLUMNS, WIDTH), 1.0, root_weight=False)
        self.conv2 = pyg.DirGNNConv(pyg.SAGEConv(WIDTH, CLASSES), 0.5, root_weight=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return found


class Dna(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.convs = nn.ModuleList([pyg.DNAConv(WIDTH, 8, 16, dropout=0.8) for _ in range(5)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(functional.relu(self.lin1(x)), p=0.5, training=self.training)
        history = x.view(-1, 1, WIDTH)
        for conv in self.convs:
            x = functional.relu(conv(history, edge_index)).view(-1, 1, WIDTH)
            history = torch.cat([history, x], dim=1)
        return log_softmax(self.lin2(history[:, -1]))


class Film(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([
            pyg.FiLMConv(COLUMNS, WIDTH), pyg.FiLMConv(WIDTH, WIDTH), pyg.FiLMConv(WIDTH, WIDTH),
            pyg.FiLMConv(WIDTH, CLASSES, act=None),
        ])  # fmt: skip
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDTH) for _ in range(3)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, norm in zip(self.convs[:-1], self.norms, strict=True):
            x = functional.dropout(norm(conv(x, edge_index)), p=0.1, training=self.training)
        found: Tensor = self.convs[-1](x, edge_index)
        return found


class AllLayersSage(nn.Module):
    """distributed/kuzu/papers_100M/train.py"""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv(*pair) for pair in pairwise([COLUMNS, WIDTH, WIDTH, WIDTH])])
        self.norms = nn.ModuleList([pyg.BatchNorm(WIDTH) for _ in self.convs])
        self.mlp = pyg.MLP(
            in_channels=COLUMNS + 3 * WIDTH, hidden_channels=2 * CLASSES, out_channels=CLASSES, num_layers=2,
            norm="batch_norm", act="leaky_relu",
        )  # fmt: skip

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = [x]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            rows.append(functional.dropout(norm(conv(rows[-1], edge_index)).relu(), p=0.2, training=self.training))
        found: Tensor = self.mlp(torch.cat(rows, dim=-1))
        return found


class AttackedGcn(nn.Module):
    """contrib/rbcd_attack.py normalises edges once, for both layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(COLUMNS, WIDTH, normalize=False)
        self.conv2 = pyg.GCNConv(WIDTH, CLASSES, normalize=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        edge_index, edge_weight = gcn_norm(edge_index, edge_weight, num_nodes=x.size(0), add_self_loops=True)
        x = functional.dropout(self.conv1(x, edge_index, edge_weight).relu(), training=self.training)
        found: Tensor = self.conv2(x, edge_index, edge_weight)
        return found


class WeightedGatConv(pyg.GATConv):  # type: ignore[misc]
    def edge_update(
        self, alpha_j: Tensor, alpha_i: Tensor | None, edge_attr: Tensor | None, index: Tensor, ptr: Tensor | None,
        dim_size: int | None,
    ) -> Tensor:  # fmt: skip
        alpha = functional.leaky_relu(alpha_j if alpha_i is None else alpha_j + alpha_i, self.negative_slope)
        if edge_attr is not None:
            alpha = alpha + torch.log2(edge_attr.view(-1, 1))
        alpha = softmax(alpha, index, ptr, dim_size)
        return functional.dropout(alpha, p=self.dropout, training=self.training)


class AttackedGat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            WeightedGatConv(*pair, fill_value=1.0) for pair in ((COLUMNS, WIDTH), (WIDTH, CLASSES))
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        x = functional.dropout(self.conv1(x, edge_index, edge_weight).relu(), training=self.training)
        found: Tensor = self.conv2(x, edge_index, edge_weight)
        return found


def gat() -> nn.Module:
    first = pyg.GATConv(COLUMNS, 8, 8, dropout=0.6)
    return Stack([first, pyg.GATConv(64, CLASSES, heads=1, concat=False, dropout=0.6)], functional.elu, dropout=0.6)


class GcnOverDiffusion(nn.Module):
    """gcn.py with --use_gdc: edges have weights that were computed before."""

    def __init__(self, *, normalize: bool) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(COLUMNS, WIDTH, normalize=normalize)
        self.conv2 = pyg.GCNConv(WIDTH, CLASSES, normalize=normalize)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        x = functional.dropout(self.conv1(x, edge_index, edge_weight).relu(), p=0.5, training=self.training)
        found: Tensor = self.conv2(x, edge_index, edge_weight)
        return found


class Gcn2(nn.Module):
    def __init__(
        self, layers: int, alpha: float, theta: float, *, is_shared: bool, adds: bool, end: Any = None
    ) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, CLASSES)])
        self.convs = nn.ModuleList(
            [pyg.GCN2Conv(WIDTH, alpha, theta, at + 1, is_shared, normalize=False) for at in range(layers)]
        )
        self.adds, self.end = adds, end

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = first = self.lins[0](x).relu()
        for conv in self.convs:
            h = conv(functional.dropout(x, 0.2, training=self.training), first, edge_index, edge_weight)
            x = (h + x if self.adds else h).relu()
        x = self.lins[1](x)
        return x if self.end is None else self.end(x)


def over_normalised(module: nn.Module) -> Made:
    """The adjacency that GCNNorm made before is edges with weights."""
    graph = one_type()
    return Made(module, (graph.x, *normalised_weights(graph.edges, NODES)))


class Breadth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gatconv = pyg.GATConv(WIDTH, WIDTH, heads=1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.tanh(self.gatconv(x, edge_index))


class GeniePath(nn.Module):
    def __init__(self, *, is_lazy: bool) -> None:
        super().__init__()
        self.is_lazy = is_lazy
        self.lin1, self.lin2 = nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.breadths = nn.ModuleList([Breadth() for _ in range(4)])
        self.depths = nn.ModuleList([nn.LSTM(2 * WIDTH if is_lazy else WIDTH, WIDTH, 1, bias=False) for _ in range(4)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin1(x)
        h = c = torch.zeros(1, x.shape[0], WIDTH)
        if self.is_lazy:
            seen = [breadth(x, edge_index) for breadth in self.breadths]
            x = x[None, :]
            for depth, each in zip(self.depths, seen, strict=True):
                x, (h, c) = depth(torch.cat((each[None, :], x), -1), (h, c))
            x = x[0]
        else:
            for breadth, depth in zip(self.breadths, self.depths, strict=True):
                x, (h, c) = depth(breadth(x, edge_index)[None, :], (h, c))
                x = x[0]
        found: Tensor = self.lin2(x)
        return found


class WithoutEdges(nn.Module):
    """A network of features alone, called with edges as a server gives them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        del edge_index
        found: Tensor = self.module(x)
        return found


class GraphSaint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GraphConv(COLUMNS, WIDTH), pyg.GraphConv(WIDTH, WIDTH)
        self.conv3, self.lin = pyg.GraphConv(WIDTH, WIDTH), nn.Linear(3 * WIDTH, CLASSES)
        for each in (self.conv1, self.conv2, self.conv3):
            each.aggr = "mean"  # as the example does to evaluate without --use_normalization

    def forward(self, x0: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        x1 = functional.relu(self.conv1(x0, edge_index, edge_weight))
        x2 = functional.relu(self.conv2(x1, edge_index, edge_weight))
        x3 = functional.relu(self.conv3(x2, edge_index, edge_weight))
        return log_softmax(self.lin(torch.cat([x1, x2, x3], dim=-1)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unet = GraphUNet(COLUMNS, WIDTH, CLASSES, depth=3, pool_ratios=[0.7, 0.5])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, p=0.92, training=self.training)
        return log_softmax(self.unet(x, edge_index))


class PReluEncoder(nn.Module):
    """Encoder of infomax_inductive.py (three SAGEConv) and infomax_transductive.py (one GCNConv)."""

    def __init__(self, convs: list[nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.activations = nn.ModuleList([nn.PReLU(WIDTH) for _ in convs])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, act in zip(self.convs, self.activations, strict=True):
            x = act(conv(x, edge_index))
        return x


def label_prop() -> Made:
    """Known labels, one column for each class and zeros where there is none, are the features."""
    graph = one_type()
    known = functional.one_hot(torch.arange(NODES) % CLASSES, CLASSES).float()
    known[torch.arange(NODES) % 3 > 0] = 0
    return Made(pyg.LabelPropagation(num_layers=3, alpha=0.9), (known, graph.edges))


class CorrectAndSmooth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = pyg.MLP([COLUMNS, WIDTH, WIDTH, CLASSES], dropout=0.5, norm="batch_norm", act_first=True)
        self.post = pyg.CorrectAndSmooth(50, 1.0, 50, 0.8, autoscale=False, scale=20.0)

    def forward(self, x: Tensor, edge_index: Tensor, known: Tensor) -> Tensor:
        y_soft = self.mlp(x).softmax(dim=-1)
        is_known = known.sum(dim=-1, keepdim=True)
        error = self.post.prop1(is_known * (known - y_soft), edge_index, post_step=lambda y: y.clamp(-1, 1))
        y_soft = torch.where(is_known > 0, known, y_soft + 20.0 * error)
        smoothed: Tensor = self.post.prop2(y_soft, edge_index)
        return smoothed


def correct_and_smooth() -> Made:
    graph = one_type()
    known = functional.one_hot(torch.arange(NODES) % CLASSES, CLASSES).float()
    known[torch.arange(NODES) % 3 > 0] = 0
    return Made(CorrectAndSmooth(), (graph.x, graph.edges, known))


class MixHop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [COLUMNS, 3 * WIDTH, 3 * WIDTH]
        self.convs = nn.ModuleList([pyg.MixHopConv(each, WIDTH, powers=[0, 1, 2]) for each in widths])
        self.norms = nn.ModuleList([pyg.BatchNorm(3 * WIDTH) for _ in widths])
        self.lin = pyg.Linear(3 * WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.dropout(norm(conv(x, edge_index)), p=0.9, training=self.training)
        found: Tensor = self.lin(x)
        return found


class DeeperGcn(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.node_encoder, self.edge_encoder = nn.Linear(COLUMNS, WIDTH), nn.Linear(EDGE_COLUMNS, WIDTH)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            conv = pyg.GENConv(WIDTH, WIDTH, aggr="softmax", t=1.0, learn_t=True, num_layers=2, norm="layer")
            norm = nn.LayerNorm(WIDTH, elementwise_affine=True)
            act = nn.ReLU(inplace=True)
            self.layers.append(pyg.DeepGCNLayer(conv, norm, act, block="res+", dropout=0.1, ckpt_grad=False))
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, edge_attr = self.node_encoder(x), self.edge_encoder(edge_attr)
        x = self.layers[0].conv(x, edge_index, edge_attr)  # type: ignore[operator]
        for layer in self.layers[1:]:
            x = layer(x, edge_index, edge_attr)
        x = self.layers[0].act(self.layers[0].norm(x))  # type: ignore[operator]
        found: Tensor = self.lin(functional.dropout(x, p=0.1, training=self.training))
        return found


def ppi() -> nn.Module:
    make = partial(pyg.GATConv, residual=True)
    convs = [make(COLUMNS, WIDTH, heads=4), make(4 * WIDTH, WIDTH, heads=4)]
    return Stack([*convs, make(4 * WIDTH, CLASSES, heads=6, concat=False)], functional.elu, dropout=0.0)


class GnnBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(width, elementwise_affine=True), pyg.SAGEConv(width, width)

    def forward(self, x: Tensor, edge_index: Tensor, dropout_mask: Tensor | None = None) -> Tensor:
        x = self.norm(x).relu()
        x = x * dropout_mask if self.training and dropout_mask is not None else x
        found: Tensor = self.conv(x, edge_index)
        return found


class RevGnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(COLUMNS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=True)
        self.convs = nn.ModuleList([pyg.GroupAddRev(GnnBlock(WIDTH // 2), num_groups=2) for _ in range(7)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin1(x)
        mask = torch.zeros_like(x).bernoulli_(0.5) / 0.5 if self.training else None
        for conv in self.convs:
            x = conv(x, edge_index, mask)
        found: Tensor = self.lin2(functional.dropout(self.norm(x).relu(), p=0.5, training=self.training))
        return found


class Rgat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.RGATConv(COLUMNS, WIDTH, RELATIONS)
        self.conv2, self.lin = pyg.RGATConv(WIDTH, WIDTH, RELATIONS), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = self.conv1(x, edge_index, edge_type).relu()
        return log_softmax(self.lin(self.conv2(x, edge_index, edge_type).relu()))


class Rgcn(nn.Module):
    """rgcn.py has a weight for each node and relation in its first layer, in place of features."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.conv1 = conv(NODES, WIDTH, RELATIONS, num_bases=30)
        self.conv2 = conv(WIDTH, CLASSES, RELATIONS, num_bases=30)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        del x
        x = functional.relu(self.conv1(None, edge_index, edge_type))
        return log_softmax(self.conv2(x, edge_index, edge_type))


class Shadow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.SAGEConv(COLUMNS, WIDTH)
        self.conv2, self.conv3 = pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)
        self.lin = nn.Linear(2 * WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        batch, root_n_id = torch.zeros(x.size(0), dtype=torch.long), torch.arange(x.size(0))
        x = functional.dropout(self.conv1(x, edge_index).relu(), p=0.3)  # as there: also while it scores
        x = functional.dropout(self.conv2(x, edge_index).relu(), p=0.3, training=self.training)
        x = functional.dropout(self.conv3(x, edge_index).relu(), p=0.3, training=self.training)
        pooled = pyg.global_mean_pool(x, batch)
        found: Tensor = self.lin(torch.cat([x[root_n_id], pooled[batch][root_n_id]], dim=-1))
        return found


class Sign(nn.Module):
    """Propagated features stand beside each other, as columns of one table."""

    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(COLUMNS, WIDTH) for _ in range(3)])
        self.lin = nn.Linear(3 * WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        parts = [lin(part).relu() for part, lin in zip(x.tensor_split(3, dim=-1), self.lins, strict=True)]
        return log_softmax(self.lin(torch.cat(parts, dim=-1)))


def sign() -> Made:
    graph = one_type()
    return Made(WithoutEdges(Sign()), (torch.cat([graph.x, graph.x.roll(1, 0), graph.x.roll(2, 0)], 1), graph.edges))


class SuperGat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        make = partial(
            pyg.SuperGATConv, heads=8, dropout=0.6, attention_type="MX", edge_sample_ratio=0.8, is_undirected=True
        )
        self.conv1, self.conv2 = make(COLUMNS, 8), make(64, CLASSES, concat=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = functional.elu(self.conv1(x, edge_index))
        loss = self.conv1.get_attention_loss()
        x = self.conv2(functional.dropout(x, p=0.6, training=self.training), edge_index)
        return log_softmax(x), loss + self.conv2.get_attention_loss()


class UniMp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.label_emb = pyg.MaskLabel(CLASSES, COLUMNS)
        make = partial(pyg.TransformerConv, heads=2, beta=True, dropout=0.3)
        self.convs = nn.ModuleList(
            [make(COLUMNS, WIDTH // 2), make(WIDTH, WIDTH // 2), make(WIDTH, CLASSES, concat=False)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])

    def forward(self, x: Tensor, y: Tensor, edge_index: Tensor, label_mask: Tensor) -> Tensor:
        x = self.label_emb(x, y, label_mask)
        for conv, norm in zip(self.convs[:-1], self.norms, strict=True):
            x = norm(conv(x, edge_index)).relu()
        found: Tensor = self.convs[-1](x, edge_index)
        return found


def unimp() -> Made:
    graph = one_type()
    return Made(UniMp(), (graph.x, torch.arange(NODES) % CLASSES, graph.edges, torch.arange(NODES) % 3 == 0))


class Rect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rect = pyg.RECT_L(COLUMNS, WIDTH, normalize=False, dropout=0.0)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        found: Tensor = self.rect(x, edge_index, edge_weight)
        return found


def basic(make: Any, **settings: Any) -> nn.Module:
    """A model of torch_geometric.nn.models."""
    made: nn.Module = make(COLUMNS, WIDTH, out_channels=CLASSES, **settings)
    return made


class Linkx(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linkx = pyg.LINKX(NODES, COLUMNS, WIDTH, CLASSES, num_layers=1, dropout=0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.linkx(x, edge_index)
        return found


class OverBatch(nn.Module):
    """ogbn_train.py calls transformers with the graph that each node is of: all of the same one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.module(x, edge_index, torch.zeros(x.size(0), dtype=torch.long))
        return found


class GlobalPolynormer(Polynormer):  # type: ignore[misc]
    """With its attention over all nodes, which the example turns on for the second half of its training."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, WIDTH, CLASSES, local_layers=2)
        self._global = True


# Encoders and decoders of link models


class GcnEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(COLUMNS, 2 * WIDTH), pyg.GCNConv(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return found


class VariationalEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(COLUMNS, 2 * WIDTH)
        self.conv_mu, self.conv_logstd = pyg.GCNConv(2 * WIDTH, WIDTH), pyg.GCNConv(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv1(x, edge_index).relu()
        return self.conv_mu(x, edge_index), self.conv_logstd(x, edge_index)


class RgcnEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin_in_place = nn.Identity()
        self.conv1 = pyg.RGCNConv(COLUMNS, COLUMNS, RELATIONS, num_blocks=4)
        self.conv2 = pyg.RGCNConv(COLUMNS, COLUMNS, RELATIONS, num_blocks=4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = functional.dropout(self.conv1(x, edge_index, edge_type).relu_(), p=0.2, training=self.training)
        found: Tensor = self.conv2(x, edge_index, edge_type)
        return found


class AttractRepel(nn.Module):
    """ar_link_pred.py: ARLinkPredictor"""

    def forward(self, z_i: Tensor, z_j: Tensor) -> Tensor:
        (attract_i, repel_i), (attract_j, repel_j) = (z.tensor_split(2, dim=1) for z in (z_i, z_j))
        return (attract_i * attract_j).sum(dim=1) - (repel_i * repel_j).sum(dim=1)


class OfRelation(nn.Module):
    """rgcn_link_pred.py: DistMultDecoder, of pairs of one relation"""

    def __init__(self) -> None:
        super().__init__()
        self.rel_emb = nn.Parameter(torch.randn(RELATIONS, COLUMNS))

    def forward(self, z: Tensor, edge_index: Tensor) -> Tensor:
        return torch.sum(z[edge_index[0]] * self.rel_emb[1] * z[edge_index[1]], dim=1)


class SumOfEnds(nn.Module):
    """tgn.py: LinkPredictor"""

    def __init__(self) -> None:
        super().__init__()
        self.lin_src, self.lin_dst = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lin_final = nn.Linear(WIDTH, 1)

    def forward(self, z_src: Tensor, z_dst: Tensor) -> Tensor:
        found: Tensor = self.lin_final((self.lin_src(z_src) + self.lin_dst(z_dst)).relu())
        return found


class LightGcn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.LGConv() for _ in range(2)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found = x / 3
        for conv in self.convs:
            x = conv(x, edge_index)
            found = found + x / 3
        return found


class Tgn(nn.Module):
    """The attention of tgn.py over rows of its memory, which its own loop keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(1, WIDTH)
        self.conv = pyg.TransformerConv(COLUMNS, WIDTH // 2, heads=2, dropout=0.1, edge_dim=EDGE_COLUMNS + WIDTH)

    def forward(self, x: Tensor, last_update: Tensor, edge_index: Tensor, t: Tensor, msg: Tensor) -> Tensor:
        passed = (last_update[edge_index[0]] - t).to(x.dtype).view(-1, 1)
        found: Tensor = self.conv(x, edge_index, torch.cat([self.time(passed).cos(), msg], dim=-1))
        return found


def tgn() -> Made:
    graph = one_type(directed=True)
    updated = torch.arange(NODES) + 1000
    return Made(Tgn(), (graph.x, updated, graph.edges, graph.times, graph.attributes))


def _entry(name: str, make: Callable[[], Made], task: Task = Task.CLASSES, *reasons: Reason, note: str = "") -> Entry:
    return Entry(name, FAMILY, f"{_LINK}{name.partition(':')[0]}", task, make, reasons, note)


def _nodes(name: str, make: Callable[[], nn.Module], task: Task = Task.CLASSES, *why: Reason, note: str = "") -> Entry:
    return _entry(name, lambda: over_nodes(make()), task, *why, note=note)


def _links(name: str, make: Callable[[], Made], decoder: Callable[[], nn.Module], note: str = "") -> Entry:
    return _entry(name, lambda: replace(make(), decoder=decoder()), Task.LINKS, note=note)


_FEATURES = "embeddings of nodes are given as features"
ENTRIES = (
    _nodes("agnn.py", Agnn),
    _nodes("arma.py", arma),
    _entry("cora.py", spline, note="SplineConv by torch's operations: its extension is not installed"),
    _entry("faust.py", faust, note="SplineConv by torch's operations: its extension is not installed"),
    _entry("contrib/rbcd_attack.py: GCN", lambda: over_weights(AttackedGcn())),
    _entry("contrib/rbcd_attack.py: GAT", lambda: over_weights(AttackedGat())),
    _nodes("distributed/kuzu/papers_100M/train.py", AllLayersSage),
    _nodes("cluster_gcn_ppi.py", cluster_gcn_ppi),
    _nodes("cluster_gcn_reddit.py", lambda: sage(2, log_softmax)),
    _entry("correct_and_smooth.py", correct_and_smooth, Task.CLASSES, Reason.FAR, Reason.WHOLE_GRAPH),
    _entry("dir_gnn.py", lambda: over_nodes(DirGnn(), directed=True)),
    _nodes("dna.py", Dna),
    _nodes("film.py", Film),
    _nodes("gat.py", gat),
    _nodes("gcn.py", lambda: GcnOverDiffusion(normalize=True)),
    _entry("gcn.py: --use_gdc", lambda: over_weights(GcnOverDiffusion(normalize=False)),
           note="diffusion is computed before: its weights are a column of edges"),
    _entry("gcn2_cora.py", lambda: over_normalised(Gcn2(64, 0.1, 0.5, is_shared=True, adds=False, end=log_softmax)),
           Task.CLASSES, Reason.FAR),
    _entry("gcn2_ppi.py", lambda: over_normalised(Gcn2(9, 0.5, 1.0, is_shared=False, adds=True)),
           Task.CLASSES, Reason.FAR, note="its normalised adjacency is a column of edges"),
    _nodes("geniepath.py: GeniePath", lambda: GeniePath(is_lazy=False)),
    _nodes("geniepath.py: GeniePathLazy", lambda: GeniePath(is_lazy=True)),
    _nodes("glnn.py", lambda: WithoutEdges(pyg.MLP([COLUMNS, WIDTH, CLASSES], dropout=0.5, norm=None))),
    _entry("graph_saint.py", lambda: over_weights(GraphSaint())),
    _nodes("graph_unet.py", UNet, Task.CLASSES, Reason.WHOLE_GRAPH),
    _nodes("graphland.py", lambda: Stack([pyg.GCNConv(COLUMNS, WIDTH)],
                                         head=nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, CLASSES)))),
    _nodes("hierarchical_sampling.py", lambda: basic(pyg.GraphSAGE, num_layers=3),
           note="without trim_to_layer, which computes the same scores"),
    _nodes("infomax_inductive.py", lambda: PReluEncoder([
        pyg.SAGEConv(COLUMNS, WIDTH), pyg.SAGEConv(WIDTH, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)]), Task.ROWS),
    _nodes("infomax_transductive.py", lambda: PReluEncoder([pyg.GCNConv(COLUMNS, WIDTH)]), Task.ROWS),
    _entry("label_prop.py", label_prop, note="known labels are given as features"),
    _nodes("linkx.py", Linkx),
    _nodes("mixhop.py", MixHop),
    _entry("ogbn_proteins_deepgcn.py", lambda: over_attributes(DeeperGcn(28)), Task.CLASSES, Reason.FAR),
    _entry("ogbn_proteins_deepgcn.py: 4 layers", lambda: over_attributes(DeeperGcn(4)),
           note="the same network, less deep"),
    _nodes("ogbn_train.py: GAT", lambda: basic(pyg.GAT, num_layers=3, heads=4)),
    _nodes("ogbn_train.py: GraphSAGE", lambda: basic(pyg.GraphSAGE, num_layers=3)),
    _nodes("ogbn_train.py: SGFormer", lambda: OverBatch(SGFormer(COLUMNS, WIDTH, CLASSES, trans_num_heads=2,
                                                                gnn_num_layers=3)),
           Task.CLASSES, Reason.WHOLE_GRAPH),
    _nodes("ogbn_train.py: Polynormer", lambda: OverBatch(GlobalPolynormer()), Task.CLASSES, Reason.WHOLE_GRAPH),
    _nodes("ogc.py", lambda: WithoutEdges(nn.Linear(COLUMNS, CLASSES, bias=False)),
           note="rows that its iterations made over the whole graph are given as features"),
    _nodes("pmlp.py", lambda: pyg.PMLP(COLUMNS, WIDTH, CLASSES, num_layers=2, dropout=0.5, norm=False)),
    _nodes("ppi.py", ppi),
    _nodes("reddit.py", lambda: sage(2)),
    _entry("rect.py", lambda: over_weights(Rect()), Task.ROWS),
    _nodes("rev_gnn.py", RevGnn, Task.CLASSES, Reason.FAR),
    _entry("rgat.py", lambda: over_kinds(Rgat())),
    _entry("rgcn.py", lambda: over_kinds(Rgcn(pyg.FastRGCNConv))),
    _nodes("shadow.py", Shadow, Task.CLASSES, Reason.RANDOM, Reason.WHOLE_GRAPH,
           note="called with one graph, in place of one that was drawn for each node"),
    _nodes("sgc.py", lambda: Stack([pyg.SGConv(COLUMNS, CLASSES, K=2, cached=True)], end=log_softmax)),
    _entry("sign.py", sign, note="propagated features are given as features"),
    _nodes("super_gat.py", SuperGat),
    _nodes("tagcn.py", lambda: Stack([pyg.TAGConv(COLUMNS, WIDTH), pyg.TAGConv(WIDTH, CLASSES)], end=log_softmax)),
    _entry("unimp_arxiv.py", unimp, note="known labels and whether they are known are given as features"),
    _nodes("pytorch_lightning/graph_sage.py",
           lambda: basic(pyg.GraphSAGE, num_layers=2, dropout=0.5, norm=nn.BatchNorm1d(WIDTH))),
    _nodes("graph_sage_unsup.py", lambda: pyg.GraphSAGE(COLUMNS, WIDTH, num_layers=2), Task.ROWS),
    _nodes("graph_sage_unsup_ppi.py", lambda: pyg.GraphSAGE(COLUMNS, WIDTH, num_layers=2, out_channels=WIDTH),
           Task.ROWS),
    _nodes("multi_gpu/papers100m_gcn.py", lambda: basic(pyg.GCN, num_layers=2)),
    _nodes("link_pred.py", GcnEncoder, Task.LINKS),
    _links("autoencoder.py: GAE", lambda: over_nodes(GcnEncoder()), pyg.InnerProductDecoder),
    _links("autoencoder.py: VGAE", lambda: over_nodes(VariationalEncoder()), pyg.InnerProductDecoder),
    _nodes("argva_node_clustering.py", VariationalEncoder, Task.ROWS),
    _links("ar_link_pred.py", lambda: over_nodes(GcnEncoder()), AttractRepel),
    _links("rgcn_link_pred.py", lambda: over_kinds(RgcnEncoder()), OfRelation,
           f"{_FEATURES}; a service for each relation"),
    _nodes("lightgcn.py", LightGcn, Task.LINKS, note=_FEATURES),
    _links("tgn.py", tgn, SumOfEnds, "rows of its memory are given as features"),
)  # fmt: skip
