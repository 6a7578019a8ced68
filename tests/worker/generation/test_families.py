"""What planners would make of a spec, without training anything or writing a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.graphs.graphs import dense_features, network_manifest, random_graph, random_tensors

from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.families.family import FamilyPlan, Ingredients, ListedColumns, Outline, PlannedVariant
from gnnserve_worker.generation.families.listed import (
    ListedChannelsPlanner,
    ProjectedLayersPlanner,
    StoredLayersPlanner,
)
from gnnserve_worker.generation.families.registry import PLANNERS, plan_families
from gnnserve_worker.generation.given_variants import GivenVariant
from gnnserve_worker.generation.lessons import LearntNetworks, WeightSources, networks_of, take_lessons
from gnnserve_worker.generation.ranking import Ranking
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.repository.revision_files import stored_bytes

NODES, WIDTH = 5, 6
RANKED = np.array([5, 0, 4, 1, 3, 2])
NETWORK = network_manifest("GraphSAGE", (4, 3))
GIVEN = {"checkpoint": {"uri": "file:///a.safetensors"}, "columns": [0]}
MASTER = random_tensors(NETWORK, WIDTH, seed=0)


def _narrow(factor: int) -> NetworkManifest:
    return msgspec.structs.replace(NETWORK, hidden=NETWORK.hidden // factor)


class FakeModels:
    """Trains nothing, and notes what it is asked for."""

    runs = ()
    decoder: Mapping[str, np.ndarray] = {}

    def __init__(self) -> None:
        self.pruned_to: list[tuple[str, list[int]]] = []
        self.narrowed_of: list[tuple[str, int, np.ndarray | None]] = []

    def master(self, name: str) -> Tensors:
        raise AssertionError(name)

    def another_master(self, seed: int, name: str) -> Tensors:
        raise AssertionError(name)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        self.pruned_to.append((name, columns.tolist()))
        return random_tensors(NETWORK, len(columns), seed=1)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        self.narrowed_of.append((name, wide["convs.0.lin_l.weight"].shape[1], columns))
        return random_tensors(_narrow(factor), wide["convs.0.lin_l.weight"].shape[1], seed=2)


def spec_of(**variants: Any) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {"graph": {"source": {"builtin": "Digits"}}, "model": {"hidden": 8, "fanouts": [4, 3]}, "variants": variants}
    )


def plans_of(models: FakeModels, loaded: Sequence[GivenVariant] = (), **variants: Any) -> list[FamilyPlan]:
    features = dense_features(NODES, WIDTH, seed=0)
    graph = random_graph(NODES, 0)
    spec, ranking = spec_of(**variants), Ranking(RANKED, {})
    learnt = take_lessons(networks_of(spec), WeightSources(models), LearntNetworks(spec, ranking, MASTER))
    made_from = Ingredients(spec, NETWORK, graph, features, ranking, MASTER, learnt.networks, loaded)
    return plan_families(made_from)


def plan_with(plans: Sequence[FamilyPlan], family: str) -> FamilyPlan:
    """The plan that has variants of the family; an empty one where none has."""
    return next((plan for plan in plans if family in {v.manifest.family for v in plan.variants}), FamilyPlan())


def variants_of(plans: Sequence[FamilyPlan], family: str) -> list[PlannedVariant]:
    return [variant for plan in plans for variant in plan.variants if variant.manifest.family == family]


def given_variant(name: str, columns: list[int]) -> GivenVariant:
    return GivenVariant(name, np.array(columns), random_tensors(NETWORK, len(columns), seed=2))


def test_pruned_variants_read_prefixes_of_one_table_for_each_storage() -> None:
    models = FakeModels()
    plan = plan_with(plans_of(models, pruning={"factors": [3, 1]}, storage=["int8", "float32"]), "pruned")

    assert [(table.name, table.columns) for table in plan.tables] == [("features-float32", 6), ("features-int8", 6)]
    assert [(v.manifest.name, v.manifest.table, v.manifest.columns, v.factor) for v in plan.variants] == [
        ("x1", "features-float32", 6, 1),
        ("x1-int8", "features-int8", 6, 1),
        ("x3", "features-float32", 2, 3),
        ("x3-int8", "features-int8", 2, 3),
    ]
    assert {(v.manifest.fanouts, v.manifest.network) for v in plan.variants} == {((4, 3), NETWORK)}
    assert models.pruned_to == [("x3", [5, 0])]
    rows = np.concatenate(list(plan.tables[0].rows()))
    np.testing.assert_array_equal(rows, dense_features(NODES, WIDTH, seed=0)[:, RANKED])


def test_projected_variants_store_both_products_of_a_graphsage() -> None:
    plan = plan_with(plans_of(FakeModels(), pruning={"factors": [1]}), "projected")

    ((table,), (variant,)) = plan.tables, plan.variants
    assert (variant.manifest.name, variant.manifest.columns, variant.factor) == ("projected", 8, 1)
    assert variant.tensors is not None
    assert not {"convs.0.lin_l.weight", "convs.0.lin_r.weight"} & variant.tensors.keys()
    assert table.own is not None
    for blocks, key in ((table.rows, "convs.0.lin_l.weight"), (table.own, "convs.0.lin_r.weight")):
        expected = dense_features(NODES, WIDTH, seed=0) @ MASTER[key].T
        np.testing.assert_allclose(np.concatenate(list(blocks())), expected, rtol=1e-5, atol=1e-6)


def test_what_is_disabled_is_not_planned() -> None:
    plans = plans_of(FakeModels(), pruning={"factors": [1]}, projection="Disabled")
    assert [v.manifest.name for plan in plans for v in plan.variants] == ["x1"]
    assert [table.name for plan in plans for table in plan.tables] == ["features-float32"]


def test_smaller_fanouts_are_other_hops_over_the_same_tables_and_weights() -> None:
    models = FakeModels()
    plans = plans_of(models, pruning={"factors": [1, 2]}, fanouts=[[2, 1], [3, 2]])
    bases = {v.manifest.name: v for family in ("pruned", "projected") for v in variants_of(plans, family)}

    found = [*variants_of(plans, "fanouts"), *variants_of(plans, "projected-fanouts")]

    assert [v.manifest.name for v in found] == [
        "x1-f3x2", "x1-f2x1", "x2-f3x2", "x2-f2x1", "projected-f3x2", "projected-f2x1",
    ]  # fmt: skip
    for variant in found:
        base = bases[variant.manifest.name.rpartition("-")[0]]
        hops = tuple(int(drawn) for drawn in variant.manifest.name.rpartition("-f")[2].split("x"))
        assert variant.tensors is None
        assert variant.factor == base.factor
        expected = msgspec.structs.replace(
            base.manifest, name=variant.manifest.name, family=variant.manifest.family, fanouts=hops
        )
        assert variant.manifest == expected
    assert [name for name, _ in models.pruned_to] == ["x2"]


def test_a_cascade_can_answer_what_both_of_its_stages_can() -> None:
    cascades = [
        {"first": "stored1", "then": "projected", "passOnPercents": [9, 3]},
        {"first": "stored2", "then": "x1", "passOnPercents": [1]},
    ]
    plans = plans_of(FakeModels(), pruning={"factors": [1]}, stored=[1, 2], cascades=cascades)
    (planned,) = [plan for plan in plans if plan.cascades]
    assert [(one.name, one.family) for one in planned.cascades] == [
        ("stored1-then-projected-p3", "cascade"),
        ("stored1-then-projected-p9", "cascade"),
        ("stored2-then-x1-p1", "stored-graph-cascade"),
    ]
    assert not planned.variants
    assert not planned.tables


def test_given_variants_read_the_ranked_table_where_their_columns_are_its_first() -> None:
    given = [given_variant("given-1", [4, 5, 0]), given_variant("given-2", [0, 4])]
    plan = plan_with(plans_of(FakeModels(), given, pruning={"factors": [2]}, given=[GIVEN, GIVEN]), "given")

    assert [(v.manifest.name, v.manifest.table, v.manifest.columns, v.factor) for v in plan.variants] == [
        ("given-1", "features-float32", 3, 2),
        ("given-2", "features-given-2-float32", 2, 3),
    ]
    assert [(table.name, table.columns, table.source_columns) for table in plan.tables] == [
        ("features-given-2-float32", 2, (0, 4))
    ]
    tensors = plan.variants[0].tensors
    assert tensors is not None
    original = given[0].tensors["convs.0.lin_l.weight"]
    np.testing.assert_array_equal(tensors["convs.0.lin_l.weight"], original[:, [1, 2, 0]], err_msg="ranked 5, 0, 4")


def test_given_variants_share_a_table_where_their_columns_are_nested() -> None:
    """Of columns 0 1 2 3 4, 3 1 and 1 2 3 the latter two are prefixes of one order; 0 5 is in none of them."""
    given = [given_variant("a", [3, 1]), given_variant("b", [0, 1, 2, 3, 4]), given_variant("c", [0, 5])]
    given.append(given_variant("d", [1, 2, 3]))
    plans = plans_of(
        FakeModels(), given, pruning={"factors": []}, projection="Disabled", given=[GIVEN] * 4, storage=["int8"]
    )
    plan = plan_with(plans, "given")

    assert {table.name: table.source_columns for table in plan.tables} == {
        "features-b-int8": (3, 1, 2, 0, 4),
        "features-c-int8": (0, 5),
    }
    read = {v.manifest.name: (v.manifest.table, v.manifest.columns) for v in plan.variants}
    assert read == {
        "b-int8": ("features-b-int8", 5),
        "d-int8": ("features-b-int8", 3),
        "a-int8": ("features-b-int8", 2),
        "c-int8": ("features-c-int8", 2),
    }
    rows = np.concatenate(list(plan.tables[0].rows()))
    np.testing.assert_array_equal(rows, dense_features(NODES, WIDTH, seed=0)[:, [3, 1, 2, 0, 4]])


def test_given_variants_are_served_with_smaller_fanouts_too() -> None:
    given = [given_variant("given-1", [1, 2])]
    plans = plans_of(FakeModels(), given, pruning={"factors": [1]}, given=[GIVEN], fanouts=[[2, 1]])

    assert [v.manifest.name for v in variants_of(plans, "given-fanouts")] == ["given-1-f2x1"]


CHANNELS = [
    {"factor": 2, "table": "Stored"}, {"factor": 2, "table": "Projected"}, {"factor": 4},
    {"factor": 2, "columnFactor": 3},
]  # fmt: skip


def test_networks_with_fewer_channels_are_served_over_tables_of_their_own_and_of_pruned_ones() -> None:
    models = FakeModels()
    plans = plans_of(models, pruning={"factors": [1, 3]}, channels=CHANNELS, fanouts=[[2, 1]], projection="Disabled")

    found = [v for plan in plans for v in plan.variants if v.manifest.family.startswith("channels")]
    assert {(v.manifest.name, v.manifest.table, v.manifest.columns, v.factor) for v in found} == {
        ("channels4", "features-float32", 6, 1),
        ("channels2-x3", "features-float32", 2, 3),
        ("channels2-projected", "channels2-projected-float32", 4, 1),
        ("channels2-stored1", "channels2-stored1-float32", 3, 1),
        ("channels4-f2x1", "features-float32", 6, 1),
        ("channels2-x3-f2x1", "features-float32", 2, 3),
        ("channels2-projected-f2x1", "channels2-projected-float32", 4, 1),
        ("channels2-stored1-f2", "channels2-stored1-float32", 3, 1),
    }
    assert {v.manifest.network.hidden for v in found if v.manifest.name.startswith("channels2")} == {4}
    assert [name for name, *_ in models.narrowed_of] == ["channels4", "channels2-x3", "channels2"]
    (_, width, columns) = models.narrowed_of[1]
    assert (width, [] if columns is None else columns.tolist()) == (2, [5, 0])
    tables = {table.name: table for plan in plans for table in plan.tables}
    made_by = tables["channels2-projected-float32"].made_by  # type: ignore[union-attr]
    assert made_by is not None
    assert made_by.prefix == "channels2."
    assert {"channels2-aggregated1", "channels2-stored1-float32"} < tables.keys()


def test_weights_over_all_columns_are_brought_into_rank_order() -> None:
    plans = plans_of(FakeModels(), pruning={"factors": [1]}, channels=[{"factor": 2}])
    (variant,) = variants_of(plans, "channels")
    made = random_tensors(_narrow(2), WIDTH, seed=2)["convs.0.lin_l.weight"]
    assert variant.tensors is not None
    np.testing.assert_array_equal(variant.tensors["convs.0.lin_l.weight"], made[:, RANKED])


@pytest.mark.parametrize("storage", list(Storage))
def test_tables_of_listed_layers_are_written_in_float32_up_to_the_last_one(storage: Storage) -> None:
    outline = Outline(spec_of(storage=[storage], stored=[1, 2]), NETWORK, NODES, WIDTH, stored_columns=(5, 8, 16, 4))
    written = {(columns, Storage.FLOAT32) for columns in (5, 8, 16)} | {(8, storage), (16, storage)}
    found = StoredLayersPlanner().tables_bytes(outline)
    assert found == sum(stored_bytes(NODES, columns, each) for columns, each in written)
    of_nodes_alone = replace(outline, product_columns=5)
    assert ProjectedLayersPlanner().tables_bytes(of_nodes_alone) == stored_bytes(NODES, 5, storage)


@pytest.mark.parametrize("storage", list(Storage))
def test_tables_of_listed_layers_with_fewer_channels_are_as_wide_as_their_own_rows(storage: Storage) -> None:
    channels = [{"factor": 4}, *({"factor": 2, "table": table} for table in ("Projected", "Stored"))]
    spec = spec_of(storage=[storage], channels=channels)
    narrow = {"channels4": ListedColumns(3, (5, 2, 4)), "channels2": ListedColumns(6, (5, 4, 4))}
    outline = Outline(spec, NETWORK, NODES, WIDTH, narrow_columns=narrow)
    written = {(columns, Storage.FLOAT32) for columns in (5, 4)} | {(4, storage)}
    stored = sum(stored_bytes(NODES, columns, each) for columns, each in written)
    assert ListedChannelsPlanner().tables_bytes(outline) == stored_bytes(NODES, 6, storage) + stored


@pytest.mark.parametrize("storage", list(Storage))
def test_planners_say_what_their_tables_take(storage: Storage) -> None:
    one_row = [{"hops": 1}, {"hops": 0}, {"hops": 2}]
    spec = spec_of(pruning={"factors": [1, 3]}, storage=[storage], oneRow=one_row, stored=[1, 2], channels=CHANNELS)
    outline = Outline(spec, NETWORK, NODES, WIDTH, [given_variant("a", [4, 0, 1, 2]), given_variant("b", [1, 4])])
    float32_8, float32_3 = (stored_bytes(NODES, columns, Storage.FLOAT32) for columns in (8, 3))
    found = {planner.__name__: planner().tables_bytes(outline) for planner in PLANNERS}

    assert found == {
        "PrunedPlanner": stored_bytes(NODES, 6, storage),
        "ProjectedPlanner": 2 * stored_bytes(NODES, 8, storage),
        # Products and what is aggregated of them, in float32; then products as wide as the classes, in float32 too, of
        # which the second layer is made; what that aggregates, and the scores.
        "StoredPlanner": 3 * float32_8
        + 2 * sum(stored_bytes(NODES, 3, each) for each in {storage, Storage.FLOAT32})
        + float32_3
        + stored_bytes(NODES, 3, storage),
        "GivenPlanner": stored_bytes(NODES, 4, storage),
        "ProgramPlanner": 0,
        "ProjectedLayersPlanner": 0,
        "StoredLayersPlanner": 0,
        "ChannelsPlanner": 2 * stored_bytes(NODES, 4, storage)
        + 3 * stored_bytes(NODES, 4, Storage.FLOAT32)
        + 2 * stored_bytes(NODES, 3, storage),
        "ListedChannelsPlanner": 0,
        "OneRowPlanner": 3 * stored_bytes(NODES, 8, storage),
        "CascadePlanner": 0,
    }
