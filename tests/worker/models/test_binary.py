"""Rows of new nodes whose features are binary: as those that are multiplied whole."""

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
from gnnserve_worker.models.nonzero import LEAST_INPUTS
from gnnserve_worker.models.rows import RowMaker, first_products, row_maker
from gnnserve_worker.sampling.batch_view import FeatureRows

INPUTS, NODES = LEAST_INPUTS + 37, 90
DRAW = np.random.default_rng(0)
METHODS = [method for method in Normalization if method is not Normalization.AUTO]
READ, OWN = DRAW.integers(0, NODES, 300), DRAW.integers(3, NODES, 250)


def marks(number: float = 1.0) -> np.ndarray:
    """A third of them set; a row of zeros, one of ones, and one whose only number is the last."""
    features = (DRAW.random((NODES, INPUTS)) < 1 / 3).astype(np.float32)
    features[3], features[4], features[5, :-1], features[5, -1] = 0, 1, 0, 1
    return features * np.float32(number)


def maker_of(method: Normalization, outputs: int) -> RowMaker:
    scaling = Scaling(method)
    if method is Normalization.STANDARDIZE:
        scaling = Scaling(method, DRAW.normal(size=INPUTS), DRAW.uniform(0.01, 3, INPUTS))
    projection = Projection(*(DRAW.normal(size=(INPUTS, outputs)).astype(np.float32) for _ in range(2)))
    nothing = np.zeros((NODES, outputs), np.float32)
    table = projected_table_of(nothing, nothing, Storage.FLOAT32)
    return row_maker(table, INPUTS, scaling, np.arange(INPUTS), first_products(projection))


def whole_of(maker: RowMaker) -> RowMaker:
    (products,) = maker.made_of
    assert isinstance(products, FeatureProducts)
    return replace(maker, made_of=(replace(products, nonzero=()),))


@pytest.mark.parametrize("outputs", [5, 64, 150])
@pytest.mark.parametrize("method", METHODS)
def test_sums_of_weights_give_the_same_rows(method: Normalization, outputs: int) -> None:
    maker = maker_of(method, outputs)
    for number in (1.0, -0.3):
        features = FeatureRows.of(marks(number))
        assert BinaryRows.of(features, np.arange(NODES), maker.made_of[0].scaling.order) is not None
        whole = whole_of(maker).make(features, (READ, OWN), outputs)
        made = maker.make(features, (READ, OWN), outputs)
        size = float(np.abs(whole.values).max())
        assert made.values == pytest.approx(whole.values, abs=1e-5 * size)
        assert made.own_values == pytest.approx(whole.own_values, abs=1e-5 * size)
        assert len(maker.make(features, (READ[:0], OWN), outputs).values) == 0


@pytest.mark.parametrize("other", [2.0, -1.0, np.nan])
def test_rows_with_another_number_are_multiplied_whole(other: float) -> None:
    features = marks()
    features[17, -1], features[17, 0] = other, 1
    assert BinaryRows.of(FeatureRows.of(features), np.arange(NODES), 0) is None
    assert BinaryRows.of(FeatureRows.of(features), np.delete(np.arange(NODES), 17), 0) is not None


def test_few_rows_are_multiplied_whole() -> None:
    assert BinaryRows.of(FeatureRows.of(marks()), np.arange(4), 0) is None
