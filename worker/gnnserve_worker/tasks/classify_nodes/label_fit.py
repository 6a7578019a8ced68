"""Whether given weights fit the labels: what expected scores cannot tell, since they have the model's order of classes.

A model that was trained with another order of classes computes right scores whose labels are wrong. Held against the
validation nodes, it fits them once its output columns are permuted: the best permutation is an assignment on the
confusion matrix. It is found on half of the nodes and measured on the other half, so that chance finds none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gnnserve_api.classes import Classes
from gnnserve_api.given_weights import LabelMisfit
from gnnserve_api.intervals import share_interval
from gnnserve_api.profile import VariantProfile
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.training import Majority


def label_misfits(
    spec: GNNServiceSpec, profiles: Iterable[VariantProfile], answers: Mapping[str, np.ndarray], labels: np.ndarray,
    classes: Classes, majority: Majority,
) -> Iterator[LabelMisfit]:  # fmt: skip
    """Variants of given weights that do not fit. `answers`: output columns by variant, of the validation nodes; absent
    where nodes may have several classes. `labels`: of these nodes."""
    for profile in profiles:
        if not _is_given(spec, profile.name):
            continue
        columns, permuted = (), 0.0
        if (found := answers.get(profile.name)) is not None:
            columns, permuted = _better_order(found, labels, classes, majority)
        if columns or not majority.is_beaten_by(profile.validation_accuracy):
            yield LabelMisfit(profile.name, profile.validation_accuracy, majority, columns, permuted)


def _is_given(spec: GNNServiceSpec, name: str) -> bool:
    if spec.model.is_given:
        return True
    given: Collection[str] = spec.variants.given_names()
    return any(name == one or name.startswith(f"{one}-") for one in given)


def _better_order(answers: np.ndarray, labels: np.ndarray, classes: Classes, majority: Majority) -> tuple[Any, float]:
    """Classes in the order of the columns, and the accuracy with them; empty where none is clearly better."""
    known = labels >= 0
    answers, labels = answers[known], labels[known]
    # By chance: validation nodes may be listed in an order that goes with their labels.
    halves = np.random.default_rng(0).permutation(len(labels)) % 2 == 0
    if halves.all():
        return (), 0.0
    by_half = _assigned(answers[halves], labels[halves], len(classes))
    rest = labels[~halves]
    permuted = float((by_half[answers[~halves]] == rest).mean())
    served = float((answers[~halves] == rest).mean())
    least = max(majority.score, share_interval(served, len(rest)).high)
    if share_interval(permuted, len(rest)).low <= least:
        return (), 0.0
    return tuple(classes[place] for place in _assigned(answers, labels, len(classes))), permuted


def _assigned(answers: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """int64 [classes]: the class of each output column with which most labels are right."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (takes a tenth of a second)

    confusion = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(confusion, (answers, labels), 1)
    # Of orders that are equally good, the one that moves fewer columns.
    weights = confusion * (classes + 1) + np.eye(classes, dtype=np.int64)
    return np.asarray(linear_sum_assignment(weights, maximize=True)[1])
