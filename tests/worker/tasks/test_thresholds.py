"""Thresholds per class: where the F1 of a class is highest, and what keeps few nodes from deciding it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score

from gnnserve_api.errors import InputError
from gnnserve_api.spec.scoring import Thresholds
from gnnserve_worker.models.network import decisive_scores
from gnnserve_worker.tasks.classify_nodes.labels import LARGEST, MIN_POSITIVES, check_thresholds, fit_thresholds


def rare_class(nodes: int = 400, share: float = 0.1, shift: float = -3.0, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Scores that know a rare class, and are too low for it; the class."""
    draw = np.random.default_rng(seed)
    true = draw.random(nodes) < share
    return (draw.normal(size=nodes) + 2 * true + shift).astype(np.float32), true


def best_f1(scores: np.ndarray, true: np.ndarray) -> float:
    """By trying every cut."""
    return max(f1_score(true, scores > cut) for cut in scores if abs(cut) <= LARGEST)


def test_each_class_of_several_gets_the_threshold_of_its_best_f1() -> None:
    rare, true_rare = rare_class()
    sure, true_sure = rare_class(share=0.5, shift=-1.0, seed=1)
    scores, labels = np.stack([rare, sure], axis=1), np.stack([true_rare, true_sure], axis=1).astype(np.uint8)

    thresholds = fit_thresholds(scores, labels)

    assert all(abs(threshold) <= LARGEST for threshold in thresholds)
    for column, threshold in enumerate(thresholds):
        found = f1_score(labels[:, column], decisive_scores(scores, thresholds)[:, column] > 0)
        assert found == pytest.approx(best_f1(scores[:, column], labels[:, column] != 0))
        assert found >= f1_score(labels[:, column], scores[:, column] > 0), threshold


@pytest.mark.campaign
@pytest.mark.parametrize("rare", [0, 1])
def test_of_two_classes_the_rarer_one_decides_where_the_line_is(rare: int) -> None:
    lead, true = rare_class()
    half = (lead if rare == 1 else -lead) / 2
    scores, labels = np.stack([-half, half], axis=1), np.where(true, rare, 1 - rare)

    first, second = fit_thresholds(scores, labels)

    assert first == 0
    decided = decisive_scores(scores, (first, second)).argmax(axis=1)
    assert f1_score(labels == rare, decided == rare) == pytest.approx(best_f1(lead, true))
    assert f1_score(labels == rare, scores.argmax(axis=1) == rare) < best_f1(lead, true)


def test_a_class_that_too_few_nodes_have_keeps_its_threshold() -> None:
    scores, true = rare_class()
    few = true & (np.cumsum(true) < MIN_POSITIVES)
    many = ~few
    assert fit_thresholds(np.stack([scores, -scores], axis=1), np.stack([few, many], axis=1)) == (0.0, 0.0)


def test_no_threshold_leaves_its_bounds() -> None:
    """Only a score beyond them would tell the class."""
    scores, true = rare_class(shift=-40.0)
    assert fit_thresholds(scores[:, None], true[:, None]) == (0.0,)


def test_scores_that_are_right_already_keep_0() -> None:
    _, true = rare_class()
    scores = np.where(true, 2.0, -1.0).astype(np.float32)
    assert fit_thresholds(scores[:, None], true[:, None]) == (0.0,)
    assert fit_thresholds(np.zeros((len(true), 1), np.float32), true[:, None]) == (0.0,)


def test_more_than_two_classes_that_exclude_each_other_have_no_thresholds() -> None:
    check_thresholds(Thresholds.PER_CLASS, multi_label=True, classes=22)
    check_thresholds(Thresholds.PER_CLASS, multi_label=False, classes=2)
    check_thresholds(Thresholds.FIXED, multi_label=False, classes=7)
    with pytest.raises(InputError, match="one of 7 classes: the highest score decides; use Fixed"):
        check_thresholds(Thresholds.PER_CLASS, multi_label=False, classes=7)


def test_scores_without_thresholds_stay_the_same_array() -> None:
    scores = np.ones((2, 3), np.float32)
    assert decisive_scores(scores, None) is scores
