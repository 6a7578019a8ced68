"""What is judged of our listener and of traces."""

from __future__ import annotations

from typing import Any

from benchmarks.answers.listener import BEFORE, OURS, compare
from benchmarks.answers.listener import BENCHMARK as LISTENER
from benchmarks.answers.tracing import BENCHMARK as TRACING
from benchmarks.answers.tracing import COST, summarize
from benchmarks.pairs import compute_ratio, recorded


def listeners(ours_ms: float) -> dict[str, Any]:
    figure = "one seed, p50 ms"
    costs = {BEFORE: [{figure: 1.0}] * 10, OURS: [{figure: ours_ms}] * 10, "granian": [{figure: 9.0}] * 10}
    ratios = {
        name: {figure: [one.ratio, one.low, one.high] for figure, one in compare(of_one, costs[BEFORE]).items()}
        for name, of_one in costs.items()
        if name != BEFORE
    }
    return {"costs": costs, "ratios": ratios}


def test_our_listener_is_judged_over_the_one_before() -> None:
    for ours_ms, passed in ((1.0, True), (1.1, False)):
        (verdict,) = LISTENER.judged(listeners(ours_ms)).values()
        assert verdict["passed"] is passed


def traces(ratio: float, dropped_spans: int) -> dict[str, Any]:
    costs = {f"processor time, 1 in 100 traced, {n} connections": [(100.0, 100.0 * ratio)] * 9 for n in (1, 16)}
    rounds = [{"processor_us": 100.0, "dropped_spans": float(dropped_spans)}] * 9
    return {
        "figures": summarize({("1 in 100", 16): rounds, ("all", 16): [{**rounds[0], "dropped_spans": 7.0}]}),
        **recorded({name: compute_ratio(pairs) for name, pairs in costs.items()}, costs, lambda _: COST),
    }


def test_traces_are_judged_by_what_the_default_share_costs_and_by_its_dropped_spans() -> None:
    assert [one["passed"] for one in TRACING.judged(traces(1.08, 0)).values()] == [True] * 3
    assert [one["passed"] for one in TRACING.judged(traces(1.2, 1)).values()] == [False] * 3
    assert TRACING.judged({"figures": [{"traced": "1 in 100", "p50_ms": 1.0}]}) == {}  # runs of before
