"""Ranking of feature columns, most important first, by the method that the manifest names: those of Dynamic GNN
inference as-a-service, section 3.2.

*Greedy* ranks by the first layer's absolute weights:

    score_j = Σ_o |W¹[j, o]|, descending

GraphSAGE has two first-layer matrices, of the node itself and of its neighbours; both count. The method never looks at
the features, so a column with large values and small weights is underrated.

*Random* is a seeded permutation, the baseline that an informed ranking must beat.

*Lasso* looks which columns can be shrunk to nothing while the first layer's output stays. With the master frozen, over
one factor β_j per column, on training nodes only and without the non-linearity:

    minimise ‖A¹X⁰W¹ − A¹(β⊙X⁰)W¹‖² + λ‖β‖₁,   β = 1 at first, λ rising by a constant every epoch

The residual is linear in γ = 1 − β, so the first term is γᵀGγ for one columns × columns matrix G, computed once;
every gradient step is then one small product, exact over all training nodes. GraphSAGE's output is a sum of two
such terms, neighbours' mean and the node itself, and G contains their cross terms.

What the paper leaves open, decided here: outputs are centred over the training nodes, since a retrained bias absorbs
what is constant, and the constant part of sparse non-negative features would drown the rest; the loss is divided by
its value at β = 0; steps are proximal (soft thresholding), which reaches exact zeros; λ is in permille of the smallest
one for which β = 0 is optimal. As λ rises, columns leave for good; the ranking is by how long a column stays, then by
its last |β|, since at the end of a long path every |β| is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.pruning import LassoSettings, Pruning, RankingMethod
from gnnserve_api.variants import columns_of
from gnnserve_worker.generation.moments import MAX_COLUMNS, Moments, first_layer_moments
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.architecture import FirstLayer

# --- by weights


def rank_greedily(sizes: np.ndarray) -> np.ndarray:
    """Rank by the sums of absolute weights, float [columns]."""
    return np.argsort(-sizes, kind="stable")


# --- at random


def rank_at_random(columns: int, seed: int) -> np.ndarray:
    """Rank by a permutation that the seed draws."""
    return np.random.default_rng(seed).permutation(columns)


# --- by regression


def gram_of(first: FirstLayer, moments: Moments) -> np.ndarray:
    """G, float32 [columns, columns], over what the moments are of."""
    neighbours, own = first.neighbours, first.own
    matrix: np.ndarray = moments.of_neighbours * (neighbours @ neighbours.T)
    if own is not None and moments.of_own is not None and moments.of_both is not None:
        cross = moments.of_both * (own @ neighbours.T)
        matrix += moments.of_own * (own @ own.T) + cross + cross.T
    return matrix


def rank_by_lasso(gram_matrix: np.ndarray, settings: LassoSettings) -> np.ndarray:
    """Rank the columns: an int64 permutation, most important first. `gram_matrix` is G, positive semidefinite."""
    columns = len(gram_matrix)
    ones = np.ones(columns, dtype=np.float32)
    scale = float(ones @ gram_matrix @ ones)
    if scale <= 0:
        return np.arange(columns)  # the first layer's output is 0: no column matters
    matrix = (gram_matrix * (2.0 / scale)).astype(np.float32)
    step = np.float32(1.0 / _largest_eigenvalue(matrix))
    penalty_limit = float(np.abs(matrix @ ones).max())
    beta = ones.copy()
    last_alive = np.zeros(columns, dtype=np.int64)
    last_size = np.zeros(columns, dtype=np.float32)
    for epoch in range(settings.epochs):
        penalty = penalty_limit * (settings.initial_penalty_permille + epoch * settings.penalty_step_permille) / 1000
        threshold = np.float32(step * penalty)
        for _ in range(settings.steps_per_epoch):
            moved = beta + step * (matrix @ (ones - beta))
            beta = np.sign(moved) * np.maximum(np.abs(moved) - threshold, 0.0)
        alive = beta != 0
        last_alive[alive] = epoch + 1
        last_size[alive] = np.abs(beta[alive])
    return np.lexsort((-last_size, -last_alive))


def _largest_eigenvalue(matrix: np.ndarray) -> float:
    """Estimate the largest eigenvalue by power iteration, 5 % too high: that only shortens the gradient steps."""
    vector = np.full(len(matrix), 1 / len(matrix) ** 0.5, dtype=np.float32)
    for _ in range(50):
        product = matrix @ vector
        norm = float(np.linalg.norm(product))
        if norm == 0:
            return 1.0
        vector = product / np.float32(norm)
    return 1.05 * norm


# --- by the method of a manifest


@dataclass(frozen=True, slots=True)
class Ranking:
    columns: np.ndarray
    """int64 permutation of the columns, most important first; over several types those of each, type after type."""
    settings: dict[str, float]
    """Numbers that the ranking depends on, by name."""
    widths: Sequence[int] = ()
    """Columns of each type; empty: there is one type."""

    @property
    def by_type(self) -> list[np.ndarray]:
        """The columns of each type in rank order, numbered within it: int64."""
        return self.first_by_type(1)

    def first(self, factor: int) -> np.ndarray:
        """The first columns in rank order that are left by a factor, of each of several types at least one."""
        if not self.widths:
            return self.columns[: columns_of(len(self.columns), factor)]
        return columns_over_types(self.first_by_type(factor), self.widths)

    def first_by_type(self, factor: int) -> list[np.ndarray]:
        """As `first`, of each type, numbered within it."""
        if not self.widths:
            return [self.first(factor)]
        ends = [0, *accumulate(self.widths)]
        return [self.columns[start : start + left_by(factor, end - start)] - start for start, end in pairwise(ends)]


def columns_by_type(columns: np.ndarray, widths: Sequence[int]) -> list[np.ndarray]:
    """Columns of each type (ids within it, in their order: int64), of ids over all types, type after type. `widths`:
    columns that each type has."""
    ends = [0, *accumulate(widths)]
    return [columns[(columns >= start) & (columns < end)] - start for start, end in pairwise(ends)]


def columns_over_types(by_type: Sequence[np.ndarray], widths: Sequence[int]) -> np.ndarray:
    """Ids over all types, type after type, of columns of each (ids within it): int64. `columns_by_type` parts them."""
    starts = np.cumsum([0, *widths])
    return np.concatenate([start + own for start, own in zip(starts, by_type, strict=False)])


def left_by(factor: int, columns: int) -> int:
    """Columns of a type that a factor leaves: one at least of those that have some."""
    return min(columns, max(1, columns_of(columns, factor)))


class ColumnReader(Protocol):
    """Reader of the feature columns of each type, as methods of ranking ask about it."""

    @property
    def columns(self) -> Sequence[int]:
        """How many there are, of each type."""

    def sizes(self) -> Sequence[np.ndarray]:
        """Sums of the absolute weights that each column of a type is multiplied by: float [columns], a type each."""

    def grams(self) -> Sequence[np.ndarray]:
        """G of the columns of each type, positive semidefinite: float [columns, columns]. InputError: there are too
        many to measure."""


@dataclass(frozen=True, slots=True)
class _Method:
    rank: Callable[[ColumnReader, Pruning, int], list[np.ndarray]]
    """Permutations (int64) of the columns of each type; given a seed."""
    settings: Callable[[Pruning, int], dict[str, float]]
    """Numbers that shape the result."""
    reads_master: bool = True
    """Whether it asks about weights."""


_METHODS: Mapping[RankingMethod, _Method] = {
    RankingMethod.RANDOM: _Method(
        lambda reader, _, seed: [rank_at_random(count, seed) for count in reader.columns],
        lambda _, seed: {"seed": seed},
        reads_master=False,
    ),
    RankingMethod.GREEDY: _Method(lambda reader, *_: [rank_greedily(one) for one in reader.sizes()], lambda *_: {}),
    RankingMethod.LASSO: _Method(
        lambda reader, pruning, _: [rank_by_lasso(one, pruning.lasso) for one in reader.grams()],
        lambda pruning, _: {key: float(value) for key, value in pruning.lasso.model_dump(by_alias=True).items()},
    ),
}


def reads_master(method: RankingMethod) -> bool:
    """Whether columns are ranked by the weights of a network."""
    return _METHODS[method].reads_master


def rank(pruning: Pruning, reader: ColumnReader, seed: int) -> list[np.ndarray]:
    """Rank the columns of each type, most important first: int64 permutations."""
    return _METHODS[pruning.method].rank(reader, pruning, seed)


def ranking_of(pruning: Pruning, reader: ColumnReader, seed: int) -> Ranking:
    """The ranking of the columns of one type."""
    (columns,) = rank(pruning, reader, seed)
    return Ranking(columns, _METHODS[pruning.method].settings(pruning, seed))


def ranking_over_types(pruning: Pruning, reader: ColumnReader, seed: int) -> Ranking:
    """The ranking of the columns of several types."""
    ranked, widths = rank(pruning, reader, seed), tuple(reader.columns)
    return Ranking(columns_over_types(ranked, widths), _METHODS[pruning.method].settings(pruning, seed), widths)


# --- of one list of neighbours


@dataclass(frozen=True, slots=True)
class FirstLayerColumns:
    """The first layer of a trained network as a reader of columns."""

    first: FirstLayer | None
    """None: no network was trained, which is enough for Random."""
    features: Features
    data: TrainingSet

    @property
    def columns(self) -> Sequence[int]:
        return (self.features.shape[1],)

    def sizes(self) -> Sequence[np.ndarray]:
        matrices = [self._first.neighbours] + ([] if self._first.own is None else [self._first.own])
        return [sum((np.abs(one).sum(axis=1) for one in matrices), np.zeros(self.columns[0], np.float32))]

    def grams(self) -> Sequence[np.ndarray]:
        """Over all training nodes and their visible neighbours, outputs centred."""
        (columns,) = self.columns
        if columns > MAX_COLUMNS:
            raise InputError(
                "spec.variants.pruning.method",
                f"is Lasso, but the graph has {columns:,} feature columns and Lasso handles up to {MAX_COLUMNS:,}",
                "use Greedy",
            )
        data = self.data
        moments = first_layer_moments(self._first, self.features, data.visible_graph, data.splits.train)
        return [gram_of(self._first, moments)]

    @property
    def _first(self) -> FirstLayer:
        if self.first is None:
            raise ValueError("columns are ranked by weights, and no network was trained")
        return self.first
