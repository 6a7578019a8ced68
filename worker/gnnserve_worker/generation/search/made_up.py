"""The latency model of a machine, before anything is trained.

It is fitted to a few made-up variants over a made-up graph of about the same size, by the very path that answers
requests. Beside rounding and noise the model does not know how often the real graph's nodes repeat within a batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from gnnserve_api.variants import Storage
from gnnserve_worker.generation.profile import BATCH_SEEDS
from gnnserve_worker.generation.search.candidates import Shapes
from gnnserve_worker.generation.search.latency_model import Degrees, LatencyModel, MeasuredLatency, work_of
from gnnserve_worker.inference.batch import infer_each, warm_up
from gnnserve_worker.inference.latency import measure_latencies
from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up
from gnnserve_worker.models.registry import compute_for
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

_TABLE_BYTES = 2**26
"""Most bytes of a made-up table: beyond a processor's caches, and quickly written."""
_MOST_COLUMNS = 512
_DEGREES = (1, 100)
SIZE_S, _ROUNDS = 0.7, (5, 2000)
"""Seconds of measuring each batch size, and rounds at least and at most."""
_FACTORS = (1, 4, 16)
_STORAGES = (Storage.FLOAT32, Storage.BFLOAT16, Storage.INT8)


def measure_made_up(shapes: Shapes, size_s: float = SIZE_S) -> LatencyModel:
    """The latency model of this machine for networks of this shape, in about three seconds. `size_s`: of measuring each
    batch size."""
    columns = min(shapes.spec.model.row_columns(shapes.source_columns), _MOST_COLUMNS)
    nodes = max(BATCH_SEEDS[-1], min(shapes.graph.nodes, _TABLE_BYTES // (4 * max(columns, shapes.network.hidden))))
    least, most = _DEGREES
    degree = min(max(shapes.graph.edges // max(1, shapes.graph.nodes), least), most)
    data = made_up_graph(nodes, degree, columns, shapes.classes)
    variants = list(_made_up(shapes, columns))
    with tempfile.TemporaryDirectory(prefix="gnnserve-plan-") as folder:
        repository = Repository(Path(folder), "plan", "made-up")
        manifest = publish_made_up(repository, data, shapes.network, variants)
        revision = load_revision(repository, manifest.revision)
        warm_up(revision)
        infer = partial(infer_each, revision, with_embeddings=False)
        names, everyone = [variant.name for variant in variants], np.arange(nodes, dtype=np.int64)
        points = {
            seeds: measure_latencies(infer, names, everyone, seeds, budget_s=size_s, rounds=_ROUNDS)
            for seeds in BATCH_SEEDS
        }
    degrees = Degrees.of(data.graph)
    return LatencyModel.fit(
        [
            MeasuredLatency(
                work_of(made, variant.storage, is_product=variant.is_product, degrees=degrees),
                {seeds: points[seeds][variant.name].p50_ms for seeds in BATCH_SEEDS},
            )
            for made, variant in zip(manifest.variants, variants, strict=True)
        ]
    )


def _made_up(shapes: Shapes, columns: int) -> Iterator[MadeUpVariant]:
    model = shapes.spec.model
    for storage in _STORAGES:
        compute = compute_for(model.architecture, storage)
        for factor in (factor for factor in _FACTORS if factor <= columns):
            yield MadeUpVariant(f"features-{storage}-x{factor}", factor, "features", storage, compute)
        yield MadeUpVariant(f"projected-{storage}", 1, "projected", storage, compute)
        if len(model.fanouts) > 1 and not model.reads_one_row:
            yield MadeUpVariant(f"stored-{storage}", 1, "stored", storage, compute)
