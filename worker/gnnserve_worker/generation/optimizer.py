"""Adam over the weights of a network and the embeddings of nodes, whose gradients a batch may have for few of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Rate:
    """How parameters are learnt."""

    learning_rate: float
    weight_decay: float
    """Factor of the L2 penalty."""


class NetworkOptimizer:
    def __init__(
        self, weights: Iterable[nn.Parameter], rate: Rate, embeddings: Iterable[nn.Parameter], embedding_rate: Rate, *,
        reads_few: bool,
    ) -> None:  # fmt: skip
        """`reads_few`: a step changes the embeddings alone that it has read, and their moments (lazy Adam), since one
        that changed all would take as long as the graph is large."""
        self._embeddings, self._decay = list(embeddings), embedding_rate.weight_decay
        of_weights, of_embeddings = _group(weights, rate), _group(self._embeddings, embedding_rate)
        self._reads_few = reads_few and bool(self._embeddings)
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam([of_weights] if self._reads_few else [of_weights, of_embeddings])
        ]
        if self._reads_few:
            self._optimizers.append(torch.optim.SparseAdam(self._embeddings, lr=embedding_rate.learning_rate))

    def step(self, loss: torch.Tensor) -> None:
        for one in self._optimizers:
            one.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._reads_few and self._decay:
            for embedding in self._embeddings:
                _add_decay(embedding, self._decay)
        for one in self._optimizers:
            one.step()


def _group(parameters: Iterable[nn.Parameter], rate: Rate) -> dict[str, object]:
    return {"params": [*parameters], "lr": rate.learning_rate, "weight_decay": rate.weight_decay}


def _add_decay(embedding: nn.Parameter, decay: float) -> None:
    """Add the penalty's gradient to that of the rows which have one: sparse Adam knows no penalty."""
    if embedding.grad is None:
        return
    gradient = embedding.grad.coalesce()
    (rows,) = gradient.indices()
    values = gradient.values() + decay * embedding.detach()[rows]
    embedding.grad = torch.sparse_coo_tensor(
        gradient.indices(), values, gradient.shape, check_invariants=False, is_coalesced=True
    )
