"""The picture of `play.py`: ROC-AUC of each variant beside its latency, and accuracy in service as labels come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

if TYPE_CHECKING:
    from examples.spam.play import Step, Told


def draw(file: Path, told: dict[str, Told], steps: list[Step], spam: np.ndarray, at_once: int) -> None:
    from examples.spam.play import roc_auc  # noqa: PLC0415 - play.py imports this file

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, variant in told.items():
        left.plot(np.median(variant.milliseconds), roc_auc(variant.new, spam), "o", label=name)
        left.annotate(f" {name}", (float(np.median(variant.milliseconds)), roc_auc(variant.new, spam)), va="center")
    left.set(xlabel="median round trip, ms", ylabel="ROC-AUC of arriving reviews", title="Variants")
    left.margins(0.2)
    for name in told:
        seen = [(step.reviews, step.accuracy[name]) for step in steps if name in step.accuracy]
        right.plot(*zip(*seen, strict=True), label=name)
    changed = len(spam) * 2 // 3 // at_once * at_once
    right.axvline(changed, color="grey", linestyle=":", label="spam begins to imitate")
    right.set(xlabel="reviews that arrived", ylabel="accuracy in service", title="By the labels that have come")
    right.legend()
    figure.savefig(file)
