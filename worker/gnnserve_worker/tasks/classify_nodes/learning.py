"""Targets that networks learn of nodes: their labels, or the scores of a network that they are to stand in for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gnnserve_api.files.profile import Metric
from gnnserve_api.files.training import Source
from gnnserve_worker.graph.store import Splits
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate
from gnnserve_worker.tasks.generated import EmbeddingRates, EpochPart, TrainingBatch, Visible

NodeLoss = Callable[[torch.Tensor, np.ndarray], torch.Tensor]
"""Loss of the scores, float32 [seeds, classes], of some nodes (ids)."""
_EMBEDDINGS = EmbeddingRates(bound=0.01, rate_share=0.1, is_decayed=True)
"""Embeddings are many and few labels reach each: as large and quick as weights they learn training nodes by heart."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Labels that a course is judged by."""

    labels: np.ndarray
    """As of `NodeLabels`."""
    splits: Splits
    metric: Metric


@dataclass(frozen=True, slots=True)
class NodeCourse:
    """A `Course` about nodes, judged by labels."""

    truth: Truth
    visible: Visible
    nodes: np.ndarray
    """Ids of nodes that training goes through."""
    loss: NodeLoss
    learnt_from: Source
    embeddings: EmbeddingRates = _EMBEDDINGS
    parts_per_epoch: int = 1
    decoder: None = None
    says_each_epoch: bool = False
    """False: an epoch of a small graph takes milliseconds."""

    @property
    def items(self) -> int:
        return len(self.nodes)

    @property
    def examined(self) -> np.ndarray:
        return self.truth.splits.validation

    def parts(self, epoch: int) -> Iterator[EpochPart]:
        yield EpochPart(self.nodes, self.visible)

    def batch(self, items: np.ndarray) -> TrainingBatch:
        return TrainingBatch(items, lambda scores: self.loss(scores, items))

    def judge(self, outputs: np.ndarray) -> tuple[float, float]:
        expected = self.truth.labels[self.truth.splits.validation]
        loss = float(label_loss(torch.from_numpy(outputs), expected))
        return evaluate(outputs, expected, self.truth.metric), loss

    def says(self, score: float) -> str:
        return f"validation {score:.3f}"


def label_course(truth: Truth, visible: Visible) -> NodeCourse:
    """Labels of training nodes, by cross-entropy."""

    def loss(scores: torch.Tensor, seeds: np.ndarray) -> torch.Tensor:
        return label_loss(scores, truth.labels[seeds])

    return NodeCourse(truth, visible, truth.splits.train, loss, "labels")


def one_row_courses(truth: Truth, visible: Visible, nodes: np.ndarray, taught: np.ndarray) -> Iterator[NodeCourse]:
    """Labels; scores of another network (`taught`), as *Graph-less neural networks* (GLNN) distils them, of `nodes`;
    and both."""
    yield label_course(truth, visible)
    is_labelled = np.zeros(len(taught), dtype=bool)
    is_labelled[truth.splits.train] = True

    def score_loss(scores: torch.Tensor, seeds: np.ndarray) -> torch.Tensor:
        wanted = torch.from_numpy(taught[seeds]).to(scores.device)
        if truth.labels.ndim == 2:
            return nn.functional.binary_cross_entropy_with_logits(scores, wanted.sigmoid())
        return nn.functional.cross_entropy(scores, wanted.softmax(dim=1))

    def both_losses(scores: torch.Tensor, seeds: np.ndarray) -> torch.Tensor:
        labelled = np.flatnonzero(is_labelled[seeds])
        distilled = score_loss(scores, seeds)
        if not len(labelled):
            return distilled
        of_labels = label_loss(scores[torch.from_numpy(labelled)], truth.labels[seeds[labelled]])
        return (distilled + of_labels) / 2

    yield NodeCourse(truth, visible, nodes, score_loss, "scores")
    yield NodeCourse(truth, visible, nodes, both_losses, "both")


def label_loss(scores: torch.Tensor, labels: np.ndarray) -> torch.Tensor:
    if labels.ndim == 2:
        wanted = torch.from_numpy(labels.astype(np.float32)).to(scores.device)
        return nn.functional.binary_cross_entropy_with_logits(scores, wanted)
    return nn.functional.cross_entropy(scores, torch.from_numpy(labels).to(scores.device))
