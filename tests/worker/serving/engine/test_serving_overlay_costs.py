"""What batches with overlays are expected to cost, apart from those of stored nodes, and how each kind is learnt."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import numpy as np
import pytest
from msgspec import UNSET
from tests.support.overlays.overlays import arrange_overlay
from tests.support.profiles import profile
from tests.support.serving.serving import NODES, TRADE_OFF, FakeWorker, accepted, held, running, variant

from gnnserve_api.families import Capabilities
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.profile import NewNodesLatency, Profile, VariantProfile
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import AffineCost, RoutingTable
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.scheduling.batcher import Batch, Batcher
from gnnserve_worker.scheduling.choice import choose, decide_route
from gnnserve_worker.scheduling.cost_terms import BatchKind, OverlayWork
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.variants import LEAST_MARGIN, CostModel, VariantChooser

OVERLAY = Capabilities(overlay=True)
X1, X4, X8 = 0, 1, 2
FULL = 100


def with_new_nodes(base: VariantProfile, full_ms: float) -> VariantProfile:
    """New nodes take in proportion to what they count as: 100 with their rows as 106 seeds."""
    points = tuple(
        NewNodesLatency(seeds, 0, 0, runs=3, p50_ms=load * full_ms / FULL, p99_ms=2 * full_ms, overlay_ms=0.0)
        for seeds, load in ((1, 1), (FULL, 106))
    )
    return msgspec.structs.replace(base, new_nodes=points)


# `stored1` is the faster of the two for stored nodes (1 and 10 ms for 100), the slower one for new nodes (40 and 12).
STORED1 = with_new_nodes(variant("x8", 0.9, 0.1, 0.009), 40)
PROJECTED = with_new_nodes(variant("x1", 0.9, 1, 0.09), 12)
UNLIKE = Profile(
    metric="accuracy", machine="", threads=2, validation_nodes=9, test_nodes=9, variants=(PROJECTED, STORED1)
)  # fmt: skip


class Queue:
    def __init__(self, variants: Profile) -> None:
        self.chooser = VariantChooser(variants, max_seeds=FULL)
        self.batcher = Batcher(self.chooser, RoutingTable(revision="r", recipe="r"), 1000)
        self._keys = itertools.count()
        self._now_ms = 0.0

    def answer(
        self, seeds: int, objective: Objective = NO_OBJECTIVE, *, new: bool, takes_ms: dict[str, float] | None = None
    ) -> Batch:
        """The batch of one request; it takes what is said, or what was expected."""
        needs = OVERLAY if new else Capabilities()
        request = Request(next(self._keys), seeds, objective, self._now_ms, needs, 0, seeds if new else 0)
        assert self.batcher.admit(request, False, self._now_ms) is None
        batch = self.batcher.take(self._now_ms).batch
        assert batch is not None
        self.batcher.finish()
        took_ms = batch.predicted_ms if takes_ms is None else takes_ms[batch.variant]
        self._now_ms += took_ms
        self.batcher.observe(batch, took_ms, took_ms, self._now_ms, 0.0)
        return batch


def observe(
    costs: CostModel, of: int, took_ms: float, *, new: int, batches: int = 60, every_ms: float = 20, from_ms: float = 0
) -> None:
    for number in range(batches):
        costs.observe(of, 50, 1, took_ms, took_ms, from_ms + every_ms * number, OverlayWork(new))


# Expectations


def test_a_batch_is_expected_to_take_what_its_kind_took_when_it_was_profiled() -> None:
    costs = CostModel([STORED1, PROJECTED], FULL)
    assert [costs.compute_ms(v, FULL) for v in (0, 1)] == pytest.approx([1, 10])
    assert [costs.compute_ms(v, FULL, FULL) for v in (0, 1)] == pytest.approx([40, 12])
    assert costs.batch_ms(0, 50, 1, 50) == pytest.approx(20)
    assert costs.computing_ms(0, 50, 50) == pytest.approx(20)
    assert costs.least_ms(0, FULL, FULL) == pytest.approx(40)


def test_of_a_mixed_batch_the_seeds_with_overlays_count() -> None:
    costs = CostModel([STORED1], FULL)
    # 100 stored seeds take 1 ms; 10 new ones 4 ms in place of the 0.19 of stored ones.
    assert costs.compute_ms(0, FULL, 10) == pytest.approx(1 + 4 - 0.19)
    assert costs.stretched_ms(0, FULL, 10) == pytest.approx(1 + 4 - 0.19, rel=0.02)
    few, many = (costs.seeds_within(0, 5.0, 0.0, share) for share in (1.0, 0.1))
    assert (few, many) == (12, FULL)


def test_an_earlier_profile_has_what_stored_nodes_cost_for_a_first_guess() -> None:
    costs = CostModel(TRADE_OFF.variants, FULL)
    for seeds in (1, 50, 100, 250):
        assert costs.compute_ms(X1, seeds, seeds) == pytest.approx(costs.compute_ms(X1, seeds))
        assert costs.least_ms(X1, seeds, seeds) == pytest.approx(costs.least_ms(X1, seeds))
    costs.use({X1: AffineCost(fixed_ms=1, per_seed_ms=1)})
    assert costs.compute_ms(X1, 50, 50) == pytest.approx(51), "of the table too"


def test_a_table_replaces_the_cost_of_stored_nodes_alone() -> None:
    costs = CostModel([STORED1, PROJECTED], FULL)
    observe(costs, 1, 5.5, new=0, batches=1)
    costs.use({0: AffineCost(fixed_ms=2, per_seed_ms=0.1)})
    assert costs.compute_ms(0, FULL) == pytest.approx(12)
    assert costs.compute_ms(0, FULL, FULL) == pytest.approx(2 + 40, rel=0.01)
    assert costs.computing_ms(0, FULL, FULL) == pytest.approx(40, rel=0.01)


def test_what_a_table_has_for_every_batch_stays_with_new_nodes() -> None:
    costs = CostModel([PROJECTED], FULL)
    costs.use({0: AffineCost(fixed_ms=2, per_seed_ms=0.1)})
    # 99 stored seeds, a new one of 0.12 ms on a machine that is 1.2 times as slow as the profile's, and the 2 ms that
    # reading and writing take.
    assert costs.batch_ms(0, FULL, 1, 1) == pytest.approx(2 + 9.9 + 1.2 * 0.12)
    assert costs.stretched_ms(0, FULL, 1) == pytest.approx(2 + 9.9 + 1.2 * 0.12)


def test_the_route_tells_what_new_nodes_cost_once_that_is_known() -> None:
    for variants, known in ((UNLIKE, True), (profile(*TRADE_OFF.variants), False)):
        queue = Queue(variants)
        table = RoutingTable(revision="r", recipe="r")
        told = decide_route(queue.chooser, "r", table, None, is_expired=False).variants
        assert [one.expected_new_nodes is not UNSET for one in told] == [known] * len(told)
    told = decide_route(Queue(UNLIKE).chooser, "r", table, None, is_expired=False).variants
    costs = {one.name: one.expected_new_nodes for one in told}
    assert isinstance(costs["x8"], AffineCost)
    assert costs["x8"].at(FULL) == pytest.approx(42.4, rel=0.01), "of 100 nodes, which count as 106"
    queue.answer(FULL, new=True)
    told = decide_route(queue.chooser, "r", table, None, is_expired=False).variants
    assert [one.name for one in told if one.expected_new_nodes is not UNSET] == ["x1"]


# What is learnt


@pytest.mark.parametrize("variants", [TRADE_OFF.variants, (with_new_nodes(TRADE_OFF.variants[0], 20),)])
def test_new_nodes_that_take_longer_change_nothing_about_stored_ones(variants: tuple[VariantProfile, ...]) -> None:
    costs = CostModel(variants, FULL)
    before_ms = costs.compute_ms(X1, 50)
    observe(costs, X1, 6 * before_ms, new=50)
    assert costs.compute_ms(X1, 50) == pytest.approx(before_ms)
    assert costs.compute_ms(X1, 50, 50) == pytest.approx(6 * before_ms, rel=0.05)
    assert costs.margin < 0.5


def test_stored_nodes_that_take_longer_show_that_the_machine_is_slow_for_new_ones_too() -> None:
    costs = CostModel([STORED1, PROJECTED], FULL)
    observe(costs, 1, 2 * costs.compute_ms(1, 50), new=0)
    assert costs.compute_ms(1, 50, 50) == pytest.approx(2 * 6, rel=0.4)
    assert costs.compute_ms(0, 50, 50) > 1.4 * 20, "which nobody used: the machine is the same"


def test_overlays_that_cost_more_than_the_profiled_ones_are_expected_of_other_variants_too() -> None:
    costs = CostModel([STORED1, PROJECTED], FULL)
    observe(costs, 1, 2 * 6, new=50)
    assert costs.compute_ms(0, 50, 50) > 1.4 * 20
    assert costs.compute_ms(0, 50) == pytest.approx(0.55), "a matter of overlays, not of the machine"


def test_of_a_mixed_batch_each_kind_is_corrected_by_its_part() -> None:
    costs = CostModel(TRADE_OFF.variants, FULL)
    before_ms = costs.compute_ms(X1, 50)
    observe(costs, X1, 2 * before_ms, new=5, batches=3)
    stored, new = (costs.compute_ms(X1, 50, part) / before_ms for part in (0, 50))
    assert stored > 1.1
    assert 1 < new / stored < stored


def test_what_is_proven_makes_a_latency_feasible_that_the_profile_excludes() -> None:
    queue = Queue(UNLIKE)
    objective = Objective(latency_ms=8)
    assert not choose(queue.chooser, objective, FULL, OVERLAY, FULL, FULL).feasible
    for _ in range(60):
        queue.answer(FULL, new=True, takes_ms={"x1": 5, "x8": 40})
    assert choose(queue.chooser, objective, FULL, OVERLAY, FULL, FULL).feasible


def test_corrections_of_new_nodes_are_forgotten_as_others_are() -> None:
    costs = CostModel(TRADE_OFF.variants, FULL)
    before_ms = costs.compute_ms(X1, 50, 50)
    observe(costs, X1, 5 * before_ms, new=50)
    observe(costs, X4, costs.compute_ms(X4, 50), new=0, batches=1000, every_ms=300, from_ms=2000)
    assert costs.compute_ms(X1, 50, 50) == pytest.approx(before_ms, rel=0.05)


def test_batches_with_overlays_as_expected_keep_the_margin_small() -> None:
    costs = CostModel([STORED1, PROJECTED], FULL)
    observe(costs, 0, 20.0, new=50)
    assert costs.margin == LEAST_MARGIN
    assert costs.compute_ms(0, 50, 50) == pytest.approx(20)


# What is decided


@pytest.mark.parametrize(
    "objective", [NO_OBJECTIVE, Objective(latency_ms=30), Objective(accuracy_tolerance_permille=5)]
)
def test_each_kind_gets_the_variant_that_is_fast_for_it(objective: Objective) -> None:
    """Both are equally accurate."""
    queue = Queue(UNLIKE)
    assert [queue.answer(FULL, objective, new=new).variant for new in (False, True, False)] == ["x8", "x1", "x8"]
    assert choose(queue.chooser, objective, FULL).variant == "x8"
    assert choose(queue.chooser, objective, FULL, OVERLAY, FULL, FULL).variant == "x1"
    assert {kind: len(kept) for kind, kept in queue.chooser.frontiers.items()} == dict.fromkeys(BatchKind, 1)


def test_without_a_profile_of_new_nodes_batches_show_which_variant_is_slow_for_them() -> None:
    bare = profile(*(msgspec.structs.replace(one, new_nodes=()) for one in UNLIKE.variants))
    queue = Queue(bare)
    takes_ms = {"x1": 12.0, "x8": 40.0}
    objective = Objective(latency_ms=100)
    assert queue.answer(FULL, objective, new=True, takes_ms=takes_ms).variant == "x8"
    for _ in range(600):
        last = queue.answer(FULL, objective, new=True, takes_ms=takes_ms)
    assert last.variant == "x1"
    assert queue.answer(FULL, objective, new=False).variant == "x8"


def test_a_request_with_an_overlay_is_not_promised_what_stored_nodes_take() -> None:
    queue = Queue(UNLIKE)
    choice = choose(queue.chooser, Objective(latency_ms=5), FULL, OVERLAY, FULL, FULL)
    assert (choice.variant, choice.feasible) == ("x1", False)
    assert "needs 12 ms" in choice.message
    assert choose(queue.chooser, Objective(latency_ms=5), FULL).feasible


def test_new_nodes_that_join_a_batch_are_expected_to_cost_more() -> None:
    queue = Queue(msgspec.structs.replace(UNLIKE, variants=(STORED1,)))
    for key, (seeds, new) in enumerate(((20, 0), (10, 10))):
        queue.batcher.admit(Request(key, seeds, NO_OBJECTIVE, 0, OVERLAY if new else Capabilities(), 0, new), False, 0)
    batch = queue.batcher.take(0).batch
    assert batch is not None
    assert (batch.seeds, batch.load, batch.changed_seeds) == (30, 30, 10)
    assert batch.predicted_ms == pytest.approx(0.37 + 4 - 0.19)


def test_of_a_request_the_seeds_that_are_nodes_of_its_overlay_count_as_new() -> None:
    """Of nine nodes that the overlay brings it asks about two; the others are neighbours at most."""
    features, nothing = np.zeros((9, 1), np.float32), np.zeros(0, np.int64)
    new = np.arange(NODES, NODES + 9)
    overlay, _ = arrange_overlay(
        Graph(np.zeros(NODES + 1, np.int64), np.zeros(0, np.int32)), EdgeRules(Direction.DIRECTED), features, nothing,
        nothing.reshape(0, 2), new,
    )  # fmt: skip
    worker = FakeWorker()

    async def scenario() -> Request:
        async with running(worker) as client:
            await held(worker, client)
            return accepted(client.model, [1, 2, 3, NODES, NODES + 4], overlay=overlay).pending

    assert asyncio.run(scenario()).changed_seeds == 2
