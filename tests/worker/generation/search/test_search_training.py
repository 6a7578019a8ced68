"""The candidates of a search, what they are predicted to take, and the networks that are worth training."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.graphs.graphs import random_graph
from tests.support.profiles import latency

from gnnserve_api.files.profile import Profile, VariantProfile
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.families.registry import with_searched_factors
from gnnserve_worker.generation.search.candidates import Candidate, Shapes, all_candidates
from gnnserve_worker.generation.search.latency_model import (
    Degrees,
    LatencyModel,
    MeasuredLatency,
    RelationDegrees,
    Work,
    work_of,
)
from gnnserve_worker.generation.search.training import promises
from gnnserve_worker.repository.revision_files import stored_bytes

NODES, FEATURES, CLASSES = 60, 40, 3


def candidates(architecture: str = "GraphSAGE", features: int = FEATURES) -> dict[str, Candidate]:
    fanouts = [0] if architecture == "SGC" else [8, 4]
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"architecture": architecture, "fanouts": fanouts, "hidden": 16},
            "variants": {"search": "Auto"},
        }
    )
    shapes = Shapes(with_searched_factors(spec, features), random_graph(NODES, 0), features, CLASSES)
    return {candidate.manifest.name: candidate for candidate in all_candidates(shapes)}


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN", "GCN", "GAT", "SGC"])
def test_candidates_have_the_names_that_a_manifest_says_are_possible(architecture: str) -> None:
    fanouts = [0] if architecture == "SGC" else [8, 4]
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"architecture": architecture, "fanouts": fanouts},
            "variants": {"search": "Auto"},
        }
    )
    assert [*candidates(architecture)] and {*candidates(architecture)} == {*spec.possible_variants()}


def test_a_candidate_has_the_shape_of_what_generation_would_make() -> None:
    found = candidates()
    assert found["x1"].manifest.columns == FEATURES
    assert found["x4-int8"].manifest.columns == FEATURES // 4
    assert found["x4-int8"].trains == "x4"
    assert found["projected"].table_bytes == 2 * stored_bytes(NODES, 16, Storage.FLOAT32)  # neighbours', and its own
    assert found["projected"].trains == ""
    assert found["stored1-int8-f4"].manifest.fanouts == (4,)
    assert found["stored1-int8-f4"].manifest.columns == CLASSES
    assert found["mlp2"].trains == "mlp2"
    assert found["mlp2"].manifest.columns == 16
    assert "x16" not in candidates(features=10)


def test_less_is_counted_for_what_reads_and_computes_less() -> None:
    found, degrees = candidates(), Degrees.of(random_graph(NODES, 0))

    def work(name: str) -> Work:
        one = found[name]
        return work_of(one.manifest, one.storage, is_product=one.is_product, degrees=degrees)

    assert work("x1").rows == work("projected").rows > work("projected-f4x2").rows > work("stored1").rows
    assert work("x1").bytes > work("x4").bytes > work("x4-int8").bytes
    assert work("x1").operations > work("x4").operations > work("projected").operations > work("stored1").operations
    assert work("mlp2").rows == work("stored2").rows == 1


def test_draws_are_limited_by_degrees() -> None:
    degrees = Degrees((RelationDegrees(0, 0, np.array([0, 2, 4]), np.array([4, 4, 2])),))
    assert degrees.drawn((3, 1)) == (pytest.approx(5 / 3), 1.0)
    assert degrees.drawn((-1, -1)) == (2.0, pytest.approx(10 / 3))


COSTS = {1: (0.005, 1e-5, 1e-9, 1e-8), 1024: (0.02, 8e-3, 2e-6, 3e-7)}
WORKS = [
    Work(rows, rows * width, rows * width * depth)
    for rows in (1.0, 20.0, 300.0)
    for width in (16.0, 128.0, 2048.0)
    for depth in (4.0, 32.0)
]


def taken_ms(work: Work, seeds: int) -> float:
    return sum(cost * term for cost, term in zip(COSTS[seeds], work.terms(), strict=True))


def test_costs_are_found_again_from_what_they_make() -> None:
    model = LatencyModel.fit(
        [MeasuredLatency(work, {seeds: taken_ms(work, seeds) for seeds in COSTS}) for work in WORKS]
    )
    unseen = Work(70, 7_000, 300_000)
    for seeds, found_ms in model.p50_ms(unseen).items():
        assert found_ms == pytest.approx(taken_ms(unseen, seeds), rel=1e-3)
    assert model.error < 1e-3


def test_the_model_says_how_far_it_is_off() -> None:
    draw = np.random.default_rng(0)
    noisy = [
        MeasuredLatency(work, {seeds: taken_ms(work, seeds) * float(np.exp(draw.normal(0, 0.2))) for seeds in COSTS})
        for work in WORKS
    ]
    model = LatencyModel.fit(noisy)
    assert 0.05 < model.error < 0.4
    assert all(cost >= 0 for costs in model.costs_ms.values() for cost in costs)


def test_a_model_of_one_measurement_is_refused() -> None:
    with pytest.raises(ValueError, match="two measurements"):
        LatencyModel.fit([MeasuredLatency(WORKS[0], {1: 1.0})])


def measured(name: str, accuracy: float, *p50s_ms: float, family: str = "pruned") -> VariantProfile:
    return VariantProfile(
        name=name, factor=1, table="t", columns=1, storage=Storage.FLOAT32, projected=False, compute="float32",
        validation_accuracy=accuracy, test_accuracy=None, test_latency=None, size_bytes=1, memory_bytes=1,
        latency=tuple(latency(10**i, p50_ms) for i, p50_ms in enumerate(p50s_ms)), family=family,
    )  # fmt: skip


def promised(
    predicted_ms: dict[str, tuple[float, float]], *known: VariantProfile, validation_nodes: int = 10**8
) -> list[str]:
    """The networks to train, by name; what they take is given for 1 and 10 nodes."""
    found = candidates()
    each = {name: [found[name]] for name in predicted_ms}
    by_seeds = {name: dict(zip((1, 10), times, strict=True)) for name, times in predicted_ms.items()}
    profile = Profile(
        metric="accuracy", machine="m", threads=1, validation_nodes=validation_nodes, test_nodes=0, variants=known
    )
    return [promise.trains for promise in promises(each, by_seeds, profile, least_accuracy=0.5)]


def test_networks_that_would_be_fastest_are_trained_first() -> None:
    known = measured("x1", 0.9, 4, 40), measured("projected", 0.91, 2, 20, family="projected")
    assert promised({"x2": (3, 30), "x4": (1.5, 15), "x8": (1, 10)}, *known) == ["x8", "x4"]


def test_a_network_is_not_trained_for_requests_that_it_cannot_answer() -> None:
    known = (
        measured("x1", 0.9, 4, 40),
        measured("stored1", 0.9, 1, 10, family="stored"),
        measured("stored2", 0.9, 0.5, 5, family="stored-deeper"),
    )
    # mlp2 answers requests about the stored graph alone, where stored2 is faster; mlp0 answers all.
    assert promised({"mlp2": (0.6, 6), "mlp0": (0.6, 6)}, *known) == ["mlp0"]


def test_what_no_measured_variant_answers_is_trained_however_slow_it_is() -> None:
    known = measured("x1", 0.9, 4, 40, family="propagated")
    assert promised({"mlp1": (5, 50), "mlp0": (5, 50)}, known) == ["mlp0"]


def test_the_hope_for_fewer_columns_is_the_accuracy_of_all_and_for_others_more_than_the_best() -> None:
    known = measured("x1", 0.9, 4, 40), measured("stored2", 0.95, 1, 10, family="stored-deeper")
    assert promised({"mlp2": (1, 10)}, *known) == []
    assert promised({"mlp2": (1, 10)}, *known, validation_nodes=100) == ["mlp2"]  # 2 points of a standard error
    assert promised({"x4": (5, 50)}, *known) == []
    assert promised({"x4": (4, 40)}, *known) == []
