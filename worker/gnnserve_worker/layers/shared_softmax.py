"""Convolutions whose neighbours are weighed by one softmax over the lists of several relations together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.convolutions.kind import AttendingConvolution, BuiltConvolution, Step
from gnnserve_worker.tables.attention import exponential

_LEAST_TOTAL = np.float32(1e-16)
"""torch_geometric's, by which empty lists are no division by 0."""


def attend_together(convolutions: Sequence[tuple[BuiltConvolution, Step]]) -> list[np.ndarray]:
    """Rows of the targets by each convolution, float32 [targets, width]: what these give together are shares of 1 over
    all lists of a target. TypeError: one of them has no softmax, which the problems of a description name."""
    products, scores = [], []
    attending = [(_attending(built), step) for built, step in convolutions]
    for built, step in attending:
        products.append(built.of_sources(step.sources, step.memory))
        scores.append(built.scores(products[-1], step))
    first = attending[0][1]
    heads = scores[0].of_edges.shape[1]
    largest, total = first.memory.rows(first.count, heads), first.memory.rows(first.count, heads)
    largest[:], total[:] = -np.inf, _LEAST_TOTAL
    lists = [(each.of_edges, step.lists.bounds) for each, (_, step) in zip(scores, attending, strict=True)]
    for of_edges, bounds in lists:
        _raise_largest(of_edges, bounds, largest)
    for of_edges, bounds in lists:
        _add_exponentials(of_edges, bounds, largest, total)
    for of_edges, bounds in lists:
        _divide(of_edges, bounds, total)
    return [
        built.behind(built.attended(rows, each, step, are_weights=True), step)
        for (built, step), rows, each in zip(attending, products, scores, strict=True)
    ]


def _attending(built: BuiltConvolution) -> AttendingConvolution:
    if not isinstance(built, AttendingConvolution):
        raise TypeError(f"{type(built).__name__} has no softmax that could be over several relations")
    return built


@kernel
def _raise_largest(scores: np.ndarray, bounds: np.ndarray, largest: np.ndarray) -> None:
    """Raise the largest score of each target, [targets, heads], to those of a list."""
    targets, heads = largest.shape
    for target in range(targets):
        for edge in range(bounds[target], bounds[target + 1]):
            for head in range(heads):
                largest[target, head] = max(largest[target, head], scores[edge, head])


@kernel
def _add_exponentials(scores: np.ndarray, bounds: np.ndarray, largest: np.ndarray, total: np.ndarray) -> None:
    """Make exponentials of the scores where they are, and add them to the total of each target, [targets, heads]."""
    targets, heads = largest.shape
    for target in range(targets):
        for edge in range(bounds[target], bounds[target + 1]):
            for head in range(heads):
                share = exponential(scores[edge, head] - largest[target, head])
                scores[edge, head] = share
                total[target, head] += share


@kernel
def _divide(scores: np.ndarray, bounds: np.ndarray, total: np.ndarray) -> None:
    targets, heads = total.shape
    for target in range(targets):
        for edge in range(bounds[target], bounds[target + 1]):
            for head in range(heads):
                scores[edge, head] /= total[target, head]
