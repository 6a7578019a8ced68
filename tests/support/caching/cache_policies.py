"""Slow, obvious policies in plain Python, to hold the compiled ones against."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gnnserve_worker.caching.policies.frequency import FrequencySettings


class SlowFifo:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.resident: list[int] = []

    def access(self, item: int) -> bool:
        if item in self.resident:
            return True
        if self.capacity:
            if len(self.resident) == self.capacity:
                self.resident.pop(0)
            self.resident.append(item)
        return False


class SlowLfu:
    """A slow LFU. Of equal counts, the item that has had its count longest is evicted."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clock = 0
        self.counts: dict[int, tuple[int, int]] = {}

    @property
    def resident(self) -> list[int]:
        return list(self.counts)

    def access(self, item: int) -> bool:
        self.clock += 1
        if item in self.counts:
            self.counts[item] = (self.counts[item][0] + 1, self.clock)
            return True
        if self.capacity:
            if len(self.counts) == self.capacity:
                del self.counts[min(self.counts, key=lambda held: self.counts[held])]
            self.counts[item] = (1, self.clock)
        return False


class SlowFrequency:
    """Counts that are really multiplied every round, borders from all items, dicts and sorting."""

    def __init__(self, items: int, capacity: int, weights: Sequence[float] | None, settings: FrequencySettings) -> None:
        self.items, self.capacity, self.settings = items, capacity, settings
        self.half_lives = (settings.fast * items, settings.slow * items)
        self.counts = [[0.0] * items, [0.0] * items]
        self.totals = [0.0, 0.0]
        self.given = [0.0] * items
        self.slots: list[int] = []
        self.hand = 0
        self.mixture = 0
        self.record = [0.0] * len(settings.mixtures)
        self.borders: list[float] | None = None
        self.round: OrderedDict[int, int] = OrderedDict()
        self.misses = 0
        if weights is not None:
            total = sum(weights)
            for count, reads in enumerate((self.half_lives[0], settings.belief * items)):
                self.counts[count] = [reads * weight / total for weight in weights]
                self.totals[count] = reads
            self.given = [weight / total for weight in weights]
            self.slots = sorted(range(items), key=lambda item: (-weights[item], item))[:capacity]
            self._find_borders()

    @property
    def resident(self) -> list[int]:
        return self.slots

    def access(self, item: int) -> bool:
        self.round[item] = self.round.get(item, 0) + 1
        self.misses += item not in self.slots
        return item in self.slots

    def score(self, mixture: int, item: int) -> float:
        fast_share, given_share = self.settings.mixtures[mixture]
        fast, slow = (self.counts[count][item] / max(self.totals[count], 1) for count in (0, 1))
        return fast_share * fast + given_share * self.given[item] + (1 - fast_share - given_share) * slow

    def end_round(self) -> tuple[set[int], set[int]]:
        """Evicted and admitted."""
        reads = sum(self.round.values())
        predicted = [
            0 if self.borders is None
            else sum(times for item, times in self.round.items() if self.score(m, item) > self.borders[m])
            for m in range(len(self.record))
        ]  # fmt: skip
        for count, half_life in enumerate(self.half_lives):
            decay = 2 ** (-reads / half_life)
            self.counts[count] = [value * decay for value in self.counts[count]]
            self.totals[count] = self.totals[count] * decay + reads
            for item, times in self.round.items():
                self.counts[count][item] += times
        decay = 2 ** (-reads / self.half_lives[0])
        self.record = [value * decay + hits for value, hits in zip(self.record, predicted, strict=True)]
        best = self.record.index(max(self.record))
        if self.record[best] > self.record[self.mixture] * (1 + self.settings.patience):
            self.mixture = best
        self._find_borders()
        return self._swap()

    def _find_borders(self) -> None:
        above = min(self.items, max(1, self.capacity))
        self.borders = []
        for mixture in range(len(self.record)):
            scores = [*sorted((self.score(mixture, item) for item in range(self.items)), reverse=True), 0.0]
            self.borders.append((scores[above - 1] + scores[above]) / 2)

    def _swap(self) -> tuple[set[int], set[int]]:
        assert self.borders is not None
        border = self.borders[self.mixture]

        def score(item: int) -> float:
            return self.score(self.mixture, item)

        most = -(-self.misses // round(1 / self.settings.admitted_per_miss))
        free = self.capacity - len(self.slots)
        candidates = [item for item in self.round if item not in self.slots and (free or score(item) > border)]
        candidates = sorted(candidates, key=lambda item: (-score(item), item))[:most]
        admitted, evicted = set(candidates[:free]), set()
        self.slots += candidates[:free]
        rest = [item for item in candidates[free:] if score(item) > border]
        low: list[int] = []
        for _ in range(min(len(self.slots), self.settings.scanned_per_candidate * len(rest))):
            if len(low) == len(rest):
                break
            self.hand %= len(self.slots)
            if score(self.slots[self.hand]) < border:
                low.append(self.hand)
            self.hand += 1
        low.sort(key=lambda place: (score(self.slots[place]), self.slots[place]))
        for item, place in zip(rest, low, strict=False):
            if score(item) > score(self.slots[place]) * (1 + self.settings.margin):
                evicted.add(self.slots[place])
                admitted.add(item)
                self.slots[place] = item
        self.round.clear()
        self.misses = 0
        return evicted, admitted


def slow_belady(reads: Sequence[int], capacity: int) -> list[bool]:
    """Filled for nothing; on a miss the item may be left out; what is read again last goes."""

    def next_read(item: int, after: int) -> int:
        return next((at for at in range(after, len(reads)) if reads[at] == item), len(reads))

    resident = set(sorted(set(reads), key=lambda item: next_read(item, 0))[:capacity])
    hits = []
    for at, item in enumerate(reads):
        hits.append(item in resident)
        resident.add(item)
        if len(resident) > capacity:
            resident.discard(max(resident, key=lambda held: next_read(held, at + 1)))
    return hits
