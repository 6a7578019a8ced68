"""The performance models against what was measured, and which widths meet a latency (paper A, sections 3.1 and 4.2)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnnserve_api.performance_model import (
    Architecture,
    CalibrationError,
    CorrectedModel,
    Measured,
    Network,
    PaperRates,
    Shape,
    calibrate_corrected,
    calibrate_paper,
    effective_fanouts,
    operations,
    paper_bytes,
    paper_operations,
    paper_rates_of,
    paper_times,
)
from gnnserve_api.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.tolerance import Point, Width, WidthCurve, factor_for, most_accurate
from gnnserve_api.variants import Storage
from gnnserve_cli.report.data import Curve, Latencies, LatencyAnswer, ModelFit, Prediction, WidthAnswer
from gnnserve_cli.report.subject import Subject
from gnnserve_cli.report.words import ms, names, nodes

_NUMBER_BYTES = {Storage.FLOAT32: 4, Storage.FLOAT16: 2, Storage.BFLOAT16: 2, Storage.INT8: 1}
_SCALE_BYTES = 4
"""Per row of int8."""
_ROUND = (1.0, 2.0, 5.0)


def fit_models(subject: Subject, size: int) -> tuple[tuple[ModelFit, ...], dict[Storage, _Fitted]]:
    """For each storage with two widths or more; `size` is the index of the batch size in the profile."""
    fits, fitted = [], {}
    for storage, pruned in _by_storage(subject.profile).items():
        if len({variant.columns for variant in pruned}) < 2:
            continue
        model = _Fitted(subject, storage, pruned, size)
        fits.append(model.to_fit())
        fitted[storage] = model
    return tuple(fits), fitted


def answer_latencies(
    subject: Subject, size: int, wanted_ms: Sequence[float], fitted: dict[Storage, _Fitted]
) -> Latencies:
    curves = {
        storage: WidthCurve([Width(v.columns, v.latency[size].p50_ms) for v in pruned])
        for storage, pruned in _by_storage(subject.profile).items()
        if len({variant.columns for variant in pruned}) > 1
    }
    seeds = subject.profile.variants[0].latency[size].seeds
    answers = tuple(
        _answer(subject, size, latency_ms, curves, fitted)
        for latency_ms in wanted_ms or _round_latencies(subject, size)
    )
    told = tuple(_curve(storage, curve) for storage, curve in curves.items())
    return Latencies(says=_says_curves(told, seeds), curves=told, answers=answers)


def _by_storage(profile: Profile) -> dict[Storage, list[VariantProfile]]:
    found: dict[Storage, list[VariantProfile]] = {}
    for variant in profile.variants:
        if not variant.projected:
            found.setdefault(variant.storage, []).append(variant)
    return found


# --- the models


@dataclass(frozen=True, slots=True)
class _Counts:
    """What both models count of one variant."""

    read_bytes: float
    operations: float
    paper_bytes: float
    paper_operations: float


class _Fitted:
    """Both models, with the rates of the widest and the narrowest pruned variant of one storage."""

    def __init__(self, subject: Subject, storage: Storage, pruned: Sequence[VariantProfile], size: int) -> None:
        self._subject, self._storage, self._pruned, self._size = subject, storage, pruned, size
        self.problems: list[str] = []
        network = subject.provenance.network
        wide, narrow = max(pruned, key=lambda v: v.columns), min(pruned, key=lambda v: v.columns)
        self._calibrated = (wide.name, narrow.name)
        point = wide.latency[size]
        self.rows_per_seed = point.gathered_bytes / self._row_bytes(wide.columns) / point.seeds
        self._drawn = effective_fanouts(network.fanouts, self.rows_per_seed)
        # Without limits on the draws the paper's model has no s_k; what is drawn on average stands for them.
        limits = tuple(
            drawn if limit < 0 else float(limit) for limit, drawn in zip(network.fanouts, self._drawn, strict=True)
        )
        self._paper_shape = limits
        bound = Shape(1, limits, _widths(network, wide.columns)).bound_of(0)
        self.distinct_share = self.rows_per_seed / bound if bound else None
        self.paper = self._calibrate_paper(wide, narrow)
        self.corrected = self._calibrate_corrected(wide, narrow)

    def _row_bytes(self, columns: int) -> float:
        return columns * _NUMBER_BYTES[self._storage] + (_SCALE_BYTES if self._storage is Storage.INT8 else 0)

    def counts(self, columns: int, seeds: int, *, projected: bool = False) -> _Counts:
        manifest = self._subject.provenance.network
        widths = _widths(manifest, columns)
        share, number_bytes = self.distinct_share or 0.0, _NUMBER_BYTES[self._storage]
        paper = Shape(seeds, self._paper_shape, widths)
        return _Counts(
            read_bytes=seeds * self.rows_per_seed * self._row_bytes(columns),
            operations=operations(Shape(seeds, self._drawn, widths), _network(manifest, projected=projected)),
            paper_bytes=paper_bytes(paper, share, number_bytes),
            paper_operations=paper_operations(paper, share),
        )

    def _calibrate_paper(self, wide: VariantProfile, narrow: VariantProfile) -> PaperRates | None:
        def measured(variant: VariantProfile) -> Measured:
            counts = self.counts(variant.columns, variant.latency[self._size].seeds)
            return _measured(variant, self._size, counts.paper_bytes, counts.paper_operations)

        try:
            return calibrate_paper(measured(wide), measured(narrow))
        except CalibrationError as error:
            self.problems.append(f"The paper's model: {error}.")
        try:
            rates = paper_rates_of(measured(wide))
        except CalibrationError as error:
            self.problems.append(f"The paper's model: {error}.")
            return None
        self.problems.append(f"The paper's model is drawn with the rates of {wide.name}'s two stages instead.")
        return rates

    def _calibrate_corrected(self, wide: VariantProfile, narrow: VariantProfile) -> CorrectedModel | None:
        def measured(variant: VariantProfile) -> Measured:
            counts = self.counts(variant.columns, variant.latency[self._size].seeds)
            return _measured(variant, self._size, counts.read_bytes, counts.operations)

        try:
            model = calibrate_corrected(measured(wide), measured(narrow))
        except CalibrationError as error:
            self.problems.append(f"The corrected model: {error}.")
            return None
        self.problems.extend(f"The corrected model: {note}." for note in model.notes)
        return model

    def paper_ms(self, columns: int, seeds: int) -> float | None:
        if self.paper is None or self.distinct_share is None:
            return None
        shape = Shape(seeds, self._paper_shape, _widths(self._subject.provenance.network, columns))
        number_bytes = _NUMBER_BYTES[self._storage]
        rates = self.paper
        return paper_times(
            shape, self.distinct_share, number_bytes, rates.bytes_per_s, rates.operations_per_s
        ).window_ms

    def corrected_ms(self, columns: int, seeds: int, *, projected: bool = False) -> float | None:
        if self.corrected is None:
            return None
        counts = self.counts(columns, seeds, projected=projected)
        return self.corrected.window_ms(counts.read_bytes, counts.operations)

    def columns_within(self, latency_ms: float) -> int | None:
        """The most columns whose predicted request, sampling as measured, is within it."""
        if self.corrected is None:
            return None
        widest = max(self._pruned, key=lambda v: v.columns)
        point = widest.latency[self._size]
        # It does not depend on the width; what is measured does a little, by what else is in the caches.
        sample_ms = statistics.median(variant.latency[self._size].sample_ms for variant in self._pruned)

        def total_ms(columns: int) -> float:
            return sample_ms + (self.corrected_ms(columns, point.seeds) or 0.0)

        return _largest(widest.columns, lambda columns: total_ms(columns) <= latency_ms)

    def to_fit(self) -> ModelFit:
        projected = [v for v in self._subject.profile.variants if v.projected and v.storage is self._storage]
        predictions = tuple(self._predict(variant) for variant in (*self._pruned, *projected))
        gather = self.corrected.gather if self.corrected else None
        compute = self.corrected.compute if self.corrected else None
        return ModelFit(
            says=_says_fit(self._storage, predictions, self._calibrated),
            storage=self._storage,
            paper_gigabytes_per_s=_giga(self.paper.bytes_per_s if self.paper else None),
            paper_gigaoperations_per_s=_giga(self.paper.operations_per_s if self.paper else None),
            gather_gigabytes_per_s=_giga(gather.per_s if gather else None),
            gather_fixed_ms=gather.fixed_ms if gather else None,
            compute_gigaoperations_per_s=_giga(compute.per_s if compute else None),
            compute_fixed_ms=compute.fixed_ms if compute else None,
            rows_per_seed=self.rows_per_seed,
            distinct_share=self.distinct_share,
            predictions=predictions,
            problems=tuple(self.problems),
        )

    def _predict(self, variant: VariantProfile) -> Prediction:
        point = variant.latency[self._size]
        # The paper knows no stored products.
        paper = None if variant.projected else self.paper_ms(variant.columns, point.seeds)
        corrected = self.corrected_ms(variant.columns, point.seeds, projected=variant.projected)
        return Prediction(
            variant=variant.name,
            columns=variant.columns,
            projected=variant.projected,
            calibrated_with=variant.name in self._calibrated,
            measured_ms=point.window_p50_ms,
            paper_ms=paper,
            paper_error_percent=_error_percent(paper, point),
            corrected_ms=corrected,
            corrected_error_percent=_error_percent(corrected, point),
        )


def _widths(network: NetworkManifest, columns: int) -> tuple[int, ...]:
    return (columns, *[network.hidden] * (len(network.fanouts) - 1), network.classes)


def _network(manifest: NetworkManifest, *, projected: bool) -> Network:
    architecture: Architecture = "GIN" if manifest.architecture == "GIN" else "GraphSAGE"
    return Network(architecture, projected, manifest.mlp_hidden)


def _measured(variant: VariantProfile, size: int, read_bytes: float, operations_: float) -> Measured:
    point = variant.latency[size]
    return Measured(variant.name, point.gather_ms, point.compute_ms, point.window_p50_ms, read_bytes, operations_)


def _error_percent(predicted_ms: float | None, point: LatencyProfile) -> float | None:
    if predicted_ms is None or point.window_p50_ms <= 0:
        return None
    return 100 * (predicted_ms / point.window_p50_ms - 1)


def _giga(per_s: float | None) -> float | None:
    return None if per_s is None else per_s / 1e9


def _largest(most: int, fits: Callable[[int], bool]) -> int | None:
    """The largest of 1 … `most` that fits, where all smaller ones do too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None


def _says_fit(storage: Storage, predictions: Sequence[Prediction], calibrated: tuple[str, str]) -> str:
    wide, narrow = calibrated
    text = f"Tables of {storage}: rates come from {wide} and {narrow}; the others are predicted."
    checked = [prediction for prediction in predictions if not prediction.calibrated_with]
    if not checked:
        return f"{text} There is no other variant to check them against."
    for name, errors in (
        ("The paper's model", [p.paper_error_percent for p in checked if p.paper_error_percent is not None]),
        ("the corrected one", [p.corrected_error_percent for p in checked if p.corrected_error_percent is not None]),
    ):
        if errors:
            worst = max(abs(error) for error in errors)
            text += f" {name[0].upper()}{name[1:]} misses them by {worst:.0f} % at most."
        else:
            text += f" {name[0].upper()}{name[1:]} could not be calibrated."
    return text


# --- latencies


def _answer(
    subject: Subject, size: int, latency_ms: float, curves: dict[Storage, WidthCurve], fitted: dict[Storage, _Fitted]
) -> LatencyAnswer:
    profile = subject.profile
    tail = profile.tail_ratio(size)
    by_median = _most_accurate_within(profile, size, latency_ms)
    by_p99 = _most_accurate_within(profile, size, latency_ms / tail)
    widths = []
    for storage, curve in curves.items():
        found = curve.columns_within(latency_ms)
        model = fitted.get(storage)
        widths.append(
            WidthAnswer(
                storage=storage,
                columns=found.columns if found else None,
                factor=factor_for(subject.features, found.columns) if found else None,
                extrapolated=found.extrapolated if found else False,
                model_columns=model.columns_within(latency_ms) if model else None,
            )
        )
    seeds = profile.variants[0].latency[size].seeds
    return LatencyAnswer(
        latency_ms=latency_ms,
        says=_says_answer(latency_ms, seeds, by_median, by_p99, widths),
        by_median=by_median,
        by_p99=by_p99,
        widths=tuple(widths),
    )


def _most_accurate_within(profile: Profile, size: int, latency_ms: float) -> str | None:
    fitting = [
        Point(v.name, v.validation_accuracy, v.latency[size].p50_ms)
        for v in profile.variants
        if v.latency[size].p50_ms <= latency_ms
    ]
    return most_accurate(fitting).name if fitting else None


def _says_answer(
    latency_ms: float, seeds: int, by_median: str | None, by_p99: str | None, widths: Sequence[WidthAnswer]
) -> str:
    if by_median is None:
        text = "no variant answers in time, even by its median"
    elif by_p99 is None:
        text = f"{by_median} is the most accurate by its median; no variant is in time for 99 of 100 batches"
    elif by_p99 == by_median:
        text = f"{by_median} is the most accurate, by its median and for 99 of 100 batches"
    else:
        text = f"{by_median} is the most accurate by its median, {by_p99} for 99 of 100 batches"
    by_width = [_says_width(answer, with_storage=len(widths) > 1) for answer in widths]
    told = "; ".join([text, *by_width])
    return f"Within {ms(latency_ms)} for {nodes(seeds)}: {told}."


def _says_width(answer: WidthAnswer, *, with_storage: bool) -> str:
    where = f"in {answer.storage} " if with_storage else ""
    if answer.columns is None:
        return f"{where}not even one column would do"
    guess = ", beyond what was measured" if answer.extrapolated else ""
    columns = "1 column" if answer.columns == 1 else f"{answer.columns:,} columns"
    return f"{where}up to {columns} fit (k = {answer.factor:,}{guess})"


def _curve(storage: Storage, curve: WidthCurve) -> Curve:
    errors = [abs(error) for _, error in curve.left_out_errors()]
    return Curve(
        storage=storage,
        fixed_ms=curve.affine.fixed_ms,
        per_column_us=1e3 * curve.affine.per_column_ms,
        worst_left_out_percent=100 * max(errors) if errors else None,
    )


def _says_curves(curves: Sequence[Curve], seeds: int) -> str:
    if not curves:
        return "There are not two widths of one storage, so no width can be told from a latency."
    parts = [
        f"about {ms(max(0.0, curve.fixed_ms))} and {ms(curve.per_column_us / 1000)} for each column from tables of "
        f"{curve.storage}"
        for curve in curves
    ]
    text = f"A batch of {nodes(seeds)} takes {names(parts)}."
    errors = [curve.worst_left_out_percent for curve in curves if curve.worst_left_out_percent is not None]
    if errors:
        text += f" A measured variant that is predicted from the others is missed by {max(errors):.0f} % at most."
    return f"{text} So a width can be found for a latency before it is trained; its accuracy cannot."


def _round_latencies(subject: Subject, size: int) -> tuple[float, ...]:
    """Where none were asked for: 1, 2 and 5 times powers of ten between the fastest and the slowest, three at most."""
    times = [variant.latency[size].p50_ms for variant in subject.profile.variants]
    fastest, slowest = min(times), max(times)
    between = [
        factor * 10.0**power
        for power in range(-4, 7)
        for factor in _ROUND
        if fastest <= factor * 10.0**power <= slowest
    ]
    if not between:
        return (float(f"{(fastest + slowest) / 2:.2g}"),)
    return tuple(between[-3:])
