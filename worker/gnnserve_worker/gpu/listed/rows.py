"""Products, norms and activations of rows on a GPU: a twin for each class of `layers/dense.py`, of its numbers.

All work where rows are, or in the room; what torch allocates beside is a number for a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnnserve_api.files.layers import Activation
from gnnserve_worker.gpu.products import DevicePerHead, DeviceProduct, product_on
from gnnserve_worker.gpu.room import DeviceRoom
from gnnserve_worker.layers.dense import (
    Activated,
    AsTheyAre,
    Change,
    ColumnsOf,
    NormedRows,
    Prelu,
    Product,
    RowsOf,
    ScaledColumns,
    UnitRows,
    UnitSums,
)
from gnnserve_worker.models.network import Product as MatrixProduct

DeviceChange = Callable[[Tensor, DeviceRoom], object]
"""Changes rows, float32 [rows, columns], where they are."""
DeviceRowsOf = Callable[[Tensor, DeviceRoom], Tensor]
"""Makes rows of rows, float32 [rows, columns]; what it returns may be a view of them."""
_LEAST_LENGTH: Final = 1e-12


class WeightsOnDevice:
    """Brings numbers of a network to a device, and counts their bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.size_bytes = 0

    def tensor(self, numbers: np.ndarray) -> Tensor:
        """float32, of the same shape."""
        self.size_bytes += 4 * numbers.size
        return torch.tensor(numbers, dtype=torch.float32, device=self.device)

    def product(self, product: MatrixProduct) -> DeviceProduct | DevicePerHead:
        self.size_bytes += sum(4 * (each.dense.size + each.bias.size) for each in product.linears)
        return product_on(self.device, product)

    def change(self, change: Change) -> DeviceChange:
        return _CHANGES[type(change)](change, self)

    def changes(self, changes: Sequence[Change]) -> tuple[DeviceChange, ...]:
        return tuple(map(self.change, changes))

    def rows_of(self, rows_of: RowsOf) -> DeviceRowsOf:
        return _ROWS_OF[type(rows_of)](rows_of, self)

    def dense(self, product: Product) -> DeviceDense:
        return DeviceDense(self.product(product.linear), self.changes(product.behind))


@dataclass(frozen=True, slots=True)
class DeviceDense:
    """`layers.dense.Product`."""

    product: DeviceProduct | DevicePerHead
    behind: tuple[DeviceChange, ...]

    def __call__(self, rows: Tensor, room: DeviceRoom) -> Tensor:
        """float32 [rows, outputs], in the room."""
        out = room.rows(len(rows), self.product.outputs)
        self.product.apply(rows, out)
        for change in self.behind:
            change(out, room)
        return out


def run_dense(products: Sequence[DeviceDense], rows: Tensor, room: DeviceRoom) -> Tensor:
    for product in products:
        rows = product(rows, room)
    return rows


# --- changes


def _scaled_columns(change: ScaledColumns, weights: WeightsOnDevice) -> DeviceChange:
    scale, shift = weights.tensor(change.scale), weights.tensor(change.shift)

    def scale_columns(rows: Tensor, room: DeviceRoom) -> None:
        del room
        rows.mul_(scale).add_(shift)

    return scale_columns


def _normed_rows(change: NormedRows, weights: WeightsOnDevice) -> DeviceChange:
    weight, bias, epsilon = weights.tensor(change.weight), weights.tensor(change.bias), change.epsilon

    def norm_rows(rows: Tensor, room: DeviceRoom) -> None:
        number = room.rows(len(rows), 1)
        rows.sub_(torch.mean(rows, 1, keepdim=True, out=number))
        torch.linalg.vector_norm(rows, dim=1, keepdim=True, out=number)
        number.square_().div_(rows.shape[1]).add_(epsilon).rsqrt_()
        rows.mul_(number).mul_(weight).add_(bias)

    return norm_rows


def unit_rows(rows: Tensor, room: DeviceRoom) -> None:
    """Divide each row by its length."""
    _divide_by_length(rows, room, 2)


def _divide_by_length(rows: Tensor, room: DeviceRoom, order: int) -> None:
    number = room.rows(len(rows), 1)
    torch.linalg.vector_norm(rows, ord=order, dim=1, keepdim=True, out=number)
    rows.div_(number.clamp_(min=_LEAST_LENGTH))


def _unit_sums(rows: Tensor, room: DeviceRoom) -> None:
    _divide_by_length(rows, room, 1)


def _prelu(change: Prelu, weights: WeightsOnDevice) -> DeviceChange:
    slopes = weights.tensor(change.slopes)

    def activate(rows: Tensor, room: DeviceRoom) -> None:
        below = torch.clamp(rows, max=0, out=room.rows(*rows.shape))
        rows.clamp_(min=0).addcmul_(below, slopes)

    return activate


def _gelu(rows: Tensor, room: DeviceRoom) -> None:
    share = torch.mul(rows, math.sqrt(0.5), out=room.rows(*rows.shape))
    rows.mul_(share.erf_().add_(1).mul_(0.5))


def _silu(rows: Tensor, room: DeviceRoom) -> None:
    rows.mul_(torch.sigmoid(rows, out=room.rows(*rows.shape)))


ACTIVATIONS: Final[Mapping[Activation, Callable[[Tensor, DeviceRoom, float], object]]] = {
    Activation.NONE: lambda _rows, _room, _slope: None,
    Activation.RELU: lambda rows, _room, _slope: rows.relu_(),
    Activation.LEAKY_RELU: lambda rows, _room, slope: functional.leaky_relu_(rows, slope),
    Activation.ELU: lambda rows, _room, slope: functional.elu_(rows, slope),
    Activation.SELU: lambda rows, _room, _slope: functional.selu_(rows),
    Activation.GELU: lambda rows, room, _slope: _gelu(rows, room),
    Activation.SILU: lambda rows, room, _slope: _silu(rows, room),
    Activation.TANH: lambda rows, _room, _slope: rows.tanh_(),
    Activation.SIGMOID: lambda rows, _room, _slope: rows.sigmoid_(),
}
"""Activations without weights."""


def _activated(change: Activated, weights: WeightsOnDevice) -> DeviceChange:
    del weights
    activate, slope = ACTIVATIONS[change.activation], change.slope
    return lambda rows, room: activate(rows, room, slope)


_CHANGES: Final[Mapping[type, Callable[[Any, WeightsOnDevice], DeviceChange]]] = {
    ScaledColumns: _scaled_columns,
    NormedRows: _normed_rows,
    UnitRows: lambda _change, _weights: unit_rows,
    UnitSums: lambda _change, _weights: _unit_sums,
    Prelu: _prelu,
    Activated: _activated,
}


# --- rows of rows


def _as_they_are(rows: Tensor, room: DeviceRoom) -> Tensor:
    del room
    return rows


def _columns_of(rows_of: ColumnsOf, weights: WeightsOnDevice) -> DeviceRowsOf:
    del weights
    columns = rows_of.columns
    return lambda rows, _room: rows[:, columns]


_ROWS_OF: Final[Mapping[type, Callable[[Any, WeightsOnDevice], DeviceRowsOf]]] = {
    Product: lambda product, weights: weights.dense(product),
    AsTheyAre: lambda _rows_of, _weights: _as_they_are,
    ColumnsOf: _columns_of,
}
