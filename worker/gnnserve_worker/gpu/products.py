"""Matrix products on a GPU, of the weights that the CPU has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from gnnserve_worker.models.network import Linear, PerHead, Product


@dataclass(frozen=True, slots=True)
class DeviceProduct:
    """rows · weight + bias, with or without ReLU: float32 of float32 or bfloat16 factors."""

    weight: Tensor
    """[inputs, outputs], float32 or bfloat16."""
    bias: Tensor
    """float32 [outputs]"""
    relu: bool

    @property
    def outputs(self) -> int:
        return self.weight.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Number type of the rows that it reads."""
        return self.weight.dtype

    @staticmethod
    def of(linear: Linear, device: torch.device) -> DeviceProduct:
        dtype = torch.bfloat16 if linear.compute == "bfloat16" else torch.float32
        weight = torch.tensor(linear.dense).to(dtype).to(device)
        return DeviceProduct(weight, torch.tensor(linear.bias, device=device), linear.relu)

    def apply(self, rows: Tensor, out: Tensor) -> None:
        if rows.dtype == torch.float32:
            torch.addmm(self.bias, rows, self.weight, out=out)
        else:
            _multiply_bfloat16(rows, self.weight, out)
            out.add_(self.bias)
        if self.relu:
            out.relu_()


@dataclass(frozen=True, slots=True)
class DevicePerHead:
    """`models.network.PerHead`: a product of each head's part of a row."""

    heads: tuple[DeviceProduct, ...]

    @property
    def outputs(self) -> int:
        return sum(head.outputs for head in self.heads)

    @property
    def dtype(self) -> torch.dtype:
        return self.heads[0].dtype

    def apply(self, rows: Tensor, out: Tensor) -> None:
        read = rows.split([len(head.weight) for head in self.heads], dim=1)
        written = out.split([head.outputs for head in self.heads], dim=1)
        for head, its_rows, its_out in zip(self.heads, read, written, strict=True):
            head.apply(its_rows, its_out)


def product_on(device: torch.device, product: Product) -> DeviceProduct | DevicePerHead:
    match product:
        case Linear():
            return DeviceProduct.of(product, device)
        case PerHead():
            return DevicePerHead(tuple(DeviceProduct.of(head, device) for head in product.heads))
        case _:
            assert_never(product)


def _multiply_bfloat16(rows: Tensor, weight: Tensor, out: Tensor) -> None:
    """Sums are float32, and stay so."""
    if rows.is_cuda:
        torch.mm(rows, weight, out_dtype=torch.float32, out=out)
    else:  # which knows no products of two precisions
        torch.mm(rows.float(), weight.float(), out=out)
