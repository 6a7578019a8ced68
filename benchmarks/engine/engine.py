"""The engine in process, without HTTP: revisions built from arrays, their tables mapped from files as a worker maps
them, and the time of batches through their variants.

Weights are random: what a batch costs depends on shapes and degrees alone.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.shapes import CACHE, FANOUTS
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.variants import Storage, columns_of, projected_name, variant_name
from gnnserve_worker.graph.store import Graph, GraphIds, Splits
from gnnserve_worker.inference.batch import Inference, infer_batch, warm_up
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.registry import build_network, first_layer, keep_columns_of, without_first_product
from gnnserve_worker.opening.loaded import GraphReading, LoadedLabels, LoadedRevision, LoadedVariant, Origin
from gnnserve_worker.repository import files
from gnnserve_worker.sampling.neighbours import effective_nodes
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import (
    NO_SCALES,
    Rows,
    Table,
    feature_blocks,
    map_array,
    projected_blocks,
    write_rows,
)

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Timing:
    """Batches of one size through one variant. Times as `infer_batch` reports them, but for the whole, which is timed
    from outside."""

    seeds: int
    runs: int
    p50_ms: float
    p99_ms: float
    sample_ms: float
    """Medians of the stages."""
    gather_ms: float
    compute_ms: float
    gathered_bytes: int
    """Mean."""

    def describe(self) -> dict[str, Any]:
        return asdict(self)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on the disk of the cache, so that arrays are mapped from a real file system."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=CACHE, prefix=".tables-") as folder:
        yield Path(folder)


def map_graph(folder: Path, indptr: np.ndarray, indices: np.ndarray) -> Graph:
    """Written and mapped as a repository does it."""
    files.write_array(folder / "indptr.npy", np.asarray(indptr, dtype=np.int64))
    files.write_array(folder / "indices.npy", np.asarray(indices, dtype=np.int32))
    return Graph(map_array(folder / "indptr.npy"), map_array(folder / "indices.npy"))


def write_features(folder: Path, features: np.ndarray, storage: Storage) -> Table:
    columns = features.shape[1]
    rows = _write(folder, "features", feature_blocks(features, range(columns)), features.shape[0], columns, storage)
    return Table("features", columns, rows, rows)


def write_projected(folder: Path, features: np.ndarray, tensors: Tensors, storage: Storage) -> Table:
    first = first_layer(tensors)
    assert first.own is not None, "GraphSAGE has weights of its own for the node itself"  # noqa: S101
    rows, own = (
        _write(folder, name, projected_blocks(features, weight), len(features), first.outputs, storage)
        for name, weight in (("projected", first.neighbours), ("own", first.own))
    )
    return Table("projected", first.outputs, rows, own)


def _write(folder: Path, name: str, blocks: Iterator[np.ndarray], nodes: int, columns: int, storage: Storage) -> Rows:
    path = folder / f"{name}-{storage}.npy"
    scales = write_rows(path, blocks, nodes, columns, FORMATS[storage])
    files.sync(path)
    return Rows(FORMATS[storage], map_array(path), NO_SCALES if scales is None else scales)


def pruned_variants(
    table: Table, tensors: Tensors, network: NetworkManifest, factors: Sequence[int]
) -> list[LoadedVariant]:
    """Variants of a features table, whose weights are those of the first columns, untrained."""
    variants = []
    for factor in factors:
        columns = columns_of(table.columns, factor)
        kept = keep_columns_of(tensors, np.arange(columns))
        compute = preferred_compute(table.storage)
        built = build_network(network, kept, columns, False, compute)
        variants.append(LoadedVariant(variant_name(factor, table.storage), table, columns, network.fanouts, built))
    return variants


def projected_variant(table: Table, tensors: Tensors, network: NetworkManifest) -> LoadedVariant:
    built = build_network(
        network, without_first_product(tensors), table.columns, True, preferred_compute(table.storage)
    )
    return LoadedVariant(projected_name(table.storage), table, table.columns, network.fanouts, built)


def network_of(hidden: int, classes: int, fanouts: tuple[int, ...] = FANOUTS) -> NetworkManifest:
    return NetworkManifest(architecture="GraphSAGE", hidden=hidden, fanouts=fanouts, classes=classes)


def loaded_revision(graph: Graph, variants: Sequence[LoadedVariant], network: NetworkManifest) -> LoadedRevision:
    """Labels and splits play no part in answering."""
    none = np.zeros(0, dtype=np.int64)
    return LoadedRevision(
        manifest=None,
        graph=graph,
        reading=GraphReading(effective_nodes(graph.indptr)),
        ids=GraphIds({"": None}),
        labels=LoadedLabels(tuple(range(network.classes)), False, none, Splits(none, none, none)),
        variants={variant.name: variant for variant in variants},
        origin=Origin("made up"),
    )


def revision_of(graph: Graph, variants: Sequence[LoadedVariant], network: NetworkManifest) -> LoadedRevision:
    """Warmed up, for the CPU."""
    revision = loaded_revision(graph, variants, network)
    warm_up(revision)
    for array in (
        graph.indptr,
        graph.indices,
        *(rows.values for v in variants for rows in (v.table.rows, v.table.own)),
    ):
        _touch(array)
    return revision


def _touch(array: np.ndarray) -> None:
    """Map every page: what is measured is a server that has been up for a while."""
    array.reshape(-1)[:: mmap.PAGESIZE // array.itemsize].max()


def measure(
    revision: LoadedRevision, batches: Sequence[np.ndarray], seconds: float, least_runs: int = 20
) -> dict[str, Timing]:
    """Every variant through the same batches, in turns, for about `seconds` in all; from the first again at the end."""
    runs: dict[str, list[tuple[float, Inference]]] = {name: [] for name in revision.variants}
    for name in runs:
        infer_batch(revision, name, batches[0], key=0)
    give_up_at_s, done = time.perf_counter() + seconds, 0
    while done < least_runs or time.perf_counter() < give_up_at_s:
        batch = batches[done % len(batches)]
        for name, of_one in runs.items():
            began_s = time.perf_counter()
            inference = infer_batch(revision, name, batch, key=done)
            of_one.append(((time.perf_counter() - began_s) * 1e3, _without_arrays(inference)))
        done += 1
    return {name: summarize(len(batches[0]), of_one) for name, of_one in runs.items()}


def _without_arrays(inference: Inference) -> Inference:
    """Thousands of runs are kept, their scores are not."""
    return Inference(np.zeros(0), None, inference.times, inference.gathered_bytes)


def summarize(seeds: int, runs: Sequence[tuple[float, Inference]]) -> Timing:
    total_ms = [elapsed_ms for elapsed_ms, _ in runs]
    times = [inference.times for _, inference in runs]
    return Timing(
        seeds=seeds,
        runs=len(runs),
        p50_ms=_rounded(np.percentile(total_ms, 50)),
        p99_ms=_rounded(np.percentile(total_ms, 99)),
        sample_ms=_rounded(np.median([time.sample_ms for time in times])),
        gather_ms=_rounded(np.median([time.gather_ms for time in times])),
        compute_ms=_rounded(np.median([time.compute_ms for time in times])),
        gathered_bytes=round(float(np.mean([inference.gathered_bytes for _, inference in runs]))),
    )


def draw_batches(nodes: int, seeds: int, count: int, seed: int = 0) -> list[np.ndarray]:
    """int64 ids, distinct within a batch."""
    draw = np.random.default_rng(seed)
    return [draw.choice(nodes, seeds, replace=False).astype(np.int64) for _ in range(count)]


def _rounded(duration_ms: float | np.floating) -> float:
    """The duration rounded to 0.1 µs: no clock here is finer."""
    return round(float(duration_ms), 4)
