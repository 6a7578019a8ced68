"""Recommendations: what indexes find of queries that they do not store, how soon, and what writing costs beside it.

A million made-up nodes in communities are served with their index, and new users are recommended to, each brought by
its request: recall is of their own embeddings beside all vectors. On embeddings of real graphs (LightGCN's of gowalla,
GraphSAGE's of ogbn-arxiv) the product's index stands beside graphs of neighbours (HNSW) of faiss, usearch and pgvector,
each tuned to the same recall of stored queries and asked by unseen ones; exact search says what is right. The million
is asked with filters of columns too, and pairs are scored by a perceptron over as many rows. Predictions
are measured alone and while rows are written, in rounds. Then the other application, spam among reviews.
"""

from __future__ import annotations

import http.client
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.recommend.recommend_asking import COUNT, ask, recall_of_new
from benchmarks.recommend.recommend_filters import filter_verdicts, measure_filters, measure_perceptron
from benchmarks.recommend.recommend_graph import published_graph, timed, worker
from benchmarks.recommend.recommend_real import measure_arxiv, measure_gowalla
from benchmarks.recommend.recommend_spam import measure_spam, spam_verdicts
from benchmarks.recommend.recommend_writing import measure_writing, writing_verdicts
from benchmarks.results import Benchmark, Part, Run, main
from benchmarks.verdicts import Verdict, at_least, at_most, below
from gnnserve_worker.generation.embeddings.index import build_index
from gnnserve_worker.nearest.files import index_folder
from gnnserve_worker.progress import silent

RECALL, P99_MS = 0.99, 10.0
MOST_BELOW_TOLD = 0.005
"""Most by which recall of unseen queries may be below what the index tells of itself: it is measured by 500 queries,
and so are both off by chance."""
_NODES, _REQUESTS, _JUDGED = (1_000_000, 60_000), (3000, 300), (500, 100)
"""In a full and in a quick run: nodes, requests for latencies, and new users whose recommendations are judged."""
_WARM_UP = 50


def measure_million(run: Run) -> dict[str, Any]:
    nodes, requests, judged = (pair[run.quick] for pair in (_NODES, _REQUESTS, _JUDGED))
    with tempfile.TemporaryDirectory(prefix="gnnserve-recommend-") as folder:
        root = Path(folder)
        graph = published_graph(root, nodes)
        computed_s, vectors = timed(graph.embeddings)
        index = build_index(vectors, graph.origin, index_folder(graph.folder), silent)
        users = graph.new_users(_WARM_UP + requests)
        with worker(root) as port, closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            times_ms = [
                ask(connection, "/v1/recommend", {**user, "count": COUNT})[0] for user in users
            ][_WARM_UP:]  # fmt: skip
            recall = recall_of_new(connection, users[:judged], vectors, {}, np.arange(nodes))
    p50, p99 = np.percentile(times_ms, [50, 99])
    return {
        "nodes": nodes,
        "embeddings_per_second": round(nodes / computed_s),
        "index": {
            "kind": index.kind, "lists": index.lists, "probed": index.probed, "recall": index.recall,
            "queries": index.recall_queries, "build_seconds": index.build_seconds,
            "items_per_second": round(nodes / index.build_seconds),
        },
        "recommend": {
            "requests": requests, "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3),
            "judged": judged, "recall": round(recall, 4),
        },
    }  # fmt: skip


def measure_reviews(run: Run) -> dict[str, Any]:
    return {"spam": measure_spam(quick=run.quick)}


def verdicts(found: Any) -> Iterator[Verdict]:
    nodes = f"{found['nodes']:,}" if "nodes" in found else ""
    yield Verdict(
        f"recall@10 of recommendations to new users over {nodes} nodes", at_least(RECALL),
        lambda found: found["recommend"]["recall"],
    )  # fmt: skip
    yield Verdict(
        f"p99 of a recommendation for a new user over {nodes} nodes, ms", below(P99_MS),
        lambda found: found["recommend"]["p99_ms"],
    )  # fmt: skip
    for place, one in enumerate(found.get("real", ())):
        yield Verdict(
            f"recall@10 of the index, {one['embeddings']}, by {one['queries']}", at_least(RECALL),
            lambda found, place=place: found["real"][place]["indexes"][0]["recall"],
        )  # fmt: skip
        yield Verdict(
            f"recall@10 that the index of {one['embeddings']} tells, above that by {one['queries']}",
            at_most(MOST_BELOW_TOLD),
            lambda found, place=place: round(
                found["real"][place]["told_recall"] - found["real"][place]["indexes"][0]["recall"], 4
            ),
        )  # fmt: skip
    yield from filter_verdicts(found)
    yield from writing_verdicts()
    yield from spam_verdicts()


def show(found: Any) -> None:
    table = Table("", "vectors", "recall@10", "of stored", "p50 ms", "p99 ms", "built, items/s")
    for real in found.get("real", ()):
        table.add_section()
        table.add_row(f"{real['embeddings']}; {real['queries']}")
        for one in real["indexes"]:
            table.add_row(
                one["name"], f"{one['vectors']:,}", f"{one['recall']:.4f}", f"{one['recall_stored']:.4f}",
                f"{one['p50_ms']:.3f}", f"{one['p99_ms']:.3f}", f"{one['items_per_second']:,}",
            )  # fmt: skip
    Console(width=140).print(table)


BENCHMARK = Benchmark(
    "recommend",
    (
        Part("million", measure_million, ("benchmarks.recommend.recommend_worker",)),
        Part("filters", measure_filters, ("benchmarks.recommend.recommend_worker",)),
        Part("perceptron", measure_perceptron),
        Part("gowalla", measure_gowalla),
        Part("arxiv", measure_arxiv, ("benchmarks.recommend.recommend_sink",)),
        Part(
            "writing", measure_writing, ("benchmarks.recommend.recommend_worker", "benchmarks.recommend.recommend_sink")
        ),
        Part("spam", measure_reviews),
    ),
    verdicts,
    about=__doc__,
    show=show,
)

if __name__ == "__main__":
    main(BENCHMARK)
