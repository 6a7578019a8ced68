"""Courses that networks are trained by: what an epoch goes through, its loss, and how it is judged.

A course is a task's; how training samples and steps is generation's. Nothing here needs
torch to be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from gnnserve_api.spec.task import ComparedWith
from gnnserve_api.training import Source
from gnnserve_worker.graph.links import LinkSet, Pairs
from gnnserve_worker.graph.store import Relation

if TYPE_CHECKING:
    import torch
    from torch import nn

Visible = Sequence[Relation]
"""A graph's relations, with the lists that are aggregated in training."""
SHORTEST = 1e-8
"""Length below which an embedding is not scaled to length 1."""


class Batch(NamedTuple):
    seeds: np.ndarray
    """Ids of the nodes whose outputs are needed; over several types their numbers."""
    loss: Callable[[torch.Tensor], torch.Tensor]
    """Loss of these outputs, float32 [seeds, outputs]."""


class Part(NamedTuple):
    """A part of an epoch."""

    items: np.ndarray
    """Integers that training goes through, in batches: ids of nodes, or numbers of links."""
    visible: Visible
    """Lists that are aggregated meanwhile."""


@dataclass(frozen=True, slots=True)
class EmbeddingRates:
    """How embeddings of nodes without features are learnt beside a network's weights."""

    bound: float
    """Largest initial number of an embedding."""
    rate_share: float
    """Share of the weights' learning rate."""
    is_decayed: bool
    """Whether weight decay shrinks embeddings too."""


class Course(Protocol):
    """What a network is trained on, and how an epoch is judged."""

    @property
    def learnt_from(self) -> Source:
        """Word for it in the record of a training."""

    @property
    def items(self) -> int:
        """How many an epoch goes through."""

    @property
    def parts_per_epoch(self) -> int:
        """Parts of an epoch at most."""

    @property
    def embeddings(self) -> EmbeddingRates: ...

    @property
    def decoder(self) -> nn.Module | None:
        """Module that is trained beside the network and reads its outputs; None: nothing is."""

    @property
    def examined(self) -> np.ndarray:
        """Ids of nodes whose outputs an epoch is judged by."""

    def parts(self, epoch: int) -> Iterator[Part]:
        """The parts of that epoch, from 1."""

    def batch(self, items: np.ndarray) -> Batch: ...

    def judge(self, outputs: np.ndarray) -> tuple[float, float]:
        """The validation score, higher is better, and the validation loss, of outputs of `examined`."""

    def says(self, score: float) -> str:
        """The validation score in words."""

    @property
    def says_each_epoch(self) -> bool:
        """Whether each epoch is worth a line, however few steps it has."""


class EmbeddingCourse(Protocol):
    """What embeddings of all nodes are learnt on that are served as they are."""

    @property
    def learnt_from(self) -> Source:
        """Word for it in the record of a training."""

    @property
    def links(self) -> LinkSet: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def compared_with(self) -> ComparedWith: ...

    @property
    def learning_rate(self) -> float:
        """Rate where the manifest gives none."""

    def steps(self, batch_size: int) -> int:
        """How many steps an epoch has."""

    def batches(self, batch_size: int, random: np.random.Generator) -> Iterator[Pairs]:
        """The links of an epoch, in a random order."""

    def loss(self, final: torch.Tensor, batch: Pairs, random: np.random.Generator) -> torch.Tensor:
        """Mean over the batch's links. `final`: float32 [nodes, dimensions] of any length."""

    def judge(self, embeddings: np.ndarray) -> tuple[float, float]:
        """The validation score, higher is better, and the validation loss."""

    def says(self, score: float) -> str:
        """The validation score in words."""
