"""Users' own tables that cannot be read: each is refused by file, row, column, value and remedy."""

from __future__ import annotations

import gzip
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from tests.support.graphs.tables import edges_of, import_tables, nodes_of, table_source, write_table

from gnnserve_api.errors import InputError
from gnnserve_worker.graph.sources import checks, table_labels
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.sources.table_csv import CsvTable

FORMATS = pytest.mark.parametrize("suffix", [".parquet", ".csv"])
NAMES = ["ann", "bob", "cid", "dan", "eve"]
FOLLOWS = [("ann", "bob"), ("cid", "bob")]


def _with(**changed: Any) -> dict[str, Any]:
    return nodes_of(NAMES) | changed


NODES: list[Any] = [
    pytest.param(
        _with(id=["ann", None, "cid", "dan", "eve"]), {},
        r"nodes.csv: line 3, column 'id': is missing, but requests and edges need it; fill it in", "row 1",
        id="a missing id",
    ),
    pytest.param(
        _with(id=["ann", "bob", "cid", "bob", "eve"]), {},
        r"nodes.csv: line 5, column 'id': is 'bob', as already in \S*nodes.csv: line 3; give every node an id of "
        r"its own",
        "row 3", id="an id twice",
    ),
    pytest.param(
        _with(id=[4, 8, 4, 1, 2]), {}, r"nodes.csv: line 4, column 'id': is 4, as already in \S*nodes.csv: line 2",
        "row 2", id="an integer twice",
    ),
    pytest.param(
        _with(id=[0, 1, 2, 1, 4]), {}, r"nodes.csv: line 5, column 'id': is 1, as already in \S*nodes.csv: line 3",
        "row 3", id="a position twice",
    ),
    pytest.param(
        _with(age=[1.0, 2.0, None, float("inf"), 3.0]), {},
        r"nodes.csv: line 4, column 'age': is missing, expected a finite number \(2 such values\); fill it in, or set "
        r"spec.graph.source.csv.nodes.missing to Zero or Mean", "row 2", id="a missing feature",
    ),
    pytest.param(
        _with(weight=[1.0, float("inf"), 3.0, 4.0, 5.0]), {}, r"nodes.csv: line 3, column 'weight': is inf, "
                                                              r"expected a finite",
        "row 1", id="an infinite feature",
    ),
    pytest.param(
        _with(weight=[1.0, 1.0, 3.0, -1e39, 5.0]), {"missing": "Zero"},
        r"nodes.csv: line 5, column 'weight': is -1e\+39, which float32 cannot hold; scale the column", "row 3",
        id="a number beyond float32",
    ),
    pytest.param(
        _with(age=pa.array([None] * 5, pa.float64())), {"features": ["age"], "missing": "Mean"},
        r"spec.graph.source.csv.nodes.features: column 'age' has no number, and so no mean; leave it out", None,
        id="no mean",
    ),
    pytest.param(
        {name: _with()[name] for name in ("id", "kind")}, {},
        r"nodes.features: no column of \S*nodes.csv can be a feature; it has no others than its manifest names", None,
        id="nothing but ids and labels",
    ),
    pytest.param(
        _with(kind=["a"] * 5), {}, r"nodes.label: column 'kind': expected 2 to 65536 distinct classes, found 1", None,
        id="one class",
    ),
    pytest.param(
        _with(kind=pa.array([None] * 5, pa.string())), {},
        r"nodes.label: column 'kind': expected 2 to 65536 distinct classes, found 0", None,
        id="no label",
    ),
    pytest.param(
        _with(a=[0, 1, 2, 0, 1], b=[1] * 5), {"labels": ["a", "b"]},
        r"nodes.csv: line 4, column 'a': is 2, expected 0 or 1; correct it", "row 2", id="a label of 2",
    ),
    pytest.param(
        _with(a=[0, 1, 1, 0, 1], b=[1, 1, 1, 1, None]), {"labels": ["a", "b"]},
        r"nodes.csv: line 6, column 'b': is missing, although the row has other labels, expected 0 or 1", "row 4",
        id="one of several labels missing",
    ),
    pytest.param(
        _with(part=["train", "train", "test", "dev", "dev"]), {"split": "part"},
        r"nodes.split: column 'part': validation: has no labelled node; mark at least one", None,
        id="no validation node",
    ),
    pytest.param(
        _with(part=["train", "val", "test", "", ""], kind=[None, "a", "b", "a", "b"]), {"split": "part"},
        r"nodes.split: column 'part': train: has no labelled node", None, id="no labelled training node",
    ),
    pytest.param(
        _with(kind=["a", "b", None, None, None]), {},
        r"nodes: the split 60/20/20 of 2 labelled nodes: validation: has no labelled node; give more nodes a label, or "
        r"name a column", None, id="too few labels for a split",
    ),
    pytest.param(
        _with(), {"label": "kinds"},
        r"nodes.label: names a column 'kinds', but \S*nodes.csv has 'id', 'kind', 'age', 'weight'; did you "
        r"mean 'kind'\?", None,
        id="no such label column",
    ),
    pytest.param(
        _with(), {"id": "name"}, r"nodes.id: names a column 'name', but \S*nodes.csv has 'id', 'kind'", None,
        id="no such id column",
    ),
    pytest.param(
        _with(), {"features": ["age", "size"]}, r"nodes.features\[1\]: names a column 'size', but", None,
        id="no such feature",
    ),
    pytest.param(
        _with(), {"labels": ["age", "size"]}, r"nodes.labels\[1\]: names a column 'size', but", None,
        id="no such column of labels",
    ),
    pytest.param(_with(), {"split": "part"}, r"nodes.split: names a column 'part', but", None, id="no such split"),
    pytest.param(
        _with(), {"features": ["age", "kind"]},
        r"nodes.features\[1\]: names the column 'kind', which label names already; give every column one use", None,
        id="a label as a feature",
    ),
]  # fmt: skip


@FORMATS
@pytest.mark.parametrize(("nodes", "options", "message", "row"), NODES)
def test_nodes_are_refused_by_place_and_remedy(
    tmp_path: Path, suffix: str, nodes: Mapping[str, Sequence[Any]], options: dict[str, Any], message: str,
    row: str | None,
) -> None:  # fmt: skip
    if suffix == ".parquet":
        message = re.sub(r"line \d+", row or "", message, count=1)
        message = re.sub(r": line \d+", r": row \\d", message).replace("csv", "parquet")

    with pytest.raises(InputError, match=message):
        import_tables(tmp_path, suffix, nodes, edges_of([]), options)


EDGES: list[Any] = [
    pytest.param(
        edges_of([("ann", "bob"), ("bob", "zoe")]), {},
        r"edges.csv: line 3, column 'target': is 'zoe', which is no id of the node table; correct it, or set "
        r"spec.graph.source.csv.edges.dangling to Drop", "row 1", id="an unknown target",
    ),
    pytest.param(
        edges_of([("ann", "bob"), (None, "ann")]), {}, r"edges.csv: line 3, column 'source': is missing; correct "
                                                       r"it, or set",
        "row 1", id="a missing source",
    ),
    pytest.param(
        {"from": ["ann"], "to": ["bob"]}, {},
        r"spec.graph.source.csv.edges.source: names a column 'source', but \S*edges.csv has 'from', "
        r"'to'", "", id="other names",
    ),
    pytest.param(
        edges_of(FOLLOWS), {"target": "source"}, r"edges.target: names the column 'source', which source names "
                                                 r"already", "",
        id="one column for both ends",
    ),
]  # fmt: skip


@FORMATS
@pytest.mark.parametrize(("edges", "options", "message", "row"), EDGES)
def test_edges_are_refused_by_place_and_remedy(
    tmp_path: Path, suffix: str, edges: Mapping[str, Sequence[Any]], options: dict[str, Any], message: str, row: str
) -> None:
    if suffix == ".parquet":
        message = re.sub(r"line \d+", row, message).replace("csv", "parquet")

    with pytest.raises(InputError, match=message):
        import_tables(tmp_path, suffix, nodes_of(NAMES), edges, edge_options=options)


@pytest.mark.parametrize(("changed", "options", "message"), [
    pytest.param({"id": [1.0, 2.0, 3.0, 4.0, 5.0]}, {}, r"nodes.id: column 'id' of \S* is double, expected integers or",
                 id="ids that are doubles"),
    pytest.param({"id": pa.array([1, 2, 3, 4, 2**64 - 1], pa.uint64())}, {},
                 r"row 4, column 'id': is 18446744073709551615, beyond 64 bits with a sign", id="an id beyond 64 bits"),
    pytest.param({"id": ["a", "", "c", "d", "e"]}, {}, r"row 1, column 'id': is an empty text", id="an empty id"),
    pytest.param({"kind": [1.0, 2.5, 1.0, 2.0, 1.0]}, {}, r"row 1, column 'kind': is 2.5, expected a class, an "
                                                          r"integer or a text; regression",
                 id="a broken class"),
    pytest.param({"kind": [[1], [2], [1], [2], [1]]}, {}, r"nodes.label: column 'kind' of \S* is "
                                                          r"list<", id="lists of labels"),
    pytest.param({"a": NAMES}, {"labels": ["a"]}, r"nodes.labels\[0\]: column 'a' of \S* is string, expected 0 and 1",
                 id="texts as labels"),
    pytest.param({"a": [0, 1, 2, 1, 0]}, {"split": "a"}, r"nodes.split: column 'a' of \S* is int64, expected "
                                                         r"texts: train",
                 id="a split of integers"),
    pytest.param({"a": NAMES}, {"features": ["a"]},
                 r"nodes.features\[0\]: column 'a' of \S* is string, expected numbers, true and false, or lists",
                 id="texts as features"),
    pytest.param({"a": [[1, 2], [3, 4], [5], [6, 7], [8, 9]]}, {"features": ["a"]},
                 r"row 2, column 'a': has 1 numbers, expected 2 as in the first row", id="lists of two lengths"),
    pytest.param({"a": pa.array([None] * 5, pa.list_(pa.float32()))}, {"features": ["a"]},
                 r"nodes.features: the lists of column 'a' are all missing or empty", id="no list at all"),
])  # fmt: skip
def test_types_of_parquet_that_do_not_fit_are_refused(
    tmp_path: Path, changed: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        import_tables(tmp_path, ".parquet", _with(**changed), edges_of([]), options)


def test_edges_of_another_type_than_the_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"edges.source: column 'source' of \S* is int64, expected texts like the ids"):
        import_tables(tmp_path, ".parquet", nodes_of(NAMES), edges_of([(1, 2)]))
    with pytest.raises(InputError, match=r"edges.source: column 'source' of \S* is string, expected integers like"):
        import_tables(tmp_path, ".parquet", nodes_of(range(5)), edges_of([("1", "2")]))


def test_a_text_in_a_named_feature_of_a_csv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match=r"nodes.csv: line 4, column 'age': is '1,5', expected a number; correct it, or set \S*decimal to",
    ):
        import_tables(
            tmp_path, ".csv", _with(age=["1.5", "NA", "1,5", "x", "2"]), edges_of([]), {"features": ["age"]}
        )  # fmt: skip


# --- files


def _missing(_: Path) -> None:
    pass


def _empty(path: Path) -> None:
    path.touch()


def _nonsense(path: Path) -> None:
    path.write_bytes(b"PAR1 this is not a table \xff\xfe")


def _empty_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").touch()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder_with_fifo(path: Path) -> None:
    path.mkdir()
    write_table(path / f"a{path.suffix}", edges_of(FOLLOWS))
    os.mkfifo(path / f"b{path.suffix}")


@pytest.mark.parametrize(("make", "suffix", "message"), [
    pytest.param(_fifo, ".csv", r"csv.edges.uri: \S*edges.csv is a named pipe \(FIFO\), expected a regular file",
                 id="a pipe as CSV"),
    pytest.param(_endless, ".parquet", r"parquet.edges.uri: \S*edges.parquet is a character device", id="a device"),
    pytest.param(_folder_with_fifo, ".csv", r"edges.uri: \S*b.csv is a named pipe", id="a folder with a pipe"),
    pytest.param(_missing, ".csv", r"csv.edges.uri: cannot read \S*edges.csv: No such file", id="no CSV"),
    pytest.param(_missing, ".parquet", r"parquet.edges.uri: cannot read \S*edges.parquet: No such "
                                       r"file", id="no Parquet"),
    pytest.param(_empty, ".csv", r"edges.csv: is not a readable CSV file: Empty CSV file; write it "
                                 r"again", id="empty CSV"),
    pytest.param(_empty, ".parquet", r"edges.parquet: is not a readable Parquet file: ", id="empty Parquet"),
    pytest.param(_nonsense, ".parquet", r"edges.parquet: is not a readable Parquet file: ", id="nonsense"),
    pytest.param(_empty_folder, ".csv", r"edges.uri: the folder \S*edges.csv has no file that ends in .csv, .csv.gz",
                 id="a folder without a CSV"),
    pytest.param(_empty_folder, ".parquet", r"edges.uri: the folder \S* has no file that ends in .parquet",
                 id="a folder without Parquet"),
])  # fmt: skip
def test_a_file_that_is_no_table_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], None], suffix: str, message: str
) -> None:
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(NAMES))
    make(tmp_path / f"edges{suffix}")

    with pytest.raises(InputError, match=message):
        load_source(table_source(nodes, tmp_path / f"edges{suffix}"), Path("unused"))


@FORMATS
def test_a_table_without_nodes_is_refused(tmp_path: Path, suffix: str) -> None:
    empty = {name: pa.array([], pa.string() if name in {"id", "kind"} else pa.float64()) for name in nodes_of([])}

    with pytest.raises(InputError, match=r"nodes\.\w+: has no rows, expected one per node; write the nodes"):
        import_tables(tmp_path, suffix, empty, edges_of([]) if suffix == ".csv" else {"source": empty["id"]})


def _damaged_parquet(path: Path) -> None:
    write_table(path, edges_of([(f"a{i}", f"b{i}") for i in range(5000)]))
    data = bytearray(path.read_bytes())
    data[2000:3000] = b"\xff" * 1000
    path.write_bytes(data)


def _cut_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"source,target\n" + b"ann,bob\n" * 100_000)[:-500])


@pytest.mark.parametrize(("name", "make", "message"), [
    ("edges.parquet", _damaged_parquet, r"edges.parquet: is not a readable Parquet file: "),
    ("edges.csv.gz", _cut_gzip, r"edges.csv.gz: is not a readable CSV file: "),
])  # fmt: skip
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, name: str, make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / name)
    nodes = write_table(tmp_path / ("nodes" + "".join(Path(name).suffixes[:1])), nodes_of(NAMES))

    with pytest.raises(InputError, match=message):
        load_source(
            table_source(nodes, tmp_path / name, edge_options={"dangling": "Drop"}), Path("unused")
        )  # fmt: skip


CSVS: list[Any] = [
    pytest.param(
        b"source,target\nann,bob\n\ncid\nann,cid\n",
        r"edges.csv: line 4: has 1 values, expected 2 as in the header line: 'cid'; correct the line, or the "
        r"manifest's "
        r"delimiter, which is ','", id="too few values",
    ),
    pytest.param(
        b'source,target\n"an\nn",bob\nann,bob,cid\n', r"edges.csv: line 4: has 3 values, expected "
                                                      r"2", id="too many values",
    ),
    pytest.param(b"source,target\nann,bob\nann,b\xffb\n", r"edges.csv: line 3: is not UTF-8; save the file as UTF-8",
                 id="Latin-1"),
    pytest.param("source,target\nann,bob\n".encode("utf-16"), r"edges.csv: is UTF-16; save the file as UTF-8",
                 id="UTF-16"),
    pytest.param(b"\x1f\x8b\x08\x00\xc1,\xc1\n", r"edges.csv: is compressed by gzip; end its name in .csv.gz",
                 id="gzip"),
    pytest.param(b"PAR1\x15\x04\x15", r"edges.csv: is a Parquet file; name it in spec.graph.source.parquet",
                 id="Parquet"),
    pytest.param(b"PK\x03\x04\x14\x00\x06\x00\xff\xff,\n\xff", r"edges.csv: is a zip archive, or a workbook of a "
                                                                    r"spreadsheet; extract it, or save it as CSV",
                 id="a workbook"),
    pytest.param(b"source,target,target\nann,bob,bob\n", r"edges.csv: has 2 columns 'target'; rename all but one",
                 id="a column twice"),
    pytest.param(b"source;target\nann;bob\n", r"edges.source: names a column 'source', but \S* has "
                 r"'source;target'; if ';' is between values, set spec.graph.source.csv.edges.delimiter to it",
                 id="another delimiter"),
    pytest.param(b" Source,target\nann,bob\n", r"has ' Source', 'target'; did you mean ' Source'\?",
                 id="a column written otherwise"),
    pytest.param(b'source,target\n\n"a\nnn",bob\nann,bob\n', r"edges.csv: line 3, column 'source': is 'a\\nnn', "
                                                             r"which is no id",
                 id="a row of two lines"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), CSVS)
def test_a_csv_that_is_malformed_is_refused_by_line(tmp_path: Path, text: bytes, message: str) -> None:
    nodes = write_table(tmp_path / "nodes.csv", nodes_of(NAMES))
    (tmp_path / "edges.csv").write_bytes(text)

    with pytest.raises(InputError, match=message):
        load_source(table_source(nodes, tmp_path / "edges.csv"), Path("unused"))


@FORMATS
def test_a_row_of_the_second_file_of_a_folder_is_named_in_it(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / f"edges{suffix}"
    folder.mkdir()
    write_table(folder / f"a{suffix}", edges_of(FOLLOWS))
    write_table(folder / f"b{suffix}", edges_of([("ann", "cid"), ("ann", "zoe")]))
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(NAMES))

    where = "line 3" if suffix == ".csv" else "row 1"
    with pytest.raises(InputError, match=rf"b{suffix}: {where}, column 'target': is 'zoe'"):
        load_source(table_source(nodes, folder), Path("unused"))


@FORMATS
def test_a_row_of_the_second_file_of_nodes_is_named_in_it(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / f"nodes{suffix}"
    folder.mkdir()
    write_table(folder / f"a{suffix}", nodes_of(NAMES))
    write_table(folder / f"b{suffix}", nodes_of(["fay", "ann"]))
    edges = write_table(tmp_path / f"edges{suffix}", edges_of(FOLLOWS))

    first, second = ("line 2", "line 3") if suffix == ".csv" else ("row 0", "row 1")
    with pytest.raises(
        InputError, match=rf"b{suffix}: {second}, column 'id': is 'ann', as already in \S*a{suffix}: {first}"
    ):
        load_source(table_source(folder, edges), Path("unused"))


@FORMATS
def test_files_of_a_folder_have_the_same_columns(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / f"edges{suffix}"
    folder.mkdir()
    write_table(folder / f"a{suffix}", edges_of(FOLLOWS))
    write_table(folder / f"b{suffix}", {"source": ["ann"], "goal": ["bob"]})
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(NAMES))

    with pytest.raises(
        InputError,
        match=rf"b{suffix}: has no column 'target', as a{suffix} has; it has 'source', 'goal'; give all files",
    ):
        load_source(table_source(nodes, folder), Path("unused"))


def test_ids_of_two_types_in_a_folder_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "nodes.parquet"
    folder.mkdir()
    write_table(folder / "a.parquet", nodes_of(NAMES))
    write_table(folder / "b.parquet", nodes_of([1, 2]))
    edges = write_table(tmp_path / "edges.parquet", edges_of(FOLLOWS))

    with pytest.raises(InputError, match=r"b.parquet: column 'id': is int64, but string in a.parquet; write all files"):
        load_source(table_source(folder, edges), Path("unused"))


def _folder(path: Path, *files: Mapping[str, Any]) -> Path:
    path.mkdir()
    for number, columns in enumerate(files):
        write_table(path / f"{number}{path.suffix}", columns)
    return path


@pytest.mark.parametrize("later", [
    pytest.param({"source": [3.7, None], "target": [4.2, 1.0]}, id="doubles"),
    pytest.param({"source": [1.0, None], "target": [2.0, 1.0]}, id="whole doubles"),
    pytest.param({"source": [True, False], "target": [False, True]}, id="true and false"),
    pytest.param({"source": ["3", "1"], "target": ["1", "2"]}, id="texts"),
    pytest.param({"source": [[3], [1]], "target": [[1], [2]]}, id="lists"),
])  # fmt: skip
def test_ends_of_another_type_in_a_later_file_are_refused(tmp_path: Path, later: dict[str, Any]) -> None:
    nodes = write_table(tmp_path / "nodes.parquet", nodes_of(range(5)))
    edges = _folder(tmp_path / "edges.parquet", edges_of([(0, 1), (3, 2)]), later)

    with pytest.raises(InputError, match=r"1\.parquet: column 'source': is .*write"):
        load_source(table_source(nodes, edges, edge_options={"dangling": "Drop"}), Path("unused"))


@pytest.mark.parametrize(("first", "later", "column", "types"), [
    pytest.param({"id": [1, 2]}, {"id": [3.6, 4.0]}, "id", "double, but int64", id="ids 3.6"),
    pytest.param({"id": [1, 2]}, {"id": [True, False]}, "id", "bool, but int64", id="ids true"),
    pytest.param({"id": [1, 2]}, {"id": ["x", "y"]}, "id", "string, but int64", id="ids of integers, then texts"),
    pytest.param({"kind": [0, 1]}, {"kind": ["a", "b"]}, "kind", "string, but int64", id="classes"),
    pytest.param({"kind": ["a", "b"]}, {"kind": [0, 1]}, "kind", "int64, but string", id="classes the other way"),
    pytest.param({"age": [1.0, 2.0]}, {"age": [[1.0], [2.0]]}, "age", "list<.*>, but double", id="features"),
    pytest.param({"age": [[1.0], [2.0]]}, {"age": [1.0, 2.0]}, "age", "double, but list<", id="lists of features"),
    pytest.param({"part": ["train", "val"]}, {"part": [1, 2]}, "part", "int64, but string", id="splits"),
])  # fmt: skip
def test_a_later_file_of_nodes_with_another_type_is_refused(
    tmp_path: Path, first: dict[str, Any], later: dict[str, Any], column: str, types: str
) -> None:
    part = {"part": ["train", "val"]}
    nodes = _folder(
        tmp_path / "nodes.parquet", nodes_of([1, 2]) | part | first, nodes_of([3, 4]) | part | later
    )  # fmt: skip
    edges = write_table(tmp_path / "edges.parquet", edges_of([(1, 2)]))

    with pytest.raises(InputError, match=rf"1\.parquet: column '{column}': is {types}"):
        load_source(table_source(nodes, edges, {"split": "part"}), Path("unused"))


def test_numbers_of_other_types_and_columns_without_a_value_are_taken_from_later_files(tmp_path: Path) -> None:
    nothing = pa.array([None] * 2, pa.null())
    nodes = _folder(
        tmp_path / "nodes.parquet",
        nodes_of(range(5)) | {"kind": [0, 1, 0, 1, 0], "age": [1, 2, 3, 4, 5]},
        nodes_of([5, 6]) | {"kind": [1.0, None], "age": [0.5, None]},
        nodes_of([7, 8]) | {"kind": nothing, "age": nothing},
    )
    no_ends = {"source": nothing, "target": nothing}
    edges = _folder(tmp_path / "edges.parquet", edges_of([(0, 1), (5, 6)]), no_ends)

    data = load_source(
        table_source(nodes, edges, {"missing": "Zero"}, {"dangling": "Drop", "direction": "Directed"}), Path("unused")
    )

    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1, -1, -1, -1]
    assert data.features[:, 0].tolist() == [1, 2, 3, 4, 5, 0.5, 0, 0, 0]
    assert data.graph.edges == 2


def _bytes_as_text(*values: bytes) -> pa.Array:
    """As a program writes it that never asked whether they are UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


BROKEN = (b"ann", b"bob", b"c\xffd", b"dan", b"eve")


@pytest.mark.parametrize("values", [
    pytest.param(_bytes_as_text(*BROKEN), id="text"),
    pytest.param(pa.array(BROKEN, pa.binary()), id="binary"),
    pytest.param(pa.array(BROKEN, pa.binary()).dictionary_encode(), id="dictionary"),
])  # fmt: skip
@pytest.mark.parametrize("column", ["id", "kind", "part"])
def test_a_text_of_parquet_that_is_not_utf_8_is_refused_by_row(
    tmp_path: Path, values: pa.Array, column: str
) -> None:  # fmt: skip
    nodes = nodes_of(NAMES) | {"part": ["train", "val", "test", "train", "val"], column: values}

    with pytest.raises(InputError, match=rf"nodes.parquet: row 2, column '{column}': is not UTF-8; write texts as"):
        import_tables(tmp_path, ".parquet", nodes, edges_of([]), {"split": "part"})


def test_an_end_that_is_not_utf_8_is_refused_by_row(tmp_path: Path) -> None:
    ends = {"source": ["ann", "bob"], "target": _bytes_as_text(b"bob", b"\xc3")}

    with pytest.raises(InputError, match=r"edges.parquet: row 1, column 'target': is not UTF-8"):
        import_tables(tmp_path, ".parquet", nodes_of(NAMES), ends, edge_options={"dangling": "Drop"})


@FORMATS
def test_a_folder_with_folders_in_it_is_refused(tmp_path: Path, suffix: str) -> None:
    edges = _folder(tmp_path / f"edges{suffix}", edges_of(FOLLOWS))
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(NAMES))
    (edges / "_logs").mkdir()
    load_source(table_source(nodes, edges), Path("unused"))
    (edges / "older").mkdir()

    with pytest.raises(InputError, match=r"edges\.uri: the folder \S* has the folder 'older' in it, whose files would"):
        load_source(table_source(nodes, edges), Path("unused"))


LONG = "x" * 200_000


@pytest.mark.parametrize(("nodes", "edges", "options"), [
    pytest.param(_with(id=[LONG, LONG, "cid", "dan", "eve"]), [], {}, id="an id twice"),
    pytest.param(_with(), [("ann", LONG)], {}, id="an end"),
    pytest.param(_with(age=[1, 2, LONG, 4, 5]), [], {"features": ["age"]}, id="a feature"),
    pytest.param(_with(a=[0, 1, LONG, 0, 1]), [], {"labels": ["a"]}, id="a label"),
])  # fmt: skip
def test_a_cell_of_megabytes_is_shown_in_part(
    tmp_path: Path, nodes: dict[str, Any], edges: list[Any], options: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"'x{77}…'") as caught:
        import_tables(tmp_path, ".csv", nodes, edges_of(edges), options)
    assert len(str(caught.value)) < 1000


def test_a_cell_of_megabytes_is_shown_in_part_of_what_was_left_out(tmp_path: Path) -> None:
    words = ["train", "val", "test", "train", LONG]
    data = import_tables(tmp_path, ".csv", _with(note=[LONG] * 5, part=words), edges_of([]), {"split": "part"})

    assert {finding.what for finding in data.findings} == {
        "columns left out of the features", "nodes in no split by their word"
    }  # fmt: skip
    assert all("xxx…'" in finding.example and len(finding.example) < 200 for finding in data.findings)


QUOTED: list[Any] = [
    pytest.param('ann,5" disk\nann,bob\nann,"zoe"\n', ",", id="one within a value"),
    pytest.param('ann,"a ""b"" \nc"\nann,zoe\n', ",", id="doubled ones"),
    pytest.param('ann,"a"b"c\nann,"d\n,""e\n"\nann,zoe\n', ",", id="behind the end of a quoted value"),
    pytest.param('"an\nn",""\n""""\t,"x"\nann,zoe\n', ",", id="at the beginning of a line"),
    pytest.param('ann;a,"b\nann;"b;\n"\nann;zoe\n', ";", id="with another delimiter"),
]


@pytest.mark.parametrize(("text", "delimiter"), QUOTED)
def test_lines_are_counted_by_the_quotes_that_arrow_sees(tmp_path: Path, text: str, delimiter: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"source{delimiter}target\n{text}")
    rows = pa_csv.read_csv(
        path, parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    ).num_rows  # fmt: skip
    lines = path.read_text().split("\n")

    places = [CsvTable("field", path, delimiter).place(path, row) for row in range(rows + 1)]

    assert places[-2:] == [f"{path}: line {len(lines) - 1}", str(path)]
    assert all(earlier < later for earlier, later in itertools.pairwise(places[:-1]))


def test_a_column_of_ids_as_classes_is_refused_before_it_becomes_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_CLASSES", 3)
    monkeypatch.setattr(table_labels, "parse_integer", lambda _: pytest.fail("looked at every class"))

    with pytest.raises(InputError, match=r"label: column 'name': expected 2 to 3 distinct classes, found 5"):
        import_tables(tmp_path, ".csv", _with(name=NAMES), edges_of([]), {"label": "name"})


@pytest.mark.parametrize("delimiter", ['"', "\n", "→"])
def test_a_delimiter_that_is_none_is_refused(tmp_path: Path, delimiter: str) -> None:
    nodes = write_table(tmp_path / "nodes.csv", nodes_of(NAMES))
    edges = write_table(tmp_path / "edges.csv", edges_of(FOLLOWS))

    with pytest.raises(InputError, match=r"csv.delimiter: is .*, expected an ASCII character"):
        load_source(table_source(nodes, edges, delimiter=delimiter), Path("unused"))


def test_a_digest_is_refused_like_the_table_when_a_file_is_gone(tmp_path: Path) -> None:
    nodes = write_table(tmp_path / "nodes.csv", nodes_of(NAMES))

    with pytest.raises(InputError, match=r"spec.graph.source.csv.edges.uri: cannot read \S*gone.csv"):
        source_digest(table_source(nodes, tmp_path / "gone.csv"))
