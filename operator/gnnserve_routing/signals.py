"""Signals of what the workers did lately: from Prometheus' raw samples to the few figures that routing is decided by.

One instant query brings raw samples instead of `rate()`s, so that counter resets, missing scrapes, pods that come and
go, pods scraped twice and values that are no numbers are judged here, by one pure function, and a missing answer can
never look like no load. Embedded servers feed the same function with samples of their own registry.

Increases are those between samples that exist; nothing is extrapolated. Each worker's increase is divided by the time
between its own two samples. A counter that falls has restarted from 0, and what it shows since counts. A series that
begins within the window counts from its first sample, not from 0: whether its pod is new or Prometheus has only begun
to scrape it cannot be told, and a counter that grew for weeks would be taken for the load of seconds; what is lost is
at most one scrape of one new pod. Until a pod that has just become ready was scraped twice, it counts as without load:
what it is about to take, the others had in the interval that was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import msgspec

from gnnserve_api import decoding
from gnnserve_api.status.reasons import Reason
from gnnserve_api.wording import sentence

NAMESPACE_LABEL = "namespace"
"""Label of the namespace in Prometheus' usual Kubernetes configurations."""

_BATCH_METRICS = (
    "batches", "batch_seeds", "batch_seconds", "batch_seeds_squared", "batch_seed_seconds", "batch_wait_seconds"
)  # fmt: skip
_OFFERED, _REQUESTS = "offered_seeds", "requests"
_PREFIX, _SUFFIX = "gnnserve_", "_total"

_SHORTEST_WINDOW_S = 310.0
"""Shortest window: it always has two samples of a Prometheus that scrapes every two minutes."""
_LONGEST_SPAN_S = 300.0
"""Longest span that counts as present load, however long the interval is."""
_EARLY = 0.9
"""Scrapes are not quite regular: this share of the time between two, or of the span, counts as all of it."""
_CLOCK_RESOLUTION_S = 2.0
"""The Date of an answer is in whole seconds, and was set before the answer was on its way."""
_FUTURE_S = 10.0
"""Samples further ahead of Prometheus' own clock were stamped by another clock."""
_LARGEST_SHARE = 2.0
"""Largest ratio of all workers to those with samples: half of them may represent the rest."""
_LONGEST_WORDS = 300


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float
    """Unix time, by Prometheus' clock."""
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    labels: Mapping[str, str]
    """Labels, with the metric's name as `__name__`."""
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    series: tuple[Series, ...]
    now_s: float
    """Unix time of the answer, by the clock that stamps the samples."""


@dataclass(frozen=True, slots=True)
class Silence:
    """No usable measurement, which is not the same as no load: the last decision stays."""

    reason: Reason
    message: str
    """A sentence or two, without numbers that change by the second: it ends up in the status."""


@dataclass(frozen=True, slots=True)
class BatchSums:
    """Sums over the batches of one variant, enough to fit the cost of a batch and to tell what share of a worker it
    gets."""

    batches: float = 0.0
    seeds: float = 0.0
    seconds: float = 0.0
    seeds_squared: float = 0.0
    seed_seconds: float = 0.0
    wait_seconds: float = 0.0
    """Waits for others that share the worker, which are in neither of the sums of seconds."""

    def __add__(self, other: BatchSums) -> BatchSums:
        return BatchSums(
            self.batches + other.batches,
            self.seeds + other.seeds,
            self.seconds + other.seconds,
            self.seeds_squared + other.seeds_squared,
            self.seed_seconds + other.seed_seconds,
            self.wait_seconds + other.wait_seconds,
        )

    def __mul__(self, factor: float) -> BatchSums:
        return BatchSums(
            self.batches * factor,
            self.seeds * factor,
            self.seconds * factor,
            self.seeds_squared * factor,
            self.seed_seconds * factor,
            self.wait_seconds * factor,
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Numbers of requests by outcome."""

    met: float = 0.0
    """Answered within their latency objective."""
    late: float = 0.0
    refused: float = 0.0
    """Refused with 429."""
    unbounded: float = 0.0
    """Answered, without a latency objective."""

    @property
    def bounded(self) -> float:
        """Requests that have a latency objective."""
        return self.met + self.late + self.refused

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(
            self.met + other.met,
            self.late + other.late,
            self.refused + other.refused,
            self.unbounded + other.unbounded,
        )


@dataclass(frozen=True, slots=True)
class Signals:
    offered_seeds_per_s: float
    """Load of all workers, refused requests included; workers without samples count with the mean of the others, new
    ones with none."""
    variants: Mapping[str, BatchSums] = field(default_factory=dict)
    """Increases by variant, summed over the workers with samples."""
    outcomes: Outcomes = Outcomes()
    """Increases of the outcomes, summed likewise."""
    workers_seen: int = 1
    newest_s: float = 0.0
    """Unix time of the newest sample."""
    gap_s: float = 0.0
    """Time between two scrapes."""

    def is_newer_than(self, newest_s: float) -> bool:
        """Whether workers were scraped again since then; otherwise the same samples would count twice."""
        return abs(self.newest_s - newest_s) >= _EARLY * self.gap_s


def build_query(service: str, namespace: str | None, interval_s: float, namespace_label: str = NAMESPACE_LABEL) -> str:
    """PromQL for `GET /api/v1/query`. Without a namespace it matches every service of that name, for servers outside of
    a cluster."""
    names = "|".join((*_BATCH_METRICS, _OFFERED, _REQUESTS))
    matchers = [f'__name__=~"{_PREFIX}({names}){_SUFFIX}"', f"service={json.dumps(service)}"]
    if namespace is not None:
        matchers.append(f"{namespace_label}={json.dumps(namespace)}")
    return f"{{{','.join(matchers)}}}[{math.ceil(window_s(interval_s))}s]"


def window_s(interval_s: float) -> float:
    """How far back samples are used."""
    return max(_SHORTEST_WINDOW_S, 2 * _span_s(interval_s))


def parse_answer(body: bytes) -> tuple[Series, ...] | Silence:
    """Parse the answer of `GET /api/v1/query` to a query of `build_query`. Values that are not numbers become NaN."""
    try:
        said = decoding.decode(body, _Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        start = sentence(body[:80].decode(errors="replace"))
        return Silence(
            Reason.INVALID, f"The answer is not that of a Prometheus ({error}): {start!r}. Is this Prometheus?"
        )
    if said.status != "success" or said.data is None:
        words = sentence(said.error)[:_LONGEST_WORDS] or "it gives no reason"
        return Silence(Reason.INVALID, f"Prometheus refuses the query: {words}.")
    if said.data.result_type != "matrix":
        return Silence(Reason.INVALID, f"The answer is a {said.data.result_type!r} and no matrix. Is this Prometheus?")
    return tuple(
        Series(found.metric, tuple(Sample(time_s, _number(value)) for time_s, value in found.values))
        for found in said.data.result
    )


def read_signals(  # noqa: PLR0911 - a ladder, one rung a doubt
    answer: QueryAnswer, *, interval_s: float, workers: int, ready_since_s: Mapping[str, float] | None = None
) -> Signals | Silence:
    """Derive signals. `workers`: number of ready workers; `ready_since_s`: unix time since when each pod is ready,
    where they are pods."""
    found = _by_worker(answer.series)
    if not found:
        return Silence(
            Reason.NO_DATA,
            "Prometheus answers, and has no samples of this service's workers. Does it scrape their pods, and do the "
            "samples have the labels service and namespace?",
        )
    usable = {worker: counters for worker, counters in found.items() if counters.get(_OFFERED_KEY)}
    if not usable:
        return Silence(Reason.INVALID, "The workers' samples in Prometheus are no numbers.")
    newest_s = max(_newest_s(counters) for counters in usable.values())
    if newest_s - answer.now_s > _FUTURE_S:
        return Silence(Reason.INVALID, "Prometheus has samples from the future: correct the clock of what stamps them.")
    gap_s = _gap_s(usable.values())
    if gap_s is None:
        return _SCRAPED_ONCE
    limit_s = max(2 * interval_s, 2.5 * gap_s) + _CLOCK_RESOLUTION_S
    if answer.now_s - newest_s > limit_s:
        return Silence(
            Reason.STALE,
            f"Prometheus has had no sample of the workers for over {limit_s:.0f} s, by its own clock. Does it scrape "
            "their pods?",
        )
    # The load of pods that left is on others by now; a pod that missed one scrape may come back.
    since_s = ready_since_s or {}
    present = usable.keys() & since_s.keys() or {
        worker for worker, counters in usable.items() if newest_s - _newest_s(counters) <= 2 * gap_s
    }
    span_s = _span_s(interval_s)
    seen = {
        worker: measured
        for worker in sorted(present)
        if newest_s - _newest_s(usable[worker]) <= limit_s
        and (measured := _measure(usable[worker], span_s)) is not None
    }
    if not seen:
        return _SCRAPED_ONCE
    patience_s = 2 * gap_s + _CLOCK_RESOLUTION_S
    new = sum(answer.now_s - at_s <= patience_s for worker, at_s in since_s.items() if worker not in seen)
    share = max((workers - new) / len(seen), 1.0)
    if share > _LARGEST_SHARE:
        return Silence(
            Reason.PARTIAL, "Prometheus sees fewer than half of the ready workers. Does it scrape all of their pods?"
        )
    variants: dict[str, BatchSums] = {}
    outcomes = Outcomes()
    for measured in seen.values():
        outcomes += measured.outcomes
        for variant, sums in measured.variants.items():
            variants[variant] = variants.get(variant, BatchSums()) + sums
    offered = sum(measured.offered_seeds_per_s for measured in seen.values()) * share
    return Signals(offered, variants, outcomes, len(seen), newest_s, gap_s)


# --- inside

_SCRAPED_ONCE = Silence(Reason.NO_DATA, "Prometheus has one sample of each worker so far; the next scrape gives rates.")
_Counters = dict[tuple[str, str], tuple[Sample, ...]]
"""Samples of one worker, by metric and by variant or outcome."""
_OFFERED_KEY = (_OFFERED, "")
_OWN_LABELS = {_OFFERED: None, _REQUESTS: "outcome", **dict.fromkeys(_BATCH_METRICS, "variant")}


class _FoundSeries(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_FoundSeries]


class _Body(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _span_s(interval_s: float) -> float:
    return min(interval_s, _LONGEST_SPAN_S)


def _by_worker(series: Sequence[Series]) -> dict[str, _Counters]:
    """Group series by worker: its pod, or without that label its instance. A worker that is scraped twice, by two jobs
    or Prometheuses, is taken from the source with the most samples."""
    pod_of = {s.labels["instance"]: s.labels["pod"] for s in series if "instance" in s.labels and "pod" in s.labels}
    sources: dict[str, dict[tuple[tuple[str, str], ...], _Counters]] = {}
    for one in series:
        metric = one.labels.get("__name__", "").removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if metric not in _OWN_LABELS:
            continue
        own = _OWN_LABELS[metric]
        instance = one.labels.get("instance", "")
        worker = one.labels.get("pod") or pod_of.get(instance) or instance
        source = tuple(sorted((k, v) for k, v in one.labels.items() if k not in {"__name__", own}))
        good = sorted(
            (s for s in one.samples if math.isfinite(s.value) and s.value >= 0 and math.isfinite(s.time_s)), key=_time_s
        )
        counters = sources.setdefault(worker, {}).setdefault(source, {})
        counters[metric, one.labels.get(own, "") if own else ""] = tuple(good)
    return {
        worker: max(found.items(), key=lambda item: (_newest_s(item[1]), len(item[1].get(_OFFERED_KEY, ())), item[0]))[
            1
        ]
        for worker, found in sources.items()
    }


def _time_s(sample: Sample) -> float:
    return sample.time_s


def _newest_s(counters: _Counters) -> float:
    samples = counters.get(_OFFERED_KEY)
    return samples[-1].time_s if samples else -math.inf


def _gap_s(workers: Iterable[_Counters]) -> float | None:
    """Time between two scrapes; None: there was only one."""
    gaps = [after.time_s - at.time_s for counters in workers for at, after in pairwise(counters[_OFFERED_KEY])]
    return median(gaps) if gaps else None


@dataclass(frozen=True, slots=True)
class _WorkerMeasurement:
    """Measurements of one worker."""

    offered_seeds_per_s: float
    variants: Mapping[str, BatchSums]
    outcomes: Outcomes


def _measure(counters: _Counters, span_s: float) -> _WorkerMeasurement | None:
    """Measure over the last span, or the last two samples where they lie further apart; None: there is only one
    sample."""
    samples = counters[_OFFERED_KEY]
    last_s = samples[-1].time_s
    begins = [sample.time_s for sample in samples if sample.time_s < last_s]
    if not begins:
        return None
    begin_s = max((time_s for time_s in begins if time_s <= last_s - _EARLY * span_s), default=begins[0])
    grown = {key: _increase(found, begin_s) for key, found in counters.items()}
    names = {label for metric, label in counters if metric == "batches"}
    return _WorkerMeasurement(
        grown[_OFFERED_KEY] / (last_s - begin_s),
        {name: BatchSums(*(grown.get((metric, name), 0.0) for metric in _BATCH_METRICS)) for name in names},
        Outcomes(
            **{label: value for (metric, label), value in grown.items() if metric == _REQUESTS and label in _ENDS}
        ),
    )


_ENDS = frozenset(Outcomes.__slots__)


def _increase(samples: tuple[Sample, ...], begin_s: float) -> float:
    values = [sample.value for sample in samples if sample.time_s >= begin_s]
    return sum(after - at if after >= at else after for at, after in pairwise(values))
