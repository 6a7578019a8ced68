"""Revisions of every kind that a GPU serves, small, in memory."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.generation.repository import tiny_profile
from tests.support.graphs.graphs import (
    dense_features,
    network_manifest,
    projected_table_of,
    random_graph,
    random_tensors,
    revision_in_memory,
    table_of,
)
from tests.support.profiles import revision_manifest, variants_of

import gnnserve_worker.gpu.buffers as buffers_module
from gnnserve_api.device import CachePolicy
from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.memory import HostMemory, Ledger
from gnnserve_worker.gpu.resident import Means, make_resident
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant

NODES, WIDTH = 200, 12


def revision(
    architecture: str = "GraphSAGE",
    fanouts: tuple[int, ...] = (4, 3),
    *,
    storage: Storage = Storage.FLOAT32,
    nodes: int = NODES,
    width: int = WIDTH,
    heads: int | None = None,
) -> LoadedRevision:
    """Two variants over one table of features."""
    features = dense_features(nodes, width, seed=2)
    made = revision_in_memory(
        random_graph(nodes, seed=1, mean_degree=8),
        features,
        network_manifest(architecture, fanouts, heads=heads),
        {"x1": width, "x2": width // 2},
    )
    table = table_of(features, storage)
    return replace(made, variants={name: replace(v, table=table) for name, v in made.variants.items()})


def projected_revision(
    architecture: str, fanouts: tuple[int, ...], storage: Storage, *, heads: int | None = None
) -> LoadedRevision:
    """One variant over a table of the first product's outputs; GraphSAGE's has one of each node's own as well."""
    manifest = network_manifest(architecture, fanouts, heads=heads)
    columns = manifest.projected_columns
    made = revision(architecture, fanouts, heads=heads)
    own = dense_features(NODES, columns, seed=4) if architecture == "GraphSAGE" else None
    table = projected_table_of(dense_features(NODES, columns, seed=3), own, storage)
    tensors = random_tensors(manifest, columns, seed=5)
    network = build_network(manifest, tensors, columns, projected=True, compute="float32")
    return replace(made, variants={"projected": LoadedVariant("projected", table, columns, fanouts, network)})


def published(loaded: LoadedRevision, name: str = "f0eae20c16c00ac0-1") -> LoadedRevision:
    """The revision with a manifest, whose profile was not measured."""
    columns = {variant.name: variant.columns for variant in loaded.variants.values()}
    manifest = revision_manifest(name)
    profile = tiny_profile(columns)
    variants = variants_of(profile, network_manifest("GraphSAGE", next(iter(loaded.variants.values())).fanouts))
    return replace(loaded, manifest=msgspec.structs.replace(manifest, variants=variants, profile=profile))


def means(
    policy: CachePolicy = CachePolicy.FREQUENCY, limit_bytes: int | None = None, ledger: Ledger | None = None
) -> Means:
    return Means(policy, limit_bytes, Ledger() if ledger is None else ledger, HostMemory())


def engine_of(loaded: LoadedRevision, accelerator: Accelerator, wanted: Means | None = None) -> GpuEngine:
    return GpuEngine(loaded, make_resident(loaded, accelerator, wanted or means()))


def use_small_chunks(monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    """The interpreter takes its time."""
    monkeypatch.setattr(buffers_module, "LARGEST_BUCKET", seeds)


def some_seeds(count: int, nodes: int = NODES) -> np.ndarray:
    return np.random.default_rng(count).integers(0, nodes, count)


def assert_answers_are_the_cpus(loaded: LoadedRevision, accelerator: Accelerator, seeds: int = 7) -> None:
    """Every variant's scores, but for the order of sums."""
    engine, chosen = engine_of(loaded, accelerator), some_seeds(seeds)
    assert engine.variants == loaded.variants.keys()
    for variant in loaded.variants:
        found, expected = engine.infer(variant, chosen, 11), infer_batch(loaded, variant, chosen, 11)
        size = float(np.abs(expected.scores).max())
        np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5 * size)
