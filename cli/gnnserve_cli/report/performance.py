"""The performance models against what was measured. Which widths meet a latency is in `latencies.py`.

“The paper” is Dynamic GNN inference as-a-service; sections 3.1 and 4.2.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gnnserve_api.errors import InputError
from gnnserve_api.families import ChannelAxis, point_of
from gnnserve_api.operations import BatchShape, NetworkShape, effective_fanouts, operations
from gnnserve_api.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.repository import NetworkManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_cli.report.data import ModelFit, Prediction
from gnnserve_cli.report.performance_model import (
    CalibrationError,
    CorrectedModel,
    MeasuredVariant,
    PaperRates,
    calibrate_corrected,
    calibrate_paper,
    paper_bytes,
    paper_operations,
    paper_rates_of,
    paper_times,
)
from gnnserve_cli.report.subject import Subject
from gnnserve_cli.report.words import names

_NUMBER_BYTES = {Storage.FLOAT32: 4, Storage.FLOAT16: 2, Storage.BFLOAT16: 2, Storage.INT8: 1}
_SCALE_BYTES = 4
"""Bytes of the scale of a row of int8."""


def fit_models(subject: Subject, size: int) -> tuple[tuple[ModelFit, ...], dict[Storage, FittedModels]]:
    """Fits both models per storage with two widths or more; `size` is the place of the batch size in the profile."""
    fits, fitted = [], {}
    for storage, pruned in widths_by_storage(subject.profile).items():
        if len({variant.columns for variant in pruned}) < 2:
            continue
        model = FittedModels(subject, storage, pruned, size)
        fits.append(model.to_fit())
        fitted[storage] = model
    return tuple(fits), fitted


def widths_by_storage(profile: Profile) -> dict[Storage, list[VariantProfile]]:
    """The variants that differ in their width alone, by storage."""
    found: dict[Storage, list[VariantProfile]] = {}
    for variant in profile.variants:
        if point_of(variant).spans_widths:
            found.setdefault(variant.storage, []).append(variant)
    return found


# --- the models


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts of one variant that both models use."""

    read_bytes: float
    operations: float
    paper_bytes: float
    paper_operations: float


class FittedModels:
    """Both models, with the rates of the widest and the narrowest pruned variant of one storage."""

    def __init__(self, subject: Subject, storage: Storage, pruned: Sequence[VariantProfile], size: int) -> None:
        self._subject, self._storage, self._pruned, self._size = subject, storage, pruned, size
        self.problems: list[str] = []
        network = subject.provenance.network
        wide, narrow = max(pruned, key=lambda v: v.columns), min(pruned, key=lambda v: v.columns)
        self._calibrated = (wide.name, narrow.name)
        self._paper_calibrated: tuple[str, ...] = self._calibrated
        self._capped = wide.columns < subject.features
        point = wide.latency[size]
        self.rows_per_seed = point.gathered_bytes / self._row_bytes(wide.columns) / point.seeds
        self._drawn = effective_fanouts(network.fanouts, self.rows_per_seed)
        # Without limits on the draws the paper's model has no s_k; what is drawn on average stands for them.
        limits = tuple(
            drawn if limit < 0 else float(limit) for limit, drawn in zip(network.fanouts, self._drawn, strict=True)
        )
        self._paper_shape = limits
        bound = BatchShape(1, limits, _widths(network, wide.columns)).bound_of(0)
        has_draws = self.rows_per_seed > 1 and bound >= 1
        self.distinct_share = self.rows_per_seed / bound if has_draws else None
        self.paper = self._calibrate_paper(wide, narrow)
        self.corrected = self._calibrate_corrected(wide, narrow)

    def _row_bytes(self, columns: int) -> float:
        return columns * _NUMBER_BYTES[self._storage] + (_SCALE_BYTES if self._storage is Storage.INT8 else 0)

    def counts(self, columns: int, seeds: int, *, projected: bool = False) -> _Counts:
        manifest = self._subject.provenance.network
        widths = _widths(manifest, columns)
        share, number_bytes = self.distinct_share or 0.0, _NUMBER_BYTES[self._storage]
        paper = BatchShape(seeds, self._paper_shape, widths)
        return _Counts(
            read_bytes=seeds * self.rows_per_seed * self._row_bytes(columns),
            operations=operations(BatchShape(seeds, self._drawn, widths), _network(manifest, projected=projected)),
            paper_bytes=paper_bytes(paper, share, number_bytes),
            paper_operations=paper_operations(paper, share),
        )

    def _calibrate_paper(self, wide: VariantProfile, narrow: VariantProfile) -> PaperRates | None:
        def measured(variant: VariantProfile) -> MeasuredVariant:
            counts = self.counts(variant.columns, variant.latency[self._size].seeds)
            return _measured(variant, self._size, counts.paper_bytes, counts.paper_operations)

        if self.distinct_share is None:
            self.problems.append(
                "The paper's model: nodes of a batch draw less than one row each, of which it says nothing."
            )
            return None
        try:
            return calibrate_paper(measured(wide), measured(narrow))
        except CalibrationError as error:
            self.problems.append(f"The paper's model: {error}.")
        try:
            rates = paper_rates_of(measured(wide))
        except CalibrationError as error:
            self.problems.append(f"The paper's model: {error}.")
            return None
        self._paper_calibrated = (wide.name,)
        self.problems.append(f"The paper's model is drawn with the rates of {wide.name}'s two stages instead.")
        return rates

    def _calibrate_corrected(self, wide: VariantProfile, narrow: VariantProfile) -> CorrectedModel | None:
        def measured(variant: VariantProfile) -> MeasuredVariant:
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
        shape = BatchShape(seeds, self._paper_shape, _widths(self._subject.provenance.network, columns))
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

    def columns_within(self, latency_ms: float) -> tuple[int | None, bool]:
        """The most columns whose predicted request, sampling as measured, is within it; whether the graph has more, and
        none wider was measured."""
        if self.corrected is None:
            return None, False
        widest = max(self._pruned, key=lambda v: v.columns)
        point = widest.latency[self._size]
        # It does not depend on the width; what is measured does a little, by what else is in the caches.
        sample_ms = statistics.median(variant.latency[self._size].sample_ms for variant in self._pruned)

        def total_ms(columns: int) -> float:
            return sample_ms + (self.corrected_ms(columns, point.seeds) or 0.0)

        found = _largest(widest.columns, lambda columns: total_ms(columns) <= latency_ms)
        return found, self._capped and found == widest.columns

    def to_fit(self) -> ModelFit:
        others = [
            variant
            for variant in self._subject.profile.variants
            if not point_of(variant).spans_widths
            and point_of(variant).channels is ChannelAxis.ALL
            and variant.cascade is None
            and variant.storage is self._storage
            and variant.fanouts == self._pruned[0].fanouts
        ]
        predictions = tuple(self._predict(variant) for variant in (*self._pruned, *others))
        gather = self.corrected.gather if self.corrected else None
        compute = self.corrected.compute if self.corrected else None
        return ModelFit(
            says=self._says_fit(predictions),
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
        stored = point_of(variant).stores_product
        # The paper knows no stored products.
        paper = None if stored else self.paper_ms(variant.columns, point.seeds)
        corrected = self.corrected_ms(variant.columns, point.seeds, projected=stored)
        return Prediction(
            variant=variant.name,
            columns=variant.columns,
            projected=variant.projected,
            calibrated_with=self.corrected is not None and variant.name in self._calibrated,
            paper_calibrated_with=self.paper is not None and variant.name in self._paper_calibrated,
            measured_ms=point.window_p50_ms,
            paper_ms=paper,
            paper_error_percent=_error_percent(paper, point),
            corrected_ms=corrected,
            corrected_error_percent=_error_percent(corrected, point),
            family=variant.family,
        )

    def _says_fit(self, predictions: Sequence[Prediction]) -> str:
        return " ".join([
            f"Tables of {self._storage}.",
            _says_errors(
                "The paper's model", self._paper_calibrated if self.paper else None,
                [p.paper_error_percent for p in predictions if not p.paper_calibrated_with],
            ),
            _says_errors(
                "The corrected model", self._calibrated if self.corrected else None,
                [p.corrected_error_percent for p in predictions if not p.calibrated_with],
            ),
        ])  # fmt: skip


def _says_errors(model: str, calibrated: Sequence[str] | None, errors: Sequence[float | None]) -> str:
    """`errors`: of those that it was not calibrated with, in percent; None where it predicts nothing."""
    if calibrated is None:
        return f"{model} could not be calibrated."
    text = f"{model} has its rates from {names(calibrated)}"
    known = [abs(error) for error in errors if error is not None]
    if not known:
        return f"{text}, and no other variant to check it against."
    what = "the only other" if len(known) == 1 else f"the {len(known)} others that it predicts"
    return f"{text} and misses {what} by {max(known):.0f} %{' at most' if len(known) > 1 else ''}."


def _widths(network: NetworkManifest, columns: int) -> tuple[int, ...]:
    return (columns, *[network.hidden] * (len(network.fanouts) - 1), network.classes)


def _network(manifest: NetworkManifest, *, projected: bool) -> NetworkShape:
    try:
        architecture = Architecture(manifest.architecture)
    except ValueError:
        raise InputError(
            "the revision", f"has the architecture {manifest.architecture}, which this gnnserve does not know",
            "use the gnnserve that made it, or a later one",
        ) from None  # fmt: skip
    heads = () if manifest.attention is None else tuple(manifest.heads_of(layer) for layer in range(manifest.layers))
    return NetworkShape(architecture, projected, manifest.mlp_hidden, heads)


def _measured(variant: VariantProfile, size: int, read_bytes: float, operations_: float) -> MeasuredVariant:
    point = variant.latency[size]
    return MeasuredVariant(
        variant.name, point.gather_ms, point.compute_ms, point.window_p50_ms, read_bytes, operations_
    )


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
