"""Accuracy, F1 and the metrics of rankings, held to scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from gnnserve_api.errors import InputError
from gnnserve_api.files.training import Majority
from gnnserve_api.spec.scoring import MetricChoice
from gnnserve_cli.render import metric_name
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate, majority_of, metric_of, right_labels
from gnnserve_worker.tasks.score_links.metrics import metric_of_links

NODE_CHOICES = [one for one in MetricChoice if one not in {MetricChoice.MRR, MetricChoice.RECALL_AT_K}]


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
    draw = np.random.default_rng(0)
    scores, labels = draw.normal(size=(40, 7)), draw.integers(0, 2, (40, 7), dtype=np.uint8)

    assert evaluate(scores, labels) == pytest.approx(f1_score(labels, scores > 0, average="micro"))


def test_the_metric_is_named_by_the_kind_of_labels() -> None:
    assert (metric_of(False), metric_of(True)) == ("accuracy", "f1Micro")


DRAW = np.random.default_rng(1)
SINGLE = DRAW.normal(size=(60, 4)).astype(np.float32), DRAW.integers(0, 4, 60)
SEVERAL = DRAW.normal(size=(60, 4)).astype(np.float32), DRAW.integers(0, 2, (60, 4), dtype=np.uint8)
BINARY = DRAW.normal(size=(60, 2)).astype(np.float32), DRAW.integers(0, 2, 60)


def probabilities(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


def test_metrics_of_one_class_a_node_equal_scikit_learns() -> None:
    scores, labels = SINGLE
    chances = probabilities(scores)
    one_hot = labels[:, None] == np.arange(4)
    assert evaluate(*SINGLE, "f1Macro") == pytest.approx(f1_score(labels, scores.argmax(1), average="macro"))
    assert evaluate(*SINGLE, "averagePrecision") == pytest.approx(average_precision_score(one_hot, chances))
    assert evaluate(*SINGLE, "rocAuc") == pytest.approx(roc_auc_score(labels, chances, multi_class="ovr"))


def test_metrics_of_several_classes_a_node_equal_scikit_learns() -> None:
    scores, labels = SEVERAL
    assert evaluate(*SEVERAL, "f1Macro") == pytest.approx(f1_score(labels, scores > 0, average="macro"))
    assert evaluate(*SEVERAL, "averagePrecision") == pytest.approx(average_precision_score(labels, scores))
    assert evaluate(*SEVERAL, "rocAuc") == pytest.approx(roc_auc_score(labels, scores))


def test_of_two_classes_the_second_is_the_one_that_is_looked_for() -> None:
    scores, labels = BINARY
    chances = probabilities(scores)[:, 1]
    assert evaluate(*BINARY, "averagePrecision") == pytest.approx(average_precision_score(labels, chances))
    assert evaluate(*BINARY, "rocAuc") == pytest.approx(roc_auc_score(labels, chances))


def test_a_rare_class_that_is_always_missed_costs_macro_f1_half_and_accuracy_little() -> None:
    scores = np.tile(np.array([1, 0], dtype=np.float32), (100, 1))
    labels = np.array([0] * 99 + [1])
    assert evaluate(scores, labels) == 0.99
    assert evaluate(scores, labels, "f1Macro") == pytest.approx(0.4975, abs=1e-4)


def test_classes_that_no_node_has_do_not_count() -> None:
    scores, labels = SINGLE
    wider = np.column_stack([scores, np.full(60, -9, dtype=np.float32)])
    assert evaluate(wider, labels, "f1Macro") == pytest.approx(evaluate(*SINGLE, "f1Macro"))
    assert evaluate(wider, labels, "rocAuc") == pytest.approx(evaluate(*SINGLE, "rocAuc"), abs=1e-3)


def test_nodes_of_one_class_cannot_be_ranked() -> None:
    with pytest.raises(InputError, match="each class belongs to all or to none of 3 nodes"):
        evaluate(np.zeros((3, 2), dtype=np.float32), np.zeros(3, dtype=np.int64), "rocAuc")


@pytest.mark.parametrize(
    ("choice", "single", "several"),
    [
        (MetricChoice.AUTO, "accuracy", "f1Micro"),
        (MetricChoice.MICRO_F1, "accuracy", "f1Micro"),
        (MetricChoice.MACRO_F1, "f1Macro", "f1Macro"),
        (MetricChoice.AVERAGE_PRECISION, "averagePrecision", "averagePrecision"),
        (MetricChoice.ROC_AUC, "rocAuc", "rocAuc"),
    ],
)
def test_the_manifest_chooses_the_metric(choice: MetricChoice, single: str, several: str) -> None:
    assert (metric_of(False, choice), metric_of(True, choice)) == (single, several)


def test_accuracy_is_refused_where_a_node_may_have_several_classes() -> None:
    assert metric_of(False, MetricChoice.ACCURACY) == "accuracy"
    with pytest.raises(InputError, match="Accuracy needs nodes with one class each"):
        metric_of(True, MetricChoice.ACCURACY)


def test_every_metric_has_a_measure_and_words() -> None:
    of_nodes = {metric_of(False, choice) for choice in NODE_CHOICES} | {metric_of(True)}
    of_links = {metric_of_links(choice) for choice in (MetricChoice.AUTO, MetricChoice.MRR, MetricChoice.RECALL_AT_K)}
    assert all(metric_name(metric) != metric for metric in (of_nodes | of_links) - {"accuracy"})
    for metric in of_nodes:  # of links: test_links.py
        scores, labels = SEVERAL if metric == "f1Micro" else SINGLE
        assert 0 <= evaluate(scores, labels, metric) <= 1


def test_the_majority_is_the_most_frequent_class_of_training_nodes() -> None:
    labels = np.array([0, 0, 1, 0, 1, 1, 0, 2])
    splits = Splits(np.arange(4), np.arange(4, 8), np.arange(0))
    assert majority_of(labels, 3, splits, "accuracy") == Majority(score=0.25, nodes=4)
    several = np.eye(3, dtype=np.uint8)[labels]
    assert majority_of(several, 3, splits, "f1Micro").score == pytest.approx(0.25)


def test_right_labels_are_counted_by_node_where_a_metric_judges_nodes() -> None:
    scores = np.array([[2.0, 1.0, -1.0], [0.5, -1.0, 3.0]], np.float32)
    assert right_labels(scores, np.array([0, 1]), "accuracy") == pytest.approx([1, 0])
    assert right_labels(scores, np.array([[1, 1, 0], [0, 1, 1]], np.uint8), "f1Micro") == pytest.approx([3, 1])
    assert right_labels(scores, np.array([0, 1]), "rocAuc") is None
