"""Meaning of accuracy, and how scores become labels."""

from __future__ import annotations

from enum import StrEnum


class MetricChoice(StrEnum):
    AUTO = "Auto"
    """Accuracy; MicroF1 where a node may have several classes."""
    ACCURACY = "Accuracy"
    """The share of nodes whose class is right. Not where a node may have several."""
    MICRO_F1 = "MicroF1"
    """F1 of all pairs of node and class, in which frequent classes weigh more; Accuracy where nodes have one class."""
    MACRO_F1 = "MacroF1"
    """The mean of the classes' F1, in which rare classes weigh as much."""
    AVERAGE_PRECISION = "AveragePrecision"
    """How far up the nodes of a class come among all, by its score: the mean over classes; of two, the second's."""
    ROC_AUC = "ROCAUC"
    """How often a node of a class has a higher score for it than one without: the mean over classes; of two, the
    second's. Of links: how often one has a higher score than a pair without a link."""
    MRR = "MRR"
    """For links alone: the mean of 1 / rank of a held-out link among all pairs of its first node, known links left out.
    """
    RECALL_AT_K = "RecallAtK"
    """For links alone: the share of a node's held-out links among the k pairs that score best (task.links.recallAt),
    known links left out."""


class Thresholds(StrEnum):
    FIXED = "Fixed"
    """A node has the classes whose score is above 0; of classes that exclude each other, the one of the highest score.
    """
    PER_CLASS = "PerClass"
    """A class has a score to exceed, of each variant, where its F1 on validation nodes is highest; of two classes that
    exclude each other, the rarer one's. Not with more of these. For classes that few nodes have."""
