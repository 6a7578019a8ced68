"""How near the engine comes to what the machine can do: bytes over bandwidth and operations over peak, all measured.

The bound of a batch is the time that its reads and products take if nothing else costs anything and neither overlaps
the other: rows of the table at the rate at which memory delivers just these rows, a cache line of the graph for each
node that is expanded and each neighbour that is drawn, and the matrix products at the peak of their precision. In
process, without HTTP, sampling included. Where the engine or a stage of it is faster than that, the bound is at fault:
the machine was measured as slower than it is, and the file says where.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.bandwidth import (
    LINE_BYTES,
    RowRates,
    huge_words,
    last_cache_bytes,
    measure_rows,
    sequential_gb_per_s,
)
from benchmarks.engine.engine import (
    Timing,
    draw_batches,
    map_graph,
    measure,
    network_of,
    projected_variant,
    pruned_variants,
    revision_of,
    scratch_folder,
    write_features,
    write_projected,
)
from benchmarks.engine.gemm import best_peaks, measure_peaks
from benchmarks.engine.roofline_report import compare_with_paper, headlines, show_memory, show_shape
from benchmarks.engine.roofline_verdicts import VERDICTS
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.shapes import FANOUTS, SHAPES, Shape, ShapeFiles, prepare
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import plan_chunks
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours

FACTORS = (1, 2, 4, 8)
SEEDS = (1, 1024)
BATCHES = {1: 8000, 1024: 64}
"""Batches before one comes again: of one seed so many that their rows, two lines each at least, exceed a last cache."""
ROW_BYTES = (64, 128, 256, 512, 1024, 2432)


@dataclass(frozen=True, slots=True)
class Machine:
    threads: int
    peaks: Mapping[str, float]
    """10^9 operations per second by precision, by as many of `threads` as are fastest together."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows and bytes that a batch touches, mean over batches, shared between its seeds as the engine shares it."""

    rows: float
    """Nodes that get a hidden state: seeds and hop 1."""
    neighbours: float
    """Drawn for all of them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A variant: what it took, and what memory does with its rows. Without its table, which must not stay mapped."""

    name: str
    storage: Storage
    projected: bool
    columns: int
    nodes: int
    stride_bytes: int
    """Bytes from row to row."""
    timings: Mapping[int, Timing]
    counts: Mapping[int, Counts]
    row_bytes: int
    of_sampled: RowRates
    """Rates of the rows that batches gather, in their order."""
    of_random: RowRates

    @property
    def alike(self) -> tuple[int, int, int]:
        """Equal for variants whose rows cost memory the same, whatever is in them."""
        return self.nodes, self.stride_bytes, self.row_bytes


@dataclass(frozen=True, slots=True)
class Bound:
    """Milliseconds."""

    table_ms: float
    graph_ms: float
    products_ms: float

    @property
    def total_ms(self) -> float:
        return self.table_ms + self.graph_ms + self.products_ms

    def beaten_by(self, timing: Timing) -> list[str]:
        """The stages, and the whole, that were faster than this bound: then it is at fault."""
        pairs = {
            "sample": (timing.sample_ms, self.graph_ms),
            "gather": (timing.gather_ms, self.table_ms),
            "compute": (timing.compute_ms, self.products_ms),
            "whole": (timing.p50_ms, self.total_ms),
        }
        return [what for what, (took_ms, least_ms) in pairs.items() if took_ms < least_ms]


def compute_bound(
    counts: Counts, seeds: int, columns: int, projected: bool, shape: Shape, gathered_bytes: float,
    table_gb_per_s: float, graph_gb_per_s: float, peak_gflop_per_s: float,
) -> Bound:  # fmt: skip
    first = 0.0 if projected else 2 * counts.rows * 2 * columns * shape.hidden
    last = 2 * seeds * 2 * shape.hidden * shape.classes
    return Bound(
        table_ms=gathered_bytes / table_gb_per_s / 1e6,
        graph_ms=(counts.rows + counts.neighbours) * LINE_BYTES / graph_gb_per_s / 1e6,
        products_ms=(first + last) / peak_gflop_per_s / 1e6,
    )


def run_all(run: Run) -> dict[str, Any]:
    quick = run.quick
    names = ["arxiv"] if quick else list(SHAPES)
    storages = [Storage.FLOAT32, Storage.INT8] if quick else list(Storage)
    seconds = 0.1 if quick else 1.0

    memory = measure_memory(quick, seconds)
    show_memory(memory)
    most = thread_count()
    peaks = {threads: measure_peaks(threads, 2 * seconds) for threads in sorted({1, max(1, most // 2), most})}
    print(f"peak of matrix products, 10^9 operations/s by threads: {peaks}", flush=True)
    machine = Machine(most, best_peaks(peaks))
    shapes = {name: measure_shape(prepare(SHAPES[name]), storages, machine, seconds) for name in names}
    return {
        "headlines": headlines(shapes),
        "threads": machine.threads,
        "lastCacheBytes": last_cache_bytes(),
        "memoryGbPerS": memory,
        "peakGflopPerS": peaks,
        "bestGflopPerS": machine.peaks,
        "fanouts": FANOUTS,
        "shapes": shapes,
    }


def measure_memory(quick: bool, seconds: float) -> dict[str, Any]:
    """Bandwidth of anonymous memory far larger than the caches, by threads."""
    words = huge_words(1 << (28 if quick else 31))
    threads = sorted({1, thread_count()})
    draw = np.random.default_rng(0)
    sequential = {count: sequential_gb_per_s(words, count, seconds) for count in threads}
    random_rows = {}
    for row_bytes in ROW_BYTES:
        table = words[: len(words) * 8 // row_bytes * row_bytes // 8].reshape(-1, row_bytes // 8)
        rows = draw.integers(0, len(table), (1 << (27 if quick else 29)) // row_bytes)
        random_rows[row_bytes] = {
            count: asdict(measure_rows(table, row_bytes, rows, count, seconds)) for count in threads
        }
    return {"sequential": sequential, "randomRows": random_rows}


def measure_shape(files: ShapeFiles, storages: Iterable[Storage], machine: Machine, seconds: float) -> dict[str, Any]:
    shape, tensors = files.shape, files.weights()
    network = network_of(shape.hidden, shape.classes)
    features = files.array("features")
    with scratch_folder() as folder:
        graph = map_graph(folder, files.array("indptr"), files.array("indices"))
        batches = {seeds: draw_batches(shape.seeds_end, seeds, BATCHES[seeds]) for seeds in SEEDS}
        result: dict[str, Any] = {
            "graph": asdict(shape),
            "samplingUsPerSeed": measure_sampling(graph, shape, seconds),
            "graphLinesGbPerS": measure_graph_lines(graph, machine.threads, seconds),
            "variants": {},
        }
        measured: list[Measured] = []
        for storage in storages:
            # One storage at a time: those of the largest shape do not all fit in memory.
            with scratch_folder() as tables:
                variants = build_variants(tables, features, tensors, storage, network)
                revision = revision_of(graph, variants, network)
                timings = {seeds: measure(revision, batches[seeds], len(variants) * seconds) for seeds in SEEDS}
                measured += [
                    measure_variant(
                        revision, variant, {seeds: timings[seeds][variant.name] for seeds in SEEDS},
                        batches, machine.threads, seconds,
                    )
                    for variant in variants
                ]  # fmt: skip
        rates = rates_of_alike(measured)
        for one in measured:
            result["variants"][one.name] = describe_variant(
                one, *rates[one.alike], shape, machine, result["graphLinesGbPerS"]
            )
    result["pruning"] = compare_with_paper(shape.name, result["variants"])
    show_shape(shape, result)
    return result


def build_variants(
    folder: Path, features: np.ndarray, tensors: Mapping[str, np.ndarray], storage: Storage, network: Any
) -> list[LoadedVariant]:
    return [
        *pruned_variants(write_features(folder, features, storage), tensors, network, FACTORS),
        projected_variant(write_projected(folder, features, tensors, storage), tensors, network),
    ]


def sample_as_served(revision: LoadedRevision, variant: LoadedVariant, seeds: np.ndarray) -> list[NeighbourSample]:
    """The samples of one batch, chunk by chunk as the engine would make them."""
    fanouts = variant.fanouts
    chunks = plan_chunks(
        len(seeds), fanouts, variant.network.bytes_per_row, revision.reading.effective_nodes, thread_count()
    )
    graph = revision.graph
    return [
        sample_neighbours(graph.indptr, graph.indices, part, fanouts, 0, Scratch(), share=chunks.share)
        for part in np.array_split(seeds, chunks.count)
    ]


def count(batches: Sequence[Sequence[NeighbourSample]]) -> Counts:
    return Counts(
        rows=float(np.mean([sum(len(sample.nodes) for sample in batch) for batch in batches])),
        neighbours=float(np.mean([sum(len(sample.neighbours) for sample in batch) for batch in batches])),
    )


def measure_sampling(graph: Graph, shape: Shape, seconds: float) -> dict[int, float]:
    """Time of the sampler alone on one core, by batch size: the median over the given batches."""
    scratch = Scratch()
    found = {}
    for seeds in (1, 64, 256, 1024):
        batches = draw_batches(shape.seeds_end, seeds, 64, seed=seeds)
        elapsed_s, give_up_at_s, done = [], time.perf_counter() + seconds, 0
        while done < 16 or time.perf_counter() < give_up_at_s:
            began_s = time.perf_counter()
            sample_neighbours(graph.indptr, graph.indices, batches[done % 64], FANOUTS, done, scratch, share=False)
            elapsed_s.append(time.perf_counter() - began_s)
            done += 1
        found[seeds] = round(float(np.median(elapsed_s[8:])) / seeds * 1e6, 3)
    return found


def measure_graph_lines(graph: Graph, threads: int, seconds: float) -> float:
    """Random lines of the neighbour lists, more than a cache holds, since batches of 1024 seeds come with new ones."""
    per_line = LINE_BYTES // graph.indices.itemsize
    lines = graph.indices[: graph.edges // per_line * per_line].reshape(-1, per_line)
    drawn = np.random.default_rng(1).integers(0, len(lines), 1 << 22)
    return measure_rows(lines, LINE_BYTES, drawn, threads, seconds).fetch


def measure_variant(
    revision: LoadedRevision, variant: LoadedVariant, timings: Mapping[int, Timing],
    batches: Mapping[int, Sequence[np.ndarray]], threads: int, seconds: float,
) -> Measured:  # fmt: skip
    table = variant.table.rows.values
    row_bytes = variant.columns * table.itemsize
    samples = {seeds: [sample_as_served(revision, variant, b) for b in batches[seeds][:16]] for seeds in timings}
    sampled = np.concatenate([part for batch in samples[1024] for s in batch for part in (s.neighbours, s.nodes)])
    drawn = np.random.default_rng(2).integers(0, len(table), len(sampled))
    return Measured(
        name=variant.name,
        storage=variant.table.storage,
        projected=variant.table.projected,
        columns=variant.columns,
        nodes=len(table),
        stride_bytes=table.nbytes // len(table),
        timings=timings,
        counts={seeds: count(of_size) for seeds, of_size in samples.items()},
        row_bytes=row_bytes,
        of_sampled=measure_rows(table, row_bytes, sampled, threads, 2 * seconds),
        of_random=measure_rows(table, row_bytes, drawn, threads, 2 * seconds),
    )


def rates_of_alike(measured: Iterable[Measured]) -> dict[tuple[int, int, int], tuple[RowRates, RowRates]]:
    """Rows sampled and random, by `alike`: the best of all of them, since what differs is the moment of the machine."""
    found: dict[tuple[int, int, int], tuple[RowRates, RowRates]] = {}
    for one in measured:
        sampled, random = found.get(one.alike, (one.of_sampled, one.of_random))
        found[one.alike] = sampled.best(one.of_sampled), random.best(one.of_random)
    return found


def describe_variant(
    measured: Measured, of_sampled: RowRates, of_random: RowRates, shape: Shape, machine: Machine, graph_gb_per_s: float
) -> dict[str, Any]:
    compute = preferred_compute(measured.storage)
    sizes = {}
    for seeds, timing in measured.timings.items():
        counts = measured.counts[seeds]
        bound = compute_bound(
            counts,
            seeds,
            measured.columns,
            measured.projected,
            shape,
            timing.gathered_bytes,
            of_sampled.fetch,
            graph_gb_per_s,
            machine.peaks[compute],
        )
        gathered = timing.gathered_bytes / timing.gather_ms / 1e6
        sizes[seeds] = {
            **timing.describe(),
            **asdict(counts),
            "bound_ms": {**asdict(bound), "total_ms": bound.total_ms},
            "over_bound": round(timing.p50_ms / bound.total_ms, 3),
            "faster_than_bound": bound.beaten_by(timing),
            "gather_gb_per_s": round(gathered, 2),
            "gather_of_fetch": round(gathered / of_random.fetch, 3),
            "gather_of_read": round(gathered / of_random.read, 3),
        }
    return {
        "storage": measured.storage,
        "projected": measured.projected,
        "columns": measured.columns,
        "rowBytes": measured.row_bytes,
        "compute": compute,
        "sampledRowsGbPerS": asdict(of_sampled),
        "randomRowsGbPerS": asdict(of_random),
        "seeds": sizes,
    }


BENCHMARK = Benchmark("roofline", (Part("all", run_all),), VERDICTS, about=__doc__)

if __name__ == "__main__":
    main(BENCHMARK)
