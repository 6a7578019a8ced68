"""Training of a network in plain torch, as its author would train it: the loop that networks which are trained here are
compared with. Nothing of the product is in it.

A network learns from all training nodes in one step, or from batches with sampled neighbours; what its scores are made
of is the caller's. The epoch with the best score of validation nodes is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Scores = Callable[[np.ndarray], torch.Tensor]
"""From nodes, int64 [nodes], to their scores, float32 [nodes, classes]: by the module that is trained, in the mode that
it is in."""
Metric = Callable[[np.ndarray, np.ndarray], float]
"""From scores, float32 [nodes, classes], and labels, int64 [nodes], to a score: more is better."""


def accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(scores.argmax(axis=1) == labels))


@dataclass(frozen=True, slots=True)
class LabelledNodes:
    """Nodes of a graph with a class, and which of them are learnt from, chosen by and tested."""

    labels: np.ndarray
    """int64 [nodes]"""
    train: np.ndarray
    """int64: places of nodes, as the next two"""
    validation: np.ndarray
    test: np.ndarray


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a network is trained."""

    epochs: int
    learning_rate: float
    weight_decay: float
    batch_size: int | None = None
    """Nodes of a step; None: all in one."""


def train_module(
    module: nn.Module, scores: Scores, nodes: LabelledNodes, plan: TrainingPlan, seed: int, metric: Metric = accuracy
) -> float:
    """Train the module by Adam, and leave it with the weights of its best epoch, in evaluation mode. Returns the score
    of its validation nodes. The caller seeds torch before the module is made."""
    optimizer = torch.optim.Adam(module.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    random, labels = np.random.default_rng(seed), torch.from_numpy(nodes.labels)
    best, kept = -1.0, dict[str, torch.Tensor]()
    for _ in range(plan.epochs):
        module.train()
        for batch in _batches(random.permutation(nodes.train), plan.batch_size):
            loss = functional.cross_entropy(scores(batch), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found = metric(scores_of(module, scores, nodes.validation, plan.batch_size), nodes.labels[nodes.validation])
        if found > best:
            best, kept = found, {name: one.clone() for name, one in module.state_dict().items()}
    module.load_state_dict(kept)
    module.eval()
    return best


@torch.no_grad()
def scores_of(module: nn.Module, scores: Scores, nodes: np.ndarray, batch_size: int | None = None) -> np.ndarray:
    """Scores of these nodes in evaluation mode, float32 [nodes, classes]."""
    module.eval()
    return np.concatenate([scores(batch).numpy() for batch in _batches(nodes, batch_size)])


def _batches(nodes: np.ndarray, size: int | None) -> Iterator[np.ndarray]:
    step = size or max(1, len(nodes))
    yield from (nodes[start : start + step] for start in range(0, len(nodes), step))


class NeighbourSampler:
    """Samples of a graph of one type, as torch_geometric's NeighborLoader draws them: of each node that is reached, so
    many different neighbours, once in a sample."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray, fanouts: Sequence[int], seed: int) -> None:
        """`indptr`, `indices`: the neighbours that each node reads. `fanouts`: per hop, the seeds' first."""
        self._indptr, self._indices, self._fanouts = indptr, indices, fanouts
        self._random = np.random.default_rng(seed)
        self._place = np.full(len(indptr) - 1, -1, np.int64)

    def sample(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nodes of the sample, int64, of which the seeds are first; and its edges as places among these, int64 [2,
        edges]: the node that is read, and the one that reads it."""
        nodes, frontier = seeds.astype(np.int64), seeds.astype(np.int64)
        self._place[nodes] = np.arange(len(nodes))
        read, reads = [], []
        for fanout in self._fanouts:
            targets, sources = self._drawn(frontier, fanout)
            frontier = np.unique(sources[self._place[sources] < 0])
            self._place[frontier] = len(nodes) + np.arange(len(frontier))
            nodes = np.concatenate([nodes, frontier])
            read.append(self._place[sources])
            reads.append(self._place[targets])
        self._place[nodes] = -1
        return nodes, np.stack([np.concatenate(read), np.concatenate(reads)])

    def _drawn(self, nodes: np.ndarray, fanout: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes, each as often as it has neighbours in the sample, and these."""
        starts, counts = self._indptr[nodes], self._indptr[nodes + 1] - self._indptr[nodes]
        # Floyd's way to draw without replacement, for all nodes at once: a number that was drawn already is replaced by
        # the highest of the turn, which was not.
        offsets = np.empty((len(nodes), fanout), np.int64)
        for turn in range(fanout):
            highest = counts - fanout + turn
            drawn = (self._random.random(len(nodes)) * (highest + 1)).astype(np.int64)
            is_taken = (offsets[:, :turn] == drawn[:, None]).any(axis=1)
            offsets[:, turn] = np.where(is_taken, highest, drawn)
        offsets[counts <= fanout] = np.arange(fanout)
        is_there = offsets < counts[:, None]
        places = (starts[:, None] + offsets)[is_there]
        return np.repeat(nodes, is_there.sum(axis=1)), self._indices[places].astype(np.int64)
