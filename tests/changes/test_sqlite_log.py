"""The log in SQLite: files of others, damaged and full ones, and writers that stop."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.changes.logs import UID, LogPlace, entries, entry, read_all, sqlite_place
from tests.support.lacks import needs_root
from tests.support.machine.small_disk import small_disk

from gnnserve_worker.changes import sqlite_log
from gnnserve_worker.changes.log import LogBehindError, LogConflictError, LogError, LogFullError
from gnnserve_worker.changes.sqlite_log import SqliteLog

_ROOT = Path(__file__).parents[2]


def test_nothing_is_touched_before_the_first_use(sqlite: LogPlace) -> None:
    log = sqlite.open()
    assert not sqlite.path.parent.exists()
    log.position()
    assert sqlite.path.is_file()


def test_a_log_of_another_service_is_refused_in_one_sentence(sqlite: LogPlace) -> None:
    sqlite.open().append(entries("a", 1))
    with pytest.raises(LogConflictError) as told:
        sqlite.open("other").append(entries("a", 2))
    assert str(told.value) == (
        f"the log of changes {sqlite.path} belongs to the service with uid {UID}, not to this one, whose uid is other: "
        "name another file"
    )


def test_a_file_of_another_program_is_left_as_it_is(sqlite: LogPlace) -> None:
    sqlite.path.parent.mkdir()
    with closing(sqlite3.connect(sqlite.path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = sqlite.path.read_bytes()
    with pytest.raises(LogConflictError, match="SQLite file of something else"):
        sqlite.open().append(entries("a", 1))
    assert sqlite.path.read_bytes() == before


def test_a_file_that_is_no_database_is_told(sqlite: LogPlace) -> None:
    sqlite.path.parent.mkdir()
    sqlite.path.write_bytes(b"not a database" * 1000)
    with pytest.raises(LogError, match="is not a SQLite file"):
        sqlite.open().position()


def test_a_damaged_file_is_told_and_another_is_taken_at_once(sqlite: LogPlace) -> None:
    log = sqlite.open()
    log.append([entry("a", sequence, os.urandom(3000)) for sequence in range(50)])
    log.close()
    whole = sqlite.path.read_bytes()
    sqlite.path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    with pytest.raises(LogError, match="restore it from a backup"):
        read_all(sqlite.open())
    sqlite.path.unlink()
    sqlite.path.write_bytes(whole)
    assert len(read_all(log)) == 50


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path, 2048) as disk:
        place = sqlite_place(disk.path)
        log = place.open()
        log.append(entries("a", 1))
        place.close()
        subprocess.run(["mount", "-o", "remount,ro", disk.path], check=True)
        with pytest.raises(LogError, match=r"cannot be (written|opened): the disk that it is on is mounted read-only"):
            log.append(entries("a", 2))
        subprocess.run(["mount", "-o", "remount,rw", disk.path], check=True)
        assert log.append(entries("a", 2))[0].offset == 2
        place.close()


@needs_root("only root may run a program as another user")
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["not writable", "closed"])
def test_a_user_that_may_not_write_the_file_is_told_by_its_number(mode: int) -> None:
    program = (
        "import sys; from pathlib import Path; from gnnserve_worker.changes.sqlite_log import SqliteLog\n"
        "try: SqliteLog(Path(sys.argv[1]), 'uid').position()\nexcept Exception as error: print(error)"
    )
    as_user = ["setpriv", "--reuid=1000680000", "--regid=0", "--groups=1000680000", "--no-new-privs"]
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "updates"
        folder.mkdir()
        os.chown(folder, 65_532, 65_532)
        folder.chmod(mode)
        command = [*as_user, sys.executable, "-c", program, str(folder / "log.sqlite")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Permission denied" in ended.stderr:
        pytest.fail(f"another user cannot run {sys.executable}: let all read and enter its folders")
    assert f"the log of changes {folder}/log.sqlite cannot be" in ended.stdout
    assert "runs as user 1000680000 and group 0 (and 1000680000), and" in ended.stdout
    assert f"{folder} belongs to user 65532 and group 65532 with mode {mode:o}" in ended.stdout


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogError, match=r"Not a directory|File exists"):
        SqliteLog(tmp_path / "file" / "log.sqlite", UID).position()


def test_a_file_that_is_replaced_by_an_older_backup_is_noticed(sqlite: LogPlace, tmp_path: Path) -> None:
    log = sqlite.open()
    log.append(entries("a", 1, 2))
    log.close()
    shutil.copy(sqlite.path, tmp_path / "backup")
    log.append(entries("a", 3, 4))
    assert log.position().last == 4
    for name in ("log.sqlite-wal", "log.sqlite-shm"):
        sqlite.path.with_name(name).unlink(missing_ok=True)
    (tmp_path / "backup").rename(sqlite.path)
    with pytest.raises(LogBehindError):
        log.append(entries("a", 5), known_offset=4)
    with pytest.raises(LogBehindError):
        log.read(4, 1)
    assert not log.wait(4, 0.05)


def test_a_file_that_is_removed_is_not_written_any_more(sqlite: LogPlace) -> None:
    log = sqlite.open()
    log.append(entries("a", 1, 2))
    shutil.rmtree(sqlite.path.parent)
    with pytest.raises(LogBehindError):
        log.append(entries("a", 3), known_offset=2)


def test_a_full_disk_is_told_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path, 2048) as disk:
        place = sqlite_place(disk.path)
        log = place.open()
        log.append(entries("a", 1))
        disk.fill()
        for _ in range(2):
            with pytest.raises(LogFullError, match=r"the disk with the log of changes .* is full: make room"):
                log.append([entry("a", 2, bytes(100_000))])
        assert [r.offset for r in read_all(log)] == [1]
        disk.free()
        assert log.append([entry("a", 2, bytes(100_000))])[0].offset == 2
        with pytest.raises(LogFullError):
            log.append([entry("a", 3, bytes(4 << 20))])
        assert [r.offset for r in read_all(place.open())] == [1, 2]
        place.close()


def test_a_disk_that_is_full_from_the_beginning_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path, 256) as disk:
        place = sqlite_place(disk.path)
        place.path.parent.mkdir()
        disk.fill()
        with pytest.raises(LogFullError):
            place.open().append(entries("a", 1))
        disk.free()
        assert place.open().append(entries("a", 1))[0].offset == 1
        place.close()


_MAKE = """
import sys
from pathlib import Path
from tests.support.changes.logs import entries
from gnnserve_worker.changes.sqlite_log import SqliteLog
log = SqliteLog(Path(sys.argv[1]), "uid")
sys.stdin.readline()
for sequence in range(20):
    log.append(entries(sys.argv[2], sequence))
"""


def test_processes_that_begin_at_the_same_time_share_one_log(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    command = [sys.executable, "-c", _MAKE, path]
    started = [
        subprocess.Popen([*command, str(number)], cwd=_ROOT, stdin=subprocess.PIPE, env=os.environ)
        for number in range(4)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    assert [process.wait() for process in started] == [0] * 4
    log = SqliteLog(path, "uid")
    assert log.position().last == 80
    log.close()


_HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE log SET last = 17")
print("holds it", flush=True)
sys.stdin.readline()
"""


def test_a_writer_that_stops_is_told_and_what_it_did_not_commit_is_gone_with_it(
    sqlite: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = sqlite.open()
    log.append(entries("a", 1))
    command = [sys.executable, "-c", _HOLD, sqlite.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        monkeypatch.setattr(sqlite_log, "_BUSY_S", 0.05)
        with pytest.raises(LogError, match="is locked by another process"):
            log.append(entries("a", 2))
        assert [r.offset for r in read_all(log)] == [1], "readers need not wait"
        holder.send_signal(signal.SIGKILL)
    assert log.append(entries("a", 2))[0].offset == 2
