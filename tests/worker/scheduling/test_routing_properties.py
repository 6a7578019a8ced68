"""What holds of the queue whatever is asked, in any state and mode, driven by drawn histories without a clock."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.serving.serving import TRADE_OFF, without_overlays

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.files.profile import Profile
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import AffineCost, RoutingMode, RoutingTable
from gnnserve_worker.scheduling.batcher import Batch, Batcher
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.variants import VariantChooser

MAX_SEEDS = 100
MAX_QUEUED_SEEDS = 2000

_objectives = st.builds(
    Objective,
    latency_ms=st.none() | st.floats(0.5, 200),
    accuracy_tolerance_permille=st.none() | st.sampled_from([0, 10, 20, 30]),
)
_overlay_loads = st.sampled_from([None, None, 0, 7, 60, 99, 100, 3000])
"""None: no overlay."""
_asked = st.tuples(st.integers(1, 300), _objectives, st.booleans(), st.floats(0, 20), _overlay_loads)
_tables = st.sampled_from([
    RoutingTable(revision="r", recipe="r"),
    RoutingTable(revision="r", recipe="r", mode=RoutingMode.STATIC, base_variant="x8"),
    RoutingTable(revision="r", recipe="r", mode=RoutingMode.METRICS, base_variant="x4"),
    RoutingTable(revision="r", recipe="r", mode=RoutingMode.WEIGHTS, weights={"x1": 1, "x4": 2, "x8": 3}),
    RoutingTable(revision="r", recipe="r", costs={"x1": AffineCost(fixed_ms=30, per_seed_ms=0.3)}),
])  # fmt: skip


def kept(chooser: VariantChooser, request: Request) -> bool:
    return chooser.can_keep(request.objective.accuracy_tolerance_permille, request.needs)


@settings(max_examples=examples(200), deadline=None)
@given(
    asked=st.lists(_asked, max_size=40),
    cancelled=st.sets(st.integers(0, 39)),
    slowness=st.lists(st.floats(0.3, 5), min_size=1, max_size=10),
    tables=st.lists(_tables, min_size=1, max_size=4),
    variants=st.sampled_from([TRADE_OFF, without_overlays(TRADE_OFF, "x4"), without_overlays(TRADE_OFF, "x1", "x8")]),
)
def test_every_request_has_one_outcome_within_its_tolerance_by_a_variant_that_can_answer_it(
    asked: list[tuple[int, Objective, bool, float, int | None]], cancelled: set[int], slowness: list[float],
    tables: list[RoutingTable], variants: Profile,
) -> None:  # fmt: skip
    chooser = VariantChooser(variants, MAX_SEEDS)
    batcher = Batcher(chooser, tables[0], MAX_QUEUED_SEEDS)
    accepted: dict[int, Request] = {}
    covered: dict[int, int] = {}
    answered_by: dict[int, set[str]] = {}
    refused: set[int] = set()
    arrivals = list(enumerate(asked))
    now, began, free_at, batches = 0.0, 0.0, 0.0, 0
    running: Batch | None = None
    while arrivals or batcher.queue.group_of or running is not None:
        if running is not None and (not arrivals or free_at <= now):
            now = max(now, free_at)
            batcher.finish()
            batcher.observe(running, free_at - began, free_at - began + 0.1, now)
            running = None
            table = tables[batches % len(tables)]
            batcher.route_by(table)
            chooser.use(table.costs)
        elif arrivals and (running is not None or not batcher.queue.group_of or len(arrivals) % 3):
            key, (seeds, objective, strict, gap_ms, overlay_load) = arrivals.pop(0)
            now += gap_ms
            needs = STORED_GRAPH if overlay_load is None else Capabilities(overlay=True)
            request = Request(key, seeds, objective, now, needs, overlay_load or 0)
            outcome = batcher.admit(request, strict, now)
            if outcome is None:
                accepted[key], covered[key], answered_by[key] = request, 0, set()
                heavy = [group for group in batcher.queue.groups if group.is_heavy]
                heavy_seeds = sum(group.seeds for group in heavy)
                assert batcher.queue.seeds - heavy_seeds <= MAX_QUEUED_SEEDS
                assert heavy_seeds <= MAX_QUEUED_SEEDS or sum(group.requests for group in heavy) == 1
            elif outcome.reason is not RefusalReason.QUEUE_FULL:
                assert objective.latency_ms is not None or (strict and not kept(chooser, request))
            if key in cancelled:
                batcher.cancel(key)
        if running is not None or not batcher.queue.group_of:
            continue
        taken = batcher.take(now)
        batches += 1
        for request, refusal in taken.refused:
            assert isinstance(refusal, Refusal)
            assert request.objective.latency_ms is not None
            assert request.key not in refused
            refused.add(request.key)
        if (batch := taken.batch) is None:
            continue
        assert batch.seeds <= batch.load
        assert 0 < batch.seeds == sum(piece.stop - piece.start for piece in batch.pieces) <= MAX_SEEDS
        carried = batch.pieces[0].request.overlay_load
        assert batch.load <= MAX_SEEDS or (len(batch.pieces) == 1 and batch.load <= carried + MAX_SEEDS)
        for piece in batch.pieces:
            key = piece.request.key
            assert key not in refused
            assert piece.start == covered[key]
            covered[key] = piece.stop
            assert piece.last == (piece.stop == piece.request.seeds)
            answered_by[key].add(batch.variant)
            assert chooser.capabilities[chooser.indices[batch.variant]].cover(piece.request.needs)
        running, began, free_at = batch, now, now + batch.predicted_ms * slowness[batches % len(slowness)]
    for key, request in accepted.items():
        tolerance = request.objective.accuracy_tolerance_permille
        assert len(answered_by[key]) <= 1
        losses = [chooser.loss_permille[chooser.indices[variant]] for variant in answered_by[key]]
        assert not kept(chooser, request) or all(tolerance is None or loss <= tolerance + 1e-6 for loss in losses)
        assert (covered[key] == request.seeds) != (key in refused or key in cancelled)
    assert batcher.queue.seeds == 0


@given(latencies=st.lists(st.floats(1e-3, 3.6e6), min_size=200, max_size=400))
@settings(max_examples=20, deadline=None)
def test_no_variety_of_latencies_makes_decisions_dear(latencies: list[float]) -> None:
    batcher = Batcher(VariantChooser(TRADE_OFF, MAX_SEEDS), RoutingTable(revision="r", recipe="r"), 1 << 20)
    batcher.admit(Request(0, 1, Objective(), 0), False, 0)
    batcher.take(0)
    for key, latency in enumerate(latencies, start=1):
        tolerance = [None, 0, 10, 30][key % 4]
        batcher.admit(Request(key, 1 + key % 150, Objective(latency, tolerance), 0), False, 0)
    # 16, and one for every kind of request.
    assert len(batcher.queue.groups) <= 16 + 2 * 2 * 3
    assert len(batcher.closer.look(1, [])) <= 13


_DISTINCT = [100 * 1.26**step for step in range(16)]
"""Latencies of as many groups as there may be."""


@pytest.mark.parametrize("odd", [None, 0.001, 2.1, 3.6e6])
def test_odd_latency_changes_nothing_for_others(odd: float | None) -> None:
    batcher = Batcher(VariantChooser(TRADE_OFF, MAX_SEEDS), RoutingTable(revision="r", recipe="r"), 1 << 20)
    keys = itertools.count()
    now, free_at, due_at = 0.0, 0.0, 0.0
    seeds_of: Counter[str] = Counter()
    while now < 3000:
        if now % 200 == 0 and now <= 1000:
            for latency in [*_DISTINCT, odd or 100]:
                batcher.admit(Request(next(keys), 1, Objective(latency), now), False, now)
        while due_at <= now:
            batcher.admit(Request(next(keys), 1, Objective(100), now), False, now)
            due_at += 8
        if now >= free_at:
            batcher.finish()
            batch = batcher.take(now).batch
            if batch is not None:
                seeds_of[batch.variant] += batch.seeds
                free_at = now + batch.predicted_ms
        now += 1
    assert seeds_of["x1"] > 0.85 * seeds_of.total()


def test_hour_that_somebody_allows_admits_nobody_who_will_be_late() -> None:
    admitted = []
    for odd in (_DISTINCT[0], 3.6e6):
        batcher = Batcher(VariantChooser(TRADE_OFF, MAX_SEEDS), RoutingTable(revision="r", recipe="r"), 1 << 20)
        for key, latency in enumerate([*_DISTINCT, odd]):
            batcher.admit(Request(key, 1, Objective(latency), 0), False, 0)
        outcomes = [
            batcher.admit(Request(key, 10, Objective(_DISTINCT[-1]), 0), False, 0) for key in range(100, 20_100)
        ]
        admitted.append(sum(outcome is None for outcome in outcomes))
    assert admitted[1] == pytest.approx(admitted[0], abs=10)
    assert admitted[0] < 15_000


def test_deadlines_stay_exact_where_latencies_share_a_group() -> None:
    batcher = Batcher(VariantChooser(TRADE_OFF, MAX_SEEDS), RoutingTable(revision="r", recipe="r"), 1 << 20)
    batcher.admit(Request(0, 1, Objective(), 0), False, 0)
    batcher.take(0)
    for key in range(1, 40):
        latency = 5000 - 100 * key
        assert batcher.admit(Request(key, 99, Objective(latency_ms=latency), 0), False, 0) is None
    batcher.finish()
    order = []
    while batcher.queue.group_of:
        batch = batcher.take(10).batch
        assert batch is not None
        order += [piece.request.key for piece in batch.pieces]
    assert order == list(range(39, 0, -1))
