"""Features as networks read them, scaled within a program, so that it takes them as a graph's source has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gnnserve_worker.models.feature_products import Scaling


class FeatureScaling(nn.Module):
    """Features as layers read them, scaled in float64 as they are before training."""

    mean: Tensor
    factors: Tensor

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        self.order, self.moves = scaling.order, scaling.mean is not None
        if scaling.mean is not None and scaling.deviation is not None:
            self.register_buffer("mean", torch.tensor(scaling.mean))
            self.register_buffer("factors", torch.tensor(1.0 / scaling.deviation))

    def forward(self, features: Tensor) -> Tensor:
        if self.moves:
            return ((features.double() - self.mean) * self.factors).float()
        if not self.order:
            return features
        rows = features.double()
        norms = rows.abs().sum(1, keepdim=True) if self.order == 1 else (rows * rows).sum(1, keepdim=True).sqrt()
        return (rows / torch.where(norms > 0, norms, torch.ones_like(norms))).float()
