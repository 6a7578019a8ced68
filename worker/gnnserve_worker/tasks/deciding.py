"""Decision in a cascade between its two stages, by the outputs of the first one. It is the task's: classes are sure
by the probability of the likeliest, pairs of nodes by how far a score is from telling nothing.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.files.cascades import CascadeManifest


class SeedPairs(msgspec.Struct, frozen=True):
    """Which seeds of a batch are asked about together, two by two. Places of seeds, integers."""

    first: np.ndarray
    second: np.ndarray
    alone: np.ndarray
    """Seeds of pairs whose other node is in another batch."""


def in_turn(count: int) -> SeedPairs:
    """So many seeds as pairs one after the other, where nothing else is said of them."""
    places = np.arange(count)
    return SeedPairs(places[0 : count - 1 : 2], places[1::2], places[count - count % 2 :])


def each_alone(count: int) -> SeedPairs:
    """So many seeds, of which both stages are wanted."""
    return SeedPairs(_NO_PLACES, _NO_PLACES, np.arange(count))


_NO_PLACES = np.zeros(0, np.int64)


class Decides(Protocol):
    @property
    def by_pairs(self) -> bool:
        """Whether a batch must say which of its seeds are asked about together."""

    def passed_on(self, cascade: CascadeManifest, outputs: np.ndarray, pairs: SeedPairs) -> np.ndarray:
        """Places (int64) of the seeds that go through the second stage, by the first one's outputs, float32 [seeds,
        outputs]."""

    def joined(self, outputs: np.ndarray, places: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Outputs of the cascade, float32 [seeds, any]. `outputs`: the first stage's, which may be written to.
        `others`: the second one's of the seeds at these places."""


# --- by classes


class ByClass:
    """A `Decides` of outputs that are scores of classes. Each answer is that of one of the two stages."""

    by_pairs = False

    def passed_on(self, cascade: CascadeManifest, outputs: np.ndarray, pairs: SeedPairs) -> np.ndarray:
        is_unsure = class_confidences(outputs, cascade.temperature) < np.float32(cascade.threshold)
        return np.flatnonzero(is_unsure)

    def joined(self, outputs: np.ndarray, places: np.ndarray, others: np.ndarray) -> np.ndarray:
        outputs[places] = others
        return outputs


BY_CLASS: Decides = ByClass()


def class_confidences(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Probability of the likeliest class, float32 [nodes], where scores (float32 [nodes, classes]) are divided by the
    temperature first (On calibration of modern neural networks, section 4.2)."""
    # By class: numpy reduces long rows many times as fast as rows that are as short as there are classes.
    lag = scores.T.copy()
    lag -= lag.max(axis=0)
    lag /= np.float32(temperature)
    np.exp(lag, out=lag)
    shares: np.ndarray = np.float32(1) / lag.sum(axis=0)
    return shares


# --- chosen


def threshold_for(confidences: np.ndarray, percent: float) -> float:
    """The confidence below which that percentage of them lies; fewer where several are the same. Which are the lowest
    barely depends on how they are calibrated, so a threshold is chosen by this share, not as a probability."""
    ascending = np.sort(confidences)
    return float(ascending[min(round(percent * len(ascending) / 100), len(ascending) - 1)])
