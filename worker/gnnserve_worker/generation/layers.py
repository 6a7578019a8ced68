"""Layers over the relations of a block, in torch. A graph of one type with one list of neighbours is a block of one
type and one relation, whichever network reads it.

Layer 1's products come before its aggregation, which is the same by linearity, cheaper for rows wider than the hidden
layer, and lets sparse rows stay sparse. Graph and features stay in the processor's memory; what a batch needs of them
goes to the network's device. Sums are made in torch_geometric's order, so that networks over one list are equal to its
own to the last digit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from gnnserve_worker.graph.sources.density import MOST_NONZERO_SHARE
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.architecture import Heads, RelationalLayer
from gnnserve_worker.sampling.subgraph import SubgraphWeights

with warnings.catch_warnings():
    # torch_geometric 2.8 calls torch.jit.script while it is imported, which torch 2.15 deprecates.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    from torch_geometric.utils import scatter, softmax, spmm

CPU = torch.device("cpu")


def training_device() -> tuple[torch.device, str]:
    """The first GPU that torch can use, or the CPU, and its name for messages. Serving and profiling never leave the
    processor."""
    if not torch.cuda.is_available():
        return CPU, "on the CPU: torch sees no GPU"
    device = torch.device("cuda", 0)
    return device, f"on {torch.cuda.get_device_name(device)}"


# --- rows


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
    return SparseRows(_constant(rows, device), _constant(sp.csr_array(rows.T), device))


def _constant(matrix: sp.csr_array, device: torch.device) -> torch.Tensor:
    """A constant matrix as a CSR tensor."""
    return _csr(matrix.indptr, matrix.indices, torch.from_numpy(matrix.data), matrix.shape, device)


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
        if not rows.rows.values().numel():  # torch does not multiply rows without a number
            return weight.new_zeros((rows.rows.shape[0], weight.shape[0]))
        product: torch.Tensor = _SparseProduct.apply(weight, rows.rows, rows.transposed)
        return product
    return rows @ weight.T


# --- blocks


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists that rows of a block read by one relation in one layer."""

    adjacency: torch.Tensor
    """CSR [targets, sources], float32: each neighbour's weight, or 1. Targets: rows with a state behind the layer."""
    own_weights: torch.Tensor | float = 1.0
    """float32 [targets, 1]: the weight of the row itself, or 1."""

    @property
    def targets(self) -> int:
        return self.adjacency.shape[0]

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Weighted sums of each target's neighbours, float32 [targets, columns]."""
        sums: torch.Tensor = torch.sparse.mm(self.adjacency, rows)
        return sums

    def means(self, rows: torch.Tensor) -> torch.Tensor:
        """Means of each target's neighbours, float32 [targets, columns]; 0 where it has none."""
        if not self.adjacency.values().numel():  # a batch may read nothing by a relation
            return rows.new_zeros((self.targets, rows.shape[1]))
        means: torch.Tensor = spmm(self.adjacency, rows, "mean")
        return means

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and targets, int64, target after target."""
        counts = self.adjacency.crow_indices().diff()
        targets = torch.repeat_interleave(torch.arange(self.targets, device=counts.device), counts)
        return self.adjacency.col_indices(), targets


def lists_of(
    indptr: np.ndarray, indices: np.ndarray, sources: int, device: torch.device, weights: SubgraphWeights | None = None
) -> Lists:
    """Lists that name some of so many rows. `weights`: beginning with those of these lists; None: neighbours are not
    weighted."""
    shape = (len(indptr) - 1, sources)
    if weights is None:
        return Lists(_csr(indptr, indices, torch.ones(len(indices)), shape, device))
    of_neighbours, of_itself = weights.of_neighbours[: len(indices)], weights.of_itself[: shape[0], None]
    own_weights = torch.from_numpy(of_itself).to(device)
    return Lists(_csr(indptr, indices, torch.from_numpy(of_neighbours), shape, device), own_weights)


@dataclass(frozen=True, slots=True)
class BlockLayer:
    """Lists that one layer of a network reads in a block."""

    lists: Sequence[Lists]
    """By relation."""
    rows: Sequence[int]
    """By type: rows with a state behind the layer, the first ones of those before it."""


@dataclass(frozen=True, slots=True)
class Block:
    """The part of a graph that a step computes over, which may be all of it."""

    features: Sequence[Rows | None]
    """Rows that the first layer reads, by type; None: embeddings."""
    embedded: Sequence[torch.Tensor | None]
    """Positions of the nodes whose embeddings the first layer reads, int64, by type; None: all nodes, in order, or the
    type has features."""
    layers: Sequence[BlockLayer]
    """Lists of each layer, the first one first."""
    seeds: torch.Tensor
    """Row of each seed among the last layer's outputs of the types that are wanted, which stand type after type."""


# --- layers

States = Sequence[Rows | None]
"""Rows of each type that a layer reads; None: there are none of it."""
Outputs = list[torch.Tensor | None]
"""What a layer makes of the rows of each type, float32 [rows, outputs]; None: nothing."""

Ends = Sequence[tuple[int, int]]
"""Places of the types of each relation's source and target."""


class TrainableLayer(Protocol):
    def __call__(self, states: States, read: BlockLayer, kinds: Collection[int], dropout: float) -> Outputs:
        """Outputs of the types at these places. `dropout`: share of attention that is left out, of architectures that
        leave some out; 0: none, as in serving."""


def layer_over_relations(matrices: RelationalLayer, ends: Ends, *, is_first: bool) -> TrainableLayer:
    """A layer of these matrices of torch, which has something to read of each type that it gives outputs of."""
    if matrices.heads is not None:
        return partial(_attend, matrices, matrices.heads, ends)
    return partial(_sum_means, matrices, ends, _means_of_products if is_first else _products_of_means)


_Part = tuple[int, torch.Tensor]
"""A part of a sum, and the place of the type that it is of."""
_PartsOf = Callable[[RelationalLayer, Ends, States, BlockLayer, Collection[int]], Iterator[_Part]]


def _sum_means(
    matrices: RelationalLayer, ends: Ends, parts_of: _PartsOf, states: States, read: BlockLayer, kinds: Collection[int],
    dropout: float,
) -> Outputs:  # fmt: skip
    del dropout
    outputs: Outputs = [None] * len(states)
    for kind, part in parts_of(matrices, ends, states, read, matrices.biases.keys() & kinds):
        _add(outputs, kind, part)
    return outputs


def _means_of_products(
    matrices: RelationalLayer, ends: Ends, states: States, read: BlockLayer, wanted: Collection[int]
) -> Iterator[_Part]:
    own: dict[int, torch.Tensor] = {}
    for kind, state in enumerate(states):
        if state is None:
            continue
        places = [place for place in matrices.relations if ends[place][0] == kind and ends[place][1] in wanted]
        multiplied = [matrices.relations[place].T for place in places]
        if kind in wanted and kind in matrices.own:
            multiplied.append(matrices.own[kind].T)
        if not multiplied:
            continue
        # One product for all that read a type: its rows may be wide and sparse.
        products = torch.split(multiply_rows(state, torch.cat(multiplied)), matrices.outputs, dim=1)
        for place, product in zip(places, products, strict=False):
            shift = matrices.shifts.get(place)
            yield ends[place][1], read.lists[place].means(product if shift is None else product + shift)
        if len(products) > len(places):
            own[kind] = products[-1][: read.rows[kind]]
    yield from ((kind, matrices.biases[kind]) for kind in wanted)
    yield from own.items()


def _products_of_means(
    matrices: RelationalLayer, ends: Ends, states: States, read: BlockLayer, wanted: Collection[int]
) -> Iterator[_Part]:
    biases = {kind: matrices.biases[kind] for kind in wanted}
    for place, matrix in matrices.relations.items():
        source, target = ends[place]
        if target in wanted and isinstance(state := states[source], torch.Tensor):
            yield target, nn.functional.linear(read.lists[place].means(state), matrix.T, biases.pop(target, None))
    yield from biases.items()
    for kind, matrix in matrices.own.items():
        if kind in wanted and isinstance(state := states[kind], torch.Tensor):
            yield kind, nn.functional.linear(state[: read.rows[kind]], matrix.T)


def _attend(
    matrices: RelationalLayer, heads: Heads, ends: Ends, states: States, read: BlockLayer, kinds: Collection[int],
    dropout: float,
) -> Outputs:  # fmt: skip
    """Sums by attention, of which none is left out."""
    del dropout
    inner, slots = heads.heads * heads.columns, [0] * len(states)
    outputs: Outputs = [None] * len(states)
    own = {
        kind: multiply_rows(state, matrix.T)
        for kind, matrix in matrices.own.items()
        if kind in kinds and (state := states[kind]) is not None
    }
    for place, (source, target) in enumerate(ends):
        slot, slots[target] = slots[target], slots[target] + 1
        if place not in matrices.relations or target not in own or (state := states[source]) is None:
            continue
        lists = read.lists[place]
        sources, targets = lists.edges()
        product = multiply_rows(state, matrices.relations[place].T)
        scores = product[sources, inner:] + own[target][targets, slot * heads.heads : (slot + 1) * heads.heads]
        rows = product[:, :inner].view(-1, heads.heads, heads.columns)
        sums = attended(rows, scores, (sources, targets), lists.targets, heads.negative_slope)
        _add(outputs, target, sums.mean(dim=1) if heads.averages else sums.flatten(1))
    return [None if one is None else one + matrices.biases[kind] for kind, one in enumerate(outputs)]


def attended(
    rows: torch.Tensor, scores: torch.Tensor, edges: tuple[torch.Tensor, torch.Tensor], targets: int, slope: float,
    dropout: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Sums of the rows that targets read, weighted by the softmax of scores: float32 [targets, heads, columns].

    `rows`: float32 [sources, heads, columns]. `scores`: float32 [edges, heads]. `edges`: source and target of each.
    `slope`: of scores below 0. `dropout`: share of the weights that are left out.
    """
    read_from, read_by = edges
    shares = softmax(nn.functional.leaky_relu(scores, slope), read_by, num_nodes=targets)
    shares = nn.functional.dropout(shares, dropout, training=dropout > 0)
    read = shares.unsqueeze(-1) * rows.index_select(0, read_from)
    sums: torch.Tensor = scatter(read, read_by, dim_size=targets)
    return sums


def _add(outputs: Outputs, kind: int, added: torch.Tensor) -> None:
    before = outputs[kind]
    outputs[kind] = added if before is None else before + added
