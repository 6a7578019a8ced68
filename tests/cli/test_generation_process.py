"""The process that generates for `gnnserve run`: what it is told, what it shows, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.machine import fork_server
from tests.support.machine.waiting import WAIT_S, until

from gnnserve_api.manifest import Document, folder_of, load_manifest, parse_document

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.support.generation.generating_program"


@contextmanager
def program(deed: str) -> Iterator[fork_server.Process]:
    with fork_server.started(PROGRAM, deed, stdout=True, stderr=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: fork_server.Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end_of(process: fork_server.Process) -> tuple[int, str, str]:
    """Exit status, and what it still wrote."""
    assert process.stdout is not None
    assert process.stderr is not None
    said, complained = process.stdout.read(), process.stderr.read()
    return process.wait(WAIT_S), said, complained


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize(
    ("deed", "code", "said", "complaint"),
    [
        pytest.param("answer", 0, "r1\n", r"", id="a revision is named"),
        pytest.param(
            "find_damage", 0, "models/r1: was altered; restore it\n", r"", id="a repository's problem is told"
        ),
        pytest.param("be_refused", 2, "", r"error: spec\.graph: is none; give one\n", id="an error is said once"),
        pytest.param("fail", 1, "", r"Traceback [^E]*\n(.*\n)*KeyError: 'a defect'\n", id="a defect has its trace"),
        pytest.param(
            "be_killed", 4, "", r"error: the process that generates was killed, as the kernel .*\n", id="it is killed"
        ),
    ],
)
def test_end_of_the_process_is_that_of_the_program(deed: str, code: int, said: str, complaint: str) -> None:
    with program(deed) as process:
        pid = int(read_line(process))
        ended, found, complained = end_of(process)
        assert (ended, found) == (code, said)
        assert re.fullmatch(complaint, complained), complained
        assert is_gone(pid)


@pytest.mark.parametrize(
    ("number", "code", "complaint"),
    [(signal.SIGINT, 130, "interrupted; nothing was published\n"), (signal.SIGTERM, 143, "")],
)
def test_signal_to_the_program_ends_both(number: int, code: int, complaint: str) -> None:
    with program("wait") as process:
        pid = int(read_line(process))
        process.send_signal(number)
        assert end_of(process) == (code, "", complaint)
        assert is_gone(pid)


def test_process_is_not_ended_a_second_time_while_it_removes_what_is_half_written() -> None:
    with program("clean_up") as process:
        pid = int(read_line(process))
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == (143, "cleaned up\n", "")
        assert is_gone(pid)


def test_process_is_suspended_and_resumed_with_the_program() -> None:
    with program("wait") as process:
        pid = int(read_line(process))
        process.send_signal(signal.SIGTSTP)
        until(lambda: is_stopped(pid) and is_stopped(process.pid), "both are suspended")
        process.send_signal(signal.SIGCONT)
        until(lambda: not is_stopped(pid) and not is_stopped(process.pid), "both go on")
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == (143, "", "")
        assert is_gone(pid)


def test_killed_program_leaves_no_orphan() -> None:
    with program("wait") as process:
        pid = int(read_line(process))
        process.kill()
        assert process.wait(WAIT_S) == -signal.SIGKILL
        # This process adopts it, and hears of its end.
        ended: list[int] = []

        def has_ended() -> bool:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ended.append(os.waitstatus_to_exitcode(status))
            return bool(found)

        until(has_ended, "the process has ended")
        assert ended == [143]


def test_process_draws_its_bars_on_the_terminal_of_the_program() -> None:
    ours, its = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-m", PROGRAM, "train"], stdout=subprocess.DEVNULL, stderr=its, env=environ, cwd=ROOT
    ) as process:
        os.close(its)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(ours)
    assert process.returncode == 0, shown
    assert "train x1" in shown.decode()
    assert "━━━━" in shown.decode(), "a bar, and no line of a log"


def examples() -> list[Path]:
    """Files that hold one service and nothing else."""
    found = {path: path.read_text() for path in sorted((ROOT / "examples").rglob("*.yaml"))}
    return [path for path, text in found.items() if "\nkind: GNNService\n" in f"\n{text}" and "\n---\n" not in text]


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_manifest_is_the_same_in_the_process(path: Path) -> None:
    service = load_manifest(path)
    document = json.loads(service.model_dump_json(by_alias=True, exclude_unset=True))
    again = parse_document(Document(str(path), document), folder_of(path))
    assert again == service
    assert again.spec.recipe() == service.spec.recipe()
