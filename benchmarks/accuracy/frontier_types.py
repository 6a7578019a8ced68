"""Variants of a graph of several types: accuracy over several seeds, and latency.

Over several types the whole network is that over its products, `projected`, which others are compared with: networks
over fewer columns of each type too, which compute the first layer for a request. Graphs lie in `../shared/typed`;
accuracy is macro F1, as it is published.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.accuracy.frontier_graphs import Measured, latencies_of, points_of, short_profile
from benchmarks.relations.relations_accuracy import SHARED, SOURCES
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import projected_name
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.repository.repository import Repository

TYPED = ("acm", "imdb")
VARIANTS = {
    "pruning": {"factors": [2, 4, 8, 16]},
    "storage": ["float32", "int8"],
    "stored": [1, 2],
    "channels": [
        *({"factor": factor, "table": "Projected"} for factor in (2, 4, 8)),
        *({"factor": factor, "table": "Stored"} for factor in (4, 8)),
        *({"factor": 2, "columnFactor": factor} for factor in (4, 16)),
    ],
    "metric": "MacroF1",
}


def train_types(name: str, seeds: int, root: Path) -> None:
    """Generate what `measure_types` measures. None of it is a latency, so that other programs may run beside it."""
    for seed in range(seeds):
        _generate(name, root, seed)


def measure_types(name: str, seeds: int, root: Path) -> Measured:
    """Latencies are measured here; revisions that `train_types` has left in `root` are not generated again."""
    revisions = [_generate(name, root, seed) for seed in range(seeds)]
    first, profiles = revisions[0], [one.profile for one in revisions]
    p50_ms = latencies_of(_repository(name, root, 0), first.revision)
    points = points_of(profiles, p50_ms, {}, {})
    data = load_source(_source(name), root)
    # Macro F1 of the most frequent class alone is below that of any network here: the area is counted from none.
    return Measured(name, first.profile.metric, len(data.labels), 0.0, tuple(points), base=projected_name())


def _source(name: str) -> GraphSource:
    return GraphSource.model_validate({"typed": {"npz": {"uri": (SHARED / name).as_uri()}, **SOURCES[name]}})


def _repository(name: str, root: Path, seed: int) -> Repository:
    return Repository(root, "benchmarks", f"{name}-{seed}")


def _generate(name: str, root: Path, seed: int) -> RevisionManifest:
    spec = {
        "graph": {"source": _source(name).model_dump(by_alias=True, exclude_none=True, mode="json")},
        "model": {
            "architecture": "GraphSAGE", "hidden": 64, "fanouts": [25, 10],
            "training": {"epochs": "Auto", "scope": "Transductive", "seed": seed},
        },
        "variants": VARIANTS,
    }  # fmt: skip
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": name}, "spec": spec}
    with short_profile():
        return generate(GNNService.model_validate(body), _repository(name, root, seed))
