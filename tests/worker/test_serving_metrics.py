"""What is counted in plain numbers looks to Prometheus as if its own client had counted it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.profiles import revision_manifest

from gnnserve_worker.serving.inference import StageTimes
from gnnserve_worker.serving.metrics import LATENCY_BUCKETS_S, ServingMetrics

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
    counters = {
        name: Counter(f"gnnserve_{name}", text, labels, registry=registry).labels("digits", variant)
        for name, text in (
            ("batches", "Batches computed."),
            ("batch_seeds", "Seeds of the batches computed."),
            ("batch_seconds", "Time of the batches computed."),
            ("batch_seeds_squared", "Sum of seeds² over batches, to fit a cost."),
            ("batch_seed_seconds", "Sum of seeds · seconds over batches, to fit a cost."),
        )
    }
    offered = Counter(
        "gnnserve_offered_seeds", "Seeds of well-formed requests, refused ones included.", ("service",),
        registry=registry,
    ).labels("digits")  # fmt: skip
    for number, seconds in enumerate(SECONDS):
        seeds, milliseconds = number + 1, seconds * 1000
        metrics.count_offered(seeds)
        metrics.observe_answer(variant, milliseconds, 2 * milliseconds)
        metrics.observe_batch(
            variant, seeds, milliseconds, StageTimes(milliseconds, 2 * milliseconds, 3 * milliseconds)
        )
        offered.inc(seeds)
        request.labels("digits", variant).observe(2 * milliseconds / 1000)
        for name, factor in (("queue", 1), ("sample", 1), ("gather", 2), ("compute", 3)):
            stage.labels("digits", variant, name).observe(factor * milliseconds / 1000)
        for name, value in (
            ("batches", 1), ("batch_seeds", seeds), ("batch_seconds", milliseconds / 1000),
            ("batch_seeds_squared", seeds * seeds), ("batch_seed_seconds", seeds * (milliseconds / 1000)),
        ):  # fmt: skip
            counters[name].inc(value)
    ours, theirs = metrics.render(), generate_latest(registry)
    found = samples_of(ours)
    assert {key: found[key] for key in samples_of(theirs)} == samples_of(theirs)
    described = types_of(ours)
    assert {name: described[name] for name in types_of(theirs)} == types_of(theirs)
    created = [line.split(" ")[0] for line in theirs.decode().splitlines() if "_created{" in line]
    assert set(created) <= {line.split(" ")[0] for line in ours.decode().splitlines()}
