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
from typing import assert_never

import numpy as np

from gnnserve_api.families import point_of
from gnnserve_api.live_accuracy import InputDrift, LabelProblem, VariantAccuracy
from gnnserve_worker.asking.naming import AnyId
from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.accuracy.inputs import InputMeans, input_means
from gnnserve_worker.serving.accuracy.tally import Tally, values_of
from gnnserve_worker.serving.idle_jobs import Job, nodes_of_job
from gnnserve_worker.serving.requests import Lane
from gnnserve_worker.tasks.served_labels import GivenLabel


@dataclass(frozen=True, slots=True)
class Sample:
    """Nodes of an answer, and what was decided of them."""

    variant: str
    """The variant that answered."""
    nodes: np.ndarray
    """int64, positions in the graph."""
    decided: np.ndarray
    """int64 [nodes], or uint8 [nodes, classes] where nodes may have several labels."""


class Shadows:
    def __init__(self) -> None:
        self.permille = 0
        """Most of the time, in permille, that they may take; 0: none are made."""
        self.sample: Sample | None = None
        """The answer that is to be computed again."""

    @property
    def wants_answer(self) -> bool:
        return self.permille > 0 and self.sample is None

    def take(self, revision: ServedRevision, variant: str, nodes: np.ndarray, scores: np.ndarray) -> None:
        """Keep an answer's nodes and what was decided of them, by copies."""
        self.sample = Sample(variant, nodes.copy(), revision.task.labels.decide(variant, scores))


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

TimedNode = tuple[AnyId, datetime]


class Purpose(StrEnum):
    """What a job is for."""

    LABELS = "labels"
    """A variant is evaluated on labelled nodes."""
    SHADOWS = "shadows"
    """The most accurate variant computes an answer again."""


@dataclass(slots=True)
class _Chunk:
    """Labels that are being evaluated, variant by variant."""

    labels: list[tuple[AnyId, GivenLabel]]
    """Labels that clients sent; empty: these are held-out nodes."""
    nodes: np.ndarray
    """int64, positions in the graph."""
    truths: np.ndarray
    missing: list[str]
    """Variants that are still to be evaluated."""
    values: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyJob(Job):
    purpose: Purpose


class AccuracyWatch:
    what = "accuracy in service could not be evaluated"

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` tells the engine that there is something to compute."""
        self._wake = wake
        self._waiting: deque[tuple[AnyId, GivenLabel]] = deque()
        self._chunk: _Chunk | None = None
        self._seen: dict[TimedNode, None] = {}
        """Nodes and times of the last labels, the oldest first."""
        self._revision: ServedRevision | None = None
        self._tally: Tally | None = None
        self.outcomes: Counter[str] = Counter()
        """Labels by what became of them: accepted, or why not."""
        self.losses: Mapping[str, float] = {}
        """Losses in permille by which tolerances are judged, in place of the profile's; empty where labels do not say
        otherwise."""
        self._until_judged = JUDGE_EVERY
        """Labels until the next look at them."""
        self._held_out = 0
        """Held-out nodes of the revision that were taken; they come before the first label is evaluated."""
        self.shadows = Shadows()
        self._inputs: InputMeans | None = None
        """Means of the features that requests bring; None: none was brought yet, or nothing can be compared."""
        self._has_inputs = False
        """Whether the first request that brings features has come."""
        self.seconds = dict.fromkeys(Purpose, 0.0)
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
        """The most accurate variant by the profile of the served revision, of which there must be one."""
        assert self._tally is not None  # noqa: S101
        return self._tally.reference

    def figures(self) -> tuple[VariantAccuracy, ...]:
        """The variants of the served revision in service; empty before there is one."""
        return () if self._tally is None else self._tally.figures()

    def observed(self) -> tuple[VariantAccuracy, ...]:
        """Those of the variants of which anything is known in service."""
        return tuple(figure for figure in self.figures() if figure.labels or figure.agreement)

    def follow(self, revision: ServedRevision, shadow_permille: int) -> None:
        """Evaluate the variants of this revision from now on. Another one's figures begin anew. `shadow_permille`: most
        of the time that shadows may take."""
        self.shadows.permille = shadow_permille
        if revision is self._revision:
            return
        self._revision, self._tally = revision, Tally(revision.manifest.profile)
        self.losses, self._until_judged = {}, JUDGE_EVERY
        self._inputs, self._has_inputs = None, False
        self._held_out = 0
        self.shadows.sample = None
        if self._chunk is not None:
            self._waiting.extendleft(reversed(self._chunk.labels))
            self._chunk = None

    def forget_revision(self) -> None:
        """The revision answers no more; labels wait for the next one."""
        self._revision = self._tally = self.shadows.sample = None

    def was_seen(self, node: AnyId, time: datetime) -> bool:
        return (node, time) in self._seen

    def take(self, labels: Sequence[tuple[AnyId, GivenLabel]], seen: Iterable[TimedNode]) -> None:
        """Take checked labels, as many as there is room for. `seen`: nodes and times to remember."""
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

    def note_answer(self, lane: Lane, variant: str, nodes: np.ndarray, scores: np.ndarray) -> None:
        """Keep some nodes of an answer, to compute them again. `scores`: float32 [nodes, classes]."""
        if lane.revision is self._revision and self.shadows.wants_answer:
            count = nodes_of_job(lane.chooser.costs, lane.chooser.indices[self.reference])
            self.shadows.take(lane.revision, variant, nodes[:count], scores[:count])
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
        costs, indices = lane.chooser.costs, lane.chooser.indices
        while self._chunk is None and self._waiting:
            count = min(nodes_of_job(costs, index) for index in indices.values())
            count = min(count, _MOST_NODES)
            self._chunk = self._next_held_out(lane.revision, count) or self._next_chunk(lane.revision, count)
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
            purpose=Purpose.LABELS,
        )

    def _next_shadow(self, lane: Lane) -> AccuracyJob | None:
        sample, permille = self.shadows.sample, self.shadows.permille
        if sample is None or not permille:
            return None
        name = self.reference
        expected_ms = lane.chooser.costs.compute_ms(lane.chooser.indices[name], len(sample.nodes))
        return AccuracyJob(name, sample.nodes.copy(), expected_ms, permille, permille, purpose=Purpose.SHADOWS)

    def finish(self, job: AccuracyJob, inference: Inference, took_ms: float) -> None:
        """Count what a job computed."""
        scores = inference.scores
        self.seconds[job.purpose] += took_ms / 1000
        match job.purpose:
            case Purpose.LABELS:
                self._finish_labels(job, scores)
            case Purpose.SHADOWS:
                self._finish_shadow(job, scores)
            case _:
                assert_never(job.purpose)

    def _finish_shadow(self, job: AccuracyJob, scores: np.ndarray) -> None:
        sample, self.shadows.sample = self.shadows.sample, None
        if sample is not None and self._revision is not None and self._tally is not None:
            decisive = self._revision.task.decisive_scores(job.variant, scores)
            self._tally.add_agreement(sample.variant, values_of(decisive, sample.decided))

    def _finish_labels(self, job: AccuracyJob, scores: np.ndarray) -> None:
        chunk, revision, tally = self._chunk, self._revision, self._tally
        if chunk is None or revision is None or tally is None or not chunk.missing or chunk.missing[-1] != job.variant:
            return  # another revision took over meanwhile
        chunk.missing.pop()
        chunk.values[job.variant] = values_of(revision.task.decisive_scores(job.variant, scores), chunk.truths)
        if chunk.missing:
            return
        self._chunk = None
        if not chunk.labels:
            tally.add_held_out(chunk.values)
        else:
            tally.add_labels(chunk.values)
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
        if job.purpose is Purpose.SHADOWS:
            self.shadows.sample = None
            return
        chunk = self._chunk
        if chunk is not None and chunk.missing and chunk.missing[-1] == job.variant:
            self.outcomes[FAILED] += len(chunk.labels)
            self._chunk = None

    def _next_held_out(self, revision: ServedRevision, count: int) -> _Chunk | None:
        """The next held-out nodes; None: all were taken, or the profile can be compared with."""
        held_out, start = revision.task.labels.held_out, self._held_out
        if start >= len(held_out.nodes):
            return None
        self._held_out += count
        part = slice(start, start + count)
        return _Chunk([], held_out.nodes[part], held_out.truths[part], _variants_of(revision))

    def _next_chunk(self, revision: ServedRevision, count: int) -> _Chunk | None:
        """The next labels, as far as the revision knows their nodes and classes, which were another's perhaps."""
        labels = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        nodes = revision.graph.naming.look_up([node for node, _ in labels])
        truths, is_known = revision.task.labels.truths([label for _, label in labels])
        kept = np.flatnonzero((nodes >= 0) & is_known)
        self.outcomes[LabelProblem.UNKNOWN_NODE] += int(np.count_nonzero(nodes < 0))
        self.outcomes[LabelProblem.UNKNOWN_LABEL] += int(np.count_nonzero((nodes >= 0) & ~is_known))
        if not len(kept):
            return None
        return _Chunk([labels[i] for i in kept], nodes[kept], truths[kept], _variants_of(revision))


def _variants_of(revision: ServedRevision) -> list[str]:
    variants = revision.manifest.profile.variants
    return [variant.name for variant in variants if point_of(variant).capabilities.cover(revision.changes.needed)]
