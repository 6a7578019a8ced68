"""The profile: accuracy and latency of every variant, measured before it serves, and which of them are published.

The static profiling of Dynamic GNN inference as-a-service, section 4.4. Measured by the very function that answers
requests, on validation nodes.

Variants that the manifest asks for are published always. A variant that a family adds unasked is only if no other
variant that can answer all that it can is at least as accurate and as fast.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from gnnserve_api.domination import beats
from gnnserve_api.errors import InputError
from gnnserve_api.families import point_of
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.profile import CascadeProfile, LatencyProfile, NewNodesLatency, Profile, VariantProfile
from gnnserve_api.files.repository import VariantManifest
from gnnserve_worker.inference.batch import Infer, PairsOf, infer_batch, infer_each, warm_up, with_cascades
from gnnserve_worker.inference.latency import measure_latencies, measure_new_nodes, measured_with_new_nodes
from gnnserve_worker.models.network import decisive_scores
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.tasks.deciding import Decides, each_alone, in_turn
from gnnserve_worker.tasks.generated import Judge, OutputsOf, SplitJudgements

BATCH_SEEDS = (1, 32, 1024)
"""Batch sizes that are measured. 1 and 32 are typical of requests; 1024 is the batch of Dynamic GNN inference
as-a-service, section 4."""
BUDGET_S = 3.0
"""Time for one batch size over all variants, in seconds; the minimum of `ROUNDS` is done even if it takes longer."""
BUDGET_VARIABLE = "GNNSERVE_PROFILE_SECONDS"
"""The variable of the environment with another such time: longer on a machine that is never quiet, shorter where the
latencies are not read."""
ROUNDS = (5, 2000)
"""Fewest and most measurements of a variant."""
_NEW_NODES_SHARE = 0.2
"""Share of a batch size's time that the same size of new nodes gets: their times are a first guess, since what requests
bring is not known here."""
NEW_NODES_ROUNDS = (3, 500)
"""Fewest and most measurements of a variant over new nodes."""
_SIZE_PARTS = round(1 / _NEW_NODES_SHARE)
"""Parts that a batch size counts as in reports, where the same size of new nodes is one, and so is the accuracy of a
variant: the time left is told from the parts that are done."""
_EVALUATION_SEEDS = 1024


@dataclass(frozen=True, slots=True)
class GeneratedVariant:
    """A variant whose table and weights have been written."""

    variant: VariantManifest
    factor: int
    size_bytes: int
    """Size of the file of weights."""
    judged: VariantManifest | None = None
    """Its copy that is judged, whose rows hold nothing that is held out; None: itself."""


@dataclass(frozen=True, slots=True)
class FittedCascade:
    """A cascade that knows when its first stage is sure enough."""

    manifest: CascadeManifest
    passed_on: float
    """Share of the validation nodes that the first stage passes on."""


def profile_budget_s(environ: Mapping[str, str] = os.environ) -> float:
    given = environ.get(BUDGET_VARIABLE, str(BUDGET_S))
    try:
        budget_s = float(given)
    except ValueError:
        budget_s = math.nan
    if not 0 <= budget_s < math.inf:
        raise InputError(BUDGET_VARIABLE, f"{given!r} is not a number of seconds", "give a number from 0, or unset it")
    return budget_s


def measure_profile(
    revision: LoadedRevision,
    generated: Sequence[GeneratedVariant],
    report: Callable[[int, int], None],
    judge: Judge,
    budget_s: float = BUDGET_S,
    cascades: Sequence[FittedCascade] = (),
    verdicts: dict[str, SplitJudgements] | None = None,
    judged: LoadedRevision | None = None,
) -> Profile:
    """Measure every variant of a loaded revision.

    `generated` are the variants of the revision, in its order; `cascades` consist of these.
    `report(done, total)` counts batch sizes and variants, by the time that they are given.
    `budget_s`: for each batch size. `verdicts` is filled with what the judge found of each variant; None: nothing reads
    them. `judged`: the revision as variants are judged; None: as it is served.
    """
    verdicts = {} if verdicts is None else verdicts
    manifests = [cascade.manifest for cascade in cascades]
    decides = judge.decides({known.variant.name: known.variant for known in generated}, manifests)
    subject = _Subject.of(revision, manifests, decides)
    judged_subject = _Subject.of(revision if judged is None else judged, manifests, decides, each_alone)
    latency_parts = _SIZE_PARTS * (len(BATCH_SEEDS) + 1)
    before_accuracy = latency_parts + len(BATCH_SEEDS)
    total = before_accuracy + len(subject.names)
    warm_up(revision)
    latencies: dict[str, list[LatencyProfile]] = {name: [] for name in subject.names}
    for done, seeds in enumerate(BATCH_SEEDS):
        report(_SIZE_PARTS * done, total)
        for name, point in _measure_latencies(subject, revision.labels.splits.validation, seeds, budget_s).items():
            latencies[name].append(point)
    report(_SIZE_PARTS * len(BATCH_SEEDS), total)
    test = revision.labels.splits.test
    on_test = _measure_latencies(subject, test, BATCH_SEEDS[-1], budget_s) if len(test) else {}
    new_nodes: dict[str, list[NewNodesLatency]] = {name: [] for name in subject.names}
    for done, seeds in enumerate(BATCH_SEEDS, start=latency_parts):
        report(done, total)
        for name, of_new in _measure_new_nodes(subject, revision.labels.splits.validation, seeds, budget_s).items():
            new_nodes[name].append(of_new)
    variants: list[VariantProfile] = []
    for done, known in enumerate(generated, start=before_accuracy):
        report(done, total)
        made, name = known.variant, known.variant.name
        variant = revision.variants[name]
        verdict = verdicts[name] = judge.judge(_outputs_of(judged_subject, name, made.thresholds))
        variants.append(
            VariantProfile(
                name=name,
                factor=known.factor,
                table=made.table,
                columns=made.columns,
                storage=variant.table.storage,
                projected=variant.table.projected,
                compute=made.compute,
                validation_accuracy=verdict.validation.accuracy,
                test_accuracy=None if verdict.test is None else verdict.test.accuracy,
                validation_figures=verdict.validation.figures,
                test_figures=None if verdict.test is None else verdict.test.figures,
                latency=tuple(latencies[name]),
                test_latency=on_test.get(name),
                size_bytes=known.size_bytes,
                memory_bytes=known.size_bytes + _read_bytes(variant),
                family=made.family,
                fanouts=made.fanouts,
                new_nodes=tuple(new_nodes[name]),
            )
        )
    stages = {made.name: made for made in variants}
    shared = {known.variant.name: known.variant.weights for known in generated}
    for done, cascade in enumerate(cascades, start=before_accuracy + len(generated)):
        report(done, total)
        made_of = cascade.manifest
        outputs_of = _outputs_of(judged_subject, made_of.name, None)
        verdict = verdicts[made_of.name] = judge.over(made_of, decides).judge(outputs_of)
        variants.append(
            msgspec.structs.replace(
                _memory_of_both(stages[made_of.first], stages[made_of.then], shared),
                name=made_of.name,
                family=made_of.family,
                factor=1,
                fanouts=(),
                cascade=CascadeProfile(first=made_of.first, then=made_of.then, passed_on=cascade.passed_on),
                validation_accuracy=verdict.validation.accuracy,
                test_accuracy=None if verdict.test is None else verdict.test.accuracy,
                validation_figures=verdict.validation.figures,
                test_figures=None if verdict.test is None else verdict.test.figures,
                latency=tuple(latencies[made_of.name]),
                test_latency=on_test.get(made_of.name),
                new_nodes=tuple(new_nodes[made_of.name]),
            )
        )
    report(total, total)
    return Profile(
        metric=judge.metric,
        machine=_machine(),
        threads=thread_count(),
        validation_nodes=len(revision.labels.splits.validation),
        test_nodes=len(test),
        variants=tuple(variants),
    )


def _read_bytes(variant: LoadedVariant) -> int:
    """Bytes of the columns that the variant reads from its table, over all nodes."""
    table = variant.table
    # Over several types a node has as many rows as relations read it, and one of itself.
    rows = len(table.rows.values) + (0 if table.own is table.rows else len(table.own.values))
    return rows * variant.row_bytes


def _memory_of_both(first: VariantProfile, then: VariantProfile, weights: Mapping[str, str]) -> VariantProfile:
    """The first stage's profile, with the weights and the memory of both; what they share counts once."""
    size = first.size_bytes + (0 if weights[first.name] == weights[then.name] else then.size_bytes)
    read = [stage.memory_bytes - stage.size_bytes for stage in (first, then)]
    rows = max(read) if first.table == then.table else sum(read)
    return msgspec.structs.replace(first, size_bytes=size, memory_bytes=size + rows)


@dataclass(frozen=True, slots=True)
class _Subject:
    """Revision that is measured, as it will be served."""

    revision: LoadedRevision
    names: tuple[str, ...]
    """Names of variants and cascades, in the order of the profile."""
    able: tuple[str, ...]
    """Names of those that can answer requests with an overlay."""
    infer: Infer
    infer_each: Infer

    @staticmethod
    def of(
        revision: LoadedRevision, manifests: Sequence[CascadeManifest], decides: Decides, pairs_of: PairsOf = in_turn
    ) -> _Subject:
        able = measured_with_new_nodes(revision)
        return _Subject(
            revision,
            (*revision.variants, *(manifest.name for manifest in manifests)),
            (*able, *(manifest.name for manifest in manifests if {manifest.first, manifest.then} <= {*able})),
            with_cascades(partial(infer_batch, revision), manifests, decides, pairs_of),
            with_cascades(partial(infer_each, revision), manifests, decides, pairs_of),
        )


def _measure_latencies(subject: _Subject, nodes: np.ndarray, seeds: int, budget_s: float) -> dict[str, LatencyProfile]:
    infer = partial(subject.infer_each, with_embeddings=False)
    return measure_latencies(infer, subject.names, nodes, seeds, budget_s=budget_s, rounds=ROUNDS)


def _measure_new_nodes(subject: _Subject, nodes: np.ndarray, seeds: int, budget_s: float) -> dict[str, NewNodesLatency]:
    share_s = _NEW_NODES_SHARE * budget_s
    return measure_new_nodes(
        subject.infer_each, subject.able, subject.revision, nodes, seeds, budget_s=share_s, rounds=NEW_NODES_ROUNDS
    )


def calibrated(revision: LoadedRevision, generated: Sequence[GeneratedVariant], judge: Judge) -> list[GeneratedVariant]:
    """Each variant with what makes answers of its outputs: thresholds, or a curve to probabilities."""
    infer = partial(infer_batch, revision)
    return [
        replace(made, variant=judge.calibrate(made.variant, partial(_scores_of, infer, made.variant.name)))
        for made in generated
    ]


def scores_of(revision: LoadedRevision, variant: str, nodes: np.ndarray) -> np.ndarray:
    """Scores of nodes by a variant that is no cascade, as accuracies are measured."""
    return _scores_of(partial(infer_batch, revision), variant, nodes)


def _outputs_of(subject: _Subject, variant: str, thresholds: Sequence[float] | None) -> OutputsOf:
    return lambda nodes: decisive_scores(_scores_of(subject.infer, variant, nodes), thresholds)


def _scores_of(infer: Infer, variant: str, nodes: np.ndarray) -> np.ndarray:
    scores = [
        infer(variant, nodes[start : start + _EVALUATION_SEEDS], key=start, with_embeddings=False).scores
        for start in range(0, len(nodes), _EVALUATION_SEEDS)
    ]
    found = np.concatenate(scores)
    if not np.isfinite(found).all():
        raise InputError(
            "spec.graph.normalization",
            f"variant {variant} gives scores that are not finite, as features of very different or large size make it",
            "use Auto or Standardize, or scale the features in the source; a smaller learningRate may help too",
        )
    return found


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


# --- what is published of it


def worth_keeping(variants: Sequence[VariantProfile]) -> tuple[VariantProfile, ...]:
    """The variants to publish, in the given order. All must have been measured at the same batch sizes. Stages of
    cascades stay, since these answer by them."""
    stages = {stage for variant in variants if (found := variant.cascade) for stage in (found.first, found.then)}
    return tuple(
        variant
        for variant in variants
        if point_of(variant).is_asked_for
        or variant.name in stages
        or not any(dominates(other, variant) for other in variants)
    )


def dominates(one: VariantProfile, other: VariantProfile) -> bool:
    """Whether `one` can answer all that the other can, is at least as accurate, and as fast at every batch size, and
    strictly better in one of these."""
    can_stand_in = point_of(one).capabilities.cover(point_of(other).capabilities)
    return can_stand_in and beats(one, other) and not beats(other, one)
