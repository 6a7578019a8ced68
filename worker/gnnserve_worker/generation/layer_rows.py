"""Torch modules of rows alone, as networks as layers have them: norms, activations and products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from gnnserve_api.files.layers import Activation, DenseManifest, Norm

_MOMENTUM = 0.1
"""Share of a batch in running statistics, torch's default."""


class BatchNorm(nn.BatchNorm1d):
    """One that takes a lone row in training, too: a batch may be one node without neighbours."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training and len(rows) < 2:
            mean, variance = self.running_mean, self.running_var
            return nn.functional.batch_norm(rows, mean, variance, self.weight, self.bias, eps=self.eps)
        return super().forward(rows)


class GraphNorm(nn.Module):
    """torch_geometric's GraphNorm by running statistics, which it has none of itself."""

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def __init__(self, columns: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(columns)), nn.Parameter(torch.zeros(columns))
        self.mean_scale = nn.Parameter(torch.ones(columns))
        self.register_buffer("running_mean", torch.zeros(columns))
        self.register_buffer("running_var", torch.ones(columns))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean = rows.mean(dim=0)
            variance = (rows - mean * self.mean_scale).square().mean(dim=0)
            self.running_mean.lerp_(mean.detach(), _MOMENTUM)
            self.running_var.lerp_(variance.detach(), _MOMENTUM)
        return self.weight * (rows - mean * self.mean_scale) / (variance + self.eps).sqrt() + self.bias


class UnitRows(nn.Module):
    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(rows, p=self.power, dim=-1)


NORMS: Mapping[Norm, Callable[[int, float], nn.Module]] = {
    Norm.NONE: lambda columns, eps: nn.Identity(),
    Norm.BATCH: BatchNorm,
    Norm.LAYER: nn.LayerNorm,
    Norm.GRAPH: GraphNorm,
    Norm.L2: lambda columns, eps: UnitRows(2.0),
    Norm.L1: lambda columns, eps: UnitRows(1.0),
}
"""From columns and epsilon."""

ACTIVATIONS: Mapping[Activation, Callable[[int, float | None], nn.Module]] = {
    Activation.NONE: lambda columns, slope: nn.Identity(),
    Activation.RELU: lambda columns, slope: nn.ReLU(),
    Activation.LEAKY_RELU: lambda columns, slope: nn.LeakyReLU(0.01 if slope is None else slope),
    Activation.ELU: lambda columns, slope: nn.ELU(1.0 if slope is None else slope),
    Activation.SELU: lambda columns, slope: nn.SELU(),
    Activation.GELU: lambda columns, slope: nn.GELU(),
    Activation.SILU: lambda columns, slope: nn.SiLU(),
    Activation.PRELU: lambda columns, slope: nn.PReLU(columns),
    Activation.TANH: lambda columns, slope: nn.Tanh(),
    Activation.SIGMOID: lambda columns, slope: nn.Sigmoid(),
}
"""From columns and the slope."""


class Product(nn.Linear):
    """A product of rows, with its norm and activation."""

    def __init__(self, columns: int, dense: DenseManifest) -> None:
        super().__init__(columns, dense.width, bias=dense.bias)
        self.norm = NORMS[dense.norm](dense.width, dense.norm_epsilon)
        self.activation = ACTIVATIONS[dense.activation](dense.width, dense.slope)
        self.is_norm_behind = dense.is_norm_behind

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = super().forward(rows)
        first, second = (self.activation, self.norm) if self.is_norm_behind else (self.norm, self.activation)
        finished: torch.Tensor = second(first(rows))
        return finished


def products_of(columns: int, described: Sequence[DenseManifest]) -> nn.Sequential:
    widths = [columns, *(one.width for one in described)]
    return nn.Sequential(*(Product(width, one) for width, one in zip(widths, described, strict=False)))
