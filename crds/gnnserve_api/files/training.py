"""How networks were trained: for how long, whether longer would have been better, and whether anything was learnt.

Recorded in a revision, so that its report can say what its log said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gnnserve_api.files.profile import Count, Share
from gnnserve_api.intervals import share_interval
from gnnserve_api.wording import in_words

Source = Annotated[str, Meta(pattern="^[A-Za-z][A-Za-z ]{0,39}$")]
"""A task's word for what a network learns from, as `labels`."""
TrainedBy = Literal["WholeGraph", "Sampled"]
"""How training went through a graph of several types, as `spec.model.training.batches` names it."""


class TrainingAttempt(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One training of a network that was trained several times."""

    seed: Count
    learning_rate: Annotated[float, Meta(gt=0)]
    epochs: Count
    best_epoch: Count
    validation: Share


class TrainingRun(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One network, trained from its first weights."""

    name: Annotated[str, Meta(description="The variant, or `master` where the factors lack 1.")]
    epochs: Annotated[Count, Meta(description="How many were run.")]
    steps: Annotated[Count, Meta(description="Batches, over all epochs.")]
    best_epoch: Annotated[Count, Meta(description="The one whose weights are kept, by validation.")]
    validation: Annotated[Share, Meta(description="Validation score of that epoch, as training measured it.")]
    rising: Annotated[bool, Meta(description="Whether validation was still improving when training ended.")]
    tried: Annotated[
        dict[Source, Share],
        Meta(
            description="Of a one-row variant: the validation scores of what it may learn from, of which the best is "
            "kept. Empty: it learns from labels."
        ),
    ] = {}
    learnt_from: Annotated[
        Source, Meta(description="The task's word: `labels`, the `scores` of the model, `both`, or `links`.")
    ] = "labels"
    attempts: Annotated[
        tuple[TrainingAttempt, ...],
        Meta(
            description="With epochs: Auto, all trainings of a network that was trained again, because the first one "
            "was not told from the most frequent class. The one with the best validation is kept. Empty: it was "
            "trained once."
        ),
    ] = ()
    batches: Annotated[
        TrainedBy | UnsetType,
        Meta(
            description="How training went through a graph of several types: `WholeGraph`, one step an epoch over the "
            "whole of it, or `Sampled`, in batches with sampled neighbours. Absent: over one type, and from earlier "
            "versions."
        ),
    ] = UNSET


class Majority(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The network that a trained one must be better than: it gives every node the most frequent classes."""

    score: Annotated[Share, Meta(description="Its validation score.")]
    nodes: Annotated[Count, Meta(description="Validation nodes.")]

    def is_beaten_by(self, validation: float) -> bool:
        """Whether the validation nodes tell a network of this score from it: the 95 % interval lies above."""
        return share_interval(validation, self.nodes).low > self.score


class TrainingManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Outcome of `spec.model.training`."""

    epochs: Annotated[int | None, Meta(description="As the manifest states it; null: Auto.")]
    runs: tuple[TrainingRun, ...]
    majority: Annotated[
        Majority | None,
        Meta(description="What networks must be better than; null where links are scored, and from earlier versions."),
    ] = None


def says_rising(training: TrainingManifest | None) -> str | None:
    """The advice to train longer; None where it would not help, or where weights were given."""
    rising = [run for run in training.runs if run.rising] if training is not None else []
    if training is None or not rising:
        return None
    most = max(run.epochs for run in rising)
    where = "" if len(rising) == len(training.runs) else f" of {in_words([run.name for run in rising])}"
    if training.epochs is None:
        return (
            f"validation{where} was still rising at epoch {most:,}, where epochs: Auto ends at the latest: state a "
            "larger number"
        )
    return (
        f"validation{where} was still rising at epoch {most:,} of {training.epochs:,}: use spec.model.training.epochs: "
        "Auto or more"
    )


def says_unlearnt(training: TrainingManifest | None) -> str | None:
    """The warning that networks learnt hardly anything; None where all are told from the most frequent class, or where
    it is not known."""
    if training is None or (majority := training.majority) is None:
        return None
    weak = [run for run in training.runs if not majority.is_beaten_by(run.validation)]
    if not weak:
        return None
    scores = in_words([f"{run.validation:.3f}" for run in weak])
    tried = max(len(run.attempts) for run in weak)
    if training.epochs is not None:
        cure = "spec.model.training.epochs: Auto tries a smaller learningRate and other seeds"
    elif tried > 1:
        cure = f"{tried} trainings with other learning rates and seeds found none, so look at features and labels"
    else:
        cure = "try another learningRate or seed in spec.model.training"
    names = in_words([run.name for run in weak])
    return (
        f"{names} reached {scores} on {majority.nodes:,} validation nodes, which is not told from the "
        f"{majority.score:.3f} of always giving the most frequent class: {cure}"
    )


def says_attempts(run: TrainingRun) -> str:
    """`validation 0.572 with seed 0 and learning rate 0.01, 0.798 with …`, of a network that was trained again."""
    said = [
        f"{one.validation:.3f} with seed {one.seed} and learning rate {one.learning_rate:g}" for one in run.attempts
    ]
    return f"validation {', '.join(said)}"


_IN_WORDS: Mapping[TrainedBy | UnsetType, str] = {
    "WholeGraph": " over the whole graph", "Sampled": " of sampled batches", UNSET: "",
}  # fmt: skip


def says_length(training: TrainingManifest) -> str:
    """`30 epochs`, or `Auto: 57 to 120 epochs, 114 to 240 steps`."""
    epochs, steps = _span([run.epochs for run in training.runs]), _span([run.steps for run in training.runs])
    best = _span([run.best_epoch for run in training.runs])
    stated = "Auto: " if training.epochs is None else ""
    batches = _IN_WORDS[training.runs[0].batches]
    return f"{stated}{epochs} epochs, {steps} steps{batches}; the best at epoch {best}"


def says_learnt(run: TrainingRun) -> str:
    """`both: 91.2 % of validation, labels 90.8 %, scores 91.0 %`, of a one-row variant."""
    others = [f"{source} {score:.1%}" for source, score in run.tried.items() if source != run.learnt_from]
    return ", ".join([f"{run.learnt_from}: validation {run.validation:.1%}", *others])


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
