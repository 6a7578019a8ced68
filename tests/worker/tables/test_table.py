"""Tables on disk: rank order, padding, scales, projection; mapped and read-only in memory."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support import campaigns
from tests.support.graphs.graphs import dense_features, sparse_features

from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Features
from gnnserve_worker.tables import table as table_module
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import feature_blocks, map_array, projected_blocks, write_rows

KINDS = pytest.mark.parametrize(
    "make", [pytest.param(dense_features, id="dense"), pytest.param(sparse_features, id="sparse")]
)
STORAGES = pytest.mark.parametrize("storage", list(Storage), ids=str)
BLOCKS = pytest.mark.parametrize(
    "block_bytes",
    [pytest.param(None, id="one block"), pytest.param(60, id="blocks of three rows"), pytest.param(4, id="row by row")],
)


def _dense(features: Features) -> np.ndarray:
    return features if isinstance(features, np.ndarray) else features.toarray()


def _use_blocks(monkeypatch: pytest.MonkeyPatch, block_bytes: int | None) -> None:
    if block_bytes is not None:
        monkeypatch.setattr(table_module, "_WRITE_BYTES", block_bytes)


@KINDS
@STORAGES
@BLOCKS
@pytest.mark.parametrize("columns", [[3, 0, 4, 1, 2], [4, 2], [0]], ids=["all, reordered", "a prefix", "one"])
def test_columns_are_written_in_rank_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., Features],
    storage: Storage,
    block_bytes: int | None,
    columns: list[int],
) -> None:
    _use_blocks(monkeypatch, block_bytes)
    features = make(23, 5, 0)
    expected, expected_scales = FORMATS[storage].encode(np.ascontiguousarray(_dense(features)[:, columns]))

    scales = write_rows(tmp_path / "t.npy", feature_blocks(features, columns), 23, len(columns), FORMATS[storage])

    values = map_array(tmp_path / "t.npy")
    assert values.dtype == FORMATS[storage].dtype
    assert values.shape == (23, FORMATS[storage].padded_columns(len(columns)))
    np.testing.assert_array_equal(values[:, : len(columns)], expected)
    assert not values[:, len(columns) :].any()
    if expected_scales is None:
        assert scales is None
    else:
        assert scales is not None
        assert scales.dtype == np.float32
        np.testing.assert_array_equal(scales, expected_scales)


@KINDS
@BLOCKS
def test_blocks_are_the_features_in_order(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., Features], block_bytes: int | None
) -> None:
    _use_blocks(monkeypatch, block_bytes)
    features = make(23, 5, 0)

    blocks = list(feature_blocks(features, [4, 1]))

    assert len(blocks) == {None: 1, 60: 8, 4: 23}[block_bytes]
    assert {block.dtype for block in blocks} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(np.concatenate(blocks), _dense(features)[:, [4, 1]])


@KINDS
@BLOCKS
@pytest.mark.parametrize("outputs", [1, 7])
def test_projected_blocks_are_features_times_weights(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., Features], block_bytes: int | None, outputs: int
) -> None:
    _use_blocks(monkeypatch, block_bytes)
    features, weight = make(23, 5, 0), dense_features(5, outputs, 1)

    blocks = list(projected_blocks(features, weight))

    assert len(blocks) == {None: 1, 60: 8, 4: 23}[block_bytes]
    assert {block.dtype for block in blocks} == {np.dtype(np.float32)}
    expected = _dense(features).astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(np.concatenate(blocks), expected, rtol=1e-5, atol=1e-6)


@STORAGES
def test_a_projected_table_is_written_as_any_other(tmp_path: Path, storage: Storage) -> None:
    features, weight = dense_features(40, 6, 0), dense_features(9, 6, 1).T

    scales = write_rows(tmp_path / "t.npy", projected_blocks(features, weight), 40, 9, FORMATS[storage])

    decoded = FORMATS[storage].decode(map_array(tmp_path / "t.npy"), scales)[:, :9]
    expected = features @ weight
    np.testing.assert_allclose(decoded, expected, rtol=0, atol=float(np.abs(expected).max()) / 127)


def test_numbers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="100,000 does not fit float16"):
        write_rows(tmp_path / "t.npy", [np.full((2, 2), 1e5, dtype=np.float32)], 2, 2, FORMATS[Storage.FLOAT16])


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t.npy").write_bytes(b"mine")

    with pytest.raises(FileExistsError):
        write_rows(tmp_path / "t.npy", [np.zeros((1, 1), dtype=np.float32)], 1, 1, FORMATS[Storage.FLOAT32])
    assert (tmp_path / "t.npy").read_bytes() == b"mine"


def _written(tmp_path: Path, rows: int = 4, columns: int = 3) -> Path:
    write_rows(tmp_path / "t.npy", [dense_features(rows, columns, 0)], rows, columns, FORMATS[Storage.FLOAT32])
    return tmp_path / "t.npy"


def test_a_mapped_array_is_plain_and_read_only(tmp_path: Path) -> None:
    path = _written(tmp_path)
    values = map_array(path)

    assert type(values) is np.ndarray
    assert not values.flags.writeable
    assert values.flags.c_contiguous
    assert path.name in Path("/proc/self/maps").read_text()
    assert path.stat().st_mode & 0o222 == 0


def test_rows_begin_on_cache_lines(tmp_path: Path) -> None:
    write_rows(tmp_path / "t.npy", [dense_features(9, 33, 0)], 9, 33, FORMATS[Storage.BFLOAT16])

    values = map_array(tmp_path / "t.npy")

    assert values.ctypes.data % 64 == 0
    assert values.strides[0] % 64 == 0


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    plain = np.load(_written(tmp_path), allow_pickle=False)

    assert (plain.dtype, plain.shape) == (np.float32, (4, 4))
    np.testing.assert_array_equal(plain[:, :3], dense_features(4, 3, 0))


@pytest.mark.parametrize(
    "array",
    [np.zeros((0, 4), np.int32), np.zeros(0, np.int32), np.arange(7), np.array([[1], [2]], np.uint8)],
    ids=["no rows", "empty", "one dimension", "bytes"],
)
def test_every_array_of_a_repository_is_mapped_as_numpy_saved_it(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "t.npy", array)

    mapped = map_array(tmp_path / "t.npy")

    assert (mapped.dtype, mapped.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(mapped, array)


def _saved(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(b"\x93NUMPY\x01", "", id="half a magic string"),
        pytest.param(b"PK\x03\x04" + bytes(200), "magic string", id="another kind of file"),
        pytest.param(_saved(np.zeros(3))[:100], "", id="cut within the header"),
        pytest.param(_saved(np.zeros(3))[:-1], "151 bytes, expected 152 for float64 [3]", id="one byte short"),
        pytest.param(_saved(np.zeros(3), (2, 0)), "another version of the .npy format than 1.0", id="version 2"),
        pytest.param(_saved(np.zeros((3, 2), order="F")), "found float64 in Fortran order", id="Fortran order"),
        pytest.param(_saved(np.array([None, {}])), "expected numbers in C order, found object", id="objects"),
    ],
)
def test_a_damaged_file_is_a_value_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.npy").write_bytes(content)

    with pytest.raises(ValueError) as refused:
        map_array(tmp_path / "t.npy")
    assert message in str(refused.value)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore")  # Python's parser warns of what it meets in a damaged header
def test_no_damaged_byte_of_a_header_is_anything_but_a_value_error(tmp_path: Path) -> None:
    content = _saved(np.arange(6, dtype=np.int16).reshape(2, 3))
    path = tmp_path / "t.npy"
    for place in campaigns.share(range(128)):
        for byte in (0, 10, 34, 39, 40, 41, 44, 48, 57, 76, 91, 92, 123, 125, 255):
            path.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
            try:
                array = map_array(path)
            except ValueError:
                continue
            assert isinstance(array, np.ndarray)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_array(tmp_path / "t.npy")


def test_sparse_features_with_explicit_zeros_are_written_as_they_are(tmp_path: Path) -> None:
    features = sp.csr_array((np.array([0, 2], dtype=np.float32), np.array([1, 0]), np.array([0, 1, 2])), shape=(2, 2))

    write_rows(tmp_path / "t.npy", feature_blocks(features, [1, 0]), 2, 2, FORMATS[Storage.FLOAT32])

    assert map_array(tmp_path / "t.npy").tolist() == [[0, 0], [0, 2]]
