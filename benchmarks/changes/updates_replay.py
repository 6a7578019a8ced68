"""Two public graphs as they grew: a fifth of the nodes is missing when variants are generated, and arrives as changes.

Nodes that arrive are drawn at random, from all three splits. They come in batches, each node with its features and its
edges to those that are there already. Then their labels are predicted by every variant, and by the same weights over
tables that were made of the whole graph anew.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.generation.generated import generate_over

from benchmarks.changes.updates_answers import short_profile
from benchmarks.changes.updates_measured import Replay, ReplayedVariant
from gnnserve_api.spec.graph import GraphSource, Normalization, NpzSource
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.lessons import Models
from gnnserve_worker.generation.training_set import fit_normalization, visible_nodes
from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import IntegerIds
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.classify_nodes.metrics import evaluate
from gnnserve_worker.tasks.generation import task_of

DATASETS = Path(os.environ.get("GNNSERVE_DATASETS", Path(__file__).parents[3] / "shared" / "datasets"))
GRAPHS = ("amazon_computers", "facebook_pages")
ARRIVING_SHARE = 0.2
_BATCH_NODES = 50
_KEYS = 3
"""Draws of neighbours over which accuracies are averaged."""
_MAX_DELTA_BYTES = 1 << 33


@dataclass(frozen=True, slots=True)
class ReplayEffort:
    epochs: int | str
    variants: dict[str, Any]


# Columns are ranked at random, which depends on the seed alone: both revisions prune the same ones.
QUICK = ReplayEffort(1, {"pruning": {"method": "Random", "factors": [1]}, "stored": [1]})
FULL = ReplayEffort(
    "Auto",
    {
        "pruning": {"method": "Random", "factors": [1, 2, 4], "wideTables": "Keep"},
        "stored": [1],
        "fanouts": [[10, 5]],
        "channels": [{"factor": 2}, {"factor": 2, "table": "Stored"}],
        "storage": ["float32", "int8"],
    },
)


@dataclass(frozen=True, slots=True)
class Grown:
    """A graph whose nodes are numbered in the order in which they come."""

    data: GraphData
    stored: int
    """Nodes that are there at first."""

    @property
    def at_first(self) -> GraphData:
        """What is generated: without the nodes that arrive and their edges."""
        data, stored = self.data, self.stored
        kept = np.arange(len(data.labels)) < stored
        graph = data.graph.induced(kept)
        splits = Splits(
            *(part[part < stored] for part in (data.splits.train, data.splits.validation, data.splits.test))
        )
        first = data.with_lists(Graph(graph.indptr[: stored + 1], graph.indices))
        first = first.with_features(data.features[:stored], data.feature_columns)
        return replace(first, digest=f"{data.digest}-first", labels=data.labels[:stored], splits=splits)

    def batches(self, most_nodes: int) -> Iterator[ChangeBatch]:
        """Nodes as they come, with edges to those before them and among them."""
        graph, features = self.data.graph, self.data.features
        for start in range(self.stored, graph.nodes, most_nodes):
            new = np.arange(start, min(start + most_nodes, graph.nodes))
            rows = features[new]
            dense = np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), np.float32)
            listed = graph.indices[graph.indptr[start] : graph.indptr[new[-1] + 1]].astype(np.int64)
            readers = np.repeat(new, np.diff(graph.indptr[start : new[-1] + 2]))
            # Lists are symmetric: an edge comes with the later one of its ends.
            comes = listed <= readers
            edges = np.stack((listed[comes], readers[comes]), axis=1)
            counts = ChangeCounts(new_nodes=len(new), edges=len(edges))
            yield ChangeBatch(counts, IntegerIds(np.concatenate((new, edges.ravel()))), dense)


def grown(data: GraphData, seed: int) -> Grown:
    """Number the nodes anew, those that arrive last."""
    count = data.graph.nodes
    order = np.random.default_rng(seed).permutation(count)
    stored = count - int(ARRIVING_SHARE * count)
    places = np.empty(count, np.int64)
    places[order] = np.arange(count)
    # Entries that are listed twice stay two.
    readers, senders = places[data.graph.targets()], places[data.graph.indices]
    by_reader = np.lexsort((senders, readers))
    indptr = np.concatenate(([0], np.cumsum(np.bincount(readers, minlength=count)))).astype(np.int64)
    splits = Splits(*(np.sort(places[part]) for part in (data.splits.train, data.splits.validation, data.splits.test)))
    graph = Graph(indptr, senders[by_reader].astype(np.int32))
    given = data.with_lists(graph).with_features(data.features[order], data.feature_columns)
    renumbered = replace(given, digest=f"{data.digest[:32]}-grown", labels=data.labels[order], splits=splits)
    return Grown(renumbered, stored)


def measure_replay(name: str, effort: ReplayEffort) -> Replay:
    source = GraphSource(npz=NpzSource(uri=(DATASETS / f"{name}.npz").resolve().as_uri()))
    with tempfile.TemporaryDirectory(prefix="gnnserve-updates-") as folder, short_profile():
        root = Path(folder)
        world = grown(load_source(source, root), seed=20)
        first, recording = world.at_first, Recording()
        spec = _spec(source, effort, Normalization.AUTO)
        loaded = _generated(root, spec, first, recording, _MAX_DELTA_BYTES)
        living, batches = LivingRevision(loaded, _MAX_DELTA_BYTES), 0
        for batches, batch in enumerate(world.batches(_BATCH_NODES), start=1):
            (said,) = living.apply(batches, [batch])
            if not isinstance(said, BatchEffect):
                raise SystemExit(f"a batch was refused: {said.field}: {said.message}")
        rebuilt = _rebuilt(root, spec, world, first, recording)
        arrived = np.arange(world.stored, world.data.graph.nodes)
        arrived = arrived[_is_labelled(world.data.labels[arrived])]
        assert loaded.manifest is not None  # noqa: S101
        metric = loaded.manifest.profile.metric

        def accuracy(revision: LoadedRevision, variant: str) -> float:
            labels = world.data.labels[arrived]
            scores = (infer_batch(revision, variant, arrived, key).scores for key in range(_KEYS))
            return round(float(np.mean([evaluate(each, labels, metric) for each in scores])), 4)

        variants = tuple(
            ReplayedVariant(variant, accuracy(loaded, variant), accuracy(rebuilt, variant))
            for variant in loaded.variants
            if variant in rebuilt.variants
        )
    return Replay(world.data.graph.nodes, len(arrived), batches, variants)


def _is_labelled(labels: np.ndarray) -> np.ndarray:
    return np.ones(len(labels), bool) if labels.ndim == 2 else labels >= 0


def _spec(source: GraphSource, effort: ReplayEffort, normalization: Normalization) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {
            "graph": {
                "source": source.model_dump(by_alias=True, exclude_none=True, mode="json"),
                "normalization": normalization.value,
            },
            "model": {"architecture": "GraphSAGE", "training": {"epochs": effort.epochs}},
            "variants": effort.variants,
        }
    )


def _rebuilt(
    root: Path, spec: GNNServiceSpec, world: Grown, first: GraphData, recording: Recording
) -> LoadedRevision:  # fmt: skip
    """The whole graph generated anew, by the same weights and scaled by the same numbers."""
    scope = spec.model.training.scope
    fitted = fit_normalization(first.features, Normalization.AUTO, visible_nodes(world.stored, first.splits, scope))
    data = world.data
    if fitted.mean is not None and fitted.deviation is not None:
        scaled = ((data.features - fitted.mean) / fitted.deviation).astype(np.float32)
        data = data.with_features(scaled, data.feature_columns)
        graph = spec.graph.model_copy(update={"normalization": Normalization.DISABLED})
        spec = spec.model_copy(update={"graph": graph})
    return _generated(root, spec, data, recording, None)


def _generated(
    root: Path, spec: GNNServiceSpec, data: GraphData, recording: Recording, max_delta_bytes: int | None
) -> LoadedRevision:
    # Imported here: torch takes seconds, and what grows is tested without it.
    from gnnserve_worker.generation.layers import CPU
    from gnnserve_worker.generation.train import TrainedModels

    repository = Repository(root, "benchmarks", data.digest)
    made = generate_over(
        spec, data, task_of(spec).pose(data).problem, repository,
        lambda data, features: recording.of(TrainedModels(spec.model, data, features, silent, CPU)),
    )  # fmt: skip
    return load_revision(repository, made.revision, max_delta_bytes)


@dataclass(slots=True)
class Recording:
    """Networks of the first generation by name, which later ones take in place of training."""

    networks: dict[str, Tensors] = field(default_factory=dict)

    def of(self, models: Models) -> _Recorded:
        return _Recorded(self.networks, models)


@dataclass(frozen=True, slots=True)
class _Recorded:
    networks: dict[str, Tensors]
    models: Models
    """What trains a network that is not there yet."""
    runs: Sequence[Any] = ()
    decoder: Mapping[str, np.ndarray] = field(default_factory=dict)

    def master(self, name: str) -> Tensors:
        if name not in self.networks:
            self.networks[name] = self.models.master(name)
        return self.networks[name]

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        if name not in self.networks:
            self.networks[name] = self.models.pruned(columns, name)
        return self.networks[name]

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        if name not in self.networks:
            self.networks[name] = self.models.narrowed(wide, columns, factor, name)
        return self.networks[name]

    def another_master(self, seed: int, name: str) -> Tensors:
        return self.models.another_master(seed, name)
