"""The performance model: what it counts, and what calibration makes of contradictions."""

from __future__ import annotations

import math

import pytest

from gnnserve_api.operations import (
    BatchShape,
    NetworkShape,
    distinct_rows_bound,
    effective_fanouts,
    hidden_rows,
    operations,
    read_rows,
)
from gnnserve_api.spec.model import Architecture
from gnnserve_cli.report.performance_model import CalibrationError, MeasuredVariant, calibrate

REDDIT = BatchShape(seeds=1024, fanouts=(25, 10), widths=(602, 256, 41))


def test_rows_are_those_of_all_nodes_and_their_own() -> None:
    assert distinct_rows_bound(REDDIT) == 282_624  # and not 256,000
    assert hidden_rows(REDDIT) == 1024 * 26
    assert read_rows(REDDIT) == 1024 * 301


def test_a_network_needs_a_fanout_per_layer() -> None:
    with pytest.raises(ValueError, match="describe no network"):
        BatchShape(1, (25,), (128, 128, 128))
    with pytest.raises(ValueError, match="describe no network"):
        BatchShape(1, (-1, -1), (128, 128, 128))


@pytest.mark.parametrize(
    ("network", "first_layer", "second_layer"),
    [
        (NetworkShape(Architecture.GRAPHSAGE), 2 * 2 * 602 * 256 + 256, 2 * 2 * 256 * 41 + 41),
        (NetworkShape(Architecture.GRAPHSAGE, projected=True), 256, 2 * 2 * 256 * 41 + 41),
        (NetworkShape(Architecture.GIN), 2 * 602 * 256 + 2 * 256 * 256 + 2 * 256, 2 * 256 * 41 + 2 * 41 * 41 + 2 * 41),
        (
            NetworkShape(Architecture.GIN, mlp_hidden=64),
            2 * 602 * 64 + 2 * 64 * 256 + 64 + 256,
            2 * 256 * 64 + 2 * 64 * 41 + 64 + 41,
        ),
        (NetworkShape(Architecture.GCN), 2 * 602 * 256 + 256, 2 * 256 * 41 + 41),
        (NetworkShape(Architecture.GIN, projected=True), 2 * 256 * 256 + 2 * 256, 2 * 256 * 41 + 2 * 41 * 41 + 2 * 41),
    ],
)
def test_operations_count_every_matrix_twice_and_all_targets(
    network: NetworkShape, first_layer: int, second_layer: int
) -> None:
    sums = 1024 * 25 * 256  # of hidden states, in the second layer
    assert operations(REDDIT, network) == 1024 * 26 * first_layer + 1024 * second_layer + sums


def test_attention_scores_what_it_sums_and_averages_the_last_layers_heads() -> None:
    network = NetworkShape(Architecture.GAT, heads=(4, 2))

    sums = 1024 * 25 * 256 * 4 * 2
    first, second = 2 * 602 * 256 + 256, 2 * 2 * 256 * 41 + 41
    assert operations(REDDIT, network) == 1024 * 26 * first + 1024 * second + sums


def test_fanouts_are_limited_by_what_was_read() -> None:
    assert effective_fanouts((25, 10), 301) == (25, 10)
    assert effective_fanouts((25, 10), 1000) == (25, 10)
    few = effective_fanouts((25, 10), 50)
    assert few[0] == few[1] == pytest.approx(6.071, abs=1e-3)
    assert read_rows(BatchShape(1, few, (1, 1, 1))) == pytest.approx(50)
    many = effective_fanouts((25, 10), 200)
    assert many[1] == 10
    assert 10 < many[0] < 25
    everything = effective_fanouts((-1, -1), 5000)
    assert read_rows(BatchShape(1, everything, (1, 1, 1))) == pytest.approx(5000)
    assert effective_fanouts((25, 10), 1) == pytest.approx((0, 0), abs=1e-9)


# --- calibration


def measured(name: str, gather_ms: float, compute_ms: float, amount: float, operations_: float) -> MeasuredVariant:
    return MeasuredVariant(name, gather_ms, compute_ms, gather_ms + compute_ms, amount, operations_)


def test_rates_come_back_with_the_fixed_costs() -> None:
    def at(amount: float) -> MeasuredVariant:
        return measured("v", 0.2 + amount / 1e7, 0.5 + 10 * amount / 1e9, amount, 10 * amount)

    model = calibrate(at(8e6), at(1e6))
    assert (model.gather.fixed_ms, model.compute.fixed_ms) == (pytest.approx(0.2), pytest.approx(0.5))
    assert (model.gather.per_s, model.compute.per_s) == (pytest.approx(1e10), pytest.approx(1e12))
    assert model.notes == ()
    assert model.window_ms(4e6, 4e7) == pytest.approx(at(4e6).window_ms)


def test_stages_that_do_not_add_up_to_their_window_are_made_to() -> None:
    """As medians: 0.361 and 1.17 ms of a window of 1.86 ms."""
    wide = MeasuredVariant("x1", 0.361, 1.17, 1.86, 8e6, 8e7)
    narrow = MeasuredVariant("x8", 0.2, 0.7, 1.0, 1e6, 1e7)
    model = calibrate(wide, narrow)
    assert model.notes == ()
    assert model.window_ms(8e6, 8e7) == pytest.approx(1.86)
    assert model.window_ms(1e6, 1e7) == pytest.approx(1.0)


def test_equal_widths_calibrate_nothing() -> None:
    with pytest.raises(CalibrationError, match="two widths are needed"):
        calibrate(measured("x1", 1, 1, 1e6, 1e7), measured("x1-int8", 1, 1, 1e6, 1e7))


def test_a_stage_that_does_not_grow_is_constant_and_says_so() -> None:
    model = calibrate(measured("x1", 1.0, 0.5, 8e6, 8e7), measured("x8", 0.5, 0.6, 1e6, 1e7))
    assert (model.compute.per_s, model.compute.fixed_ms) == (None, pytest.approx(0.55))
    assert model.compute.ms(1e12) == pytest.approx(0.55)
    assert [note.split(" takes")[0] for note in model.notes] == ["computing"]


def test_a_negative_fixed_cost_becomes_none_and_says_so() -> None:
    model = calibrate(measured("x1", 10.0, 1.0, 2e6, 8e7), measured("x8", 1.0, 0.5, 1e6, 1e7))
    assert model.gather.fixed_ms == 0
    assert model.gather.ms(2e6) == pytest.approx(10)
    assert "would make its fixed cost negative" in model.notes[0]


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 2.0, 10.0])
def test_nothing_negative_or_infinite_is_ever_returned(factor: float) -> None:
    wide, narrow = measured("x1", 1.0, 1.0, 8e6, 8e7), measured("x8", factor, factor, 1e6, 2e7)
    model = calibrate(wide, narrow)
    for stage in (model.gather, model.compute):
        assert stage.fixed_ms >= 0
        assert stage.per_s is None or (stage.per_s > 0 and math.isfinite(stage.per_s))
