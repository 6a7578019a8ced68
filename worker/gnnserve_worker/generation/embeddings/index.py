"""Builds the index of embeddings that recommendations are found in, and measures what it finds.

Up to `MOST_EXACT_BYTES` every vector is compared. Above, faiss sorts vectors into lists by their nearest centre. Half
of a sample of nodes decides how many lists a query is compared with, the fewest that find `WANTED_RECALL` of the
nearest ten; the other half tells the recall that is published.

Graphs of neighbours (HNSW, of faiss or of usearch) take far longer to build, and their files have to be in memory as a
whole, where lists are mapped.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from gnnserve_api.files.embeddings import INDEX_SCHEMA_VERSION, RECALL_AT, IndexKind, IndexManifest, IndexMetric
from gnnserve_api.files.repository import FileEntry
from gnnserve_worker.models.pair_queries import PairQueries
from gnnserve_worker.nearest.comparison import ByCosine, Comparison
from gnnserve_worker.nearest.files import LISTS, VECTORS, write_manifest
from gnnserve_worker.nearest.search import MOST_EXACT_BYTES, exact_best, open_lists, unit
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository import files

WANTED_RECALL = 0.995
"""Recall at 10 that as many lists are probed for: above 0.99, which the other half of the sample is to show."""
_SAMPLE = 1000
_NUMBER_BYTES = 4
_SEED = 0
_PASSES = 10
"""Passes of k-means over the vectors that centres are made of."""
_PER_CENTRE = 40
"""Vectors that a centre is made of; faiss asks for 39 at least."""
_NODES_PER_LIST = 250
_LEAST_LISTS = 16
_ADDED_AT_ONCE = 65_536
_COMPARED_AT_ONCE = 8192
_SAME = 1e-6
"""Cosines that differ by less are level, and scores by as large a part: sums of float32 in another order do."""


_BY_COSINE = ByCosine()


@dataclass(frozen=True, slots=True)
class EmbeddingsOrigin:
    """The revision and the variant that embeddings are of."""

    revision: str
    graph: str
    variant: str
    weights: str
    offset: int | None
    written_by: str
    metric: IndexMetric = IndexMetric.COSINE
    type: str = ""
    first: int = 0


@dataclass(frozen=True, slots=True)
class _BuiltIndex:
    kind: IndexKind
    file: str
    entry: FileEntry
    recall: float = 1.0
    recall_queries: int = 0
    lists: int = 0
    probed: int = 0
    library: str = ""


def build_index(
    vectors: np.ndarray,
    origin: EmbeddingsOrigin,
    folder: Path,
    on_progress: ProgressListener,
    queries: np.ndarray | None = None,
    comparison: Comparison = _BY_COSINE,
) -> IndexManifest:
    """Write the index of these embeddings into `folder`, in the place of one that is there. `vectors`: float32 [nodes,
    columns]; may be mapped. `queries`: embeddings like those that will be searched with, float32 [queries, columns];
    None: the same."""
    begun_s = time.monotonic()
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    files.make_folder(unfinished)
    try:
        on_progress(Progress("index of embeddings", 0, 1))
        columns = comparison.rows(vectors[:1]).shape[1]
        if len(vectors) * columns * _NUMBER_BYTES <= MOST_EXACT_BYTES:
            entry = files.write_array(unfinished / VECTORS, comparison.rows(vectors))
            built = _BuiltIndex(IndexKind.EXACT, VECTORS, entry)
        else:
            built = _write_lists(vectors, comparison, vectors if queries is None else queries, unfinished)
        manifest = IndexManifest(
            schema_version=INDEX_SCHEMA_VERSION,
            written_by=origin.written_by,
            revision=origin.revision,
            graph=origin.graph,
            variant=origin.variant,
            weights=origin.weights,
            offset=origin.offset,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            nodes=len(vectors),
            columns=columns,
            kind=built.kind,
            file=built.file,
            entry=built.entry,
            recall=round(built.recall, 4),
            recall_queries=built.recall_queries,
            lists=built.lists,
            probed=built.probed,
            build_seconds=round(time.monotonic() - begun_s, 3),
            library=built.library,
            metric=origin.metric,
            type=origin.type,
            first=origin.first,
        )
        write_manifest(unfinished, manifest)
        with files.storing(folder):
            # Processes that have the old files mapped go on reading them.
            shutil.rmtree(folder, ignore_errors=True)
            files.rename(unfinished, folder)
            files.sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    on_progress(Progress("index of embeddings", 1, 1, _words(manifest)))
    return manifest


def _words(manifest: IndexManifest) -> str:
    if manifest.kind is IndexKind.EXACT:
        return f"{manifest.nodes:,} nodes, exact"
    return f"{manifest.nodes:,} nodes in {manifest.lists:,} lists, recall@{RECALL_AT} {manifest.recall:.4f}"


def _write_lists(vectors: np.ndarray, comparison: Comparison, embeddings: np.ndarray, folder: Path) -> _BuiltIndex:
    import faiss  # noqa: PLC0415 - small graphs do without it

    faiss.omp_set_num_threads(thread_count())
    rng = np.random.default_rng(_SEED)
    rows, nodes = comparison.rows, len(vectors)
    lists = max(_LEAST_LISTS, nodes // _NODES_PER_LIST)
    # Centres of more vectors than that take long and find no more.
    lists = min(lists, int(8 * np.sqrt(nodes)))
    chosen = np.sort(rng.choice(nodes, min(nodes, lists * _PER_CENTRE), replace=False))
    learnt = rows(vectors[chosen])
    columns = learnt.shape[1]
    # Products are largest in directions; what is no product is alike for rows that are near each other.
    if comparison.are_products:
        learnt = unit(learnt)
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(columns), columns, lists, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(columns), columns, lists, faiss.METRIC_L2)
    index.cp.niter = _PASSES
    index.cp.seed = _SEED
    index.cp.spherical = comparison.are_products
    index.train(learnt)
    for block in _blocks(vectors, rows):
        index.add(block)
    asked = np.sort(rng.choice(len(embeddings), min(len(embeddings), _SAMPLE), replace=False))
    asked = embeddings[asked]
    rng.shuffle(asked)
    count, half = min(RECALL_AT, nodes), len(asked) // 2
    queries = comparison.queries(asked)
    least = exact_best(_blocks(vectors, rows, _COMPARED_AT_ONCE), queries, count)[1][:, -1]
    tuning, judging = queries.some(np.arange(half)), queries.some(np.arange(half, len(asked)))
    probed = _fewest_probed(index, tuning, least[:half], count)
    recall = recall_of(open_lists(index, probed).best_scores(judging, count), least[half:])
    path, size = folder / LISTS, nodes * columns * _NUMBER_BYTES
    files.require_free(path, size)
    with files.storing(path, size):
        faiss.write_index(index, str(path))
        files.sync(path)
    library = f"faiss {faiss.__version__}"
    return _BuiltIndex(
        IndexKind.APPROXIMATE, LISTS, files.entry_of(path), recall, len(asked) - half, lists, probed, library
    )  # fmt: skip


def _blocks(
    vectors: np.ndarray, rows: Callable[[np.ndarray], np.ndarray], at_once: int = _ADDED_AT_ONCE
) -> Iterator[np.ndarray]:
    for start in range(0, len(vectors), at_once):
        yield rows(vectors[start : start + at_once])


def _fewest_probed(index: Any, queries: PairQueries, least: np.ndarray, count: int) -> int:
    probed, lists = 1, int(index.nlist)
    while probed < lists:
        if recall_of(open_lists(index, probed).best_scores(queries, count), least) >= WANTED_RECALL:
            return probed
        probed = min(lists, max(probed + 1, probed * 3 // 2))
    return lists


def recall_of(products: np.ndarray, least: np.ndarray) -> float:
    """Share of the nearest nodes that were found. `products`: float32 [queries, count], of what was found. `least`: the
    smallest of the nearest `count`; whatever is as near is as good, since many nodes may have one embedding."""
    return float(np.mean(products >= (least - _SAME * np.maximum(1, np.abs(least)))[:, None]))
