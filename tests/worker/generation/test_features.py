"""Scaling of features, from what training may see."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.preprocessing
from tests.support.graphs.graphs import dense_features, sparse_features

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.generation.training_set import fit_normalization, keep_columns

VISIBLE = np.arange(0, 50, 2)


def test_standardized_columns_have_zero_mean_and_unit_deviation_where_training_looks() -> None:
    features = dense_features(50, 4, 0) * np.array([1, 10, 0.1, 1000], dtype=np.float32) + 7

    scaled = fit_normalization(features, Normalization.STANDARDIZE, VISIBLE).features

    assert isinstance(scaled, np.ndarray)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled[VISIBLE].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled[VISIBLE].std(axis=0), 1, atol=1e-4)


def test_hidden_nodes_shape_nothing_but_their_own_rows() -> None:
    features = dense_features(50, 4, 0)
    poisoned = features.copy()
    hidden = np.setdiff1d(np.arange(50), VISIBLE)
    poisoned[hidden] = 1e6

    scaled = fit_normalization(features, Normalization.STANDARDIZE, VISIBLE).features
    of_poisoned = fit_normalization(poisoned, Normalization.STANDARDIZE, VISIBLE).features

    np.testing.assert_array_equal(of_poisoned[VISIBLE], scaled[VISIBLE])


@pytest.mark.parametrize("constant", [0.0, 0.1, -3.0, 123_456.789, 1e30], ids=str)
def test_a_constant_column_becomes_zero_where_it_is_constant(constant: float) -> None:
    features = dense_features(50, 2, 0)
    features[:, 1] = constant

    scaled = fit_normalization(features, Normalization.STANDARDIZE, np.arange(50)).features

    assert scaled[:, 1].tolist() == [0.0] * 50


def test_a_column_that_is_constant_only_for_training_stays_finite() -> None:
    features = dense_features(50, 2, 0)
    features[VISIBLE, 1] = 0.1

    scaled = fit_normalization(features, Normalization.STANDARDIZE, VISIBLE).features

    np.testing.assert_allclose(scaled[:, 1], features[:, 1] - np.float32(0.1), atol=1e-6)


def test_standardize_by_name_makes_sparse_features_dense() -> None:
    features = sparse_features(50, 4, 0)

    scaled = fit_normalization(features, Normalization.STANDARDIZE, VISIBLE).features

    np.testing.assert_array_equal(
        scaled, fit_normalization(features.toarray(), Normalization.STANDARDIZE, VISIBLE).features
    )


def test_sparse_features_that_no_machine_holds_as_dense_ones_are_not_standardized() -> None:
    features = sp.csr_array((50, 100_000_000), dtype=np.float32)

    with pytest.raises(
        InputError,
        match=r"spec\.graph\.normalization: is Standardize, but the features are sparse and take 19 GiB as dense",
    ):
        fit_normalization(features, Normalization.STANDARDIZE, VISIBLE)


def test_dense_rows_are_divided_by_the_sum_of_their_absolute_values() -> None:
    features = np.array([[1, -3], [0, 0], [5, 0]], dtype=np.float32)

    scaled = fit_normalization(features, Normalization.ROW_NORMALIZE, np.array([0])).features

    assert scaled.tolist() == [[0.25, -0.75], [0, 0], [1, 0]]
    assert scaled.dtype == np.float32


def test_sparse_rows_are_divided_by_the_sum_of_their_absolute_values_and_stay_sparse() -> None:
    features = sp.csr_array(np.array([[1, -3], [0, 0], [5, 0]], dtype=np.float32))

    scaled = fit_normalization(features, Normalization.ROW_NORMALIZE, np.array([0])).features

    assert isinstance(scaled, sp.csr_array)
    assert scaled.dtype == np.float32
    assert scaled.toarray().tolist() == [[0.25, -0.75], [0, 0], [1, 0]]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_rows_are_divided_by_their_euclidean_length_as_scikit_learn_does(sparse: bool) -> None:
    values = sparse_features(50, 6, 0).toarray() - 0.3 * sparse_features(50, 6, 1).toarray()
    values[7] = 0

    features = sp.csr_array(values) if sparse else values
    scaled = fit_normalization(features, Normalization.L2_ROW_NORMALIZE, np.array([0])).features

    assert sp.issparse(scaled) == sparse
    assert scaled.dtype == np.float32
    expected = sklearn.preprocessing.normalize(values, norm="l2")
    np.testing.assert_allclose(scaled.toarray() if sparse else scaled, expected, rtol=1e-6)
    assert not expected[7].any()


def test_auto_standardizes_dense_features() -> None:
    features = dense_features(50, 4, 0)

    np.testing.assert_array_equal(
        fit_normalization(features, Normalization.AUTO, VISIBLE).features,
        fit_normalization(features, Normalization.STANDARDIZE, VISIBLE).features,
    )


def test_auto_row_normalizes_sparse_features() -> None:
    features = sparse_features(50, 4, 0)

    auto = fit_normalization(features, Normalization.AUTO, VISIBLE).features

    np.testing.assert_array_equal(
        auto.toarray(), fit_normalization(features, Normalization.ROW_NORMALIZE, VISIBLE).features.toarray()
    )


def test_disabled_leaves_features_as_they_are() -> None:
    features = dense_features(50, 4, 0) * 100

    np.testing.assert_array_equal(fit_normalization(features, Normalization.DISABLED, VISIBLE).features, features)


@pytest.mark.parametrize(
    "method", [Normalization.STANDARDIZE, Normalization.ROW_NORMALIZE, Normalization.L2_ROW_NORMALIZE]
)
def test_the_source_is_not_changed(method: Normalization) -> None:
    features = dense_features(50, 4, 0)
    before = features.copy()

    fit_normalization(features, method, VISIBLE)

    np.testing.assert_array_equal(features, before)


def test_kept_columns_come_in_the_order_asked_for() -> None:
    features = dense_features(5, 4, 0)

    kept = keep_columns(features, np.array([3, 0]))

    np.testing.assert_array_equal(kept, features[:, [3, 0]])
    assert isinstance(kept, np.ndarray)
    assert kept.flags.c_contiguous


def test_kept_sparse_columns_stay_sparse() -> None:
    features = sparse_features(5, 4, 0)

    kept = keep_columns(features, np.array([3, 0]))

    assert isinstance(kept, sp.csr_array)
    np.testing.assert_array_equal(kept.toarray(), features.toarray()[:, [3, 0]])


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("method", "share"),
    [(Normalization.ROW_NORMALIZE, 0.5), (Normalization.L2_ROW_NORMALIZE, 0.5**0.5)],
    ids=["RowNormalize", "L2RowNormalize"],
)
def test_rows_whose_norm_float32_cannot_hold_are_normalized_all_the_same(
    method: Normalization, share: float, sparse: bool
) -> None:
    features = np.array([[3e38, 3e38]], dtype=np.float32)

    scaled = fit_normalization(sp.csr_array(features) if sparse else features, method, np.array([0])).features

    found = scaled.toarray() if isinstance(scaled, sp.csr_array) else scaled
    np.testing.assert_array_equal(found, np.full((1, 2), share, dtype=np.float32))
