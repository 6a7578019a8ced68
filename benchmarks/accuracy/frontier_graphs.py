"""Variants of one public graph: accuracy over several seeds, latency, and accuracy of nodes that arrive as overlays.

Each seed is a generation of its own, as a user's would be: weights, ranking and tables are made anew. Test nodes arrive
as overlays where the graph is generated once more without their edges, so that no table knows of them.

There are three stages, which may be run apart where a folder keeps what they make: training, which may run beside other
work; a search, which trains and goes by latencies; and latencies. The last two need a machine without other work.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.unseen.unseen_accuracy import Hidden
from gnnserve_api.files.profile import Metric, Profile, VariantProfile
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.graph import GraphSource, NpzSource
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import variant_name
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.profile import BATCH_SEEDS, BUDGET_S, BUDGET_VARIABLE
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_each, warm_up
from gnnserve_worker.inference.latency import measure_latencies
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate

DATASETS = Path(os.environ.get("GNNSERVE_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))
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
_LATENCY_ROUNDS = (5, 2000)
_PROFILE_S = "0.3"
"""Latencies are not read from these profiles: generation may run beside other work."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Test nodes that arrive as overlays: each in a request of its own, and stored neighbours read it in turn, unless
    it is said otherwise."""

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
    reading: Unseen | None = None
    """The same of nodes that arrive in one request and read stored nodes, which do not read them in turn."""


@dataclass(frozen=True, slots=True)
class Measured:
    graph: str
    metric: Metric
    nodes: int
    majority: float
    points: tuple[Point, ...]
    searched: tuple[Point, ...] = ()
    """What `search: Auto` keeps, of the first seed; empty where it was left out."""
    search_s: float | None = None
    base: str = variant_name(1)
    """The variant that others are compared with."""


@dataclass(frozen=True, slots=True)
class _Searched:
    points: tuple[Point, ...]
    seconds: float | None
    """None: nothing was searched."""


def train_graph(name: str, seeds: int, root: Path, *, with_unseen: bool = True) -> None:
    """Generate what `measure_graph` measures, the search left out, and find the accuracies. None of it is a latency, so
    that other programs may run beside it. What `root` has of an earlier call is not made again."""
    source = _source(name)
    for seed in range(seeds):
        _generate(name, source, root, seed)
    if with_unseen:
        _unseen_accuracies(name, root, _names_in_common(name, source, root, seeds))


def points_of(
    profiles: Sequence[Profile], p50_ms: Mapping[str, Mapping[int, float]], alone: Mapping[str, Unseen],
    reading: Mapping[str, Unseen],
) -> list[Point]:  # fmt: skip
    """A point for each variant of the first profile, with its accuracy in every profile that has it. All by variant:
    `p50_ms` as of `latencies_of`; `alone` and `reading` as of `_unseen`, without variants that were not asked."""
    return [
        Point(
            variant.name,
            str(variant.family),
            tuple(accuracy_of(found) for each in profiles if (found := find_profile(each, variant.name)) is not None),
            p50_ms[variant.name],
            alone.get(variant.name),
            reading.get(variant.name),
        )
        for variant in profiles[0].variants
    ]


def measure_graph(name: str, seeds: int, root: Path, *, with_unseen: bool = True, with_search: bool = True) -> Measured:
    """Latencies are measured here; revisions that `train_graph` has left in `root` are not generated again."""
    train_graph(name, seeds, root, with_unseen=with_unseen)
    source = _source(name)
    data = load_source(source, root)
    profiles = [_generate(name, source, root, seed).profile for seed in range(seeds)]
    common = _names_in_common(name, source, root, seeds)
    p50_ms = latencies_of(_repository(name, root, "0"), _generate(name, source, root, 0).revision)
    searched = _Searched((), None)
    if with_search:
        search_graph(name, seeds, root)
        searched = msgspec.json.decode(_searched_file(name, root).read_bytes(), type=_Searched, strict=False)
    alone, reading = _unseen(name, root, common) if with_unseen else ({}, {})
    points = points_of(profiles, p50_ms, alone, reading)
    majority = _majority(name, data)
    metric = profiles[0].metric
    return Measured(
        name,
        metric,
        len(data.labels),
        majority,
        tuple(points),
        searched.points,
        None if searched.seconds is None else round(searched.seconds, 1),
    )


def _source(name: str) -> GraphSource:
    return GraphSource(npz=NpzSource(uri=(DATASETS / f"{name}.npz").resolve().as_uri()))


def _repository(name: str, root: Path, what: str) -> Repository:
    return Repository(root, "benchmarks", f"{name.replace('_', '-')}-{what}")


def _names_in_common(name: str, source: GraphSource, root: Path, seeds: int) -> list[str]:
    """Variants that were made with every seed."""
    first, *others = (_generate(name, source, root, seed).profile for seed in range(seeds))
    return [variant.name for variant in first.variants if all(find_profile(each, variant.name) for each in others)]


def latencies_of(repository: Repository, revision: str) -> dict[str, dict[int, float]]:
    """Medians by variant and seeds of a batch, as a profile has them."""
    loaded = load_revision(repository, revision)
    warm_up(loaded)
    infer = partial(infer_each, loaded, with_embeddings=False)
    found: dict[str, dict[int, float]] = {variant: {} for variant in loaded.variants}
    for seeds in BATCH_SEEDS:
        of_size = measure_latencies(
            infer, [*found], loaded.labels.splits.validation, seeds, budget_s=BUDGET_S, rounds=_LATENCY_ROUNDS
        )
        for variant, point in of_size.items():
            found[variant][seeds] = point.p50_ms
    return found


def search_graph(name: str, seeds: int, root: Path) -> None:
    """Search variants, with the first of `seeds`, and keep in `root` what was found and how long it took."""
    if not _searched_file(name, root).exists() and seeds:
        points, took_s = _search(name, root)
        _searched_file(name, root).write_bytes(msgspec.json.encode(_Searched(points, took_s)))


def _searched_file(name: str, root: Path) -> Path:
    return root / f"{name}-searched.json"


def _search(name: str, root: Path) -> tuple[tuple[Point, ...], float]:
    """What a search keeps, and how long it takes, training included."""
    service = service_of(name, _source(name), 0, {"search": "Auto", "pruning": {"wideTables": "Keep"}})
    with tempfile.TemporaryDirectory(dir=root, prefix=f"{name}-searched-") as folder:
        started = time.perf_counter()
        profile = generate(service, _repository(name, Path(folder), "searched")).profile
        took_s = time.perf_counter() - started
    points = [
        Point(
            variant.name,
            str(variant.family),
            (accuracy_of(variant),),
            {p.seeds: p.p50_ms for p in variant.latency},
            None,
        )
        for variant in profile.variants
    ]
    return tuple(points), took_s


def _generate(name: str, source: GraphSource, root: Path, seed: int) -> RevisionManifest:
    """The grid with the first seed; x1 and what is made of it with the others."""
    with short_profile():
        listed = _listed(GRID if seed == 0 else (1,))
        return generate(service_of(name, source, seed, listed), _repository(name, root, str(seed)))


@contextmanager
def short_profile() -> Iterator[None]:
    os.environ[BUDGET_VARIABLE] = _PROFILE_S
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


def _hidden(name: str, root: Path) -> tuple[Hidden, LoadedRevision, Metric]:
    """Test nodes, each to be brought by a request of its own with its edges to all other nodes."""
    source = _source(name)
    data = load_source(source, root)
    without = root / f"{name}-without-test-nodes.npz"
    if not without.exists():
        kept = np.ones(len(data.labels), dtype=bool)
        kept[data.splits.test] = False
        graph = data.graph.induced(kept)
        arrays = dict(np.load(DATASETS / f"{name}.npz"))
        np.savez(without, **arrays | {"indptr": graph.indptr, "indices": graph.indices})
    repository = _repository(name, root, "unseen")
    with short_profile():
        service = service_of(name, GraphSource(npz=NpzSource(uri=without.as_uri())), 0, _listed((1,)))
        revision = generate(service, repository)
    loaded = load_revision(repository, revision.revision)
    return Hidden(replace(loaded, graph=data.graph), data.features, loaded), loaded, revision.profile.metric


def _unseen_accuracies(name: str, root: Path, variants: list[str]) -> dict[str, tuple[float, float]]:
    """Accuracies of answers about test nodes that no stored list has, by variant: each alone, and as readers. Kept in
    `root`."""
    file = root / f"{name}-unseen.json"
    if not file.exists():
        hidden, loaded, metric = _hidden(name, root)
        able = [each for each in variants if each in loaded.variants and loaded.variants[each].rows is not None]
        scores = {each: (hidden.scores_alone(each), hidden.scores_of_readers(each, _UNSEEN_SEEDS)) for each in able}
        found = {
            each: tuple(round(evaluate(of_way, hidden.labels, metric), 4) for of_way in both)
            for each, both in scores.items()
        }
        file.write_bytes(msgspec.json.encode(found))
    return msgspec.json.decode(file.read_bytes(), type=dict[str, tuple[float, float]])


def _unseen(name: str, root: Path, variants: list[str]) -> tuple[dict[str, Unseen], dict[str, Unseen]]:
    """By variant: nodes that arrive each alone, and as readers."""
    accuracies = _unseen_accuracies(name, root, variants)
    hidden, loaded, _ = _hidden(name, root)
    warm_up(loaded)
    alone_ms = hidden.p50_alone_ms([*accuracies], _UNSEEN_SEEDS, _UNSEEN_RUNS)
    reading_ms = hidden.p50_of_readers_ms([*accuracies], _UNSEEN_SEEDS, _UNSEEN_RUNS)
    return (
        {variant: Unseen(accuracy, alone_ms[variant]) for variant, (accuracy, _) in accuracies.items()},
        {variant: Unseen(accuracy, reading_ms[variant]) for variant, (_, accuracy) in accuracies.items()},
    )


def find_profile(profile: Profile, name: str) -> VariantProfile | None:
    return next((variant for variant in profile.variants if variant.name == name), None)


def accuracy_of(variant: VariantProfile) -> float:
    return variant.validation_accuracy if variant.test_accuracy is None else variant.test_accuracy


def _majority(name: str, data: GraphData) -> float:
    if name in _ROC_AUC:
        return _MAJORITY_OF_ROC_AUC
    if data.multi_label:
        return 0.0  # no class at all
    labels = data.labels[data.splits.test]
    return float(np.bincount(labels[labels >= 0]).max() / len(labels))
