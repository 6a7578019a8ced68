"""Quantities that the cost of a batch depends on, or must not depend on: graph size, degree skew, batch size, number of
variants; and where it pays to compute once what a batch meets several times. In process, without HTTP.

Each question is asked with everything else fixed. A request draws at most 25 and 10 neighbours whatever the graph, so
its cost may grow with the graph only as far as memory gets slower, a hub must not cost more than others, and a variant
that is not asked must cost nothing. Where a small batch comes again only after more has been read than the last cache
holds, rows come from memory, as they do for a server of a large graph.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Page

from benchmarks.engine.bandwidth import last_cache_bytes
from benchmarks.engine.engine import (
    Timing,
    draw_batches,
    map_graph,
    measure,
    network_of,
    pruned_variants,
    revision_of,
    scratch_folder,
    write_features,
)
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import FANOUTS, Shape, random_weights
from benchmarks.verdicts import Verdict, at_most
from gnnserve_api.variants import Storage
from gnnserve_cli.render import format_ms
from gnnserve_worker.inference import batch as inference
from gnnserve_worker.inference.batch import Inference, infer_batch, infer_each
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.sampling.neighbours import distinct_share

FEATURES, HIDDEN, CLASSES = 32, 64, 16
"""Narrow, so that the largest graph fits beside its page tables in 24 GiB."""
MEAN_DEGREE = 16
SIZES = (100_000, 1_000_000, 10_000_000)
BATCH_SEEDS = (1, 4, 16, 64, 256, 1024, 4096)
VARIANTS = (1, 2, 4, 8, 16)
HUB_DEGREE = 1_000_000
HUBS = 8
P99_RATIO_LIMIT = 1.2
"""Requests with a hub over the others: more is a hub that shows."""
CACHES_APART = 4
"""Last caches that are read before a batch comes again."""
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Expected of a chunk's draws to be distinct; graphs are made for them."""
SHARING_DEGREE = 32
"""Degree of every node: above the fan-outs, so that the number of draws is as expected."""
TABLES = {"narrow": (32, 64), "wide": (512, 256)}
"""Features and hidden columns, float32."""
SHARING_SEEDS = 1024
DISTINCT_SEEDS = (1, 8, 64, 512, 1024)


@dataclass(frozen=True, slots=True)
class Effort:
    seconds: float
    """Seconds per point."""
    batches: int
    """Fewest batches, so that requests differ; batches of several seeds need fewer."""


def run_all(run: Run) -> dict[str, Any]:
    effort = Effort(0.2, 200) if run.quick else Effort(3.0, 2000)
    sizes = SIZES[:-1] if run.quick else SIZES
    shares = SHARES[::3] if run.quick else SHARES

    by_size = [measure_size(nodes, effort) for nodes in sizes]
    with scratch_folder() as folder:
        hubs = np.arange(HUBS, dtype=np.int64)
        nodes = SIZES[1]
        indptr, indices = random_graph(nodes, HUB_DEGREE, hubs)
        revision = build_revision(folder, indptr, indices, factors=range(1, max(VARIANTS) + 1))
        skew = measure_skew(only(revision, 1), hubs, effort)
        by_batch = [point(only(revision, 1), nodes, seeds, effort) for seeds in BATCH_SEEDS]
        by_variants = [measure_variants(revision, count, effort) for count in VARIANTS]
    repeated = measure_repeated(SIZES[1], effort)
    sharing = {name: measure_sharing(*widths, shares, effort) for name, widths in TABLES.items()}
    return {
        "fanouts": FANOUTS,
        "features": FEATURES,
        "hidden": HIDDEN,
        "meanDegree": MEAN_DEGREE,
        "lastCacheBytes": last_cache_bytes(),
        "cachesApart": CACHES_APART,
        "graphSize": by_size,
        "degreeSkew": skew,
        "batchSize": by_batch,
        "variants": by_variants,
        "sharing": {"seeds": SHARING_SEEDS, "share_below": inference._SHARE_BELOW, "tables": sharing},
        "repeated_seeds": repeated,
    }


def random_graph(nodes: int, hub_degree: int, hubs: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Degrees around the mean and neighbours anywhere; each of `hubs` lists `hub_degree` nodes, and some list it.

    indptr int64 [nodes + 1], indices int32. Drawn per node, so that ten million nodes take seconds.
    """
    draw = np.random.default_rng(seed)
    degrees = draw.integers(0, 2 * MEAN_DEGREE + 1, nodes)
    degrees[hubs] = hub_degree
    indptr = np.zeros(nodes + 1, dtype=np.int64)
    np.cumsum(degrees, out=indptr[1:])
    indices = draw.integers(0, nodes, int(indptr[-1]), dtype=np.int32)
    if len(hubs):
        # As in a real graph: who lists a million nodes is listed by many.
        listing = draw.integers(0, len(indices), HUBS * hub_degree // 10)
        indices[listing] = draw.choice(hubs, len(listing))
    return indptr, indices


def build_revision(
    folder: Any, indptr: np.ndarray, indices: np.ndarray, factors: Sequence[int], columns: int = FEATURES,
    hidden: int = HIDDEN,
) -> LoadedRevision:  # fmt: skip
    nodes = len(indptr) - 1
    weights = random_weights(Shape("scaling", nodes, len(indices), columns, hidden, CLASSES))
    features = np.random.default_rng(1).standard_normal((nodes, columns), dtype=np.float32)
    network = network_of(hidden, CLASSES)
    table = write_features(folder, features, Storage.FLOAT32)
    variants = pruned_variants(table, weights, network, factors)
    return revision_of(map_graph(folder, indptr, indices), variants, network)


def only(revision: LoadedRevision, count: int) -> LoadedRevision:
    """The revision with its first `count` variants."""
    return replace(revision, variants=dict(list(revision.variants.items())[:count]))


def measure_size(nodes: int, effort: Effort) -> dict[str, Any]:
    with scratch_folder() as folder:
        indptr, indices = random_graph(nodes, 0, np.zeros(0, dtype=np.int64))
        revision = build_revision(folder, indptr, indices, factors=[1])
        edges = len(indices)
        del indptr, indices
        return {
            "nodes": nodes,
            "edges": edges,
            "array_bytes": array_bytes(revision),
            "points": [point(revision, nodes, seeds, effort) for seeds in (1, 1024)],
        }


def array_bytes(revision: LoadedRevision) -> int:
    """Bytes of the graph and the table: below `lastCacheBytes` the cache holds them whatever is drawn."""
    table = next(iter(revision.variants.values())).table
    return revision.graph.indptr.nbytes + revision.graph.indices.nbytes + table.rows.values.nbytes


def point(revision: LoadedRevision, nodes: int, seeds: int, effort: Effort) -> dict[str, Any]:
    batches = draw_apart(revision, nodes, seeds, effort)
    timing = first_of(measure(revision, batches, effort.seconds))
    return {
        **timing.describe(),
        "us_per_seed": round(timing.p50_ms / seeds * 1e3, 3),
        "batches": len(batches),
        "bytes_apart": len(batches) * timing.gathered_bytes,
    }


def draw_apart(revision: LoadedRevision, nodes: int, seeds: int, effort: Effort) -> list[np.ndarray]:
    """As many batches as read `CACHES_APART` last caches of the table (the graph is not counted), and 8 at least."""
    variant = next(iter(revision.variants))
    tried = draw_batches(nodes, seeds, 16, seed=1)
    read_bytes = np.mean([infer_batch(revision, variant, batch, key=i).gathered_bytes for i, batch in enumerate(tried)])
    apart = int(np.ceil(CACHES_APART * last_cache_bytes() / read_bytes))
    return draw_batches(nodes, seeds, max(8, effort.batches // seeds, apart))


def first_of(timings: dict[str, Timing]) -> Timing:
    return next(iter(timings.values()))


def measure_skew(revision: LoadedRevision, hubs: np.ndarray, effort: Effort) -> dict[str, Any]:
    """One seed, and a batch: those that hold a hub against those that do not. Hubs come back often, as hubs do."""
    nodes = revision.graph.nodes
    points = []
    for seeds in (1, 64):
        others = draw_batches(nodes - HUBS, seeds, effort.batches)
        plain = [batch + HUBS for batch in others]
        with_hub = [np.concatenate([hubs[i % HUBS : i % HUBS + 1], batch[1:]]) for i, batch in enumerate(plain)]
        least = 200
        hub = first_of(measure(revision, with_hub, effort.seconds, least))
        other = first_of(measure(revision, plain, effort.seconds, least))
        ratio = round(hub.p99_ms / other.p99_ms, 3)
        points.append(
            {
                "seeds": seeds,
                "with_hub": hub.describe(),
                "without": other.describe(),
                "p99_ratio": ratio,
                "hub_shows": ratio > P99_RATIO_LIMIT,
            }
        )
    return {
        "nodes": nodes,
        "hubs": HUBS,
        "hub_degree": HUB_DEGREE,
        "p99_ratio_limit": P99_RATIO_LIMIT,
        "points": points,
    }


def measure_variants(revision: LoadedRevision, count: int, effort: Effort) -> dict[str, Any]:
    """x1 while `count` variants of one table take turns; only what the others leave in the caches can differ."""
    batches = {seeds: draw_apart(revision, revision.graph.nodes, seeds, effort) for seeds in (1, 1024)}
    found = {
        seeds: first_of(measure(only(revision, count), of_size, effort.seconds * min(count, 8))).describe()
        for seeds, of_size in batches.items()
    }
    return {"variants": count, "x1": list(found.values())}


def measure_sharing(features: int, hidden: int, shares: Sequence[float], effort: Effort) -> dict[str, Any]:
    """Batches in which a node that a chunk meets twice is computed once, over batches in which it is computed twice.

    By the share of a chunk's draws that the engine expects to be distinct, on a graph with as many nodes as that takes.
    """
    points = []
    for share in shares:
        nodes = nodes_of_share(share)
        with scratch_folder() as folder:
            draw = np.random.default_rng(0)
            indptr = np.arange(nodes + 1, dtype=np.int64) * SHARING_DEGREE
            indices = draw.integers(0, nodes, nodes * SHARING_DEGREE, dtype=np.int32)
            revision = build_revision(folder, indptr, indices, [1], features, hidden)
            points.append({"share": share, "nodes": nodes, **time_sharing(revision, effort)})
    return {"features": features, "hidden": hidden, "points": points, "crossover": crossover(points)}


def nodes_of_share(share: float) -> int:
    """Nodes of a graph in which this share of a chunk's draws is expected to be distinct."""
    draws = SHARING_SEEDS * (1 + FANOUTS[0]) // thread_count()
    fewest, most = 1, 1000 * draws
    while fewest < most:
        nodes = (fewest + most) // 2
        fewest, most = (nodes + 1, most) if distinct_share(draws, nodes) < share else (fewest, nodes)
    # A batch has as many different seeds.
    return max(fewest, SHARING_SEEDS)


def time_sharing(revision: LoadedRevision, effort: Effort) -> dict[str, float]:
    """Medians of the same batches with sharing and without, in turns."""

    def decide(share_below: float) -> Callable[[np.ndarray, int], Inference]:
        def infer(batch: np.ndarray, key: int) -> Inference:
            with sharing_below(share_below):
                return infer_each(revision, "x1", batch, key)

        return infer

    batches = draw_batches(revision.graph.nodes, SHARING_SEEDS, 32)
    # No share is below 0, and every one below 2.
    medians = in_turns({"with_ms": decide(2.0), "without_ms": decide(0.0)}, batches, effort.seconds)
    return {**medians, "with_over_without": round(medians["with_ms"] / medians["without_ms"], 3)}


@contextmanager
def sharing_below(share: float) -> Iterator[None]:
    """The engine's own threshold moved, so that all else is as it serves."""
    before = inference._SHARE_BELOW
    inference._SHARE_BELOW = share
    inference.plan_chunks.cache_clear()
    try:
        yield
    finally:
        inference._SHARE_BELOW = before
        inference.plan_chunks.cache_clear()


def crossover(points: Sequence[Mapping[str, float]]) -> float | None:
    """The share from which on sharing costs more than it saves, between points along a line; None if there is none."""
    for before, after in itertools.pairwise(points):
        low, high = before["with_over_without"], after["with_over_without"]
        if low < 1 <= high:
            part = (1 - low) / (high - low)
            return round(before["share"] + part * (after["share"] - before["share"]), 3)
    return None


def in_turns(
    ways: Mapping[str, Callable[[np.ndarray, int], Inference]], batches: Sequence[np.ndarray], seconds: float
) -> dict[str, float]:
    """The median of each way in milliseconds; all of them go through the same batches, for about `seconds` in all."""
    elapsed_ms: dict[str, list[float]] = {name: [] for name in ways}
    for infer in ways.values():
        infer(batches[0], 0)
    give_up_at_s, done = time.perf_counter() + seconds, 0
    while done < 10 or time.perf_counter() < give_up_at_s:
        for name, infer in ways.items():
            began_s = time.perf_counter()
            infer(batches[done % len(batches)], done)
            elapsed_ms[name].append((time.perf_counter() - began_s) * 1e3)
        done += 1
    return {name: round(float(np.median(found)), 4) for name, found in elapsed_ms.items()}


def measure_repeated(nodes: int, effort: Effort) -> list[dict[str, Any]]:
    """Batches of 1024 seeds of which few are different: as the engine answers them, and without a look at that.

    Without hubs: where sharing pays, equal seeds meet in the sampler at the latest.
    """
    drawn = {str(distinct): draw_repeated(nodes, distinct, 32) for distinct in DISTINCT_SEEDS}
    drawn["Zipf"] = draw_zipf(nodes, 32)
    with scratch_folder() as folder:
        revision = build_revision(folder, *random_graph(nodes, 0, np.zeros(0, dtype=np.int64)), factors=[1])
        return time_repeated(revision, drawn, effort)


def time_repeated(
    revision: LoadedRevision, drawn: Mapping[str, Sequence[np.ndarray]], effort: Effort
) -> list[dict[str, Any]]:
    ways: dict[str, Callable[[np.ndarray, int], Inference]] = {
        "once_ms": lambda batch, key: infer_batch(revision, "x1", batch, key),
        "each_ms": lambda batch, key: infer_each(revision, "x1", batch, key),
    }
    points = []
    for seeds, batches in drawn.items():
        medians = in_turns(ways, batches, effort.seconds)
        points.append(
            {
                "seeds": seeds,
                "distinct": round(float(np.mean([len(np.unique(batch)) for batch in batches])), 1),
                **medians,
                "once_over_each": round(medians["once_ms"] / medians["each_ms"], 3),
            }
        )
    return points


def draw_repeated(nodes: int, distinct: int, count: int) -> list[np.ndarray]:
    """int64 [1024] each, `distinct` of them different and equally frequent, in any order."""
    draw = np.random.default_rng(2)
    return [draw.permutation(np.resize(batch, SHARING_SEEDS)) for batch in draw_batches(nodes, distinct, count)]


def draw_zipf(nodes: int, count: int) -> list[np.ndarray]:
    """int64 [1024] each; who is k-th in an order of the nodes is asked for 1/k as often as the first."""
    draw = np.random.default_rng(3)
    cumulative = np.cumsum(1 / np.arange(1, nodes + 1))
    order = draw.permutation(nodes)
    return [
        order[np.searchsorted(cumulative, draw.random(SHARING_SEEDS) * cumulative[-1])].astype(np.int64)
        for _ in range(count)
    ]


def show(body: dict[str, Any]) -> None:
    page = Page("What", title="In process, x1, float32: ms")
    for header in ("Seeds", "p50", "p99", "µs/seed"):
        page.add_column(header, justify="right")

    def row(what: str, timing: dict[str, Any]) -> None:
        page.add_row(
            what, f"{timing['seeds']:,}", format_ms(timing["p50_ms"]), format_ms(timing["p99_ms"]),
            f"{timing['p50_ms'] / timing['seeds'] * 1e3:.2f}",
        )  # fmt: skip

    for size in body["graphSize"]:
        for timing in size["points"]:
            row(f"{size['nodes']:,} nodes", timing)
    for pair in body["degreeSkew"]["points"]:
        row(f"with a hub of degree {HUB_DEGREE:,}", pair["with_hub"])
        row("without", pair["without"])
    for timing in body["batchSize"]:
        row("batch size", timing)
    for found in body["variants"]:
        for timing in found["x1"]:
            row(f"beside {found['variants'] - 1} variants", timing)
    Console().print(page)
    for name, table in body["sharing"]["tables"].items():
        ratios = {point["share"]: point["with_over_without"] for point in table["points"]}
        print(f"sharing over not sharing by share of distinct nodes, {name}: {ratios}, even at {table['crossover']}")
    once = {point["seeds"]: point["once_over_each"] for point in body["repeated_seeds"]}
    print(f"repeated seeds computed once over each on its own, by different ones of {SHARING_SEEDS}: {once}")


def worst_skew(found: Mapping[str, Any]) -> float:
    return max(point["p99_ratio"] for point in found["degreeSkew"]["points"])


VERDICTS = (Verdict("p99 with a hub of a million neighbours over without", at_most(P99_RATIO_LIMIT), worst_skew),)
BENCHMARK = Benchmark("scaling", (Part("all", run_all),), VERDICTS, about=__doc__, show=show)

if __name__ == "__main__":
    main(BENCHMARK)
