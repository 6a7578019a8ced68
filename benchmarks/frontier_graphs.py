"""Variants of one public graph: accuracy over several seeds, latency, and accuracy of nodes that arrive as overlays.

Each seed is a generation of its own, as a user's would be: weights, ranking and tables are made anew. Test nodes arrive
as overlays where the graph is generated once more without their edges, so that no table knows of them.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.unseen_accuracy import Hidden
from gnnserve_api.profile import Metric, Profile, VariantProfile
from gnnserve_api.spec.graph import GraphSource, NpzSource
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.profile import BUDGET_VARIABLE
from gnnserve_worker.generation.scores import evaluate
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.repository.repository import Repository

DATASETS = Path(os.environ.get("GNNSERVE_DATASETS", Path(__file__).parents[2] / "shared" / "datasets"))
GRAPHS = (
    "amazon_photo", "eukloc", "tolokers", "amazon_computers", "coauthor_cs", "facebook_pages", "yelpchi",
    "ogbn_arxiv_topo",
)  # fmt: skip
"""Graphs of at least 5,000 nodes. Features of ogbn_arxiv_topo are substitutes: its accuracy is none of ogbn-arxiv's."""
_ROC_AUC = ("tolokers", "yelpchi")
_MAJORITY_OF_ROC_AUC = 0.5
GRID = (1, 2, 4, 8)
"""Factors that are picked by hand: the baseline of a search."""
_STORAGES = ["float32", "float16", "int8"]
_UNSEEN_SEEDS, _UNSEEN_RUNS = 1024, 15
_LATER_SEEDS_PROFILE_S = "0.3"
"""Latencies are those of the first seed."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Test nodes that arrive as overlays, each of a request of its own."""

    accuracy: float
    p50_ms: float
    """Time of a batch of 1,024 of them."""


@dataclass(frozen=True, slots=True)
class Point:
    """One variant of a graph."""

    name: str
    family: str
    accuracies: tuple[float, ...]
    """On test nodes, as a fraction of 1: one of each seed."""
    p50_ms: Mapping[int, float]
    """By seeds of a batch: of the first seed's generation."""
    unseen: Unseen | None
    """None: it cannot answer about nodes that arrive as overlays, or was not asked."""


@dataclass(frozen=True, slots=True)
class Measured:
    graph: str
    metric: Metric
    nodes: int
    majority: float
    points: tuple[Point, ...]
    generation_s: float
    """Time of the first seed's generation."""
    searched: tuple[Point, ...] = ()
    """What `search: Auto` keeps, of the first seed."""
    search_s: float | None = None


def measure_graph(name: str, seeds: int, *, with_unseen: bool = True) -> Measured:
    source = GraphSource(npz=NpzSource(uri=(DATASETS / f"{name}.npz").resolve().as_uri()))
    with tempfile.TemporaryDirectory(prefix="gnnserve-frontier-") as folder:
        root = Path(folder)
        data = load_source(source, root)
        started = time.perf_counter()
        first = _generate(name, source, root, 0, GRID)
        took_s = time.perf_counter() - started
        searched, search_s = _search(name, source, root)
        others = [_generate(name, source, root, seed, (1,)) for seed in range(1, seeds)]
        profiles = [first, *others]
        common = [variant for variant in first.variants if all(_find(each, variant.name) for each in others)]
        unseen = _unseen(name, data, root, [variant.name for variant in common]) if with_unseen else {}
        points = [
            Point(
                variant.name,
                str(variant.family),
                tuple(_accuracy(found) for each in profiles if (found := _find(each, variant.name)) is not None),
                {point.seeds: point.p50_ms for point in variant.latency},
                unseen.get(variant.name),
            )
            for variant in first.variants
        ]
    majority = _majority(name, data)
    return Measured(
        name, first.metric, len(data.labels), majority, tuple(points), round(took_s, 1), searched, round(search_s, 1)
    )


def _search(name: str, source: GraphSource, root: Path) -> tuple[tuple[Point, ...], float]:
    """What a search keeps, and how long it takes, training included."""
    started = time.perf_counter()
    service = service_of(name, source, 0, {"search": "Auto", "pruning": {"wideTables": "Keep"}})
    profile = generate(service, Repository(root, "benchmarks", f"{name.replace('_', '-')}-searched")).profile
    took_s = time.perf_counter() - started
    points = [
        Point(
            variant.name, str(variant.family), (_accuracy(variant),), {p.seeds: p.p50_ms for p in variant.latency}, None
        )
        for variant in profile.variants
    ]
    return tuple(points), took_s


def _generate(name: str, source: GraphSource, root: Path, seed: int, factors: tuple[int, ...]) -> Profile:
    repository = Repository(root, "benchmarks", f"{name.replace('_', '-')}-{seed}")
    with _short_profile() if seed else nullcontext():
        return generate(service_of(name, source, seed, _listed(factors)), repository).profile


@contextmanager
def _short_profile() -> Iterator[None]:
    os.environ[BUDGET_VARIABLE] = _LATER_SEEDS_PROFILE_S
    try:
        yield
    finally:
        del os.environ[BUDGET_VARIABLE]


def _listed(factors: tuple[int, ...]) -> dict[str, Any]:
    return {
        "pruning": {"factors": [*factors], "wideTables": "Keep"},
        "storage": _STORAGES,
        "stored": [1, 2],
        "oneRow": [{"hops": 0}, {"hops": 2}],
    }


def service_of(name: str, source: GraphSource, seed: int, variants: Mapping[str, Any]) -> GNNService:
    spec = {
        "graph": {"source": source.model_dump(by_alias=True, exclude_none=True, mode="json")},
        "model": {"architecture": "GraphSAGE", "training": {"epochs": "Auto", "seed": seed}},
        "variants": {**variants, "metric": metric_choice(name)},
    }
    metadata = {"name": name.replace("_", "-")}
    return GNNService.model_validate(
        {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": metadata, "spec": spec}
    )


def metric_choice(name: str) -> str:
    """`spec.variants.metric` of a graph."""
    return "ROCAUC" if name in _ROC_AUC else "Auto"


def _unseen(name: str, data: GraphData, root: Path, variants: list[str]) -> dict[str, Unseen]:
    """Answers about test nodes, each brought by a request of its own with its edges to all other nodes."""
    without = root / "without-test-nodes.npz"
    kept = np.ones(len(data.labels), dtype=bool)
    kept[data.splits.test] = False
    graph = data.graph.induced(kept)
    arrays = dict(np.load(DATASETS / f"{name}.npz"))
    np.savez(without, **arrays | {"indptr": graph.indptr, "indices": graph.indices})
    source = GraphSource(npz=NpzSource(uri=without.as_uri()))
    repository = Repository(root, "benchmarks", f"{name.replace('_', '-')}-unseen")
    with _short_profile():
        revision = generate(service_of(name, source, 0, _listed((1,))), repository)
    loaded = repository.load(revision.revision)
    hidden = Hidden(replace(loaded, graph=data.graph), data.features, loaded)
    able = [variant for variant in variants if variant in loaded.variants and loaded.variants[variant].rows is not None]
    p50_ms = hidden.p50_alone_ms(able, _UNSEEN_SEEDS, _UNSEEN_RUNS)
    return {
        variant: Unseen(
            round(evaluate(hidden.scores_alone(variant), hidden.labels, revision.profile.metric), 4), p50_ms[variant]
        )
        for variant in able
    }


def _find(profile: Profile, name: str) -> VariantProfile | None:
    return next((variant for variant in profile.variants if variant.name == name), None)


def _accuracy(variant: VariantProfile) -> float:
    return variant.validation_accuracy if variant.test_accuracy is None else variant.test_accuracy


def _majority(name: str, data: GraphData) -> float:
    if name in _ROC_AUC:
        return _MAJORITY_OF_ROC_AUC
    if data.multi_label:
        return 0.0  # no class at all
    labels = data.labels[data.splits.test]
    return float(np.bincount(labels[labels >= 0]).max() / len(labels))
