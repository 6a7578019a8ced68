"""The log in PostgreSQL: several in a database, lost connections, servers that stop, fail, are full, are elsewhere."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from tests.support.changes.logs import LogPlace, clear, entries, entry, read_all
from tests.support.changes.postgres import PostgresServer, postgres_server
from tests.support.changes.severed import Severed, SeveringProxy
from tests.support.machine.small_disk import small_disk
from tests.support.machine.waiting import WAIT_S
from tests.support.serving.certificates import make_key_pair

from gnnserve_worker.changes import postgres_connections, postgres_log
from gnnserve_worker.changes.log import LogConflictError, LogError, LogFullError
from gnnserve_worker.changes.postgres_connections import PostgresConnection
from gnnserve_worker.changes.postgres_log import PostgresLog


def test_nothing_is_connected_to_before_the_first_use(tmp_path: Path) -> None:
    PostgresLog(tmp_path / "missing", "uid").close()


def test_one_database_has_the_logs_of_several_services(postgres: LogPlace) -> None:
    one, two = postgres.open("one"), postgres.open("two")
    one.append(entries("a", 1, 2))
    assert not two.wait(0, 0)
    two.append(entries("a", 1))
    assert [r.offset for r in read_all(one)] == [1, 2]
    assert [r.offset for r in read_all(two)] == [1]
    one.cut(2)
    assert two.find("a", 1) == 1
    assert (one.position().first, two.position().first) == (3, 1)


def test_workers_that_begin_at_the_same_time_make_one_log(postgres: LogPlace) -> None:
    logs = [postgres.open() for _ in range(6)]
    with ThreadPoolExecutor(len(logs)) as threads:
        appended = threads.map(lambda at: logs[at].append(entries(f"c{at}", 1)), range(len(logs)))
    assert sorted(one[0].offset for one in appended) == list(range(1, len(logs) + 1))


def test_threads_of_a_worker_that_begin_at_the_same_time_make_one_log(
    postgres: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread has asked for the log, in vain, when another one makes it."""
    log = postgres.open()
    asked: list[str] = []
    execute = PostgresConnection.execute

    def interrupted(self: PostgresConnection, query: str, *arguments: object) -> object:
        cursor = execute(self, query, *arguments)
        if query.startswith("SELECT id"):
            asked.append(query)
            if len(asked) == 1:
                log.position()
        return cursor

    monkeypatch.setattr(PostgresConnection, "execute", interrupted)
    assert log.position().last == 0
    assert len(asked) > 2
    assert postgres.change("SELECT count(*) FROM {log}") == [(1,)]


@pytest.mark.parametrize("when", [Severed.BEFORE_COMMIT, Severed.AFTER_COMMIT])
@pytest.mark.parametrize(
    ("quick_bytes", "commit"),
    [pytest.param(1000, b"a 2", id="one statement"), pytest.param(0, b"COMMIT\0", id="a transaction with COPY")],
)
def test_a_commit_whose_outcome_is_unknown_is_resolved_by_the_next_try(
    postgres: LogPlace,
    server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: Severed,
    quick_bytes: int,
    commit: bytes,
) -> None:
    monkeypatch.setattr(postgres_log, "_QUICK_BYTES", quick_bytes)
    with tempfile.TemporaryDirectory() as folder:
        proxy = SeveringProxy(Path(folder), server.socket, commit)
        uri = server.uri().replace(str(server.socket.parent), folder)
        (tmp_path / "severed.uri").write_text(uri)
        log = PostgresLog(tmp_path / "severed.uri", postgres.uid)
        log.append(entries("a", 1))
        proxy.when = when
        with pytest.raises(LogError, match="went away"):
            log.append(entries("a", 2, 3))
        assert proxy.severed == 1
        again = log.append(entries("a", 2, 3))
        assert [one.is_repeated for one in again] == [when is Severed.AFTER_COMMIT] * 2
        assert [(r.offset, r.sequence) for r in read_all(log)] == [(1, 1), (2, 2), (3, 3)]
        log.close()
        proxy.close()


def test_an_address_that_changes_is_followed(postgres: LogPlace, server: PostgresServer) -> None:
    log = postgres.open()
    log.append(entries("a", 1))
    assert log.wait(0, 0)
    before = postgres.path.read_text()
    server.execute('CREATE DATABASE "elsewhere"')
    postgres.path.write_text(server.uri("elsewhere"))
    with pytest.raises(LogConflictError, match="is not in the database any more"):
        log.position()
    postgres.open().position()
    assert log.position().last == 0
    assert not log.wait(0, 0)
    postgres.path.write_text(before)
    assert log.position().last == 1
    assert log.wait(0, 0)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("postgresql://u:s%zzecret@host/d", "cannot be read: it is like postgresql://"),
        ("postgresql://u:secret@host/d?nonsense=1", "cannot be read: it is like postgresql://"),
        ("postgresql://u:secret@/d?host=/nowhere", "went away, or lets the worker not connect"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_its_parts(tmp_path: Path, address: str, told: str) -> None:
    path = tmp_path / "uri"
    path.write_text(address)
    log = PostgresLog(path, "uid")
    for call in (log.position, lambda: log.wait(0, 0)):
        with pytest.raises(LogError) as error:
            call()
        assert told in str(error.value)
        assert "secret" not in str(error.value)
        assert "secret" not in str(error.value.__cause__)
    log.close()


def test_an_address_whose_file_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"missing: cannot be read"):
        PostgresLog(tmp_path / "missing", "uid").position()


def test_a_server_is_verified_where_the_address_says_so(tmp_path: Path) -> None:
    ours, others = make_key_pair(tmp_path / "ours"), make_key_pair(tmp_path / "others")
    with postgres_server() as server:
        server.stop()
        server.listen_with_tls(ours)
        server.start()
        path = tmp_path / "uri"
        for host, pair, is_right in (
            ("127.0.0.1", ours, True), ("localhost", ours, True), ("127.0.0.1", others, False)
        ):  # fmt: skip
            path.write_text(server.tls_uri(host, pair.certificate))
            log = PostgresLog(path, "uid")
            if is_right:
                with log._connections.borrow() as connection:
                    query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
                    assert connection.execute(query).fetchone() == (True,)
            else:
                with pytest.raises(LogError, match="lets the worker not connect") as told:
                    log.position()
                assert "certificate verify failed" in str(told.value.__cause__)
            log.close()


def test_an_older_server_is_refused(postgres: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connections, "OLDEST_SERVER", 99)
    with pytest.raises(LogConflictError, match=r"is of version 1\d, and 99 is the oldest that keeps it: upgrade"):
        postgres.open().position()


def test_a_user_without_rights_is_told_what_is_missing(postgres: LogPlace, server: PostgresServer) -> None:
    server.execute("CREATE ROLE guest LOGIN")
    uri = server.uri()
    owner = postgres.path.read_text()
    postgres.path.write_text(uri.replace("gnnserve@", "guest@"))
    with pytest.raises(LogError, match="grant it CREATE on the database"):
        postgres.open().position()
    postgres.path.write_text(owner)
    postgres.open().append(entries("a", 1))
    postgres.path.write_text(uri.replace("gnnserve@", "guest@"))
    with pytest.raises(LogError, match="make the user the owner"):
        postgres.open().position()


def test_a_log_that_is_removed_under_a_worker_is_not_begun_anew(postgres: LogPlace) -> None:
    log = postgres.open()
    log.append(entries("a", 1))
    postgres.change("DELETE FROM {log}")
    for _ in range(2):
        with pytest.raises(LogConflictError, match="is not in the database any more"):
            log.append(entries("a", 2))
    with pytest.raises(LogConflictError):
        log.position()


def test_a_standby_is_not_written(postgres: LogPlace, server: PostgresServer) -> None:
    postgres.open().append(entries("a", 1))
    server.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
    with pytest.raises(LogError, match="went away, or lets the worker not connect"):
        postgres.open().append(entries("a", 2))


def test_commits_are_durable_where_the_database_says_otherwise(postgres: LogPlace, server: PostgresServer) -> None:
    server.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    log = PostgresLog(postgres.path, postgres.uid)
    with log._connections.borrow() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    log.close()


def test_a_lost_notification_costs_a_second(postgres: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    log, deaf = postgres.open(), postgres.open()
    assert not deaf.wait(0, 0)
    monkeypatch.setattr(postgres_log, "_channel", lambda _: "elsewhere")
    log.append(entries("a", 1))
    began_s = time.monotonic()
    assert deaf.wait(0, WAIT_S)
    assert time.monotonic() - began_s < WAIT_S / 2


def test_a_transaction_of_a_worker_that_stops_is_ended_by_the_server(
    postgres: LogPlace, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**postgres_connections._SETTINGS, "idle_in_transaction_session_timeout": "100ms"}
    monkeypatch.setattr(postgres_connections, "_SETTINGS", settings)
    stopped, other = PostgresLog(postgres.path, postgres.uid), postgres.open()
    other.append(entries("a", 1))
    with pytest.raises(LogError), stopped._connections.borrow() as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM gnnserve.log FOR UPDATE")
        assert other.append(entries("a", 2))[0].offset == 2
        connection.execute("SELECT 1")
    assert stopped.append(entries("a", 3))[0].offset == 3
    stopped.close()


def test_a_server_that_stops_answering_is_given_up_and_taken_again(
    postgres: LogPlace, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = postgres.open()
    log.append(entries("a", 1))
    assert log.wait(0, 0)
    monkeypatch.setattr(postgres_connections, "_ANSWER_S", 0.3)
    defaults = {**postgres_connections._DEFAULTS, "connect_timeout": 2}
    monkeypatch.setattr(postgres_connections, "_DEFAULTS", defaults)
    server.pause()
    try:
        for call in (lambda: log.append(entries("a", 2)), log.position, lambda: log.wait(1, 5)):
            with pytest.raises(LogError, match="went away"):
                call()
    finally:
        server.resume()
    monkeypatch.undo()
    assert log.append(entries("a", 2))[0].offset == 2
    assert log.wait(1, WAIT_S)


def test_a_server_that_is_restarted_is_taken_again(postgres: LogPlace, server: PostgresServer) -> None:
    log = postgres.open()
    log.append(entries("a", 1))
    assert log.wait(0, 0)
    server.stop()
    try:
        for call in (lambda: log.append(entries("a", 2)), log.position, lambda: log.wait(1, WAIT_S)):
            with pytest.raises(LogError, match=r"went away|is shutting down"):
                call()
    finally:
        server.start()
    assert log.append(entries("a", 2))[0].offset == 2
    assert log.wait(1, WAIT_S)
    assert [r.offset for r in read_all(log)] == [1, 2]


@pytest.fixture
def small(postgres: LogPlace, server: PostgresServer, tmp_path: Path) -> Iterator[LogPlace]:
    """A log whose tables are on a small disk."""
    with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder), 6 << 10) as disk:
        Path(folder).chmod(0o755)
        tables = disk.path / "tables"
        tables.mkdir()
        server.give(tables)
        server.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")
        server.execute("ALTER DATABASE postgres SET default_tablespace = small")
        yield postgres
        postgres.close()
        clear(server)
        server.execute("DROP TABLESPACE small")


def test_a_full_disk_is_told(small: LogPlace) -> None:
    log = small.open()
    log.append(entries("a", 1))
    with pytest.raises(LogFullError, match="has a full disk: make room on it"):
        log.append([entry("a", 2, bytes(16 << 20))])
    assert log.append(entries("a", 2))[0].offset == 2


def test_a_writer_waits_for_another_one_no_longer_than_it_may(
    postgres: LogPlace, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "_SETTINGS", {**postgres_connections._SETTINGS, "lock_timeout": "50ms"})
    log = postgres.open()
    log.append(entries("a", 1))
    with psycopg.connect(server.uri()) as holder:
        holder.execute("SELECT * FROM gnnserve.log FOR UPDATE")
        with pytest.raises(LogError, match="kept the log locked for too long"):
            log.append(entries("a", 2))
    assert log.append(entries("a", 2))[0].offset == 2


def test_reading_and_waiting_go_on_while_a_writer_holds_the_log(postgres: LogPlace, server: PostgresServer) -> None:
    log = postgres.open()
    log.append(entries("a", 1))
    appended = threading.Event()
    with psycopg.connect(server.uri()) as holder, ThreadPoolExecutor(1) as threads:
        holder.execute("SELECT * FROM gnnserve.log FOR UPDATE")
        append = threads.submit(lambda: (log.append(entries("a", 2)), appended.set()))
        assert [r.offset for r in read_all(log)] == [1]
        assert log.position().last == 1
        assert not log.wait(1, 0)
        assert not appended.is_set()
        holder.rollback()
        append.result(WAIT_S)
