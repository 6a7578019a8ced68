from __future__ import annotations

import pytest

from gnnserve_api.errors import InputError
from gnnserve_api.variants import Storage, check_factors, columns_of, projected_name, variant_name


@pytest.mark.parametrize(
    ("features", "factor", "columns"),
    [
        pytest.param(64, 1, 64, id="factor 1 keeps every column"),
        pytest.param(64, 16, 4, id="an even division"),
        pytest.param(745, 16, 46, id="the remainder is dropped"),
        pytest.param(7, 7, 1, id="the last column"),
    ],
)
def test_a_variant_keeps_the_floor_of_features_by_factor(features: int, factor: int, columns: int) -> None:
    assert columns_of(features, factor) == columns


def test_variants_are_named_by_their_factor() -> None:
    assert [variant_name(factor) for factor in (1, 16)] == ["x1", "x16"]


def test_another_storage_than_float32_is_part_of_the_name() -> None:
    assert [variant_name(4, storage) for storage in Storage] == ["x4", "x4-float16", "x4-bfloat16", "x4-int8"]
    assert projected_name(Storage.FLOAT32) == "projected"
    assert projected_name(Storage.INT8) == "projected-int8"


def test_factors_up_to_the_number_of_features_pass() -> None:
    check_factors([1, 64], features=64)


def test_a_factor_larger_than_the_number_of_features_names_its_place() -> None:
    with pytest.raises(InputError) as refused:
        check_factors([1, 2, 65], features=64)
    assert str(refused.value) == (
        "spec.variants.pruning.factors[2]: 65 is larger than the graph's 64 features, so no column would be left; "
        "use factors from 1 to 64"
    )
