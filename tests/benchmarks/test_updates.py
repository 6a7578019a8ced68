"""The pure part of `make bench-updates`: changes that are drawn, graphs that grow, verdicts of made-up figures."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from benchmarks.changes.updates import BENCHMARK
from benchmarks.changes.updates_applied import arrival_of
from benchmarks.changes.updates_changes import FEW_NEW_NODES, MIXED, ChangeStream
from benchmarks.changes.updates_graph import shares_of, timed_stages
from benchmarks.changes.updates_measured import (
    WANTED_FAMILIES,
    AnswerErrors,
    ApplyRate,
    Arrival,
    Compaction,
    DurableRate,
    ExactSums,
    Gathering,
    GraphFigures,
    LinkErrors,
    MemoryPoint,
    PredictionCost,
    RecommendingFigures,
    Replay,
    ReplayedVariant,
    ServiceFigures,
    Start,
)
from benchmarks.changes.updates_replay import grown
from benchmarks.changes.updates_results import Entries, Part, entries_of, fragment_of, verdicts_of
from benchmarks.page.figure_blocks import Results
from benchmarks.page.updates_figures import updates
from benchmarks.results import fragments, main, measured, merge, plain, read_parts, write_part
from tests.support.graphs.graphs import graph_of, random_splits

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_worker.graph.change_batch import decode_batch, encode_batch
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.living_lists import entries_of_edges
from gnnserve_worker.graph.store import Graph, GraphData

NODES = 400


def symmetric_graph(nodes: int = NODES) -> Graph:
    draw = np.random.default_rng(0)
    linked = draw.random((nodes, nodes)) < 0.05
    linked |= linked.T
    return graph_of([np.flatnonzero(row).tolist() for row in linked])


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    return {*zip(graph.targets().tolist(), graph.indices.tolist(), strict=True)}


@pytest.mark.parametrize("by_degree", [False, True])
def test_a_batch_has_its_shares_and_names_nodes_that_are_there(by_degree: bool) -> None:
    graph = symmetric_graph()
    stream, stored = ChangeStream(graph, 5, 1, by_degree=by_degree), edges_of(graph)
    batch = stream.batch(100)
    counts, ids = batch.counts, batch.ids.integers
    assert ids is not None
    assert (counts.new_nodes, counts.overrides, counts.edges, counts.removed_edges) == (10, 20, 40, 30)
    assert counts.items == 100
    assert batch.features.shape == (30, 5)
    new, overridden, edges, removed = np.split(ids, [10, 30, 110])
    assert new.tolist() == [*range(NODES, NODES + 10)]
    assert len({*overridden.tolist()}) == 20
    assert overridden.max() < NODES
    assert edges.reshape(-1, 2)[:10, 1].tolist() == new.tolist()
    assert edges.reshape(-1, 2)[10:].max() < NODES
    assert (edges[::2] != edges[1::2]).all()
    assert {*map(tuple, removed.reshape(-1, 2).tolist())} <= stored
    following = stream.batch(100).ids.integers
    assert following is not None
    assert following[:10].tolist() == [*range(NODES + 10, NODES + 20)]


def test_what_came_may_leave_again_and_lists_stay_as_long() -> None:
    stream, added, removed = ChangeStream(symmetric_graph(), 2, 2), set(), set()
    for batch in stream.batches(100, 400):
        ids = batch.ids.integers
        assert ids is not None
        between = ids[30:110].reshape(-1, 2)[10:]
        added |= {*map(tuple, between.tolist())}
        removed |= {*map(tuple, ids[110:].reshape(-1, 2).tolist())}
    assert removed & added
    assert len(added) == pytest.approx(len(removed), rel=0.2)


def test_single_changes_may_come_in_any_order() -> None:
    singles = ChangeStream(symmetric_graph(), 3, 4).singles(200)
    assert [single.counts.items for single in singles] == [1] * 200
    kinds = {single.counts for single in singles}
    assert len(kinds) == 4
    edges = [single.ids.integers for single in singles if single.counts.edges or single.counts.removed_edges]
    assert all(ids is not None and len(ids) == 2 and ids.max() < NODES for ids in edges)
    for single in singles:
        assert decode_batch(encode_batch(single)).counts == single.counts


def test_equal_seeds_draw_equal_changes() -> None:
    first, second = (ChangeStream(symmetric_graph(), 3, 5, FEW_NEW_NODES).batch(1000) for _ in range(2))
    assert encode_batch(first) == encode_batch(second)
    assert FEW_NEW_NODES.counts(1000) == (10, 200, 790)
    assert MIXED.counts(1000) == (100, 200, 700)


def test_a_graph_grows_into_itself() -> None:
    """What is there at first, and the edges that come, are the whole graph."""
    graph = symmetric_graph(60)
    draw, splits = np.random.default_rng(1), random_splits(60, 2)
    data = GraphData.of_one_type(
        source="made up", digest="d" * 64, graph=graph, features=draw.random((60, 4), np.float32),
        labels=np.arange(60), classes=(*range(60),), splits=splits,
        edge_rules=EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP),
    )  # fmt: skip
    world = grown(data, seed=3)
    first, order = world.at_first, world.data.labels
    assert first.graph.nodes == world.stored == 48
    # The same graph by other numbers.
    assert {(order[reader], order[sender]) for reader, sender in edges_of(world.data.graph)} == edges_of(graph)
    np.testing.assert_array_equal(world.data.features, data.features[order])
    for mine, its in ((world.data.splits.test, splits.test), (world.data.splits.train, splits.train)):
        assert {*order[mine].tolist()} == {*its.tolist()}
    assert first.splits.test.max() < world.stored
    found, nodes = edges_of(first.graph), []
    for batch in world.batches(5):
        ids = batch.ids.integers
        assert ids is not None
        nodes += ids[: batch.counts.new_nodes].tolist()
        assert np.array_equal(batch.features, world.data.features[ids[: batch.counts.new_nodes]])
        entries = entries_of_edges(ids[batch.counts.new_nodes :].reshape(-1, 2), data.edge_rules).entries
        came = [*map(tuple, entries.tolist())]
        assert len({*came}) == len(came) and not found & {*came}
        found |= {*came}
    assert nodes == [*range(48, 60)]
    assert found == edges_of(world.data.graph)


def test_stages_are_timed_and_let_go() -> None:
    before = LivingGraph.apply
    with timed_stages() as spent_s:
        assert LivingGraph.apply is not before
    assert LivingGraph.apply is before
    assert {*spent_s.values()} == {0.0}
    assert shares_of({"lists": 0.5, "sums": 0.25}, 2.0) == {"lists": 0.25, "sums": 0.125, "rest": 0.625}


def test_an_offset_arrives_when_it_or_a_later_one_is_seen() -> None:
    offsets, times_s = [0, 4, 9], [0.0, 1.5, 2.5]
    assert [arrival_of(offset, offsets, times_s) for offset in (0, 1, 4, 5, 9)] == [0.0, 1.5, 1.5, 2.5, 2.5]


SHARES = shares_of({"finding": 1, "lists": 1, "rows": 1, "sums": 1, "deriving": 4}, 10)
GRAPH = GraphFigures(
    100, 1000, ("x1", "stored1"),
    (ApplyRate(1000, True, False, 900, 10_000, 2000, SHARES),),
    (Gathering("x1", 0.1, 0.7, 2.5, 1.01, 0.99, 1.03, 40),),
    (MemoryPoint(1000, 2_000_000, 500_000),),
    ExactSums(10_000_000, True),
)  # fmt: skip
ANSWERS = AnswerErrors("GCN", 100_083, 7000, {"x1": 0.0, "stored1": 9e-6}, tuple(sorted(WANTED_FAMILIES)))
SERVICE = ServiceFigures(
    "stored1",
    (DurableRate(1, 2000, 3000, 2.0, 9.0, 30_000, 10), DurableRate(1000, 90_000, 210_000, 30.0, 60.0, 2100, 10)),
    (Arrival(0, 3.0, 11.0, 500), Arrival(21_000, 4.0, 49.0, 500)),
    (
        PredictionCost(105_000, 0.5, 800.0, 3.0, 3.9, 1.3, 1.25, 1.35, 70.0, 9000),
        PredictionCost(21_000, 0.1, 800.0, 3.0, 3.3, 1.1, 1.05, 1.15, 40.0, 9000),
    ),
)
REPLAY = Replay(1000, 200, 4, (ReplayedVariant("x1", 0.901, 0.900), ReplayedVariant("stored1", 0.898, 0.900)))
COMPACTION = Compaction(
    1000, 9000, 10_000_000, 240_000_000, 31.0, 52.4, {"apply the log of changes": 41.5, "read": 0.01}, 40.2, 0.8,
    3_000_000_000,
)  # fmt: skip


LINKS = LinkErrors("LightGCN", 10_002, 5000, {"x1": 3e-6})
RECOMMENDING = RecommendingFigures(
    "x1", 1000, 9000, (DurableRate(100, 8000, 9000, 2.0, 9.0, 30_000, 10),),
    (PredictionCost(4500, 0.5, 900.0, 2.0, 2.2, 1.11, 1.05, 1.15, 20.0, 9000, 4400),),
)  # fmt: skip
START = Start(1000, 9000, 14_258, 165_000, 60_000_000, 0.9, 1.44, (2.5, 1.44, 1.4))


def entries(**changed: object) -> Entries:
    figures = {Part.GRAPH: ("arxiv", GRAPH), Part.ANSWERS: ("GCN", ANSWERS), Part.SERVICE: ("arxiv", SERVICE),
               Part.COMPACTION: ("arxiv", COMPACTION), Part.START: ("typed", START),
               Part.REPLAY: ("facebook_pages", REPLAY), Part.LINKS: ("LightGCN", LINKS),
               Part.RECOMMENDING: ("gowalla", RECOMMENDING)}  # fmt: skip
    found: Entries = {part: {name: of} for part, (name, of) in figures.items()}
    for part, of in changed.items():
        (name,) = found[Part(part)]
        found[Part(part)][name] = of
    return found


def write_all(folder: Path) -> None:
    """As a run of every part writes them."""
    for part, of in entries().items():
        ((name, figures),) = of.items()
        record = measured(fragment_of(part, name, figures), {"id": "abcdef123", "dirty": False}, 1.0, [])
        write_part(BENCHMARK, f"{part} {name}", record, folder / "updates.json", quick=False)


def test_verdicts_are_of_what_is_wanted() -> None:
    found = dict(verdicts_of(entries()))
    assert {name: verdict["passed"] for name, verdict in found.items()} == {
        "arxiv: durable changes per second through HTTP, stored1 exact": True,
        "arxiv: arrival at a second worker, p99": True,
        "arxiv: p99 of predictions at 70 % load, with changes at half their rate over without": False,
        "largest difference from answers of the graph built from scratch": True,
        "sums that were kept by increments": True,
        "arxiv: compaction of a log of edges": True,
        "typed: start over small batches": True,
        "facebook_pages: accuracy on the nodes that arrived": True,
        "largest difference of scores of links from those of the graph that has the changes": True,
        "gowalla: p99 of recommendations at 70 % load, with changes at half their rate over without": True,
    }
    assert found["arxiv: arrival at a second worker, p99"]["measured"] == "49.0 ms, beside 21,000 changes/s"
    assert found["facebook_pages: accuracy on the nodes that arrived"]["measured"] == (
        "-0.20 points at most, of 2 variants (stored1)"
    )


def test_a_service_is_measured_in_parts() -> None:
    rates = msgspec.structs.replace(SERVICE, arrivals=(), predictions=())
    found = dict(verdicts_of(entries(service=rates)))
    assert [name for name in found if name.startswith("arxiv: durable")]
    assert not [name for name in found if "arrival" in name or "predictions" in name]


def test_verdicts_need_all_changes_all_families_and_every_bit() -> None:
    few, one = msgspec.structs.replace(ANSWERS, changes=2000), msgspec.structs.replace(ANSWERS, families=("pruned",))
    for answers in (few, one, msgspec.structs.replace(ANSWERS, errors={"x1": 2e-5})):
        assert not dict(verdicts_of(entries(answers=answers)))[
            "largest difference from answers of the graph built from scratch"
        ]["passed"]
    for sums in (ExactSums(1_000_000, True), ExactSums(10_000_000, False)):
        graph = msgspec.structs.replace(GRAPH, sums=sums)
        assert not dict(verdicts_of(entries(graph=graph)))["sums that were kept by increments"]["passed"]


def test_figures_are_read_back_of_the_file(tmp_path: Path) -> None:
    write_all(tmp_path)
    kept = read_parts(tmp_path / "updates.json")
    assert entries_of(plain(merge(fragments(kept)))) == entries()


def test_figures_are_shown_of_every_part(tmp_path: Path) -> None:
    write_all(tmp_path)
    results = Results(tmp_path)
    shown = updates(results["updates"])
    rows = (
        "| arxiv, stored1 exact | 1,000 | 900 | 2,000 | 10 |", "| 210,000 | 30.00 / 60.00 |", "1.30 (1.25 to 1.35)",
        "| 52 | apply the log of changes 41.5 | 40.2 / 0.8 | 3.0 | 0.24 |", "1.01 (0.99 to 1.03)", "| 2,000 | 500 |",
        "| gowalla | 100 | 8,000 | 9,000 | 2.00 / 9.00 |", "| gowalla, x1 | 4,500 | 4,400 | 2.00 | 2.20 |",
        "| typed | 14,258 | 165,000 | 1.44 | 2.50 | 0.90 |", "| facebook_pages | stored1 | 0.8980 | 0.9000 |",
    )  # fmt: skip
    for words in rows:
        assert words in shown
    # What answers differ by is in the verdicts.
    read = [part.name for part in results.parts_read()]
    assert read == [
        "graph arxiv",
        "service arxiv",
        "compaction arxiv",
        "start typed",
        "replay facebook_pages",
        "recommending gowalla",
    ]
    assert json.loads((tmp_path / "updates.json").read_text())["verdicts"]


def test_what_it_may_be_asked_for_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(BENCHMARK, ["--help"])
    assert "graph arxiv, graph products, answers GraphSAGE" in capsys.readouterr().out
