"""Decoders in torch, which learn; their weights in numpy are served by `models/decoder.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from gnnserve_api.spec.task import Decoder


class TrainedDecoder(nn.Module):
    """Scores float32 [pairs] of two embeddings, float32 [pairs, dimensions] each."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Dot(TrainedDecoder):
    def __init__(self, dimensions: int) -> None:
        super().__init__()

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (first * second).sum(dim=1)


class DistMult(TrainedDecoder):
    """A bilinear score with a diagonal matrix (DistMult, section 3.1), of one relation."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.ones(dimensions))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (first * self.relation * second).sum(dim=1)


class Perceptron(TrainedDecoder):
    """One hidden layer over both embeddings beside each other; its matrix is kept in two halves, one of each."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        hidden, last = nn.Linear(2 * dimensions, dimensions), nn.Linear(dimensions, 1)
        both = hidden.weight.detach()
        self.first = nn.Parameter(both[:, :dimensions].clone())
        self.second = nn.Parameter(both[:, dimensions:].clone())
        self.bias = nn.Parameter(hidden.bias.detach().clone())
        self.out = nn.Parameter(last.weight.detach()[0].clone())
        self.end = nn.Parameter(last.bias.detach().clone())

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.relu(first @ self.first.T + second @ self.second.T + self.bias)
        return hidden @ self.out + self.end[0]


_DECODERS: Mapping[Decoder, Callable[[int], TrainedDecoder]] = {
    Decoder.DOT: Dot,
    Decoder.DIST_MULT: DistMult,
    Decoder.MLP: Perceptron,
}


def make_decoder(kind: Decoder, dimensions: int, fixed: Mapping[str, np.ndarray] | None = None) -> TrainedDecoder:
    """`fixed`: weights that are not trained, of a hidden layer of any width; None: drawn by torch's generator, and
    trained."""
    made = _DECODERS[kind](dimensions)
    if fixed is not None:
        for key in [key for key, _ in made.named_parameters()]:
            setattr(made, key, nn.Parameter(torch.tensor(fixed[key]), requires_grad=False))
    return made
