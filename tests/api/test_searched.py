"""What a search makes, as lists that a user could have written; and what a manifest may say beside it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gnnserve_api.spec.made_variants import search_space
from gnnserve_api.spec.searched import smaller_fanouts
from gnnserve_api.spec.service import GNNServiceSpec


def spec_of(
    model: dict[str, Any] | None = None, routing: dict[str, Any] | None = None, **variants: Any
) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": model or {},
            "variants": {"search": "Auto", **variants},
            "routing": routing or {},
        }
    )


@pytest.mark.parametrize(
    ("fanouts", "fewer"),
    [
        pytest.param((25, 10), ((12, 5), (6, 2)), id="a half and a quarter"),
        pytest.param((2, 1), ((1, 1),), id="each is at least 1, and comes once"),
        pytest.param((1, 1), (), id="no fewer than 1"),
        pytest.param((-1, -1), (), id="not where all neighbours are read"),
        pytest.param((0,), (), id="not where none is"),
    ],
)
def test_fewer_neighbours_are_a_half_and_a_quarter(
    fanouts: tuple[int, ...], fewer: tuple[tuple[int, ...], ...]
) -> None:
    assert smaller_fanouts(fanouts) == fewer


def test_without_training_the_reference_and_all_that_is_stored_of_it_are_made() -> None:
    spec = spec_of({"fanouts": [4, 2]})
    reference, derived = (set(each.names) for each in search_space(spec).derived_rounds)
    assert reference == {"x1"}
    assert {"projected", "projected-int8-f2x1", "stored1-float16-f1", "stored2-bfloat16"} <= derived
    assert not any(name.startswith("x") for name in derived)


def test_nothing_is_stored_of_a_model_that_reads_one_row() -> None:
    spec = spec_of({"architecture": "SGC", "fanouts": [0]})
    names = [name for each in search_space(spec).derived_rounds for name in each.names]
    assert names == ["x1", "projected", "projected-float16", "projected-bfloat16", "projected-int8"]


def test_each_network_that_must_be_trained_has_a_round_of_its_own() -> None:
    space = search_space(spec_of(), (1, 2, 16))
    rounds = space.trained_rounds
    assert [each.trains for each in rounds] == ["x2", "x16", "mlp0", "mlp1", "mlp2"]
    assert all(each.names[0] == each.trains for each in rounds)
    assert [{*each.names} for each in rounds[:1]] == [{"x2", "x2-float16", "x2-bfloat16", "x2-int8"}]
    together = space.merged(rounds[1:3])
    assert together.pruning.factors == (16,)
    assert together.one_row_names() == ("mlp0",)


def test_a_search_may_leave_out_whatever_routing_names() -> None:
    spec = spec_of(routing={"mode": "Static", "variant": "stored1-int8"})
    assert spec.impossible_variants() == ()
    assert spec.uncertain_variants(spec.routing.named_variants) == ("stored1-int8",)
    assert spec_of(routing={"mode": "Static", "variant": "x3"}).impossible_variants() == ("x3",)


def test_a_search_of_layers_may_keep_rows_of_features_where_products_are_no_narrower() -> None:
    layers = {"layers": [{"conv": "GCN", "width": 8}, {"conv": "GCN"}], "fanouts": [8, 8]}
    spec = spec_of(routing={"mode": "Static", "variant": "x1-int8-f4x4"}, model=layers)
    assert {"x1-int8-f4x4", "projected-int8-f4x4"} <= {*spec.possible_variants()}
    assert spec.impossible_variants() == ()
    assert len({*spec.possible_variants()}) == len(spec.possible_variants())


def test_the_recipe_depends_on_what_a_search_reads_alone() -> None:
    assert spec_of().recipe() == spec_of(pruning={"factors": [1, 3]}, storage=["int8"]).recipe()
    assert spec_of().recipe() != spec_of(budget={"variants": 3}).recipe()
    assert spec_of().recipe() != spec_of(pruning={"method": "Lasso"}).recipe()
    listed = spec_of(search="Disabled")
    assert listed.recipe() == spec_of(search="Disabled", budget={"variants": 3}).recipe() != spec_of().recipe()


@pytest.mark.parametrize(
    "listed",
    [
        {"stored": [1]},
        {"fanouts": [[4, 2]]},
        {"oneRow": [{"hops": 1}]},
        {"channels": [{"factor": 2}]},
        {"projection": "Disabled"},
    ],
    ids=lambda listed: next(iter(listed)),
)
def test_lists_beside_a_search_are_refused_where_they_can_be_told_from_defaults(listed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="must be left out with search Auto"):
        spec_of(**listed)
    assert not spec_of(**listed, search="Disabled").variants.is_searched


@pytest.mark.parametrize("budget", [{"seconds": 0}, {"variants": 0}, {"variants": 17}, {"epochs": 1}], ids=str)
def test_a_budget_has_bounds(budget: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        spec_of(budget=budget)
