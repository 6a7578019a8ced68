"""One worker in simulated time: the worker's own queue and decisions, with arrivals and batch times that are drawn.

The assumptions are those of a study that compared policies of routing: variants 1x, 2x, 4x, 8x, of which a batch of s
seeds takes a + b·s; only accuracy and full-batch time of 1x and 8x are measured figures (a Reddit-like and a
Products-like graph), the rest is invented; so are request sizes (log-normal, mean 48), noise (5 %, and 0.5 % of stalls
of 2.5 times) and objectives. Draws come in the same order as there, so that figures compare trace by trace.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnserve_api.files.profile import LatencyProfile, Profile, VariantProfile
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import RoutingMode, RoutingTable
from gnnserve_api.variants import Storage
from gnnserve_worker.scheduling.batcher import Batcher
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.variants import VariantChooser

MAX_SEEDS = 1024
MAX_QUEUED_SEEDS = 1 << 24
MEAN_SEEDS = 48.0
FIXED_SHARE = 0.25
"""Fixed part of a full batch's time."""
NAMES = ("x1", "x2", "x4", "x8")
TRACES = ("poisson0.6", "poisson1.5", "gamma2", "gamma4", "gamma8", "onoff", "diurnal", "step4", "flash")
_RETRY_AFTER_MS = 20.0


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    accuracy: tuple[float, ...]
    """Points."""
    full_ms: tuple[float, ...]
    objective_ms: float

    def batch_ms(self, variant: int, seeds: float) -> float:
        full_ms = self.full_ms[variant]
        return FIXED_SHARE * full_ms + (1 - FIXED_SHARE) * full_ms * seeds / MAX_SEEDS

    def capacity(self, variant: int) -> float:
        """Seeds per ms, when a batch may last half the objective."""
        fixed_ms = FIXED_SHARE * self.full_ms[variant]
        per_seed_ms = (self.batch_ms(variant, MAX_SEEDS) - fixed_ms) / MAX_SEEDS
        seeds = min(MAX_SEEDS, (self.objective_ms / 2 - fixed_ms) / per_seed_ms)
        return seeds / self.batch_ms(variant, seeds)

    def profile(self) -> Profile:
        return Profile(
            metric="accuracy",
            machine="simulated",
            threads=1,
            validation_nodes=1,
            test_nodes=1,
            variants=tuple(map(self._variant, range(len(NAMES)))),
        )

    def _variant(self, variant: int) -> VariantProfile:
        points = [(seeds, self.batch_ms(variant, seeds)) for seeds in (1, MAX_SEEDS)]
        return VariantProfile(
            name=NAMES[variant], factor=1 << variant, table="features-float32", columns=1, storage=Storage.FLOAT32,
            projected=False, compute="float32", validation_accuracy=self.accuracy[variant] / 100,
            test_accuracy=self.accuracy[variant] / 100, test_latency=None, size_bytes=0, memory_bytes=0,
            latency=tuple(
                LatencyProfile(
                    seeds=seeds, runs=1, p50_ms=ms, p99_ms=ms, mean_ms=ms, std_ms=0, sample_ms=0, gather_ms=0,
                    compute_ms=0, gathered_bytes=0, window_p50_ms=0, window_mean_ms=0, window_std_ms=0,
                )
                for seeds, ms in points
            ),
        )  # fmt: skip


REDDIT = Model("reddit", (94.42, 94.25, 93.92, 93.30), (51.86, 29.45, 16.73, 9.50), 120.0)
PRODUCTS = Model("products", (72.43, 71.10, 68.45, 63.58), (12.40, 8.21, 5.44, 3.60), 30.0)
MODELS = {model.name: model for model in (REDDIT, PRODUCTS)}


@dataclass(frozen=True, slots=True)
class Class:
    """A kind of request."""

    name: str
    share: float
    latency: float | None
    """Latency as a multiple of the model's objective."""
    loss: float | None
    """Loss that a request tolerates, as a share of the range of accuracy."""

    def objective(self, model: Model) -> Objective:
        span = model.accuracy[0] - model.accuracy[-1]
        return Objective(
            latency_ms=None if self.latency is None else self.latency * model.objective_ms,
            accuracy_tolerance_permille=None if self.loss is None else 10 * span * self.loss + 1e-6,
        )


ALL_ALIKE = (Class("all", 1.0, 1.0, None),)
MIXED = (
    Class("strict", 0.2, 1.0, 0.16),
    Class("balanced", 0.4, 1.0, 1.0),
    Class("patient", 0.2, 4.0, 1.0),
    Class("hurried", 0.2, 0.4, 1.0),
)
"""The study's classes, except its hurried one, which wanted the lowest latency within a deadline: a request cannot ask
for both here, so it asks for the best accuracy within that deadline."""


@dataclass(frozen=True, slots=True)
class Trace:
    arrived_ms: np.ndarray
    seeds: np.ndarray


def draw_trace(kind: str, seed: int, model: Model, duration_ms: float) -> Trace:
    """Open-loop arrivals: gamma renewals in operational time, warped by the rate. Loads in units of 1x's capacity."""
    draw = np.random.default_rng([seed, sum(map(ord, kind))])
    times_ms = np.arange(0, duration_ms, 10.0)
    squared_variation, load = 1.0, np.full(times_ms.size, 1.2)
    third_ms = duration_ms / 3
    if kind.startswith("poisson"):
        load[:] = float(kind.removeprefix("poisson"))
    elif kind.startswith("gamma"):
        squared_variation = float(kind.removeprefix("gamma"))
    elif kind == "onoff":
        gaps_ms = draw.exponential(np.tile([2000.0, 1000.0], int(duration_ms / 1500) + 50))
        is_on = np.searchsorted(np.cumsum(gaps_ms), times_ms) % 2 == 1
        load = np.where(is_on, 3.0, 0.3)
    elif kind == "diurnal":
        squared_variation, load = 2.0, 0.2 + 3.3 * np.sin(np.pi * times_ms / duration_ms) ** 2
    elif kind == "step4":
        load = np.where((times_ms > third_ms) & (times_ms < 2 * third_ms), 2.8, 0.7)
    elif kind == "flash":
        since_ms = times_ms - third_ms
        load = 0.6 * (1 + 11 * np.clip(since_ms / 2000, 0, 1) * np.exp(-np.clip(since_ms - 2000, 0, None) / 15_000))
    else:
        raise ValueError(f"trace {kind!r} is unknown; there are {', '.join(TRACES)}")
    cumulative = np.concatenate([[0.0], np.cumsum(load * model.capacity(0) / MEAN_SEEDS * 10.0)])
    expected = cumulative[-1]
    gaps = draw.gamma(
        1 / squared_variation, squared_variation,
        int(expected * 1.1 + 20 * math.sqrt(expected * squared_variation) + 100),
    )  # fmt: skip
    operational = np.cumsum(gaps)
    arrived_ms = np.interp(operational[operational < expected], cumulative, np.append(times_ms, duration_ms))
    seeds = np.clip(draw.lognormal(math.log(MEAN_SEEDS) - 0.32, 0.8, arrived_ms.size), 1, 512).astype(np.int64)
    return Trace(arrived_ms, seeds)


@dataclass(frozen=True, slots=True)
class Setting:
    classes: tuple[Class, ...] = ALL_ALIKE
    drift: tuple[float, float, float] = (0.0, 0.0, 1.0)
    """Start and end (ms), and how many times slower than profiled the device is in between."""
    retries: int = 0
    """Clients give up at twice their objective, and try so many times more; a refusal does not make them hurry."""
    mode: RoutingMode = RoutingMode.ADAPTIVE


@dataclass(slots=True)
class Log:
    """Outcome of each try; tries of a request follow each other by `request`."""

    arrived_ms: list[float] = field(default_factory=list)
    request: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    """Index of its class."""
    finished_ms: list[float] = field(default_factory=list)
    """Infinite: refused."""
    variant: list[int] = field(default_factory=list)
    largest_queue_seeds: int = 0
    batches: int = 0
    shares: list[int] = field(default_factory=lambda: [0] * len(NAMES))
    """Answers by variant."""


def simulate(model: Model, trace: Trace, setting: Setting, seed: int) -> Log:
    """Tells the worker's own code when what happens; it tells what it would do."""
    chooser = VariantChooser(model.profile(), MAX_SEEDS)
    batcher = Batcher(chooser, RoutingTable(revision="r", recipe="r", mode=setting.mode), MAX_QUEUED_SEEDS)
    objectives = [each.objective(model) for each in setting.classes]
    patience_ms = [2 * (each.latency or math.inf) * model.objective_ms for each in setting.classes]
    kinds = np.random.default_rng([seed, 7]).choice(
        len(setting.classes), trace.arrived_ms.size, p=[each.share for each in setting.classes]
    ).tolist()  # fmt: skip
    log = Log()
    noise = np.random.default_rng([seed, 11])
    factors: list[float] = []
    retries: list[tuple[float, int, int]] = []
    """When, which request, which try."""
    arrivals, seeds = trace.arrived_ms.tolist(), trace.seeds.tolist()
    index = {name: NAMES.index(name) for name in NAMES}
    total, next_fresh, now_ms = len(arrivals), 0, 0.0
    from_ms, to_ms, slowdown = setting.drift

    def admit(request: int, at_ms: float, attempt: int) -> None:
        key = len(log.arrived_ms)
        log.arrived_ms.append(at_ms)
        log.request.append(request)
        log.kind.append(kinds[request])
        log.finished_ms.append(math.inf)
        log.variant.append(-1)
        batcher.admit(Request(key, seeds[request], objectives[kinds[request]], at_ms), False, at_ms)
        if attempt < setting.retries:
            heapq.heappush(retries, (at_ms + patience_ms[kinds[request]], key, attempt))

    def arrive_until(limit_ms: float) -> None:
        nonlocal next_fresh
        while True:
            fresh_ms = arrivals[next_fresh] if next_fresh < total else math.inf
            again_ms = retries[0][0] if retries else math.inf
            if min(fresh_ms, again_ms) > limit_ms:
                return
            if fresh_ms <= again_ms:
                next_fresh += 1
                admit(next_fresh - 1, fresh_ms, 0)
            else:
                _, key, attempt = heapq.heappop(retries)
                if log.finished_ms[key] > again_ms:
                    admit(log.request[key], again_ms + _RETRY_AFTER_MS, attempt + 1)

    while True:
        arrive_until(now_ms)
        log.largest_queue_seeds = max(log.largest_queue_seeds, batcher.queue.seeds)
        batch = batcher.take(now_ms).batch
        if batch is None:
            fresh_ms = arrivals[next_fresh] if next_fresh < total else math.inf
            now_ms = max(now_ms, min(fresh_ms, retries[0][0] if retries else math.inf))
            if now_ms == math.inf:
                return log
            continue
        if not factors:
            stalls = np.where(noise.random(4096) < 0.005, 2.5, 1.0)
            factors = (np.exp(0.05 * noise.standard_normal(4096)) * stalls).tolist()
        variant = index[batch.variant]
        took_ms = model.batch_ms(variant, batch.seeds) * factors.pop()
        if from_ms <= now_ms < to_ms:
            took_ms *= slowdown
        end_ms = now_ms + took_ms
        arrive_until(end_ms)
        now_ms = end_ms
        batcher.finish()
        batcher.observe(batch, took_ms, took_ms, now_ms)
        log.batches += 1
        log.shares[variant] += len(batch.pieces)
        for piece in batch.pieces:
            if piece.last:
                log.finished_ms[piece.request.key] = now_ms
                log.variant[piece.request.key] = variant


@dataclass(frozen=True, slots=True)
class Result:
    attained: float
    """Percent of the requests that were answered in time."""
    accuracy: float
    """Points; mean over those."""
    p50_ms: float
    p99_ms: float


def judge(model: Model, log: Log, setting: Setting, first_ms: float = 0.0, last_ms: float = math.inf) -> list[Result]:
    """Judges requests between these times, by class and first tries only. Raises where a tolerance was violated."""
    arrived = np.array(log.arrived_ms)
    latency_ms = np.array(log.finished_ms) - arrived
    variant, kind, request = np.array(log.variant), np.array(log.kind), np.array(log.request)
    _, first_tries = np.unique(request, return_index=True)
    is_first = np.zeros(arrived.size, bool)
    is_first[first_tries] = True
    accuracy = np.array(model.accuracy)
    results = []
    for index, each in enumerate(setting.classes):
        objective = each.objective(model)
        own = is_first & (kind == index) & (arrived >= first_ms) & (arrived < last_ms)
        answered = own & np.isfinite(latency_ms)
        tolerance = objective.accuracy_tolerance_permille
        if tolerance is not None and (10 * (accuracy[0] - accuracy[variant[answered]]) > tolerance + 1e-6).any():
            raise AssertionError(f"class {each.name}: a tolerance of {tolerance:g} permille was violated")
        met = answered & (latency_ms <= (objective.latency_ms or math.inf))
        if not met.any():
            results.append(Result(0.0, math.nan, math.nan, math.nan))
            continue
        p50_ms, p99_ms = np.percentile(latency_ms[answered], [50, 99])
        results.append(
            Result(100 * met.sum() / own.sum(), float(accuracy[variant[met]].mean()), float(p50_ms), float(p99_ms))
        )
    return results


def mean_of(results: Sequence[Result]) -> Result:
    return Result(*(float(np.mean([getattr(result, name) for result in results])) for name in Result.__slots__))
