"""Measurements of the engine: latency, throughput, stages, and what updates of the cache cost.

The engine alone, called batch after batch by one thread, as the server calls it; no HTTP, no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.engine.paper_tables import FACTORS
from benchmarks.gpu.baseline import measure_model
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
from benchmarks.gpu.figures import (
    RATE_LIMIT_MS,
    Budget,
    RatePoint,
    Row,
    beside_paper,
    best_rate,
    bound_seeds_per_s,
    relative_cost,
    stage_shares,
)
from gnnserve_api.device import CachePolicy
from gnnserve_api.variants import Storage, variant_name
from gnnserve_worker.gpu.accelerator import Accelerator

_SEEDS = 1024
"""Seeds of a batch unless stated otherwise: the paper's."""
_BATCHES = 64
"""Distinct ones that are measured in turns: what one left in a GPU's cache is gone when it comes again."""
_STEADY_S = 2.0
"""Seconds in which a cache learns before it is measured."""
_CACHED_SHARE = 0.1
_UPDATE_SEEDS = 128
"""Seeds of the batches beside which a cache is updated: few, so that there are enough batches for a p99."""
_RATE_SIZES = (1024, 2048, 4096, 8192, 16_384, 32_768)
ENGINE_S = 15.0
"""What opening one takes: compiling kernels and capturing graphs."""

Save = Callable[[Row], None]
"""Saves the rows that a part has so far."""


def measure_latency(
    accelerator: Accelerator,
    graphs: Sequence[str],
    models: Sequence[str],
    budget: Budget,
    save: Save,
    *,
    sizes: Sequence[int] | None = None,
    quick: bool,
) -> None:
    """Every factor, rows in the GPU's memory and over the link; beside the paper over the link. `sizes`: seeds of the
    batches, by default one and as many as the paper's."""
    rows: list[Row] = []
    left_out: list[str] = []
    opening: list[Row] = []
    seconds = 0.05 if quick else 0.25
    # A model for every graph before the next one: whatever there is no time for is of the second.
    for model in models:
        for name in graphs:
            with opened_graph(name) as graph:
                loaded = revision_of_model(graph, model)
                for placement in (Placement.LINK, Placement.MEMORY):
                    if not budget.allows(ENGINE_S):
                        left_out.append(f"{name} {model} {placement}")
                        continue
                    with opened_engine(loaded, accelerator, placement) as opened:
                        found = _latencies(
                            opened, graph.graph.nodes, name, model, placement, sizes or (1, _SEEDS), seconds
                        )
                        opening.append(
                            {
                                "graph": name, "model": model, "placement": placement,
                                "open_s": round(opened.open_s, 2), "warm_up_s": round(opened.warm_up_s, 2),
                            }
                        )  # fmt: skip
                    rows += found
                    save({"rows": rows, "opening": opening, "left_out": left_out})
    for name in left_out:
        print(f"  left out, no time: {name}", flush=True)


def _latencies(
    opened: Opened, nodes: int, graph: str, model: str, placement: Placement, sizes: Sequence[int], seconds: float
) -> list[Row]:
    found: list[Row] = []
    for seeds in sizes:
        batches = draw_seeds(nodes, seeds, _BATCHES)
        first: Row | None = None
        for factor in FACTORS:
            measured = measure(opened.engine, variant_name(factor, Storage.FLOAT32), batches, seconds)
            row: Row = {
                "graph": graph, "model": model, "placement": placement, "factor": factor, "seeds": seeds,
                **measured.describe(),
            }  # fmt: skip
            first = first or row
            if seeds == _SEEDS and placement is Placement.LINK:
                row |= beside_paper(row, first)
            found.append(row)
            print(
                f"  {graph:8s} {model:9s} {placement:6s} {factor}x {seeds:5,} seeds: p50 {row['p50_ms']:8.3f} ms, "
                f"p99 {row['p99_ms']:8.3f} ms, window {row['window_p50_ms']:.3f} ms",
                flush=True,
            )
    return found


def measure_throughput(
    accelerator: Accelerator, graphs: Sequence[str], link_gigabytes_per_s: float, budget: Budget, save: Save,
    *, quick: bool,
) -> None:  # fmt: skip
    """GraphSAGE, 1x and 8x: batches of growing size, as long as their p99 is below the limit."""
    points: list[Row] = []
    best: list[Row] = []
    for name in graphs:
        with opened_graph(name) as graph:
            loaded = revision_of_model(graph, "GraphSAGE")
            for placement in (Placement.MEMORY, Placement.LINK):
                if not budget.allows(ENGINE_S):
                    print(f"  left out, no time: {name} {placement}", flush=True)
                    continue
                with opened_engine(loaded, accelerator, placement) as opened:
                    for factor in (1, 8):
                        variant = variant_name(factor, Storage.FLOAT32)
                        found, bytes_per_seed = _rates(opened, variant, graph.graph.nodes, 0.1 if quick else 1.0)
                        about: Row = {"graph": name, "variant": variant, "placement": placement}
                        points += [
                            {**about, "seeds": p.seeds, "seeds_per_s": p.seeds_per_s, "p99_ms": p.p99_ms} for p in found
                        ]
                        bound = None
                        if placement is Placement.LINK:
                            bound = bound_seeds_per_s(link_gigabytes_per_s, bytes_per_seed)
                        best += _best_rows(about, found, bound)
                save({"points": points, "best": best, "link_gigabytes_per_s": link_gigabytes_per_s})


def _rates(opened: Opened, variant: str, nodes: int, seconds: float) -> tuple[list[RatePoint], float]:
    found: list[RatePoint] = []
    bytes_per_seed = 0.0
    for seeds in _RATE_SIZES:
        measured = measure(opened.engine, variant, draw_seeds(nodes, seeds, 16), seconds)
        found.append(RatePoint(seeds, measured.seeds_per_s, measured.times.p99_ms))
        bytes_per_seed = measured.gathered_bytes / seeds
        print(
            f"  {variant:4s} {seeds:6,} seeds a batch: {measured.seeds_per_s:10,.0f} seeds/s, "
            f"p99 {measured.times.p99_ms:7.2f} ms",
            flush=True,
        )
        if measured.times.p99_ms > RATE_LIMIT_MS:
            break
    return found, bytes_per_seed


def _best_rows(about: Row, points: Sequence[RatePoint], bound: float | None) -> list[Row]:
    """Best rows within the limit, and within half of it: a request that arrives just after a batch began waits for that
    one too."""
    rows: list[Row] = []
    for limit_ms in (RATE_LIMIT_MS, RATE_LIMIT_MS / 2):
        point = best_rate(points, limit_ms)
        if point is None:
            print(f"  {about['graph']} {about['variant']} {about['placement']}: no batch is within {limit_ms:g} ms")
            continue
        row: Row = {
            **about, "limit_ms": limit_ms, "seeds": point.seeds, "p99_ms": point.p99_ms,
            "seeds_per_s": round(point.seeds_per_s),
        }  # fmt: skip
        if bound is not None:
            row |= {"bound_seeds_per_s": round(bound), "share_of_bound": round(point.seeds_per_s / bound, 3)}
        rows.append(row)
    return rows


def measure_stages(accelerator: Accelerator, graphs: Sequence[str], budget: Budget, save: Save, *, quick: bool) -> None:
    """GraphSAGE, 1x and 8x, popular seeds: without a cache, with one for a tenth of the table, all in GPU memory."""
    rows: list[Row] = []
    for name in graphs:
        with opened_graph(name) as graph:
            loaded = revision_of_model(graph, "GraphSAGE")
            batches = draw_popular_seeds(graph.graph.nodes, _SEEDS, _BATCHES)
            for placement in (Placement.LINK, Placement.CACHE, Placement.MEMORY):
                if not budget.allows(ENGINE_S):
                    print(f"  left out, no time: {name} {placement}", flush=True)
                    continue
                with opened_engine(loaded, accelerator, placement, cached_share=_CACHED_SHARE) as opened:
                    if _lacks_cache(opened, placement, name):
                        continue
                    for factor in (1, 8):
                        variant = variant_name(factor, Storage.FLOAT32)
                        if placement is Placement.CACHE:
                            measure(opened.engine, variant, batches, 0.1 if quick else _STEADY_S)
                        rows.append(
                            {"graph": name, "variant": variant, "placement": placement}
                            | _stages(opened, variant, batches, 0.1 if quick else 1.0)
                        )
                save({"rows": rows, "cached_share": _CACHED_SHARE})


def _lacks_cache(opened: Opened, placement: Placement, name: str) -> bool:
    if placement is not Placement.CACHE or opened.resident.caches:
        return False
    print(f"  left out: the table of {name} has room where its cache would have", flush=True)
    return True


def _stages(opened: Opened, variant: str, batches: Sequence[np.ndarray], seconds: float) -> Row:
    before = opened.engine.stats()
    measured = measure(opened.engine, variant, batches, seconds)
    after = opened.engine.stats()
    reads = after.hits + after.misses - before.hits - before.misses
    batches_done = measured.times.runs + 1
    row: Row = {
        **measured.describe(),
        "shares": stage_shares(measured.sample_ms, measured.gather_ms, measured.compute_ms),
        "link_bytes_per_batch": round((after.link_bytes - before.link_bytes) / batches_done),
        "hit_rate": round((after.hits - before.hits) / reads, 4) if reads else None,
    }
    print(
        f"  {variant:4s} p50 {row['p50_ms']:.3f} ms, shares {row['shares']}, "
        f"{row['link_bytes_per_batch'] / 1e6:.1f} MB over the link",
        flush=True,
    )
    return row


def measure_updates(
    accelerator: Accelerator, graphs: Sequence[str], budget: Budget, save: Save, *, quick: bool
) -> None:
    """The same batches beside a cache that is updated, and once its updates have stopped. Uniform seeds, so that the
    hits are the same with both; FIFO changes most of what it can, Frequency is what serves."""
    rows: list[Row] = []
    variant = variant_name(1, Storage.FLOAT32)
    seconds = 0.2 if quick else 3.0
    for name in graphs:
        with opened_graph(name) as graph:
            loaded = revision_of_model(graph, "GraphSAGE")
            batches = draw_seeds(graph.graph.nodes, _UPDATE_SEEDS, 8 * _BATCHES)
            for policy in (CachePolicy.FREQUENCY, CachePolicy.FIFO):
                if not budget.allows(ENGINE_S):
                    print(f"  left out, no time: {name} {policy}", flush=True)
                    continue
                with opened_engine(loaded, accelerator, Placement.CACHE, policy, _CACHED_SHARE) as opened:
                    if _lacks_cache(opened, Placement.CACHE, name):
                        continue
                    measure(opened.engine, variant, batches, seconds / 2)
                    rows.append({"graph": name, "policy": policy} | _cost_of_updates(opened, variant, batches, seconds))
                save({"rows": rows, "cached_share": _CACHED_SHARE})


def _cost_of_updates(opened: Opened, variant: str, batches: Sequence[np.ndarray], seconds: float) -> Row:
    engine = opened.engine
    start = engine.stats()
    with_updates = measure(engine, variant, batches, seconds)
    middle = engine.stats()
    for cache in set(opened.resident.caches.values()):
        cache.stop()
    begin = engine.stats()
    without = measure(engine, variant, batches, seconds)
    end = engine.stats()
    changes = middle.admissions - start.admissions + middle.evictions - start.evictions
    row: Row = {
        "with": with_updates.times.describe(),
        "without": without.times.describe(),
        "p99_cost": relative_cost(with_updates.times.p99_ms, without.times.p99_ms),
        "p50_cost": relative_cost(with_updates.times.p50_ms, without.times.p50_ms),
        "changes_per_s": round(changes / seconds),
        "hit_rate_with": _hit_rate(start.hits, start.misses, middle.hits, middle.misses),
        "hit_rate_without": _hit_rate(begin.hits, begin.misses, end.hits, end.misses),
    }
    print(f"  p99 {row['p99_cost']:+.1%}, p50 {row['p50_cost']:+.1%}, {row['changes_per_s']:,} changes/s", flush=True)
    return row


def _hit_rate(hits_before: int, misses_before: int, hits: int, misses: int) -> float:
    reads = hits + misses - hits_before - misses_before
    return round((hits - hits_before) / reads, 4) if reads else 0.0


def measure_baseline(
    graphs: Sequence[str], models: Sequence[str], ours: Sequence[Row], budget: Budget, save: Save, *, quick: bool
) -> None:
    """`ours`: rows of the part latency, for the comparison."""
    rows: list[Row] = []
    for name in graphs:
        with opened_graph(name) as graph:
            for model in models:
                for factor in FACTORS:
                    if not budget.allows(5):
                        print(f"  left out, no time: {name} {model} {factor}x", flush=True)
                        continue
                    row: Row = {"graph": name, "model": model, "factor": factor}
                    row |= measure_model(graph, model, factor, runs=3 if quick else 8)
                    own = next(
                        (
                            r["window_p50_ms"]
                            for r in ours
                            if r["seeds"] == _SEEDS
                            and r["placement"] == Placement.LINK
                            and (r["graph"], r["model"], r["factor"]) == (name, model, factor)
                        ),
                        None,
                    )
                    rows.append({**row, "ours_window_ms": own})
                    print(f"  {name:8s} {model:9s} {factor}x window {row['window_p50_ms']:.2f} ms", flush=True)
                    save({"rows": rows})
