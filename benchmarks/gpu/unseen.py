"""Batches with requests that bring new nodes along, beside those for as many stored nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tests.support.overlays.overlays import arrange_overlay

from benchmarks.gpu.engines import (
    Opened,
    PaperGraph,
    Placement,
    draw_seeds,
    measure,
    opened_engine,
    opened_graph,
    revision_of_model,
)
from benchmarks.gpu.figures import Budget, Row
from benchmarks.gpu.parts import ENGINE_S, Save
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.variants import Storage, variant_name
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.rows import row_maker
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import BatchView, Part, view_of

_DEGREE = 10
"""Edges of a new node, from stored ones."""
_SIZES = ((1, 1), (32, 32), (256, 256), (1, 1024), (32, 1024))
"""New nodes of a request, and seeds of its batch: the others are stored nodes, which other requests ask for."""
_BATCHES = 16


@dataclass(frozen=True, slots=True)
class _Seen:
    """Batches with their views."""

    batches: list[np.ndarray]
    views: list[BatchView | None]


def measure_unseen(accelerator: Accelerator, graphs: Sequence[str], budget: Budget, save: Save, *, quick: bool) -> None:
    """GraphSAGE, 1x, everything in the GPU's memory."""
    rows: list[Row] = []
    for name in graphs:
        with opened_graph(name) as graph:
            if not budget.allows(ENGINE_S):
                print(f"  left out, no time: {name}", flush=True)
                continue
            with opened_engine(_revision(graph), accelerator, Placement.MEMORY) as opened:
                for new_nodes, seeds in _SIZES:
                    about: Row = {"graph": name, "new_nodes": new_nodes, "seeds": seeds}
                    rows.append(about | _compared(opened, graph, new_nodes, seeds, 0.1 if quick else 1.0))
            save({"rows": rows, "degree": _DEGREE})


def _revision(graph: PaperGraph) -> LoadedRevision:
    """One variant, which makes rows of features that are scaled already."""
    made = revision_of_model(graph, "GraphSAGE")
    name, width = variant_name(1, Storage.FLOAT32), graph.table.columns
    rows = row_maker(graph.table, width, Scaling(Normalization.DISABLED), np.arange(width), ())
    variants = {name: replace(made.variants[name], rows=rows)}
    return replace(made, variants=variants, new_nodes=replace(made.new_nodes, features=width))


def _compared(opened: Opened, graph: PaperGraph, new_nodes: int, seeds: int, seconds: float) -> Row:
    variant = variant_name(1, Storage.FLOAT32)
    stored = measure(opened.engine, variant, draw_seeds(graph.graph.nodes, seeds, _BATCHES), seconds)
    seen = _with_new_nodes(graph, new_nodes, seeds)
    unseen = measure(opened.engine, variant, seen.batches, seconds, views=seen.views)
    row: Row = {
        "stored_p50_ms": stored.times.p50_ms, "stored_p99_ms": stored.times.p99_ms,
        "p50_ms": unseen.times.p50_ms, "p99_ms": unseen.times.p99_ms,
        "ratio": round(unseen.times.p50_ms / stored.times.p50_ms, 3),
    }  # fmt: skip
    print(f"  {new_nodes:3} new of {seeds:5,} seeds: p50 {row['p50_ms']:.3f} ms, {row['ratio']} of stored", flush=True)
    return row


def _with_new_nodes(graph: PaperGraph, new_nodes: int, seeds: int) -> _Seen:
    draw, nodes = np.random.default_rng(new_nodes), graph.graph.nodes
    seen = _Seen([], [])
    for others in draw_seeds(nodes, seeds - new_nodes, _BATCHES):
        features = draw.standard_normal((new_nodes, graph.table.columns), dtype=np.float32)
        ends = np.repeat(np.arange(nodes, nodes + new_nodes), _DEGREE)
        edges = np.stack([draw.integers(0, nodes, len(ends)), ends], axis=1)
        asked = np.arange(nodes, nodes + new_nodes)
        overlay, numbered = arrange_overlay(
            graph.graph, EdgeRules(Direction.UNDIRECTED), features, np.zeros(0, np.int64), edges, asked
        )
        batch = np.concatenate([numbered, others])
        seen.views.append(view_of(nodes, [Part(new_nodes, overlay, None), Part(len(others), None, None)], batch))
        seen.batches.append(batch)
    return seen
