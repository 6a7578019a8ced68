"""Times that a user of the cluster waits for, and changes that users of the endpoint must not notice.

On the harness's own single node, or the cluster of KUBECONFIG: from `kubectl apply` of the digits example to the first
answered prediction, from a changed objective to the worker that uses it, requests failed or hung during live
switches of the revision and rolling updates, and what an idle operator writes.
"""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from tests.cluster.harness.client import Cluster, wait_for
from tests.cluster.harness.images import WORKER_IMAGE
from tests.cluster.harness.installation import Installation, example, installed_operator
from tests.cluster.harness.services import SMALL_SPEC, Service
from tests.cluster.harness.session import running_cluster

from benchmarks.results import Benchmark, Run, main, part_in_a_cluster
from benchmarks.verdicts import Verdict, exactly
from gnnserve_cli.loadgen.generator import generate_load
from gnnserve_cli.loadgen.record import LoadRecord
from gnnserve_cli.loadgen.requests import build_predictions
from gnnserve_cli.loadgen.statistics import LoadPlan
from gnnserve_client.address import Endpoint, parse_url

WANTED_REQUESTS = 10_000
WANTED_CHANGES = 3
CONNECTIONS = 8
ANSWER_TIMEOUT_S = 10.0
"""A request that takes longer counts as hung."""
IDLE_S = 600.0
WRITES = {"apply", "create", "delete", "patch", "update"}


def run_all(run: Run) -> dict[str, Any]:
    quick = run.quick
    with running_cluster() as cluster, installed_operator(cluster) as operator, scratch(cluster) as service:
        spec = yaml.safe_load(example("digits").read_text())["spec"]
        apply_to_first_answer_s = measure_first_answer(service, SMALL_SPEC if quick else spec)
        service.wait_until_ready()
        objective_to_worker_s = measure_objective(service, times=2 if quick else 10)
        switch = measure_under_load(service, "revision switches", lambda round_: new_revision(service, round_), quick)
        rollout = (
            None
            if quick
            else measure_under_load(
                service, "rolling updates", lambda round_: new_image(cluster, service, round_), quick
            )
        )
        idle = measure_idle(operator, 5.0 if quick else IDLE_S)
    return {
        "manifest": "small" if quick else "digits.yaml",
        "apply_to_first_answer_s": apply_to_first_answer_s,
        "objective_to_worker_s": max(objective_to_worker_s),
        "objective_to_worker_samples_s": objective_to_worker_s,
        "switch": switch,
        "rollout": rollout,
        "idle": idle,
    }


@contextmanager
def scratch(cluster: Cluster) -> Iterator[Service]:
    namespace = cluster.create_workspace(f"bench-{uuid.uuid4().hex[:4]}")
    try:
        yield Service(namespace, "digits")
    finally:
        namespace.delete()


def measure_first_answer(service: Service, spec: Mapping[str, Any]) -> float:
    """Images are on the node; training, profiling and every start of a process are in it."""
    began = time.monotonic()
    service.apply(spec)
    # The Service has its address within moments; it refuses connections until a worker is ready.
    wait_for("the Service", lambda: service.namespace.exists(f"service/{service.name}"), 60)
    host = service.address()

    def answered() -> bool:
        with suppress(OSError):
            return service.ask("POST", "/v1/predict", {"nodes": [0, 1, 2]}, host=host)[0] == 200
        return False

    wait_for("the first answer", answered, 600, every_s=0.1)
    return round(time.monotonic() - began, 2)


def measure_objective(service: Service, times: int) -> list[float]:
    host, samples = service.address(), []
    for latency_ms in range(5000, 5000 + times):
        began = time.monotonic()
        service.patch({"objective": {"latencyMs": latency_ms}})

        def used(wanted: float = latency_ms) -> bool:
            return bool(service.ask("GET", "/v1/route", host=host)[1]["objective"].get("latencyMs") == wanted)

        wait_for("the worker to use the objective", used, every_s=0.02)
        samples.append(round(time.monotonic() - began, 3))
    return samples


def measure_under_load(service: Service, what: str, change: Callable[[int], None], quick: bool) -> dict[str, Any]:
    """Changes one after the other, with requests from start to end, until there were enough of both."""
    service.patch({"worker": {"replicas": 2}, "objective": {"latencyMs": None}})
    service.wait_until_ready()
    rounds, requests, errors = 0, 0, Counter[str]()
    least_changes, least_requests = (1, 500) if quick else (WANTED_CHANGES, WANTED_REQUESTS)
    while rounds < least_changes or requests < least_requests:
        rounds += 1
        with Pressure(service) as pressure:
            change(rounds)
            service.wait_until_ready()
        requests += pressure.record.started
        errors += pressure.record.errors
    failed = sum(errors.values())
    print(f"{what}: {rounds} under {requests:,} requests, {failed} failed {dict(errors) or ''}")
    return {"changes": rounds, "requests": requests, "failed": failed, "errors": dict(errors)}


class Pressure:
    """A closed loop of kept-alive connections in a thread of its own, from this machine to the Service's address."""

    SLICE_S = 1.0
    """Seconds of a slice. Each one begins with new connections, so that old and new ones both meet the change."""

    def __init__(self, service: Service) -> None:
        endpoint: Endpoint = parse_url(f"http://{service.address()}:80")
        self.record = LoadRecord()
        self._stop = threading.Event()
        self._requests = build_predictions(endpoint, 1797, 1, None, seed=0)
        self._endpoint = endpoint
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pressure:
        self._thread.start()
        wait_for("requests to flow", lambda: self.record.started > 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        plan = LoadPlan(CONNECTIONS, self.SLICE_S, 1)
        while not self._stop.is_set():
            part = generate_load(self._endpoint, self._requests, plan, None, ANSWER_TIMEOUT_S)
            self.record.started += part.started
            self.record.errors += part.errors


def new_revision(service: Service, round_: int) -> None:
    service.patch({"model": {"training": {"seed": round_}}})


def new_image(cluster: Cluster, service: Service, round_: int) -> None:
    if cluster.node is None:
        # The same image: the pods' template has to change in some other way.
        service.patch({"worker": {"nodeSelector": {"kubernetes.io/os": "linux"} if round_ % 2 else None}})
        return
    other = WORKER_IMAGE.replace(":test", f":bench{round_}")
    cluster.node.tag(WORKER_IMAGE, other)
    service.patch({"image": other})


def measure_idle(operator: Installation, seconds: float) -> dict[str, Any]:
    """Measures an idle operator by its own count of requests; a converged service is there all the while."""
    before = api_requests(operator)
    time.sleep(seconds)
    after = api_requests(operator)
    made = {verb: after[verb] - before[verb] for verb in after}
    writes = sum(count for verb, count in made.items() if verb in WRITES)
    return {"seconds": seconds, "writes": writes, "reads": sum(made.values()) - writes}


def api_requests(operator: Installation) -> Counter[str]:
    counted: Counter[str] = Counter()
    for line in operator.metrics().splitlines():
        if line.startswith("gnnserve_operator_api_requests_total{"):
            labels, _, value = line.rpartition(" ")
            verb = labels.partition('verb="')[2].partition('"')[0]
            counted[verb] += int(float(value))
    return counted


def show(result: Mapping[str, Any]) -> None:
    table = Table("On a single-node Kubernetes", "measured", "wanted")
    samples = result["objective_to_worker_samples_s"]
    table.add_row("apply to first answer", f"{result['apply_to_first_answer_s']:.1f} s", "< 90 s")
    table.add_row(
        "objective to worker",
        f"median {statistics.median(samples):.2f} s, worst {max(samples):.2f} s of {len(samples)}",
        "< 5 s",
    )
    for name, what in (("switch", "revision switches"), ("rollout", "rolling updates")):
        part = result[name]
        if part is None:
            continue
        table.add_row(f"{part['changes']} {what}", f"{part['failed']} of {part['requests']:,} requests failed", "0")
    idle = result["idle"]
    table.add_row(f"idle for {idle['seconds']:.0f} s", f"{idle['writes']} writes, {idle['reads']} reads", "0 writes")
    Console().print(table)


VERDICTS = (
    Verdict("requests lost in live switches of the revision", exactly(0), lambda found: found["switch"]["failed"]),
    # A quick run has none.
    Verdict(
        "requests lost in rolling updates of the workers", exactly(0),
        lambda found: None if found["rollout"] is None else found["rollout"]["failed"],
    ),
    Verdict("writes of an idle operator", exactly(0), lambda found: found["idle"]["writes"]),
)  # fmt: skip

BENCHMARK = Benchmark(
    "cluster",
    (part_in_a_cluster("all", run_all),),
    VERDICTS,
    about=__doc__,
    show=show,
)  # fmt: skip

if __name__ == "__main__":
    main(BENCHMARK)
