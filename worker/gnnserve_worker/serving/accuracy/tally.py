"""How often each variant of one revision was right in service, beside what its profile promised.

It is pure: how right a variant was of each labelled item is an argument, and which values are is the task's to say
(`tasks/served_labels.py`: `Measure`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnnserve_api.confidence_sequence import CHANCE, SlidingMean, StatedAccuracy, WindowMean
from gnnserve_api.files.profile import Metric, Profile, VariantProfile
from gnnserve_api.http.live_accuracy import ObservedShare, VariantAccuracy
from gnnserve_api.tiers import most_accurate, points_of
from gnnserve_worker.tasks.served_labels import Measure


class Tally:
    """The figures of one revision."""

    def __init__(self, profile: Profile, measure: Measure) -> None:
        """`profile`: of the variants that answer, which are evaluated."""
        count = len(profile.variants)
        self._held_out = {variant.name: np.zeros(0) for variant in profile.variants}
        """How right each variant is of held-out nodes, where the profile promises nothing that can be compared."""
        self._promises = {variant.name: _promise(profile, variant, measure, count) for variant in profile.variants}
        self.reference = most_accurate(points_of(profile)).name
        """The most accurate variant by the profile, which others are compared with."""
        self._losses = Losses(profile, self.reference, measure.metric)
        self._agreement = {name: _stream(None, count) for name in self._promises}
        self._labels = {name: _stream(promise, count) for name, promise in self._promises.items()}

    def add_labels(self, values: Mapping[str, np.ndarray], promised: np.ndarray) -> None:
        """Count labelled items. `values`: by variant, how right it was of each of them, from 0 to 1. `promised`: by
        which the promise is judged, bool [items]."""
        for name, found in values.items():
            judged = found[promised]
            self._labels[name].add(float(judged.sum()), len(judged))
        self._losses.add(values)

    def losses(self) -> dict[str, float]:
        """Losses of accuracy in service against the reference, in permille, by variant; those alone whose interval
        excludes the profile's."""
        return self._losses.found()

    def add_held_out(self, values: Mapping[str, np.ndarray]) -> None:
        """Count held-out items, by which service is judged where the profile promises nothing. `values`: as for
        labels."""
        for name, found in values.items():
            self._held_out[name] = np.concatenate([self._held_out[name], found])

    def add_agreement(self, variant: str, values: np.ndarray) -> None:
        """Count items that were computed again. `values`: how far the answer was the most accurate variant's, from 0
        to 1."""
        self._agreement[variant].add(float(values.sum()), len(values))

    def figures(self) -> tuple[VariantAccuracy, ...]:
        """The variants beside each other: all by the same labels."""
        promises = {name: self._promised(name) for name in self._promises}
        windows = {name: stream.windows for name, stream in self._labels.items()}
        place = _common_window(promises, windows)
        return tuple(self._figure(name, promise, windows[name][place]) for name, promise in promises.items())

    def _promised(self, name: str) -> StatedAccuracy | None:
        promise, held_out = self._promises[name], self._held_out[name]
        if promise is None and len(held_out):
            return StatedAccuracy(float(held_out.mean()), len(held_out), len(self._promises))
        return promise

    def _figure(self, name: str, promise: StatedAccuracy | None, labels: WindowMean) -> VariantAccuracy:
        found, agreement = _observed(labels), _observed(self._agreement[name].recent)
        if promise is None:
            return VariantAccuracy(name, labels=found, agreement=agreement)
        is_broken = promise.is_broken_by(self._labels[name])
        return VariantAccuracy(name, promise.accuracy, promise.nodes, found, agreement, is_broken)


def _common_window(promises: Mapping[str, StatedAccuracy | None], windows: Mapping[str, Sequence[WindowMean]]) -> int:
    """Place of the window that all variants are told by: that which shows the most promises broken, then that whose
    intervals end lowest together. So a fall is seen soon, and variants whose falls differ are still compared on the
    same labels: those since one's fall may be harder for all."""
    stated = {name: promise.interval.low for name, promise in promises.items() if promise is not None}

    def rank(place: int) -> tuple[int, float]:
        ends = {name: of_one[place].interval.high for name, of_one in windows.items()}
        return -sum(ends[name] < low for name, low in stated.items()), sum(ends.values())

    return min(range(min(map(len, windows.values()))), key=rank)


class Losses:
    """How much less accurate than the reference each variant is, on the same labelled nodes.

    On most nodes two variants are both right or both wrong, which tells nothing of their difference; so the nodes that
    only one of them answers correctly are counted, each way by a stream of its own.
    """

    def __init__(self, profile: Profile, reference: str, metric: Metric) -> None:
        """`metric`: of a profile whose differences are those of values."""
        self._reference = reference
        best = profile.variant(reference).validation_accuracy
        others = [variant for variant in profile.variants if variant.name != reference]
        if profile.metric != metric:
            others = []
        self._profiled = {variant.name: best - variant.validation_accuracy for variant in others}
        chance = CHANCE / (4 * len(profile.variants))
        self._lost = {name: SlidingMean(chance) for name in self._profiled}
        """What the reference is right of and the variant is not."""
        self._gained = {name: SlidingMean(chance) for name in self._profiled}

    def add(self, values: Mapping[str, np.ndarray]) -> None:
        for name in self._profiled:
            difference = values[self._reference] - values[name]
            self._lost[name].add(float(difference.clip(min=0).sum()), len(difference))
            self._gained[name].add(float((-difference).clip(min=0).sum()), len(difference))

    def found(self) -> dict[str, float]:
        """Losses in permille; negative: more accurate than the reference."""
        losses = {}
        for name, profiled in self._profiled.items():
            lost, gained = self._lost[name], self._gained[name]
            low, high = lost.interval.low - gained.interval.high, lost.interval.high - gained.interval.low
            if not low <= profiled <= high:
                losses[name] = 1000 * (lost.mean - gained.mean)
        return losses


def _promise(profile: Profile, variant: VariantProfile, measure: Measure, comparisons: int) -> StatedAccuracy | None:
    found = measure.promise(profile, variant)
    return None if found is None else StatedAccuracy(*found, comparisons)


def _stream(promise: StatedAccuracy | None, comparisons: int) -> SlidingMean:
    return StatedAccuracy(0.0, 0, comparisons).stream() if promise is None else promise.stream()


def _observed(window: WindowMean) -> ObservedShare | None:
    if not window.count:
        return None
    return ObservedShare(window.mean, window.interval.low, window.interval.high, window.count)
