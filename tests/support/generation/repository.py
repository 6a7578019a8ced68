"""A tiny graph, a stand-in network, and publishing as the pipeline does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.profiles import variants_of

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.profile import Compute, LatencyProfile, Profile, VariantProfile
from gnnserve_api.files.repository import NetworkManifest, RankingManifest, RevisionManifest, VariantManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Features, Graph, GraphData, Splits
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision, open_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import StagedRevision
from gnnserve_worker.tables.table import feature_blocks

NODES, FEATURES, CLASSES = 6, 4, (3, 5)
COLUMNS = {"x1": 4, "x2": 2}
TABLE = "features-float32"
RANKED = (2, 0, 3, 1)
NETWORK = NetworkManifest(architecture="GraphSAGE", hidden=8, fanouts=(2, 2), classes=len(CLASSES))
RANKING = RankingManifest(method="Random", settings={"seed": 0.0}, columns=RANKED)


@dataclass(frozen=True, slots=True)
class FakeNetwork:
    """These tests load networks and do not run them."""

    tensors: Mapping[str, np.ndarray]
    columns: int
    projected: bool
    compute: Compute
    weighs_neighbours: bool = False
    names_leaves: bool = False
    reads_payload: bool = False


def build_fake(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, projected: bool, compute: Compute
) -> Any:
    if tensors["weight"].shape != (columns, manifest.classes):
        raise ValueError(f"tensor weight has shape {tensors['weight'].shape}")
    return FakeNetwork(dict(tensors), columns, projected, compute)


def repository_in(root: Path) -> Repository:
    return Repository(root, "default", "digits")


def load_fake(repository: Repository, revision: str) -> LoadedRevision:
    """Open a revision with stand-ins for its networks."""
    return load_revision(repository, revision, build=build_fake)


def write_features(
    staged: StagedRevision, features: Features, columns: Sequence[int], storage: Storage = Storage.FLOAT32
) -> None:
    staged.write_table(f"features-{storage}", "features", storage, len(columns), feature_blocks(features, columns))


def tiny_graph(digest: str = "aaaa", *, multi_label: bool = False) -> GraphData:
    labels = np.array([0, 1, 0, 1, -1, 0], dtype=np.int64)
    return GraphData.of_one_type(
        source="builtin Tiny",
        digest=digest,
        graph=Graph(np.array([0, 2, 3, 3, 5, 6, 7]), np.array([1, 2, 0, 0, 4, 3, 5], dtype=np.int32)),
        features=np.arange(NODES * FEATURES, dtype=np.float32).reshape(NODES, FEATURES),
        labels=(labels[:, None] == np.arange(2)).astype(np.uint8) if multi_label else labels,
        classes=(0, 1) if multi_label else CLASSES,
        splits=Splits(np.array([0, 1, 2]), np.array([3]), np.array([], dtype=np.int64)),
        edge_rules=EdgeRules(Direction.DIRECTED),
    )


def tiny_profile(names: Mapping[str, int] = COLUMNS) -> Profile:
    latency = LatencyProfile(
        seeds=1, runs=3, p50_ms=1, p99_ms=2, mean_ms=1, std_ms=0, sample_ms=0.1, gather_ms=0.1, compute_ms=0.1,
        gathered_bytes=64, window_p50_ms=0.2, window_mean_ms=0.2, window_std_ms=0,
    )  # fmt: skip
    variants = [
        VariantProfile(
            name=name, factor=int(name[1:]), table=TABLE, columns=columns, storage=Storage.FLOAT32, projected=False,
            compute="float32", validation_accuracy=0.9, test_accuracy=None, latency=(latency,),
            test_latency=None, size_bytes=64,
            memory_bytes=128,
        )
        for name, columns in names.items()
    ]  # fmt: skip
    return Profile(
        metric="accuracy", machine="a test", threads=1, validation_nodes=1, test_nodes=0, variants=tuple(variants)
    )


def tiny_variants(profile: Profile) -> tuple[VariantManifest, ...]:
    return variants_of(profile, NETWORK)


def weights(columns: int) -> dict[str, np.ndarray]:
    return {"weight": np.arange(columns * len(CLASSES), dtype=np.float32).reshape(columns, len(CLASSES))}


def commit(
    staged: StagedRevision,
    created_at: str,
    profile: Profile | None = None,
    variants: Sequence[VariantManifest] | None = None,
) -> RevisionManifest:
    return staged.commit(
        scope="Inductive",
        ranking=RANKING,
        variants=tiny_variants(profile or tiny_profile()) if variants is None else variants,
        profile=profile or tiny_profile(),
        generator="gnnserve test",
        created_at=created_at,
    )


def publish(
    repository: Repository,
    recipe: str,
    graph: GraphData | None = None,
    created_at: str = "2026-01-01T00:00:00Z",
    on_wait: Callable[[], None] | None = None,
) -> tuple[RevisionManifest, bool]:
    """The revision, and whether this call is the one that published it."""
    data = graph or tiny_graph()
    with repository.locked(on_wait):
        published = repository.find(recipe, data.digest)
        if published is not None:
            return published, False
        repository.put_graph(data)
        with repository.stage(recipe, data.digest) as staged:
            write_features(staged, data.features, RANKED)
            for name, columns in COLUMNS.items():
                staged.write_variant(name, weights(columns))
            open_revision(staged.files_of(tiny_variants(tiny_profile())), build_fake)
            return commit(staged, created_at), True
