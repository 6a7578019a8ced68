"""Recommendations filtered by a column, and by a perceptron: what is found beside brute force, and how soon."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recommend.recommend_asking import COUNT, ask, recall_of_new
from benchmarks.recommend.recommend_graph import published_graph, worker
from benchmarks.results import Run
from benchmarks.verdicts import Verdict, at_least, at_most, below
from gnnserve_api.files.embeddings import IndexMetric
from gnnserve_api.spec.task import Decoder
from gnnserve_worker.generation.embeddings.columns import keep_columns
from gnnserve_worker.generation.embeddings.index import EmbeddingsOrigin, build_index, recall_of
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.nearest.comparison import ByScore
from gnnserve_worker.nearest.files import index_folder, open_index
from gnnserve_worker.nearest.parts import INDEX_FOLDER, IndexPart
from gnnserve_worker.nearest.search import exact_best
from gnnserve_worker.progress import silent

RECALL, P99_MS, SLOWER_MS = 0.99, 10.0, 10.0
"""`SLOWER_MS`: most by which the p99 of a filtered recommendation may be above that of one without a filter."""
_FILTER_REASON = (
    "what passes lies together, so that many times as many lists are compared for the same recall as without a filter, "
    "and which nodes pass is found anew for each request"
)
_PERCEPTRON_REASON = (
    "the score of a list's centre says little of its nodes, so that a tenth of all lists is compared; since this run "
    "one kernel scores their rows where they lie"
)
_SHARES = (0.5, 0.1, 0.01, 0.0001)
"""Shares of the nodes that pass."""
_NODES, _REQUESTS, _JUDGED = (1_000_000, 60_000), (1500, 200), (200, 50)
"""In a full and in a quick run: nodes, requests of each kind, and new users whose recommendations are judged."""
_PAIRS, _DIMENSIONS = (1_000_000, 60_000), 64
_WARM_UP = 50
_BLOCK_ROWS = 8192


def measure_filters(run: Run) -> dict[str, Any]:
    """The column is a feature, which tells its node's community too, so that what passes lies together."""
    nodes, requests, judged = (pair[run.quick] for pair in (_NODES, _REQUESTS, _JUDGED))
    with tempfile.TemporaryDirectory(prefix="gnnserve-filters-") as folder:
        root = Path(folder)
        graph = published_graph(root, nodes)
        vectors = graph.embeddings()
        index = build_index(vectors, graph.origin, index_folder(graph.folder), silent)
        manifest = graph.repository.revisions()[0]
        keep_columns(graph.folder, manifest, (IndexPart(INDEX_FOLDER, "", 0, nodes),), lambda _: graph.types, "bench")
        column = np.asarray(graph.types[0].features)[:, 0]
        users, rows = graph.new_users(_WARM_UP + requests), []
        with worker(root) as port, closing(HTTPConnection("127.0.0.1", port)) as connection:
            for share in (1.0, *_SHARES):
                limit = float(np.quantile(column, share))
                filter_ = {} if share == 1.0 else {"filter": {"0": {"below": limit}}}
                allowed = np.flatnonzero(column < np.float32(limit)) if filter_ else np.arange(nodes)
                told = [
                    ask(connection, "/v1/recommend", {**user, **filter_, "count": COUNT}) for user in users
                ][_WARM_UP:]  # fmt: skip
                p50, p99 = np.percentile([one[0] for one in told], [50, 99])
                rows.append({
                    "share": share, "nodes": len(allowed), "requests": requests, "judged": judged,
                    "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3),
                    "fewest": min(len(one[1]["items"]) for one in told),
                    "recall": round(recall_of_new(connection, users[:judged], vectors, filter_, allowed), 4),
                })  # fmt: skip
                print(rows[-1], flush=True)
    return {"filters": {"nodes": nodes, "kind": index.kind, "lists": index.lists, "probed": index.probed, "rows": rows}}


def measure_perceptron(run: Run) -> dict[str, Any]:
    """Embeddings in clusters, and a perceptron of random weights."""
    nodes, requests = _PAIRS[run.quick], _REQUESTS[run.quick]
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((max(20, nodes // 500), _DIMENSIONS), np.float32)

    def embeddings(count: int) -> np.ndarray:
        noise = draw.standard_normal((count, _DIMENSIONS), np.float32)
        made: np.ndarray = centres[draw.integers(0, len(centres), count)] + np.float32(0.7) * noise
        return made

    shape, root = (_DIMENSIONS, _DIMENSIONS), np.float32(_DIMENSIONS**-0.5)
    decoder = build_decoder(
        Decoder.MLP,
        {
            "first": root * draw.standard_normal(shape, np.float32),
            "second": root * draw.standard_normal(shape, np.float32),
            "bias": root * draw.standard_normal(_DIMENSIONS, np.float32),
            "out": root * draw.standard_normal(_DIMENSIONS, np.float32),
            "end": np.zeros(1, np.float32),
        },
        _DIMENSIONS,
    )
    comparison, candidates, asking = ByScore(decoder, stand_first=False), embeddings(nodes), embeddings(requests)
    with tempfile.TemporaryDirectory(prefix="gnnserve-perceptron-") as folder:
        path = Path(folder) / "index"
        origin = EmbeddingsOrigin("bench", "", "x1", "", None, "bench", IndexMetric.SCORE)
        made = build_index(candidates, origin, path, silent, embeddings(1000), comparison)
        index, nothing = open_index(path, made), np.zeros(0, np.int64)
        queries, times_ms = comparison.queries(asking), []
        scores = np.full((requests, COUNT), -np.inf, np.float32)
        for place in range(requests):
            begun_s = time.perf_counter()
            found = index.search(queries.some(np.array([place])), COUNT, nothing, None)
            times_ms.append((time.perf_counter() - begun_s) * 1000)
            scores[place, : len(found.products)] = found.products
    # In blocks, since every one is held against all queries at once.
    blocks = (comparison.rows(candidates[start : start + _BLOCK_ROWS]) for start in range(0, nodes, _BLOCK_ROWS))
    least = exact_best(blocks, queries, COUNT)[1][:, -1]
    p50, p99 = np.percentile(times_ms, [50, 99])
    return {
        "perceptron": {
            "nodes": nodes, "columns": _DIMENSIONS, "requests": requests, "kind": made.kind, "lists": made.lists,
            "probed": made.probed, "told_recall": made.recall, "recall": round(recall_of(scores, least), 4),
            "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3),
            "items_per_second": round(nodes / made.build_seconds),
        }
    }  # fmt: skip


def filter_verdicts(found: Any) -> Iterator[Verdict]:
    for place, row in enumerate(found["filters"]["rows"][1:] if "filters" in found else (), start=1):
        words = f"recommendations of which {row['nodes']:,} nodes pass"
        yield Verdict(
            f"recall@10 of {words}", at_least(RECALL),
            lambda found, place=place: found["filters"]["rows"][place]["recall"],
        )  # fmt: skip
        yield Verdict(
            f"fewest items of {words}", at_least(COUNT),
            lambda found, place=place: found["filters"]["rows"][place]["fewest"],
        )  # fmt: skip
        yield Verdict(
            f"p99 of {words}, above that without a filter, ms", at_most(SLOWER_MS),
            lambda found, place=place: round(
                found["filters"]["rows"][place]["p99_ms"] - found["filters"]["rows"][0]["p99_ms"], 3
            ),
            reason=_FILTER_REASON,
        )  # fmt: skip
    if "perceptron" in found:
        yield Verdict(
            "recall@10 of recommendations by a perceptron",
            at_least(RECALL),
            lambda found: found["perceptron"]["recall"],
        )
        yield Verdict(
            "p99 of a search by a perceptron, ms", below(P99_MS), lambda found: found["perceptron"]["p99_ms"],
            reason=_PERCEPTRON_REASON,
        )  # fmt: skip
