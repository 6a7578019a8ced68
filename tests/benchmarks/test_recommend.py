"""What `make bench-recommend` measures and concludes: queries that no index stores, recall beside exact search, and
verdicts that can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.page.recommend_figures import render_recommend
from benchmarks.recommend.recommend import verdicts
from benchmarks.recommend.recommend_graph import Communities, PublishedGraph
from benchmarks.recommend.recommend_indexes import Queries, Searched, compare
from benchmarks.recommend.recommend_sink import COPYING, INDEXING, vectors_of
from benchmarks.recommend.recommend_writing import AFTER, BEFORE, figures, has_writer, writing
from benchmarks.verdicts import judge
from tests.support.changes.postgres import PostgresServer, postgres_server, programs_with_pgvector
from tests.support.machine.waiting import until

from gnnserve_worker.nearest.search import unit


def asked(*p99s_ms: float) -> list[dict[str, Any]]:
    return [{"requests": 4500, "p50_ms": 0.5, "p99_ms": p99_ms} for p99_ms in p99s_ms]


def index_row(name: str, recall: float) -> dict[str, Any]:
    return {
        "name": name, "vectors": 40_981, "columns": 512, "effort": 63,
        "most_effort": 163 if name == "gnnserve" else None, "queries": 1000, "recall": recall,
        "recall_stored": 0.997, "p50_ms": 1.5, "p99_ms": 2.5, "items_per_second": 5000,
    }  # fmt: skip


def filtered(share: float, nodes: int) -> dict[str, Any]:
    return {
        "share": share, "nodes": nodes, "requests": 1500, "judged": 200, "p50_ms": 2.0, "p99_ms": 4.0, "fewest": 10,
        "recall": 0.999,
    }  # fmt: skip


MEASURED: dict[str, Any] = {
    "nodes": 1_000_000,
    "index": {"recall": 0.994, "items_per_second": 18_000},
    "recommend": {"requests": 3000, "p50_ms": 1.0, "p99_ms": 2.8, "judged": 500, "recall": 0.993},
    "filters": {"nodes": 1_000_000, "kind": "Approximate", "lists": 4000, "probed": 20, "rows": [
        filtered(1.0, 1_000_000), filtered(0.1, 100_000), filtered(0.0001, 100),
    ]},
    "perceptron": {
        "nodes": 1_000_000, "columns": 64, "requests": 1500, "kind": "Approximate", "lists": 4000, "probed": 90,
        "told_recall": 0.996, "recall": 0.995, "p50_ms": 3.0, "p99_ms": 5.0, "items_per_second": 20_000,
    },
    "real": [{
        "embeddings": "items", "queries": "new users", "nearest": "score", "told_recall": 0.997,
        "indexes": [index_row("gnnserve", 0.996), index_row("faiss HNSW", 0.98)],
    }],
    "database": {"rows": 100_000, "rows_per_second": 300_000, "with_index_rows_per_second": 3000},
    "writing": {
        "plan": {"rate_per_s": 300.0, "seconds": 15.0, "rounds": 3},
        "asked": {
            BEFORE: asked(1.0, 9.0, 1.0), COPYING: asked(1.1, 1.2, 7.0), INDEXING: asked(1.0, 1.1, 1.2),
            AFTER: asked(1.0, 1.0, 1.0),
        },
    },
    "spam": {"reviews": 9191, "variants": [
        {"variant": "x1", "stored": 0.774, "new": 0.773, "one_ms": 0.02, "new_ms": 0.04, "batch_ms": 2.6},
        {"variant": "stored1", "stored": 0.774, "new": None, "one_ms": 0.01, "new_ms": None, "batch_ms": 0.3},
    ]},
}  # fmt: skip


def judged(found: dict[str, Any]) -> dict[str, Any]:
    return judge(verdicts(found), found)


def test_all_that_was_measured_is_judged() -> None:
    found = judged(MEASURED)
    assert all(one["passed"] for one in found.values())
    assert len(found) == 17
    assert not judged({})


@pytest.mark.parametrize(
    ("figure", "plant"),
    [
        ("recall@10 of recommendations to new users", lambda found: found["recommend"].update(recall=0.9899)),
        ("p99 of a recommendation", lambda found: found["recommend"].update(p99_ms=10.0)),
        ("recall@10 of recommendations of which 100,000", lambda found: found["filters"]["rows"][1].update(
            recall=0.98
        )),
        ("fewest items of recommendations of which 100 nodes", lambda found: found["filters"]["rows"][2].update(
            fewest=9
        )),
        ("p99 of recommendations of which 100,000", lambda found: found["filters"]["rows"][1].update(p99_ms=14.1)),
        ("recall@10 of recommendations by a perceptron", lambda found: found["perceptron"].update(recall=0.98)),
        ("p99 of a search by a perceptron", lambda found: found["perceptron"].update(p99_ms=10.0)),
        ("recall@10 of the index", lambda found: found["real"][0].update(told_recall=0.99, indexes=[
            index_row("gnnserve", 0.9899)
        ])),
        ("recall@10 that the index of", lambda found: found["real"][0].update(told_recall=1.0, indexes=[
            index_row("gnnserve", 0.9949)
        ])),
        ("alone, at one end", lambda found: found["writing"]["asked"].update({AFTER: asked(1.26, 1.26, 0.5)})),
        ("while rows are copied", lambda found: found["writing"]["asked"].update({COPYING: asked(1.3, 1.21, 1.0)})),
        ("while their index is built", lambda found: found["writing"]["asked"].update({INDEXING: asked(1.21)})),
        ("ROC-AUC of reviews", lambda found: found["spam"]["variants"][0].update(new=0.768)),
        ("batches of 1,024", lambda found: found["spam"]["variants"][1].update(batch_ms=0.4)),
    ],
)  # fmt: skip
def test_a_bad_figure_fails_its_verdict_alone(figure: str, plant: Callable[[dict[str, Any]], None]) -> None:
    found = copy.deepcopy(MEASURED)
    plant(found)
    (missed,) = [name for name, one in judged(found).items() if not one["passed"]]
    assert figure in missed


def test_a_round_that_is_far_off_decides_no_verdict() -> None:
    assert judged(MEASURED)["p99 of predictions while rows are copied, times p99 alone"]["measured"] == 1.2


def test_what_is_allowed_for_noise_is_said() -> None:
    wanted = judged(MEASURED)["p99 of predictions while their index is built, times p99 alone"]["wanted"]
    assert wanted == "at most 1.2 (1.1, and 0.1 for noise)"


def test_the_page_has_requests_rounds_and_both_ways_alone() -> None:
    page = render_recommend(MEASURED)
    assert "300 a second, 15 s at a time in 3 rounds" in page
    assert "| while rows are copied | 3 | 13,500 | 0.50 (0.50 to 0.50) | 1.20 (1.10 to 7.00) |" in page
    assert "| alone again | 3 | 13,500 |" in page
    assert "| gnnserve | 63 of 163 lists | 0.9960 | 0.9970 |" in page
    assert "| faiss HNSW | 63 | 0.9800 | 0.9970 |" in page
    parts = [
        render_recommend({key: MEASURED[key]})
        for key in ("filters", "perceptron", "real", "database", "writing", "spam")
    ]
    assert all(part in page for part in parts), "parts are rendered one by one"


def test_a_prediction_without_an_answer_ends_the_run() -> None:
    assert figures([1.0, 3.0])["p50_ms"] == 2.0
    with pytest.raises(RuntimeError, match="1 of 2 predictions"):
        figures([1.0, float("nan")])


def test_an_index_is_set_by_stored_queries_and_measured_by_unseen_ones() -> None:
    draw = np.random.default_rng(0)
    vectors = unit(draw.standard_normal((40, 8)))
    queries = Queries(vectors[:5], unit(draw.standard_normal((5, 8))))
    is_stored = {query.tobytes() for query in queries.stored}
    effort = 0

    def set_effort(wanted: int) -> None:
        nonlocal effort
        effort = wanted

    def search(query: np.ndarray) -> np.ndarray:
        """All of the nearest from an effort of 4 on, for stored queries; unseen ones miss one of ten."""
        best = np.argsort(-(vectors @ query))
        if query.tobytes() in is_stored:
            return best[: min(10, 3 * effort)]
        return np.append(best[:9], best[-1])

    (found,) = compare([Searched("one", 2.0, search, (1, 4, 8), set_effort)], vectors, queries)
    assert found["effort"] == 4
    assert (found["recall_stored"], found["recall"], found["queries"]) == (1.0, 0.9, 5)
    assert found["items_per_second"] == 20


def test_new_users_are_of_the_graph_and_not_in_it() -> None:
    communities = Communities(np.zeros((2, 64), np.float32), [np.arange(50), np.arange(50, 100)])
    graph = PublishedGraph(None, None, 100, communities, ())  # type: ignore[arg-type]
    users = graph.new_users(20)
    assert {user["node"] for user in users} == {107}
    ends = [end for user in users for edge in user["overlay"]["edges"] for end in edge[:1]]
    assert max(ends) < 100
    assert len({str(user["overlay"]) for user in users}) == 20


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server(programs_with_pgvector()) as running:
        yield running


@pytest.mark.parametrize("phase", [COPYING, INDEXING])
def test_a_writer_that_ends_before_the_requests_fails_the_run(
    server: PostgresServer, tmp_path: Path, phase: str
) -> None:
    uri_file, vectors = tmp_path / "uri", tmp_path / "vectors.npy"
    uri_file.write_text(server.uri())
    np.save(vectors, np.eye(4, dtype=np.float32))
    with writing(server, COPYING, uri_file, vectors, rows=10**9):
        assert has_writer(server)
    assert not has_writer(server), "its session is ended too"
    with (
        pytest.raises(RuntimeError, match=f"was not {phase} for as long as requests came"),
        writing(server, phase, uri_file, vectors, rows=8),
    ):
        until(lambda: not has_writer(server), "the writer has ended")


def test_a_writer_has_as_many_rows_as_are_wanted() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
    blocks = [(ids, rows.tolist()) for ids, rows in vectors_of(vectors, 5, at_once=2)]
    assert blocks == [
        (range(2), [[0, 1], [2, 3]]), (range(2, 4), [[4, 5], [0, 1]]), (range(4, 5), [[2, 3]])
    ]  # fmt: skip
