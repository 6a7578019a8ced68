"""Rows that a chunk reads several times: batches that gather them once over the link, beside those that do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.gpu.engines import (
    Opened,
    Placement,
    draw_popular_seeds,
    draw_seeds,
    measure,
    opened_engine,
    opened_graph,
    revision_of_model,
)
from benchmarks.gpu.figures import Budget, Row
from benchmarks.gpu.parts import ENGINE_S, Save
from gnnserve_api.variants import Storage, variant_name
from gnnserve_worker.gpu.accelerator import Accelerator

_SIZES = (32, 256, 1024)
_FACTORS = (1, 8)
_BATCHES = 16


def measure_distinct(
    accelerator: Accelerator, graphs: Sequence[str], budget: Budget, save: Save, *, quick: bool
) -> None:
    """GraphSAGE, every row over the link. Popular seeds repeat by themselves, uniform ones only through hubs."""
    rows: list[Row] = []
    for name in graphs:
        with opened_graph(name) as graph:
            if not budget.allows(ENGINE_S):
                print(f"  left out, no time: {name}", flush=True)
                continue
            loaded = revision_of_model(graph, "GraphSAGE")
            with opened_engine(loaded, accelerator, Placement.LINK, has_distinct_room=True) as opened:
                if not opened.engine.sharing:
                    print(f"  left out: the table of {name} has room in the memory for shared rows", flush=True)
                    continue
                for factor in _FACTORS:
                    for size in _SIZES[:1] if quick else _SIZES:
                        for drawn, draw in (("popular", draw_popular_seeds), ("uniform", draw_seeds)):
                            about: Row = {"graph": name, "factor": factor, "seeds": size, "drawn": drawn}
                            batches = draw(graph.graph.nodes, size, _BATCHES)
                            rows.append(about | compared(opened, factor, batches, 0.05 if quick else 0.5))
                save({"rows": rows})


def compared(opened: Opened, factor: int, batches: Sequence[np.ndarray], seconds: float) -> Row:
    """One variant both ways, whatever the sizes of its chunks."""
    engine, variant = opened.engine, variant_name(factor, Storage.FLOAT32)
    found: Row = {}
    link_bytes: dict[str, float] = {}
    for how, is_shared in (("direct", False), ("shared", True)):
        engine.share_rows({variant: 1} if is_shared else {})
        before = engine.stats()
        measured = measure(engine, variant, batches, seconds)
        after = engine.stats()
        link_bytes[how] = (after.link_bytes - before.link_bytes) / (measured.times.runs + 1)
        found |= {f"{how}_p50_ms": measured.times.p50_ms, f"{how}_p99_ms": measured.times.p99_ms}
    engine.share_rows({})
    found |= {
        "ratio": round(found["shared_p50_ms"] / found["direct_p50_ms"], 3),
        "link_share": round(link_bytes["shared"] / link_bytes["direct"], 3),
    }
    print(f"  {variant}: p50 {found['ratio']} of direct, {found['link_share']:.0%} of its bytes", flush=True)
    return found
