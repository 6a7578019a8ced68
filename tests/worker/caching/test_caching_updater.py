import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from tests.support.machine.waiting import WAIT_S

from gnnserve_api.device import CachePolicy
from gnnserve_worker.caching.epochs import Epochs
from gnnserve_worker.caching.policies.build import build_policy
from gnnserve_worker.caching.sharding import CachePlan
from gnnserve_worker.caching.slots import MaskedSlots
from gnnserve_worker.caching.updater import CountedReads, Rhythm, Updater, rest_seconds

PLAN = CachePlan(nodes=100, blocks=1, block_columns=32, block_bytes=128, slots=(10,))
NEVER = Rhythm(batches=10**9, seconds=3600.0)


@dataclass
class FakeStorage:
    """Counts of reads that a test sets, and a directory."""

    reads: list[int] = field(default_factory=list)
    problem: Exception | None = None
    directory: np.ndarray = field(default_factory=lambda: np.full(PLAN.items, -1))
    most_written: int = 0
    on_write: threading.Event = field(default_factory=threading.Event)

    def mask(self, items):
        self.directory[items] = -1

    def wait_for_readers(self):
        pass

    def write(self, items, slots):
        self.most_written = max(self.most_written, len(items))
        self.on_write.set()

    def unmask(self, items, slots):
        self.directory[items] = slots

    def take_reads(self):
        if self.problem is not None:
            raise self.problem
        items, times = np.unique(np.array(self.reads, dtype=np.int64), return_counts=True)
        self.reads.clear()
        return CountedReads(items, times.astype(np.int32))


@dataclass
class World:
    storage: FakeStorage
    slots: MaskedSlots
    epochs: Epochs
    updater: Updater


def world(policy=CachePolicy.LFU, rhythm=NEVER):
    storage, epochs = FakeStorage(), Epochs()
    slots = MaskedSlots(PLAN, storage)
    built = build_policy(policy, PLAN.items, PLAN.capacity, np.ones(PLAN.items, dtype=np.float32))
    slots.fill(built.begin())
    return World(storage, slots, epochs, Updater(built, slots, storage, epochs, rhythm))


@pytest.mark.parametrize("policy", [policy for policy in CachePolicy if policy is not CachePolicy.NONE])
def test_what_is_cached_is_what_the_policy_keeps_after_every_round(policy):
    made = world(policy)
    rng = np.random.default_rng(3)
    for _ in range(20):
        made.storage.reads += (rng.zipf(1.3, 300) % 100).tolist()
        cost = made.updater.run_round()
        assert cost.items > 0
        resident = np.flatnonzero(made.updater._policy.resident)
        assert made.slots.readable().tolist() == resident.tolist()
        assert np.flatnonzero(made.storage.directory >= 0).tolist() == resident.tolist()
    assert made.updater.totals.rounds == 20


def test_nothing_is_decided_when_nothing_was_read():
    made = world()
    cost = made.updater.run_round()
    assert (cost.items, cost.admitted, cost.evicted) == (0, 0, 0)
    assert made.slots.readable().tolist() == []


def test_changes_are_carried_out_in_portions():
    made = world(rhythm=Rhythm(portion_items=3))
    made.storage.reads += range(10)
    assert made.updater.run_round().admitted == 10
    assert made.storage.most_written == 3


def test_rows_that_changed_are_copied_again_in_the_next_round():
    made = world()
    made.storage.reads += [1, 2]
    made.updater.run_round()
    made.slots.invalidate(np.array([2]))
    assert made.slots.readable().tolist() == [1]
    assert made.updater.run_round().refreshed == 1
    assert made.slots.readable().tolist() == [1, 2]


def test_a_round_comes_after_enough_batches_without_waiting_for_the_time():
    made = world(rhythm=Rhythm(batches=3, seconds=3600.0))
    made.updater.start()
    made.storage.reads += [5]
    for batch in range(3):
        assert not made.storage.on_write.is_set(), f"a round before batch {batch}"
        made.epochs.leave(made.epochs.enter())
        made.updater.notice()
    assert made.storage.on_write.wait(WAIT_S)
    made.updater.stop()
    assert made.slots.readable().tolist() == [5]


def test_a_round_comes_after_a_while_if_there_was_a_batch():
    made = world(rhythm=Rhythm(batches=10**9, seconds=0.001))
    made.storage.reads += [5]
    made.epochs.leave(made.epochs.enter())
    made.updater.start()
    assert made.storage.on_write.wait(WAIT_S)
    made.updater.stop()


def test_an_invalidation_wakes_the_thread_though_nothing_was_read():
    made = world()
    made.storage.reads += [5]
    made.updater.run_round()
    made.storage.on_write.clear()
    made.slots.invalidate(np.array([5]))
    made.updater.start()
    made.updater.wake()
    assert made.storage.on_write.wait(WAIT_S)
    made.updater.stop()
    assert made.slots.readable().tolist() == [5]


def test_stopping_ends_a_thread_that_rests_and_may_be_asked_for_twice():
    made = world(rhythm=Rhythm(batches=1, seconds=0.001, busy_share=1e-9))
    made.storage.reads += [5]
    made.epochs.leave(made.epochs.enter())
    made.updater.start()
    assert made.storage.on_write.wait(WAIT_S)
    made.updater.stop()
    made.updater.stop()
    assert not made.updater._thread.is_alive()


def test_a_thread_that_fails_says_why_and_leaves_the_cache_as_it_is(caplog):
    made = world()
    made.storage.reads += [5]
    made.updater.run_round()
    made.storage.problem = RuntimeError("CUDA error: an illegal memory access was encountered")
    made.epochs.leave(made.epochs.enter())
    made.updater.start()
    made.updater.wake()
    made.updater._thread.join()
    assert made.updater.problem == (
        "the cache is not updated any more: RuntimeError: CUDA error: an illegal memory access was encountered"
    )
    assert made.slots.readable().tolist() == [5]
    made.updater.stop()
    assert "not updated any more" in caplog.text


def test_an_expensive_round_is_followed_by_a_long_rest():
    rhythm = Rhythm(busy_share=0.1)
    assert rest_seconds(0.02, rhythm) == pytest.approx(0.18)
