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
of degree d_j, by which a node that is not stored gets its own (`models/folding.py`).

On gowalla, with 512 columns, recall@20 of test links is 0.186 after a minute, where forty epochs over 64 columns that
are learnt reach 0.162 in twenty.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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


_MOST_ROUNDS = 24
_DEGREE = 12
"""Of the polynomial, products with the graph per round. Above 16 the largest eigenvalue outgrows the others by more
than float32 has digits."""
_OVERSAMPLED = 32
"""Columns beside those that are wanted; the last of them converge last."""
_ROWS_DIFFER = 1e-3
"""Share of their length by which rows that are made from a node's links may differ from the stored ones, root of the
mean square: eigenvectors have converged."""
_LEAST_EIGENVALUE = 1e-3
"""Columns of smaller ones stay empty: no score would change by them, and embeddings of new nodes are divided by it."""

_logger = logging.getLogger(__name__)


def filter_embeddings(
    spec: GNNServiceSpec, course: EmbeddingCourse, name: str, progress: ProgressListener
) -> tuple[Tensors, Sequence[TrainingRun]]:
    """Rows under `name`, float32 [nodes, dimensions], with the weights of `models/folding.py` beside them, and no
    training run. Rows of the first end have length 1 where no node is at both ends: that changes no order of second
    nodes. A node without edges has a row of zeros, and so has every node in columns beyond the positive eigenvalues."""
    links, dimensions = course.links, course.dimensions
    adjacency = normalised(links.message_graph())
    degrees = np.diff(adjacency.indptr).astype(np.float32)
    stage, said = f"filter {name}", ""
    for found in eigenpairs_by_round(to_torch(adjacency), dimensions, spec.model.training.seed):
        said = f"{dimensions} eigenvectors, rows made from links differ by {100 * found.rows_differ:.2g} %"
        progress(Progress(stage, found.round, _MOST_ROUNDS, said))
    progress(Progress(stage, _MOST_ROUNDS, _MOST_ROUNDS, said))
    if found.rows_differ > _ROWS_DIFFER:
        _logger.warning(
            "%s: %s of their length after %d rounds: fewer model.dimensions converge sooner", stage, said, found.round
        )
    values, vectors = found.values, found.vectors
    rows, eigenvalues = np.zeros((links.nodes, dimensions), np.float32), np.zeros(dimensions, np.float32)
    kept = np.count_nonzero(values >= _LEAST_EIGENVALUE)
    eigenvalues[:kept] = values[:kept]
    rows[:, :kept] = vectors[:, :kept] * np.sqrt(values[:kept]) * np.sqrt(degrees)[:, None]
    shares = np.divide(1, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    if links.first != links.second:
        firsts = slice(links.first.start, links.first.end)
        lengths = np.linalg.norm(rows[firsts], axis=1)
        np.divide(rows[firsts], lengths[:, None], out=rows[firsts], where=lengths[:, None] > 0)
        shares[firsts] *= lengths
    return with_decoder({name: rows}, {EIGENVALUES: eigenvalues, SHARES: shares}), ()


@dataclass(frozen=True, slots=True)
class Eigenpairs:
    """The largest eigenvalues of a symmetric matrix, descending, and their vectors, as far as they have converged."""

    values: np.ndarray
    """float32 [k]."""
    vectors: np.ndarray
    """float32 [nodes, k], of length 1."""
    rows_differ: float
    """Share of their length by which rows V Λ^1/2 differ from S V Λ^-1/2, root of the mean square."""
    round: int


def eigenpairs_by_round(matrix: torch.Tensor, count: int, seed: int) -> Iterator[Eigenpairs]:
    """The `count` largest eigenpairs after each round until they have converged, of as many as there are nodes where
    these are fewer. `matrix`: symmetric sparse float32 [nodes, nodes], of eigenvalues from -1 to 1.

    By subspace iteration whose columns a Chebyshev polynomial filters: it stays within -1 and 1 where eigenvalues are
    not wanted, from -1 to the smallest that the round before found, and grows fastest above (*Self-consistent-field
    calculations using Chebyshev-filtered subspace iteration*, Zhou, Saad, Tiago and Chelikowsky 2006, algorithms 3.1
    and 4.3). On gowalla, 512 of 70,837, five rounds of 60 products took twice the time of four rounds of powers, with
    16 products, after which rows differed by 5 %; ARPACK's `eigsh` did not end in six minutes.
    """
    nodes = matrix.shape[0]
    random = torch.Generator().manual_seed(seed)
    block, unwanted = torch.randn(nodes, min(nodes, count + _OVERSAMPLED), generator=random), 0.0
    for done in range(1, _MOST_ROUNDS + 1):
        block, _ = torch.linalg.qr(_filtered(matrix, block, unwanted))
        product = torch.sparse.mm(matrix, block)
        projected = block.T @ product
        ascending, turned = torch.linalg.eigh((projected + projected.T) / 2)
        values, turned = ascending.flip(0), turned.flip(1)
        block, product = block @ turned, product @ turned
        differ = _rows_differ(values[:count], torch.linalg.norm(product - block * values, dim=0)[:count])
        yield Eigenpairs(values[:count].numpy(), block[:, :count].numpy(), differ, done)
        if differ <= _ROWS_DIFFER or block.shape[1] == nodes:
            return
        unwanted = max(float(values[-1]), 0.0)


def _filtered(matrix: torch.Tensor, columns: torch.Tensor, unwanted: float) -> torch.Tensor:
    """The Chebyshev polynomial of the matrix times columns, float32 [nodes, k], over eigenvalues from -1 to `unwanted`,
    scaled to 1 where an eigenvalue is 1."""
    middle, half = (unwanted - 1) / 2, (unwanted + 1) / 2
    first = half / (1 - middle)
    scale = first
    before = columns
    found: torch.Tensor = (torch.sparse.mm(matrix, columns) - middle * columns) * (scale / half)
    for _ in range(_DEGREE - 1):
        following = 1 / (2 / first - scale)
        above = (torch.sparse.mm(matrix, found) - middle * found) * (2 * following / half)
        before, found, scale = found, above - (scale * following) * before, following
    return found


def _rows_differ(values: torch.Tensor, residuals: torch.Tensor) -> float:
    """`Eigenpairs.rows_differ`, of values [k] and the lengths of S v - λ v, [k]."""
    kept = values >= _LEAST_EIGENVALUE
    values, residuals = values[kept], residuals[kept]
    return float(torch.sqrt((residuals.square() / values).sum() / values.sum())) if len(values) else 0.0


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
