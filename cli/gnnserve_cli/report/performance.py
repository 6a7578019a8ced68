"""The performance model against what was measured. Which widths meet a latency is in `latencies.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from gnnserve_api.errors import InputError
from gnnserve_api.families import ChannelAxis, point_of
from gnnserve_api.files.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.operations import BatchShape, NetworkShape, effective_fanouts, operations
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_cli.report.data import LatencyPrediction, ModelFit
from gnnserve_cli.report.performance_model import CalibrationError, MeasuredVariant, PerformanceModel, calibrate
from gnnserve_cli.report.subject import ReportSubject
from gnnserve_cli.report.words import names

_NUMBER_BYTES = {Storage.FLOAT32: 4, Storage.FLOAT16: 2, Storage.BFLOAT16: 2, Storage.INT8: 1}
_SCALE_BYTES = 4
"""Bytes of the scale of a row of int8."""


def fit_models(subject: ReportSubject, size: int) -> tuple[tuple[ModelFit, ...], dict[Storage, FittedModel]]:
    """Fits the model per storage with two widths or more; `size` is the place of the batch size in the profile."""
    fits, fitted = [], {}
    for storage, pruned in widths_by_storage(subject.profile).items():
        if len({variant.columns for variant in pruned}) < 2:
            continue
        model = FittedModel(subject, storage, pruned, size)
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


# --- the model


class FittedModel:
    """The model with the rates of the widest and the narrowest pruned variant of one storage."""

    def __init__(self, subject: ReportSubject, storage: Storage, pruned: Sequence[VariantProfile], size: int) -> None:
        self._subject, self._storage, self._pruned, self._size = subject, storage, pruned, size
        self.problems: list[str] = []
        wide, narrow = max(pruned, key=lambda v: v.columns), min(pruned, key=lambda v: v.columns)
        self._calibrated = (wide.name, narrow.name)
        self._capped = wide.columns < subject.features
        point = wide.latency[size]
        self.rows_per_seed = point.gathered_bytes / self._row_bytes(wide.columns) / point.seeds
        self._drawn = effective_fanouts(subject.provenance.network.fanouts, self.rows_per_seed)
        self.model = self._calibrate(wide, narrow)

    def _row_bytes(self, columns: int) -> float:
        return columns * _NUMBER_BYTES[self._storage] + (_SCALE_BYTES if self._storage is Storage.INT8 else 0)

    def _counts(self, columns: int, seeds: int, *, projected: bool = False) -> tuple[float, float]:
        """Bytes that a batch reads, and operations that it takes."""
        manifest = self._subject.provenance.network
        shape = BatchShape(seeds, self._drawn, _widths(manifest, columns))
        read_bytes = seeds * self.rows_per_seed * self._row_bytes(columns)
        return read_bytes, operations(shape, _network(manifest, projected=projected))

    def _calibrate(self, wide: VariantProfile, narrow: VariantProfile) -> PerformanceModel | None:
        def measured(variant: VariantProfile) -> MeasuredVariant:
            point = variant.latency[self._size]
            counts = self._counts(variant.columns, point.seeds)
            return MeasuredVariant(variant.name, point.gather_ms, point.compute_ms, point.window_p50_ms, *counts)

        try:
            model = calibrate(measured(wide), measured(narrow))
        except CalibrationError as error:
            self.problems.append(f"The model: {error}.")
            return None
        self.problems.extend(f"The model: {note}." for note in model.notes)
        return model

    def predicted_ms(self, columns: int, seeds: int, *, projected: bool = False) -> float | None:
        return None if self.model is None else self.model.window_ms(*self._counts(columns, seeds, projected=projected))

    def columns_within(self, latency_ms: float) -> tuple[int | None, bool]:
        """The most columns whose predicted request, sampling as measured, is within it; whether the graph has more, and
        none wider was measured."""
        if self.model is None:
            return None, False
        widest = max(self._pruned, key=lambda v: v.columns)
        point = widest.latency[self._size]
        # It does not depend on the width; what is measured does a little, by what else is in the caches.
        sample_ms = statistics.median(variant.latency[self._size].sample_ms for variant in self._pruned)

        def total_ms(columns: int) -> float:
            return sample_ms + (self.predicted_ms(columns, point.seeds) or 0.0)

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
        gather = self.model.gather if self.model else None
        compute = self.model.compute if self.model else None
        return ModelFit(
            says=self._says_fit(predictions),
            storage=self._storage,
            gather_gigabytes_per_s=_giga(gather.per_s if gather else None),
            gather_fixed_ms=gather.fixed_ms if gather else None,
            compute_gigaoperations_per_s=_giga(compute.per_s if compute else None),
            compute_fixed_ms=compute.fixed_ms if compute else None,
            rows_per_seed=self.rows_per_seed,
            predictions=predictions,
            problems=tuple(self.problems),
        )

    def _predict(self, variant: VariantProfile) -> LatencyPrediction:
        point = variant.latency[self._size]
        predicted = self.predicted_ms(variant.columns, point.seeds, projected=point_of(variant).stores_product)
        return LatencyPrediction(
            variant=variant.name,
            columns=variant.columns,
            projected=variant.projected,
            calibrated_with=self.model is not None and variant.name in self._calibrated,
            measured_ms=point.window_p50_ms,
            corrected_ms=predicted,
            corrected_error_percent=_error_percent(predicted, point),
            family=variant.family,
        )

    def _says_fit(self, predictions: Sequence[LatencyPrediction]) -> str:
        text = f"Tables of {self._storage}."
        if self.model is None:
            return f"{text} The model could not be calibrated."
        text += f" The model has its rates from {names(self._calibrated)}"
        errors = [p.corrected_error_percent for p in predictions if not p.calibrated_with]
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
