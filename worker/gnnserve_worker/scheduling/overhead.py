"""The overhead of batches beyond their computation: reading requests and writing answers, which no profile contains."""

from __future__ import annotations

from collections import deque

from gnnserve_worker.scheduling.curves import LARGEST_STEP, LEAST_GAIN, PROVEN_BATCHES


class Overhead:
    """Overhead of a batch beyond its computation: a fixed part, and a part for each request.

    It is a line through recent batches. While all batches have the same number of requests, the requests explain all of
    it.
    """

    __slots__ = (
        "_mean_ms", "_mean_product", "_mean_requests", "_mean_squared", "_recent", "_single_ms", "_singles", "_weight",
        "fixed_ms", "least_ms", "per_request_ms",
    )  # fmt: skip

    _MEMORY_BATCHES = 200.0
    _RECENT_BATCHES = 8
    _REPEATED = 3
    """An overhead that this many recent batches reached is not an outlier, and counts in full."""
    _ORDINARY_MS = 0.05
    """An overhead up to twice this is never an outlier; until the first batch nothing else is known."""
    _TOWARDS_MEAN = 0.25
    """Weight, in requests², of the assumption that requests explain all."""

    def __init__(self) -> None:
        self.fixed_ms = 0.0
        self.per_request_ms = 0.0
        self.least_ms = 0.0
        """Smallest overhead of a single request; 0 until it is known."""
        self._recent: deque[tuple[int, float]] = deque(maxlen=self._RECENT_BATCHES)
        """Requests and overhead (ms, not limited) of the recent batches."""
        self._weight = 0.0
        self._mean_requests = 0.0
        self._mean_ms = 0.0
        self._mean_squared = 0.0
        self._mean_product = 0.0
        self._single_ms = 0.0
        self._singles = 0

    def at(self, requests: float) -> float:
        return self.fixed_ms + self.per_request_ms * requests

    def observe(self, requests: int, took_ms: float) -> None:
        took_ms = max(0.0, took_ms)
        self._recent.append((requests, took_ms))
        took_ms = self._limited(requests, took_ms)
        self._weight = min(self._weight + 1, self._MEMORY_BATCHES)
        gain = 1 / self._weight
        self._mean_requests += gain * (requests - self._mean_requests)
        self._mean_ms += gain * (took_ms - self._mean_ms)
        self._mean_squared += gain * (requests * requests - self._mean_squared)
        self._mean_product += gain * (requests * took_ms - self._mean_product)
        mean = self._mean_requests
        ratio = self._mean_ms / mean
        slope = (self._mean_product - mean * self._mean_ms + self._TOWARDS_MEAN * ratio) / (
            self._mean_squared - mean * mean + self._TOWARDS_MEAN
        )
        self.per_request_ms = min(max(0.0, slope), ratio)
        self.fixed_ms = self._mean_ms - self.per_request_ms * mean
        if requests == 1:
            self._observe_single(took_ms)

    def _expected_ms(self, requests: int) -> float:
        return max(self.at(requests), self._ORDINARY_MS)

    def _limited(self, requests: int, took_ms: float) -> float:
        """An outlier counts as at most twice what is expected; an overhead that repeats itself is the new one."""
        expected_ms = self._expected_ms(requests)
        if took_ms <= LARGEST_STEP * expected_ms:
            return took_ms
        if len(self._recent) >= self._REPEATED:
            alike = sorted(recent_ms * expected_ms / self._expected_ms(n) for n, recent_ms in self._recent)
            expected_ms = max(expected_ms, alike[-self._REPEATED])
        return min(took_ms, LARGEST_STEP * expected_ms)

    def _observe_single(self, took_ms: float) -> None:
        self._singles += 1
        self._single_ms += max(LEAST_GAIN, 1 / self._singles) * (took_ms - self._single_ms)
        if self._singles == PROVEN_BATCHES:
            self.least_ms = self._single_ms
        elif self._singles > PROVEN_BATCHES:
            self.least_ms = min(self.least_ms, self._single_ms)
