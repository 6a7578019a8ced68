"""What the cost of a batch depends on, and what it must not depend on: graph size, degree skew, batch size, number of
variants. In process, without HTTP.

Each question is asked with everything else fixed. A request draws at most 25 and 10 neighbours whatever the graph, so
its cost may grow with the graph only as far as memory gets slower, a hub must not cost more than others, and a variant
that is not asked must cost nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Page

from benchmarks.engine import (
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
from benchmarks.results import write_result
from benchmarks.shapes import FANOUTS, Shape, random_weights
from gnnserve_api.variants import Storage
from gnnserve_cli.render import format_ms
from gnnserve_worker.repository.loaded import LoadedRevision

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


@dataclass(frozen=True, slots=True)
class Effort:
    seconds: float
    """Per point."""
    batches: int


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 1,000,000 nodes, short runs")
    quick = parser.parse_args(arguments).quick
    effort = Effort(0.2, 200) if quick else Effort(3.0, 2000)
    sizes = SIZES[:-1] if quick else SIZES
    largest_batch = max(BATCH_SEEDS)

    by_size = [measure_size(nodes, effort) for nodes in sizes]
    with scratch_folder() as folder:
        hubs = np.arange(HUBS, dtype=np.int64)
        nodes = SIZES[1]
        indptr, indices = random_graph(nodes, HUB_DEGREE, hubs)
        revision = build_revision(folder, indptr, indices, factors=range(1, max(VARIANTS) + 1))
        skew = measure_skew(only(revision, 1), hubs, effort)
        by_batch = [point(only(revision, 1), nodes, seeds, effort) for seeds in BATCH_SEEDS if seeds <= largest_batch]
        by_variants = [measure_variants(revision, count, effort) for count in VARIANTS]
    body = {
        "fanouts": FANOUTS,
        "features": FEATURES,
        "hidden": HIDDEN,
        "meanDegree": MEAN_DEGREE,
        "graphSize": by_size,
        "degreeSkew": skew,
        "batchSize": by_batch,
        "variants": by_variants,
    }
    show(body)
    write_result("scaling", quick, body)


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


def build_revision(folder: Any, indptr: np.ndarray, indices: np.ndarray, factors: Sequence[int]) -> LoadedRevision:
    nodes = len(indptr) - 1
    weights = random_weights(Shape("scaling", nodes, len(indices), FEATURES, HIDDEN, CLASSES))
    features = np.random.default_rng(1).standard_normal((nodes, FEATURES), dtype=np.float32)
    network = network_of(HIDDEN, CLASSES)
    table = write_features(folder, features, Storage.FLOAT32)
    variants = pruned_variants(table, weights, network, factors)
    return revision_of(map_graph(folder, indptr, indices), variants, network)


def only(revision: LoadedRevision, count: int) -> LoadedRevision:
    """With its first `count` variants."""
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
            "points": [point(revision, nodes, seeds, effort) for seeds in (1, 1024)],
        }


def point(revision: LoadedRevision, nodes: int, seeds: int, effort: Effort) -> dict[str, Any]:
    batches = draw_batches(nodes, seeds, max(8, effort.batches // seeds))
    timing = first_of(measure(revision, batches, effort.seconds))
    return {**timing.describe(), "us_per_seed": round(timing.p50_ms / seeds * 1e3, 3)}


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
    batches = {seeds: draw_batches(revision.graph.nodes, seeds, max(8, effort.batches // seeds)) for seeds in (1, 1024)}
    found = {
        seeds: first_of(measure(only(revision, count), of_size, effort.seconds * count)).describe()
        for seeds, of_size in batches.items()
    }
    return {"variants": count, "x1": list(found.values())}


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


if __name__ == "__main__":
    main()
