"""Watching accuracy in service: what there is to compute when the engine is idle, and what came of it.

Labels wait until then, and every variant is evaluated on them; after them come shadows: answers that were given are
computed again by the most accurate variant, to tell how often both agree. One answer at a time is kept, when there is
time for another: between two of them nothing is copied. The share of the worker's time that this may take is the
routing table's.

The watch says what to compute, one short job at a time, and takes the scores; when there is time for a job is the
engine's decision. Labels are kept by the source's own ids, so that they survive a change of revision. All of it belongs
to the event loop's thread.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, assert_never

import numpy as np

from gnnserve_api.http.live_accuracy import InputDrift, LabelProblem, VariantAccuracy
from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.accuracy.inputs import InputMeans, input_means
from gnnserve_worker.serving.accuracy.tally import Tally
from gnnserve_worker.serving.idle.idle_jobs import Job, nodes_of_job
from gnnserve_worker.serving.requests import Lane, Question
from gnnserve_worker.tasks.served_labels import NO_VALUES, GivenLabel, Item, KeptAnswer, Measure


class Shadows:
    def __init__(self) -> None:
        self.permille = 0
        """Most of the time, in permille, that they may take; 0: none are made."""
        self.kept: KeptAnswer | None = None
        """The answer that is to be computed again."""

    @property
    def wants_answer(self) -> bool:
        return self.permille > 0 and self.kept is None


MOST_WAITING = 100_000
"""Most labels that wait for their evaluation."""
MOST_REMEMBERED = 100_000
"""Most labels whose node and time are remembered, to notice repeated ones."""
_MOST_NODES = 256
_LABELS_PERMILLE = 5
"""Most of the time that evaluating labels takes between requests: those that meet a job are half of what a 99th
percentile leaves out."""
_QUIET_LABELS_PERMILLE = 250
JUDGE_EVERY = 250
"""Labels between two looks at what variants lose in service: another judgement opens another lane."""
_SAME_PERMILLE = 5.0
"""A loss in service that has moved by less stays as it was."""
ACCEPTED = "accepted"
FAILED = "failed"
"""Outcome of labels that were accepted, and on which evaluating a variant failed."""

TimedItem = tuple[Item, datetime]


class JobPurpose(StrEnum):
    """Purpose of a job."""

    LABELS = "labels"
    """A variant is evaluated on labelled items, or computes what they are compared with."""
    SHADOWS = "shadows"
    """The most accurate variant computes an answer again."""


@dataclass(slots=True)
class _Chunk:
    """Labels that are being evaluated, variant by variant, or nodes of the measure that come before them."""

    labels: list[tuple[Item, GivenLabel]]
    """Labels that clients sent; empty: these are nodes of the measure."""
    nodes: np.ndarray
    """Nodes to compute, int64, positions in the graph."""
    missing: list[str]
    """Variants that are still to be evaluated."""
    start: int = 0
    """Place of the first node among those of the measure."""
    form: Any = None
    """How labelled items are made of the nodes."""
    truths: np.ndarray = field(default_factory=lambda: NO_VALUES)
    values: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyJob(Job):
    purpose: JobPurpose


class AccuracyWatch:
    what = "accuracy in service could not be evaluated"

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` tells the engine that there is something to compute."""
        self._wake = wake
        self._waiting: deque[tuple[Item, GivenLabel]] = deque()
        self._chunk: _Chunk | None = None
        self._seen: dict[TimedItem, None] = {}
        """Items and times of the last labels, the oldest first."""
        self._revision: ServedRevision | None = None
        self._measure: Measure | None = None
        """How right variants of the revision are; None: there is none, or it was not asked for yet."""
        self._tally: Tally | None = None
        self.outcomes: Counter[str] = Counter()
        """Labels by what became of them: accepted, or why not."""
        self.losses: Mapping[str, float] = {}
        """Losses in permille by which tolerances are judged, in place of the profile's; empty where labels do not say
        otherwise."""
        self._until_judged = JUDGE_EVERY
        """Labels until the next look at them."""
        self._measured = 0
        """Nodes of the measure that were taken; they come before the first label is evaluated."""
        self.shadows = Shadows()
        self._inputs: InputMeans | None = None
        """Means of the features that requests bring; None: none was brought yet, or nothing can be compared."""
        self._has_inputs = False
        """Whether the first request that brings features has come."""
        self.seconds = dict.fromkeys(JobPurpose, 0.0)
        """Time that went into jobs."""

    @property
    def waiting(self) -> int:
        """Labels that some variant is still to be evaluated on."""
        return len(self._waiting) + (0 if self._chunk is None else len(self._chunk.labels))

    @property
    def room(self) -> int:
        """Labels that may still be taken."""
        return MOST_WAITING - self.waiting

    @property
    def reference(self) -> str:
        """The most accurate variant by the profile of those that answer. There must be a served revision."""
        assert self._tally is not None  # noqa: S101
        return self._tally.reference

    def figures(self) -> tuple[VariantAccuracy, ...]:
        """The variants of the served revision in service; empty before there is one."""
        return () if self._tally is None else self._tally.figures()

    def observed(self) -> tuple[VariantAccuracy, ...]:
        """Accuracies of the variants of which anything is known in service."""
        return tuple(figure for figure in self.figures() if figure.labels or figure.agreement)

    def follow(self, revision: ServedRevision, shadow_permille: int) -> None:
        """Evaluate the variants of this revision from now on. Another one's figures begin anew. `shadow_permille`: most
        of the time that shadows may take."""
        self.shadows.permille = shadow_permille
        if revision is self._revision:
            return
        self._revision, self._measure = revision, revision.task.live_labels.measure()
        self._tally = Tally(revision.answering, self._measure)
        self.losses, self._until_judged = {}, JUDGE_EVERY
        self._inputs, self._has_inputs = None, False
        self._measured = 0
        self.shadows.kept = None
        if self._chunk is not None:
            self._waiting.extendleft(reversed(self._chunk.labels))
            self._chunk = None

    def forget_revision(self) -> None:
        """The revision answers no more; labels wait for the next one."""
        self._revision = self._measure = self._tally = self.shadows.kept = None

    def was_seen(self, item: Item, time: datetime) -> bool:
        return (item, time) in self._seen

    def take(self, labels: Sequence[tuple[Item, GivenLabel]], seen: Iterable[TimedItem]) -> None:
        """Take checked labels, as many as there is room for. `seen`: items and times to remember."""
        self._waiting.extend(labels)
        self.outcomes[ACCEPTED] += len(labels)
        for timed in seen:
            self._seen[timed] = None
        while len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        if labels:
            self._wake()

    def next_job(self, lane: Lane) -> AccuracyJob | None:
        """What is to be computed next, by the revision of this lane; None: nothing."""
        if lane.revision is not self._revision:
            return None
        return self._next_labels(lane) or self._next_shadow(lane)

    def note_answer(self, variant: str, question: Question, scores: np.ndarray) -> None:
        """Keep a part of an answer about stored nodes, to compute it again. `scores`: float32 [nodes, columns]."""
        lane = question.lane
        if lane.revision is self._revision and self._measure is not None and self.shadows.wants_answer:
            most = nodes_of_job(lane.chooser.costs, lane.chooser.indices[self.reference])
            self.shadows.kept = self._measure.keep(variant, question.nodes, scores, question.form, most)
            self._wake()

    def note_inputs(self, revision: ServedRevision, features: np.ndarray) -> None:
        """Count the features that a request brings: float32 [rows, features], as in the source."""
        if revision is not self._revision:
            return
        if not self._has_inputs:
            self._has_inputs = True
            self._inputs = input_means(revision.compute.overlays.stored, revision.graph.count())
        if self._inputs is not None:
            self._inputs.add(features)

    def drifted_inputs(self) -> tuple[InputDrift, ...]:
        """Columns of the features that requests bring whose means have moved."""
        return () if self._inputs is None else self._inputs.drifted()

    def _next_labels(self, lane: Lane) -> AccuracyJob | None:
        costs, indices, measure = lane.chooser.costs, lane.chooser.indices, self._measure
        assert measure is not None  # noqa: S101  (`next_job` is asked about the followed revision)
        while self._chunk is None and (self._waiting or self._compares_by_more(measure)):
            count = min(nodes_of_job(costs, index) for index in indices.values())
            count = min(count, _MOST_NODES)
            self._chunk = self._next_measured(lane.revision, measure, count) or self._next_chunk(lane.revision, count)
        chunk = self._chunk
        if chunk is None:
            return None
        variant = chunk.missing[-1]
        # A copy: infer may be given seeds that nothing else refers to.
        expected_ms = costs.compute_ms(indices[variant], len(chunk.nodes))
        return AccuracyJob(
            variant,
            chunk.nodes.copy(),
            expected_ms,
            _LABELS_PERMILLE,
            _QUIET_LABELS_PERMILLE,
            purpose=JobPurpose.LABELS,
        )

    def _compares_by_more(self, measure: Measure) -> bool:
        """Whether an answer waits for nodes of the measure that are not computed yet."""
        return self.shadows.kept is not None and measure.compares_by_nodes and self._measured < len(measure.nodes)

    def _next_shadow(self, lane: Lane) -> AccuracyJob | None:
        kept, permille = self.shadows.kept, self.shadows.permille
        if kept is None or not permille:
            return None
        name = self.reference
        expected_ms = lane.chooser.costs.compute_ms(lane.chooser.indices[name], len(kept.nodes))
        return AccuracyJob(name, kept.nodes.copy(), expected_ms, permille, permille, purpose=JobPurpose.SHADOWS)

    def finish(self, job: AccuracyJob, inference: Inference, took_ms: float) -> None:
        """Count what a job computed."""
        scores = inference.scores
        self.seconds[job.purpose] += took_ms / 1000
        match job.purpose:
            case JobPurpose.LABELS:
                self._finish_labels(job, scores)
            case JobPurpose.SHADOWS:
                self._finish_shadow(job, scores)
            case _:
                assert_never(job.purpose)

    def _finish_shadow(self, job: AccuracyJob, scores: np.ndarray) -> None:
        kept, self.shadows.kept = self.shadows.kept, None
        revision, measure, tally = self._revision, self._measure, self._tally
        if kept is None or revision is None or measure is None or tally is None:
            return
        # A node that has left meanwhile has a row and no neighbours: that differs from its answer, whatever answers.
        if not revision.changes.gone.are_named(kept.nodes, 0, len(kept.nodes), None):
            tally.add_agreement(kept.variant, measure.agreement(kept, job.variant, scores))

    def _finish_labels(self, job: AccuracyJob, scores: np.ndarray) -> None:
        chunk, measure, tally = self._chunk, self._measure, self._tally
        if chunk is None or measure is None or tally is None or not chunk.missing or chunk.missing[-1] != job.variant:
            return  # another revision took over meanwhile
        chunk.missing.pop()
        chunk.values[job.variant] = (
            measure.values(job.variant, scores, chunk.form, chunk.truths)
            if chunk.labels
            else measure.note(job.variant, chunk.start, scores)
        )
        if chunk.missing:
            return
        self._chunk = None
        if not chunk.labels:
            tally.add_held_out(chunk.values)
            return
        # Nothing can be said of the same items by any variant.
        said = ~np.isnan(chunk.values[job.variant])
        values = {name: found[said] for name, found in chunk.values.items()}
        tally.add_labels(values, measure.promised(chunk.truths)[said])
        self._until_judged -= len(chunk.labels)
        if self._until_judged <= 0:
            self._until_judged = JUDGE_EVERY
            self._judge(tally.losses())

    def _judge(self, found: Mapping[str, float]) -> None:
        """Take over losses that have moved by enough."""
        before = self.losses
        self.losses = {
            name: before[name] if abs(before.get(name, math.inf) - loss) < _SAME_PERMILLE else loss
            for name, loss in found.items()
        }

    def drop(self, job: AccuracyJob) -> None:
        """Give up what a job was for, which failed: it would fail again."""
        if job.purpose is JobPurpose.SHADOWS:
            self.shadows.kept = None
            return
        chunk = self._chunk
        if chunk is not None and chunk.missing and chunk.missing[-1] == job.variant:
            self.outcomes[FAILED] += len(chunk.labels)
            self._chunk = None

    def _next_measured(self, revision: ServedRevision, measure: Measure, count: int) -> _Chunk | None:
        """The next nodes of the measure; None: all were taken."""
        start = self._measured
        if start >= len(measure.nodes):
            return None
        self._measured += count
        return _Chunk([], measure.nodes[start : start + count], _variants_of(revision), start)

    def _next_chunk(self, revision: ServedRevision, count: int) -> _Chunk | None:
        """The next labels, of so many nodes, as far as the revision knows their nodes and what they say, which were
        another's perhaps, and its graph has not come to know what they say."""
        taken, live = self._waiting, revision.task.live_labels
        size = max(1, count // live.ids_per_item)
        labels = [taken.popleft() for _ in range(min(size, len(taken)))]
        labels = self._kept(LabelProblem.UNKNOWN_NODE, labels, [len(item) == live.ids_per_item for item, _ in labels])
        found = revision.graph.naming.look_up([id_ for item, _ in labels for id_ in item])
        items = found.reshape(-1, live.ids_per_item)
        is_there = np.asarray((items >= 0).all(axis=1))
        labels, items = self._kept(LabelProblem.UNKNOWN_NODE, labels, [*is_there]), items[is_there]
        refused = live.refused(items, [label for _, label in labels])
        is_some = np.array([place not in refused for place in range(len(labels))], bool)
        self.outcomes.update(problem for problem, _ in refused.values())
        labels, items = [label for place, label in enumerate(labels) if is_some[place]], items[is_some]
        is_new = ~live.are_known(items, [label for _, label in labels])
        labels, items = self._kept(LabelProblem.KNOWN_LINK, labels, [*is_new]), items[is_new]
        if not labels:
            return None
        nodes, form = live.asked(items)
        truths = live.truths([label for _, label in labels])
        return _Chunk(labels, nodes, _variants_of(revision), form=form, truths=truths)

    def _kept(
        self, problem: LabelProblem, labels: list[tuple[Item, GivenLabel]], are_kept: Sequence[bool]
    ) -> list[tuple[Item, GivenLabel]]:
        """Labels that are kept; the others are counted."""
        kept = [label for label, is_kept in zip(labels, are_kept, strict=True) if is_kept]
        self.outcomes[problem] += len(labels) - len(kept)
        return kept


def _variants_of(revision: ServedRevision) -> list[str]:
    return [variant.name for variant in revision.answering.variants]
