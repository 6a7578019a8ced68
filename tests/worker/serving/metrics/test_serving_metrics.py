"""What is counted in plain numbers looks to Prometheus as if its own client had counted it."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.profiles import revision_manifest

from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import Route, RoutingMode
from gnnserve_worker.inference.batch import StageTimes
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.serving.metrics.counters import LATENCY_BUCKETS_S, SIZE_BUCKETS
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.metrics.state_metrics import RoutingSample

SECONDS = [0.0, 0.00005, *LATENCY_BUCKETS_S, 0.0033, 11.0]


def samples_of(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def types_of(text: bytes) -> dict[str, tuple[str, str]]:
    return {
        family.name: (family.type, family.documentation) for family in text_string_to_metric_families(text.decode())
    }


def test_counts_are_those_of_prometheus_own_client() -> None:
    metrics = ServingMetrics("digits")
    metrics.show_revision(revision_manifest(), load_s=0.5)
    variant = next(iter(revision_manifest().profile.variants)).name
    registry = CollectorRegistry()
    labels = ("service", "variant")
    request = Histogram(
        "gnnserve_request_seconds", "Arrival of a request to its answer.", labels, registry=registry,
        buckets=LATENCY_BUCKETS_S,
    )  # fmt: skip
    stage = Histogram(
        "gnnserve_stage_seconds",
        "Time in each stage: queue per request, sample, gather and compute per batch.",
        (*labels, "stage"), registry=registry, buckets=LATENCY_BUCKETS_S,
    )  # fmt: skip
    size = Histogram(
        "gnnserve_batch_size", "Seeds of a batch.", labels, registry=registry, buckets=SIZE_BUCKETS
    )  # fmt: skip
    counters = {
        name: Counter(f"gnnserve_{name}", text, labels, registry=registry).labels("digits", variant)
        for name, text in (
            ("batches", "Batches computed."),
            ("batch_seeds", "Seeds of the batches computed."),
            ("batch_seconds", "Time for which batches occupied the worker."),
            ("batch_seeds_squared", "Sum of seeds² over batches, to fit a cost."),
            ("batch_seed_seconds", "Sum of seeds · seconds over batches, to fit a cost."),
            ("batch_wait_seconds", "Time for which batches waited for turns of others that share the worker."),
        )
    }
    offered = Counter(
        "gnnserve_offered_seeds", "Seeds of well-formed requests, refused ones included.", ("service",),
        registry=registry,
    ).labels("digits")  # fmt: skip
    for number, seconds in enumerate(SECONDS):
        seeds, milliseconds = number + 1, seconds * 1000
        metrics.counters.offered_seeds += seeds
        metrics.counters.observe_answer(variant, milliseconds, 2 * milliseconds, None)
        metrics.counters.observe_batch(
            variant, seeds, milliseconds, StageTimes(milliseconds, 2 * milliseconds, 3 * milliseconds), milliseconds
        )
        offered.inc(seeds)
        size.labels("digits", variant).observe(seeds)
        request.labels("digits", variant).observe(2 * milliseconds / 1000)
        for name, factor in (("queue", 1), ("sample", 1), ("gather", 2), ("compute", 3)):
            stage.labels("digits", variant, name).observe(factor * milliseconds / 1000)
        for name, value in (
            ("batches", 1), ("batch_seeds", seeds), ("batch_seconds", milliseconds / 1000),
            ("batch_seeds_squared", seeds * seeds), ("batch_seed_seconds", seeds * (milliseconds / 1000)),
            ("batch_wait_seconds", milliseconds / 1000),
        ):  # fmt: skip
            counters[name].inc(value)
    ours, theirs = metrics.render(), generate_latest(registry)
    found = samples_of(ours)
    assert {key: found[key] for key in samples_of(theirs)} == samples_of(theirs)
    described = types_of(ours)
    assert {name: described[name] for name in types_of(theirs)} == types_of(theirs)
    created = [line.split(" ")[0] for line in theirs.decode().splitlines() if "_created{" in line]
    assert set(created) <= {line.split(" ")[0] for line in ours.decode().splitlines()}


@pytest.mark.parametrize("seeds", [1, 2, 4, 5, 16, 17, 1024, 1025, 16384, 16385, 10**9])
def test_sizes_of_batches_are_counted_up_to_the_end_of_their_bucket(seeds: int) -> None:
    metrics = ServingMetrics("digits")
    metrics.show_revision(revision_manifest(), load_s=0.5)
    metrics.counters.observe_batch("x4", seeds, 2.5, StageTimes(1, 2, 3))
    assert metrics.counters.variants["x4"].sizes.index(1) == bisect_left(SIZE_BUCKETS, seeds)


def test_the_memory_of_variants_is_that_of_the_revision_that_answers() -> None:
    metrics, manifest = ServingMetrics("digits"), revision_manifest()
    metrics.show_revision(manifest, load_s=0.5)
    expected = {(variant.name,): variant.memory_bytes for variant in manifest.profile.variants}
    assert values_of(metrics, "gnnserve_variant_memory_bytes") == expected


def values_of(metrics: ServingMetrics, name: str) -> dict[tuple[str, ...], float]:
    """By labels other than the service, in the order of their names."""
    return {
        tuple(value for label, value in sorted(labels) if label != "service"): value
        for (found, labels), value in samples_of(metrics.render()).items()
        if found == name
    }


def test_outcomes_are_counted_from_the_start_and_every_request_once() -> None:
    metrics = ServingMetrics("digits")
    zeros = {("met",): 0, ("late",): 0, ("refused",): 0, ("unbounded",): 0}
    assert values_of(metrics, "gnnserve_requests_total") == zeros
    metrics.show_revision(revision_manifest(), load_s=0.5)
    metrics.counters.observe_answer("x1", 1.0, 5.0, 5.0)
    metrics.counters.observe_answer("x1", 1.0, 5.1, 5.0)
    metrics.counters.observe_answer("x1", 1.0, 5000.0, None)
    metrics.counters.count_refused("QueueFull")
    metrics.counters.count_error("UnknownNode")
    assert values_of(metrics, "gnnserve_requests_total") == dict.fromkeys(zeros, 1)
    assert values_of(metrics, "gnnserve_errors_total") == {("QueueFull",): 1, ("UnknownNode",): 1}


def route(**changes: Any) -> Route:
    return msgspec.structs.replace(
        Route(revision="r", base_variant="x2", reason="", allowed_variants=("x1", "x2")), **changes
    )


def test_routing_is_told_as_it_is_at_the_scrape() -> None:
    metrics = ServingMetrics("digits")
    assert b"gnnserve_routing" not in metrics.render()
    state = RoutingSample(
        route(mode=RoutingMode.METRICS, objective=Objective(latency_ms=25)), {"x1": 1.5, "x2": 1.0}, {"x2": 4.0}
    )
    metrics.watch_routing(lambda: state)
    assert values_of(metrics, "gnnserve_routing_info") == {("x2", "Metrics"): 1}
    assert values_of(metrics, "gnnserve_routing_table_expired") == {(): 0}
    assert values_of(metrics, "gnnserve_cost_correction") == {("x1",): 1.5, ("x2",): 1.0}
    assert values_of(metrics, "gnnserve_overlay_cost_correction") == {("x2",): 4.0}
    assert values_of(metrics, "gnnserve_objective_seconds") == {(): 0.025}
    state = RoutingSample(route(base_variant="x1", is_expired=True), {})
    assert values_of(metrics, "gnnserve_routing_info") == {("x1", "Adaptive"): 1}
    assert values_of(metrics, "gnnserve_routing_table_expired") == {(): 1}
    assert values_of(metrics, "gnnserve_objective_seconds") == {}


def test_a_device_is_told_as_it_is_at_the_scrape() -> None:
    metrics = ServingMetrics("digits")
    metrics.show_revision(revision_manifest(), load_s=0.5)
    assert b"gnnserve_device" not in metrics.render()
    stats = ON_CPU
    metrics.watch_device(lambda: stats)
    assert values_of(metrics, "gnnserve_device_info") == {("CPU",): 1}
    assert b"gnnserve_gpu" not in metrics.render()
    assert b"gnnserve_cache" not in metrics.render()
    stats = DeviceStats(
        "NVIDIA H200", memory_bytes={"graph": 10, "cache": 30}, memory_budget_bytes=100, hits=5, misses=3,
        link_bytes=192, admissions=4, evictions=2,
    )  # fmt: skip
    assert values_of(metrics, "gnnserve_device_info") == {("NVIDIA H200",): 1}
    assert values_of(metrics, "gnnserve_gpu_memory_bytes") == {("graph",): 10, ("cache",): 30}
    assert values_of(metrics, "gnnserve_gpu_memory_budget_bytes") == {(): 100}
    found = {
        name: values_of(metrics, f"gnnserve_{name}_total")[()]
        for name in ("cache_hits", "cache_misses", "cache_admissions", "cache_evictions", "link_bytes")
    }
    expected = {"cache_hits": 5, "cache_misses": 3, "cache_admissions": 4, "cache_evictions": 2, "link_bytes": 192}
    assert found == expected


def test_counters_of_the_slow_loop_are_those_that_prometheus_gets() -> None:
    metrics = ServingMetrics("digits")
    metrics.show_revision(revision_manifest(), load_s=0.5)
    metrics.counters.offered_seeds += 7
    metrics.counters.count_refused("QueueFull")
    metrics.counters.observe_batch("x4", 3, 2.5, StageTimes(1, 2, 3))
    scraped = samples_of(metrics.render())
    counters = metrics.load_counters()
    for counter in counters:
        labels = {("service", "digits"), *([] if counter.label is None else [counter.label])}
        assert scraped[counter.name, frozenset(labels)] == counter.value
    assert len(counters) == 1 + 4 + 6 * len(revision_manifest().profile.variants)
    assert sum(counter.value > 0 for counter in counters) == 7
