"""LightGCN, whose rows are embeddings that links are told by: learnt, or computed without learning.

*Learnt*: every node's own embedding, propagated over the whole graph at each step. A step takes a batch of links and
compares each with other nodes by the logarithm of a softmax (`tasks/score_links/comparison.py`); with one other node
that is Bayesian personalized ranking (Rendle et al., *BPR*), LightGCN's own loss. Weights of propagation are one linear
map, symmetric, so a step's gradient goes back through the same map.

Cosines are compared, not dot products: final embeddings are stored with length 1, so that the dot product of two rows
is the cosine. On gowalla, after 300 steps of 8,192 links with 512 others and a rate of 0.1, recall@20 of validation
links was 0.165 by cosines, and 0.134 by dot products of rows of any length.

*Filtered*: what is left of the graph after an ideal low-pass filter. Propagation keeps what varies slowly over the
graph, which are the eigenvectors of S = D^-1/2 A D^-1/2 with the largest eigenvalues. GF-CF shows that LightGCN with
embeddings as wide as the graph is such a filter, that a cut after the first k eigenvectors is one too, and that neither
has anything to learn. A link's score is its entry in

    D^1/2 V Λ V' D^1/2 ≈ A,   V, Λ: the k largest eigenvalues, and their vectors,

so that a node's row R_i is that of D^1/2 V Λ^1/2. Since S V = V Λ, it is also Λ^-1 Σ_j R_j / d_j over its neighbours j
of degree d_j, by which a node that is not stored gets its own (`models/folding.py`). Rows of the first end are made so,
of those of the second, and are what a new node with the same links gets; those of the second are that as far as the
eigenvectors have converged: on gowalla 10 % of their length off at the median. A Chebyshev filter in the rounds
(Zhou and Saad 2007), until rows differed by 0.04 %, took 2.5 times as long and made recall@20 of test links 0.180: what
tail the unconverged columns hold recommends better than the ideal cut does.

On gowalla, with 512 columns, recall@20 of test links is 0.186 after a minute, where forty epochs over 64 columns that
are learnt reach 0.162 in twenty.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn

from gnnserve_api.files.training import TrainingRun
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_worker.generation.epochs import History, schedule_of
from gnnserve_worker.generation.learning import Resumption
from gnnserve_worker.generation.lessons import (
    OneNetwork,
    TensorsAndRuns,
    embeddings_name,
)
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.architecture import key_of
from gnnserve_worker.models.folding import EIGENVALUES, SHARES
from gnnserve_worker.models.registry import Tensors, with_decoder, without_decoder
from gnnserve_worker.models.single_product import WEIGHT
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tasks.generated import SHORTEST, EmbeddingCourse

# --- learnt


_WARM_UP_STEPS = 20
_LEAST_RATE = 0.01
"""Share of the learning rate that is left at the end of the stated epochs, along half a cosine."""


def learn_embeddings(
    spec: GNNServiceSpec, course: EmbeddingCourse, name: str, progress: ProgressListener
) -> tuple[Tensors, Sequence[TrainingRun]]:
    """Final embeddings under `name`, float32 [nodes, dimensions], each of length 1, learnt by comparing links."""
    settings, stage = spec.model.training, f"train {name}"
    layers = spec.network(0).hops or 0
    propagate = Propagation(course.links.message_graph(), layers)
    own = torch.from_numpy(_first_embeddings(course.links.nodes, course.dimensions, settings.seed)).requires_grad_()
    rate = settings.learning_rate or course.learning_rate
    optimizer = torch.optim.Adam([own], lr=rate)
    steps = course.steps(settings.batch_size)
    schedule, history = schedule_of(settings.epochs, steps), History()
    random = np.random.default_rng([settings.seed, 3])
    best, best_epoch, best_score, epoch, done = np.empty(0), 0, -1.0, 0, 0
    while epoch < history.ends_at(schedule):
        epoch += 1
        for batch in course.batches(settings.batch_size, random):
            done += 1
            if schedule.patience is None:  # it is known when training ends
                optimizer.param_groups[0]["lr"] = rate * _share_of_rate(done, steps * schedule.most)
            loss = course.loss(_Propagate.apply(own, propagate), batch, random)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            found = nn.functional.normalize(propagate(own), dim=1, eps=SHORTEST).numpy()
        score, validation_loss = course.judge(found)
        history.add(score, validation_loss)
        if score > best_score:
            best, best_epoch, best_score = found, epoch, score
        ends_at = history.ends_at(schedule)
        progress(Progress(stage, epoch, ends_at, course.says(best_score)))
    run = TrainingRun(
        name=name,
        epochs=epoch,
        steps=done,
        best_epoch=best_epoch,
        validation=best_score,
        rising=history.is_rising(schedule),
        learnt_from=course.learnt_from,
    )
    return {name: best}, (run,)


class Propagation:
    """The map from nodes' own embeddings to their final ones, float32 [nodes, dimensions] both. It is symmetric."""

    def __init__(self, graph: Graph, layers: int) -> None:
        self._adjacency = to_torch(normalised(graph))
        self._layers = layers

    @torch.no_grad()
    def __call__(self, own: torch.Tensor) -> torch.Tensor:
        found = hidden = own
        for _ in range(self._layers):
            hidden = torch.sparse.mm(self._adjacency, hidden)
            found = found + hidden
        return found / (self._layers + 1)


class _Propagate(torch.autograd.Function):
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


def to_torch(matrix: sp.csr_array) -> torch.Tensor:
    """The same numbers, which are not copied."""
    indptr, indices, weights = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        # torch warns once per process that its CSR tensors are in beta, which users cannot act on.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(indptr, indices, weights, matrix.shape, check_invariants=False)


def _first_embeddings(nodes: int, dimensions: int, seed: int) -> np.ndarray:
    """float32 [nodes, dimensions]: small random numbers, drawn by the seed."""
    random = np.random.default_rng([seed, 4])
    return random.normal(0, 0.1, (nodes, dimensions)).astype(np.float32)


def _share_of_rate(step: int, steps: int) -> float:
    falling = _LEAST_RATE + (1 - _LEAST_RATE) * 0.5 * (1 + np.cos(np.pi * step / steps))
    return float(min(1.0, step / _WARM_UP_STEPS) * falling)


# --- filtered


_ROUNDS = 4
_OVERSAMPLED = 16
"""Columns beside those that are wanted; the last of them converge last."""
_LEAST_EIGENVALUE = 1e-3
"""Columns of smaller ones stay empty: no score would change by them, and embeddings of new nodes are divided by it."""


def filter_embeddings(
    spec: GNNServiceSpec, course: EmbeddingCourse, name: str, progress: ProgressListener
) -> tuple[Tensors, Sequence[TrainingRun]]:
    """Rows under `name`, float32 [nodes, dimensions], with the weights of `models/folding.py` beside them, and no
    training run. Rows of the first end have length 1 where no node is at both ends: that changes no order of second
    nodes. A node without edges has a row of zeros, and so has every node in columns beyond the positive eigenvalues."""
    links, dimensions = course.links, course.dimensions
    adjacency = normalised(links.message_graph())
    degrees = np.diff(adjacency.indptr).astype(np.float32)
    values, vectors = leading_eigenpairs(
        to_torch(adjacency), dimensions, spec.model.training.seed,
        lambda done: progress(Progress(f"filter {name}", done, _ROUNDS, f"{dimensions} eigenvectors")),
    )  # fmt: skip
    rows, eigenvalues = np.zeros((links.nodes, dimensions), np.float32), np.zeros(dimensions, np.float32)
    kept = np.count_nonzero(values >= _LEAST_EIGENVALUE)
    eigenvalues[:kept] = values[:kept]
    is_two_sided, firsts = links.first != links.second, slice(links.first.start, links.first.end)
    if is_two_sided:
        make_of_neighbours(adjacency, values[:kept], vectors[:, :kept], firsts)
    rows[:, :kept] = vectors[:, :kept] * np.sqrt(values[:kept]) * np.sqrt(degrees)[:, None]
    shares = np.divide(1, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    if is_two_sided:
        lengths = np.linalg.norm(rows[firsts], axis=1)
        np.divide(rows[firsts], lengths[:, None], out=rows[firsts], where=lengths[:, None] > 0)
        shares[firsts] *= lengths
    return with_decoder({name: rows}, {EIGENVALUES: eigenvalues, SHARES: shares}), ()


def make_of_neighbours(adjacency: sp.csr_array, values: np.ndarray, vectors: np.ndarray, nodes: slice) -> None:
    """Make the vectors' entries of these nodes S V Λ^-1, which they are where eigenvectors have converged. `vectors`:
    float32 [nodes, k], of eigenvalues [k]."""
    vectors[nodes] = adjacency[nodes] @ vectors / values


def leading_eigenpairs(
    matrix: torch.Tensor, count: int, seed: int, done: Callable[[int], None]
) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues of a symmetric matrix, descending, and their vectors: float32 [k] and [nodes, k], k being
    `count`, or the number of nodes where there are fewer. `matrix`: sparse float32 [nodes, nodes], of eigenvalues from
    -1 to 1.

    By subspace iteration from random columns (*Finding structure with randomness*, algorithm 4.4). What is iterated is
    (S + I)² S²: large eigenvalues grow by it, and those near -1, which a bipartite graph has for each near 1, vanish.
    """
    nodes = matrix.shape[0]
    random = torch.Generator().manual_seed(seed)
    found = torch.randn(nodes, min(nodes, count + _OVERSAMPLED), generator=random)
    for step in range(_ROUNDS):
        for _ in range(2):
            found = found + torch.sparse.mm(matrix, found)
        for _ in range(2):
            found = torch.sparse.mm(matrix, found)
        found, _ = torch.linalg.qr(found)
        done(step + 1)
    projected = found.T @ torch.sparse.mm(matrix, found)
    values, turned = torch.linalg.eigh((projected + projected.T) / 2)
    order = torch.argsort(values, descending=True)[:count]
    return values[order].numpy(), (found @ turned[:, order]).numpy()


# --- what is served


_BIAS = "lin.bias"
_Maker = Callable[[GNNServiceSpec, EmbeddingCourse, str, ProgressListener], TensorsAndRuns]
_MAKERS: Mapping[ComparedWith, _Maker] = {
    ComparedWith.DRAWN: learn_embeddings,
    ComparedWith.ALL: learn_embeddings,
    ComparedWith.NOTHING: filter_embeddings,
}


def learn_rows(
    spec: GNNServiceSpec, course: EmbeddingCourse, progress: ProgressListener, resumption: Resumption
) -> tuple[np.ndarray, OneNetwork]:
    """Embeddings float32 [nodes, dimensions], those that an interrupted generation has learnt already where there are
    any, and the network that gives them as they are."""
    name, make = embeddings_name(spec), _MAKERS[course.compared_with]
    tensors, runs = resumption.network(name, {"columns": "embeddings"}, lambda: make(spec, course, name, progress))
    embeddings, decoder = without_decoder(tensors)
    rows = embeddings[name]
    as_they_are = {
        key_of(0, WEIGHT): np.eye(rows.shape[1], dtype=np.float32),
        key_of(0, _BIAS): np.zeros(rows.shape[1], np.float32),
    }
    return rows, OneNetwork(lambda _: (with_decoder(as_they_are, decoder), tuple(runs)))
