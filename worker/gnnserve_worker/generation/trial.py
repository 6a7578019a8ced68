"""Finds the scope and the normalization that suit a graph, and whether it has columns too many: short trainings are
compared by their validation scores."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.factors import ColumnsTrial
from gnnserve_api.intervals import difference_interval
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_api.spec.scoring import MetricChoice
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.epochs import expected_epochs
from gnnserve_worker.generation.train import train_on_rows
from gnnserve_worker.generation.training_set import TrainingSet, keep_columns, model_rows, training_set
from gnnserve_worker.graph.store import Features, GraphData
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tasks.generation import task_of

_STEPS, _EPOCHS = 150, 3
"""Each candidate is trained for the longer of the two. That suffices for a comparison."""
_TRIAL_DIVISOR = 4
"""Part of the epochs of a training that a trial of columns takes at most: what is saved are whole trainings."""
_MOST_EDGES = 2_000_000
"""Most edges of a graph that is compared unasked. For larger ones there is `graph inspect --try`."""


class TrialCandidate(msgspec.Struct, frozen=True, rename="camel"):
    scope: Scope
    normalization: Normalization
    validation: float
    """Validation score of the best epoch."""


def try_candidates(data: GraphData, spec: GNNServiceSpec, progress: ProgressListener) -> tuple[TrialCandidate, ...]:
    """Train every candidate shortly and sort them, the best first; ties stay in the order of the enums. The seed of the
    spec is used for all candidates."""
    return _try(data, spec, [(scope, method) for scope in Scope for method in _methods(data)], progress)


def advise_scope(data: TrainingSet, spec: GNNServiceSpec, progress: ProgressListener) -> str | None:
    """Advise transductive training where short trainings show a significant loss by inductive training, which sees few
    edges of the data.

    None: there is no such loss, or the comparison would take too long.
    """
    scope, method = spec.model.training.scope, spec.graph.normalization
    if data.graph.edges > _MOST_EDGES or not len(data.splits.validation):
        return None
    best, other = _try(data.data, spec, [(scope, method) for scope in Scope], progress)
    nodes = len(data.splits.validation)
    if best.scope is scope or difference_interval(best.validation, nodes, other.validation, nodes).contains(0):
        return None
    return (
        f"inductive training sees {data.seen_share:.1%} of the edges; in short trainings transductive training reached "
        f"{best.validation:.3f} on validation nodes and inductive {other.validation:.3f}: where all nodes are known "
        "when it is trained, use spec.model.training.scope: Transductive"
    )


def try_columns(
    data: TrainingSet, features: Features, model: Model, columns: np.ndarray, factor: int, progress: ProgressListener
) -> ColumnsTrial:
    """Train the network of all columns and that of some shortly, and say what each reached."""
    steps_per_epoch = -(-len(data.splits.train) // model.training.batch_size)
    expected = expected_epochs(model.training.epochs, steps_per_epoch)
    epochs = max(1, min(expected // _TRIAL_DIVISOR, -(-_STEPS // steps_per_epoch)))
    short = _shortly(model, epochs)
    reached = []
    for done, read in enumerate((features, keep_columns(features, columns))):
        progress(Progress("try", done, 2, f"{read.shape[1]:,} of {features.shape[1]:,} columns"))
        reached.append(train_on_rows(data, read, short).run.score)
    progress(Progress("try", 2, 2))
    return ColumnsTrial(factor, epochs, all_columns=reached[0], fewer_columns=reached[1])


def _try(
    data: GraphData, spec: GNNServiceSpec, wanted: list[tuple[Scope, Normalization]], progress: ProgressListener
) -> tuple[TrialCandidate, ...]:
    model = spec.model
    # By the metric of the graph itself, whichever the manifest chooses.
    variants = spec.variants.model_copy(update={"metric": MetricChoice.AUTO})
    data, problem, _ = task_of(spec.model_copy(update={"variants": variants})).pose(data)
    if not problem.compares_shortly:
        raise InputError(
            "--try", "compares short trainings by the share of nodes that they get right, and this task has none",
            "leave it out",
        )  # fmt: skip
    steps_per_epoch = -(-len(data.splits.train) // model.training.batch_size)
    epochs = max(-(-_STEPS // steps_per_epoch), _EPOCHS)
    short = _shortly(model, epochs)
    found = []
    for done, (scope, method) in enumerate(wanted):
        progress(Progress("try", done, len(wanted), f"{scope}, {method}"))
        seen = training_set(data, problem, spec.network(len(data.classes)).classes, scope, method)
        trained_on = model_rows(short, seen, seen.normalized).trained
        found.append(TrialCandidate(scope, method, train_on_rows(seen, trained_on, short).run.score))
    progress(Progress("try", len(wanted), len(wanted)))
    return tuple(sorted(found, key=lambda candidate: -candidate.validation))


def _methods(data: GraphData) -> Iterator[Normalization]:
    for method in Normalization:
        is_for_sparse = method is not Normalization.STANDARDIZE
        if method is not Normalization.AUTO and (is_for_sparse or isinstance(data.features, np.ndarray)):
            yield method


def _shortly(model: Model, epochs: int) -> Model:
    training = model.training.model_copy(update={"epochs": epochs})
    return model.model_copy(update={"training": training, "checkpoint": None})
