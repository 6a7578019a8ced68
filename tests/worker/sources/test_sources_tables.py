"""Users' own tables: what is read from Parquet and CSV, and what the findings tell of it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.graphs.graphs import neighbours_of
from tests.support.graphs.tables import edges_of, import_tables, nodes_of, table_source, write_table

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.spec.graph import GraphSource
from gnnserve_worker.graph.sources import table_csv, table_edges, table_nodes
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.sources.tables import identity as tables_identity
from gnnserve_worker.graph.store import FeatureColumn, Finding, GraphData
from gnnserve_worker.progress import Progress

FORMATS = pytest.mark.parametrize("suffix", [".parquet", ".csv"])
DIRECTED = {"direction": "Directed"}
NAMES = ["ann", "bob", "cid", "dan", "eve"]
FOLLOWS = [("ann", "bob"), ("cid", "bob"), ("eve", "ann"), ("bob", "eve")]


def _load(source: GraphSource) -> GraphData:
    return load_source(source, Path("unused"))


def _found(data: GraphData, what: str) -> Finding:
    return next(finding for finding in data.findings if what in finding.what)


# --- the graph and its ids


@FORMATS
def test_texts_are_ids_and_edges_are_found_by_them(tmp_path: Path, suffix: str) -> None:
    data = import_tables(tmp_path, suffix, nodes_of(NAMES), edges_of(FOLLOWS), edge_options=DIRECTED)

    assert data.ids is not None
    assert data.ids.kind is NodeIdKind.STRINGS
    assert data.ids.shown(0, 5) == NAMES
    assert [neighbours_of(data.graph, node) for node in range(5)] == [[4], [0, 2], [], [], [1]]
    assert data.classes == ("left", "right")
    assert data.labels.tolist() == [0, 1, 0, 1, 0]
    assert data.features.tolist() == [[0, 0], [1, 0.5], [2, 1], [3, 1.5], [4, 2]]
    assert (data.features.dtype, data.labels.dtype) == (np.float32, np.int64)
    assert data.findings == ()
    assert data.source == " and ".join((tmp_path / f"{table}{suffix}").as_uri() for table in ("nodes", "edges"))


@FORMATS
def test_integers_are_ids_as_they_are(tmp_path: Path, suffix: str) -> None:
    ids = [7, -3, 2**63 - 1, 0, -(2**63)]
    edges = edges_of([(7, -3), (-(2**63), 2**63 - 1)])

    data = import_tables(tmp_path, suffix, nodes_of(ids), edges, edge_options=DIRECTED)

    assert data.ids is not None
    assert data.ids.kind is NodeIdKind.INTEGERS
    assert data.ids.shown(0, 5) == ids
    assert [neighbours_of(data.graph, node) for node in range(5)] == [[], [0], [4], [], []]


@FORMATS
def test_ids_that_number_the_rows_are_positions(tmp_path: Path, suffix: str) -> None:
    data = import_tables(tmp_path, suffix, nodes_of(range(5)), edges_of([(0, 4)]), edge_options=DIRECTED)

    assert data.ids is None
    assert neighbours_of(data.graph, 4) == [0]
    assert data.findings == ()


@FORMATS
def test_rows_are_put_in_the_order_of_ids_that_number_them(tmp_path: Path, suffix: str) -> None:
    nodes = nodes_of([3, 0, 4, 1, 2]) | {"split": ["train", "train", "test", "val", "val"]}

    data = import_tables(
        tmp_path, suffix, nodes, edges_of([(0, 4)]), {"split": "split", "features": ["age"]}, DIRECTED
    )  # fmt: skip

    assert data.ids is None
    assert data.features[:, 0].tolist() == [1, 3, 4, 0, 2]
    assert data.labels.tolist() == [1, 1, 0, 0, 0]
    assert neighbours_of(data.graph, 4) == [0]
    assert [part.tolist() for part in (data.splits.train, data.splits.validation, data.splits.test)] == [
        [0, 3], [1, 2], [4],
    ]  # fmt: skip
    assert _found(data, "in the order of their ids").count == 5


def test_a_csv_keeps_texts_that_look_like_numbers(tmp_path: Path) -> None:
    ids = ["7", "007", "1e3", "+4", "99999999999999999999"]

    data = import_tables(
        tmp_path, ".csv", nodes_of(ids), edges_of([("7", "007"), ("+4", "1e3")]), edge_options=DIRECTED
    )

    assert data.ids is not None
    assert data.ids.kind is NodeIdKind.STRINGS
    assert data.ids.shown(0, 5) == ids
    assert neighbours_of(data.graph, 1) == [0]


def test_integers_of_a_csv_are_not_found_by_another_spelling(tmp_path: Path) -> None:
    edges = edges_of([("7", "8"), ("07", "8"), (" 7", "8"), ("7.0", "8"), ("-0", "8")])

    data = import_tables(
        tmp_path, ".csv", nodes_of([7, 8, 0, 20, 30]), edges, edge_options={**DIRECTED, "dangling": "Drop"}
    )  # fmt: skip

    assert data.graph.edges == 1
    assert _found(data, "edges dropped").count == 4


@FORMATS
def test_ids_may_be_any_texts(tmp_path: Path, suffix: str) -> None:
    ids = ["ünïcode", "日本", 'with "quotes", commas', "two\nlines", "x" * 10_000]

    data = import_tables(
        tmp_path, suffix, nodes_of(ids), edges_of([(ids[0], ids[1]), (ids[3], ids[4])]), edge_options=DIRECTED
    )  # fmt: skip

    assert data.ids is not None
    assert data.ids.shown(0, 5) == ids
    assert neighbours_of(data.graph, 1) == [0]
    assert neighbours_of(data.graph, 4) == [3]


@pytest.mark.parametrize("kind", [
    pytest.param(pa.string(), id="string"),
    pytest.param(pa.large_string(), id="large_string"),
    pytest.param(pa.string_view(), id="string_view"),
    pytest.param(pa.binary(), id="binary"),
    pytest.param(pa.dictionary(pa.int8(), pa.string()), id="dictionary"),
])  # fmt: skip
def test_texts_of_every_type_are_read_from_parquet(tmp_path: Path, kind: Any) -> None:
    def column(values: list[str | None]) -> Any:
        return pa.array([v.encode() if v and kind == pa.binary() else v for v in values], type=kind)

    nodes = nodes_of(NAMES) | {"id": column(NAMES), "kind": column(["a", "b", None, "b", "a"])}
    edges = {"source": column(["ann", None, "eve"]), "target": column(["bob", "bob", "nobody"])}

    data = import_tables(tmp_path, ".parquet", nodes, edges, edge_options={**DIRECTED, "dangling": "Drop"})

    assert data.ids is not None
    assert data.ids.shown(0, 5) == NAMES
    assert data.labels.tolist() == [0, 1, -1, 1, 0]
    assert neighbours_of(data.graph, 1) == [0]
    assert data.graph.edges == 1


@pytest.mark.parametrize("kind", [
    pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.dictionary(pa.int8(), pa.int64()),
], ids=str)  # fmt: skip
def test_integers_of_every_width_are_read_from_parquet(tmp_path: Path, kind: Any) -> None:
    nodes = nodes_of(range(5)) | {
        "id": pa.array([9, 8, 7, 6, 5], type=kind),
        "kind": pa.array([1, 2, None, 2, 1], kind),
    }
    edges = {"source": pa.array([9, None, 5], type=kind), "target": pa.array([8, 8, 4], type=kind)}

    data = import_tables(tmp_path, ".parquet", nodes, edges, edge_options={**DIRECTED, "dangling": "Drop"})

    assert data.ids is not None
    assert data.ids.shown(0, 5) == [9, 8, 7, 6, 5]
    assert (data.classes, data.labels.tolist()) == ((1, 2), [0, 1, -1, 1, 0])
    assert data.graph.edges == 1


def test_an_unsigned_end_beyond_64_bits_is_no_negative_id(tmp_path: Path) -> None:
    edges = {"source": pa.array([2**64 - 1, 7], type=pa.uint64()), "target": pa.array([7, 7], type=pa.uint64())}

    data = import_tables(tmp_path, ".parquet", nodes_of([-1, 7, 2, 3, 4]), edges, edge_options={"dangling": "Drop"})

    assert data.graph.edges == 1


@FORMATS
def test_a_table_without_edges_is_a_graph_of_isolated_nodes(tmp_path: Path, suffix: str) -> None:
    edges = {"source": pa.array([], pa.string()), "target": pa.array([], pa.string())}

    data = import_tables(tmp_path, suffix, nodes_of(NAMES), edges)

    assert (data.graph.nodes, data.graph.edges) == (5, 0)


@FORMATS
def test_edges_are_merged_turned_and_cleaned_as_the_manifest_says(tmp_path: Path, suffix: str) -> None:
    edges = edges_of([(0, 1), (0, 1), (1, 0), (2, 2), (3, 4)])
    nodes = nodes_of(range(5))

    merged = import_tables(tmp_path, suffix, nodes, edges)
    kept = import_tables(
        tmp_path, suffix, nodes, edges, edge_options={**DIRECTED, "duplicates": "Keep", "self_loops": "Remove"}
    )  # fmt: skip

    assert [neighbours_of(merged.graph, node) for node in range(5)] == [[1], [0], [2], [4], [3]]
    assert merged.findings == (
        Finding("duplicate edges merged", 1), Finding("edges added in the other direction", 1),
    )  # fmt: skip
    assert [neighbours_of(kept.graph, node) for node in range(5)] == [[1], [0, 0], [], [], [3]]
    assert kept.findings == (Finding("self-loops removed", 1),)


@FORMATS
def test_other_columns_may_be_the_ends(tmp_path: Path, suffix: str) -> None:
    edges = {"weight": [1.0], "from": ["ann"], "to": ["bob"]}

    data = import_tables(tmp_path, suffix, nodes_of(NAMES), edges, edge_options={"source": "from", "target": "to"})

    assert data.graph.edges == 2


@FORMATS
def test_dropped_edges_are_counted_and_the_first_is_named(tmp_path: Path, suffix: str) -> None:
    edges = edges_of([("ann", "bob"), ("ann", None), ("zoe", "bob")])

    data = import_tables(tmp_path, suffix, nodes_of(NAMES), edges, edge_options={"dangling": "Drop"})

    finding = _found(data, "edges dropped")
    where = "line 3" if suffix == ".csv" else "row 1"
    assert finding.count == 2
    assert finding.example.endswith(f"edges{suffix}: {where}, column 'target': is missing")


_ids = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=30, unique=True),
    st.permutations(range(7)),
    st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4),
        min_size=5, max_size=30, unique=True,
    ),
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(_ids, st.data(), st.sampled_from([".csv", ".parquet"]), st.integers(1, 9))
def test_whatever_the_ids_edges_join_the_nodes_that_they_name(
    tmp_path_factory: pytest.TempPathFactory, ids: list[Any], data: st.DataObject, suffix: str, batch_rows: int
) -> None:
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), max_size=40))
    empty = pa.array([], pa.int64() if isinstance(ids[0], int) else pa.string())
    edges: Any = edges_of(pairs) if pairs else {"source": empty, "target": empty}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_nodes, "_BATCH_ROWS", batch_rows)
        patch.setattr(table_edges, "_BATCH_ROWS", batch_rows)
        patch.setattr(table_csv, "_BLOCK_BYTES", 200)

        imported = import_tables(
            tmp_path_factory.mktemp("tables"), suffix, nodes_of(ids), edges, {"features": ["age"]}, DIRECTED
        )  # fmt: skip

    shown: list[Any] = list(range(len(ids))) if imported.ids is None else list(imported.ids.shown(0, len(ids)))
    # What a CSV has as texts becomes integers when all of them are: equal by what is written.
    assert sorted(map(str, shown)) == sorted(map(str, ids))
    found = {
        (str(shown[source]), str(shown[target]))
        for target in range(len(ids)) for source in neighbours_of(imported.graph, target)
    }  # fmt: skip
    assert found == {(str(source), str(target)) for source, target in pairs}
    ages = dict(zip(map(str, ids), range(len(ids)), strict=True))
    assert imported.features[:, 0].tolist() == [ages[str(name)] for name in shown]


# --- features


@FORMATS
def test_every_column_of_numbers_without_another_use_is_a_feature(tmp_path: Path, suffix: str) -> None:
    nodes = {
        "": range(5),
        "year": [1990, 1991, None, 1993, 1994],
        "title": ["one", "two", "3", "four", "five"],
        "id": NAMES,
        "kind": ["a", "b"] * 2 + ["a"],
        "is_new": [True, False, True, False, True],
        "split": ["train", "train", "val", "val", "test"],
        "nothing": pa.array([None] * 5, pa.float64()),
    }

    data = import_tables(tmp_path, suffix, nodes, edges_of(FOLLOWS), {"split": "split", "missing": "Zero"})

    assert data.features.tolist() == [[1990, 1], [1991, 0], [0, 1], [1993, 0], [1994, 1]]
    assert _found(data, "missing features set to 0") == Finding("missing features set to 0", 1, "year")
    title = "'one'" if suffix == ".csv" else "string"
    assert _found(data, "left out") == Finding(
        "columns left out of the features", 3, f"'' (no name), title ({title}), nothing (no number)"
    )


@FORMATS
def test_named_columns_are_the_features_in_that_order(tmp_path: Path, suffix: str) -> None:
    data = import_tables(
        tmp_path, suffix, nodes_of(NAMES), edges_of(FOLLOWS), {"features": ["weight", "age"]}
    )  # fmt: skip

    assert data.features[2].tolist() == [1, 2]
    assert data.findings == (Finding("edges added in the other direction", 4),)


@pytest.mark.parametrize("kind", [
    pa.list_(pa.float32()), pa.large_list(pa.int16()), pa.list_(pa.float64(), 3),
    pa.fixed_shape_tensor(pa.float32(), [3]),
], ids=str)  # fmt: skip
def test_lists_are_as_many_features_as_they_are_long(tmp_path: Path, kind: Any) -> None:
    rows = [None, [1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    column = pa.array(rows, type=storage)
    if storage is not kind:
        column = pa.ExtensionArray.from_storage(kind, column)

    data = import_tables(
        tmp_path, ".parquet", nodes_of(NAMES) | {"embedding": column}, edges_of(FOLLOWS),
        {"features": ["age", "embedding"], "missing": "Mean"},
    )  # fmt: skip

    assert data.features.tolist() == [[0, 5.5, 6.5, 7.5], *([float(i), *row] for i, row in enumerate(rows) if row)]
    assert _found(data, "mean of their column") == Finding(
        "missing features set to the mean of their column", 3, "embedding"
    )
    assert data.feature_columns[1] == FeatureColumn("embedding", 3, (5.5, 6.5, 7.5))


@pytest.mark.parametrize(("missing", "filled"), [("Zero", 0.0), ("Mean", 2.5)])
@FORMATS
def test_what_is_no_finite_number_is_filled_as_the_manifest_says(
    tmp_path: Path, suffix: str, missing: str, filled: float
) -> None:
    nodes = nodes_of(NAMES) | {"age": [1.0, None, float("nan"), float("-inf"), 4.0]}

    data = import_tables(tmp_path, suffix, nodes, edges_of(FOLLOWS), {"missing": missing})

    assert data.features[:, 0].tolist() == [1, filled, filled, filled, 4]
    assert data.features[:, 1].tolist() == [0, 0.5, 1, 1.5, 2]
    assert _found(data, "missing features").count == 3
    age = data.feature_columns[0]
    assert (age.name, age.fill) == ("age", (filled,))


def test_a_csv_writes_numbers_in_many_ways(tmp_path: Path) -> None:
    nodes = nodes_of(NAMES) | {
        "age": [" 1.5", "+2", "1e-1", "TRUE", "false"],
        "weight": ["NA", "n/a", "NULL", "3", "-"],
    }

    data = import_tables(tmp_path, ".csv", nodes, edges_of(FOLLOWS), {"missing": "Zero"})

    assert data.features.tolist() == np.array(
        [[1.5, 0], [2, 0], [0.1, 0], [1, 3], [0, 0]], dtype=np.float32
    ).tolist()  # fmt: skip


@pytest.mark.parametrize("batch_rows", [2, 100])
def test_a_slip_in_a_column_of_numbers_is_refused_and_not_the_end_of_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(table_nodes, "_BATCH_ROWS", batch_rows)
    monkeypatch.setattr(table_edges, "_BATCH_ROWS", batch_rows)
    nodes = nodes_of(NAMES) | {"code": ["1", "", "3", "4", "5a"]}

    with pytest.raises(InputError) as raised:
        import_tables(tmp_path, ".csv", nodes, edges_of(FOLLOWS))

    assert "line 6, column 'code': is '5a', where the rows before it have numbers" in str(raised.value)


def test_a_column_that_begins_with_texts_is_left_out(tmp_path: Path) -> None:
    data = import_tables(tmp_path, ".csv", nodes_of(NAMES) | {"code": ["", "5a", "3", "4", "5"]}, edges_of(FOLLOWS))

    assert _found(data, "left out").example == "code ('5a')"


# --- labels and splits


@FORMATS
def test_labels_are_integers_where_all_are(tmp_path: Path, suffix: str) -> None:
    data = import_tables(tmp_path, suffix, nodes_of(NAMES) | {"kind": [30, 4, None, 30, -1]}, edges_of(FOLLOWS))

    assert data.classes == (-1, 4, 30)
    assert data.labels.tolist() == [2, 1, -1, 2, 0]
    assert _found(data, "without a label").count == 1
    assert _found(data, "of class -1").count == 1


def test_whole_numbers_that_pandas_made_doubles_are_classes(tmp_path: Path) -> None:
    nodes = nodes_of(NAMES) | {"kind": [1.0, float("nan"), 3.0, None, 1.0]}

    data = import_tables(tmp_path, ".parquet", nodes, edges_of(FOLLOWS))

    assert (data.classes, data.labels.tolist()) == ((1, 3), [0, -1, 1, -1, 0])


def test_true_and_false_are_classes_of_parquet(tmp_path: Path) -> None:
    data = import_tables(
        tmp_path, ".parquet", nodes_of(NAMES) | {"kind": [True, False, None, True, True]}, edges_of(FOLLOWS)
    )

    assert (data.classes, data.labels.tolist()) == ((0, 1), [1, 0, -1, 1, 1])


def test_texts_of_a_csv_stay_texts_unless_all_are_integers(tmp_path: Path) -> None:
    data = import_tables(tmp_path, ".csv", nodes_of(NAMES) | {"kind": ["10", "9", "09", "", "NA"]}, edges_of(FOLLOWS))

    assert data.classes == ("09", "10", "9", "NA")
    assert data.labels.tolist() == [1, 2, 0, -1, 3]


@FORMATS
def test_columns_of_0_and_1_are_several_labels(tmp_path: Path, suffix: str) -> None:
    nodes = nodes_of(NAMES) | {"sports": [1, 0, None, 1, 0], "arts": [0.0, 1.0, None, 1.0, 0.0]}

    data = import_tables(
        tmp_path, suffix, nodes, edges_of(FOLLOWS), {"labels": ["sports", "arts"], "features": ["age"]}
    )

    assert data.multi_label
    assert data.classes == ("sports", "arts")
    assert data.labels.dtype == np.uint8
    assert data.labels.tolist() == [[1, 0], [0, 1], [0, 0], [1, 1], [0, 0]]
    everyone = np.concatenate([data.splits.train, data.splits.validation, data.splits.test])
    assert sorted(everyone.tolist()) == [0, 1, 3, 4]


@FORMATS
def test_the_split_column_has_words(tmp_path: Path, suffix: str) -> None:
    nodes = nodes_of(range(8)) | {
        "part": ["train", "validation", "val", "valid", " Test", "TRAIN", "unused", None],
        "kind": ["a", "b", None, "a", "b", "b", "a", "a"],
    }

    data = import_tables(tmp_path, suffix, nodes, edges_of([(0, 1)]), {"split": "part"})

    assert [part.tolist() for part in (data.splits.train, data.splits.validation, data.splits.test)] == [
        [0, 5], [1, 3], [4],
    ]  # fmt: skip
    assert _found(data, "in no split by their word") == Finding(
        "nodes in no split by their word", 2, "'unused', nothing"
    )


@FORMATS
def test_without_a_split_column_labelled_nodes_are_split_60_20_20_always_alike(tmp_path: Path, suffix: str) -> None:
    nodes = nodes_of([f"n{i}" for i in range(120)])
    nodes["kind"] = [kind if row < 100 else None for row, kind in enumerate(nodes["kind"])]

    data = import_tables(tmp_path, suffix, nodes, edges_of([("n0", "n1")]))
    again = import_tables(tmp_path, suffix, nodes, edges_of([("n0", "n1")]))

    assert [len(part) for part in (data.splits.train, data.splits.validation, data.splits.test)] == [60, 20, 20]
    assert max(part.max() for part in (data.splits.train, data.splits.validation, data.splits.test)) < 100
    np.testing.assert_array_equal(data.splits.train, again.splits.train)


# --- files


@FORMATS
def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path, suffix: str) -> None:
    folders = {}
    for name, columns in (("nodes", nodes_of(NAMES)), ("edges", edges_of(FOLLOWS))):
        folder = folders[name] = tmp_path / f"{name}{suffix}"
        folder.mkdir()
        (folder / "_SUCCESS").touch()
        (folder / f".hidden{suffix}").write_text("nonsense")
        (folder / "readme.txt").write_text("nonsense")
        cut = 2
        write_table(folder / f"part-1{suffix}", {key: list(values)[cut:] for key, values in columns.items()})
        write_table(folder / f"part-0{suffix}", {key: list(values)[:cut] for key, values in columns.items()})

    data = _load(table_source(folders["nodes"], folders["edges"], edge_options=DIRECTED))

    assert data.ids is not None
    assert data.ids.shown(0, 5) == NAMES
    assert [neighbours_of(data.graph, node) for node in range(5)] == [[4], [0, 2], [], [], [1]]


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv.zst", ".csv.bz2", ".CSV.GZ"])
def test_compressed_csv_files_are_read(tmp_path: Path, suffix: str) -> None:
    paths = {}
    for name, columns in (("nodes", nodes_of(NAMES)), ("edges", edges_of(FOLLOWS))):
        text = write_table(tmp_path / f"{name}.csv", columns).read_bytes()
        paths[name] = tmp_path / f"{name}{suffix}"
        codec = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}[suffix.lower().rpartition(".")[2]]
        with pa.CompressedOutputStream(str(paths[name]), codec) as file:
            file.write(text)

    data = _load(table_source(paths["nodes"], paths["edges"]))

    assert (data.graph.nodes, data.graph.edges) == (5, 8)


def test_a_gzip_file_may_have_several_members(tmp_path: Path) -> None:
    nodes = write_table(tmp_path / "nodes.csv", nodes_of(NAMES))
    edges = tmp_path / "edges.csv.gz"
    edges.write_bytes(gzip.compress(b"source,target\nann,bob\n") + gzip.compress(b"bob,cid\n"))

    assert _load(table_source(nodes, edges)).graph.edges == 4


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("id\tkind\tage\nann\ta\t1\nbob\tb\t2\ncid\ta\t3\ndan\tb\t4\neve\ta\t5\n", id="tabs"),
        pytest.param(
            "\ufeffid\tkind\tage\r\nann\ta\t1\r\nbob\tb\t2\r\ncid\ta\t3\r\ndan\tb\t4\r\neve\ta\t5", id="Windows"
        ),
        pytest.param(
            '"id"\t"kind"\t"age"\n\n"ann"\t"a"\t"1"\nbob\tb\t2\n\ncid\ta\t3\ndan\tb\t4\neve\ta\t5\n\n', id="quotes"
        ),
    ],
)
def test_a_csv_may_be_written_in_other_ways(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.tsv").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "edges.tsv").write_text("source\ttarget\nann\tbob\n")

    data = _load(table_source(tmp_path / "nodes.tsv", tmp_path / "edges.tsv", delimiter="\t"))

    assert data.ids is not None
    assert data.ids.shown(0, 5) == NAMES
    assert data.features[:, 0].tolist() == [1, 2, 3, 4, 5]


def test_many_batches_make_the_same_graph_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    ids = [f"node {number}" for number in draw.permutation(500)]
    ends = draw.integers(0, 500, (3000, 2))
    nodes = nodes_of(ids)
    edges = edges_of([(ids[source], ids[target]) for source, target in ends.tolist()])
    whole = import_tables(tmp_path, ".csv", nodes, edges)
    monkeypatch.setattr(table_nodes, "_BATCH_ROWS", 7)
    monkeypatch.setattr(table_edges, "_BATCH_ROWS", 7)
    monkeypatch.setattr(table_csv, "_BLOCK_BYTES", 300)
    pq.write_table(pa.table(dict(nodes)), tmp_path / "nodes.parquet", row_group_size=11)
    pq.write_table(pa.table(dict(edges)), tmp_path / "edges.parquet", row_group_size=13)

    for source in (
        table_source(tmp_path / "nodes.csv", tmp_path / "edges.csv"),
        table_source(tmp_path / "nodes.parquet", tmp_path / "edges.parquet"),
    ):
        data = _load(source)

        assert data.ids is not None
        assert data.ids.shown(0, 500) == ids
        np.testing.assert_array_equal(data.graph.indptr, whole.graph.indptr)
        np.testing.assert_array_equal(data.graph.indices, whole.graph.indices)
        np.testing.assert_array_equal(data.features, whole.features)
        np.testing.assert_array_equal(data.labels, whole.labels)


def test_an_index_that_pandas_stored_is_no_feature(tmp_path: Path) -> None:
    data = import_tables(
        tmp_path, ".parquet", nodes_of(NAMES) | {"__index_level_0__": range(5)}, edges_of(FOLLOWS)
    )  # fmt: skip

    assert data.features.shape == (5, 2)
    assert _found(data, "left out").example == "__index_level_0__ (an index of pandas)"


@FORMATS
def test_progress_names_each_stage_and_ends_when_it_is_done(tmp_path: Path, suffix: str) -> None:
    told: list[Progress] = []

    import_tables(tmp_path, suffix, nodes_of(NAMES), edges_of(FOLLOWS), progress=told.append)

    assert list(dict.fromkeys(progress.stage for progress in told)) == ["read nodes", "read edges", "sort edges"]
    ends = [progress for progress in told if progress.done == progress.total]
    assert [(progress.stage, progress.detail) for progress in ends] == [
        ("read nodes", "5 rows"), ("read edges", "4 rows"), ("sort edges", "8 edges"),
    ]  # fmt: skip


# --- identity


@FORMATS
def test_equal_tables_are_one_graph_wherever_they_are(tmp_path: Path, suffix: str) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        data = import_tables(tmp_path / name, suffix, nodes_of(NAMES), edges_of(FOLLOWS))
    here, there = (
        table_source(tmp_path / name / f"nodes{suffix}", tmp_path / name / f"edges{suffix}")
        for name in ("here", "there")
    )

    assert source_digest(here) == source_digest(there) == data.digest


@FORMATS
def test_another_file_or_option_is_another_graph(tmp_path: Path, suffix: str) -> None:
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(NAMES))
    edges = write_table(tmp_path / f"edges{suffix}", edges_of(FOLLOWS))
    more = write_table(tmp_path / f"more{suffix}", edges_of([*FOLLOWS, ("dan", "dan")]))
    sources = [
        table_source(nodes, edges),
        table_source(nodes, more),
        table_source(nodes, edges, {"missing": "Zero"}),
        table_source(nodes, edges, {"label": "age"}),
        *(table_source(nodes, edges, edge_options={"direction": way}) for way in Direction if way != "Undirected"),
    ]

    assert len({source_digest(source) for source in sources}) == len(sources)


@FORMATS
def test_an_option_at_its_default_is_no_other_graph(tmp_path: Path, suffix: str) -> None:
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(NAMES))
    edges = write_table(tmp_path / f"edges{suffix}", edges_of(FOLLOWS))

    assert source_digest(table_source(nodes, edges)) == source_digest(
        table_source(nodes, edges, {"id": "id"}, {"direction": "Undirected"})
    )


# --- which columns are features


def _wide(**more: Any) -> dict[str, Any]:
    return nodes_of(NAMES) | {"year": [2001, 2002, 2001, 2003, 2004], "emb_0": [1.0] * 5, "emb_1": [2.0] * 5} | more


def _taken(data: GraphData) -> list[str]:
    return [column.name for column in data.feature_columns]


@FORMATS
@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, ["age", "weight", "year", "emb_0", "emb_1"]),
        ({"exclude_features": ["year"]}, ["age", "weight", "emb_0", "emb_1"]),
        ({"exclude_features": ["year", "emb_?"]}, ["age", "weight"]),
        ({"exclude_features": ["*e*"]}, []),
        ({"features": ["emb_*", "age"]}, ["emb_0", "emb_1", "age"]),
        ({"features": ["*"], "exclude_features": ["emb_1", "w*"]}, ["age", "year", "emb_0"]),
        ({"features": ["age", "*"]}, ["age", "weight", "year", "emb_0", "emb_1"]),
    ],
    ids=["all", "all but one", "all but a pattern", "none", "a pattern", "a pattern but another", "one and the rest"],
)
def test_features_are_chosen_by_names_and_patterns(
    tmp_path: Path, suffix: str, options: dict[str, Any], taken: list[str]
) -> None:
    def load() -> GraphData:
        return import_tables(tmp_path, suffix, _wide(), edges_of(FOLLOWS), options)

    if not taken:
        with pytest.raises(InputError, match=r"nodes\.excludeFeatures: leaves no column of \S* to be a feature"):
            load()
        return
    data = load()
    assert _taken(data) == taken
    np.testing.assert_array_equal(data.features, np.stack([_wide()[name] for name in taken], axis=1))


def test_a_column_whose_name_has_a_star_is_no_pattern(tmp_path: Path) -> None:
    nodes = _wide() | {"a*": [5.0] * 5, "ab": [6.0] * 5}

    assert _taken(import_tables(tmp_path, ".csv", nodes, edges_of(FOLLOWS), {"features": ["a*"]})) == ["a*"]


def test_brackets_of_a_name_are_part_of_it(tmp_path: Path) -> None:
    nodes = _wide() | {"speed [km/h]": [5.0] * 5}

    data = import_tables(tmp_path, ".csv", nodes, edges_of(FOLLOWS), {"features": ["speed [km*"]})

    assert _taken(data) == ["speed [km/h]"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["emd_*"]}, r"nodes\.features\[0\]: is the pattern 'emd_\*', which no column of \S* matches; it "
         r"has 'age', 'weight', 'year', 'emb_0', 'emb_1'; correct it"),
        ({"exclude_features": ["year", "x?"]}, r"nodes\.excludeFeatures\[1\]: is the pattern 'x\?', which no column"),
        ({"exclude_features": ["yaer"]}, r"nodes\.excludeFeatures\[0\]: names a column 'yaer', but .* mean 'year'"),
        ({"features": ["age"], "exclude_features": ["age"]}, r"excludeFeatures\[0\]: names 'age', which features"),
        ({"features": ["emb_*"], "exclude_features": ["emb*"]}, r"excludeFeatures: leaves no column of those"),
        ({"exclude_features": ["*"]}, r"excludeFeatures: leaves no column of \S* to be a feature; exclude fewer"),
    ],
)  # fmt: skip
def test_a_choice_that_fits_no_column_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_tables(tmp_path, ".csv", _wide(), edges_of(FOLLOWS), options)


# --- how a CSV is written


def _with_commas(tmp_path: Path, **options: Any) -> GraphSource:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("id;kind;price;place\n" + "".join(f"{i};k{i % 2};{i},5;{i}, street\n" for i in range(6)))
    edges = tmp_path / "edges.csv"
    edges.write_text("source,target\n0,1\n2,3\n")
    return table_source(nodes, edges, {"delimiter": ";", **options.pop("nodes", {})}, **options)


def test_every_file_may_have_a_delimiter_of_its_own_and_numbers_a_comma(tmp_path: Path) -> None:
    data = _load(_with_commas(tmp_path, decimal=","))

    assert data.features.tolist() == [[i + 0.5] for i in range(6)]
    assert [column.name for column in data.feature_columns] == ["price"]


def test_the_sources_delimiter_is_that_of_both_files_unless_one_has_its_own(tmp_path: Path) -> None:
    source = _with_commas(tmp_path, delimiter=";", decimal=",", nodes={"delimiter": None})
    (tmp_path / "edges.csv").write_text("source;target\n0;1\n")

    assert _load(source).graph.edges == 2


def test_a_column_that_is_left_out_for_its_decimal_commas_says_so(tmp_path: Path) -> None:
    source = _with_commas(tmp_path)
    path = tmp_path / "nodes.csv"
    path.write_text(path.read_text().replace("\n", ";1\n").replace("place;1", "place;size"))

    data = _load(source)

    assert [column.name for column in data.feature_columns] == ["size"]
    finding = _found(data, "would be numbers")
    assert finding.what.endswith(': set spec.graph.source.csv.decimal to ","')
    assert (finding.count, finding.example) == (1, "price")


def test_a_number_with_another_decimal_mark_is_refused_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'price': is '0,5', expected a number; .* or set \S*decimal to"):
        _load(_with_commas(tmp_path, nodes={"features": ["price"]}))
    source = _with_commas(tmp_path, decimal=",")
    path = tmp_path / "nodes.csv"
    path.write_text(path.read_text().replace("3,5", "3.5"))
    with pytest.raises(InputError, match=r"'price': is '3\.5', where the rows before it .*; .* or set \S*decimal to"):
        _load(source)


def test_new_options_change_no_identity_of_sources_without_them(tmp_path: Path) -> None:
    nodes = write_table(tmp_path / "nodes.csv", nodes_of(NAMES))
    edges = write_table(tmp_path / "edges.csv", edges_of(FOLLOWS))

    identity = tables_identity(table_source(nodes, edges).csv)

    assert identity.splitlines()[:2] == ["CsvSource", '{"nodes":{"label":"kind"},"edges":{}}']
    assert source_digest(table_source(nodes, edges)) != source_digest(table_source(nodes, edges, decimal=","))
