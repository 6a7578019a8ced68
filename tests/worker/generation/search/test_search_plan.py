"""A plan says what variants would take, and what generation would, and trains nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.epochs import expected_epochs
from gnnserve_worker.generation.search import plan as planning
from gnnserve_worker.generation.search.made_up import measure_made_up
from gnnserve_worker.generation.search.plan import SearchPlan, plan
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.made_up import made_up_graph


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "measure_made_up", partial(measure_made_up, size_s=0.02))


@pytest.fixture(scope="module")
def data() -> GraphData:
    return made_up_graph(300, 6, 40, 3)


def planned(data: GraphData, model: dict[str, Any] | None = None, **variants: Any) -> SearchPlan:
    return plan(
        GNNServiceSpec.model_validate(
            {
                "graph": {"source": {"builtin": "Digits"}},
                "model": {"hidden": 16, "fanouts": [4, 3], **(model or {})},
                "variants": variants,
            }
        ),
        data,
    )


def test_a_search_is_planned_with_everything_that_it_looks_at(data: GraphData) -> None:
    found = planned(data, search="Auto", budget={"seconds": 1})
    by_name = {one.name: one for one in found.variants}
    assert {"x1", "x16-int8", "projected-f2x1", "stored1-int8", "mlp2"} <= by_name.keys()
    assert by_name["x16-int8"].trains == "x16"
    assert by_name["projected"].trains == ""
    assert by_name["x1"].rows_per_seed == pytest.approx(1 + 4 + 4 + 12)
    assert all(set(one.p50_ms) == {1, 32, 1024} and min(one.p50_ms.values()) > 0 for one in found.variants)
    times = [one.p50_ms[1024] for one in found.variants]
    assert times == sorted(times)
    assert by_name["stored2"].p50_ms[1024] < by_name["x1"].p50_ms[1024]
    assert found.other_networks_s <= 1
    assert found.total_s == found.first_network_s + found.other_networks_s + found.measuring_s


def test_listed_variants_are_planned_as_they_are_listed(data: GraphData) -> None:
    found = planned(data, pruning={"factors": [1, 4]}, storage=["int8"], stored=[1], fanouts=[[2, 2]])
    assert {one.name for one in found.variants} == {
        "x1-int8", "x4-int8", "projected-int8", "stored1-int8", "x1-int8-f2x2", "x4-int8-f2x2",
        "projected-int8-f2x2", "stored1-int8-f2",
    }  # fmt: skip
    assert {one.trains for one in found.variants} == {"", "x4"}


def test_a_cascade_takes_its_first_stage_and_the_other_for_what_is_passed_on(data: GraphData) -> None:
    cascades = [{"first": "mlp2-int8", "then": "x1-int8", "passOnPercents": [50]}]
    found = planned(data, pruning={"factors": [1]}, storage=["int8"], oneRow=[{"hops": 2}], cascades=cascades)
    by_name = {one.name: one for one in found.variants}
    cascade, first, then = (by_name[name] for name in ("mlp2-int8-then-x1-int8-p50", "mlp2-int8", "x1-int8"))
    assert cascade.family == "stored-graph-cascade"
    assert cascade.rows_per_seed == pytest.approx(1 + then.rows_per_seed / 2)
    assert cascade.p50_ms[1] == pytest.approx(first.p50_ms[1] + then.p50_ms[1] / 2)
    assert first.p50_ms[1024] < cascade.p50_ms[1024] < first.p50_ms[1024] + then.p50_ms[1024]
    assert cascade.table_bytes == first.table_bytes + then.table_bytes
    assert cascade.table == f"{first.table}, {then.table}"
    assert cascade.trains == ""


def test_a_plan_refuses_thresholds_of_classes_that_exclude_each_other(data: GraphData) -> None:
    with pytest.raises(
        InputError, match=r"^spec\.variants\.thresholds: is PerClass, and each node .* one of 3 classes"
    ):
        planned(data, thresholds="PerClass")


def test_a_plan_refuses_cascades_of_what_is_not_made(data: GraphData) -> None:
    with pytest.raises(InputError, match="x3 is none of the variants that are made"):
        planned(data, cascades=[{"first": "x3", "then": "x1"}])


def test_networks_with_fewer_channels_are_planned_as_networks_of_their_own(data: GraphData) -> None:
    channels = [{"factor": 2, "columnFactor": 4}, {"factor": 4, "table": "Projected"}, {"factor": 4, "table": "Stored"}]
    found = planned(data, pruning={"factors": [1, 4]}, channels=channels, fanouts=[[2, 2]])
    trains = {one.name: one.trains for one in found.variants}
    assert trains["channels2-x4"] == trains["channels2-x4-f2x2"] == "channels2-x4"
    assert trains["channels4-projected"] == trains["channels4-stored1-f2"] == "channels4"


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["GIN", "GAT", "SIGN"])
def test_every_architecture_can_be_planned(data: GraphData, architecture: str) -> None:
    fanouts = {"fanouts": [0, 0]} if architecture == "SIGN" else {}
    found = planned(data, {"architecture": architecture, **fanouts}, search="Auto")
    assert {"x1", "projected"} <= {one.name for one in found.variants}


def test_given_weights_take_no_training(data: GraphData) -> None:
    found = planned(data, {"checkpoint": {"uri": "file:///a.safetensors"}}, pruning={"factors": [1, 2]})
    assert found.first_network_s == found.other_networks_s == 0
    assert found.measuring_s > 0


def test_more_training_nodes_and_epochs_take_longer(data: GraphData) -> None:
    short = planned(data, {"training": {"epochs": 10}})
    long = planned(data, {"training": {"epochs": 1000}})
    assert long.first_network_s > short.first_network_s
    assert np.isfinite(long.total_s)


def test_expected_epochs_lie_within_the_schedule() -> None:
    assert expected_epochs(30, 7) == 30
    assert expected_epochs("Auto", 1) == 250
    assert expected_epochs("Auto", 1000) == 10
