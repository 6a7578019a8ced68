"""Recommendations over a million nodes: what the index finds, how soon, and how fast it and a database are filled.

Nodes are in communities: features are a community's centre and noise, neighbours mostly of one's own community, and the
network has random weights. So embeddings lie in clusters of many sizes of overlap, as those of trained networks do; no
figure here says how good a recommendation is. Every request brings a user that the graph has not seen, with links to
stored nodes. Beside it, on fewer vectors: graphs of neighbours (HNSW) of faiss, usearch and pgvector. Then the other
application, spam among reviews (`recommend_spam.py`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tests.support.postgres import postgres_server, programs_with_pgvector

from benchmarks.recommend_spam import measure_spam, spam_verdicts
from benchmarks.results import write_result
from gnnserve_api.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.embeddings import IndexKind, Neighbours
from gnnserve_api.spec.model import Model
from gnnserve_api.variants import Storage
from gnnserve_worker.export.write import build_exact
from gnnserve_worker.generation.embeddings.compute import embedding_blocks
from gnnserve_worker.generation.embeddings.index import Origin, build_index, recall_of
from gnnserve_worker.generation.embeddings.postgres import PostgresSink
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.inference.made_up import MadeUpVariant, publish_made_up
from gnnserve_worker.nearest.files import index_folder
from gnnserve_worker.nearest.search import exact_best, unit
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository

COLUMNS, FEATURES, DEGREE, CLASSES = 128, 64, 10, 16
RECALL, P99_MS, RATIO = 0.99, 10.0, 1.1
_VARIANT = MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32")
_COUNT = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    nodes: int
    others: int
    """Vectors for the libraries and the database beside ours."""
    requests: int
    predictions: int
    """Requests before the database is filled, and as many after: with as many as meanwhile both p99s see as much of
    what else the machine does."""


FULL, QUICK = Sizes(1_000_000, 100_000, 3000, 30_000), Sizes(60_000, 10_000, 300, 300)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recommend", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="60,000 nodes: does it work at all?")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="gnnserve-recommend-") as folder:
        body = measure(Path(folder), sizes)
    body["spam"] = measure_spam(quick=options.quick)
    body["verdicts"] |= spam_verdicts(body["spam"])
    Console(width=120).print(table_of(body))
    Console(width=120).print(spam_table(body["spam"]))
    write_result("recommend", options.quick, body)


def measure(root: Path, sizes: Sizes) -> dict[str, Any]:
    repository = Repository(root, "default", "items")
    network = Model(hidden=COLUMNS, fanouts=(10, 5)).network(CLASSES)
    made = publish_made_up(repository, communities(sizes.nodes), network, [_VARIANT])
    loaded = Repository.of_folder(repository.folder, build_exact).load(made.revision)
    scratch = root / "scratch"
    scratch.mkdir()
    computed_s, vectors = timed(
        lambda: np.concatenate([*embedding_blocks(loaded, "x1", None, Neighbours.ALL, 0, scratch)])
    )
    origin = Origin(
        made.revision, made.graph, "x1", made.files["variants/x1/weights.safetensors"].sha256, None, "bench"
    )
    index = build_index(vectors, origin, index_folder(repository.folder / "revisions" / made.revision), silent)
    with worker(root) as port:
        alone = latencies(port, sizes.requests, sizes.nodes)
        before = latencies(port, sizes.predictions, sizes.nodes, "/v1/predict")
        database, beside = fill_database(
            vectors[: sizes.others], lambda: latencies(port, 0, sizes.nodes, "/v1/predict")
        )
        after = latencies(port, sizes.predictions, sizes.nodes, "/v1/predict")
    others = [*libraries(unit(vectors[: sizes.others])), database.pop("search")]
    predicted = {key: round((before[key] + after[key]) / 2, 3) for key in ("p50_ms", "p99_ms")}
    ratio = beside["p99_ms"] / predicted["p99_ms"]
    return {
        "sizes": asdict(sizes),
        "columns": COLUMNS,
        "embeddings_per_second": round(sizes.nodes / computed_s),
        "index": {
            "kind": index.kind, "lists": index.lists, "probed": index.probed, "recall": index.recall,
            "queries": index.recall_queries, "build_seconds": index.build_seconds,
            "items_per_second": round(sizes.nodes / index.build_seconds),
        },
        "recommend": alone,
        "predict": predicted,
        "predict_while_written": beside,
        "database": database,
        "others": others,
        "verdicts": {
            "recall@10 of the index": verdict(f">= {RECALL}", index.recall, index.recall >= RECALL),
            f"p99 of a recommendation for a new user over {sizes.nodes:,} nodes, ms": verdict(
                f"< {P99_MS:g}", alone["p99_ms"], alone["p99_ms"] < P99_MS
            ),
            "p99 of predictions while rows are written, times": verdict(f"<= {RATIO}", round(ratio, 2), ratio <= RATIO),
        },
    }  # fmt: skip


def verdict(wanted: str, measured: float, passed: bool) -> dict[str, Any]:
    return {"wanted": wanted, "measured": measured, "passed": bool(passed)}


def communities(nodes: int) -> GraphData:
    draw = np.random.default_rng(0)
    count = max(20, nodes // 500)
    own = draw.integers(0, count, nodes).astype(np.int32)
    order = np.argsort(own, kind="stable")
    begins = np.searchsorted(own[order], np.arange(count + 1))
    sizes = np.maximum(np.diff(begins)[own], 1)[:, None]
    near = order[np.minimum(begins[own][:, None] + (draw.random((nodes, DEGREE)) * sizes).astype(np.int64), nodes - 1)]
    far = draw.integers(0, nodes, (nodes, DEGREE))
    neighbours = np.where(draw.random((nodes, DEGREE)) < 0.8, near, far)
    centres = draw.standard_normal((count, FEATURES), dtype=np.float32)
    features = centres[own] + 0.7 * draw.standard_normal((nodes, FEATURES), dtype=np.float32)
    return GraphData(
        source="made up communities",
        digest="c0ffee",
        graph=Graph(
            np.arange(0, nodes * DEGREE + 1, DEGREE, dtype=np.int64), neighbours.astype(np.int32).ravel()
        ),
        features=features,
        labels=own.astype(np.int64) % CLASSES,
        classes=tuple(range(CLASSES)),
        splits=Splits(*(np.arange(start, nodes, 3, dtype=np.int64) for start in range(3))),
        edge_rules=EdgeRules(Direction.DIRECTED, Duplicates.KEEP),
    )  # fmt: skip


@contextmanager
def worker(root: Path) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recommend_worker", str(root)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def latencies(port: int, requests: int, nodes: int, path: str = "/v1/recommend") -> dict[str, Any]:
    """Latencies of requests for new users, one after the other on one connection. `requests` 0: until `STOP` is set."""
    draw = np.random.default_rng(1)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    found: list[float] = []
    for number in range(-50, requests or 10**9):
        new = nodes + 7
        overlay = {
            "nodes": [{"id": new, "features": draw.standard_normal(FEATURES).round(3).tolist()}],
            "edges": [[int(node), new] for node in draw.integers(0, nodes, DEGREE)],
        }
        asked = {"node": new, "count": _COUNT} if path == "/v1/recommend" else {"nodes": [new]}
        body = json.dumps({**asked, "overlay": overlay})
        begun_s = time.perf_counter()
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} answered {answer.status}")
        if number >= 0:
            found.append((time.perf_counter() - begun_s) * 1000)
        if not requests and STOP.is_set():
            break
    connection.close()
    p50, p99 = np.percentile(found, [50, 99])
    return {"requests": len(found), "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


STOP = threading.Event()
"""The rows are written."""


def fill_database(vectors: np.ndarray, ask: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rows per second into PostgreSQL with pgvector, its HNSW index, and how it answers; and what `ask` measured
    meanwhile."""
    with ExitStack() as opened:
        server = opened.enter_context(postgres_server(programs_with_pgvector()))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        uri_file, path = folder / "uri", folder / "vectors.npy"
        uri_file.write_text(server.uri())
        np.save(path, vectors)
        seen: list[dict[str, Any]] = []
        STOP.clear()
        asking = threading.Thread(target=lambda: seen.append(ask()))
        asking.start()
        command = [sys.executable, "-m", "benchmarks.recommend_sink", str(uri_file), str(path)]
        try:
            told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        finally:
            STOP.set()
            asking.join()
        with PostgresSink(uri_file)._connect() as connection:
            connection.execute("SET hnsw.ef_search = 100")

            def search(query: np.ndarray) -> np.ndarray:
                rows = connection.execute(
                    "SELECT id FROM gnnserve_embeddings.default_items ORDER BY embedding <=> %s::vector LIMIT 10",
                    (str(query.tolist()),),
                ).fetchall()
                return np.array([row[0] for row in rows], np.int64)

            compared = compare("pgvector HNSW, SQL", unit(vectors), search, told["whole_s"] - told["copied_s"])
    written = {
        "rows": len(vectors), "rows_per_second": round(len(vectors) / told["copied_s"]),
        "with_index_rows_per_second": round(len(vectors) / told["whole_s"]), "search": compared,
    }  # fmt: skip
    return written, seen[0]


def libraries(vectors: np.ndarray) -> list[dict[str, Any]]:
    """Each library on these vectors, searched by one thread; ours is faiss's lists, without a server."""
    import faiss
    from usearch.index import Index

    found = []
    with tempfile.TemporaryDirectory() as folder:
        origin = Origin("0" * 12, "", "x1", "", None, "bench")
        made = build_index(vectors, origin, Path(folder) / "index", silent)
        if made.kind is IndexKind.APPROXIMATE:
            lists = faiss.read_index(str(Path(folder) / "index" / made.file))
            lists.nprobe = made.probed
            faiss.omp_set_num_threads(1)
            found.append(
                compare(
                    "faiss lists (ours)", vectors, lambda one: lists.search(one[None], 10)[1][0], made.build_seconds
                )
            )
    faiss.omp_set_num_threads(thread_count())
    hnsw = faiss.IndexHNSWFlat(vectors.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
    hnsw.hnsw.efConstruction, hnsw.hnsw.efSearch = 80, 100
    seconds, _ = timed(lambda: hnsw.add(vectors))
    faiss.omp_set_num_threads(1)
    found.append(compare("faiss HNSW", vectors, lambda one: hnsw.search(one[None], 10)[1][0], seconds))
    usearch = Index(ndim=vectors.shape[1], metric="ip", dtype="f32", connectivity=16, expansion_add=80,
                    expansion_search=100)  # fmt: skip
    seconds, _ = timed(lambda: usearch.add(np.arange(len(vectors)), vectors))
    found.append(compare("usearch HNSW", vectors, lambda one: usearch.search(one, 10).keys, seconds))
    return found


def compare(
    name: str, vectors: np.ndarray, search: Callable[[np.ndarray], np.ndarray], build_s: float
) -> dict[str, Any]:  # fmt: skip
    draw = np.random.default_rng(2)
    queries = vectors[draw.choice(len(vectors), 300, replace=False)]
    parts = (vectors[start : start + 8192] for start in range(0, len(vectors), 8192))
    least = exact_best(parts, queries, 10)[1][:, -1]
    times, cosines = [], np.full((len(queries), 10), -1, np.float32)
    for row, query in enumerate(queries):
        begun_s = time.perf_counter()
        positions = np.asarray(search(query), np.int64)
        times.append((time.perf_counter() - begun_s) * 1000)
        cosines[row, : len(positions)] = vectors[positions] @ query
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "name": name, "vectors": len(vectors), "recall": round(recall_of(cosines, least), 4),
        "p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3),
        "items_per_second": round(len(vectors) / build_s),
    }  # fmt: skip


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    begun_s = time.perf_counter()
    made = run()
    return time.perf_counter() - begun_s, made


def table_of(body: dict[str, Any]) -> Table:
    table = Table("", "vectors", "recall@10", "p50 ms", "p99 ms", "built, items/s")
    index, alone = body["index"], body["recommend"]
    table.add_row(
        "POST /v1/recommend, new users", f"{body['sizes']['nodes']:,}", f"{index['recall']:.4f}",
        f"{alone['p50_ms']:.2f}", f"{alone['p99_ms']:.2f}", f"{index['items_per_second']:,}",
    )  # fmt: skip
    for one in body["others"]:
        table.add_row(
            one["name"], f"{one['vectors']:,}", f"{one['recall']:.4f}", f"{one['p50_ms']:.2f}", f"{one['p99_ms']:.2f}",
            f"{one['items_per_second']:,}",
        )  # fmt: skip
    rows, beside = body["database"], body["predict_while_written"]
    table.caption = (
        f"{rows['rows_per_second']:,} rows/s into PostgreSQL, {rows['with_index_rows_per_second']:,} with its index; "
        f"p99 of predictions {body['predict']['p99_ms']:.2f} ms alone, {beside['p99_ms']:.2f} meanwhile"
    )
    return table


def spam_table(found: dict[str, Any]) -> Table:
    table = Table("variant", "ROC-AUC stored", "new", "1 stored, ms", "1 new, ms", "1,024 stored, ms")
    for row in found["variants"]:
        shown = (row["stored"], row["new"], row["one_ms"], row["new_ms"], row["batch_ms"])
        table.add_row(row["variant"], *("–" if one is None else f"{one:.4f}" for one in shown))
    return table


if __name__ == "__main__":
    main()
