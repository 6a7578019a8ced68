"""How a thread waits for the GPU: with an event and a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gnnserve_worker.gpu.waiting import FEWEST_PROCESSORS, LONGEST_SPIN_S, Waits

STEP_S = 1e-5
"""Time that one question to the event takes."""


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Batch:
    """An event that happens `after_s` from the beginning of the wait."""

    clock: Clock
    after_s: float
    asked: int = 0
    slept_s: float = 0.0
    failure: Exception | None = None
    _due_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._due_s = self.clock.now_s + self.after_s

    def query(self) -> bool:
        self.asked += 1
        self.clock.now_s += STEP_S
        if self.failure is not None:
            raise self.failure
        return self.clock.now_s >= self._due_s

    def synchronize(self) -> None:
        self.slept_s = max(0.0, self._due_s - self.clock.now_s)
        self.clock.now_s += self.slept_s


@dataclass
class Machine:
    processors: int
    clock: Clock = field(default_factory=Clock)
    given_way: int = 0

    def __post_init__(self) -> None:
        self.waits = Waits(self.processors, self.clock, self._give_way)

    def _give_way(self) -> None:
        self.given_way += 1

    def batch(self, after_s: float, kind: str = "x1", times: int = 1) -> Batch:
        for _ in range(times):
            batch = Batch(self.clock, after_s)
            self.waits.wait(batch, kind)
        return batch


@pytest.mark.parametrize("processors", [1, 2, FEWEST_PROCESSORS - 1])
def test_without_a_processor_to_spare_a_thread_sleeps_at_once(processors: int) -> None:
    last = Machine(processors).batch(LONGEST_SPIN_S / 5, times=10)

    assert last.asked == 1
    assert last.slept_s > 0


def test_with_processors_to_spare_short_batches_are_spun_for_and_others_have_the_interpreter_meanwhile() -> None:
    machine = Machine(FEWEST_PROCESSORS)

    last = machine.batch(LONGEST_SPIN_S / 5, times=3)

    assert last.slept_s == 0
    assert last.asked == pytest.approx(LONGEST_SPIN_S / 5 / STEP_S, abs=1)
    assert machine.given_way >= last.asked - 1


def test_the_first_batch_of_a_kind_is_slept_for_since_nothing_is_known_of_it() -> None:
    machine = Machine(16)
    machine.batch(1e-4, times=3)

    assert machine.batch(1e-4, kind="x8").asked == 1


def test_batches_that_are_known_to_be_long_are_slept_for() -> None:
    last = Machine(16).batch(2 * LONGEST_SPIN_S, times=2)

    assert last.asked == 1
    assert last.slept_s > LONGEST_SPIN_S


def test_a_batch_that_takes_longer_than_others_of_its_kind_is_spun_for_a_bounded_time() -> None:
    machine = Machine(16)
    machine.batch(LONGEST_SPIN_S / 2, times=3)

    late = machine.batch(1.0)

    assert late.asked * STEP_S <= LONGEST_SPIN_S
    assert late.slept_s > 0.9


def test_what_a_kind_takes_is_followed() -> None:
    machine = Machine(16)
    machine.batch(2 * LONGEST_SPIN_S, times=3)
    assert machine.waits.spin_s("x1") == 0

    machine.batch(LONGEST_SPIN_S / 5, times=20)

    assert 0 < machine.waits.spin_s("x1") <= LONGEST_SPIN_S
    machine.waits.forget()
    assert machine.waits.spin_s("x1") == 0


def test_the_devices_error_comes_out_of_the_wait() -> None:
    machine = Machine(16)
    failure = RuntimeError("CUDA error: unspecified launch failure")

    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        machine.waits.wait(Batch(machine.clock, 1e-4, failure=failure), "x1")
