"""Rows of new nodes whose features are mostly zeros: as those that are multiplied whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.graphs.graphs import projected_table_of

from gnnserve_api.spec.graph import Normalization
from gnnserve_api.variants import Storage
from gnnserve_worker.models.architecture import Projection
from gnnserve_worker.models.binary import BinaryRows
from gnnserve_worker.models.feature_products import FeatureProducts, Scaling
from gnnserve_worker.models.network import Linear
from gnnserve_worker.models.nonzero import LEAST_INPUTS, pays
from gnnserve_worker.models.rows import RowMaker, first_products, row_maker
from gnnserve_worker.sampling.batch_view import FeatureRows

INPUTS, OUTPUTS, NODES = LEAST_INPUTS + 37, 24, 40
DRAW = np.random.default_rng(0)
METHODS = [method for method in Normalization if method is not Normalization.AUTO]
READ, OWN = np.array([3, 0, 7, 7], np.int64), np.array([9, 7, 9, 3], np.int64)


def words(rows: int, share: float) -> np.ndarray:
    """Mostly zeros, some of them negative ones."""
    features = DRAW.normal(size=(rows, INPUTS)) * (DRAW.random((rows, INPUTS)) < share)
    return features.astype(np.float32)


def scaling_of(method: Normalization) -> Scaling:
    if method is not Normalization.STANDARDIZE:
        return Scaling(method)
    return Scaling(method, DRAW.normal(size=INPUTS), DRAW.uniform(0.01, 3, INPUTS))


def maker_of(method: Normalization, storage: Storage) -> RowMaker:
    projection = Projection(*(DRAW.normal(size=(INPUTS, OUTPUTS)).astype(np.float32) for _ in range(2)))
    nothing = np.zeros((NODES, OUTPUTS), np.float32)
    table = projected_table_of(nothing, nothing, storage)
    return row_maker(table, INPUTS, scaling_of(method), np.arange(INPUTS), first_products(projection))


@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.INT8])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_zero_alone_gives_the_same_rows(method: Normalization, storage: Storage) -> None:
    maker, features = maker_of(method, storage), FeatureRows.of(words(12, 0.03))
    (products,) = maker.made_of
    assert isinstance(products, FeatureProducts) and len(products.nonzero) == 2
    assert pays(features, READ)
    whole = replace(maker, made_of=(replace(products, nonzero=()),)).make(features, (READ, OWN), OUTPUTS)
    made = maker.make(features, (READ, OWN), OUTPUTS)
    if storage is Storage.INT8:  # sums in another order may be rounded to the next number
        assert np.abs(made.values.astype(int) - whole.values.astype(int)).max() <= 1
        assert made.own_scales == pytest.approx(whole.own_scales, rel=1e-5)
        return
    size = float(np.abs(whole.values).max())
    assert made.values == pytest.approx(whole.values, abs=1e-5 * size)
    assert made.own_values == pytest.approx(whole.own_values, abs=1e-5 * size)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_products_of_several_relations_are_those_of_all_numbers_and_have_biases(
    method: Normalization, binary: bool
) -> None:
    products = [
        Linear.build(
            DRAW.normal(size=(INPUTS, OUTPUTS)).astype(np.float32), DRAW.normal(size=OUTPUTS).astype(np.float32),
            relu=False, compute="float32",
        )
        for _ in range(5)
    ]  # fmt: skip
    made_of = FeatureProducts.build(scaling_of(method), INPUTS, products, range(5))
    given = (DRAW.random((90, INPUTS)) < 1 / 3).astype(np.float32) if binary else words(90, 0.03)
    # Features are as wide as those of the widest type.
    features, reads = FeatureRows.of(np.pad(given, ((0, 0), (0, 7)))), [READ, OWN, READ[:0], np.arange(90), OWN[:1]]
    assert (pays(features, np.arange(90)), BinaryRows.of(features, np.arange(90), 0) is not None) == (
        not binary,
        binary,
    )
    whole = replace(made_of, nonzero=()).multiply(features, reads)
    for found, expected in zip(made_of.multiply(features, reads), whole, strict=True):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=1e-5 * float(np.abs(whole[3]).max()))


def test_features_that_are_not_mostly_zeros_are_multiplied_whole() -> None:
    assert not pays(FeatureRows.of(words(12, 0.2)), READ)
    assert not pays(FeatureRows.of(words(12, 0.0)), READ[:0])
    assert pays(FeatureRows.of(words(1000, 0.01)), np.arange(1000))


def test_narrow_features_are_not_looked_at() -> None:
    narrow = Linear.build(
        np.ones((LEAST_INPUTS - 1, 2), np.float32), np.zeros(2, np.float32), relu=False, compute="float32"
    )
    assert FeatureProducts.build(Scaling(Normalization.DISABLED), LEAST_INPUTS - 1, [narrow], [0]).nonzero == ()
