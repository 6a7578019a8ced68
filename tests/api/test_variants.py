from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gnnserve_api.errors import InputError
from gnnserve_api.generated.capabilities import SETUPS, Setup, merged
from gnnserve_api.spec.model import Batches, Model, Scope
from gnnserve_api.spec.service import GNNServiceSpec
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


def spec_of(variants: dict[str, Any], model: dict[str, Any] | None = None) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {"graph": {"source": {"builtin": "Digits"}}, "model": model or {}, "variants": variants}
    )


def test_smaller_fanouts_are_part_of_the_name_of_every_variant() -> None:
    spec = spec_of({"pruning": {"factors": [4, 1]}, "storage": ["float32", "int8"], "fanouts": [[15, 5]]})

    assert spec.variants.listed_names() == (
        "x1", "x1-int8", "x1-f15x5", "x1-int8-f15x5", "x4", "x4-int8", "x4-f15x5", "x4-int8-f15x5",
    )  # fmt: skip
    assert spec.variants.optional_names() == (
        "projected", "projected-int8", "projected-f15x5", "projected-int8-f15x5",
    )  # fmt: skip


def test_cascades_are_named_by_their_stages_and_the_share_that_is_passed_on() -> None:
    cascades = [{"first": "x8", "then": "x1", "passOnPercents": [10, 3]}, {"first": "x4", "then": "x1"}]
    assert spec_of({"cascades": cascades}).variants.listed_names() == (
        "x1", "x2", "x4", "x8", "x4-then-x1-p2", "x4-then-x1-p5", "x4-then-x1-p10", "x8-then-x1-p3", "x8-then-x1-p10",
    )  # fmt: skip


def test_given_variants_are_named_by_their_place_or_by_the_user() -> None:
    given = {"checkpoint": {"uri": "file:///a.safetensors"}, "columns": [0]}
    spec = spec_of(
        {
            "pruning": {"factors": [2]},
            "storage": ["int8", "float32"],
            "given": [given, {**given, "name": "small"}, given],
            "fanouts": [[15, 5]],
        }
    )
    assert [name for name in spec.variants.listed_names() if "f15x5" not in name] == [
        "x2", "x2-int8", "given-1", "given-1-int8", "small", "small-int8", "given-3", "given-3-int8",
    ]  # fmt: skip
    assert "small-int8-f15x5" in spec.variants.listed_names()


@pytest.mark.parametrize("name", ["x2", "x3-a", "projected", "given-1", "given-2-b", "a-int8", "a-f15x5", "a-f5"])
def test_a_given_variant_cannot_have_a_name_that_another_may_get(name: str) -> None:
    given = {"checkpoint": {"uri": "file:///a.safetensors"}, "columns": [0], "name": name}
    with pytest.raises(ValidationError, match="must not be one that variants get by themselves"):
        spec_of({"given": [given]})


def test_the_order_of_fanouts_changes_no_recipe_and_their_number_does() -> None:
    none, one = spec_of({}), spec_of({"fanouts": [[15, 5]]})
    assert none.recipe() == spec_of({"fanouts": []}).recipe() != one.recipe()
    two, turned = spec_of({"fanouts": [[15, 5], [10, 5]]}), spec_of({"fanouts": [[10, 5], [15, 5]]})
    assert one.recipe() != two.recipe() == turned.recipe()


@pytest.mark.parametrize(
    ("fanouts", "model", "message"),
    [
        pytest.param([[15]], {}, "as many numbers", id="too few layers"),
        pytest.param([[15, 5, 5]], {}, "as many numbers", id="too many layers"),
        pytest.param([[26, 5]], {}, "none above it", id="more than the model draws"),
        pytest.param([[25, 10]], {}, "one below it", id="as many as the model draws"),
        pytest.param([[15, 5], [15, 5]], {}, "must not repeat", id="the same twice"),
        pytest.param([[0, 5]], {}, "greater than or equal to 1", id="no neighbours"),
        pytest.param([[i, 5] for i in range(1, 9)], {}, "at most 36", id="too many variants"),
    ],
)
def test_fanouts_that_are_not_smaller_are_refused(fanouts: Any, model: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec_of({"fanouts": fanouts}, model)


def test_any_fanouts_are_smaller_than_full_neighbourhoods() -> None:
    assert spec_of({"fanouts": [[200, 5]]}, {"fanouts": [-1, -1]}).variants.fanouts == ((200, 5),)


@pytest.mark.parametrize(
    "field", [{"batches": each} for each in Batches] + [{"scope": each} for each in Scope], ids=str
)
@pytest.mark.parametrize("setup", [one for one in SETUPS if "LightGCN" not in one.name], ids=lambda one: one.name)
def test_a_one_row_network_is_trained_beside_any_model(setup: Setup, field: dict[str, Any]) -> None:
    model = merged({"model": {"training": field}}, setup.spec)["model"]
    for hops in range(5):
        assert Model.model_validate(model).one_row(hops).hops == hops
