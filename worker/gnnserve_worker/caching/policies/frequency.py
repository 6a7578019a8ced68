"""Admission and eviction by decayed access counts.

GPU feature caching, section 3.2, asks for admission and eviction by access frequency and leaves the rest open; the
scores, the mixtures and the margin are this project's.

Each item has two counts that decay at different rates: a slow one, which tells apart items of similar popularity, and a
fast one, which follows a hot set that moves. The expected reads before any traffic (`weights`, where they are known)
are a third estimate, without noise. A score is a mixture of the three, as shares of all reads. Which mixture is best
depends on the traffic, so several compete: each predicts the hits of the next round (as if the items with the greatest
scores by that mixture were cached), and the one with the best recent predictions decides. That needs no second cache: a
mixture would keep the items that score above its border, the score that exactly `capacity` items exceed, and the border
is estimated from a sample of the items.

At the end of a round a missed item is admitted in place of a resident that it outscores by more than a margin: the best
candidates first, against residents below the border, which a clock hand finds in the slots. Admissions are transfers
too, so their number is limited to a quarter of the misses. The cost of a round is proportional to its reads; a pass
over all counts is needed only when the weight of a read has grown by 2^40.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.policies.fifo import ONCE
from gnnserve_worker.caching.policies.static import heaviest
from gnnserve_worker.caching.policy import NO_CHANGES, NO_ITEMS, ResidencyChanges
from gnnserve_worker.growth import enlarged
from gnnserve_worker.kernel_cache import inlined, kernel

_FAST, _SLOW, _GIVEN, _ROUND = 0, 1, 2, 3
"""Columns of the counts: two that decay, the weights, and the reads of the current round."""
_RESCALE = 2.0**40
"""Counts do not decay; new reads weigh more instead. Once a read weighs this much, all counts are divided by it."""


@dataclass(frozen=True, slots=True)
class FrequencySettings:
    """Constants of the policy. docs/cache.md has the measurements behind them."""

    fast: float = 1.0
    """Half-life of the fast count, in reads per item of the universe."""
    slow: float = 64.0
    """Half-life of the slow count, in reads per item of the universe."""
    belief: float = 4.0
    """Reads per item that the slow count begins with, distributed by the weights."""
    mixtures: tuple[tuple[float, float], ...] = (
        (0.0, 1.0), (0.1, 0.9), (0.3, 0.7), (0.0, 0.5), (0.0, 0.0), (0.15, 0.0), (0.4, 0.0), (0.8, 0.0),
    )  # fmt: skip
    """Shares of the fast count and of the weights in a score; the rest is the slow count's."""
    patience: float = 0.002
    """Share by which another mixture's predicted hits must exceed those of the deciding one to replace it."""
    margin: float = 0.1
    """Share by which a candidate must outscore the resident that it replaces."""
    admitted_per_miss: float = 0.25
    """Most admissions of a round, per miss."""
    sample: int = 8_192
    """Items that the borders are estimated from."""
    scanned_per_candidate: int = 64
    """Most slots that the hand scans per candidate."""


DEFAULTS = FrequencySettings()


class FrequencyPolicy:
    name = CachePolicy.FREQUENCY

    def __init__(
        self, items: int, capacity: int, weights: np.ndarray | None = None, settings: FrequencySettings = DEFAULTS
    ) -> None:
        self.capacity = min(capacity, items)
        self.resident = np.zeros(items, dtype=np.bool_)
        self._settings = settings
        self._half_lives = np.array([settings.fast, settings.slow]) * max(1, items)
        self._counts = np.zeros((items, 4), dtype=np.float32)
        self._weight = np.ones(2)
        """What a read weighs now in each decaying count."""
        self._totals = np.zeros(2)
        """Sum of each decaying count, in reads at today's weight."""
        self._slots = np.empty(self.capacity, dtype=np.int64)
        """Resident items, in no order; the first `_used` places are occupied."""
        self._used = 0
        self._hand = 0
        self._touched = np.empty(64, dtype=np.int64)
        """Items read in this round, each once: the first `_touched_count[0]` places."""
        self._touched_count = np.zeros(1, dtype=np.int64)
        self._reads = 0
        self._hits = 0
        self._factors = np.zeros((len(settings.mixtures), 3))
        """Factors of counts and weights in each mixture's score, scaled so that the border is 1."""
        self._predicted = np.zeros(len(settings.mixtures))
        """Hits that each mixture predicted for this round."""
        self._record = np.zeros(len(settings.mixtures))
        """Predicted hits of earlier rounds by mixture, decayed."""
        self.mixture = 0
        """Index of the mixture that decides."""
        self._rounds = 0
        self._first = NO_ITEMS
        if weights is not None and (total := float(weights.sum(dtype=np.float64))) > 0:
            self._believe(weights, total)

    def _believe(self, weights: np.ndarray, total: float) -> None:
        reads = np.array([self._half_lives[_FAST], self._settings.belief * len(weights)])
        for count in (_FAST, _SLOW):
            self._counts[:, count] = weights * (reads[count] / total)
        self._counts[:, _GIVEN] = weights / total
        self._totals[:] = reads
        self._first = heaviest(weights, self.capacity)
        self._find_borders()

    @property
    def memory_bytes(self) -> int:
        """Bytes that are kept per item and per slot, summed."""
        return self._counts.nbytes + self.resident.nbytes + self._slots.nbytes

    def begin(self) -> np.ndarray:
        self._used = len(self._first)
        self._slots[: self._used] = self._first
        self.resident[self._first] = True
        return self._first

    def access(self, items: np.ndarray, times: np.ndarray | None = None) -> int:
        if not self.capacity:
            return 0
        touched = int(self._touched_count[0])
        self._touched = enlarged(self._touched, touched, touched + len(items))
        hits, reads = _access(
            items, ONCE if times is None else times, self.resident, self._counts, self._factors, self._predicted,
            self._touched, self._touched_count,
        )  # fmt: skip
        self._reads += reads
        self._hits += hits
        return int(hits)

    def end_round(self) -> ResidencyChanges:
        if not self._reads:
            return NO_CHANGES
        touched = self._touched[: self._touched_count[0]]
        misses = self._reads - self._hits
        self._count_round(touched)
        self._choose_mixture()
        self._find_borders()
        changes = self._swap(touched, int(np.ceil(misses * self._settings.admitted_per_miss)))
        self._touched_count[0] = self._reads = self._hits = 0
        self._rounds += 1
        return changes

    def _count_round(self, touched: np.ndarray) -> None:
        # After 60 half-lives nothing is left, and a larger exponent could overflow.
        growth = np.exp2(np.minimum(self._reads / self._half_lives, 60))
        self._totals = self._totals / growth + self._reads
        self._weight = self._weight * growth
        if self._weight.max() > _RESCALE:
            self._counts[:, :_GIVEN] /= self._weight.astype(np.float32)
            self._weight = np.ones(2)
        _add_round(touched, self._counts, self._weight)

    def _choose_mixture(self) -> None:
        self._record *= np.exp2(-self._reads / self._half_lives[_FAST])
        self._record += self._predicted
        self._predicted[:] = 0
        best = int(np.argmax(self._record))
        if self._record[best] > self._record[self.mixture] * (1 + self._settings.patience):
            self.mixture = best

    def _find_borders(self) -> None:
        """Estimate the borders from evenly spaced items, different ones each round: ids may be ordered by degree."""
        items = len(self.resident)
        step = max(1, items // self._settings.sample)
        sample = self._counts[self._rounds % step :: step, :_ROUND].astype(np.float64)
        above = min(len(sample), max(1, round(len(sample) * self.capacity / items)))
        fast, given = np.array(self._settings.mixtures).T
        scale = np.maximum(self._totals * self._weight, 1)
        self._factors = np.stack([fast / scale[_FAST], (1 - fast - given) / scale[_SLOW], given], axis=1)
        scores = self._factors @ sample.T
        if (first := len(sample) - above) > 0:
            borders = np.partition(scores, (first - 1, first), axis=1)[:, first - 1 : first + 1].mean(axis=1)
        else:
            borders = scores.min(axis=1) / 2
        self._factors /= np.maximum(borders, np.finfo(np.float32).tiny)[:, None]

    def _swap(self, touched: np.ndarray, most: int) -> ResidencyChanges:
        factors = self._factors[self.mixture]
        free = self.capacity - self._used
        # While there is room every missed item is admitted.
        candidates, scores = np.empty(len(touched), dtype=np.int64), np.empty(len(touched))
        count = _find_candidates(
            touched, self.resident, self._counts, factors, -1.0 if free else 1.0, candidates, scores
        )
        candidates, scores = candidates[:count], scores[:count]
        # Best score first; of equal scores the lower item.
        order = np.lexsort((candidates, -scores))[:most]
        candidates, scores = candidates[order], scores[order]
        filling = candidates[:free]
        self._slots[self._used : self._used + len(filling)] = filling
        self._used += len(filling)
        candidates, scores = candidates[len(filling) :], scores[len(filling) :]
        is_good = scores > 1
        candidates, scores = candidates[is_good], scores[is_good]

        places = np.empty(len(candidates), dtype=np.int64)
        found, self._hand = _find_low(
            self._slots, self._used, self._hand, self._settings.scanned_per_candidate * len(candidates),
            self._counts, factors, places,
        )  # fmt: skip
        places = places[:found]
        low_scores = self._counts[self._slots[places], :_ROUND].astype(np.float64) @ factors
        order = np.lexsort((self._slots[places], low_scores))
        pairs = min(len(places), len(candidates))
        wins = scores[:pairs] > low_scores[order[:pairs]] * (1 + self._settings.margin)
        # Candidates' scores fall and residents' rise, so after the first pair that loses, every pair loses.
        won = int(np.count_nonzero(wins))
        places = places[order[:won]]
        evicted = self._slots[places]
        self._slots[places] = candidates[:won]
        admitted = np.concatenate([filling, candidates[:won]])
        self.resident[evicted] = False
        self.resident[admitted] = True
        return ResidencyChanges(evicted, admitted)


@inlined
def _score(item: int, counts: np.ndarray, factors: np.ndarray) -> float:
    """An item's score by one mixture; 1 is the mixture's border."""
    score: float = (
        factors[_FAST] * counts[item, _FAST]
        + factors[_SLOW] * counts[item, _SLOW]
        + factors[_GIVEN] * counts[item, _GIVEN]
    )
    return score


@kernel
def _access(
    items: np.ndarray, times: np.ndarray, resident: np.ndarray, counts: np.ndarray, factors: np.ndarray,
    predicted: np.ndarray, touched: np.ndarray, touched_count: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Count the reads; returns hits and reads."""
    hits = 0
    reads = 0
    new = touched_count[0]
    for i in range(len(items)):
        item = items[i]
        repeats = int(times[i]) if len(times) else 1
        if repeats < 1:
            continue
        reads += repeats
        if resident[item]:
            hits += repeats
        fast, slow, given = counts[item, _FAST], counts[item, _SLOW], counts[item, _GIVEN]
        for mixture in range(len(factors)):
            # `_score`, inlined: the counts are read once for all mixtures.
            score = factors[mixture, _FAST] * fast + factors[mixture, _SLOW] * slow + factors[mixture, _GIVEN] * given
            predicted[mixture] += repeats * (score > 1)
        if counts[item, _ROUND] == 0:
            touched[new] = item
            new += 1
        counts[item, _ROUND] += repeats
    touched_count[0] = new
    return hits, reads


@kernel
def _add_round(touched: np.ndarray, counts: np.ndarray, weight: np.ndarray) -> None:
    for item in touched:
        reads = counts[item, _ROUND]
        counts[item, _FAST] += np.float32(reads * weight[_FAST])
        counts[item, _SLOW] += np.float32(reads * weight[_SLOW])
        counts[item, _ROUND] = 0


@kernel
def _find_candidates(
    touched: np.ndarray, resident: np.ndarray, counts: np.ndarray, factors: np.ndarray, above: float,
    candidates: np.ndarray, scores: np.ndarray,
) -> int:  # fmt: skip
    """Collect touched items that are not resident and score above `above`, in the order of their reads. Returns their
    number."""
    found = 0
    for item in touched:
        if not resident[item]:
            score = _score(item, counts, factors)
            if score > above:
                candidates[found] = item
                scores[found] = score
                found += 1
    return found


@kernel
def _find_low(
    slots: np.ndarray, used: int, hand: int, most: int, counts: np.ndarray, factors: np.ndarray, places: np.ndarray
) -> tuple[int, int]:
    """Scan slots from the hand on for items below the border, until `places` is full. Returns their number and the
    hand."""
    found = 0
    for _ in range(min(used, most)):
        if found == len(places):
            break
        if hand >= used:
            hand = 0
        if _score(slots[hand], counts, factors) < 1:
            places[found] = hand
            found += 1
        hand += 1
    return found, hand
