"""Requests all the while that something else happens: what no user may notice."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
from collections import Counter
from types import TracebackType

from tests.cluster.harness.client import wait_for
from tests.cluster.harness.services import Service

from gnnserve_cli.client import fetch_variants
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.requests import build_predictions
from gnnserve_cli.loadgen.schedule import Arrivals, build_schedule
from gnnserve_cli.loadgen.statistics import LoadPlan
from gnnserve_client.address import parse_url

THREADS = 4
KEPT_ALIVE = 20
"""Requests on a connection before a new one: both old connections and new ones must survive."""
BURST = 5
"""Requests one after another before a pause: connections must survive in the midst of an answer and while they wait."""
PAUSE_S = 0.1
"""Without one, clients and workers would take the processors from all else that goes on: as long as there are several
requests in the shortest time that a user could notice, more of them find nothing more."""


class Load:
    """Load from this machine to the Service's address, by several clients; a refusal is a failure too."""

    def __init__(self, service: Service) -> None:
        self.revisions: Counter[str] = Counter()
        self.failures: list[str] = []
        self._host = service.address()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(THREADS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.until_more_answers(THREADS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def until_answered_by(self, revision: str) -> None:
        wait_for(f"answers from revision {revision}", lambda: self.revisions[revision] > 0)

    def until_more_answers(self, count: int) -> None:
        wanted = self.revisions.total() + count
        wait_for(f"{count} more answers", lambda: self.revisions.total() >= wanted)

    def _ask(self, number: int) -> None:
        body, pauses = json.dumps({"nodes": [number]}), random.Random(number)  # noqa: S311 - no secret
        connection: http.client.HTTPConnection | None = None
        while not self._stopping.is_set():
            if connection is None:
                connection = http.client.HTTPConnection(self._host, 80, timeout=10)
                left = KEPT_ALIVE
            try:
                connection.request("POST", "/v1/predict", body, {"content-type": "application/json"})
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                self._note_failure(f"{type(error).__name__}: {error}")
                connection.close()
                connection = None
                continue
            if response.status != 200:
                self._note_failure(f"{response.status}: {text[:200]!r}")
            else:
                with self._lock:
                    self.revisions[json.loads(text)["revision"]] += 1
            left -= 1
            if left % BURST == 0:
                # Of other lengths each time: in step, the clients would all pause together, and miss what happens then.
                self._stopping.wait(PAUSE_S * pauses.uniform(0.2, 1.8))
            if response.will_close or left == 0:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _note_failure(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)


class OpenLoad:
    """Load of so many seeds a second, whether or not they are answered; refusals do not count."""

    CONNECTIONS = 128
    """Enough for all that wait when the service is late."""
    LONGEST_S = 3600.0

    def __init__(self, service: Service, seeds_per_s: float, seeds_each: int) -> None:
        self._endpoint = parse_url(f"http://{service.address()}:80")
        self._seeds_each = seeds_each
        self._rate_per_s = seeds_per_s / seeds_each
        nodes = fetch_variants(self._endpoint).nodes
        self._requests = build_predictions(self._endpoint, nodes, seeds_each, None, seed=0, binary=True)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> OpenLoad:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        plan = LoadPlan(self.CONNECTIONS, self.LONGEST_S, self._seeds_each, self._rate_per_s)
        schedule = build_schedule(Arrivals.POISSON, self._rate_per_s, self.LONGEST_S, seed=0)
        until_stopped = itertools.takewhile(lambda _: not self._stopping.is_set(), schedule)
        generate_load(self._endpoint, self._requests, plan, until_stopped, timeout_s=10)
