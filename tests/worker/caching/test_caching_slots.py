from functools import partial

import numpy as np
import pytest
from tests.support.caching.cache_steps import Scene, all_scenes

from gnnserve_worker.caching import slots as slots_module
from gnnserve_worker.caching.policy import NO_ITEMS, ResidencyChanges
from gnnserve_worker.caching.sharding import CachePlan
from gnnserve_worker.caching.slots import MaskedSlots, portions

PLAN = CachePlan(nodes=10, blocks=3, block_columns=32, block_bytes=128, slots=(4, 3))


class Recorded:
    """A storage that keeps a directory, and what was asked of it, in order."""

    def __init__(self):
        self.directory = np.full(PLAN.items, -1)
        self.calls = []
        self.during_write = lambda: None

    def mask(self, items):
        self.calls.append(("mask", items.tolist()))
        self.directory[items] = -1

    def wait_for_readers(self):
        self.calls.append(("wait",))

    def write(self, items, slots):
        self.calls.append(("write", items.tolist()))
        self.during_write()

    def unmask(self, items, slots):
        self.calls.append(("unmask", items.tolist()))
        self.directory[items] = slots


@pytest.fixture
def storage():
    return Recorded()


@pytest.fixture
def slots(storage):
    return MaskedSlots(PLAN, storage)


def items(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_what_is_evicted_is_masked_before_anything_is_written_into_its_slot(slots, storage):
    slots.fill(items(3, 14))
    storage.calls.clear()
    slots.change(ResidencyChanges(evicted=items(14), admitted=items(25)))
    assert storage.calls == [("mask", [14]), ("wait",), ("write", [25]), ("unmask", [25])]
    assert slots.readable().tolist() == [3, 25]


def test_directory_and_ledger_agree_over_a_thousand_random_changes(slots, storage):
    rng = np.random.default_rng(1)
    inside = set()
    for _ in range(1000):
        evicted = rng.permutation(sorted(inside))[: rng.integers(0, 4)].astype(np.int64)
        outside = [item for item in range(PLAN.items) if item not in inside]
        room = PLAN.capacity - len(inside) + len(evicted)
        admitted = rng.permutation(outside)[: rng.integers(0, min(4, room) + 1)].astype(np.int64)
        slots.change(ResidencyChanges(evicted, admitted))
        if rng.random() < 0.3:
            slots.invalidate(rng.integers(0, PLAN.nodes, 2))
        inside = inside - set(evicted.tolist()) | set(admitted.tolist())
        slots.refresh(PLAN.items)
        shown = np.flatnonzero(storage.directory >= 0)
        assert slots.readable().tolist() == shown.tolist() == sorted(inside)
        assert len(set(storage.directory[shown])) == len(shown), "two items in one slot"
        assert set(storage.directory[shown]) <= {0, 1, 2, 3, 4, 5, 6}
        assert slots.free_slots == PLAN.capacity - len(inside)


def test_a_row_that_changed_is_not_read_until_it_was_copied_again(slots, storage):
    slots.fill(items(3, 4, 13, 23))
    storage.calls.clear()
    slots.invalidate(items(3))
    assert storage.calls == [("mask", [3, 13, 23]), ("wait",)]
    assert slots.readable().tolist() == [4]
    assert slots.has_outdated
    assert slots.refresh(2) == 2
    assert slots.readable().tolist() == [3, 4, 13]
    assert slots.refresh(2) == 1
    assert slots.readable().tolist() == [3, 4, 13, 23]
    assert not slots.has_outdated
    assert slots.written.copied == 7
    assert slots.written.admitted == 4


def test_a_row_that_changes_while_it_is_copied_is_copied_again_and_never_shown_before(slots, storage):
    storage.during_write = lambda: slots.invalidate(items(4))
    slots.change(ResidencyChanges(NO_ITEMS, items(4, 5)))
    assert ("unmask", [5]) in storage.calls
    assert storage.directory[4] == -1
    storage.during_write = lambda: None
    assert slots.refresh(10) == 1
    assert slots.readable().tolist() == [4, 5]


def test_a_row_that_changed_and_was_evicted_is_forgotten(slots, storage):
    slots.fill(items(3))
    slots.invalidate(items(3))
    slots.change(ResidencyChanges(evicted=items(3), admitted=items(4)))
    assert slots.refresh(10) == 0
    assert slots.readable().tolist() == [4]
    assert not slots.has_outdated


def test_a_row_that_was_admitted_again_since_it_changed_is_not_written_while_it_is_read(slots, storage):
    slots.fill(items(3))
    slots.invalidate(items(3))
    slots.change(ResidencyChanges(evicted=items(3), admitted=NO_ITEMS))
    slots.change(ResidencyChanges(evicted=NO_ITEMS, admitted=items(3)))
    storage.calls.clear()
    assert slots.refresh(10) == 0
    assert storage.calls == []


def test_a_row_that_changed_twice_and_was_copied_in_between_is_copied_once_more_and_no_more(slots, storage):
    slots.fill(items(3, 4))
    slots.invalidate(items(3, 4))
    assert slots.refresh(1) == 1
    slots.invalidate(items(3))
    slots.change(ResidencyChanges(evicted=items(4), admitted=items(5)))
    storage.calls.clear()
    while slots.has_outdated:
        slots.refresh(1)
    assert [call for call in storage.calls if call[0] == "write"] == [("write", [3])]
    assert slots.readable().tolist() == [3, 5]


def test_where_any_row_may_have_changed_all_are_masked_at_once_and_copied_again_bit_by_bit(slots, storage, monkeypatch):
    monkeypatch.setattr(slots_module, "_MASKED_AT_ONCE", 2)
    slots.fill(items(3, 14, 25))
    storage.calls.clear()
    slots.invalidate_all()
    assert storage.calls == [("mask", [3, 14]), ("mask", [25]), ("wait",)]
    assert (storage.directory == -1).all()
    copied = []
    while slots.has_outdated:
        copied.append(slots.refresh(2))
    assert copied == [2, 1]
    assert slots.readable().tolist() == [3, 14, 25]


def test_what_is_being_copied_while_any_row_may_have_changed_is_copied_again(slots, storage):
    storage.during_write = slots.invalidate_all
    slots.change(ResidencyChanges(NO_ITEMS, items(4)))
    assert storage.directory[4] == -1
    storage.during_write = lambda: None
    assert slots.refresh(10) == 1
    assert slots.readable().tolist() == [4]


def test_an_invalidation_waits_even_for_readers_of_what_is_masked_already(slots, storage):
    slots.invalidate(items(7))
    assert storage.calls == [("wait",)]


@pytest.mark.parametrize("failing", ["mask", "write", "unmask"])
def test_rows_that_change_after_the_storage_failed_once_are_still_masked(slots, storage, failing, monkeypatch):
    """No memory for a moment, which ends the updating thread: what is cached stays, and must stay right."""
    slots.fill(items(3, 4))

    def fail(items, slots=None):
        if failing == "unmask":
            storage.directory[items] = slots  # it may have got that far
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(storage, failing, fail)
        with pytest.raises(MemoryError):
            slots.change(ResidencyChanges(evicted=items(3), admitted=items(5)))
    slots.invalidate(items(3, 4, 5))
    assert (storage.directory == -1).all()


@pytest.mark.parametrize("node", [-1, 10])
def test_nodes_that_do_not_exist_cannot_be_invalidated(slots, node):
    with pytest.raises(ValueError, match="expected 0 to 9"):
        slots.invalidate(items(node))


def test_a_policy_that_contradicts_the_ledger_is_caught(slots):
    with pytest.raises(ValueError, match="item 5 is to be evicted and is not cached"):
        slots.change(ResidencyChanges(items(5), NO_ITEMS))
    slots.fill(items(5))
    with pytest.raises(ValueError, match="item 5 is to be admitted and is cached"):
        slots.change(ResidencyChanges(NO_ITEMS, items(4, 5)))
    with pytest.raises(ValueError, match="beyond the capacity"):
        slots.fill(items(*range(10, 17)))


@pytest.mark.parametrize(
    ("evicted", "admitted", "free"), [(7, 7, 0), (0, 5, 5), (9, 2, 0), (2, 9, 7), (10, 10, 1), (0, 0, 0)]
)
def test_portions_are_bounded_and_never_need_more_slots_than_are_free(evicted, admitted, free):
    changes = ResidencyChanges(np.arange(evicted), 100 + np.arange(admitted))
    parts = list(portions(changes, 3, free))
    for part in parts:
        assert len(part.evicted) <= 3
        assert len(part.admitted) <= 3
        free += len(part.evicted) - len(part.admitted)
        assert free >= 0
    assert np.concatenate([NO_ITEMS, *(part.evicted for part in parts)]).tolist() == changes.evicted.tolist()
    assert np.concatenate([NO_ITEMS, *(part.admitted for part in parts)]).tolist() == changes.admitted.tolist()


def test_no_order_of_steps_shows_a_reader_a_wrong_row():
    """Every interleaving of one reader with the writer's steps, and with a row that changes at any moment."""
    hits = scenes = 0
    for scene in all_scenes(Scene):
        seen = scene.play().seen
        assert seen.is_right, scene
        hits += seen.words is not None
        scenes += 1
    assert scenes > 30_000
    assert hits > 1000


@pytest.mark.campaign
@pytest.mark.parametrize("mistake", ["skip_wait", "unmask_first", "skip_invalidation_wait", "forget_void"])
def test_some_order_of_steps_betrays_each_mistake(mistake):
    scenes = all_scenes(partial(Scene, **{mistake: True}))
    assert any(not scene.play().seen.is_right for scene in scenes)
