"""All benchmarks, by the names of their files in `results`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from benchmarks.results import Benchmark

MODULES: Mapping[str, str] = {
    "cache": "benchmarks.cache",
    "cache_stress": "benchmarks.cache_stress",
    "cascade": "benchmarks.cascade",
    "channels": "benchmarks.channels",
    "chaos": "benchmarks.chaos",
    "cluster": "benchmarks.cluster",
    "cluster_routing": "benchmarks.cluster_routing",
    "conformance": "benchmarks.conformance",
    "decision": "benchmarks.decision",
    "faults": "benchmarks.faults",
    "fleet": "benchmarks.fleet",
    "frontier": "benchmarks.frontier",
    "generation": "benchmarks.generation",
    "import": "benchmarks.importing",
    "links": "benchmarks.links",
    "listener": "benchmarks.listener",
    "live_accuracy": "benchmarks.live_accuracy",
    "malformed": "benchmarks.malformed",
    "models": "benchmarks.models",
    "peers": "benchmarks.peers.__main__",
    "protocol": "benchmarks.protocol",
    "ranking": "benchmarks.ranking",
    "recommend": "benchmarks.recommend",
    "regression": "benchmarks.regression",
    "roofline": "benchmarks.roofline",
    "routing": "benchmarks.routing",
    "scaling": "benchmarks.scaling",
    "serving": "benchmarks.serving",
    "shapes": "benchmarks.paper_shapes",
    "shared_worker": "benchmarks.shared_worker",
    "simulation": "benchmarks.simulation",
    "soak": "benchmarks.soak",
    "startup": "benchmarks.startup",
    "sweep": "benchmarks.sweep",
    "tracing": "benchmarks.tracing",
    "relations": "benchmarks.relations",
    "unseen": "benchmarks.unseen",
    "updates": "benchmarks.updates",
    "updates_faults": "benchmarks.updates_faults",
}


@cache
def benchmark(name: str) -> Benchmark:
    """Raises KeyError for a name that no benchmark has."""
    found: Benchmark = import_module(MODULES[name]).BENCHMARK
    return found
