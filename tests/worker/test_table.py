"""The feature table: rank order on disk, mapped and read-only in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs import dense_features, sparse_features

from gnnserve_worker.graph import table as table_module
from gnnserve_worker.graph.store import Features
from gnnserve_worker.graph.table import FeatureTable, write_table

KINDS = pytest.mark.parametrize(
    "make", [pytest.param(dense_features, id="dense"), pytest.param(sparse_features, id="sparse")]
)


def _dense(features: Features) -> np.ndarray:
    return features if isinstance(features, np.ndarray) else features.toarray()


@KINDS
@pytest.mark.parametrize("columns", [[3, 0, 4, 1, 2], [4, 2], [0]], ids=["all, reordered", "a prefix", "one"])
def test_columns_are_written_in_rank_order(tmp_path: Path, make: Callable[..., Features], columns: list[int]) -> None:
    features = make(23, 5, 0)

    write_table(tmp_path / "t.npy", features, columns)

    np.testing.assert_array_equal(FeatureTable.open(tmp_path / "t.npy").values, _dense(features)[:, columns])


@KINDS
def test_rows_written_in_many_pieces_stay_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Features]
) -> None:
    monkeypatch.setattr(table_module, "_CHUNK_BYTES", 3 * 4 * 5)
    features = make(23, 5, 0)

    write_table(tmp_path / "t.npy", features, [1, 0])

    np.testing.assert_array_equal(FeatureTable.open(tmp_path / "t.npy").values, _dense(features)[:, [1, 0]])


def test_an_opened_table_is_mapped_and_read_only(tmp_path: Path) -> None:
    write_table(tmp_path / "t.npy", dense_features(4, 3, 0), [0, 1, 2])

    values = FeatureTable.open(tmp_path / "t.npy").values

    assert isinstance(values.base, np.memmap)
    assert type(values) is np.ndarray
    assert not values.flags.writeable


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    write_table(tmp_path / "t.npy", dense_features(4, 3, 0), [2])

    plain = np.load(tmp_path / "t.npy", allow_pickle=False)
    assert (plain.dtype, plain.shape) == (np.float32, (4, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(np.zeros((3, 2)), id="float64"),
        pytest.param(np.zeros(3, dtype=np.float32), id="one dimension"),
        pytest.param(np.asfortranarray(np.zeros((3, 2), dtype=np.float32)), id="Fortran order"),
    ],
)
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path: Path, wrong: np.ndarray) -> None:
    np.save(tmp_path / "t.npy", wrong)

    with pytest.raises(ValueError, match=r"t\.npy: expected float32 \[nodes, width\] in C order, found"):
        FeatureTable.open(tmp_path / "t.npy")


def test_sparse_features_with_explicit_zeros_are_written_as_they_are(tmp_path: Path) -> None:
    features = sp.csr_array((np.array([0, 2], dtype=np.float32), np.array([1, 0]), np.array([0, 1, 2])), shape=(2, 2))

    write_table(tmp_path / "t.npy", features, [1, 0])

    assert FeatureTable.open(tmp_path / "t.npy").values.tolist() == [[0, 0], [0, 2]]
