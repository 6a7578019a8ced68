"""Accuracy and F1-micro."""

from __future__ import annotations

import numpy as np
import pytest

from gnnserve_worker.generation.scores import evaluate, metric_of


def test_accuracy_is_the_share_of_right_classes() -> None:
    scores = np.array([[0.1, 0.9], [0.8, 0.2], [0.4, 0.6], [-3, -2]], dtype=np.float32)

    assert evaluate(scores, np.array([1, 0, 0, 1])) == 0.75


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        pytest.param([[1, -1], [1, 1]], [[1, 0], [1, 1]], 1.0, id="all right"),
        pytest.param([[1, 1], [-1, -1]], [[1, 0], [0, 1]], 0.5, id="one hit, one false alarm, one miss"),
        pytest.param([[1, 1]], [[0, 0]], 0.0, id="false alarms alone"),
        pytest.param([[-1, -1]], [[1, 1]], 0.0, id="misses alone"),
        pytest.param([[-1, -1]], [[0, 0]], 1.0, id="nothing there and nothing said is right"),
        pytest.param([[0, 0]], [[1, 0]], 0.0, id="a score of exactly 0 says no"),
    ],
)
def test_f1_micro_counts_every_pair_of_node_and_class(
    scores: list[list[float]], labels: list[list[int]], expected: float
) -> None:
    assert evaluate(np.array(scores, dtype=np.float32), np.array(labels, dtype=np.uint8)) == expected


def test_f1_micro_equals_scikit_learns() -> None:
    from sklearn.metrics import f1_score

    draw = np.random.default_rng(0)
    scores, labels = draw.normal(size=(40, 7)), draw.integers(0, 2, (40, 7), dtype=np.uint8)

    assert evaluate(scores, labels) == pytest.approx(f1_score(labels, scores > 0, average="micro"))


def test_the_metric_is_named_by_the_kind_of_labels() -> None:
    assert (metric_of(False), metric_of(True)) == ("accuracy", "f1Micro")
