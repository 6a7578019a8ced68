"""Cascades of pairs: the second stage answers about pairs of which the first one is not sure.

How sure a score is says the stage's own calibration: the probability of a link, or of none, whichever is larger. Scores
of two networks are not of one scale, so those of a cascade are log-odds by the calibration of the stage that answers:
they can be ranked beside each other, and their probabilities are the logistic function of them.

A row of a cascade's outputs has the embedding of the first stage, that of the second, and whether there is one. Which
of the two scores a pair is found again when it is scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.links import LinkCalibration
from gnnserve_worker.models.decoder import LinkDecoder, score_all
from gnnserve_worker.tasks.deciding import SeedPairs

LOG_ODDS = LinkCalibration(slope=1.0, intercept=0.0)
"""Curve of scores that are log-odds."""


@dataclass(frozen=True, slots=True)
class CascadeScorer:
    """Scores pairs of rows of a cascade's outputs."""

    decoder: LinkDecoder
    first: LinkCalibration
    """Curve of the first stage."""
    then: LinkCalibration
    threshold: float
    """As of the cascade."""

    def score(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Log-odds float32 [pairs] of rows float32 [pairs, width]."""
        width = first.shape[1] // 2
        scores = log_odds(self.decoder.score(first[:, :width], second[:, :width]), self.first)
        has_both = (first[:, -1] > 0) & (second[:, -1] > 0)
        places = np.flatnonzero(has_both & self.is_unsure(scores))
        if len(places):
            others = self.decoder.score(first[places, width:-1], second[places, width:-1])
            scores[places] = log_odds(others, self.then)
        return scores

    def score_all(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Log-odds float32 [n, m] of each of n rows with each of m."""
        width = first.shape[1] // 2
        scores = log_odds(score_all(self.decoder, first[:, :width], second[:, :width]), self.first)
        others = log_odds(score_all(self.decoder, first[:, width:-1], second[:, width:-1]), self.then)
        has_both = (first[:, None, -1] > 0) & (second[None, :, -1] > 0)
        found: np.ndarray = np.where(has_both & self.is_unsure(scores), others, scores)
        return found

    def is_unsure(self, scores: np.ndarray) -> np.ndarray:
        return pair_confidences(scores) < np.float32(self.threshold)


def log_odds(scores: np.ndarray, calibration: LinkCalibration) -> np.ndarray:
    found: np.ndarray = np.float32(calibration.slope) * scores + np.float32(calibration.intercept)
    return found


def pair_confidences(odds: np.ndarray) -> np.ndarray:
    """Probability of a link, or of none, whichever is larger: float32, of log-odds."""
    found: np.ndarray = 0.5 + 0.5 * np.tanh(0.5 * np.abs(odds))
    return found


@dataclass(frozen=True, slots=True)
class ByPair:
    """A `Decides`."""

    scorers: Mapping[str, CascadeScorer]
    """By cascade."""
    by_pairs: bool = True

    @staticmethod
    def of(
        decoder: LinkDecoder, calibrations: Mapping[str, LinkCalibration], cascades: Sequence[CascadeManifest]
    ) -> ByPair:
        """`calibrations`: by variant. KeyError: a stage has none."""
        return ByPair(
            {
                one.name: CascadeScorer(decoder, calibrations[one.first], calibrations[one.then], one.threshold)
                for one in cascades
            }
        )

    def passed_on(self, cascade: CascadeManifest, outputs: np.ndarray, pairs: SeedPairs) -> np.ndarray:
        scorer, first, second = self.scorers[cascade.name], pairs.first, pairs.second
        scores = log_odds(scorer.decoder.score(outputs[first], outputs[second]), scorer.first)
        is_unsure = scorer.is_unsure(scores)
        return np.unique(np.concatenate([first[is_unsure], second[is_unsure], pairs.alone]))

    def joined(self, outputs: np.ndarray, places: np.ndarray, others: np.ndarray) -> np.ndarray:
        count, width = outputs.shape
        made = np.zeros((count, 2 * width + 1), np.float32)
        made[:, :width] = outputs
        made[places, width:-1] = others
        made[places, -1] = 1
        return made


NO_CASCADES = ByPair({})
