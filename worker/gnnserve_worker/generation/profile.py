"""The profile: accuracy and latency of every variant, measured before it serves.

The static profiling of Dynamic GNN inference as-a-service, section 4.4. Measured by the very function that answers
requests, on validation nodes.
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

from gnnserve_api.errors import InputError
from gnnserve_api.profile import LatencyProfile, Metric, Profile, VariantProfile
from gnnserve_api.repository import VariantManifest
from gnnserve_worker.generation.scores import evaluate, metric_of
from gnnserve_worker.generation.thresholds import fit_thresholds
from gnnserve_worker.inference.batch import infer_batch, infer_each, warm_up
from gnnserve_worker.inference.latency import measure_latencies
from gnnserve_worker.inference.thresholds import decisive_scores
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.repository.loaded import LoadedRevision, LoadedVariant

BATCH_SEEDS = (1, 32, 1024)
"""Batch sizes that are measured. 1 and 32 are typical of requests; 1024 is the batch of Dynamic GNN inference
as-a-service, section 4."""
BUDGET_S = 3.0
"""Time for one batch size over all variants, in seconds; the minimum of `_ROUNDS` is done even if it takes longer."""
BUDGET_VARIABLE = "GNNSERVE_PROFILE_SECONDS"
"""The variable of the environment with another such time: longer on a machine that is never quiet, shorter where the
latencies are not read."""
_ROUNDS = (5, 2000)
_EVALUATION_SEEDS = 1024


@dataclass(frozen=True, slots=True)
class GeneratedVariant:
    """A variant whose table and weights have been written."""

    variant: VariantManifest
    factor: int
    size_bytes: int
    """Size of the file of weights."""


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
    metric: Metric | None = None,
    budget_s: float = BUDGET_S,
) -> Profile:
    """Measure every variant of a loaded revision.

    `generated` are the variants of the revision, in its order. `report(done, total)` counts batch sizes and variants.
    `metric` None: accuracy, or micro F1 where a node may have several classes. `budget_s`: for each batch size.
    """
    metric = metric or metric_of(revision.multi_label)
    total = len(BATCH_SEEDS) + 1 + len(revision.variants)
    warm_up(revision)
    latencies: dict[str, list[LatencyProfile]] = {name: [] for name in revision.variants}
    for done, seeds in enumerate(BATCH_SEEDS):
        report(done, total)
        for name, point in _measure_latencies(revision, revision.splits.validation, seeds, budget_s).items():
            latencies[name].append(point)
    report(len(BATCH_SEEDS), total)
    test = revision.splits.test
    on_test = _measure_latencies(revision, test, BATCH_SEEDS[-1], budget_s) if len(test) else {}
    variants = []
    for done, known in enumerate(generated, start=len(BATCH_SEEDS) + 1):
        report(done, total)
        made, name = known.variant, known.variant.name
        variant = revision.variants[name]
        variants.append(
            VariantProfile(
                name=name,
                factor=known.factor,
                table=made.table,
                columns=made.columns,
                storage=variant.table.storage,
                projected=variant.table.projected,
                compute=made.compute,
                validation_accuracy=_measure_accuracy(revision, made, revision.splits.validation, metric),
                test_accuracy=_measure_accuracy(revision, made, test, metric) if len(test) else None,
                latency=tuple(latencies[name]),
                test_latency=on_test.get(name),
                size_bytes=known.size_bytes,
                memory_bytes=known.size_bytes + _read_bytes(variant),
                family=made.family,
                fanouts=made.fanouts,
            )
        )
    report(total, total)
    return Profile(
        metric=metric,
        machine=_machine(),
        threads=thread_count(),
        validation_nodes=len(revision.splits.validation),
        test_nodes=len(test),
        variants=tuple(variants),
    )


def _read_bytes(variant: LoadedVariant) -> int:
    """Bytes of the columns that the variant reads from its table, over all nodes."""
    table = variant.table
    matrices = 1 if table.own is table.rows else 2
    return matrices * table.nodes * table.format.row_bytes(variant.columns)


def _measure_latencies(
    revision: LoadedRevision, nodes: np.ndarray, seeds: int, budget_s: float
) -> dict[str, LatencyProfile]:
    infer = partial(infer_each, revision, with_embeddings=False)
    return measure_latencies(infer, revision.variants, nodes, seeds, budget_s=budget_s, rounds=_ROUNDS)


def with_thresholds(revision: LoadedRevision, generated: Sequence[GeneratedVariant]) -> list[GeneratedVariant]:
    """Each variant with the thresholds that suit its scores of the validation nodes."""
    nodes = revision.splits.validation
    found = []
    for made in generated:
        thresholds = fit_thresholds(_scores_of(revision, made.variant.name, nodes), revision.labels[nodes])
        found.append(replace(made, variant=msgspec.structs.replace(made.variant, thresholds=thresholds)))
    return found


def _measure_accuracy(revision: LoadedRevision, variant: VariantManifest, nodes: np.ndarray, metric: Metric) -> float:
    scores = decisive_scores(_scores_of(revision, variant.name, nodes), variant.thresholds)
    return evaluate(scores, revision.labels[nodes], metric)


def _scores_of(revision: LoadedRevision, variant: str, nodes: np.ndarray) -> np.ndarray:
    scores = [
        infer_batch(
            revision, variant, nodes[start : start + _EVALUATION_SEEDS], key=start, with_embeddings=False
        ).scores
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
