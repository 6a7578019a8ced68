"""The trained side of the models: torch_geometric's modules, run over our sampled subgraphs.

torch_geometric's models are built as a user would build them, so a state dict fits both ways.
Their convolutions aggregate; layer 1's linear maps are applied before its aggregation instead of after, which
is the same by linearity, cheaper for rows wider than the hidden layer, and lets sparse rows stay sparse. Graph and
features stay in the processor's memory; what a batch needs of them goes to the module's device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from gnnserve_api.spec.model import Architecture, Model
from gnnserve_worker.generation.learner import numbers_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.graph.sources.density import MOST_NONZERO_SHARE
from gnnserve_worker.graph.store import Features
from gnnserve_worker.sampling.subgraph import SampledSubgraph

with warnings.catch_warnings():
    # torch_geometric 2.8 calls torch.jit.script while it is imported, which torch 2.15 deprecates.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    import torch_geometric.nn as pyg
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import add_self_loops, remove_self_loops


def build_module(model: Model, columns: int, classes: int) -> nn.Module:
    """An untrained torch_geometric model; seed torch's generator first."""
    attention = model.network(classes).attention
    hops = model.network(classes).hops
    options: dict[str, Any] = {} if hops is None else {"hops": hops}
    if attention is not None:
        options = {"heads": attention.heads, "negative_slope": attention.negative_slope}
    module: Any = MODULES[model.architecture].module(
        in_channels=columns,
        hidden_channels=model.hidden,
        num_layers=len(model.fanouts),
        out_channels=classes,
        dropout=model.training.dropout,
        **options,
    )
    if attention is not None and attention.output_heads != attention.heads:
        options["heads"] = attention.output_heads
        inputs = model.hidden if len(model.fanouts) > 1 else columns
        dropout = model.training.dropout
        module.convs[-1] = pyg.GATConv(inputs, classes, concat=False, dropout=dropout, **options)
    if model.mlp_hidden is not None:
        for conv in module.convs:
            inputs, *_, outputs = conv.nn.channel_list
            conv.nn = pyg.MLP([inputs, model.mlp_hidden, outputs], act=module.act, norm=None)
    built: nn.Module = module
    return built


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Sparse feature rows and their transpose, which the backward pass needs and torch makes slowly."""

    rows: torch.Tensor
    """The rows as float32 CSR [nodes, columns]."""
    transposed: torch.Tensor


_NUMBERS_MADE_DENSE = range(2**20, 2**27)
"""Sizes of a batch, zeros included, whose sparse rows become dense where too many are not zero: fewer numbers are quick
either way, and more would take over 512 MiB."""

Rows = torch.Tensor | SparseRows
"""Feature rows of some nodes, float32 [nodes, columns]."""

CPU = torch.device("cpu")


def training_device() -> tuple[torch.device, str]:
    """The first GPU that torch can use, or the CPU, and its name for messages. Serving and profiling never leave the
    processor."""
    if not torch.cuda.is_available():
        return CPU, "on the CPU: torch sees no GPU"
    device = torch.device("cuda", 0)
    return device, f"on {torch.cuda.get_device_name(device)}"


class ListBlock(NamedTuple):
    """What was sampled for a batch from one list of neighbours."""

    rows: Rows
    """Feature rows of the subgraph's nodes."""
    subgraph: SampledSubgraph


def rows_of(features: Features, nodes: np.ndarray, device: torch.device = CPU) -> Rows:
    """The rows of `features` for `nodes` (global ids), dense or sparse as `features` are; those that propagation has
    filled become dense, which are multiplied several times as fast."""
    if isinstance(features, np.ndarray):
        if not features.flags.writeable:  # mapped from a file, which torch does not take
            return torch.from_numpy(features[nodes]).to(device)
        return torch.from_numpy(features)[torch.from_numpy(nodes.astype(np.int64))].to(device)
    rows = features[nodes]
    numbers = rows.shape[0] * rows.shape[1]
    if numbers in _NUMBERS_MADE_DENSE and MOST_NONZERO_SHARE * numbers < rows.nnz:
        return torch.from_numpy(rows.toarray()).to(device)
    return SparseRows(to_torch(rows, device), to_torch(sp.csr_array(rows.T), device))


def to_torch(matrix: sp.csr_array, device: torch.device) -> torch.Tensor:
    """A constant matrix as a CSR tensor."""
    return _csr(matrix.indptr, matrix.indices, torch.from_numpy(matrix.data), matrix.shape, device)


def forward(module: Any, rows: Rows, subgraph: SampledSubgraph) -> torch.Tensor:
    """Compute the scores of the subgraph's seeds, float32 [seeds, classes], from the feature rows of its nodes.

    Rows and scores are on the module's device.
    """
    trained = _BY_MODULE[type(module)]
    layers = len(module.convs)
    device = next(module.parameters()).device
    hidden = torch.empty(0)
    for layer, conv in enumerate(module.convs, start=1):
        targets, sources = subgraph.ends[layers - layer], subgraph.ends[layers - layer + 1]
        adjacency = _adjacency(subgraph, targets, sources, device)
        hop = Hop(adjacency, _own_weights(subgraph, targets, device), targets)
        hidden = trained.first_layer(conv, rows, hop) if layer == 1 else trained.layer(conv, hidden, hop)
        if layer < layers:
            hidden = nn.functional.dropout(module.act(hidden), p=module.dropout.p, training=module.training)
    return hidden[torch.from_numpy(subgraph.seed_rows.astype(np.int64)).to(device)]


def _adjacency(subgraph: SampledSubgraph, targets: int, sources: int, device: torch.device) -> torch.Tensor:
    indptr = subgraph.indptr[: targets + 1]
    neighbours = subgraph.neighbours[: indptr[-1]]
    weights = subgraph.weights
    values = (
        torch.ones(len(neighbours)) if weights is None else torch.from_numpy(weights.of_neighbours[: len(neighbours)])
    )
    return _csr(indptr, neighbours, values, (targets, sources), device)


def _own_weights(subgraph: SampledSubgraph, targets: int, device: torch.device) -> torch.Tensor:
    if subgraph.weights is None:
        return torch.ones((targets, 1), device=device)
    return torch.from_numpy(subgraph.weights.of_itself[:targets, None]).to(device)


def _csr(
    indptr: np.ndarray, indices: np.ndarray, values: torch.Tensor, shape: tuple[int, int], device: torch.device
) -> torch.Tensor:
    with warnings.catch_warnings():
        # torch warns once per process that its CSR tensors are in beta, which users cannot act on.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr.astype(np.int64)), torch.from_numpy(indices.astype(np.int64)), values, shape,
            check_invariants=False,
        ).to(device)  # fmt: skip


class _SparseProduct(torch.autograd.Function):
    """The product rows @ weightᵀ for sparse constant rows.

    torch's own backward pass transposes the CSR matrix every time and takes ten times as long.
    """

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, rows: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:
        ctx.transposed = transposed
        product: torch.Tensor = torch.sparse.mm(rows, weight.T)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return torch.sparse.mm(ctx.transposed, gradients[0]).T, None, None


def multiply_rows(rows: Rows, weight: torch.Tensor) -> torch.Tensor:
    """rows · weightᵀ, with a quick backward pass where the rows are sparse."""
    if isinstance(rows, SparseRows):
        if not rows.rows.values().numel():  # a batch may read nothing by a relation, and torch does not multiply that
            return weight.new_zeros((rows.rows.shape[0], weight.shape[0]))
        product: torch.Tensor = _SparseProduct.apply(weight, rows.rows, rows.transposed)
        return product
    return rows @ weight.T


@dataclass(frozen=True, slots=True)
class Hop:
    """The edges and weights that one layer aggregates over."""

    adjacency: torch.Tensor
    """CSR [targets, sources], float32: each neighbour's weight, or 1."""
    own_weights: torch.Tensor
    """float32 [targets, 1]: the weight of the node itself, or 1."""
    targets: int
    """Nodes that get a hidden state: the first ones of the sources."""


def _convolve(conv: Any, hidden: torch.Tensor, hop: Hop) -> torch.Tensor:
    """Apply torch_geometric's convolution to hidden states [sources, inputs]."""
    aggregated: torch.Tensor = conv((hidden, hidden[: hop.targets]), hop.adjacency)
    return aggregated


def _first_sage(conv: Any, rows: Rows, hop: Hop) -> torch.Tensor:
    width = conv.lin_l.weight.shape[0]
    both = multiply_rows(rows, torch.cat([conv.lin_l.weight, conv.lin_r.weight]))
    means = conv.propagate(hop.adjacency, x=(both[:, :width], None))
    hidden: torch.Tensor = means + conv.lin_l.bias + both[: hop.targets, width:]
    return hidden


def _first_gin(conv: Any, rows: Rows, hop: Hop) -> torch.Tensor:
    first, second = conv.nn.lins
    projected = multiply_rows(rows, first.weight)
    sums = conv.propagate(hop.adjacency, x=(projected, None)) + (1 + conv.eps) * projected[: hop.targets]
    hidden: torch.Tensor = second(conv.nn.act(sums + first.bias))
    return hidden


def _first_gcn(conv: Any, rows: Rows, hop: Hop) -> torch.Tensor:
    return _normalised_sum(conv, multiply_rows(rows, conv.lin.weight), hop)


def _layer_gcn(conv: Any, hidden: torch.Tensor, hop: Hop) -> torch.Tensor:
    return _normalised_sum(conv, hidden @ conv.lin.weight.T, hop)


def _normalised_sum(conv: Any, projected: torch.Tensor, hop: Hop) -> torch.Tensor:
    """Aggregate with the graph's weights. The convolution itself would compute weights from the sample."""
    sums = torch.sparse.mm(hop.adjacency, projected)
    hidden: torch.Tensor = sums + hop.own_weights * projected[: hop.targets] + conv.bias
    return hidden


def _first_gat(conv: Any, rows: Rows, hop: Hop) -> torch.Tensor:
    return _attend(conv, multiply_rows(rows, conv.lin.weight), hop)


def _layer_gat(conv: Any, hidden: torch.Tensor, hop: Hop) -> torch.Tensor:
    return _attend(conv, hidden @ conv.lin.weight.T, hop)


def _attend(conv: Any, projected: torch.Tensor, hop: Hop) -> torch.Tensor:
    """Do what the convolution's own `forward` does after its product, dropout of attention included."""
    sources = projected.view(-1, conv.heads, conv.out_channels)
    size = (len(sources), hop.targets)
    counts = hop.adjacency.crow_indices().diff()
    targets = torch.repeat_interleave(torch.arange(hop.targets, device=counts.device), counts)
    edges, _ = remove_self_loops(torch.stack([hop.adjacency.col_indices(), targets]))
    edges, _ = add_self_loops(edges, num_nodes=hop.targets)
    scores = ((sources * conv.att_src).sum(dim=-1), (sources[: hop.targets] * conv.att_dst).sum(dim=-1))
    alpha = conv.edge_updater(edges, alpha=scores, edge_attr=None, size=size)
    heads = conv.propagate(edges, x=(sources, sources[: hop.targets]), alpha=alpha, size=size)
    hidden: torch.Tensor = (heads.flatten(1) if conv.concat else heads.mean(dim=1)) + conv.bias
    return hidden


class SimpleGraphConvolution(nn.Module):
    """A model of one SGConv, which torch_geometric has as a convolution alone. Its `forward` propagates as PyG does;
    `networks.forward` gets features that were propagated already (`propagation.py`). Nothing is dropped out."""

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, dropout: float, hops: int
    ) -> None:
        """Arguments of torch_geometric's models; the hidden layers that some of them are about are not there."""
        super().__init__()
        self.convs = nn.ModuleList([pyg.SGConv(in_channels, out_channels, K=hops)])

    def forward(self, features: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.convs[0](features, edges)
        return scores


def _first_sgc(conv: Any, rows: Rows, hop: Hop) -> torch.Tensor:
    hidden: torch.Tensor = multiply_rows(rows, conv.lin.weight)[: hop.targets] + conv.lin.bias
    return hidden


def _no_layer(conv: Any, hidden: torch.Tensor, hop: Hop) -> torch.Tensor:
    raise ValueError("a simple graph convolution has one layer")


class PropagatedPerceptron(nn.Module):
    """SIGN: a perceptron over features beside their propagated ones. Its `forward` propagates them as SGConv does;
    `networks.forward` gets rows that were propagated already (`propagation.py`)."""

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, dropout: float, hops: int
    ) -> None:
        """`in_channels`: those of a whole row."""
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(nn.Linear(*ends) for ends in pairwise(widths))
        self.act = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.hops = hops

    def forward(self, features: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        edges, weights = gcn_norm(edges, num_nodes=len(features), add_self_loops=True)
        propagate = pyg.SimpleConv(aggr="sum")
        blocks = [features]
        for _ in range(self.hops):
            blocks.append(propagate(blocks[-1], edges, weights))
        hidden = torch.cat(blocks, dim=1)
        for layer in self.convs[:-1]:
            hidden = self.dropout(self.act(layer(hidden)))
        scores: torch.Tensor = self.convs[-1](hidden)
        return scores


def _first_sign(layer: Any, rows: Rows, hop: Hop) -> torch.Tensor:
    hidden: torch.Tensor = multiply_rows(rows, layer.weight)[: hop.targets] + layer.bias
    return hidden


def _layer_sign(layer: Any, hidden: torch.Tensor, hop: Hop) -> torch.Tensor:
    scores: torch.Tensor = layer(hidden[: hop.targets])
    return scores


@dataclass(frozen=True, slots=True)
class TrainedArchitecture:
    """The torch side of a `models.architecture.OneTypeSpec`."""

    module: Any
    """Class of torch_geometric's model, or one that takes the same arguments."""
    first_layer: Callable[[Any, Rows, Hop], torch.Tensor]
    """The first layer: from a convolution and feature rows to hidden states, float32 [targets, outputs]."""
    layer: Callable[[Any, torch.Tensor, Hop], torch.Tensor]
    """A further layer: from a convolution and hidden states, float32 [sources, inputs], to the next ones."""


MODULES: Mapping[Architecture, TrainedArchitecture] = {
    Architecture.GRAPHSAGE: TrainedArchitecture(pyg.GraphSAGE, _first_sage, _convolve),
    Architecture.GIN: TrainedArchitecture(pyg.GIN, _first_gin, _convolve),
    Architecture.GCN: TrainedArchitecture(pyg.GCN, _first_gcn, _layer_gcn),
    Architecture.SGC: TrainedArchitecture(SimpleGraphConvolution, _first_sgc, _no_layer),
    Architecture.SIGN: TrainedArchitecture(PropagatedPerceptron, _first_sign, _layer_sign),
    Architecture.GAT: TrainedArchitecture(pyg.GAT, _first_gat, _layer_gat),
}
"""The torch side of each entry of `models.registry.OF_ONE_TYPE`, which is free of torch."""
_BY_MODULE = {trained.module: trained for trained in MODULES.values()}


class ModuleNetwork:
    """The `learner.Network` of a torch_geometric module."""

    embeddings: tuple[nn.Parameter, ...] = ()

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.weights = tuple(module.parameters())

    def outputs(self, block: ListBlock, *, trains: bool) -> torch.Tensor:
        self._module.train(trains)
        return forward(self._module, block.rows, block.subgraph)

    def tensors(self) -> Tensors:
        return to_tensors(self._module)


def to_tensors(module: nn.Module) -> Tensors:
    """The state dict as numpy arrays, under torch_geometric's keys."""
    return numbers_of(module.state_dict())


def load_tensors(module: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Give a module the weights that `to_tensors` returned."""
    module.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in tensors.items()})
