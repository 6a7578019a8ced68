"""Revisions of listed layers, as generation makes them, served by a GPU: every variant, over changes, over the link."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.changes.listed import FOLLOWING, ONE_TYPE, ListedScene, source_of
from tests.support.changes.living import PlainGraph
from tests.support.gpu.gpu_revisions import engine_of, means, use_small_chunks
from tests.support.gpu.interpreter import skip_overflow_checks
from tests.support.gpu.listed_revisions import convolution, layers_of, listed_revision
from tests.support.graphs.graphs import random_graph

from gnnserve_api.device import CachePolicy
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.layers import Activation, Convolution
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.resident import make_resident
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.sampling.batch_view import Part, view_of

UNDIRECTED = EdgeRules(Direction.UNDIRECTED)
NODES = 40
MODELS: dict[str, dict[str, Any]] = {
    "attention and degrees": {**ONE_TYPE["attention and degrees"], "fanouts": [3, 2]},
    "what is read beside": {**ONE_TYPE["what is read beside"], "fanouts": [3, 2, 2]},
}
VARIANTS = {**FOLLOWING, "pruning": {"factors": [1, 2]}}
LARGE_NODES = 20_000
"""Nodes of a table that a cache has room for, beside what it needs itself."""


@pytest.fixture(autouse=True)
def _in_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch, 8)
    skip_overflow_checks(monkeypatch)


@pytest.mark.parametrize("name", MODELS)
def test_every_variant_is_answered_by_the_gpu_while_the_graph_changes(
    name: str, tmp_path: Path, accelerator: Accelerator
) -> None:
    plain = PlainGraph(NODES, 3, UNDIRECTED)
    scene = ListedScene(tmp_path, source_of(tmp_path, plain), MODELS[name], variants=VARIANTS)
    loaded, living = scene.living.loaded, scene.living
    assert {"x1", "x2-int8", "stored1", "stored2"} <= loaded.variants.keys()
    written = living.note_written()
    engine = GpuEngine(loaded, make_resident(loaded, accelerator, means()), written)
    assert engine.variants == loaded.variants.keys()
    infer, draw, fresh = living.guarded(engine.infer), np.random.default_rng(4), [*range(10_000, 9_000, -1)]
    for _ in range(2):
        for variant in loaded.variants:
            seeds = draw.choice(living.graph.ids.count, 4, replace=False)
            found, expected = infer(variant, seeds, 11), infer_batch(loaded, variant, seeds, 11)
            size = float(np.abs(expected.scores).max())
            np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5 * size, err_msg=variant)
        scene.apply([plain.random_batch(draw, 8, fresh) for _ in range(2)])


@pytest.mark.parametrize("policy", [CachePolicy.NONE, CachePolicy.DEGREE])
def test_rows_come_over_the_link_through_a_cache_and_once_where_they_are_shared(
    policy: CachePolicy, accelerator: Accelerator
) -> None:
    layers = layers_of(convolution(Convolution.GATV2, heads=2), activation=Activation.ELU)
    loaded = listed_revision(layers, (4, 3), graph=_with_hubs(), width=160)
    ample = engine_of(loaded, accelerator, means(CachePolicy.NONE)).stats().memory_bytes
    needed = ample["weights"] + ample["buffers"] + ample["graph"]
    engine = engine_of(loaded, accelerator, means(policy, needed + 10_000_000))
    assert engine.sharing == {"rows"}
    assert engine.has_cache == (policy is not CachePolicy.NONE)
    seeds = np.random.default_rng(5).integers(0, LARGE_NODES, 6)
    expected = infer_batch(loaded, "rows", seeds, 3)
    link_bytes, repeated = [], 0
    for shared_from in ({}, {"rows": 1}):
        engine.share_rows(shared_from)
        before = engine.stats()
        found = engine.infer("rows", seeds, 3)
        link_bytes.append(engine.stats().link_bytes - before.link_bytes)
        repeated = engine.stats().repeated_rows - before.repeated_rows
        size = float(np.abs(expected.scores).max())
        np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5 * size)
    assert repeated > 0
    if not engine.has_cache:  # which counts its misses itself, round by round
        assert link_bytes[1] == link_bytes[0] - repeated * 4 * 160


def _with_hubs() -> Graph:
    """Nodes whose neighbours are a few: a chunk reads the same rows again and again."""
    graph = random_graph(LARGE_NODES, seed=3)
    return replace(graph, indices=graph.indices % 20)


def test_requests_that_see_the_graph_otherwise_are_left_to_the_cpu(accelerator: Accelerator) -> None:
    """A view calls nodes otherwise than a tree does, so that a node would not be one."""
    loaded = listed_revision(layers_of(convolution(Convolution.GRAPH_SAGE)), (4, 3))
    engine = engine_of(loaded, accelerator)
    seeds = np.array([3, 4])
    view = view_of(loaded.graph.nodes, [Part(2, None, 0)], seeds)

    assert engine.variants == {"rows"}
    assert engine.viewed == frozenset()
    assert infer_batch(loaded, "rows", seeds, 1, view=view).scores.shape == (2, 4)
