"""What `gnnserve graph inspect` says of a graph, against graphs small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import planted_graph

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph import inspection
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.graph.inspection import inductive_share, inspect, told_flat
from gnnserve_worker.graph.store import FeatureColumn, Finding, Graph, GraphData, Splits


def _graph(rows: list[list[int]]) -> Graph:
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Graph(indptr, np.array([node for row in rows for node in row], dtype=np.int32))


def _data(**changes: object) -> GraphData:
    # 0 and 1 read each other, 0 reads itself and 2 twice; 3 reads nobody.
    given = {
        "source": "a test", "digest": "d", "graph": _graph([[1, 0, 2, 2], [0], [1], []]),
        "features": np.array([[1, 5, 0.001], [1, 0, 0.002], [1, -5, 0], [1, 700, 0]], dtype=np.float32),
        "labels": np.array([0, 1, 1, -1]), "classes": (3, 7),
        "splits": Splits(np.array([0]), np.array([1]), np.array([2])), "edge_rules": EdgeRules(Direction.DIRECTED),
    }  # fmt: skip
    return GraphData.of_one_type(**given | changes)  # type: ignore[arg-type]


def test_edges_are_counted_as_they_are() -> None:
    found = inspect(_data())
    assert (found.nodes, found.edges, found.self_loops, found.repeated_edges) == (4, 6, 1, 1)
    assert found.neighbours.histogram == ((0, 1), (1, 2), (4, 1))
    assert (found.neighbours.isolated, found.neighbours.highest, found.neighbours.mean) == (1, 4, 1.5)


@pytest.mark.parametrize("edges", [1, 2, 3, 5, 100])
def test_blocks_of_any_size_count_the_same(edges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    data = _data(graph=_graph([draw.integers(0, 4, 3).tolist(), [], draw.integers(0, 4, 9).tolist(), [3]]))
    expected = inspect(data)

    monkeypatch.setattr(inspection, "_BLOCK_EDGES", edges)

    assert inspect(data) == expected


def test_a_dense_graph_is_looked_through_in_blocks_of_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_at_once = []
    monkeypatch.setattr(inspection, "_BLOCK_EDGES", 40)
    sort = np.sort
    monkeypatch.setattr(np, "sort", lambda keys: sorted_at_once.append(len(keys)) or sort(keys))
    ones = {"labels": np.zeros(30, dtype=np.int64), "features": np.ones((30, 1), dtype=np.float32)}

    found = inspect(_data(graph=_graph([list(range(30))] * 30), **ones))

    assert (found.self_loops, found.reversed_share) == (30, 1)
    assert max(sorted_at_once) <= 40


def test_reverses_are_found_by_the_row_of_each_source_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # All read node 0, which reads every other one.
    hub = [list(range(0, 1000, 2))] + [[0]] * 999
    ones = {"labels": np.zeros(1000, dtype=np.int64), "features": np.ones((1000, 1), dtype=np.float32)}
    graph = _graph(hub)
    edges = {(source, target) for target, row in enumerate(hub) for source in row}
    expected = sum((target, source) in edges for source, target in edges) / len(edges)
    assert inspect(_data(graph=graph, **ones)).reversed_share == pytest.approx(expected, abs=0.05)

    monkeypatch.setattr(inspection, "_SCANNED_EDGES", 600)  # then only some sources are looked at
    assert 0 <= inspect(_data(graph=graph, **ones)).reversed_share <= 1


def test_a_directed_graph_is_told_from_an_undirected_one() -> None:
    ring = [[(node + 1) % 50] for node in range(50)]
    both = [[(node + 1) % 50, (node - 1) % 50] for node in range(50)]
    one_label = {"labels": np.zeros(50, dtype=np.int64), "features": np.ones((50, 1), dtype=np.float32)}
    assert inspect(_data(graph=_graph(ring), **one_label)).reversed_share == 0
    assert inspect(_data(graph=_graph(both), **one_label)).reversed_share == 1


def test_features_and_labels_are_summed_up() -> None:
    found = inspect(_data())
    assert (found.features.columns, found.features.constant_columns) == (3, 1)
    assert (found.features.lowest, found.features.highest, found.features.nonzero_share) == (-5, 700, 9 / 12)
    assert [(one.label, one.nodes, one.training_nodes) for one in found.labels.classes] == [
        (3, 1, 1),
        (7, 2, 0),
    ]
    assert found.labels.classless_nodes == 1
    assert found.features.smallest_deviation == np.float32([0.001, 0.002, 0, 0]).std(dtype=np.float64)


def test_sparse_features_say_the_same_as_dense_ones() -> None:
    dense, sparse = inspect(_data()).features, inspect(_data(features=sp.csr_array(_data().features))).features
    assert sparse.is_sparse
    assert not dense.is_sparse
    assert np.isclose(sparse.largest_deviation, dense.largest_deviation)
    assert (sparse.lowest, sparse.highest, sparse.nonzero_share) == (dense.lowest, dense.highest, dense.nonzero_share)


def test_several_labels_per_node_are_counted_by_class() -> None:
    found = inspect(_data(labels=np.array([[1, 1], [0, 1], [0, 0], [0, 1]], dtype=np.uint8), classes=("a", "b")))
    assert found.labels.multi_label
    assert [(one.label, one.nodes, one.training_nodes) for one in found.labels.classes] == [
        ("a", 1, 1),
        ("b", 3, 1),
    ]
    assert found.labels.classless_nodes == 1  # though every node counts as labelled


def test_what_tends_to_be_a_mistake_is_noted() -> None:
    notes = " ".join(inspect(_data()).notes)
    assert "25% of the nodes read no neighbour" in notes
    assert "1 of 3 feature columns have one value everywhere" in notes
    assert "Columns differ in scale" in notes
    assert "No training node has class 7" in notes
    assert "Only 1 validation nodes" in notes


def test_ids_and_findings_are_shown() -> None:
    ids = string_ids(*lay_out(["anna", "bert", "cara", "dora"]))
    found = inspect(_data(ids=ids, findings=(Finding("duplicate edges merged", 3, "anna, bert"),)))
    assert (found.node_ids, found.first_ids) == (NodeIdKind.STRINGS, ["anna", "bert", "cara"])
    assert [(noted.what, noted.count, noted.example) for noted in found.findings] == [
        ("duplicate edges merged", 3, "anna, bert")
    ]


def test_a_graph_without_edges_or_test_nodes_is_inspected() -> None:
    empty = np.array([], dtype=np.int64)
    found = inspect(_data(graph=_graph([[], [], [], []]), splits=Splits(np.array([0]), np.array([1]), empty)))
    assert (found.edges, found.neighbours.isolated, found.neighbours.highest) == (0, 4, 0)
    assert any("no edges" in note for note in found.notes)
    assert any("no test nodes" in note for note in found.notes)


def _columns_beside_classes(**columns: list[float]) -> GraphData:
    nodes = 40
    return _data(
        graph=_graph([[] for _ in range(nodes)]),
        features=np.array(list(columns.values()), dtype=np.float32).T.copy(),
        labels=np.arange(nodes) % 2,
        splits=Splits(np.arange(20), np.arange(20, 30), np.arange(30, 40)),
        feature_columns=tuple(FeatureColumn(name, 1) for name in columns),
    )


def test_columns_are_named_and_those_that_may_have_slipped_in_are_noted() -> None:
    rows = range(40)
    found = inspect(
        _columns_beside_classes(
            born=[1950 + row % 30 for row in rows],
            number=[1000 + 3 * row for row in rows],
            group=[5 + 2 * (row % 2) for row in rows],
            age=[20 + row % 30 for row in rows],
            weight=[50 + row / 7 for row in rows],
        )
    )

    assert [column.name for column in found.feature_columns] == ["born", "number", "group", "age", "weight"]
    noted = [note for note in found.notes if note.startswith("Column ")]
    assert noted == [
        f"Column {name!r} is a feature and {looks}: name it in excludeFeatures if it should be none."
        for name, looks in [
            ("born", "looks like a year (1950 to 1979)"),
            ("number", "looks like an id (integers, each once)"),
            ("group", "tells the class exactly, as if it were made from it"),
        ]
    ]


def test_a_graph_whose_training_nodes_share_few_edges_is_worth_a_trial_of_the_scopes() -> None:
    data = planted_graph((0, 1, 2))
    few = replace(data, splits=replace(data.splits, train=data.splits.train[:20]))
    kept = np.isin(np.arange(data.graph.nodes), few.splits.train)
    assert inductive_share(few.graph, few.splits) == few.graph.induced(kept).edges / few.graph.edges
    assert [note for note in inspect(few).notes if "--try measures" in note]
    assert not [note for note in inspect(data).notes if "--try measures" in note]


def test_json_has_the_members_of_labels_among_the_others() -> None:
    told = told_flat(inspect(_data()))
    assert [*told][-8:] == [
        "multiLabel", "classes", "classlessNodes", "trainingNodes", "validationNodes", "testNodes", "findings", "notes",
    ]  # fmt: skip
    assert "labels" not in told
