"""The serving path over made-up revisions of every kind, and training's sampler, for the sake of what they compile.

They are published and loaded as any other, because kernels are compiled for the arrays that they are given: mapped ones
are read-only, which is a type of its own. What a machine would not do by itself, here it does all the same: an image
is built where it will not serve.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from gnnserve_api.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.families import FamilyName
from gnnserve_api.profile import Compute, LatencyProfile, Profile, VariantProfile
from gnnserve_api.repository import (
    CorrectionManifest,
    NetworkManifest,
    RankingManifest,
    RevisionManifest,
    RowSource,
    StoredManifest,
    VariantManifest,
)
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, NO_NEIGHBOURS, Architecture, Model
from gnnserve_api.variants import Storage, columns_of
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, ChangeIds
from gnnserve_worker.graph.ids import integer_ids, lay_out, string_ids
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.served import served_revision
from gnnserve_worker.models import dense
from gnnserve_worker.models.build import layer_sizes
from gnnserve_worker.models.registry import ARCHITECTURES, spec_of
from gnnserve_worker.models.tail import tail_of
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.loaded import CORRECTION, LoadedRevision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights
from gnnserve_worker.sampling.padded import PadScratch, TreeArrays, TreeShares, pad_sample
from gnnserve_worker.sampling.subgraph import SubgraphSampler
from gnnserve_worker.tables.gather import Aggregator, is_plain
from gnnserve_worker.tables.table import feature_blocks

_NODES, _DEGREE, _COLUMNS, _HIDDEN, _CLASSES = 100, 5, 24, 16, 3
_FANOUTS = ((3, 2), (3,), (FULL_NEIGHBOURHOOD, FULL_NEIGHBOURHOOD))
_SEEDS = (1, 2, 64)
_DELTA_BYTES = 1 << 20
_FAMILIES = {"features": FamilyName.PRUNED, "projected": FamilyName.PROJECTED, "stored": FamilyName.STORED}
_PRODUCTS, _AGGREGATED = f"projected-{Storage.FLOAT32}", "aggregated1"


@dataclass(frozen=True, slots=True)
class MadeUpVariant:
    name: str
    factor: int
    kind: Literal["features", "projected", "stored"]
    storage: Storage
    compute: Compute

    @property
    def table(self) -> str:
        return f"{self.kind}-{self.storage}"

    @property
    def is_product(self) -> bool:
        return self.kind != "features"

    def network(self, whole: NetworkManifest) -> NetworkManifest:
        return tail_of(whole, 1) if self.kind == "stored" else whole

    def made(self, whole: NetworkManifest, columns: int, aggregated: str | None) -> VariantManifest:
        """`columns`: that it reads of its table. `aggregated`: as in `CorrectionManifest`."""
        network = self.network(whole)
        correction = CorrectionManifest(network=whole, products=_PRODUCTS, aggregated=aggregated)
        return VariantManifest(
            name=self.name,
            family=_FAMILIES[self.kind],
            table=self.table,
            columns=columns,
            fanouts=network.fanouts,
            network=network,
            compute=self.compute,
            weights=paths.weights_of(self.name),
            stored=StoredManifest(layer=1, correction=correction) if self.kind == "stored" else None,
        )


def rehearse() -> None:
    """Everything that any revision may make serving do, and the sampling of any training."""
    _sample_for_training()
    _compute_in_bfloat16_anywhere()
    _lay_out_for_gpus()
    with tempfile.TemporaryDirectory(prefix="gnnserve-rehearsal-") as folder:
        for revision in _revisions(Path(folder)):
            served_revision(revision).warm_up()
            for variant in revision.variants:
                for count in _SEEDS:
                    seeds = np.arange(count, dtype=np.int64)
                    infer_batch(revision, variant, seeds, key=0)
                    # As they come out of the body of a request.
                    infer_batch(revision, variant, np.frombuffer(seeds.tobytes(), dtype=np.int64), key=0)
        _change_graphs(Path(folder))


def _change_graphs(root: Path) -> None:
    """Everything that a revision of each architecture does where its graph changes."""
    for architecture in ARCHITECTURES:
        repository = Repository(root, "rehearsal", _name_of(architecture, _FANOUTS[0]))
        loaded = repository.load(repository.revisions()[0].revision, _DELTA_BYTES)
        replica = LivingRevision(loaded, _DELTA_BYTES)
        served_revision(loaded, replica).warm_up()
        counts = ChangeCounts(new_nodes=1, overrides=1, edges=1, removed_edges=1, removed_nodes=1)
        ids = ChangeIds(np.array([_NODES, 2, 0, _NODES, 0, _NODES, 1]))
        replica.apply(1, [ChangeBatch(counts, ids, np.zeros((2, _COLUMNS), np.float32))])
        # As where a list is very long.
        replica.graph.lists.follow(replica.drafting.graph.lists, np.arange(2), most_brief=0)
        # As compaction writes it.
        replica.make_stored_rows_anew()
        kept = replica.graph.kept
        replica.graph.lists.of_these(kept)
        replica.graph.ids.of_these(kept)


def _sample_for_training() -> None:
    """From arrays in memory, not mapped ones: a graph is trained on before it is published."""
    graph = made_up_graph(_NODES, _DEGREE, _COLUMNS, _CLASSES).graph
    SubgraphSampler(graph.indptr, graph.indices, weighted=True).sample(np.arange(2, dtype=np.int64), (2,), key=0)


def _lay_out_for_gpus() -> None:
    """A sample as GPUs take it, with what neighbours weigh and without."""
    one, shares = np.zeros(1, np.int32), TreeShares(np.zeros(2, np.float32), np.zeros(1, np.float32))
    tree = TreeArrays.over((1,), 1, np.zeros(2, np.int32), np.zeros(1, np.int32), shares)
    sample = NeighbourSample((1,), one, np.array([0, 1]), one.copy(), one.copy(), None)
    weighed = msgspec.structs.replace(sample, weights=SampleWeights(np.ones(1, np.float32), np.ones(1, np.float32)))
    for each in (sample, weighed):
        pad_sample(each, tree, PadScratch())


def _compute_in_bfloat16_anywhere() -> None:
    """Compute in bfloat16 even on a processor that is slow at it: where the image serves it may be fast."""
    has_mkl = dense._mkl() is not None
    dense._has_fast_bfloat16 = lambda: has_mkl  # type: ignore[assignment]


def _revisions(root: Path) -> Iterator[LoadedRevision]:
    variants = [
        MadeUpVariant(f"{kind}-{storage}-{compute}", 1, kind, storage, compute)
        for kind in ("features", "projected", "stored")
        for storage in Storage
        for compute in ("float32", "bfloat16")
        if storage is not Storage.FLOAT32 or compute == "float32"
    ]
    plain = made_up_graph(_NODES, _DEGREE, _COLUMNS, _CLASSES)
    # Not another revision for each kind of ids: what finds nodes knows nothing of networks.
    ids = (None, integer_ids(np.arange(_NODES)), string_ids(*lay_out([f"node {i}" for i in range(_NODES)])))
    graphs = [replace(plain, ids=found) for found in ids]
    for architecture in ARCHITECTURES:
        for graph, sampled in zip(graphs, _FANOUTS, strict=True):
            fanouts = NO_NEIGHBOURS if spec_of(architecture).aggregator is Aggregator.NONE else sampled
            repository = Repository(root, "rehearsal", _name_of(architecture, sampled))
            network = Model(architecture=architecture, hidden=_HIDDEN, fanouts=fanouts).network(_CLASSES)
            if network.attention is not None:
                # Several heads have kernels of their own.
                network = msgspec.structs.replace(
                    network, attention=msgspec.structs.replace(network.attention, heads=2, output_heads=2)
                )
            # A stored layer leaves another one.
            able = [variant for variant in variants if variant.kind != "stored" or network.layers > 1]
            yield repository.load(publish_made_up(repository, graph, network, able).revision)


def _name_of(architecture: Architecture, sampled: tuple[int, ...]) -> str:
    return f"{architecture}-{len(sampled)}-{abs(sampled[0])}".lower()


def made_up_graph(nodes: int, degree: int, columns: int, classes: int) -> GraphData:
    """Every node has that many random neighbours."""
    draw = np.random.default_rng(0)
    return GraphData(
        source="made up",
        digest="5eed",
        graph=Graph(
            np.arange(0, nodes * degree + 1, degree, dtype=np.int64),
            draw.integers(0, nodes, nodes * degree, dtype=np.int32),
        ),
        features=draw.standard_normal((nodes, columns), dtype=np.float32),
        labels=np.arange(nodes, dtype=np.int64) % classes,
        classes=tuple(range(classes)),
        splits=Splits(*(np.arange(start, nodes, 3, dtype=np.int64) for start in range(3))),
        edge_rules=EdgeRules(Direction.DIRECTED, Duplicates.KEEP),
    )


def publish_made_up(
    repository: Repository, graph: GraphData, network: NetworkManifest, variants: Sequence[MadeUpVariant]
) -> RevisionManifest:
    """Random weights, random rows, an invented profile: everything works and nothing means anything."""
    nodes, columns = graph.features.shape
    architecture = spec_of(network.architecture)
    draw = np.random.default_rng(1)
    repository.put_graph(graph)
    with repository.stage("made-up", graph.digest) as staged:
        for table, (kind, storage) in {variant.table: (variant.kind, variant.storage) for variant in variants}.items():
            if kind == "features":
                staged.write_table(table, kind, storage, columns, feature_blocks(graph.features, range(columns)))
            else:
                outputs = (tail_of(network, 1) if kind == "stored" else network).projected_columns
                rows = np.broadcast_to(np.float32(0.5), (nodes, outputs))
                has_own = architecture.stores_own
                staged.write_table(table, "projected", storage, outputs, [rows], [rows] if has_own else None)
        aggregated = None
        if any(variant.kind == "stored" for variant in variants) and is_plain(architecture.aggregator):
            aggregated, width = _AGGREGATED, network.projected_columns
            sums = np.broadcast_to(np.float32(0.5), (nodes, width))
            staged.write_table(aggregated, "aggregated", Storage.FLOAT32, width, [sums])
        stored = architecture.first_product_keys()
        master = _random_weights(network, columns, draw)
        kept = staged.write_row_source({name: tensor for name, tensor in master.items() if name in stored})
        profiles, made = [], []
        for variant in variants:
            own = variant.network(network)
            width = own.projected_columns if variant.is_product else columns_of(columns, variant.factor)
            tensors = _random_weights(own, width, draw)
            if variant.is_product:
                tensors = {name: tensor for name, tensor in tensors.items() if name not in stored}
            if variant.kind == "stored":
                tensors |= {f"{CORRECTION}{name}": value for name, value in master.items() if name not in stored}
            staged.write_variant(variant.name, tensors)
            made.append(variant.made(network, width, aggregated))
            profiles.append(_invented_profile(variant, width))
        return staged.commit(
            scope="Inductive",
            ranking=RankingManifest(method="Random", settings={}, columns=tuple(range(columns))),
            variants=made,
            profile=Profile(
                metric="accuracy",
                machine="made up",
                threads=1,
                validation_nodes=1,
                test_nodes=0,
                variants=tuple(profiles),
            ),
            generator="made up",
            created_at="2026-01-01T00:00:00Z",
            row_source=RowSource(columns=(), normalization=Normalization.DISABLED, tensors=kept),
            edge_rules=graph.edge_rules,
        )


def _random_weights(network: NetworkManifest, columns: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    spec = spec_of(network.architecture)
    return {
        key: draw.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        for layer, sizes in enumerate(layer_sizes(network, columns))
        for key, shape in spec.shapes_of(layer, sizes).items()
    }


def _invented_profile(variant: MadeUpVariant, columns: int) -> VariantProfile:
    latency = tuple(
        LatencyProfile(
            seeds=seeds, runs=1, p50_ms=1, p99_ms=1, mean_ms=1, std_ms=0, sample_ms=0, gather_ms=0, compute_ms=0,
            gathered_bytes=0, window_p50_ms=0, window_mean_ms=0, window_std_ms=0,
        )
        for seeds in (1, 1024)
    )  # fmt: skip
    return VariantProfile(
        name=variant.name, factor=variant.factor, table=variant.table, columns=columns, storage=variant.storage,
        projected=variant.is_product, compute=variant.compute, validation_accuracy=1 / (1 + variant.factor),
        test_accuracy=None, latency=latency, test_latency=None, size_bytes=1, memory_bytes=1,
    )  # fmt: skip
