"""Changes through HTTP: how many a second last, how soon another worker has them, and what predictions pay.

One `gnnserve run` on a service (of a shape: with stored1 kept exact) and the log in SQLite; for arrivals a second one
beside it, which follows the same log. Client and servers share the machine. Each measurement begins with an empty log.
"""

from __future__ import annotations

import math
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import yaml

from benchmarks.accuracy.live_accuracy_shadows import compare
from benchmarks.answers.serving import running_server
from benchmarks.changes.updates_applied import CHANGES_PATH, AppliedWatch, settled_end
from benchmarks.changes.updates_connection import Connection
from benchmarks.changes.updates_graph import BATCHES, REPOSITORY, STORED, Subject, living_manifest, publish
from benchmarks.changes.updates_measured import Arrival, DurableRate, PredictionCost, ServiceFigures
from benchmarks.changes.updates_sender import Sender, Sent, sending
from benchmarks.wrk import Load as WrkLoad
from benchmarks.wrk import encode_post, generate_load, write_requests
from gnnserve_api.http.changes import CHANGES_TYPE, ChangesAnswer
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.loadgen.generator import generate_load as generate_predictions
from gnnserve_cli.loadgen.requests import Requests, build_predictions
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import LoadPlan
from gnnserve_client.address import Endpoint
from gnnserve_worker.graph.change_batch import ChangeBatch, encode_batch
from gnnserve_worker.repository.paths import ServicePaths
from gnnserve_worker.repository.repository import Repository

CLIENTS = 8
PREDICTION_LOAD = 0.7
"""Share of the capacity, which is measured without changes."""
UPDATE_SHARES = (0.5, 0.1)
"""Offered changes over the rate that 8 clients reach with nothing else to do."""
_PACED_BATCH = 100
_MOST_PER_S = {1: 20_000, 100: 5_000, 1000: 1_000}
"""Requests that are prepared for a second of the first load, by batch size."""
_MOST_BYTES = 600 << 20
"""What wrk holds in memory."""
_PREDICTED_SEEDS, _CONNECTIONS, _TIMEOUT_S = 1024, 16, 20.0
_PROBE_GAP_S = 0.02


@dataclass(frozen=True, slots=True)
class ServiceEffort:
    seconds: int
    """Time of each load of changes."""
    probes: int
    """Batches whose arrival is measured, by load."""
    rounds: int
    round_s: float
    shares: tuple[float, ...]
    batches: tuple[int, ...] = BATCHES


QUICK = ServiceEffort(seconds=1, probes=20, rounds=2, round_s=1.0, shares=(0.1,), batches=(100,))
FULL = ServiceEffort(seconds=10, probes=500, rounds=9, round_s=4.0, shares=UPDATE_SHARES)


class Load(StrEnum):
    """A measurement of a service, of up to five minutes."""

    RATES = "rates"
    """Durable changes per second."""
    ARRIVALS = "arrivals"
    """Time until another worker has them."""
    PREDICTIONS = "predictions"
    """Latency of predictions beside changes."""


def measure_service(
    name: str, effort: ServiceEffort, loads: Sequence[Load] = tuple(Load), before: ServiceFigures | None = None
) -> ServiceFigures:
    """`before`: figures of the same commit, of which those stay that are not among `loads`. The rates come first: the
    others are measured at shares of them."""
    figures = before or ServiceFigures(STORED, (), (), ())
    with tempfile.TemporaryDirectory(prefix="gnnserve-updates-") as folder:
        bench = Bench(subject_of(name), Path(folder))
        if Load.RATES in loads:
            rates = tuple(bench.durable_rate(batch, effort.seconds) for batch in effort.batches)
            figures = msgspec.structs.replace(figures, rates=rates)
        if not figures.rates:
            raise SystemExit(f"{name}: no rates were measured of this commit: begin with --loads {Load.RATES}")
        best_per_s = max(rate.changes_per_s for rate in figures.rates)
        if Load.ARRIVALS in loads:
            offered_per_s = (0.0, min(effort.shares) * best_per_s)
            arrivals = tuple(bench.arrival(offered, effort.probes) for offered in offered_per_s)
            figures = msgspec.structs.replace(figures, arrivals=arrivals)
        if Load.PREDICTIONS in loads:
            costs = tuple(bench.prediction_cost(share, best_per_s, effort) for share in effort.shares)
            figures = msgspec.structs.replace(figures, predictions=costs)
    return figures


class Stream(Protocol):
    """Batches of random changes without end."""

    def batches(self, size: int, count: int) -> Iterator[ChangeBatch]: ...


@dataclass(frozen=True, slots=True)
class ServedSubject:
    """A service whose revision is published, and what it is asked while its graph changes."""

    manifest: Mapping[str, Any]
    """Its GNNService, without what is said of changes."""
    stream: Callable[[int], Stream]
    """Changes for a seed."""
    requests: Callable[[Endpoint], Requests]


def subject_of(name: str) -> ServedSubject:
    """The service of a shape, which predicts by stored1."""
    subject = Subject(*publish(name))

    def requests(endpoint: Endpoint) -> Requests:
        return build_predictions(endpoint, subject.graph.nodes, _PREDICTED_SEEDS, None, 1, binary=True)

    manifest = living_manifest(name, {"routing": {"mode": "Static", "variant": STORED}})
    return ServedSubject(manifest, subject.stream, requests)


class Bench:
    """A service, and changes for it."""

    def __init__(self, subject: ServedSubject, folder: Path) -> None:
        self._folder, self._subject = folder, subject
        spec = {**subject.manifest["spec"], "updates": {"log": {"sqlite": {}}, "maxDelta": "128Gi"}}
        service = GNNService.model_validate({**subject.manifest, "spec": spec})
        repository = Repository(REPOSITORY, service.metadata.namespace, service.metadata.name)
        self._logs = ServicePaths(repository.folder).updates
        self._manifest, self._tokens = folder / "service.yaml", folder / "tokens"
        self._manifest.write_text(yaml.safe_dump({**subject.manifest, "spec": spec}, sort_keys=False))
        self._token = secrets.token_hex()
        self._tokens.write_text(f"{self._token}\n")

    @contextmanager
    def serving(self, *, anew: bool = True) -> Iterator[Endpoint]:
        """`anew`: over an empty log."""
        if anew:
            shutil.rmtree(self._logs, ignore_errors=True)
        with running_server(self._manifest, REPOSITORY, ("--write-token-file", str(self._tokens))) as endpoint:
            yield endpoint

    # --- durable changes per second

    def durable_rate(self, batch: int, seconds: int) -> DurableRate:
        stream = self._subject.stream(batch)
        with self.serving() as endpoint:
            # At first pages are copied, and sums are made.
            first = self._load(endpoint.port, stream, batch, _MOST_PER_S[batch] * seconds, seconds)
            load = self._load(endpoint.port, stream, batch, 4 * first.requests + 1000, seconds)
            ends_at = settled_end(endpoint.port)
        sent = first.requests + load.requests
        # Those in flight at the end of a load may have become durable unseen; and each load tries one first.
        if not sent + 2 <= ends_at <= sent + 2 + 2 * CLIENTS:
            raise SystemExit(f"{sent:,} batches were acknowledged, and the log ends at {ends_at:,}")
        per_s = round(load.requests_per_s * batch)
        print(f"batches of {batch}: {per_s:,} durable changes/s, p99 {load.p99_ms:.2f} ms", flush=True)
        return DurableRate(
            batch, round(first.requests_per_s * batch), per_s, load.p50_ms, load.p99_ms, load.requests, seconds
        )

    def _load(self, port: int, stream: Stream, batch: int, count: int, seconds: int) -> WrkLoad:
        file = self._folder / "changes"
        first = next(self._requests(port, stream, batch, 1))
        connection = Connection(port)
        if (reply := connection.send(first)).status != 200:
            raise SystemExit(f"a batch is answered {reply.status}: {reply.body[:300].decode()}")
        connection.close()
        count = min(count, _MOST_BYTES // len(first))
        write_requests(file, self._requests(port, stream, batch, count))
        load = generate_load(port, file, CLIENTS, seconds)
        if load.errors or load.requests > count:
            raise SystemExit(
                f"{load.requests:,} of {count:,} batches were sent, errors {load.errors}: no figure to report"
            )
        return load

    def _requests(self, port: int, stream: Stream, batch: int, count: int) -> Iterator[bytes]:
        headers = {"Authorization": f"Bearer {self._token}"}
        for made in stream.batches(batch, count):
            yield encode_post(port, CHANGES_PATH, CHANGES_TYPE, encode_batch(made), headers)

    # --- arrival at another worker

    def arrival(self, offered_per_s: float, probes: int) -> Arrival:
        stream = self._subject.stream(17)
        with self.serving() as first, self.serving(anew=False) as second:
            seconds = probes * _PROBE_GAP_S * 2
            with self._paced(first.port, stream, offered_per_s, seconds) as sender:
                if sender is not None:
                    sender.begin(seconds)
                acknowledged = self._probe(first.port, second.port, stream, probes)
                if sender is not None:
                    sender.end()
        p50_ms, p99_ms = np.percentile(acknowledged, (50, 99)).round(3).tolist()
        print(f"{offered_per_s:,.0f} changes/s: arrival p99 {p99_ms:.2f} ms", flush=True)
        return Arrival(round(offered_per_s), p50_ms, p99_ms, probes)

    def _probe(self, first: int, second: int, stream: Stream, probes: int) -> list[float]:
        """Milliseconds from acknowledgement to arrival, of each probe; 0: it was there before."""
        requests = [*self._requests(first, stream, 10, probes)]
        connection, acknowledged = Connection(first), []
        with AppliedWatch(second) as watch:
            for request in requests:
                time.sleep(_PROBE_GAP_S)
                reply = connection.send(request)
                answered_s = time.perf_counter()
                if reply.status != 200:
                    raise SystemExit(f"a probe is answered {reply.status}: {reply.body[:300].decode()}")
                acknowledged.append((msgspec.json.decode(reply.body, type=ChangesAnswer).offset, answered_s))
            watch.wait_for(acknowledged[-1][0])
        connection.close()
        return [1e3 * max(0.0, watch.arrived_s(offset) - answered_s) for offset, answered_s in acknowledged]

    @contextmanager
    def _paced(
        self, port: int, stream: Stream, changes_per_s: float, seconds: float
    ) -> Iterator[Sender | None]:  # fmt: skip
        """A process that sends so many changes per second; None: none at all. `seconds`: in all."""
        per_s = changes_per_s / _PACED_BATCH
        if not changes_per_s:
            yield None
            return
        file = self._folder / "paced"
        write_requests(file, self._requests(port, stream, _PACED_BATCH, math.ceil(per_s * seconds) + CLIENTS))
        with sending(port, file, per_s) as sender:
            yield sender

    # --- predictions

    def prediction_cost(self, share: float, best_per_s: int, effort: ServiceEffort) -> PredictionCost:
        changes_per_s = share * best_per_s
        seconds = (effort.rounds + 1) * effort.round_s
        with self.serving() as endpoint:
            requests = self._subject.requests(endpoint)
            found: dict[bool, list[np.ndarray]] = {False: [], True: []}
            acknowledged: list[Sent] = []
            stream, batch = self._subject.stream(23), max(BATCHES)
            # So that pages are copied and sums are made, as in a server that has been up for a while.
            self._load(endpoint.port, stream, batch, _MOST_PER_S[batch] * effort.seconds, effort.seconds)
            # Of the graph as it is from here on: a million changes make it larger, and its rows dearer to read.
            rate_per_s = PREDICTION_LOAD * _capacity(endpoint, requests, effort.round_s)
            with self._paced(endpoint.port, stream, changes_per_s, seconds) as sender:
                assert sender is not None  # noqa: S101
                for number in range(-1, effort.rounds):  # the first pair warms up
                    for changes in (False, True) if number % 2 else (True, False):
                        if changes:
                            sender.begin(effort.round_s)
                        latencies_ms = _predict(endpoint, requests, rate_per_s, effort.round_s, number + 1)
                        sent = sender.end() if changes else None
                        if number >= 0:
                            found[changes].append(latencies_ms)
                            acknowledged += [] if sent is None else [sent]
        compared = compare(found[False], found[True], rate_per_s)
        print(f"{changes_per_s:,.0f} changes/s: p99 of requests {compared.ratio:.2f} times as long", flush=True)
        return PredictionCost(
            round(changes_per_s), share, round(rate_per_s, 1), round(compared.p99_without_ms, 3),
            round(compared.p99_with_ms, 3), round(compared.ratio, 3), round(compared.low, 3), round(compared.high, 3),
            round(float(np.median([sent.p99_ms for sent in acknowledged])), 3), compared.requests,
            round(_PACED_BATCH * sum(sent.in_time for sent in acknowledged) / (effort.rounds * effort.round_s)),
        )  # fmt: skip


def _capacity(endpoint: Endpoint, requests: Requests, seconds: float) -> float:
    """Requests per second in a closed loop."""
    plan = LoadPlan(_CONNECTIONS, seconds, requests.seeds_each)
    for _ in range(2):  # the first warms up
        record = generate_predictions(endpoint, requests, plan, None, _TIMEOUT_S)
    return len(record.rows) / seconds


def _predict(endpoint: Endpoint, requests: Requests, rate_per_s: float, seconds: float, seed: int) -> np.ndarray:
    """Latencies in ms of an open loop, from when each request was due."""
    plan = LoadPlan(_CONNECTIONS, seconds, requests.seeds_each, rate_per_s=rate_per_s)
    schedule = build_schedule(Arrivals.POISSON, rate_per_s, seconds, seed)
    record = generate_predictions(endpoint, requests, plan, schedule, _TIMEOUT_S)
    if record.errors or set(record.statuses) != {200}:
        raise SystemExit(f"predictions failed: {dict(record.errors)}, {dict(record.statuses)}")
    return np.array(record.latencies_ms)
