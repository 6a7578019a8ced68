"""Engines over graphs of the paper's shapes, their rows where a measurement wants them, and batches through them."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from benchmarks.engine.engine import loaded_revision, pruned_variants, scratch_folder, write_features
from benchmarks.engine.paper_shapes import random_model, shape_of
from benchmarks.engine.paper_tables import FACTORS, GRAPHS
from benchmarks.gpu.figures import Row, Times, summarize
from benchmarks.shapes import FANOUTS, prepare
from gnnserve_api.device import CachePolicy
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.caching.sharding import plan_cache
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.buffers import plan_lane
from gnnserve_worker.gpu.engine import GpuEngine
from gnnserve_worker.gpu.memory import HostMemory, Ledger
from gnnserve_worker.gpu.resident import LANES, Means, Resident, make_resident
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.tables.table import Table

_SLACK_BYTES = 2**20
_LEAST_RUNS = 30


class Placement(StrEnum):
    MEMORY = "memory"
    """Everything in the GPU's memory."""
    LINK = "link"
    """The graph in the GPU's memory, every row over the link."""
    CACHE = "cache"
    """Like `LINK`, with a cache for a part of the rows."""


@dataclass(frozen=True, slots=True)
class PaperGraph:
    """One of the paper's shapes, mapped as a worker maps it."""

    name: str
    graph: Graph
    features: np.ndarray
    """float32 [nodes, features], mapped."""
    table: Table


@contextmanager
def opened_graph(name: str) -> Iterator[PaperGraph]:
    files = prepare(shape_of(name))
    with scratch_folder() as folder:
        features = files.array("features")
        graph = Graph(files.array("indptr"), files.array("indices"))
        yield PaperGraph(name, graph, features, write_features(Path(folder), features, Storage.FLOAT32))


def revision_of_model(graph: PaperGraph, model: str) -> LoadedRevision:
    """The factors of the paper, with its widths and random weights."""
    paper = GRAPHS[graph.name]
    is_sage = model == "GraphSAGE"
    network = NetworkManifest(
        architecture="GraphSAGE" if is_sage else "GIN",
        hidden=paper.sage_hidden if is_sage else paper.gin_hidden,
        fanouts=FANOUTS,
        classes=paper.classes,
        mlp_hidden=None if is_sage else paper.gin_mlp_hidden,
    )
    variants = pruned_variants(graph.table, random_model(paper, model), network, FACTORS)
    return loaded_revision(graph.graph, variants, network)


@dataclass(slots=True)
class Opened:
    """An open engine, which is None again at the end, whatever still refers to this object."""

    engine: GpuEngine
    resident: Resident
    """The resident parts of the same revision; the benchmark stops its caches' updates. With `Placement.CACHE` it has
    none where the limit that they take has room for the table as well: small graphs, or small tables."""
    open_s: float
    warm_up_s: float


@contextmanager
def opened_engine(
    loaded: LoadedRevision,
    accelerator: Accelerator,
    placement: Placement,
    policy: CachePolicy = CachePolicy.FREQUENCY,
    cached_share: float = 0.0,
    *,
    has_distinct_room: bool = False,
) -> Iterator[Opened]:
    """`cached_share`: of the table's blocks, with `Placement.CACHE`. `has_distinct_room`: for rows that a chunk gathers
    once, which is there beside a cache in any case."""
    limit_bytes = None
    if placement is not Placement.MEMORY:
        needed_bytes = _needed_without_table(loaded, accelerator)
        limit_bytes = needed_bytes + _SLACK_BYTES
        if placement is Placement.CACHE:
            # As much again is left to a successor, which a worker would load beside this one.
            limit_bytes += needed_bytes + cache_bytes(loaded, cached_share)
        if placement is Placement.CACHE or has_distinct_room:
            limit_bytes += LANES * plan_lane(loaded.variants.values()).distinct_bytes
    if placement is not Placement.CACHE:
        policy = CachePolicy.NONE
    ledger = Ledger()
    began_s = time.perf_counter()
    resident = make_resident(loaded, accelerator, Means(policy, limit_bytes, ledger, HostMemory()))
    engine = GpuEngine(loaded, resident)
    opened_s = time.perf_counter()
    try:
        engine.warm_up()
        for problem in resident.problems:
            print(f"  {problem}", flush=True)
        opened = Opened(engine, resident, opened_s - began_s, time.perf_counter() - opened_s)
        print(f"  {placement}: opened in {opened.open_s:.1f} s, warm after {opened.warm_up_s:.1f} s", flush=True)
        try:
            yield opened
        finally:
            del opened.engine, opened.resident
    finally:
        del engine, resident
        gc.collect()
        _await_release(ledger)


def cache_bytes(loaded: LoadedRevision, share: float) -> int:
    """What a cache of that share of the blocks takes, with all that it needs to find them: not much more."""
    variants = list(loaded.variants.values())
    table = variants[0].table
    low, high = 0, 2 * int(table.rows.values.nbytes) + 64 * table.nodes * table.columns
    while high - low > max(1024, high // 1000):
        middle = (low + high) // 2
        plan = plan_cache(
            nodes=table.nodes,
            columns=table.columns,
            widths=[variant.columns for variant in variants],
            item_bytes=table.rows.values.itemsize,
            budgets_bytes=[middle],
        )
        if plan is not None and plan.capacity >= share * plan.items:
            high = middle
        else:
            low = middle
    return high


def _needed_without_table(loaded: LoadedRevision, accelerator: Accelerator) -> int:
    """GPU memory for everything but the table of features."""
    whole = Ledger()
    resident = make_resident(loaded, accelerator, Means(CachePolicy.NONE, None, whole, HostMemory()))
    taken = resident.memory_bytes
    resident.release()
    return taken["graph"] + taken["weights"] + taken["buffers"]


def _await_release(ledger: Ledger) -> None:
    """An engine gives its memory back in a thread of its own."""
    give_up_s = time.perf_counter() + 30
    while ledger.claims:
        if time.perf_counter() > give_up_s:
            raise RuntimeError("an engine that is no longer used has not released its memory")
        time.sleep(0.01)


def draw_seeds(nodes: int, seeds: int, count: int, seed: int = 0) -> list[np.ndarray]:
    """int64 ids, uniform."""
    draw = np.random.default_rng(seed)
    return [draw.integers(0, nodes, seeds) for _ in range(count)]


def draw_popular_seeds(nodes: int, seeds: int, count: int, exponent: float = 1.0, seed: int = 0) -> list[np.ndarray]:
    """int64 ids: the r-th most popular node is asked for in proportion to r^-exponent."""
    draw = np.random.default_rng(seed)
    names = draw.permutation(nodes)
    shares = np.cumsum(np.arange(1, nodes + 1, dtype=np.float64) ** -exponent)
    shares /= shares[-1]
    return [names[np.searchsorted(shares, draw.random(seeds))].astype(np.int64) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Measured:
    """Batches of one size through one variant, one after the other."""

    times: Times
    window: Times
    """Gathering and computing together."""
    sample_ms: float
    """Medians of the stages."""
    gather_ms: float
    compute_ms: float
    gathered_bytes: int
    """Mean."""
    seeds_per_s: float

    def describe(self) -> Row:
        return {
            **self.times.describe(),
            "window_p50_ms": self.window.p50_ms, "window_p99_ms": self.window.p99_ms,
            "sample_ms": self.sample_ms, "gather_ms": self.gather_ms, "compute_ms": self.compute_ms,
            "gathered_bytes": self.gathered_bytes, "seeds_per_s": round(self.seeds_per_s),
        }  # fmt: skip


def measure(
    engine: GpuEngine,
    variant: str,
    batches: Sequence[np.ndarray],
    seconds: float,
    first_key: int = 0,
    views: Sequence[BatchView | None] = (None,),
) -> Measured:
    """Measures for about `seconds`, from the first batch again at the end. `views`: those of the batches, in turns."""
    engine.infer(variant, batches[0], first_key, view=views[0])
    durations_ms: list[float] = []
    inferences: list[Inference] = []
    began_s = time.perf_counter()
    give_up_s = began_s + seconds
    while len(durations_ms) < _LEAST_RUNS or time.perf_counter() < give_up_s:
        batch, view = batches[len(durations_ms) % len(batches)], views[len(durations_ms) % len(views)]
        start_s = time.perf_counter()
        inference = engine.infer(variant, batch, first_key + len(durations_ms), view=view)
        durations_ms.append((time.perf_counter() - start_s) * 1e3)
        inferences.append(Inference(_NOTHING, None, inference.times, inference.gathered_bytes))
    elapsed_s = time.perf_counter() - began_s
    times = [inference.times for inference in inferences]
    return Measured(
        times=summarize(durations_ms),
        window=summarize([time.gather_ms + time.compute_ms for time in times]),
        sample_ms=round(float(np.median([time.sample_ms for time in times])), 4),
        gather_ms=round(float(np.median([time.gather_ms for time in times])), 4),
        compute_ms=round(float(np.median([time.compute_ms for time in times])), 4),
        gathered_bytes=round(float(np.mean([inference.gathered_bytes for inference in inferences]))),
        seeds_per_s=len(durations_ms) * len(batches[0]) / elapsed_s,
    )


_NOTHING = np.zeros(0)
"""Thousands of runs are kept, their scores are not."""
