"""The frontier's latencies on graphs of the shapes of five data sets, and the time of making a stored layer.

The shapes are those of *Dynamic GNN inference as-a-service*, table 1. Weights are random and accuracy means nothing
here; the paper's own variants (its factors) stand beside a projected one and a stored layer, all in one run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from benchmarks.engine.engine import draw_batches, measure, warm_up
from benchmarks.engine.paper_shapes import random_model, shape_of
from benchmarks.engine.paper_tables import GRAPHS
from benchmarks.shapes import CACHE, FANOUTS, PROBES, prepare, write_graph
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.repository import Repository

SHAPES = tuple(GRAPHS)
JUDGED = "reddit"
"""The shape that a stored layer is judged on."""
WANTED_STORED_MS, WANTED_EDGES_PER_MINUTE = 1.0, 10e6
_SEEDS, _SECONDS_PER_VARIANT = 1024, 2.0
_ARCHITECTURE = "GraphSAGE"


@dataclass(frozen=True, slots=True)
class MeasuredShape:
    shape: str
    edges: int
    p50_ms: Mapping[str, float]
    """Median time of 1,024 seeds in the engine, sampling included, by variant."""
    stored_tables: tuple[str, ...]
    stored_tables_s: float
    """Time of making and writing them, in every storage."""


def measure_shape(name: str) -> MeasuredShape:
    """Generate the variants of a shape and measure them in turns."""
    graph, files = GRAPHS[name], prepare(shape_of(name))
    began: dict[str, float] = {}

    def listen(progress: Progress) -> None:
        if progress.stage == "write tables":
            began.setdefault(progress.detail or "end", time.perf_counter())

    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{name}-") as folder:
        source, checkpoint = Path(folder) / "graph.npz", Path(folder) / "sage.safetensors"
        write_graph(files, source, multi_label=graph.multi_label)
        safetensors.numpy.save_file(random_model(graph, _ARCHITECTURE), checkpoint)
        repository = Repository(Path(folder) / "repository", "benchmarks", name)
        published = generate(GNNService.model_validate(_manifest(name, source, checkpoint)), repository, listen)
        revision = load_revision(repository, published.revision)
        warm_up(revision)
        batches = draw_batches(revision.graph.nodes - PROBES, _SEEDS, 16)
        found = measure(revision, batches, _SECONDS_PER_VARIANT, least_runs=20)
    names = [*began]
    stored = [each for each in names if each.startswith(("aggregated", "stored"))]
    ended = began[names[names.index(stored[-1]) + 1]]
    return MeasuredShape(
        name,
        int(np.asarray(files.array("indptr"))[-1]),
        {variant: round(timing.p50_ms, 3) for variant, timing in found.items()},
        tuple(stored),
        round(ended - began[stored[0]], 1),
    )


def _manifest(name: str, source: Path, checkpoint: Path) -> dict[str, Any]:
    return {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": name},
        "spec": {
            "graph": {"source": {"npz": {"uri": source.as_uri()}}, "normalization": "Disabled"},
            "model": {
                "architecture": _ARCHITECTURE,
                "hidden": GRAPHS[name].sage_hidden,
                "fanouts": FANOUTS,
                "checkpoint": {"uri": checkpoint.as_uri()},
            },
            "variants": {
                "pruning": {"method": "Random", "factors": [1, 8]},
                "stored": [1],
                "storage": ["float32", "int8"],
            },
        },
    }


def shape_verdicts(shape: MeasuredShape) -> dict[str, dict[str, Any]]:
    if shape.shape != JUDGED:
        return {}
    stored = {name: p50_ms for name, p50_ms in shape.p50_ms.items() if name.startswith("stored1")}
    fastest = min(stored, key=lambda name: stored[name])
    per_minute = 60 * shape.edges / shape.stored_tables_s
    return {
        "Reddit's shape, 1024 seeds through a stored layer": {
            "wanted": f"at most {WANTED_STORED_MS:g} ms",
            "measured": f"{fastest}: {stored[fastest]:.2f} ms",
            "passed": stored[fastest] <= WANTED_STORED_MS,
        },
        "edges a minute of making a stored layer": {
            "wanted": f"at least {WANTED_EDGES_PER_MINUTE:,.0f}",
            "measured": f"{per_minute:,.0f}",
            "passed": per_minute >= WANTED_EDGES_PER_MINUTE,
        },
    }
