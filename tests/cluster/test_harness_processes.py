"""What keeps the harness from ending anybody else's process, and two of its commands from doing the same work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.harness.client import wait_for
from tests.cluster.harness.commands import HarnessError, only_one, run_logged
from tests.cluster.harness.components import REPOSITORY
from tests.cluster.harness.processes import Background, identity, still_runs
from tests.cluster.harness.session import why_not

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('armed', flush=True); time.sleep(600)",
]


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    process = Background("sleeper", tmp_path / "sleeper.pid", tmp_path / "sleeper.log")
    yield process
    process.stop(patience_s=0)


def test_a_process_is_known_to_a_later_command_and_ends_when_asked(background: Background) -> None:
    background.start(SLEEP)
    again = Background(background.name, background.record, background.log)
    pid = again.pid()

    assert pid is not None
    again.start(SLEEP)
    assert again.pid() == pid, "what runs is not started again"
    again.stop()
    assert background.pid() is None
    assert not background.record.exists()


def test_a_process_that_ignores_the_request_is_killed(
    background: Background, capsys: pytest.CaptureFixture[str]
) -> None:
    background.start(STUBBORN)
    wait_for("the process to ignore SIGTERM", lambda: "armed" in background.log.read_text())
    background.stop(patience_s=0.1)

    assert background.pid() is None
    assert "SIGKILL" in capsys.readouterr().err


def test_a_pid_that_was_used_again_is_left_alone(background: Background) -> None:
    with subprocess.Popen(SLEEP) as somebody:
        background.record.write_text(f"{somebody.pid} 1")
        background.stop()

        assert somebody.poll() is None
        somebody.kill()


@pytest.mark.parametrize(
    "record",
    ["", "gone", "4194999 12", f"{os.getpid()}", f"{os.getpid()} None"],
    ids=["nothing", "no pid", "an old pid", "no time", "a time that is none"],
)
def test_a_record_that_names_no_running_process_is_stale(record: str) -> None:
    assert not still_runs(record)
    assert still_runs(identity(os.getpid()))


def test_a_killed_holder_gives_its_lock_up(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    program = (
        "import sys, time, pathlib; from tests.cluster.harness.commands import only_one\n"
        "with only_one(pathlib.Path(sys.argv[1]), 'hold it'): print('held', flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program, lock], cwd=root, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        with only_one(lock, "hold it"):
            pass


def test_a_failed_build_shows_the_end_of_its_log(tmp_path: Path) -> None:
    program = "print('first'); print('the reason'); raise SystemExit(3)"
    with pytest.raises(HarnessError, match=r"compiling it failed with exit status 3(.|\n)*the reason"):
        run_logged("compiling it", tmp_path / "it.log", sys.executable, "-c", program)


def test_only_root_or_a_given_cluster_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in str(why_not())
    monkeypatch.setenv("KUBECONFIG", "/home/somebody/.kube/config")
    assert why_not() is None


# --- what several processes use at once

USER = """
import sys
from pathlib import Path
from tests.cluster.harness.shared import shared
begin = lambda is_first: print("first" if is_first else "another", flush=True)
with shared(Path(sys.argv[1]), begin, lambda: print("last", flush=True)) as use:
    if sys.stdin.readline() .strip() == "alone":
        with use.alone("it"):
            print("alone", flush=True)
            sys.stdin.readline()
"""


@contextmanager
def user(lock: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", USER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        yield process


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()


def test_the_first_process_begins_and_the_last_one_ends_what_all_use(tmp_path: Path) -> None:
    with user(tmp_path / "it") as one, user(tmp_path / "it") as other:
        begun = {says(one), says(other)}
        tell(one, "end")
        assert (says(one), one.wait()) == ("", 0)
        tell(other, "end")
        assert says(other) == "last"
    assert begun == {"first", "another"}


def test_who_wants_it_alone_waits_until_the_others_have_ended_and_a_killed_one_counts_for_nothing(
    tmp_path: Path,
) -> None:
    with user(tmp_path / "it") as one, user(tmp_path / "it") as other:
        assert {says(one), says(other)} == {"first", "another"}
        tell(one, "alone")
        other.kill()
        assert says(one) == "alone"
        tell(one, "end")
        assert says(one) == "last"
