"""Every metric of a worker and of the operator once, in the text that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from tests.support.changes.fake_updates import FakeUpdates
from tests.support.profiles import revision_manifest
from tests.support.serving.serving import FakeWorker

from gnnserve_api.files.embeddings import INDEX_SCHEMA_VERSION, IndexKind, IndexManifest
from gnnserve_api.files.repository import FileEntry
from gnnserve_api.objective import Objective
from gnnserve_api.pods.change_log import UpdatesState
from gnnserve_api.pods.routing import CanaryRoute, CredentialState, Route
from gnnserve_api.spec.objective import ObjectiveSpec
from gnnserve_api.status.reasons import Reason
from gnnserve_api.status.service_status import ConditionStatus, ConditionType
from gnnserve_api.status.verdict import Verdict
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.metrics import ConditionLabels, Metrics
from gnnserve_operator.slow_loop import RoutingMemory
from gnnserve_routing.decision import Advice, RoutingDecision, RoutingState
from gnnserve_worker.inference.device_stats import DeviceStats
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.revision_index import OpenIndex, RevisionIndex
from gnnserve_worker.nearest.search import ExactIndex
from gnnserve_worker.programs.failure import ProgramFailure
from gnnserve_worker.programs.stats import ProgramStats
from gnnserve_worker.serving.accuracy.watch import AccuracyWatch
from gnnserve_worker.serving.idle.index_renewal import RenewalFigures
from gnnserve_worker.serving.metrics import metrics as serving
from gnnserve_worker.serving.metrics.canary_metrics import CanarySample
from gnnserve_worker.staleness.refreshing import Refreshing

if TYPE_CHECKING:
    from gnnserve_worker.graph.living_graph import LivingGraph

ON_GPU = DeviceStats(
    "NVIDIA H200", memory_bytes={"graph": 4, "tables": 3, "cache": 2, "weights": 1}, memory_budget_bytes=16, hits=9,
    misses=5, link_bytes=320, admissions=7, evictions=3,
    repeated_rows=2,
)  # fmt: skip
"""What a worker with a GPU tells of it."""
OF_PROGRAM = ProgramStats(
    answered=5, failed=4, run_s=0.5, restarts=dict.fromkeys(ProgramFailure, 1), problem="ended its process"
)
"""What a worker whose model is a program tells of it."""


STALE = Refreshing(cast("LivingGraph", SimpleNamespace(is_gone=np.zeros(3, np.bool_), taken=3)), [(), ()], [1, 1])
"""Two stored layers, of which the second may be stale."""


def watched() -> AccuracyWatch:
    """A watch that has evaluated every variant on some labels."""
    watch, revision = AccuracyWatch(lambda: None), FakeWorker().revision()
    watch.follow(revision, shadow_permille=5)
    assert watch._tally is not None
    watch._tally.add_labels({variant.name: np.ones(3) for variant in revision.manifest.variants}, np.ones(3, bool))
    watch._tally.add_agreement("x1", np.ones(3))
    watch.outcomes["accepted"] = 3
    return watch


def canary_sample(metrics: serving.ServingMetrics) -> CanarySample:
    """A second revision that has answered what these metrics have counted."""
    route = CanaryRoute("r2", 5, answers=True, accuracy=watched().observed(), updates=UpdatesState(9, 9, 0, 0.0))
    return CanarySample(route, metrics.counters, 0, 1.0, OF_PROGRAM)


def an_index() -> RevisionIndex:
    """An index that is open."""
    made = IndexManifest(
        INDEX_SCHEMA_VERSION, "a test", "r1", "g1", "x1", "", None, "", 1, 1, IndexKind.EXACT, "", FileEntry(0, ""),
        1.0, 0,
    )  # fmt: skip
    index = RevisionIndex(Path("nowhere"), "r1", IndexPart("index", "", 0, 1))
    index._open = OpenIndex(made, ExactIndex(np.ones((1, 1), np.float32)))
    return index


def all_metrics() -> serving.ServingMetrics:
    """A worker's metrics, with a sample of each that there is."""
    metrics = serving.ServingMetrics("digits")
    manifest = revision_manifest()
    metrics.show_revision(manifest, load_s=0.5)
    metrics.counters.count_refused("QueueFull")
    metrics.show_certificate(1_800_000_000)
    metrics.show_credentials(CredentialState("tokens", is_usable=True))
    route = Route(
        revision=manifest.revision,
        base_variant="x1",
        reason="",
        allowed_variants=("x1",),
        objective=Objective(latency_ms=25, accuracy_tolerance_permille=5),
    )
    metrics.watch_routing(lambda: serving.RoutingSample(route, {"x1": 1.0}, {"x1": 1.0}))
    metrics.watch_device(lambda: ON_GPU)
    metrics.watch_programs(lambda: OF_PROGRAM)
    metrics.watch_accuracy(watched())
    metrics.watch_updates(FakeUpdates())
    metrics.watch_stale(lambda: STALE)
    metrics.watch_index(lambda: (an_index(),), lambda: RenewalFigures(1, 1, 1.0))
    sample = canary_sample(metrics)
    metrics.watch_canary(lambda: sample)
    metrics.watch_spans(SimpleNamespace(exported=1, dropped=0, put=print))
    return metrics


def worker_metrics() -> bytes:
    return all_metrics().render()


class ExposedMetric(NamedTuple):
    """A metric as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def exposed(text: bytes) -> Iterator[ExposedMetric]:
    """Each metric of gnnserve in a scrape, the `_created` series of others left out."""
    for family in text_string_to_metric_families(text.decode()):
        if family.name.endswith("_created") or not family.name.startswith("gnnserve_"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        yield ExposedMetric(name, family.type, tuple(labels), family.documentation)


def operator_metrics() -> bytes:
    memory = RoutingMemory()
    verdict = Verdict(True, Reason.SERVING, "")
    decision = RoutingDecision(
        RoutingState("r", base="x1"),
        metrics_available=verdict,
        objective_met=verdict,
        capacity_sufficient=verdict,
        is_measured=True,
        advice=Advice.SUFFICIENT,
        wanted_workers=1,
        offered_seeds_per_s=1.0,
        capacity_seeds_per_s={"x1": 1.0},
        attained_ratio=1.0,
    )
    memory.remember(ServiceKey("team", "digits"), "uid", decision, ObjectiveSpec(latency_ms=25))
    metrics = Metrics(memory)
    key = ServiceKey("team", "digits")
    # Every value that a label can have.
    conditions = [
        ConditionLabels(kind, status, reason)
        for kind in ConditionType
        for status in ConditionStatus
        for reason in Reason
    ]
    metrics.observe_services(lambda: {"True": 1}, lambda: {key: 1}, lambda: {key: conditions})
    metrics.observe_turns("generation", lambda: 1, lambda: 0)
    metrics.api_requests.labels("get", "Pod", "200")
    metrics.observe_namespaces(lambda: {"team": True})
    metrics.observe_reverts(lambda: {(key, "Deployment"): 1})
    return metrics.text()
