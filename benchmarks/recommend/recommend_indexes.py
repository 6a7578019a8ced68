"""Indexes of embeddings beside each other: what they find of queries that they do not store, how soon, and how fast
they are built.

Every approximate one has a number that buys recall for time. It is set as the product sets its own: the least that
finds `WANTED_RECALL` of the ten nearest of queries as they are stored, or of the other end of links. What is told of it
then is of other queries, which are in no index. One thread searches.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from tests.support.changes.postgres import postgres_server, programs_with_pgvector

from gnnserve_api.files.embeddings import IndexManifest
from gnnserve_worker.generation.embeddings.index import WANTED_RECALL, recall_of
from gnnserve_worker.models.pair_queries import Products
from gnnserve_worker.nearest.search import NearestIndex, exact_best
from gnnserve_worker.parallel import thread_count

COUNT = 10
EFFORTS = (10, 14, 20, 28, 40, 56, 80, 113, 160, 226, 320, 453, 640, 905, 1280)
"""Lengths of the list that a graph of neighbours is searched with (`efSearch`), each 1.4 times the one before."""
_LINKS, _BUILD_EFFORT = 16, 80
"""Neighbours of a vector (`M`), and the list while the graph is built (`efConstruction`)."""
_AT_ONCE = 8192
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Queries:
    """float32 [queries, columns], of length 1."""

    stored: np.ndarray
    """What indexes are tuned by."""
    unseen: np.ndarray
    """What they are measured by: in none of them."""


@dataclass(frozen=True, slots=True)
class Searched:
    """An index that was built."""

    name: str
    build_s: float
    search: Callable[[np.ndarray], np.ndarray]
    """Positions of what is found."""
    efforts: Sequence[int] = ()
    """Numbers that it may be set to, ascending; empty: it has set its own."""
    set_effort: Callable[[int], object] = lambda _: None
    effort: int | None = None
    """The number that it has set."""
    most_effort: int | None = None
    """That by which it compares every vector; None: there is none."""


class Truth:
    """The nearest vectors by exact products."""

    def __init__(self, vectors: np.ndarray, queries: np.ndarray) -> None:
        """`vectors`: float32 [vectors, columns] whose inner products with queries are compared."""
        self._vectors, self._queries = vectors, queries
        parts = (vectors[start : start + _AT_ONCE] for start in range(0, len(vectors), _AT_ONCE))
        self._least = exact_best(parts, Products(queries), COUNT)[1][:, -1]

    def judge(self, search: Callable[[np.ndarray], np.ndarray]) -> tuple[float, list[float]]:
        """recall@10, and the time of each search in ms."""
        times_ms, products = [], np.full((len(self._queries), COUNT), -np.inf, np.float32)
        for row, query in enumerate(self._queries):
            begun_s = time.perf_counter()
            positions = np.asarray(search(query), np.int64)
            times_ms.append((time.perf_counter() - begun_s) * 1000)
            products[row, : len(positions)] = self._vectors[positions] @ query
        return recall_of(products, self._least), times_ms


def compare(searched: Sequence[Searched], vectors: np.ndarray, queries: Queries) -> list[dict[str, Any]]:
    """One row of figures for each index."""
    tuned, unseen = Truth(vectors, queries.stored), Truth(vectors, queries.unseen)
    rows = []
    for one in searched:
        effort, recall_stored = _tune(one, tuned)
        recall, times_ms = unseen.judge(one.search)
        p50, p99 = np.percentile(times_ms, [50, 99])
        rows.append({
            "name": one.name, "vectors": len(vectors), "columns": vectors.shape[1], "effort": effort,
            "most_effort": one.most_effort,
            "queries": len(queries.unseen), "recall": round(recall, 4), "recall_stored": round(recall_stored, 4),
            "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3),
            "items_per_second": round(len(vectors) / one.build_s),
        })  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def _tune(one: Searched, truth: Truth) -> tuple[int | None, float]:
    """The effort that it is set to, and its recall of queries as they are stored."""
    effort, recall = one.effort, 0.0
    for effort in one.efforts:
        one.set_effort(effort)
        recall = truth.judge(one.search)[0]
        if recall >= WANTED_RECALL:
            return effort, recall
    return effort, recall if one.efforts else truth.judge(one.search)[0]


def ours(index: NearestIndex, manifest: IndexManifest) -> Searched:
    """The product's index, as it is opened and searched for a request."""
    return Searched(
        "gnnserve: lists of faiss" if manifest.lists else "gnnserve: exact", manifest.build_seconds,
        lambda query: index.search(Products(query[None]), COUNT, _NONE, None).positions, effort=manifest.probed or None,
        most_effort=manifest.lists or None,
    )  # fmt: skip


def exact(vectors: np.ndarray) -> Searched:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    seconds = _timed(lambda: index.add(vectors))
    return Searched("faiss, every vector", seconds, lambda query: index.search(query[None], COUNT)[1][0])


def faiss_hnsw(vectors: np.ndarray) -> Searched:
    import faiss

    faiss.omp_set_num_threads(thread_count())
    index = faiss.IndexHNSWFlat(vectors.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _BUILD_EFFORT
    seconds = _timed(lambda: index.add(vectors))
    faiss.omp_set_num_threads(1)

    def set_effort(effort: int) -> None:
        index.hnsw.efSearch = effort

    return Searched(
        "faiss HNSW", seconds, lambda query: index.search(query[None], COUNT)[1][0], EFFORTS, set_effort
    )  # fmt: skip


def usearch_hnsw(vectors: np.ndarray) -> Searched:
    from usearch.index import Index

    index = Index(
        ndim=vectors.shape[1], metric="ip", dtype="f32", connectivity=_LINKS, expansion_add=_BUILD_EFFORT
    )  # fmt: skip
    seconds = _timed(lambda: index.add(np.arange(len(vectors)), vectors))

    def set_effort(effort: int) -> None:
        index.expansion_search = effort

    return Searched("usearch HNSW", seconds, lambda query: index.search(query, COUNT).keys, EFFORTS, set_effort)


@contextmanager
def pgvector_hnsw(vectors: np.ndarray) -> Iterator[tuple[Searched, dict[str, int]]]:
    """The database that embeddings were written into, with its index, asked by SQL; and rows per second."""
    with postgres_server(programs_with_pgvector()) as server, tempfile.TemporaryDirectory() as folder:
        uri_file, path = Path(folder) / "uri", Path(folder) / "vectors.npy"
        uri_file.write_text(server.uri())
        np.save(path, vectors)
        command = [
            sys.executable,
            "-m",
            "benchmarks.recommend.recommend_sink",
            str(uri_file),
            str(path),
            str(len(vectors)),
        ]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        told = json.loads(said.splitlines()[-1])
        with psycopg.connect(server.uri(), autocommit=True) as connection:

            def set_effort(effort: int) -> None:
                connection.execute(f"SET hnsw.ef_search = {effort}")

            def search(query: np.ndarray) -> np.ndarray:
                rows = connection.execute(
                    "SELECT id FROM gnnserve_embeddings.default_items ORDER BY embedding <=> %s::vector LIMIT 10",
                    (str(query.tolist()),),
                ).fetchall()
                return np.array([row[0] for row in rows], np.int64)

            # pgvector takes no longer lists.
            efforts = [effort for effort in EFFORTS if effort <= 1000]
            build_s = told["whole_s"] - told["copied_s"]
            written = {
                "rows": len(vectors), "rows_per_second": round(len(vectors) / told["copied_s"]),
                "with_index_rows_per_second": round(len(vectors) / told["whole_s"]),
            }  # fmt: skip
            yield Searched("pgvector HNSW, SQL", build_s, search, efforts, set_effort), written


def _timed(run: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    run()
    return time.perf_counter() - begun_s
