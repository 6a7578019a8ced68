"""What a source has that would be read wrongly: refused, or told, alike in every layout that a source may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from tests.support.graphs.graphs import npz_arrays, planted_graph, write_npz
from tests.support.graphs.links import load_links
from tests.support.graphs.several_types import (
    TypedParts,
    load_types,
    shop,
    typed_source,
    write_folder,
    write_hetero,
    write_tables,
)
from tests.support.graphs.tables import edges_of, import_tables, nodes_of, table_source, write_table

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import GivenSource, GraphSource, NpzSource
from gnnserve_api.spec.heterogeneous import HeterogeneousFiles
from gnnserve_api.spec.task import Links
from gnnserve_worker.graph.inspection import inspect
from gnnserve_worker.graph.sources.load import KINDS, load_source, source_digest
from gnnserve_worker.graph.sources.load import LAYOUTS as LAYOUTS_OF_TYPES
from gnnserve_worker.graph.store import Finding, GraphData

FORMATS = pytest.mark.parametrize("suffix", [".parquet", ".csv"])
LAYOUTS: dict[str, Callable[[Path, TypedParts], Any]] = {
    "npz": write_folder,
    "heteroData": write_hetero,
    "csv": write_tables,
    "parquet": lambda folder, parts: write_tables(folder, parts, ".parquet"),
}
NODES = 60
RING = [(node, (node + 1) % NODES) for node in range(NODES)]
UNREAD = "columns of edges not read"


def _npz(folder: Path, **arrays: np.ndarray) -> GraphData:
    given = npz_arrays(planted_graph((0, 1), nodes=NODES, columns=4)) | arrays
    return load_source(GraphSource(npz=NpzSource(uri=write_npz(folder / "graph.npz", given).as_uri())), Path("unused"))


def _found(findings: tuple[Finding, ...], begin: str) -> list[tuple[int, str]]:
    return [(one.count, one.example) for one in findings if one.what.startswith(begin)]


# --- arrays of nodes that are not read


def test_arrays_of_nodes_that_are_not_read_are_named(tmp_path: Path) -> None:
    of_nodes = {"age": np.zeros(NODES), "face": np.zeros((NODES, 8, 8), np.uint8), "names": np.array(["a"] * NODES)}
    found = _npz(tmp_path, **of_nodes, edge_weight=np.ones(3), other=np.zeros(7)).findings
    assert _found(found, "columns of nodes not read") == [(3, "age, face, names")]
    assert _found(found, UNREAD) == [(1, "edge_weight")]
    assert _found(_npz(tmp_path).findings, "columns of nodes not read") == []


@pytest.mark.parametrize("layout", ["npz", "heteroData"])
def test_arrays_of_nodes_of_each_type_that_are_not_read_are_named(tmp_path: Path, layout: str) -> None:
    parts = shop()
    parts.nodes["user"] |= {"age": np.zeros(30, np.float32), "pos": np.zeros((30, 2), np.float32)}
    parts.nodes["tag"]["weight"] = np.zeros(5, np.float32)
    data = load_types(typed_source(LAYOUTS[layout](tmp_path, parts)))
    told = {one.what: one.example for one in data.findings if one.what.startswith("columns of nodes not read")}
    assert told == {
        "columns of nodes not read (tag)": "weight",
        "columns of nodes not read (user)": "age, pos",
    }


# --- tables whose log says which of their files are live


def _table_folder(folder: Path, suffix: str) -> Path:
    folder.mkdir(parents=True)
    write_table(folder / f"part-0{suffix}", edges_of([(0, 1), (1, 2)]))
    return folder


@FORMATS
@pytest.mark.parametrize(
    ("mark", "inside", "message"),
    [
        pytest.param(
            "_delta_log/00000000000000000000.json", "", r"is a Delta Lake table: _delta_log says which files are live, "
            r"and files of rows that were removed may lie beside them; write the live rows to a file or folder of "
            r"their own, as pyarrow\.parquet\.write_table\(deltalake\.DeltaTable", id="Delta",
        ),
        pytest.param(
            "_delta_log/00000000000000000000.json", "dt=2026-01-01", r"lies in \S*edges, which is a Delta Lake table",
            id="a partition of it",
        ),
        pytest.param("metadata/v1.metadata.json", "", r"is an Iceberg table: metadata says", id="Iceberg"),
        pytest.param(
            "metadata/v1.metadata.json", "data", r"lies in \S*edges, which is an Iceberg table", id="data of Iceberg"
        ),
        pytest.param(".hoodie/hoodie.properties", "", r"is a Hudi table", id="Hudi"),
    ],
)  # fmt: skip
def test_a_folder_whose_log_says_which_files_are_live_is_refused(
    tmp_path: Path, suffix: str, mark: str, inside: str, message: str
) -> None:
    folder = _table_folder(tmp_path / "edges" / inside, suffix)
    (tmp_path / "edges" / mark).parent.mkdir()
    (tmp_path / "edges" / mark).write_text("{}")
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(range(5)))
    source = table_source(nodes, folder)

    for read in (source_digest, lambda source: load_source(source, Path("unused"))):
        with pytest.raises(InputError, match=rf"edges\.uri: the folder \S* {message}"):
            read(source)


@FORMATS
def test_folders_beside_such_a_table_are_read(tmp_path: Path, suffix: str) -> None:
    folder = _table_folder(tmp_path / "edges", suffix)
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "v1.metadata.json").write_text("{}")
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(range(5)))

    assert load_source(table_source(nodes, folder), Path("unused")).edges == 4


@FORMATS
def test_a_partitioned_folder_is_refused_by_the_column_that_its_files_lack(tmp_path: Path, suffix: str) -> None:
    _table_folder(tmp_path / "edges" / "dt=2026-01-01", suffix)
    nodes = write_table(tmp_path / f"nodes{suffix}", nodes_of(range(5)))

    with pytest.raises(
        InputError, match=r"is partitioned by 'dt': it has folders such as 'dt=2026-01-01', whose names"
    ):
        load_source(table_source(nodes, tmp_path / "edges"), Path("unused"))


# --- data of edges, which are not read


@FORMATS
def test_columns_of_edges_that_are_not_read_are_told(tmp_path: Path, suffix: str) -> None:
    ends = edges_of([(0, 1), (1, 2)])
    payload = {"weight": [0.5, 2.0], "timestamp": [1, 2], "__index_level_0__": [0, 1]}

    data = import_tables(tmp_path, suffix, nodes_of(range(5)), ends | payload)

    assert _found(data.findings, UNREAD) == [(2, "weight, timestamp")]
    assert [one.example for one in inspect(data).findings if one.what == UNREAD] == ["weight, timestamp"]
    plain = import_tables(tmp_path, suffix, nodes_of(range(5)), ends)
    assert _found(plain.findings, UNREAD) == []


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        pytest.param(lambda edges: {"data": np.ones(edges, np.float32)}, "data", id="a value of each edge"),
        pytest.param(lambda edges: {"edge_attr": np.ones((edges, 3))}, "edge_attr", id="features of edges"),
        pytest.param(lambda _: {"edge_weight": np.ones(7)}, "edge_weight", id="by its name"),
        pytest.param(lambda _: {"names": np.array(["a", "b"]), "x": np.ones((NODES, 2))}, "", id="something else"),
    ],
)
def test_arrays_of_a_file_that_look_like_data_of_edges_are_told(
    tmp_path: Path, arrays: Callable[[int], dict[str, np.ndarray]], told: str
) -> None:
    edges = planted_graph((0, 1), nodes=NODES, columns=4).edges

    data = _npz(tmp_path, **arrays(edges))

    assert _found(data.findings, UNREAD) == ([(1, told)] if told else [])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_data_of_edges_of_a_relation_is_told_in_every_layout(tmp_path: Path, layout: str) -> None:
    parts = shop()
    knows = parts.edges["user", "knows", "user"]
    knows |= {"since": np.arange(len(knows["src"])), "trust": np.ones(len(knows["src"]))}

    data = load_types(typed_source(LAYOUTS[layout](tmp_path, parts)))

    assert _found(data.findings, f"{UNREAD} (user knows user)") == [(2, "since, trust")]
    assert len(_found(data.findings, UNREAD)) == 1


# --- labels that are no classes

REFUSED = (
    rf"{NODES} different values on {NODES} labelled nodes: nearly every node would be a class of its own, as with "
    r"numbers that are to be predicted, or with ids; regression, which predicts numbers, is not supported yet; name a "
    r"column of classes, or put the numbers into a few ranges"
)


@FORMATS
@pytest.mark.parametrize(
    "labels",
    [
        pytest.param([(7 * row) % 61 for row in range(NODES)], id="integers"),
        pytest.param([f"user-{row}" for row in range(NODES)], id="names"),
    ],
)
def test_a_column_in_which_nearly_every_node_has_a_value_of_its_own_is_refused_as_labels(
    tmp_path: Path, suffix: str, labels: list[int] | list[str]
) -> None:
    with pytest.raises(InputError, match=rf"nodes\.label: column 'kind': {REFUSED}"):
        import_tables(tmp_path, suffix, nodes_of(range(NODES)) | {"kind": labels}, edges_of([(0, 1)]))


def test_an_array_in_which_nearly_every_node_has_a_value_of_its_own_is_refused_as_labels(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"graph\.npz: labels: {REFUSED}"):
        _npz(tmp_path, labels=np.random.default_rng(0).permutation(NODES))


@pytest.mark.parametrize(("layout", "place"), [("npz", "labels"), ("heteroData", "user/y"), ("csv", "label: column")])
def test_a_target_of_regression_of_a_type_is_refused_in_every_layout(tmp_path: Path, layout: str, place: str) -> None:
    parts = shop(users=NODES)
    parts.nodes["user"]["labels"] = np.arange(NODES)

    with pytest.raises(InputError, match=rf"{place}.*{NODES} different values on {NODES} labelled nodes"):
        load_types(typed_source(LAYOUTS[layout](tmp_path, parts)))


def test_few_classes_are_classes_and_so_are_many_that_nodes_share(tmp_path: Path) -> None:
    labels = np.arange(NODES) % 31
    assert len(_npz(tmp_path, labels=labels).classes) == 31, "of more than half as many nodes"
    labels[:33] = np.arange(33)
    with pytest.raises(InputError, match="33 different values on 60 labelled nodes"):
        _npz(tmp_path, labels=labels)


def test_a_few_labelled_nodes_of_many_classes_are_told_and_taken(tmp_path: Path) -> None:
    """As where a node of each class is labelled for a given model."""
    nodes, classes = 800, 40
    labels = [str(row) if row < classes else None for row in range(nodes)]
    split = ["train" if row % 2 else "val" for row in range(nodes)]

    table = nodes_of(range(nodes)) | {"kind": labels, "part": split, "same": [float(row) for row in range(nodes)]}
    data = import_tables(tmp_path, ".csv", table, edges_of([(0, 1)]), {"split": "part"})

    ((count, example),) = _found(data.findings, "classes that hardly any two labelled nodes share")
    assert (count, "40 different values on 40 labelled nodes" in example) == (classes, True)
    assert not [note for note in inspect(data).notes if "tells the class exactly" in note]


def test_labels_that_nothing_learns_from_are_no_reason_to_refuse(tmp_path: Path) -> None:
    """Where links are scored: a table has to name a column of labels all the same."""
    arrays = npz_arrays(planted_graph((0, 1), nodes=NODES, columns=4)) | {"labels": np.arange(NODES)}
    source = GraphSource(npz=NpzSource(uri=write_npz(tmp_path / "graph.npz", arrays).as_uri()))
    assert load_links(source, Links(), Path("unused")).graph.nodes == NODES
    table = nodes_of(range(NODES)) | {"kind": [f"user-{row}" for row in range(NODES)]}
    nodes, edges = (write_table(tmp_path / f"{name}.csv", of) for name, of in (("n", table), ("e", edges_of(RING))))
    assert load_links(table_source(nodes, edges), Links(), Path("unused")).graph.nodes == NODES


@pytest.mark.parametrize("layout", ["npz", "heteroData", "csv"])
def test_labels_of_a_type_that_is_not_classified_are_no_reason_to_refuse(tmp_path: Path, layout: str) -> None:
    parts = shop(users=NODES, items=NODES)
    split = np.arange(NODES) % 3
    masks = {name: split == part for part, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    parts.nodes["item"] |= {"labels": np.arange(NODES), **masks}

    data = load_types(typed_source(LAYOUTS[layout](tmp_path, parts), target="user"))

    assert (data.target.name, len(data.classes)) == ("user", 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        pytest.param(
            [2.17, *[1.0] * 59], r"row 0, column 'kind': is 2\.17, expected a class, an integer or a text; regression, "
            r"which predicts numbers, is not supported yet; name a column of classes, or put", id="a fraction",
        ),
        pytest.param(
            pa.array([1] * NODES, pa.decimal128(5, 2)),
            r"column 'kind' of \S* is decimal128\(5, 2\), expected classes, "
            r"which are integers or texts; regression", id="decimals",
        ),
    ],
)  # fmt: skip
def test_numbers_that_are_no_classes_are_said_to_need_regression(tmp_path: Path, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        import_tables(tmp_path, ".parquet", nodes_of(range(NODES)) | {"kind": labels}, edges_of([(0, 1)]))


@pytest.mark.parametrize("shape", [(NODES,), (NODES, 2)], ids=["one", "two"])
def test_targets_in_an_array_of_floats_are_said_to_need_regression(tmp_path: Path, shape: tuple[int, ...]) -> None:
    message = "labels: are float64, expected classes: integers, or a matrix of 0 and 1 of .*; regression, which"
    with pytest.raises(InputError, match=message):
        _npz(tmp_path, labels=np.ones(shape))


@pytest.mark.parametrize(("labels", "count"), [(["1.5", "2", "2.5"], 3), (["1.5", "two", "2.5"], 0), (["1", "2"], 0)])
def test_classes_with_fractions_of_a_csv_are_told(tmp_path: Path, labels: list[str], count: int) -> None:
    kinds = [labels[row % len(labels)] for row in range(NODES)]

    data = import_tables(tmp_path, ".csv", nodes_of(range(NODES)) | {"kind": kinds}, edges_of([(0, 1)]))

    found = _found(data.findings, "classes that are numbers with a fraction")
    assert found == ([(3, "1.5, 2, 2.5")] if count else [])


@pytest.mark.parametrize(("given", "registry"), [(GivenSource, KINDS), (HeterogeneousFiles, LAYOUTS_OF_TYPES)])
def test_whatever_a_manifest_may_name_as_its_source_is_loaded_by_a_row_of_the_registry(
    given: UnionType, registry: Mapping[type, Callable[[], object]]
) -> None:
    assert {*registry} == {*get_args(given)}
    assert all(callable(made().identity) and callable(made().load) for made in registry.values())
