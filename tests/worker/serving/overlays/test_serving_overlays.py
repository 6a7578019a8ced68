"""Requests with overlays: what they count as, and which variants answer them."""

from __future__ import annotations

import dataclasses
import itertools
import math

import msgspec
import pytest
from tests.support.serving.serving import TRADE_OFF, FakeWorker, profile, variant, without_overlays

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_api.files.profile import Profile
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.pods.routing import RoutingMode, RoutingTable
from gnnserve_worker.scheduling.batcher import Batch, Batcher
from gnnserve_worker.scheduling.choice import ChoiceReason, choose
from gnnserve_worker.scheduling.cost_terms import BatchKind, load_of, overlay_load
from gnnserve_worker.scheduling.queue import Request
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.scheduling.variants import VariantChooser

# TRADE_OFF: 1 seed costs x1 10.1, x4 4.04, x8 2.02 ms; 100 seeds cost 20, 8, 4 ms; losses 0, 10, 30 permille.
OVERLAY = Capabilities(overlay=True)
ADAPTIVE = RoutingTable(revision="r", recipe="r")
STATIC_X4 = RoutingTable(revision="r", recipe="r", mode=RoutingMode.STATIC, base_variant="x4")
METRICS_X4 = RoutingTable(revision="r", recipe="r", mode=RoutingMode.METRICS, base_variant="x4")
WEIGHTS_X4 = RoutingTable(revision="r", recipe="r", mode=RoutingMode.WEIGHTS, weights={"x4": 1})
NO_X4 = without_overlays(TRADE_OFF, "x4")


class Queue:
    """A batcher, and requests with and without an overlay."""

    def __init__(
        self, variants: Profile = TRADE_OFF, table: RoutingTable = ADAPTIVE, max_queued_seeds: int = 500
    ) -> None:
        self.batcher = Batcher(VariantChooser(variants, max_seeds=100), table, max_queued_seeds)
        self._keys = itertools.count()

    def ask(
        self, seeds: int = 1, objective: Objective = NO_OBJECTIVE, *, overlay: int | None = None, at: float = 0,
        strict: bool = False,
    ) -> Refusal | None:  # fmt: skip
        """`overlay`: what it counts as, of which all is rows that may be drawn; None: there is none."""
        needs = STORED_GRAPH if overlay is None else OVERLAY
        request = Request(next(self._keys), seeds, objective, at, needs, overlay or 0, overlay_rows=float(overlay or 0))
        return self.batcher.admit(request, strict, at)

    def take(self, at: float = 0) -> Batch:
        batch = self.batcher.take(at).batch
        assert batch is not None
        self.batcher.finish()
        return batch

    def variant_of(self, objective: Objective, *, overlay: int | None = 0, at: float = 0) -> str:
        """The variant that answers a lone request, 0.5 ms after it came."""
        assert self.ask(objective=objective, overlay=overlay, at=at) is None
        return self.take(at + 0.5).variant


def reason(outcome: Refusal | None) -> RefusalReason | None:
    return None if outcome is None else outcome.reason


def keys(batch: Batch) -> list[int]:
    return [piece.request.key for piece in batch.pieces]


# What an overlay counts as


@pytest.mark.parametrize(
    ("nodes", "edges", "rows", "row_bytes", "drawn", "least", "most"),
    [
        pytest.param(0, 0, 0, 0, 276, 0, 0, id="nothing"),
        pytest.param(1, 10, 1, 4 * 602, 276, 0, 1, id="a new node with ten edges"),
        pytest.param(32, 320, 32, 4 * 602, 276, 15, 20, id="as measured: half a seed for a drawn row of 602 features"),
        pytest.param(32, 320, 32, 4 * 128, 276, 4, 7, id="as measured: a sixth for one of 128"),
        pytest.param(
            1024, 16_384, 1024, 4 * 128, 0, 2, 4, id="as measured: two to four for the most, if none is drawn"
        ),
        pytest.param(16_605, 32_764, 1024, 4 * 128, 0, 8, 28, id="the same, where edges count in both directions"),
        pytest.param(1024, 16_384, 1024, 4 * 602, math.inf, 400, 700, id="the most of ordinary graphs, all drawn"),
        pytest.param(1024, 16_384, 1024, 4 * 602, 276, 110, 180, id="no more rows than may be drawn"),
        pytest.param(1024, 16_384, 1024, 16 * 1024, math.inf, 3000, 4000, id="the most of all: several full batches"),
    ],
)
def test_overlays_count_as_seeds(
    nodes: int, edges: int, rows: int, row_bytes: int, drawn: float, least: int, most: int
) -> None:
    assert least <= overlay_load(nodes, edges, rows, rows * row_bytes, drawn) <= most


@pytest.mark.parametrize(
    ("fanouts", "expected"), [((25, 10), 276), ((25,), 26), ((0,), 1), ((3, 2, 2), 22), ((-1, -1), math.inf)], ids=str
)
def test_a_seed_draws_no_more_rows_than_fan_outs_allow(fanouts: tuple[int, ...], expected: float) -> None:
    served = FakeWorker().revision()
    variants = tuple(msgspec.structs.replace(variant, fanouts=fanouts) for variant in served.manifest.variants)
    manifest = msgspec.structs.replace(served.manifest, variants=variants)
    assert dataclasses.replace(served, manifest=manifest).most_drawn_per_seed == expected


@pytest.mark.parametrize(
    ("seeds", "overlay", "expected"),
    [(7, 0, 7), (1, 40, 41), (100, 40, 140), (101, 40, 181), (350, 40, 510), (350, 0, 350)],
)
def test_an_overlay_counts_once_for_each_batch_that_its_request_takes(seeds: int, overlay: int, expected: int) -> None:
    assert load_of(seeds, overlay, max_seeds=100) == expected


def test_costs_are_corrected_by_what_seeds_took_and_not_by_what_overlays_might_have() -> None:
    """Rows that are not drawn are not made: a batch may take far less than its overlays count at most."""
    queue = Queue()
    before = queue.batcher._chooser.costs.compute_ms(0, 100)
    for at in range(200):
        queue.ask(50, overlay=40, at=20 * at)
        batch = queue.take(20 * at)
        assert (batch.variant, batch.load) == ("x1", 90)
        # 50 seeds take 15 ms.
        queue.batcher.observe(batch, 15.3, 15.3, 20 * at + 16, overlay_ms=0.3)
    assert queue.batcher._chooser.costs.compute_ms(0, 100) == pytest.approx(before, rel=0.01)


def test_overlays_are_expected_to_count_what_they_counted_and_more_at_once() -> None:
    queue = Queue()
    costs = queue.batcher._chooser.costs

    def observe(rows: int, overlay_ms: float, at: float) -> None:
        queue.ask(50, overlay=rows, at=at)
        queue.batcher.observe(queue.take(at), 15 + overlay_ms, 15 + overlay_ms, at + 16, overlay_ms)

    assert costs.overlays.share == 1.0
    for number in range(100):
        observe(40, 4 * 0.1, 20.0 * number)  # x1 takes 0.1 ms for a seed more: a tenth
    assert costs.overlays.share == pytest.approx(0.1, rel=0.1)
    observe(40, 0.1 * 40, 3000)
    assert costs.overlays.share == pytest.approx(1.0, rel=0.1)
    observe(40, 400, 4000)
    assert costs.overlays.share == 1.0
    assert overlay_load(1024, 16_384, 1024, 4096 * 128, 276, 0.1) == 3 + 4
    assert overlay_load(1024, 16_384, 1024, 4096 * 128, 276) == 3 + 45


def test_overlays_of_edges_alone_tell_nothing_of_how_many_rows_are_drawn() -> None:
    queue = Queue()
    costs = queue.batcher._chooser.costs
    for number in range(200):
        request = Request(number, 50, NO_OBJECTIVE, 20.0 * number, OVERLAY, 1, overlay_fixed=1.0)
        assert queue.batcher.admit(request, False, 20.0 * number) is None
        queue.batcher.observe(queue.take(20 * number), 15.06, 15.06, 20 * number + 16, 0.06)
    assert costs.overlays.share == 1.0


def test_a_full_group_of_overlays_that_are_cheaper_than_stored_nodes_ends_no_batch() -> None:
    """Of 200 queued seeds a batch takes 100, and as many of what is new among them: half, not all of it."""
    queue = Queue(profile(variant("x1", 0.9, 1, 0.1)))
    queue.batcher._chooser.costs.overlays.factors = [0.5]
    for _ in range(4):
        assert queue.ask(25, Objective(60.0), overlay=25) is None
    assert queue.take(53).load == 100


def test_a_batch_counts_afterwards_by_the_time_that_its_overlays_took() -> None:
    queue = Queue()
    queue.ask(50, overlay=40)
    batch = queue.take()
    # x1 takes 0.1 ms for a seed more.
    assert [queue.batcher.count_load(batch, ms) for ms in (0, 0.3, 4, 8)] == [50, 53, 90, 130]


def test_a_request_with_an_overlay_takes_its_load_of_the_queue() -> None:
    queue = Queue()
    for _ in range(5):
        assert queue.ask(1, overlay=90) is None
    assert queue.batcher.queue.seeds == 455
    refusal = queue.ask(1, overlay=49)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.QUEUE_FULL
    assert "so 50 more, the overlay counted as 49, do not fit" in refusal.message
    assert queue.ask(45) is None


def test_an_empty_queue_takes_an_overlay_that_counts_as_more_than_it_may_hold_and_has_room_for_others_still() -> None:
    queue = Queue()
    assert queue.ask(1, overlay=8000) is None
    assert reason(queue.ask(1, overlay=100)) is RefusalReason.QUEUE_FULL
    assert queue.ask(500) is None
    assert reason(queue.ask(1)) is RefusalReason.QUEUE_FULL
    batch = queue.take()
    assert (batch.seeds, batch.load, queue.batcher.queue.seeds) == (1, 8001, 500)
    assert reason(queue.ask(1, overlay=8000)) is RefusalReason.QUEUE_FULL
    while queue.batcher.queue.group_of:
        queue.take()
    assert queue.ask(1, overlay=8000) is None


def test_a_batch_is_expected_to_take_what_its_overlays_cost() -> None:
    queue = Queue()
    queue.ask(1, overlay=59)
    batch = queue.take()
    assert (batch.seeds, batch.load) == (1, 60)
    assert batch.predicted_ms == pytest.approx(10 + 60 * 0.1)
    queue.ask(1, overlay=299)
    assert queue.take().predicted_ms == pytest.approx(3 * 20)


def test_an_overlay_beyond_a_full_batch_gets_a_batch_of_its_own() -> None:
    queue = Queue()
    queue.ask(1, overlay=250)
    queue.ask(1)
    queue.ask(1)
    assert [keys(queue.take()), keys(queue.take())] == [[0], [1, 2]]


def test_deadlines_beside_a_dear_overlay_are_kept_or_refused_at_once() -> None:
    queue = Queue(max_queued_seeds=5000)
    assert queue.ask(1, Objective(latency_ms=60), overlay=1400) is None  # x8: 14 full batches of 4 ms, and a seed
    assert queue.ask(1, Objective(latency_ms=52), at=1) is None  # before the overlay, to which it leaves no time then
    assert reason(queue.ask(1, Objective(latency_ms=80), overlay=1400, at=1)) is RefusalReason.DEADLINE_OUT_OF_REACH
    batch = queue.batcher.take(2).batch
    assert batch is not None
    assert (keys(batch), batch.variant) == ([0], "x8")
    assert reason(queue.ask(1, Objective(latency_ms=52), at=3)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert queue.ask(1, Objective(latency_ms=60), at=3) is None


@pytest.mark.parametrize(
    ("latency", "other", "expected"),
    [(33.0, None, "x1"), (32.0, None, "x4"), (33.0, 34.0, "x4"), (33.0, 40.0, "x1")],
    ids=["in time", "late by x1", "another late by x1", "another in time"],
)
def test_a_dear_overlay_gets_the_most_accurate_variant_that_makes_neither_it_nor_another_late(
    latency: float, other: float | None, expected: str
) -> None:
    queue = Queue()
    assert queue.ask(objective=Objective(latency), overlay=100) is None  # 201: by x1 30.1, by x4 12.04, + 8 %
    if other is not None:
        assert queue.ask(objective=Objective(other)) is None
    assert queue.take().variant == expected


def test_a_request_that_is_refused_for_its_overlay_tells_nothing_of_those_without() -> None:
    queue = Queue()
    queue.ask(100)
    queue.batcher.take(0)
    queue.ask(1, Objective(latency_ms=30))
    assert reason(queue.ask(1, Objective(latency_ms=30), overlay=300, at=1)) is RefusalReason.DEADLINE_OUT_OF_REACH
    assert queue.batcher.would_refuse(Objective(latency_ms=30), 1, 1) is None


def test_pieces_of_a_large_request_each_carry_its_overlay() -> None:
    queue = Queue()
    assert queue.ask(250, overlay=40) is None
    assert queue.batcher.queue.seeds == 250 + 3 * 40
    batches = [queue.take() for _ in range(3)]
    assert [(batch.seeds, batch.load) for batch in batches] == [(100, 140), (100, 140), (50, 90)]
    assert [(piece.start, piece.stop) for batch in batches for piece in batch.pieces] == [
        (0, 100),
        (100, 200),
        (200, 250),
    ]
    assert queue.batcher.queue.seeds == 0


@pytest.mark.parametrize(
    ("seeds", "overlay", "expected"),
    [
        pytest.param(250, 0, 25, id="no overlay: a fourth of a batch"),
        pytest.param(250, 10, 25, id="a light one: as without it"),
        pytest.param(250, 60, 60, id="a dearer one: as many seeds as it counts"),
        pytest.param(250, 99, 99, id="no more than double the work, for as little of the batch's load as that allows"),
        pytest.param(250, 3000, 100, id="a heavy one: a full batch of seeds"),
        pytest.param(3, 3000, 3, id="few seeds: all of them"),
        pytest.param(1, 99, 1, id="one seed"),
    ],
)
def test_pieces_for_which_small_requests_wait_are_no_smaller_than_their_overlay(
    seeds: int, overlay: int, expected: int
) -> None:
    queue = Queue(max_queued_seeds=100_000)
    queue.ask(seeds, overlay=overlay)
    queue.ask(1)
    batch = queue.take()
    assert (batch.pieces[0].request.key, batch.pieces[0].stop) == (0, expected)


def test_a_piece_joins_a_batch_only_with_as_many_seeds_as_its_overlay_counts() -> None:
    for small, joins in ((10, True), (30, False)):
        queue = Queue()
        queue.ask(small, Objective(latency_ms=60))
        queue.ask(200, Objective(latency_ms=900), overlay=40)
        assert keys(queue.take()) == ([1, 0] if joins else [0])


@pytest.mark.parametrize("objective", [NO_OBJECTIVE, Objective(latency_ms=900)], ids=["no deadline", "a deadline"])
def test_small_requests_go_along_with_pieces_as_far_as_there_is_room(objective: Objective) -> None:
    queue = Queue()
    queue.ask(200, objective, overlay=40)
    for _ in range(10):
        queue.ask(10, objective)
    batch = queue.take()
    assert batch.load <= 100
    assert batch.load - batch.seeds == (40 if keys(batch)[0] == 0 else 0)


# Which variants answer


@pytest.mark.parametrize("table", [STATIC_X4, METRICS_X4, WEIGHTS_X4], ids=["Static", "Metrics", "Weights"])
def test_no_mode_binds_an_overlay_to_a_variant_that_cannot_answer_it(table: RoutingTable) -> None:
    queue = Queue(NO_X4, table)
    assert queue.variant_of(NO_OBJECTIVE, overlay=None) == "x4"
    assert queue.variant_of(NO_OBJECTIVE) == "x1"
    assert queue.variant_of(Objective(latency_ms=8)) == "x8"
    assert Queue(TRADE_OFF, table).variant_of(NO_OBJECTIVE) == "x4"


@pytest.mark.parametrize(
    ("objective", "ordinary", "with_overlay"),
    [
        pytest.param(NO_OBJECTIVE, "x1", "x1", id="the most accurate can answer it"),
        pytest.param(Objective(latency_ms=8), "x4", "x8", id="within the latency the next one can"),
        pytest.param(Objective(None, 10), "x4", "x1", id="within the tolerance a slower one can"),
        pytest.param(Objective(3, 10), "x4", "x1", id="no variant can be in time"),
    ],
)
def test_an_overlay_is_answered_by_a_variant_that_can(objective: Objective, ordinary: str, with_overlay: str) -> None:
    queue = Queue(NO_X4)
    assert queue.variant_of(objective, overlay=None) == ordinary
    assert queue.variant_of(objective, at=100) == with_overlay


@pytest.mark.parametrize("latency_ms", [None, 1, 50])
@pytest.mark.parametrize("table", [ADAPTIVE, STATIC_X4], ids=["Adaptive", "Static"])
def test_a_tolerance_that_leaves_no_capable_variant_is_answered_by_the_nearest(
    latency_ms: float | None, table: RoutingTable
) -> None:
    queue = Queue(without_overlays(TRADE_OFF, "x1", "x4"), table)
    objective = Objective(latency_ms, 20)
    assert queue.variant_of(objective) == "x8"
    assert queue.ask(objective=objective, overlay=0) is None
    assert queue.take(60_000).variant == "x8"  # however late

    refusal = queue.ask(objective=objective, overlay=0, strict=True)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.retry_after_s) == (RefusalReason.OBJECTIVE_INFEASIBLE, None)
    assert "the nearest, x8, loses 30 permille; allow a larger tolerance, leave out the overlay" in refusal.message


def test_the_choice_for_a_lone_overlay_counts_its_load() -> None:
    chooser = VariantChooser(NO_X4, max_seeds=100)
    assert choose(chooser, Objective(latency_ms=12), 1, OVERLAY).variant == "x1"
    choice = choose(chooser, Objective(latency_ms=12), 1, OVERLAY, load=60)
    assert (choice.variant, choice.reason) == ("x8", ChoiceReason.MOST_ACCURATE_WITHIN_LATENCY)
    choice = choose(chooser, Objective(latency_ms=1), 1, OVERLAY)
    assert "no variant answers 1 node with an overlay within 1 ms; the fastest, x8, needs 2.02 ms" in choice.message


def test_overlays_and_others_share_a_batch_by_a_variant_that_can_answer_both() -> None:
    queue = Queue(NO_X4)
    queue.ask(2)
    queue.ask(3, overlay=4)
    batch = queue.take()
    assert (batch.variant, batch.seeds, batch.load, keys(batch)) == ("x1", 5, 9, [0, 1])


def test_overlays_wait_for_their_own_batch_where_the_chosen_variant_cannot_answer_them() -> None:
    queue = Queue(NO_X4)
    queue.ask(2, Objective(latency_ms=8))
    queue.ask(3, Objective(latency_ms=30), overlay=4)
    batches = [queue.take(), queue.take(5)]
    assert [(batch.variant, keys(batch)) for batch in batches] == [("x4", [0]), ("x1", [1])]


def test_needs_that_every_variant_meets_make_no_groups_beside_that_of_overlays_which_cost_otherwise() -> None:
    queue = Queue(TRADE_OFF)
    for key, needs in enumerate(
        (STORED_GRAPH, Capabilities(embeddings=True), OVERLAY, Capabilities(overlay=True, embeddings=True))
    ):
        queue.batcher.admit(Request(key, 1, Objective(latency_ms=100), 0, needs), False, 0)
    assert [group.kind for group in queue.batcher.queue.groups] == [BatchKind.STORED, BatchKind.OVERLAY]
    queue = Queue(NO_X4)
    for overlay in (None, 0, 5):
        queue.ask(1, Objective(latency_ms=100), overlay=overlay)
    assert [group.allowed for group in queue.batcher.queue.groups] == [(True, True, True), (True, False, True)]


def test_cancelled_overlays_give_their_load_back() -> None:
    queue = Queue()
    queue.ask(250, overlay=40)
    queue.take()
    queue.ask(1, overlay=5)
    queue.batcher.cancel(0)
    assert queue.batcher.queue.seeds == 6
    queue.batcher.cancel(1)
    assert (queue.batcher.queue.seeds, queue.batcher.busy_until_ms(0)) == (0, 0)
    assert not math.isnan(queue.batcher.busy_until_ms(0))
