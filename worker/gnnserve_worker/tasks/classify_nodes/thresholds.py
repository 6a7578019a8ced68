"""A threshold per class, chosen on validation nodes: where the F1 of the class is highest.

A network learns probabilities, and F1 of a class that few nodes have is often highest well below one half. Each variant
has thresholds of its own. They stay where few nodes could mislead: a class with too few positive validation nodes keeps
0, and no threshold leaves the scores of 1 and 99 %.
"""

from __future__ import annotations

import math

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.scoring import Thresholds

MIN_POSITIVES = 20
"""Validation nodes that must have a class, and as many that must not, for it to get another threshold than 0."""
LARGEST = math.log(99)
"""A score of 99 %; the smallest threshold is its negative, 1 %."""


def check_thresholds(choice: Thresholds, *, multi_label: bool, classes: int) -> None:
    """Raises InputError where a graph has no use for them."""
    if choice is Thresholds.PER_CLASS and not multi_label and classes > 2:
        raise InputError(
            "spec.variants.thresholds",
            f"is PerClass, and each node of this graph has one of {classes} classes: the highest score decides",
            "use Fixed; PerClass is for nodes of several classes, or for two classes",
        )


def fit_thresholds(scores: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """`scores` float32 [nodes, classes] and `labels`, as of a `scores.Measure`: of several classes per node, or of two
    that exclude each other. Of these the first one's threshold is 0: their difference decides."""
    if labels.ndim == 2:
        return tuple(_best_threshold(scores[:, column], labels[:, column] != 0) for column in range(labels.shape[1]))
    second = labels == 1
    lead = scores[:, 1] - scores[:, 0]
    if 2 * np.count_nonzero(second) <= len(second):
        return 0.0, _best_threshold(lead, second)
    return 0.0, 0.0 - _best_threshold(-lead, ~second)


def _best_threshold(scores: np.ndarray, true: np.ndarray) -> float:
    """The threshold nearest to 0 among those with the highest F1; 0 where too few nodes can tell."""
    positives = int(np.count_nonzero(true))
    if min(positives, len(true) - positives) < MIN_POSITIVES:
        return 0.0
    order = np.argsort(-scores, kind="stable")
    falling = scores[order].astype(np.float64)
    # Cutting behind a node says that it and all before it have the class.
    f1 = 2 * np.cumsum(true[order]) / (np.arange(1, len(true) + 1) + positives)
    cuts = np.flatnonzero(falling[:-1] > falling[1:])
    thresholds = (falling[cuts] + falling[cuts + 1]) / 2
    within = np.abs(thresholds) <= LARGEST
    cuts, thresholds = cuts[within], thresholds[within]
    above = int(np.count_nonzero(falling > 0))
    at_zero = f1[above - 1] if above else 0.0
    if not len(cuts) or f1[cuts].max() <= at_zero:
        return 0.0
    best = thresholds[f1[cuts] == f1[cuts].max()]
    return float(np.float32(best[np.abs(best).argmin()]))
