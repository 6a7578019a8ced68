"""Graph files: what is read, and how each malformed one is refused by file, array, value and remedy."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import re
import socket
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.graphs.graphs import graph_of, neighbours_of, npz_arrays, planted_graph, write_npz

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.spec.graph import GraphSource, NpzDirection, NpzSource
from gnnserve_worker.graph.edges import BothDirections
from gnnserve_worker.graph.sources.load import load_source, source_digest, undecided_digest
from gnnserve_worker.graph.store import GraphData

NODES = 5
Arrays = dict[str, np.ndarray]


def _dense() -> Arrays:
    return {
        "indptr": np.array([0, 2, 3, 3, 5, 6]),
        "indices": np.array([1, 4, 0, 0, 3, 2], dtype=np.int32),
        "features": np.arange(NODES * 3, dtype=np.float32).reshape(NODES, 3),
        "labels": np.array([0, 1, 2, 1, 0]),
        "train_mask": np.array([1, 1, 0, 0, 0], dtype=bool),
        "val_mask": np.array([0, 0, 1, 0, 0], dtype=bool),
        "test_mask": np.array([0, 0, 0, 1, 1], dtype=bool),
    }


def _sparse() -> Arrays:
    arrays = _dense()
    del arrays["features"]
    return arrays | {
        "feat_indptr": np.array([0, 1, 1, 2, 3, 4]),
        "feat_indices": np.array([2, 0, 1, 3], dtype=np.int32),
        "feat_data": np.array([1, 2, 3, 4], dtype=np.float32),
        "feat_shape": np.array([NODES, 4]),
    }


def _multi_label() -> Arrays:
    return _dense() | {"labels": np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0]], dtype=np.uint8)}


def _source(path: Path, sha256: str | None = None) -> GraphSource:
    return GraphSource(npz=NpzSource(uri=path.as_uri(), sha256=sha256))


def _load(tmp_path: Path, arrays: Arrays) -> GraphData:
    return load_source(_source(write_npz(tmp_path / "graph.npz", arrays)), Path("unused"))


# --- what is read


def test_a_dense_graph_is_read_as_it_is_written(tmp_path: Path) -> None:
    arrays = _dense()

    data = _load(tmp_path, arrays)

    np.testing.assert_array_equal(data.graph.indptr, arrays["indptr"])
    np.testing.assert_array_equal(data.graph.indices, arrays["indices"])
    np.testing.assert_array_equal(data.features, arrays["features"])
    np.testing.assert_array_equal(data.labels, arrays["labels"])
    assert data.classes == (0, 1, 2)
    assert [ids.tolist() for ids in (data.splits.train, data.splits.validation, data.splits.test)] == [
        [0, 1],
        [2],
        [3, 4],
    ]
    assert data.source == (tmp_path / "graph.npz").as_uri()
    assert not data.multi_label


def test_sparse_features_stay_sparse(tmp_path: Path) -> None:
    data = _load(tmp_path, _sparse())

    assert isinstance(data.features, sp.csr_array)
    assert data.features.toarray().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [2, 0, 0, 0], [0, 3, 0, 0], [0, 0, 0, 4]]


@pytest.mark.parametrize("change", [
    pytest.param(lambda a: a | {"indptr": a["indptr"].astype(np.int32), "indices": a["indices"].astype(np.int64)},
                 id="other integer widths"),
    pytest.param(lambda a: a | {"indptr": a["indptr"].astype(np.uint64), "indices": a["indices"].astype(np.uint16)},
                 id="unsigned integers"),
    pytest.param(lambda a: a | {"features": a["features"].astype(np.float64)}, id="double precision features"),
    pytest.param(lambda a: a | {"features": a["features"].astype(np.int64)}, id="integer features"),
    pytest.param(lambda a: a | {"features": np.asfortranarray(a["features"])}, id="features in Fortran order"),
    pytest.param(lambda a: a | {"labels": a["labels"].astype(np.int16)}, id="short labels"),
    pytest.param(lambda a: a | {"unused": np.array(["a", "b"])}, id="arrays of no concern"),
])  # fmt: skip
def test_other_types_give_the_same_graph(tmp_path: Path, change: Callable[[Arrays], Arrays]) -> None:
    data = _load(tmp_path, change(_dense()))

    assert (data.graph.indptr.dtype, data.graph.indices.dtype) == (np.int64, np.int32)
    assert (data.features.dtype, data.labels.dtype) == (np.float32, np.int64)
    assert isinstance(data.features, np.ndarray)
    assert data.features.flags.c_contiguous
    np.testing.assert_array_equal(data.graph.indptr, _dense()["indptr"])
    np.testing.assert_array_equal(data.graph.indices, _dense()["indices"])
    np.testing.assert_array_equal(data.features, _dense()["features"])


def test_compressed_files_are_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "graph.npz", **_dense())

    assert load_source(_source(tmp_path / "graph.npz"), Path("unused")).graph.nodes == NODES


def test_labels_keep_the_sources_own_numbers(tmp_path: Path) -> None:
    data = _load(tmp_path, _dense() | {"labels": np.array([100, 3, 7, 3, 100])})

    assert data.classes == (3, 7, 100)
    assert data.labels.tolist() == [2, 0, 1, 0, 2]


def test_unlabelled_nodes_are_kept_and_leave_the_splits(tmp_path: Path) -> None:
    """As in citeseer, whose test split holds isolated nodes without label."""
    data = _load(tmp_path, _dense() | {"labels": np.array([-1, 1, 0, -1, 0])})

    assert data.graph.nodes == NODES
    assert data.labels.tolist() == [-1, 1, 0, -1, 0]
    assert [ids.tolist() for ids in (data.splits.train, data.splits.validation, data.splits.test)] == [[1], [2], [4]]


def test_an_unlabelled_node_in_two_splits_is_no_error(tmp_path: Path) -> None:
    arrays = _dense() | {"labels": np.array([0, 1, 2, 1, -1])}
    arrays["train_mask"][4] = True

    assert _load(tmp_path, arrays).splits.train.tolist() == [0, 1]


def test_an_empty_test_split_is_allowed(tmp_path: Path) -> None:
    data = _load(tmp_path, _dense() | {"test_mask": np.zeros(NODES, dtype=bool)})

    assert len(data.splits.test) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.bool_])
def test_a_matrix_of_labels_is_multi_label(tmp_path: Path, dtype: type[np.generic]) -> None:
    data = _load(tmp_path, _multi_label() | {"labels": _multi_label()["labels"].astype(dtype)})

    assert data.multi_label
    assert data.classes == (0, 1)
    assert data.labels.dtype == np.uint8
    np.testing.assert_array_equal(data.labels, _multi_label()["labels"])


def test_masks_that_overlap_none_may_leave_nodes_out(tmp_path: Path) -> None:
    data = _load(tmp_path, _dense() | {"test_mask": np.array([0, 0, 0, 1, 0], dtype=bool)})

    assert data.splits.test.tolist() == [3]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_graph_survives_the_round_trip(tmp_path: Path, sparse: bool) -> None:
    planted = planted_graph((1, 2, 3), nodes=50, sparse=sparse, classes=(4, 5, 9))

    data = _load(tmp_path, npz_arrays(planted))

    assert data.classes == (4, 5, 9)
    np.testing.assert_array_equal(data.labels, planted.labels)
    np.testing.assert_array_equal(data.graph.indices, planted.graph.indices)
    np.testing.assert_array_equal(data.splits.validation, planted.splits.validation)


@pytest.mark.parametrize("name", ["with space.npz", "ünïcode.npz", "per%cent.npz", "a#b.npz"])
def test_uris_are_percent_decoded(tmp_path: Path, name: str) -> None:
    path = write_npz(tmp_path / name, _dense())
    source = _source(path)

    assert source.npz is not None
    assert " " not in str(source.npz.uri)
    assert load_source(source, Path("unused")).graph.nodes == NODES


# --- which way edges go


SYMMETRIC = {"indptr": np.array([0, 3, 5, 6, 6, 7]), "indices": np.array([2, 1, 1, 0, 0, 0, 4], dtype=np.int32)}
"""Edges 0 - 1 twice, 0 - 2, and 4 to itself; the list of node 0 is not ascending."""
ONE_WAY = {"indptr": np.array([0, 3, 4, 5, 5, 6]), "indices": np.array([2, 1, 1, 0, 0, 4], dtype=np.int32)}
"""Without one of the two edges from 0 to 1."""


def _stated(tmp_path: Path, arrays: Arrays, direction: NpzDirection | None) -> GraphData:
    path = write_npz(tmp_path / "graph.npz", _dense() | arrays)
    return load_source(GraphSource(npz=NpzSource(uri=path.as_uri(), direction=direction)), Path("unused"))


def _rows(data: GraphData) -> list[list[int]]:
    return [neighbours_of(data.graph, node) for node in range(data.nodes)]


@pytest.mark.parametrize(
    ("arrays", "direction", "finding"),
    [
        pytest.param(SYMMETRIC, Direction.UNDIRECTED, (7, "all listed both ways", "Undirected", ""), id="both ways"),
        pytest.param(ONE_WAY, Direction.DIRECTED, (1, "listed one way", "Directed", "1 to 0"), id="one edge one way"),
        pytest.param(
            {"indptr": np.zeros(6, int), "indices": np.zeros(0, int)}, Direction.UNDIRECTED,
            (0, "all listed both ways", "Undirected", ""), id="no edges",
        ),
    ],
)  # fmt: skip
def test_a_direction_that_is_not_stated_is_decided_once_and_told(
    tmp_path: Path, arrays: Arrays, direction: Direction, finding: tuple[int, str, str, str]
) -> None:
    data = _stated(tmp_path, arrays, None)

    assert data.edge_rules == EdgeRules(direction, Duplicates.KEEP)
    np.testing.assert_array_equal(data.graph.indices, arrays["indices"])
    (told,) = data.findings
    count, words, decided, example = finding
    assert (told.count, told.example) == (count, example)
    assert words in told.what and f"spec.graph.source.npz.direction: {decided}" in told.what


def test_undirected_adds_the_other_direction_where_the_lists_lack_it(tmp_path: Path) -> None:
    data = _stated(tmp_path, ONE_WAY, NpzDirection.UNDIRECTED)

    assert data.edge_rules == EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)
    assert _rows(data) == [[1, 1, 2], [0, 0], [0], [], [4]]
    (told,) = data.findings
    assert (told.what, told.count, told.example) == ("edges added in the other direction", 1, "1 to 0")


def test_undirected_leaves_lists_as_they_are_that_have_both_directions(tmp_path: Path) -> None:
    data = _stated(tmp_path, SYMMETRIC, NpzDirection.UNDIRECTED)

    np.testing.assert_array_equal(data.graph.indices, SYMMETRIC["indices"])
    assert (data.edge_rules.direction, data.findings) == (Direction.UNDIRECTED, ())


@pytest.mark.parametrize("arrays", [SYMMETRIC, ONE_WAY], ids=["both ways", "one edge one way"])
def test_directed_keeps_what_is_listed_and_changes_count_one_way(tmp_path: Path, arrays: Arrays) -> None:
    data = _stated(tmp_path, arrays, NpzDirection.DIRECTED)

    np.testing.assert_array_equal(data.graph.indices, arrays["indices"])
    assert data.edge_rules == EdgeRules(Direction.DIRECTED, Duplicates.KEEP)
    assert data.findings == ()


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_the_other_direction_is_added_as_often_as_it_lacks(pairs: list[tuple[int, int]]) -> None:
    graph = graph_of([[sender for reader, sender in pairs if reader == node] for node in range(6)])
    listed = Counter(pairs)
    wanted = {pair: max(listed[pair], listed[pair[::-1]]) for each in pairs for pair in (each, each[::-1])}

    both = BothDirections.of(graph)

    found = both.to_graph()
    entries = Counter((node, sender) for node in range(6) for sender in neighbours_of(found, node))
    assert entries == +Counter(wanted)
    assert both.one_way == found.edges - graph.edges
    assert bool(both.example) == bool(both.one_way)
    if both.example:
        sender, reader = map(int, both.example.split(" to "))
        assert listed[reader, sender] > listed[sender, reader]


# --- identity


def test_a_stated_direction_is_part_of_the_identity_and_one_that_is_left_out_is_not(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "graph.npz", _dense())
    sources = [GraphSource(npz=NpzSource(uri=path.as_uri(), direction=one)) for one in (None, *NpzDirection)]

    assert len({source_digest(source) for source in sources}) == 3
    assert [undecided_digest(source) for source in sources] == [None, *[source_digest(sources[0])] * 2]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert source_digest(sources[0]) == hashlib.sha256(f"importer 1\n{sha256}".encode()).hexdigest()[:16]


def test_equal_files_have_equal_digests_wherever_they_are(tmp_path: Path) -> None:
    one = write_npz(tmp_path / "one.npz", _dense())
    (tmp_path / "folder").mkdir()
    other = Path(tmp_path / "folder" / "other.npz")
    other.write_bytes(one.read_bytes())

    assert (
        source_digest(_source(one)) == source_digest(_source(other)) == load_source(_source(one), Path("unused")).digest
    )


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "graph.npz", _dense())
    before = source_digest(_source(path))

    write_npz(path, _sparse())

    assert source_digest(_source(path)) != before


def test_a_pinned_file_is_read(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "graph.npz", _dense())

    data = load_source(_source(path, hashlib.sha256(path.read_bytes()).hexdigest()), Path("unused"))

    assert data.graph.nodes == NODES


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "graph.npz", _dense())
    found = hashlib.sha256(path.read_bytes()).hexdigest()

    with pytest.raises(
        InputError, match=rf"spec\.graph\.source\.npz\.sha256: .*graph\.npz has SHA-256 {found}, expected {'0' * 64}"
    ):
        load_source(_source(path, "0" * 64), Path("unused"))


# --- files that are none


def _missing(_: Path) -> None:
    pass


def _folder(path: Path) -> None:
    path.mkdir()


def _empty(path: Path) -> None:
    path.touch()


def _text(path: Path) -> None:
    path.write_text("source target\n1 2\n")


def _truncated(path: Path) -> None:
    write_npz(path, _dense())
    path.write_bytes(path.read_bytes()[:-40])


def _half(path: Path) -> None:
    write_npz(path, _dense())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _altered(path: Path) -> None:
    write_npz(path, _dense())
    data = bytearray(path.read_bytes())
    at = data.index(_dense()["features"].tobytes())
    data[at] ^= 1
    path.write_bytes(data)


def _broken_compression(path: Path) -> None:
    np.savez_compressed(path, **_dense() | {"features": np.random.default_rng(0).random((NODES, 500))})
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("features.npy")
    data = bytearray(path.read_bytes())
    start = member.header_offset + 200
    data[start : start + 400] = b"\xff" * 400
    path.write_bytes(data)


def _pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(_dense()))


def _parquet(path: Path) -> None:
    path.write_bytes(b"PAR1 and so on")


def _single_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def _member_without_header(path: Path) -> None:
    arrays = _dense()
    del arrays["labels"]
    write_npz(path, arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels", "0 1 2 1 0")


def _objects(path: Path) -> None:
    write_npz(path, _dense() | {"labels": np.array([0, 1, None, 1, 0], dtype=object)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(_missing, r"cannot read .*graph\.npz: No such file or directory; check the path", id="missing"),
        pytest.param(_folder, r"cannot read .*graph\.npz: Is a directory", id="a folder"),
        pytest.param(_empty, r"graph\.npz is not a readable \.npz file: it is empty; write", id="empty"),
        pytest.param(_text, r"graph\.npz is not a readable \.npz file: it is no zip archive; write", id="text"),
        pytest.param(_pickle, r"file: it is a Python pickle, which can run any code", id="a pickle"),
        pytest.param(_parquet, r"file: it is a Parquet file: write spec\.graph\.source\.parquet", id="Parquet"),
        pytest.param(_truncated, r"graph\.npz is not a readable \.npz file", id="truncated at the end"),
        pytest.param(_half, r"graph\.npz is not a readable \.npz file", id="half a file"),
        pytest.param(_altered, r"not a readable \.npz file: Bad CRC-32 for file 'features\.npy'", id="one altered bit"),
        pytest.param(_broken_compression, r"graph\.npz is not a readable \.npz file", id="damaged compressed data"),
        pytest.param(_single_array, r"it holds a single array", id="an .npy file under another name"),
        pytest.param(_member_without_header, r"labels is not an array", id="a member that is no array"),
        pytest.param(
            _objects, r"labels holds Python objects, not numbers; write arrays of numbers with numpy\.savez",
            id="pickled objects",
        ),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "graph.npz"
    make(path)

    with pytest.raises(InputError, match=rf"^spec\.graph\.source\.npz\.uri: .*{message}") as caught:
        load_source(_source(path), Path("unused"))
    # numpy would say how to load it unsafely.
    assert "allow_pickle" not in str(caught.value)


def _write_claim(path: Path, shape: tuple[int, ...], content: bytes, compression: int) -> None:
    """`features` claims the shape and has the content; the other arrays are as they should be."""
    arrays = _dense()
    del arrays["features"]
    write_npz(path, arrays)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr("features.npy", header.getvalue() + content)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_a_shape_beyond_what_the_archive_has_is_refused_before_memory_is_taken(
    tmp_path: Path, compression: int
) -> None:
    path = tmp_path / "graph.npz"
    _write_claim(path, (NODES, 3_000_000_000), bytes(1000), compression)

    with pytest.raises(
        InputError,
        match=r"features claims float32 \[5, 3000000000\], which are 60,000,000,000 bytes, but the archive has "
        r"1,\d{3} bytes of it",
    ):
        load_source(_source(path), Path("unused"))


def test_a_size_that_the_stored_bytes_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    _write_claim(path, (NODES, 200_000_000), bytes(1000), zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("features.npy")
    sizes = member.compress_size.to_bytes(4, "little"), member.file_size.to_bytes(4, "little")
    # In the archive's own list, which the claim is held against.
    path.write_bytes(content.replace(b"".join(sizes), sizes[0] + (4_000_000_200).to_bytes(4, "little")))

    with pytest.raises(InputError, match=r"4,000,000,000 bytes, but the \d+ bytes that are stored of it cannot"):
        load_source(_source(path), Path("unused"))


def test_features_of_another_graph_are_refused_by_their_header(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    _write_claim(path, (6, 1), b"content that is not 24 bytes", zipfile.ZIP_STORED)

    with pytest.raises(InputError, match=r"features: have 6 rows, but the graph has 5 nodes"):
        load_source(_source(path), Path("unused"))


def test_members_that_no_graph_has_are_not_read(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "graph.npz", _dense() | {"extra": np.array([None], dtype=object)})

    assert load_source(_source(path), Path("unused")).graph.nodes == NODES


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(path.parent):  # the path may be too long for one
        listening.bind(path.name)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(_fifo, r"a named pipe \(FIFO\)"), (_device, "a character device"), (_socket, "a socket")],
    ids=["fifo", "device", "socket"],
)
def test_what_is_no_file_is_refused_before_it_is_opened(
    tmp_path: Path, make: Callable[[Path], None], kind: str
) -> None:
    path = tmp_path / "graph.npz"
    make(path)

    with pytest.raises(
        InputError, match=rf"^spec\.graph\.source\.npz\.uri: .*graph\.npz is {kind}, expected a regular file; write"
    ):
        source_digest(_source(path))


# --- arrays that do not fit


def _with(make: Callable[[], Arrays] = _dense, /, **changes: Any) -> Callable[[], Arrays]:
    return lambda: make() | {name: np.asarray(value) for name, value in changes.items()}


def _set(name: str, at: Any, value: Any, make: Callable[[], Arrays] = _dense) -> Callable[[], Arrays]:
    def spoil() -> Arrays:
        arrays = make()
        arrays[name][at] = value
        return arrays

    return spoil


def _less(name: str, make: Callable[[], Arrays] = _dense) -> Callable[[], Arrays]:
    return lambda: {key: array for key, array in make().items() if key != name}


MALFORMED = [
    *(
        pytest.param(_less(name), name, rf"is missing; the file has .*add '{name}'", id=f"{name} is missing")
        for name in ("indptr", "indices", "features", "labels", "train_mask", "val_mask", "test_mask")
    ),
    *(
        pytest.param(_less(name, _sparse), name, "is missing", id=f"{name} is missing")
        for name in ("feat_indptr", "feat_indices", "feat_data", "feat_shape")
    ),
    pytest.param(_with(indptr=[0.0, 2, 3, 3, 5, 6]), "indptr", r"is float64 with shape \[6\], expected integers",
                 id="row offsets are floats"),
    pytest.param(_with(indptr=[[0, 6]]), "indptr", r"shape \[1, 2\], expected .* 1 dimension",
                 id="offsets are a matrix"),
    pytest.param(_with(indptr=[0]), "indptr", r"has 1 entries, so .* no nodes", id="offsets of no node"),
    pytest.param(_with(indptr=np.zeros(0, dtype=int)), "indptr", r"has 0 entries", id="no offsets"),
    pytest.param(_set("indptr", 0, 1), "indptr", r"must start at 0 and end at 6.*first \[1\]", id="offsets start late"),
    pytest.param(_set("indptr", -1, 7), "indptr", r"last \[7\]", id="offsets end beyond the neighbours"),
    pytest.param(_set("indptr", 2, 1), r"indptr\[2\]", r"is 1, less than the entry before it, 2",
                 id="offsets fall"),
    pytest.param(_set("indices", 3, NODES), r"indices\[3\]", r"is 5, expected 0 to 4",
                 id="a neighbour beyond the graph"),
    pytest.param(_set("indices", 1, -2), r"indices\[1\]", r"is -2, expected 0 to 4", id="a negative neighbour"),
    pytest.param(_with(indices=np.zeros(6, dtype=bool)), "indices", r"is bool", id="neighbours are truth values"),
    pytest.param(_set("features", (2, 1), np.nan), r"features\[2, 1\]", r"is nan, expected a finite float32 \(1 such",
                 id="a feature is NaN"),
    pytest.param(_set("features", (0, 0), -np.inf), r"features\[0, 0\]", r"is -inf", id="a feature is infinite"),
    pytest.param(_with(features=np.full((NODES, 2), 1e300)), r"features\[0, 0\]", r"is 1e\+300, expected a finite "
                 r"float32 \(10 such values\)", id="features that float32 cannot hold"),
    pytest.param(_with(features=np.zeros((4, 3))), "features", r"have 4 rows, but the graph has 5 nodes",
                 id="a feature row is missing"),
    pytest.param(_with(features=np.zeros((NODES, 0))), "features", r"have no columns", id="features without columns"),
    pytest.param(_with(features=np.zeros(NODES)), "features", r"shape \[5\], expected .* 2 dimension",
                 id="features are a vector"),
    pytest.param(_with(features=np.zeros((NODES, 2), dtype=complex)), "features", r"is complex128",
                 id="features are complex"),
    pytest.param(_with(features=[["a", "b"]] * NODES), "features", r"is <U1", id="features are text"),
    pytest.param(_with(_sparse, feat_shape=[NODES]), "feat_shape", r"is \[5\], expected \[nodes, columns\]",
                 id="a shape of one number"),
    pytest.param(_with(_sparse, feat_shape=[NODES, -4]), "feat_shape", r"is \[5, -4\]", id="a negative width"),
    pytest.param(_with(_sparse, feat_shape=[6, 4]), "feat_shape", r"says 6 rows, but feat_indptr has 5",
                 id="a shape of more rows"),
    pytest.param(_set("feat_indices", 1, 4, _sparse), r"feat_indices\[1\]", r"is 4, expected 0 to 3",
                 id="a column beyond the shape"),
    pytest.param(_set("feat_indptr", 3, 0, _sparse), r"feat_indptr\[3\]", r"is 0, less than the entry before",
                 id="feature offsets fall"),
    pytest.param(_with(_sparse, feat_data=np.ones(3, dtype=np.float32)), "feat_data", r"has 3 entries, expected 4",
                 id="a value is missing"),
    pytest.param(_set("feat_data", 2, np.nan, _sparse), r"feat_data\[2\]", r"is nan", id="a sparse value is NaN"),
    pytest.param(_with(_sparse, feat_indptr=[0, 4], feat_shape=[1, 4]), "features", r"have 1 rows",
                 id="one sparse row"),
    pytest.param(_set("labels", 3, -5), r"labels\[3\]", r"is -5, expected a class of 0 or more, or -1",
                 id="a label below -1"),
    pytest.param(_with(labels=[0.0, 1, 2, 1, 0]), "labels", r"are float64", id="labels are floats"),
    pytest.param(_with(labels=[0, 1, 2]), "labels", r"has 3 entries, but the graph has 5 nodes",
                 id="labels are missing"),
    pytest.param(_with(labels=[0] * NODES), "labels", r"expected 2 to 65536 distinct classes, found 1", id="one class"),
    pytest.param(_with(labels=[-1] * NODES), "labels", r"distinct classes, found 0", id="no label at all"),
    pytest.param(_with(labels=3), "labels", r"shape \[\]", id="labels are one number"),
    pytest.param(_set("labels", (1, 1), 2, _multi_label), r"labels\[1, 1\]", r"is 2, expected 0 or 1",
                 id="a multi-label entry is neither 0 nor 1"),
    pytest.param(_with(labels=np.zeros((4, 2), dtype=np.uint8)), "labels", r"has 4 entries",
                 id="a label row is missing"),
    pytest.param(_with(labels=np.zeros((NODES, 0), dtype=np.uint8)), "labels", r"have no columns",
                 id="no label columns"),
    pytest.param(_with(labels=np.zeros((NODES, 2))), "labels", r"are float64", id="label matrix of floats"),
    pytest.param(_with(train_mask=[1, 1, 0, 0, 0]), "train_mask", r"is int64 .*expected bool", id="a mask of integers"),
    pytest.param(_with(val_mask=[True, False]), "val_mask", r"has 2 entries", id="a short mask"),
    pytest.param(_set("val_mask", 1, True), "val_mask", r"shares 1 nodes with train_mask, the first is 1",
                 id="training and validation overlap"),
    pytest.param(_set("test_mask", 0, True), "test_mask", r"shares 1 nodes with train_mask",
                 id="training and test overlap"),
    pytest.param(_set("test_mask", 2, True), "test_mask", r"shares 1 nodes with val_mask",
                 id="validation and test overlap"),
    pytest.param(_with(train_mask=np.zeros(NODES, dtype=bool)), "train_mask", r"has no labelled node",
                 id="no training node"),
    pytest.param(_with(labels=[0, 1, -1, 1, 0]), "val_mask", r"has no labelled node", id="no labelled validation node"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "array", "message"), MALFORMED)
def test_a_malformed_array_is_refused_by_file_array_and_value(
    tmp_path: Path, make: Callable[[], Arrays], array: str, message: str
) -> None:
    path = write_npz(tmp_path / "graph.npz", make())

    with pytest.raises(InputError, match=rf"^{re.escape(str(path))}: {array}: .*{message}") as refusal:
        load_source(_source(path), Path("unused"))

    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(
            {"labels": np.array([0, 1, 2**64 - 1, 1, 0], dtype=np.uint64)},
            r"labels\[2\]: is 18446744073709551615, beyond 64 bits with a sign",
            id="a label that would turn into -1",
        ),
        pytest.param(
            {"feat_shape": np.array([NODES, 2**63 + 5], dtype=np.uint64)},
            r"feat_shape\[1\]: is 9223372036854775813, beyond 64 bits",
            id="a width beyond all integers",
        ),
        pytest.param(
            {"feat_shape": np.array([NODES, 3_000_000_000])},
            r"feat_shape: is \[5, 3000000000\], expected \[nodes, columns\] with at most 10,000,000 columns",
            id="a width beyond all graphs",
        ),
        pytest.param(
            {
                "feat_indptr": np.array([0, 2, 2, 2, 2, 2]),
                "feat_indices": np.array([0, 0]),
                "feat_data": np.array([3e38, 3e38]),
            },
            "feat_data: has entries of one place whose sum float32 cannot hold",
            id="two entries of one place whose sum overflows",
        ),
    ],
)
def test_numbers_that_would_silently_become_others_are_refused(tmp_path: Path, change: Arrays, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        _load(tmp_path, _sparse() | change)


def test_a_path_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(InputError, match="null byte"):
        source_digest(GraphSource(npz=NpzSource(uri="file:///a%00b.npz")))
