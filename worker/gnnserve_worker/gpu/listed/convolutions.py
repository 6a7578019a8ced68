"""Convolutions of listed layers on a GPU: twins of the classes of `layers/convolutions/`, with their numbers.

`layers/convolutions/` says what each kind is made of, how its matrices are put together and what they are called: a
twin is made of what is built there, and computes that over a tree in GPU memory. Which kinds a service may have on a
GPU is said before anything is trained (`gnnserve_api/files/device_layers.py`); a test holds both to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from gnnserve_api.files.layers import Aggregation
from gnnserve_worker.gpu.arrays import DeviceAggregation, DeviceWeights, PaddedTree, Shares
from gnnserve_worker.gpu.kernels.aggregate import aggregate_hidden
from gnnserve_worker.gpu.kernels.attending import joint_scores, key_scores, share_edges, sum_shares
from gnnserve_worker.gpu.kernels.extremes import REDUCED, reduce_hidden
from gnnserve_worker.gpu.listed.rows import (
    DeviceChange,
    DeviceDense,
    DeviceRowsOf,
    WeightsOnDevice,
    run_dense,
    unit_rows,
)
from gnnserve_worker.gpu.products import DevicePerHead, DeviceProduct
from gnnserve_worker.gpu.room import DeviceRoom
from gnnserve_worker.layers.convolutions.attention import AdditiveAttention, JointAttention, ProductAttention
from gnnserve_worker.layers.convolutions.isomorphism import SumAndOwn
from gnnserve_worker.layers.convolutions.kind import BuiltConvolution
from gnnserve_worker.layers.convolutions.means import AggregateAndOwn
from gnnserve_worker.layers.convolutions.projected import (
    AggregateOfProducts,
    AttentionOfProducts,
    PropagatedProducts,
    QueriedProducts,
    SumOfProducts,
)
from gnnserve_worker.layers.convolutions.propagation import (
    ColumnWeights,
    GraphDegrees,
    KeptInput,
    Propagated,
    Then,
    WithInitial,
)
from gnnserve_worker.tables.table import Aggregator, Own


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """Input of a convolution in one run, as `layers.convolutions.kind.Step`."""

    sources: Tensor
    """float32 [rows within one hop more, columns]"""
    targets: Tensor
    """float32 [rows at least, columns]"""
    counts: tuple[int, ...]
    """Rows that are written by each of its hops."""
    tree: PaddedTree
    """With each row's list from the first row of its node."""
    weights: DeviceWeights | None
    """Weights of sums; None: no convolution of the network reads them."""
    network_input: Tensor | None
    room: DeviceRoom

    @property
    def count(self) -> int:
        """Rows that the convolution writes."""
        return self.counts[-1]


class DeviceConvolution(Protocol):
    def run(self, step: DeviceStep) -> Tensor:
        """float32 [rows, width], in the room."""
        ...  # pragma: no cover


def _sum_lists(rows: Tensor, count: int, step: DeviceStep, aggregator: Aggregator, own_factor: float = 0.0) -> Tensor:
    """Sums or means over the lists of the first `count` rows, and of the node's own row times the factor."""
    weights = step.weights if aggregator is Aggregator.NORMALISED_SUM else None
    aggregation = DeviceAggregation(aggregator, Own.ADDED, own_factor, None, relu=False, weights=weights)
    out = step.room.rows(count, rows.shape[1])
    aggregate_hidden(_in_order(rows, step.room), step.tree, count, aggregation, out)
    return out


def _in_order(rows: Tensor, room: DeviceRoom) -> Tensor:
    """The rows in C order, which the kernels of sums read."""
    if rows.is_contiguous():
        return rows
    found = room.rows(*rows.shape)
    return found.copy_(rows)


def _aggregate(kind: Aggregation, rows: Tensor, step: DeviceStep) -> Tensor:
    if kind in _SUMS:
        return _sum_lists(rows, step.count, step, _SUMS[kind])
    out = step.room.rows(step.count, rows.shape[1])
    reduce_hidden(_in_order(rows, step.room), step.tree, step.count, kind, out)
    return out


_SUMS: Final[Mapping[Aggregation, Aggregator]] = {Aggregation.MEAN: Aggregator.MEAN, Aggregation.SUM: Aggregator.SUM}
AGGREGATED: Final = (*_SUMS, *REDUCED)
"""Aggregations that have a kernel."""


def _add_bias(rows: Tensor, bias: Tensor | None) -> Tensor:
    return rows if bias is None else rows.add_(bias)


# --- aggregates and the node's own row


@dataclass(frozen=True, slots=True)
class _AggregateAndOwn:
    projection: DeviceDense | None
    kinds: tuple[Aggregation, ...]
    matrices: tuple[Tensor, ...]
    """float32 [columns, width] of each aggregate, and of the node's own row where that is read."""
    bias: Tensor
    has_unit_rows: bool

    @staticmethod
    def of(built: AggregateAndOwn, weights: WeightsOnDevice) -> _AggregateAndOwn:
        widths = [built.columns] * len(built.aggregates) + [built.own] * bool(built.own)
        linear = built.product.linear
        return _AggregateAndOwn(
            None if built.projection is None else weights.dense(built.projection),
            tuple(each.kind for each in built.aggregates),
            weights.tensor(linear.dense).split(widths),
            weights.tensor(linear.bias),
            built.has_unit_rows,
        )

    def run(self, step: DeviceStep) -> Tensor:
        read = step.sources if self.projection is None else self.projection(step.sources, step.room)
        out = step.room.rows(step.count, len(self.bias))
        out.copy_(self.bias.expand_as(out))
        parts: list[Tensor] = [_aggregate(kind, read, step) for kind in self.kinds]
        if len(self.matrices) > len(parts):
            parts.append(step.targets[: step.count])
        for part, matrix in zip(parts, self.matrices, strict=True):
            out.addmm_(part, matrix)
        if self.has_unit_rows:
            unit_rows(out, step.room)
        return out


@dataclass(frozen=True, slots=True)
class _AggregateOfProducts:
    kind: Aggregation
    has_own: bool
    bias: Tensor | None
    behind: tuple[DeviceChange, ...]

    @staticmethod
    def of(built: AggregateOfProducts, weights: WeightsOnDevice) -> _AggregateOfProducts:
        bias = None if built.bias is None else weights.tensor(built.bias)
        return _AggregateOfProducts(built.add_up.kind, built.has_own, bias, weights.changes(built.behind_sum))

    def run(self, step: DeviceStep) -> Tensor:
        out = _aggregate(self.kind, step.sources, step)
        if self.has_own:
            out.add_(step.targets[: step.count])
        _add_bias(out, self.bias)
        for change in self.behind:
            change(out, step.room)
        return out


@dataclass(frozen=True, slots=True)
class _SumAndOwn:
    own_weight: float
    bias: Tensor | None
    changes: tuple[DeviceChange, ...]
    products: tuple[DeviceDense, ...]

    @staticmethod
    def of(built: SumAndOwn, weights: WeightsOnDevice) -> _SumAndOwn:
        return _SumAndOwn(float(built.own_weight[0]), None, (), tuple(map(weights.dense, built.products)))

    @staticmethod
    def of_products(built: SumOfProducts, weights: WeightsOnDevice) -> _SumAndOwn:
        bias = None if built.bias is None else weights.tensor(built.bias)
        products = tuple(map(weights.dense, built.products))
        return _SumAndOwn(float(built.own_weight[0]), bias, weights.changes(built.changes), products)

    def run(self, step: DeviceStep) -> Tensor:
        out = _add_bias(_sum_lists(step.sources, step.count, step, Aggregator.SUM, self.own_weight), self.bias)
        for change in self.changes:
            change(out, step.room)
        return run_dense(self.products, out, step.room)


# --- sums weighed by degrees


_PropagateHop = Callable[[Tensor, Sequence[Tensor]], None]


def _kept_input(then: KeptInput) -> _PropagateHop:
    share = float(then.share)

    def keep_input(rows: Tensor, hops: Sequence[Tensor]) -> None:
        rows.mul_(1.0 - share).add_(hops[0][: len(rows)], alpha=share)

    return keep_input


_THEN: Final[Mapping[type[Then], Callable[[Any], _PropagateHop]]] = {KeptInput: _kept_input}
_WEIGHED: Final[Mapping[type, tuple[Aggregator, float]]] = {
    GraphDegrees: (Aggregator.NORMALISED_SUM, 1.0),
    ColumnWeights: (Aggregator.SUM, 0.0),
}
"""Aggregator of each kind of weights, and the factor of the node's own row."""


@dataclass(frozen=True, slots=True)
class _Propagated:
    weighed: tuple[Aggregator, float]
    then: _PropagateHop | None
    product: DeviceDense | None
    bias: Tensor | None

    @staticmethod
    def of(built: Propagated, weights: WeightsOnDevice) -> _Propagated:
        if built.is_beside:
            raise ValueError("rows of each hop beside each other have no kernels on a GPU")
        return _Propagated(
            _WEIGHED[type(built.weigh)],
            None if built.then is None else _THEN[type(built.then)](built.then),
            None if built.product is None else weights.dense(built.product),
            None,
        )

    @staticmethod
    def of_products(built: PropagatedProducts, weights: WeightsOnDevice) -> _Propagated:
        bias = None if built.bias is None else weights.tensor(built.bias)
        return _Propagated(_WEIGHED[type(built.weigh)], None, None, bias)

    def propagate(self, step: DeviceStep) -> Tensor:
        aggregator, own_factor = self.weighed
        hops = [step.sources]
        for count in step.counts:
            rows = _sum_lists(hops[-1], count, step, aggregator, own_factor)
            if self.then is not None:
                self.then(rows, hops)
            hops.append(rows)
        return hops[-1]

    def run(self, step: DeviceStep) -> Tensor:
        rows = _add_bias(self.propagate(step), self.bias)
        return rows if self.product is None else self.product(rows, step.room)


@dataclass(frozen=True, slots=True)
class _WithInitial:
    propagated: _Propagated
    product: DeviceDense
    alpha: float
    of_initial: DeviceDense | None

    @staticmethod
    def of(built: WithInitial, weights: WeightsOnDevice) -> _WithInitial:
        assert built.product is not None  # noqa: S101 - it has one
        return _WithInitial(
            _Propagated(_WEIGHED[type(built.weigh)], None, None, None),
            weights.dense(built.product),
            built.alpha,
            None if built.of_initial is None else weights.dense(built.of_initial),
        )

    def run(self, step: DeviceStep) -> Tensor:
        assert step.network_input is not None  # noqa: S101 - its kind reads it
        rows = self.propagated.propagate(step).mul_(1.0 - self.alpha)
        initial = step.network_input[: step.count]
        if self.of_initial is None:
            return self.product(rows.add_(initial, alpha=self.alpha), step.room)
        scaled = torch.mul(initial, self.alpha, out=step.room.rows(*initial.shape))
        return self.product(rows, step.room).add_(self.of_initial(scaled, step.room))


# --- attention


@dataclass(frozen=True, slots=True)
class _Heads:
    """Rows of the sums of all heads."""

    heads: int
    averages: bool
    bias: Tensor | None

    def together(self, summed: Tensor, room: DeviceRoom) -> Tensor:
        """Sums, float32 [rows, heads, columns], beside each other or averaged."""
        rows = summed.flatten(1)
        if self.averages:
            rows = torch.mean(summed, 1, out=room.rows(len(summed), summed.shape[2]))
        return _add_bias(rows, self.bias)


def _room_of_shares(step: DeviceStep, heads: int) -> Shares:
    room = step.room
    return Shares(room.rows(len(step.sources), heads), room.rows(step.count, heads))


@dataclass(frozen=True, slots=True)
class _AdditiveAttention:
    heads: int
    slope: float
    has_self_loops: bool
    of_source: DeviceDense
    of_target: DeviceDense
    product: DeviceProduct | DevicePerHead
    bias: Tensor

    @staticmethod
    def of(built: AdditiveAttention, weights: WeightsOnDevice) -> _AdditiveAttention:
        return _AdditiveAttention(
            built.heads, built.slope, built.has_self_loops, weights.dense(built.of_source),
            weights.dense(built.of_target), weights.product(built.products.product), weights.tensor(built.bias),
        )  # fmt: skip

    def run(self, step: DeviceStep) -> Tensor:
        room, columns = step.room, step.sources.shape[1]
        shares = _room_of_shares(step, self.heads)
        share_edges(
            self.of_source(step.sources, room), self.of_target(step.targets[: step.count], room), None, self.slope,
            step.tree, step.count, shares, has_self_loops=self.has_self_loops,
        )  # fmt: skip
        summed = room.rows(step.count, self.heads * columns).view(-1, self.heads, columns)
        sum_shares(
            step.sources, step.tree, step.count, shares, columns, summed, is_apart=False,
            has_self_loops=self.has_self_loops,
        )  # fmt: skip
        out = room.rows(step.count, self.product.outputs)
        self.product.apply(summed.flatten(1), out)
        return out.add_(self.bias)


@dataclass(frozen=True, slots=True)
class _AttentionOfProducts:
    together: _Heads
    slope: float
    has_self_loops: bool

    @staticmethod
    def of(built: AttentionOfProducts, weights: WeightsOnDevice) -> _AttentionOfProducts:
        heads = _Heads(built.heads, built.averages, weights.tensor(built.bias))
        return _AttentionOfProducts(heads, built.slope, built.has_self_loops)

    def run(self, step: DeviceStep) -> Tensor:
        heads = self.together.heads
        columns = step.sources.shape[1] // heads - 1
        shares = _room_of_shares(step, heads)
        share_edges(
            step.sources[:, heads * columns :], step.targets, None, self.slope, step.tree, step.count, shares,
            has_self_loops=self.has_self_loops,
        )  # fmt: skip
        summed = step.room.rows(step.count, heads * columns).view(-1, heads, columns)
        sum_shares(
            step.sources, step.tree, step.count, shares, columns, summed, is_apart=True,
            has_self_loops=self.has_self_loops,
        )  # fmt: skip
        return self.together.together(summed, step.room)


@dataclass(frozen=True, slots=True)
class _JointAttention:
    together: _Heads
    slope: float
    has_self_loops: bool
    of_source: DeviceRowsOf
    of_target: DeviceRowsOf | None
    vector: Tensor

    @staticmethod
    def of(built: JointAttention, weights: WeightsOnDevice) -> _JointAttention:
        return _JointAttention(
            _Heads(built.heads, built.averages, weights.tensor(built.bias)), built.slope, built.has_self_loops,
            weights.rows_of(built.of_source),
            None if built.of_target is None else weights.rows_of(built.of_target),
            weights.tensor(built.attention),
        )  # fmt: skip

    def run(self, step: DeviceStep) -> Tensor:
        room, heads, columns = step.room, self.together.heads, len(self.vector) // self.together.heads
        products = self.of_source(step.sources, room)
        targets = products if self.of_target is None else self.of_target(step.targets[: step.count], room)
        scores = room.rows(len(products), heads)
        own = room.rows(step.count, heads) if self.has_self_loops else None
        joint_scores(products, targets, self.vector, self.slope, step.tree, step.count, heads, scores, own)
        shares = _room_of_shares(step, heads)
        share_edges(
            scores, None, own, 0.0, step.tree, step.count, shares, has_self_loops=self.has_self_loops
        )  # fmt: skip
        summed = room.rows(step.count, heads * columns).view(-1, heads, columns)
        sum_shares(
            products, step.tree, step.count, shares, columns, summed, is_apart=True, has_self_loops=self.has_self_loops
        )
        return self.together.together(summed, room)


def _softmax_of_keys(
    keys: Tensor, queries: Tensor, step: DeviceStep, heads: int, columns: int, *, is_apart: bool
) -> Shares:
    scores = step.room.rows(len(keys), heads)
    key_scores(keys, queries, step.tree, step.count, heads, columns, scores, is_apart=is_apart)
    shares = _room_of_shares(step, heads)
    share_edges(scores, None, None, 0.0, step.tree, step.count, shares, has_self_loops=False)
    return shares


@dataclass(frozen=True, slots=True)
class _Gate:
    """A share of the node's own row in place of as much of the sum: `layers.convolutions.attention.gate`."""

    of_sum: Tensor
    """float32 [width, 1]"""
    of_own: Tensor

    @staticmethod
    def of(beta: Any, weights: WeightsOnDevice) -> _Gate:
        of_sum, of_own, of_difference = weights.tensor(beta).view(3, -1, 1)
        return _Gate(of_sum + of_difference, of_own - of_difference)

    def change(self, rows: Tensor, own: Tensor, room: DeviceRoom) -> None:
        share = torch.mm(rows, self.of_sum, out=room.rows(len(rows), 1)).addmm_(own, self.of_own).sigmoid_()
        difference = torch.sub(own, rows, out=room.rows(*rows.shape))
        rows.add_(difference.mul_(share))


@dataclass(frozen=True, slots=True)
class _ProductAttention:
    heads: int
    query: DeviceDense
    product: DeviceProduct | DevicePerHead
    skip: DeviceDense | None
    gate: _Gate | None

    @staticmethod
    def of(built: ProductAttention, weights: WeightsOnDevice) -> _ProductAttention:
        return _ProductAttention(
            built.heads, weights.dense(built.query), weights.product(built.values.product),
            None if built.skip is None else weights.dense(built.skip),
            None if built.beta is None else _Gate.of(built.beta, weights),
        )  # fmt: skip

    def run(self, step: DeviceStep) -> Tensor:
        room, columns, targets = step.room, step.sources.shape[1], step.targets[: step.count]
        queries = self.query(targets, room)
        shares = _softmax_of_keys(step.sources, queries, step, self.heads, columns, is_apart=False)
        # Behind the sum of each head that of its weights: 1, of an empty list 0.
        summed = room.rows(step.count, self.heads * (columns + 1)).view(-1, self.heads, columns + 1)
        sum_shares(
            step.sources, step.tree, step.count, shares, columns, summed[:, :, :columns], is_apart=False,
            has_self_loops=False,
        )  # fmt: skip
        summed[:, :, columns].copy_(step.tree.counts[: step.count, None].clamp(max=1))
        out = room.rows(step.count, self.product.outputs)
        self.product.apply(summed.flatten(1), out)
        return _beside_own(out, None if self.skip is None else self.skip(targets, room), self.gate, room)


def _beside_own(rows: Tensor, own: Tensor | None, gate: _Gate | None, room: DeviceRoom) -> Tensor:
    """Add the node's own row, as it is or by a gate."""
    if own is None:
        return rows
    if gate is None:
        return rows.add_(own)
    gate.change(rows, own, room)
    return rows


@dataclass(frozen=True, slots=True)
class _QueriedProducts:
    together: _Heads
    width: int
    has_skip: bool
    gate: _Gate | None

    @staticmethod
    def of(built: QueriedProducts, weights: WeightsOnDevice) -> _QueriedProducts:
        gate = None if built.beta is None else _Gate.of(built.beta, weights)
        return _QueriedProducts(_Heads(built.heads, built.averages, None), built.width, built.has_skip, gate)

    def run(self, step: DeviceStep) -> Tensor:
        room, heads, targets = step.room, self.together.heads, step.targets[: step.count]
        columns = step.sources.shape[1] // (2 * heads)
        keys = step.sources[:, heads * columns :]
        shares = _softmax_of_keys(keys, targets, step, heads, columns, is_apart=True)
        summed = room.rows(step.count, heads * columns).view(-1, heads, columns)
        sum_shares(step.sources, step.tree, step.count, shares, columns, summed, is_apart=True, has_self_loops=False)
        rows = self.together.together(summed, room)
        own = targets[:, targets.shape[1] - self.width :] if self.has_skip else None
        return _beside_own(rows, own, self.gate, room)


TWINS: Final[Mapping[type[BuiltConvolution], Callable[[Any, WeightsOnDevice], DeviceConvolution]]] = {
    AggregateAndOwn: _AggregateAndOwn.of,
    AggregateOfProducts: _AggregateOfProducts.of,
    SumAndOwn: _SumAndOwn.of,
    SumOfProducts: _SumAndOwn.of_products,
    Propagated: _Propagated.of,
    PropagatedProducts: _Propagated.of_products,
    WithInitial: _WithInitial.of,
    AdditiveAttention: _AdditiveAttention.of,
    AttentionOfProducts: _AttentionOfProducts.of,
    JointAttention: _JointAttention.of,
    ProductAttention: _ProductAttention.of,
    QueriedProducts: _QueriedProducts.of,
}
"""Twin of each class of a built convolution."""
