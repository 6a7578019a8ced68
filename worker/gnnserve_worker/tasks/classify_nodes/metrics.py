"""Metrics of accuracy: the one that `spec.variants.metric` names.

The default is accuracy, or micro F1 for multi-label graphs (Dynamic GNN inference as-a-service, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.profile import Metric
from gnnserve_api.files.training import Majority
from gnnserve_api.spec.scoring import MetricChoice
from gnnserve_worker.graph.store import Splits

_FIELD = "spec.variants.metric"
Measure = Callable[[np.ndarray, np.ndarray], float]
"""A function of scores and labels. Scores are float32 [nodes, classes], before softmax or sigmoid. Labels are int64
[nodes]; or uint8 [nodes, classes] where a node may have several classes, and is given those whose score is above 0."""


def _accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(scores.argmax(axis=1) == labels))


def _f1_micro(scores: np.ndarray, labels: np.ndarray) -> float:
    predicted, true = scores > 0, labels != 0
    hits = int(np.count_nonzero(predicted & true))
    total = int(np.count_nonzero(predicted)) + int(np.count_nonzero(true))
    return 2 * hits / total if total else 1.0


def _f1_macro(scores: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the F1 scores of classes that occur among the labels or the predictions."""
    if labels.ndim == 2:
        predicted, true = scores > 0, labels != 0
        hits = np.count_nonzero(predicted & true, axis=0)
        total = np.count_nonzero(predicted, axis=0) + np.count_nonzero(true, axis=0)
    else:
        classes, said = scores.shape[1], scores.argmax(axis=1)
        hits = np.bincount(labels[said == labels], minlength=classes)
        total = np.bincount(said, minlength=classes) + np.bincount(labels, minlength=classes)
    met = total > 0
    return float(np.mean(2 * hits[met] / total[met])) if met.any() else 1.0


def _average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import average_precision_score  # noqa: PLC0415 - takes a second

    return _over_classes(scores, labels, average_precision_score)


def _roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - takes a second

    return _over_classes(scores, labels, roc_auc_score)


def _over_classes(scores: np.ndarray, labels: np.ndarray, measure: Measure) -> float:
    """Mean of `measure` over the classes that some of the nodes have and others do not.

    With two classes that exclude each other, only the second counts: it is the positive one.
    """
    columns: Sequence[int] = range(scores.shape[1])
    if labels.ndim == 1:
        scores = _softmax(scores)
        columns = columns[1:] if len(columns) == 2 else columns
    found = []
    for column in columns:
        true = labels == column if labels.ndim == 1 else labels[:, column] != 0
        if true.any() and not true.all():
            found.append(float(measure(true, scores[:, column])))
    if not found:
        raise InputError(
            _FIELD,
            f"each class belongs to all or to none of {len(scores):,} nodes, so there is nothing to rank",
            "use MacroF1 or Auto, or give validation and test nodes of several classes",
        )
    return sum(found) / len(found)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64)
    shares: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return shares


_MEASURES: dict[Metric, Measure] = {
    "accuracy": _accuracy,
    "f1Micro": _f1_micro,
    "f1Macro": _f1_macro,
    "averagePrecision": _average_precision,
    "rocAuc": _roc_auc,
}
_CHOSEN: dict[MetricChoice, Metric] = {
    MetricChoice.ACCURACY: "accuracy",
    MetricChoice.MICRO_F1: "f1Micro",
    MetricChoice.MACRO_F1: "f1Macro",
    MetricChoice.AVERAGE_PRECISION: "averagePrecision",
    MetricChoice.ROC_AUC: "rocAuc",
}


def metric_of(multi_label: bool, choice: MetricChoice = MetricChoice.AUTO) -> Metric:
    if choice is MetricChoice.AUTO:
        return "f1Micro" if multi_label else "accuracy"
    if choice is MetricChoice.MICRO_F1 and not multi_label:
        return "accuracy"  # the two are equal where a node has one class
    if choice is MetricChoice.ACCURACY and multi_label:
        raise InputError(
            _FIELD,
            "Accuracy needs nodes with one class each, and nodes of this graph may have several",
            "use Auto, MicroF1, MacroF1, AveragePrecision or ROCAUC",
        )
    return _CHOSEN[choice]


def evaluate(scores: np.ndarray, labels: np.ndarray, metric: Metric | None = None) -> float:
    """Compute the metric, from 0 to 1. Scores and labels are those of a `Measure`.

    `metric` None: accuracy, or micro F1 where a node may have several classes.
    """
    return _MEASURES[metric or metric_of(labels.ndim == 2)](scores, labels)


_OF_LABELS: frozenset[Metric] = frozenset({"accuracy", "f1Micro", "f1Macro"})
"""Metrics of the labels that scores become; the others are of the order of scores, and judge no node by itself."""


def right_labels(scores: np.ndarray, labels: np.ndarray, metric: Metric) -> np.ndarray | None:
    """int64 [nodes]: how many labels of each node are right, to compare two networks node by node. None: the metric
    judges no node by itself."""
    if metric not in _OF_LABELS:
        return None
    if labels.ndim == 2:
        several: np.ndarray = np.count_nonzero((scores > 0) == (labels != 0), axis=1)
        return several
    one: np.ndarray = (scores.argmax(axis=1) == labels).astype(np.int64)
    return one


def majority_of(labels: np.ndarray, classes: int, splits: Splits, metric: Metric | None = None) -> Majority:
    """The metric on validation nodes of the same scores for all: the classes' shares of the training nodes."""
    trained, expected = labels[splits.train], labels[splits.validation]
    counts = trained.sum(axis=0) - len(trained) / 2 if trained.ndim == 2 else np.bincount(trained, minlength=classes)
    scores = np.broadcast_to(counts.astype(np.float32), (len(expected), classes))
    return Majority(score=evaluate(scores, expected, metric), nodes=len(expected))
