"""The operator in simulated trouble: every scene in peace, and a sample of every kind of trouble in each of them.

All points, and thousands of random lives, are `make bench-faults`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from tests.control.campaign.judge import History, differences, without_numbers
from tests.control.campaign.play import Peace, play
from tests.control.campaign.points import pairs, points, without_polls
from tests.control.campaign.scenarios import (
    SCENES,
    Scene,
    delete_and_apply_with_slow_collection,
    delete_at_the_first_child,
    delete_while_generating,
    is_generating,
    objective,
)
from tests.control.campaign.sequences import Life, live, lives
from tests.control.campaign.sweep import Played, sweep
from tests.control.campaign.trouble import Point
from tests.control.campaign.world import Call, World
from tests.support.campaigns import examples, share

_PEACE = Peace()
_POINTS = 4
"""Points of each scene. The scenes begin at different places, so that together they have every kind of trouble."""
_ALWAYS: Mapping[Scene, tuple[Point, ...]] = {
    delete_at_the_first_child: (Point("stale", 4),),
    delete_while_generating: (Point("merged", 6), Point("stopped", 0), Point("stopped and fenced", 0)),
    delete_and_apply_with_slow_collection: (Point("stale", 36), Point("backward", 39)),
}
"""Points that found something once, or without which a guard of `mutation.py` would not be missed."""
_SHORT = 5
"""A scene of so few reconciles costs little: more of its points are played."""


_LONG_S = 1000.0
"""Of simulated time: a scene in which something waits until it is called stalled. Fewer of its points are played."""


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Of an operator in trouble there is much to log."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.campaign
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_in_peace_nothing_is_violated(scene: Scene) -> None:
    assert _PEACE.of(scene).violations == ()


@pytest.mark.campaign
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_in_trouble_nothing_is_violated_and_the_end_is_the_same(scene: Scene) -> None:
    outcomes = sweep(scene, _sample(scene), _PEACE.of(scene))
    assert {str(point): played.violations for point, played in outcomes.items() if played.violations} == {}


@pytest.mark.campaign
@settings(
    max_examples=examples(15), derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(lives)
def test_whatever_came_before_the_end_is_that_of_a_fresh_apply(life: Life) -> None:
    assert asyncio.run(live(life)) == []


@pytest.mark.campaign
@pytest.mark.parametrize("scene", [delete_at_the_first_child, objective], ids=lambda scene: scene.__name__)
def test_a_run_that_is_forked_at_its_points_finds_what_runs_from_the_start_find(scene: Scene) -> None:
    """One point of each kind, and one that is never reached."""
    peaceful = _PEACE.of(scene)
    chosen = share(list({point.kind: point for point in points(peaceful) if point.at < 3}.values()), 3)
    chosen += [next(iter(pairs(peaceful, 1))), Point("409", 10_000)]
    from_the_start = {point: Played.of(asyncio.run(play(scene, point, peaceful))) for point in chosen}
    assert sweep(scene, chosen, peaceful, whole=chosen) == from_the_start
    assert [point for point, played in from_the_start.items() if not played.reached] == chosen[-1:]


@pytest.mark.campaign
def test_a_run_that_has_come_back_to_peace_ends_early_and_its_violations_are_told_all_the_same() -> None:
    peaceful = _PEACE.of(objective)
    crash = Point("crash after", 3)
    in_short, whole = (sweep(objective, [crash], peaceful, whole=whole)[crash] for whole in ((), (crash,)))
    assert in_short.violations == in_short.came_back == whole.violations == whole.came_back == ()
    assert in_short.simulated_s < whole.simulated_s / 2

    async def telltale(world: World) -> None:
        def is_seen() -> bool:
            if world.trouble.reached:
                world.judge.accuse("it was disturbed")
            return is_generating(world)

        world.create()
        await world.until(is_seen)
        await world.settled()

    told = sweep(telltale, [crash], asyncio.run(play(telltale)))[crash]
    assert (told.violations, told.came_back) == (("it was disturbed",), ("it was disturbed",))


@pytest.mark.campaign
def test_a_request_that_repeats_while_nothing_changes_is_disturbed_three_times() -> None:
    poll, write, later = Call(False, "GET /a", 7), Call(True, "PATCH /a", 7), Call(False, "GET /a", 8)
    calls = [poll, poll, poll, poll, write, later, later]
    assert [calls[number] for number in without_polls(calls)] == [poll, poll, poll, write, later, later]
    assert without_polls(calls) == [0, 1, 3, 4, 5, 6]


def test_claims_without_a_number_are_still_counted() -> None:
    """Else a claim left behind or a Job made twice would pass where numbers are not compared."""
    peaceful = {"Job d/x-generate-0a1b2c3d": {}, "PersistentVolumeClaim d/x-repository": {"name": "x-repository"}}
    other = {"Job d/x-generate-4e5f6a7b": {}, "PersistentVolumeClaim d/x-repository-3": {"name": "x-repository-3"}}
    assert differences(without_numbers(other), without_numbers(peaceful)) == []
    assert differences(without_numbers(peaceful | other), without_numbers(peaceful)) == [
        "Job d/x-generate again is there at the end, and not in peace",
        "PersistentVolumeClaim d/x-repository again is there at the end, and not in peace",
    ]
    once = History({("Job", "x-generate-0a1b2c3d"): 1, ("Job", "x-generate-4e5f6a7b"): 1}, {})
    twice = History({("Job", "x-generate-0a1b2c3d"): 1, ("Job", "x-generate-8c9d0e1f"): 2}, {})
    assert once.without_numbers().excess(twice.without_numbers(), None, {}) == []
    assert twice.without_numbers().excess(once.without_numbers(), None, {}) == [
        "Job x-generate was made 3 times, 2 in peace"
    ]


def test_a_run_is_the_same_each_time() -> None:
    """Else a point could not be repeated by its name."""
    first, second = (asyncio.run(play(SCENES[0])) for _ in range(2))
    assert (first.calls, first.end, first.history) == (second.calls, second.end, second.history)


def _sample(scene: Scene) -> list[Point]:
    """Other ones in each scene, and of each kind somewhere."""
    peaceful = _PEACE.of(scene)
    found = [*points(peaceful), *pairs(peaceful, 3)]
    wanted = _POINTS if peaceful.reconciles > _SHORT else 5 * _POINTS
    if peaceful.simulated_s > _LONG_S:
        wanted = _POINTS // 4
    stride = max(len(found) // wanted, 1)
    return [*_ALWAYS.get(scene, ()), *found[SCENES.index(scene) * 7 % stride :: stride]]
