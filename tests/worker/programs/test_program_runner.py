"""Programs that crash, hang or take too much memory fail alone, and the next question is answered."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from tests.support.programs.programs import write_mischief

from gnnserve_api.files.programs import ProgramLimits, ProgramOutput
from gnnserve_worker.programs.failure import NotReadyError, ProgramFailedError, ProgramFailure
from gnnserve_worker.programs.forking import Fork, ForkServer
from gnnserve_worker.programs.messages import Start
from gnnserve_worker.programs.race import check_repeats
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.programs.stats import total_stats

SCORES = (ProgramOutput("scores", 2),)
ENDLESS, LONG, HUGE = 1e18, 4e5, 1e11


@pytest.fixture(scope="module")
def mischief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mischief(tmp_path_factory.mktemp("programs") / "mischief.onnx")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Of these tests alone, so that the processes that it has are theirs."""
    made = ForkServer()
    yield made
    made.end()


@pytest.fixture
def runner(mischief: Path, server: ForkServer) -> Iterator[ProgramRunner]:
    made = ProgramRunner(mischief, 2, ProgramLimits(memory_bytes=1 << 30, seconds=60), server=server)
    yield made
    made.close()


def ask(runner: ProgramRunner, *first: float, nodes: int = 3) -> np.ndarray:
    x = np.arange(2 * nodes, dtype=np.float32).reshape(nodes, 2)
    x[0] = first or (0, 0)
    (scores,) = runner.run({"x": x}, SCORES, nodes)
    return scores - x


def children(server: ForkServer) -> list[int]:
    """Processes of programs."""
    listed = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in listed.split()]


def computed_ticks(pid: int) -> int:
    """Processor time of a process so far, outside the kernel."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11])


def wait_for(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.001)


def test_answers_are_the_programs_for_any_size(runner: ProgramRunner) -> None:
    for nodes in (1, 5000, 3):
        assert not ask(runner, nodes=nodes).any()
    assert runner.stats.restarts == {}


def test_runs_are_told_as_their_process_had_them(runner: ProgramRunner) -> None:
    began_ms = time.perf_counter() * 1e3
    ask(runner)
    ended_ms = time.perf_counter() * 1e3
    ask(runner)
    (run,) = runner.runs_between(began_ms, ended_ms)
    assert began_ms <= run.began_ms <= run.ended_ms <= ended_ms
    assert runner.stats.run_s * 1e3 >= run.ended_ms - run.began_ms


def test_many_threads_ask_one_process(runner: ProgramRunner, server: ForkServer) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert not any(found.any() for found in threads.map(lambda n: ask(runner, nodes=n), range(1, 200)))
    assert len(children(server)) == 1
    assert runner.stats.restarts == {}


def test_a_program_that_hangs_is_ended_and_the_next_question_is_answered(mischief: Path, server: ForkServer) -> None:
    runner = ProgramRunner(mischief, 2, ProgramLimits(memory_bytes=1 << 30, seconds=20), server=server)
    ask(runner)
    runner.limit(ProgramLimits(memory_bytes=1 << 30, seconds=0.3))
    (before,) = children(server)
    with pytest.raises(ProgramFailedError, match=r"took longer than 0\.3 s; .*fewer nodes") as raised:
        ask(runner, ENDLESS, 0)
    assert raised.value.failure is ProgramFailure.TIME_OUT
    assert before not in children(server)
    runner.limit(ProgramLimits(memory_bytes=1 << 30, seconds=20))
    assert not ask(runner).any()
    assert runner.stats.restarts == {ProgramFailure.TIME_OUT: 1}
    runner.close()


def test_who_asked_beside_a_hanging_question_is_answered_by_the_new_process(mischief: Path, server: ForkServer) -> None:
    """One lane: the second question waits for it while the first one hangs."""
    runner = ProgramRunner(mischief, 1, ProgramLimits(memory_bytes=1 << 30, seconds=20), server=server)
    ask(runner)
    failed = threading.Event()

    def hang() -> None:
        runner.limit(ProgramLimits(memory_bytes=1 << 30, seconds=1))
        with pytest.raises(ProgramFailedError):
            ask(runner, ENDLESS, 0)
        failed.set()

    process = runner._held.process
    assert process is not None
    with ThreadPoolExecutor(2) as threads:
        hanging = threads.submit(hang)
        while process.free_lanes != 0:
            pass
        runner.limit(ProgramLimits(memory_bytes=1 << 30, seconds=20))
        assert not threads.submit(ask, runner).result().any()
        hanging.result()
    assert failed.is_set()
    assert runner.stats.restarts == {ProgramFailure.TIME_OUT: 1}
    runner.close()


def test_a_program_that_takes_too_much_memory_is_told(runner: ProgramRunner) -> None:
    with pytest.raises(ProgramFailedError, match="more memory") as raised:
        ask(runner, 0, HUGE)
    assert raised.value.failure is ProgramFailure.MEMORY
    assert not ask(runner).any()
    assert runner.stats.restarts == {ProgramFailure.MEMORY: 1}


def test_memory_without_room_for_its_threads_is_told(mischief: Path, server: ForkServer) -> None:
    limits = ProgramLimits(memory_bytes=32 << 20, seconds=60)
    with closing(ProgramRunner(mischief, 64, limits, server=server)) as runner:
        with pytest.raises(NotReadyError, match="cannot be read within 32 MiB") as raised:
            ask(runner)
        assert raised.value.failure is ProgramFailure.MEMORY


def test_memory_is_counted_over_the_limit_of_the_service(runner: ProgramRunner) -> None:
    """2 GiB, which the machine has, where 1 GiB is allowed."""
    with pytest.raises(ProgramFailedError) as raised:
        ask(runner, 0, float(1 << 29))
    assert raised.value.failure is ProgramFailure.MEMORY


def test_a_crash_while_it_runs_is_told_and_a_new_process_answers(runner: ProgramRunner, server: ForkServer) -> None:
    ask(runner)
    (pid,) = children(server)
    before = computed_ticks(pid)
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(ask, runner, ENDLESS, 0)
        # It runs: a question that was not read would be asked again.
        wait_for(lambda: computed_ticks(pid) > before + 10)
        os.kill(pid, signal.SIGSEGV)
        with pytest.raises(ProgramFailedError, match="ended its process, with status -11; a new process") as raised:
            hanging.result()
    assert raised.value.failure is ProgramFailure.CRASH
    assert not ask(runner).any()
    assert runner.stats.restarts == {ProgramFailure.CRASH: 1}


def test_a_process_that_ended_between_questions_is_replaced_before_the_next_one(
    runner: ProgramRunner, server: ForkServer
) -> None:
    ask(runner)
    (before,) = children(server)
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: runner.is_running and children(server) not in ([], [before]))
    assert runner.stats.restarts == {ProgramFailure.CRASH: 1}
    assert not ask(runner).any()
    assert runner.stats.failed == 0


def test_questions_to_a_process_that_was_ended_before_it_read_them_are_answered(
    runner: ProgramRunner, server: ForkServer
) -> None:
    for _ in range(5):
        ask(runner)
        (pid,) = children(server)
        os.kill(pid, signal.SIGKILL)
        assert not ask(runner).any()
        wait_for(lambda: runner.is_running and len(children(server)) == 1)
    assert (runner.stats.answered, runner.stats.failed) == (10, 0)
    assert runner.stats.restarts == {ProgramFailure.CRASH: 5}


def test_a_slow_run_yields_to_others_and_later_ones_do_not(runner: ProgramRunner, server: ForkServer) -> None:
    ask(runner)
    (pid,) = children(server)
    usual = os.getpriority(os.PRIO_PROCESS, pid)

    def lowered() -> list[Path]:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [task for task in tasks if os.getpriority(os.PRIO_PROCESS, int(task.name)) > usual]

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ask, runner, LONG, 0)
        wait_for(lambda: bool(lowered()) or running.done())
        assert len(lowered()) == 1
        running.result()
    wait_for(lambda: not lowered())
    assert not any(ask(runner).any() for _ in range(4))
    assert runner.stats.restarts == {}


def test_after_a_run_that_hangs_the_next_one_leaves_the_cores_to_others_and_later_ones_do_not(
    mischief: Path, server: ForkServer
) -> None:
    hours = itertools.count(step=3600)
    limits = ProgramLimits(memory_bytes=1 << 30, seconds=0.5)
    with closing(ProgramRunner(mischief, 1, limits, clock_s=lambda: next(hours), server=server)) as runner:
        while not runner._starts.has_hung:  # where others have the cores it only waits
            with pytest.raises(ProgramFailedError, match="took longer"):
                ask(runner, ENDLESS, 0)
        runner.limit(ProgramLimits(memory_bytes=1 << 30, seconds=60))

        def policies() -> list[int]:
            found = []
            for pid in children(server):
                with suppress(OSError):
                    found += [os.sched_getscheduler(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]
            return found

        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(ask, runner, LONG, 0)
            wait_for(lambda: os.SCHED_IDLE in policies() or running.done())
            assert not running.done()
            running.result()
        wait_for(lambda: os.SCHED_IDLE not in policies())
        assert not any(ask(runner).any() for _ in range(4))
        assert os.SCHED_IDLE not in policies()


class HeldServer(ForkServer):
    """Starts nothing until it is told to, and then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def fork(self, start: Start, descriptors: list[int]) -> Fork:
        self.is_asked.set()
        self.goes_on.wait()
        raise OSError(f"no process of {start.file} with {len(descriptors)} descriptors")


def test_runs_wait_for_the_first_process_as_long_as_a_start_may_take(mischief: Path) -> None:
    server = HeldServer()
    runner = ProgramRunner(mischief, 1, ProgramLimits(seconds=600, start_seconds=0.01), server=server)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(ask, runner)
        server.is_asked.wait()
        try:
            with pytest.raises(ProgramFailedError, match=r"is being started for longer than 0\.01 s"):
                ask(runner)
        finally:
            server.goes_on.set()
        assert isinstance(first.exception(), NotReadyError)
    runner.close()


def test_where_the_fork_server_is_gone_another_one_starts_the_next_process(mischief: Path) -> None:
    server = ForkServer()
    runner = ProgramRunner(mischief, 1, server=server)
    ask(runner)
    first = server.pid
    assert first is not None
    (pid,) = children(server)
    os.kill(first, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.pid not in (None, first))
    assert not ask(runner).any()
    runner.close()
    server.end()


def test_many_lanes_are_passed_to_a_process(mischief: Path, server: ForkServer) -> None:
    """More descriptors than Linux passes in one message."""
    runner = ProgramRunner(mischief, 200, server=server)
    assert not ask(runner).any()
    runner.close()


def test_outputs_of_another_shape_are_told(runner: ProgramRunner) -> None:
    x = np.zeros((3, 2), np.float32)
    for outputs, rows in (((ProgramOutput("scores", 5),), 3), (SCORES, 4)):
        with pytest.raises(ProgramFailedError, match=r"output scores is float32 \[3, 2\], expected float32") as raised:
            runner.run({"x": x}, outputs, rows)
        assert raised.value.failure is ProgramFailure.REFUSED
    assert runner.stats.restarts == {}


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no program")
    runner = ProgramRunner(tmp_path / "model.onnx", 1, server=server)
    with pytest.raises(ProgramFailedError, match="cannot be read"):
        runner.run({}, SCORES, 1)
    assert runner.stats.restarts == {ProgramFailure.REFUSED: 1}
    assert children(server) == []
    runner.close()


def test_nothing_is_left_of_a_closed_runner(runner: ProgramRunner, server: ForkServer) -> None:
    ask(runner)
    files = len(list(Path("/proc/self/fd").iterdir()))
    runner.close()
    assert children(server) == []
    assert len(list(Path("/proc/self/fd").iterdir())) < files
    with pytest.raises(ProgramFailedError, match="not served any more"):
        ask(runner)


def test_a_worker_without_onnx_runtime_says_what_to_install(
    mischief: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ModuleNotFoundError(name='onnxruntime')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    without = ForkServer()
    runner = ProgramRunner(mischief, 1, server=without)
    with pytest.raises(ProgramFailedError, match=r"onnxruntime is not installed; `pip install 'gnnserve\[programs\]'"):
        ask(runner)
    runner.close()
    without.end()


def test_a_runner_that_is_let_go_leaves_no_process(mischief: Path, server: ForkServer) -> None:
    runner = ProgramRunner(mischief, 1, server=server)
    ask(runner)
    assert len(children(server)) == 1
    del runner
    gc.collect()
    assert children(server) == []


def test_starts_that_fail_again_and_again_are_further_and_further_apart(tmp_path: Path, server: ForkServer) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no program")
    now = 0.0
    runner = ProgramRunner(tmp_path / "model.onnx", 1, clock_s=lambda: now, server=server)

    def waits_s() -> float:
        with pytest.raises(ProgramFailedError) as raised:
            runner.run({}, SCORES, 1)
        assert raised.value.failure is ProgramFailure.REFUSED
        return raised.value.retry_after_s

    assert [waits_s(), waits_s(), waits_s()] == [0.0, 0.0, 1.0]
    assert runner.stats.restarts == {ProgramFailure.REFUSED: 2}
    now = 1.0
    assert [waits_s(), waits_s()] == [0.0, 2.0]
    for _ in range(8):
        now += 30.0
        assert waits_s() == 0.0
    assert waits_s() == 30.0
    assert "is started again in 30.0 s" in runner.stats.problem
    runner.close()


def test_an_answer_lets_the_next_process_start_at_once(mischief: Path, server: ForkServer) -> None:
    runner = ProgramRunner(
        mischief, 1, ProgramLimits(memory_bytes=1 << 30, seconds=60), clock_s=lambda: 0.0, server=server
    )
    for _ in range(3):
        assert not ask(runner).any()
        with pytest.raises(ProgramFailedError):
            ask(runner, 0, HUGE)
        assert runner.stats.problem.startswith("the program of this service failed")
    assert not ask(runner).any()
    assert runner.stats.problem == ""
    assert (runner.stats.answered, runner.stats.failed) == (4, 3)
    runner.close()


def test_runs_that_fail_again_and_again_keep_others_waiting_for_two_seconds_at_most(
    mischief: Path, server: ForkServer
) -> None:
    now = 0.0
    limits = ProgramLimits(memory_bytes=1 << 30, seconds=60)
    runner = ProgramRunner(mischief, 1, limits, clock_s=lambda: now, server=server)
    for _ in range(8):
        now += 2.0
        with pytest.raises(ProgramFailedError) as raised:
            ask(runner, 0, HUGE)
        assert raised.value.retry_after_s == 0.0
    with pytest.raises(ProgramFailedError, match=r"is started again in 2\.0 s"):
        ask(runner)
    now += 2.0
    assert not ask(runner).any()
    runner.close()


def test_other_limits_hold_from_the_next_run_on(mischief: Path, server: ForkServer) -> None:
    large = float(1 << 27)
    with closing(ProgramRunner(mischief, 1, ProgramLimits(memory_bytes=1 << 28, seconds=60), server=server)) as runner:
        with pytest.raises(ProgramFailedError):
            ask(runner, 0, large)
        runner.limit(ProgramLimits(memory_bytes=1 << 30, seconds=60))
        ask(runner, 0, large)
        (before,) = children(server)
        runner.limit(ProgramLimits(memory_bytes=1 << 30, seconds=50))
        ask(runner)
        assert children(server) == [before], "another time needs no other process"
        assert runner.stats.restarts == {ProgramFailure.MEMORY: 1}


def test_other_limits_let_a_program_that_could_not_be_read_start_at_once(mischief: Path, server: ForkServer) -> None:
    little = ProgramLimits(memory_bytes=32 << 20, seconds=60)
    with closing(ProgramRunner(mischief, 64, little, clock_s=lambda: 0.0, server=server)) as runner:
        for _ in range(2):
            with pytest.raises(NotReadyError):
                ask(runner)
        with pytest.raises(ProgramFailedError, match=r"started again in 1\.0 s"):
            ask(runner)
        runner.limit(ProgramLimits(memory_bytes=2 << 30, seconds=60))
        assert not ask(runner).any()


def test_stats_of_several_programs_add_up(runner: ProgramRunner) -> None:
    ask(runner)
    both = total_stats([runner.stats, runner.stats])
    assert both is not None
    assert both.answered == 2 * runner.stats.answered == 2
    assert both.run_s == 2 * runner.stats.run_s > 0
    assert total_stats([]) is None


def test_twenty_runs_are_equal_over_thousands_of_rows(runner: ProgramRunner) -> None:
    x = np.random.default_rng(0).random((4000, 2)).astype(np.float32)
    (scores,) = check_repeats(runner, {"x": x}, SCORES, 4000)
    np.testing.assert_array_equal(scores, x)
