"""Learning LightGCN's embeddings: every node's own, propagated over the whole graph at each step.

A step takes a batch of links and compares each with other nodes by the logarithm of a softmax; with one other node that
is Bayesian personalized ranking (Rendle et al., *BPR*), LightGCN's own loss. The other nodes are shared by the batch,
so that hundreds cost one product of matrices. Weights of propagation are one linear map, symmetric, so a step's
gradient goes back through the same map.

Cosines are compared, not dot products: final embeddings are stored with length 1, so that the dot product of two rows
is the cosine. On gowalla, after 300 steps of 8,192 links with 512 others and a rate of 0.1, recall@20 of validation
links was 0.165 by cosines, and 0.134 by dot products of rows of any length.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.links.judge import rank_links, roc_auc
from gnnserve_worker.generation.resume import Resumption
from gnnserve_worker.generation.schedule import History, schedule_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.graph.links import LinkSet, Pairs
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.architecture import key_of
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.models.single_product import WEIGHT
from gnnserve_worker.progress import Progress, ProgressListener

_BIAS = "lin.bias"
_NAME = "embeddings"
_TEMPERATURE = 0.1
"""Divisor of cosines before the softmax. On gowalla 0.1 learns faster than 0.15 and 0.2."""
_LEARNING_RATE = 0.05
_WARM_UP_STEPS = 20
_LEAST_RATE = 0.01
"""Share of the learning rate that is left at the end of the stated epochs, along half a cosine."""
_SMALLEST = 1e-8


@dataclass(frozen=True, slots=True)
class EmbeddingModels:
    """The `families.family.LinkModels` of embeddings that are the features: networks that give them as they are."""

    dimensions: int
    runs: Sequence[TrainingRun]

    @property
    def decoder(self) -> Tensors:
        return {}

    def master(self, name: str) -> Tensors:
        return {
            key_of(0, WEIGHT): np.eye(self.dimensions, dtype=np.float32),
            key_of(0, _BIAS): np.zeros(self.dimensions, np.float32),
        }

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        raise ValueError("embeddings have no columns to go without")

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        raise ValueError("embeddings have no hidden channels")

    def another_master(self, seed: int, name: str) -> Tensors:
        raise ValueError("embeddings are not ranked")


def learn_embeddings(
    spec: GNNServiceSpec, links: LinkSet, progress: ProgressListener, resumption: Resumption
) -> tuple[np.ndarray, Sequence[TrainingRun]]:
    """Final embeddings, float32 [nodes, dimensions], each of length 1; those that an interrupted generation has learnt
    already where there are any."""
    task = spec.task.links
    if task is None:
        raise ValueError("embeddings are learnt of links")
    tensors, runs = resumption.network(_NAME, {"columns": "embeddings"}, lambda: _learn(spec, task, links, progress))
    return tensors[_NAME], tuple(runs)


def _learn(
    spec: GNNServiceSpec, task: Links, links: LinkSet, progress: ProgressListener
) -> tuple[Tensors, Sequence[TrainingRun]]:
    settings, stage = spec.model.training, f"train {_NAME}"
    layers = spec.network(0).hops or 0
    propagate = Propagation(links.message_graph(), layers)
    own = torch.from_numpy(_first_embeddings(links.nodes, task.dimensions, settings.seed)).requires_grad_()
    rate = settings.learning_rate or _LEARNING_RATE
    optimizer = torch.optim.Adam([own], lr=rate)
    steps = -(-len(links.train) // settings.batch_size)
    schedule, history = schedule_of(settings.epochs, steps), History()
    random = np.random.default_rng([settings.seed, 3])
    judged = _Judged(links, task)
    best, best_epoch, best_score, epoch, done = np.empty(0), 0, -1.0, 0, 0
    while epoch < history.ends_at(schedule):
        epoch += 1
        for batch in _batches(links.train, settings.batch_size, random):
            done += 1
            if schedule.patience is None:  # it is known when training ends
                optimizer.param_groups[0]["lr"] = rate * _share_of_rate(done, steps * schedule.most)
            others = random.integers(links.second.start, links.second.end, task.negatives)
            loss = _loss(_Propagated.apply(own, propagate), batch, torch.from_numpy(others))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            found = nn.functional.normalize(propagate(own), dim=1, eps=_SMALLEST).numpy()
        score, validation_loss = judged.judge(found)
        history.add(score, validation_loss)
        if score > best_score:
            best, best_epoch, best_score = found, epoch, score
        ends_at = history.ends_at(schedule)
        progress(Progress(stage, epoch, ends_at, f"recall@{task.recall_at} of validation {best_score:.4f}"))
    run = TrainingRun(
        name=_NAME,
        epochs=epoch,
        steps=done,
        best_epoch=best_epoch,
        validation=best_score,
        rising=history.is_rising(schedule),
        learnt_from="links",
    )
    return {_NAME: best}, (run,)


class Propagation:
    """The map from nodes' own embeddings to their final ones, float32 [nodes, dimensions] both. It is symmetric."""

    def __init__(self, graph: Graph, layers: int) -> None:
        adjacency = normalised(graph)
        indptr, indices, weights = map(torch.from_numpy, (adjacency.indptr, adjacency.indices, adjacency.data))
        with warnings.catch_warnings():
            # torch warns once per process that its CSR tensors are in beta, which users cannot act on.
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            self._adjacency = torch.sparse_csr_tensor(indptr, indices, weights, adjacency.shape, check_invariants=False)
        self._layers = layers

    @torch.no_grad()
    def __call__(self, own: torch.Tensor) -> torch.Tensor:
        found = hidden = own
        for _ in range(self._layers):
            hidden = torch.sparse.mm(self._adjacency, hidden)
            found = found + hidden
        return found / (self._layers + 1)


class _Propagated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, propagate: Propagation) -> torch.Tensor:
        ctx.propagate = propagate
        return propagate(own)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.propagate(gradients[0].contiguous()), None


def normalised(graph: Graph) -> sp.csr_array:
    """D^-1/2 A D^-1/2 of the graph with every edge both ways, float32: a node without edges stays at 0."""
    shape = (graph.nodes, graph.nodes)
    listed = sp.csr_array((np.ones(graph.edges, np.float32), graph.indices, graph.indptr), shape=shape)
    both = sp.csr_array(listed.maximum(listed.T))
    degrees = np.diff(both.indptr).astype(np.float32)
    roots = sp.diags_array(1 / np.sqrt(np.maximum(degrees, 1)))
    return sp.csr_array(roots @ both @ roots).astype(np.float32)


def _first_embeddings(nodes: int, dimensions: int, seed: int) -> np.ndarray:
    """float32 [nodes, dimensions]: small random numbers, drawn by the seed."""
    random = np.random.default_rng([seed, 4])
    return random.normal(0, 0.1, (nodes, dimensions)).astype(np.float32)


def _loss(final: torch.Tensor, batch: Pairs, others: torch.Tensor) -> torch.Tensor:
    """Mean of -log softmax of each link's cosine among those with the other nodes, over the temperature."""
    unit = nn.functional.normalize
    first, second = (unit(final[torch.from_numpy(end)], dim=1, eps=_SMALLEST) for end in (batch.first, batch.second))
    linked = (first * second).sum(dim=1, keepdim=True)
    apart = first @ unit(final[others], dim=1, eps=_SMALLEST).T
    logits = torch.cat([linked, apart], dim=1) / _TEMPERATURE
    return nn.functional.cross_entropy(logits, torch.zeros(len(first), dtype=torch.long))


def _batches(train: Pairs, size: int, random: np.random.Generator) -> Iterator[Pairs]:
    order = random.permutation(len(train))
    for start in range(0, len(order), size):
        yield train.at(order[start : start + size])


def _share_of_rate(step: int, steps: int) -> float:
    falling = _LEAST_RATE + (1 - _LEAST_RATE) * 0.5 * (1 + np.cos(np.pi * step / steps))
    return float(min(1.0, step / _WARM_UP_STEPS) * falling)


@dataclass(frozen=True, slots=True)
class _Judged:
    """What an epoch is judged by: recall@k, which embeddings are for, and the loss of ROC-AUC."""

    links: LinkSet
    task: Links

    def judge(self, embeddings: np.ndarray) -> tuple[float, float]:
        links, decoder = self.links, build_decoder(self.task.decoder, {}, self.task.dimensions)
        ranked = rank_links(links, links.validation, decoder, lambda nodes: embeddings[nodes], self.task.recall_at)
        of_links, of_others = (
            decoder.score(embeddings[pairs.first], embeddings[pairs.second])
            for pairs in (links.validation, links.validation_negatives)
        )
        return ranked.recall, 1 - roc_auc(of_links, of_others)
