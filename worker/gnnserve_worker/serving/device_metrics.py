"""Metrics of the device that batches are computed on."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats

_COUNTERS = {
    "gnnserve_cache_hits": "Blocks of columns of a node that were read from the GPU's memory.",
    "gnnserve_cache_misses": "Blocks of columns of a node that came over the link.",
    "gnnserve_cache_admissions": "Blocks that took a place in the cache.",
    "gnnserve_cache_evictions": "Blocks that lost theirs.",
    "gnnserve_link_bytes": "Bytes of rows that came from the host's memory over the link.",
    "gnnserve_link_repeats": "Rows that a part of a batch read again, after they had come over the link once.",
}
"""Counters on a GPU; they begin anew with each revision, whose cache is its own."""


def collect_device(stats: DeviceStats, service: str, shown_s: float) -> Iterator[Metric]:
    """`shown_s`: since when the revision answers, in seconds since 1970."""
    info = GaugeMetricFamily(
        "gnnserve_device_info", "Always 1: on what batches are computed.", labels=("service", "device")
    )
    info.add_metric((service, stats.device), 1)
    yield info
    if stats.device == ON_CPU.device:
        return
    memory = GaugeMetricFamily(
        "gnnserve_gpu_memory_bytes", "Of the GPU's memory, what is taken for each part.", labels=("service", "part")
    )
    for part, taken in stats.memory_bytes.items():
        memory.add_metric((service, part), taken)
    budget = GaugeMetricFamily(
        "gnnserve_gpu_memory_budget_bytes", "Of the GPU's memory, what may be taken.", labels=("service",)
    )
    budget.add_metric((service,), stats.memory_budget_bytes)
    yield from (memory, budget)
    values = (stats.hits, stats.misses, stats.admissions, stats.evictions, stats.link_bytes, stats.repeated_rows)
    for (name, text), value in zip(_COUNTERS.items(), values, strict=True):
        family = CounterMetricFamily(name, text, labels=("service",))
        family.add_metric((service,), value, created=shown_s)
        yield family
