"""All benchmarks, by the names of their files in `results`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from benchmarks.results import Benchmark

MODULES: Mapping[str, str] = {
    "cache": "benchmarks.engine.cache",
    "cache_stress": "benchmarks.engine.cache_stress",
    "cascade": "benchmarks.accuracy.cascade",
    "channels": "benchmarks.accuracy.channels",
    "chaos": "benchmarks.chaos.chaos",
    "cluster": "benchmarks.clusters.cluster",
    "cluster_routing": "benchmarks.clusters.cluster_routing",
    "conformance": "benchmarks.answers.conformance",
    "decision": "benchmarks.load.decision",
    "faults": "benchmarks.clusters.faults",
    "fleet": "benchmarks.clusters.fleet",
    "frontier": "benchmarks.accuracy.frontier",
    "generation": "benchmarks.accuracy.generation",
    "import": "benchmarks.starts.importing",
    "links": "benchmarks.accuracy.links",
    "listener": "benchmarks.answers.listener",
    "live_accuracy": "benchmarks.accuracy.live_accuracy",
    "malformed": "benchmarks.answers.malformed",
    "models": "benchmarks.models.models",
    "peers": "benchmarks.peers.__main__",
    "protocol": "benchmarks.answers.protocol",
    "ranking": "benchmarks.accuracy.ranking",
    "recommend": "benchmarks.recommend.recommend",
    "regression": "benchmarks.regression.regression",
    "roofline": "benchmarks.engine.roofline",
    "routing": "benchmarks.load.routing",
    "scaling": "benchmarks.engine.scaling",
    "serving": "benchmarks.answers.serving",
    "shapes": "benchmarks.engine.paper_shapes",
    "shared_worker": "benchmarks.load.shared_worker",
    "simulation": "benchmarks.load.simulation",
    "soak": "benchmarks.load.soak",
    "staleness": "benchmarks.staleness.staleness",
    "startup": "benchmarks.starts.startup",
    "sweep": "benchmarks.answers.sweep",
    "tracing": "benchmarks.answers.tracing",
    "relations": "benchmarks.relations.relations",
    "unseen": "benchmarks.unseen.unseen",
    "updates": "benchmarks.changes.updates",
    "updates_faults": "benchmarks.changes.updates_faults",
}


@cache
def benchmark(name: str) -> Benchmark:
    """Raises KeyError for a name that no benchmark has."""
    found: Benchmark = import_module(MODULES[name]).BENCHMARK
    return found
