"""Decides which of the listed factors networks are made for, with `spec.variants.pruning.choice: Auto`.

A pruned variant loses accuracy to be faster than the network of all columns. A projected one is faster and loses none,
so where its rows are narrower, as over thousands of columns of words, there is nothing to gain from training another
network. That is predicted from a model of this machine's latencies; one short trial looks whether fewer columns are
more accurate here, which would be a reason of its own. Where the model may err, a factor stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gnnserve_api.families import point_of
from gnnserve_api.files.factors import ChosenFactors, ColumnsTrial
from gnnserve_api.intervals import difference_interval
from gnnserve_api.spec.searched import Round
from gnnserve_api.variants import columns_of, variant_name
from gnnserve_api.wording import in_words
from gnnserve_worker.generation.search.candidates import Candidate, Shapes, candidates_of
from gnnserve_worker.generation.search.latency_model import Degrees, LatencyModel
from gnnserve_worker.generation.search.training import predicted

Milliseconds = Mapping[str, Mapping[int, float]]
"""Predicted medians, by name of the variant and seeds."""
TryColumns = Callable[[int], ColumnsTrial | None]
"""A short trial of the network of a factor beside that of all columns; None: there is none, as of given weights."""


@dataclass(frozen=True, slots=True)
class SlowFactor:
    factor: int
    columns: int
    least: float
    """What its latency is predicted to be at the batch size that suits it best, in those of `projected`."""
    most: float


def choose_factors(shapes: Shapes, model: LatencyModel, columns: int, try_columns: TryColumns) -> ChosenFactors:
    """Which of the spec's factors to leave out. `columns`: of the rows that the model reads."""
    slow = slow_factors(shapes, model, columns)
    if not slow:
        why = "every factor is trained: none is predicted to be slower than projected at every batch size"
        return ChosenFactors((), why, model.error)
    trial = try_columns(slow[0].factor)
    if trial is not None and _is_more_accurate(trial, shapes):
        return ChosenFactors((), _says_kept(slow, trial), model.error, trial)
    left_out = tuple(one.factor for one in slow)
    return ChosenFactors(
        left_out, _says_left_out(slow, shapes.network.projected_columns, model.error, trial), model.error, trial
    )


def slow_factors(shapes: Shapes, model: LatencyModel, columns: int) -> list[SlowFactor]:
    """Factors that are predicted to be slower than `projected`, ascending."""
    degrees = Degrees.of(shapes.graph)
    listed = candidates_of(shapes, Round(shapes.spec.variants.model_copy(update={"one_row": (), "channels": ()})))
    predicted_ms = {one.manifest.name: predicted(one, model, degrees) for one in listed}
    found = (_slow(factor, columns, listed, predicted_ms) for factor in shapes.spec.variants.optional_factors)
    return [one for one in found if one is not None and one.least > 1 + model.error]


def _slow(factor: int, columns: int, listed: Sequence[Candidate], predicted_ms: Milliseconds) -> SlowFactor | None:
    """None: there is no projected variant in one of its storages."""
    projected = {one.storage: one.manifest.name for one in listed if one.is_product and _is_whole(one)}
    pruned = [one for one in listed if one.trains == variant_name(factor) and point_of(one.manifest).spans_widths]
    if not pruned or any(one.storage not in projected for one in pruned):
        return None
    ratios = [
        p50_ms / predicted_ms[projected[one.storage]][seeds]
        for one in pruned
        for seeds, p50_ms in predicted_ms[one.manifest.name].items()
    ]
    return SlowFactor(factor, columns_of(columns, factor), min(ratios), max(ratios))


def _is_whole(candidate: Candidate) -> bool:
    """Whether it samples as many neighbours as the model, and computes all of its layers."""
    network = candidate.manifest.network
    return candidate.manifest.fanouts == network.fanouts and len(network.fanouts) == network.layers


def _is_more_accurate(trial: ColumnsTrial, shapes: Shapes) -> bool:
    """Whether the network of fewer columns is told to be better."""
    nodes = shapes.validation_nodes
    return difference_interval(trial.fewer_columns, nodes, trial.all_columns, nodes).low > 0


# --- words


def _says_left_out(slow: Sequence[SlowFactor], width: int, error: float, trial: ColumnsTrial | None) -> str:
    names = [variant_name(one.factor) for one in slow]
    ratios = f"{_times(min(one.least for one in slow))} to {_times(max(one.most for one in slow))} times"
    numbers = in_words([f"{one.columns:,}" for one in slow])
    was = "was" if len(slow) == 1 else "were"
    tried = f"; {_says_trial(trial)}" if trial is not None else ""
    return (
        f"{in_words(names)} {was} not trained: projected is predicted to be {ratios} as fast, by batch size, where "
        f"the model mostly errs by {100 * error:.2g} %, and reads all columns, as {width:,} numbers a "
        f"row in place of {numbers}{tried}"
    )


def _times(ratio: float) -> str:
    """Two digits, and of a ratio near 1 those of what it is beyond 1: 1.04 is not 1."""
    return f"{ratio:.2g}" if ratio >= 2 else f"{1 + float(f'{ratio - 1:.2g}'):.10g}"


def _says_kept(slow: Sequence[SlowFactor], trial: ColumnsTrial) -> str:
    names = in_words([variant_name(one.factor) for one in slow])
    return f"{names} are predicted to be slower than projected, and trained all the same: {_says_trial(trial)}"


def _says_trial(trial: ColumnsTrial) -> str:
    fewer = f"{variant_name(trial.factor)} reached {trial.fewer_columns:.3f} on validation nodes"
    return f"in a trial of {trial.epochs} epochs {fewer}, and all columns {trial.all_columns:.3f}"
