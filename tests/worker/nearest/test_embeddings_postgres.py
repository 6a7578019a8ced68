"""Embeddings in a real PostgreSQL with pgvector: what readers see, whatever happens to the writer or the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pytest
from tests.support.changes.postgres import PostgresServer, postgres_server, programs_with_pgvector
from tests.support.machine.waiting import until

from gnnserve_worker.generation.embeddings import postgres
from gnnserve_worker.generation.embeddings.postgres import PostgresSink, Setting, build_settings, view_name
from gnnserve_worker.generation.embeddings.sink import Block, RevisionEmbeddings, SinkError

NODES, COLUMNS = 300, 8
OLD = RevisionEmbeddings("default/digits", "aaaaaaaaaaaa", "x1", None, NODES, COLUMNS, False)
NEW = replace(OLD, revision="bbbbbbbbbbbb", offset=7)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server(programs_with_pgvector()) as running:
        yield running


@pytest.fixture
def sink(server: PostgresServer, tmp_path: Path) -> PostgresSink:
    """A sink of a database of its own."""
    name = f"d{abs(hash(str(tmp_path)))}"
    server.execute(f"CREATE DATABASE {name}")
    uri_file = tmp_path / "uri"
    uri_file.write_text(server.uri(name))
    return PostgresSink(uri_file)


def vectors(seed: int, columns: int = COLUMNS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(NODES, columns)).astype(np.float32)


def blocks(values: np.ndarray, ids: list[str] | None = None) -> Callable[[], Iterator[Block]]:
    def read() -> Iterator[Block]:
        for start in range(0, len(values), 128):
            end = min(start + 128, len(values))
            yield (range(start, end) if ids is None else ids[start:end]), values[start:end]

    return read


def ask(sink: PostgresSink, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with sink._connect() as connection:
        return connection.execute(statement, parameters).fetchall()  # type: ignore[arg-type]


def revisions(sink: PostgresSink) -> list[tuple[object, ...]]:
    return ask(sink, 'SELECT revision, "offset", count(*) FROM gnnserve_embeddings.default_digits GROUP BY 1, 2')


def tables(sink: PostgresSink) -> int:
    found = ask(sink, "SELECT count(*) FROM pg_tables WHERE schemaname = 'gnnserve_embeddings' AND tablename <> 'sets'")
    count = found[0][0]
    assert isinstance(count, int)
    return count


def quiet(_rows: int) -> None:
    pass


def test_the_documented_query_finds_what_brute_force_finds(sink: PostgresSink) -> None:
    values = vectors(1)
    told = sink.write(OLD, blocks(values), quiet)

    assert (told.where, told.rows, told.was_there, told.note) == (
        "gnnserve_embeddings.default_digits",
        NODES,
        False,
        "",
    )
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    for query in (0, 17):
        found = ask(
            sink,
            "SELECT id, 1 - (embedding <=> %s::vector) AS cosine FROM gnnserve_embeddings.default_digits "
            "ORDER BY embedding <=> %s::vector LIMIT 10",
            str(values[query].tolist()), str(values[query].tolist()),
        )  # fmt: skip
        cosines = unit @ unit[query]
        assert [row[0] for row in found] == np.argsort(-cosines)[:10].tolist()
        assert np.allclose([float(str(row[1])) for row in found], np.sort(cosines)[::-1][:10], atol=1e-5)
    plan = ask(
        sink, "EXPLAIN SELECT id FROM gnnserve_embeddings.default_digits ORDER BY embedding <=> %s::vector LIMIT 10",
        str(values[0].tolist()),
    )  # fmt: skip
    assert "hnsw" in str(ask(sink, "SELECT indexdef FROM pg_indexes WHERE schemaname = 'gnnserve_embeddings'"))
    assert plan


ONE_PROCESS, MEMORY = "max_parallel_maintenance_workers", "maintenance_work_mem"


@pytest.mark.parametrize(
    ("rows", "processes", "memory", "expected"),
    [
        pytest.param(100_000, Setting(2, "default"), Setting(65_536, "default"), {ONE_PROCESS: 0, MEMORY: 121_336},
                     id="all vectors fit"),
        pytest.param(100, Setting(2, "configuration file"), Setting(65_536, "default"), {ONE_PROCESS: 0},
                     id="they do anyway"),
        pytest.param(10_000_000, Setting(0, "default"), Setting(65_536, "default"), {MEMORY: 524_288},
                     id="no more than half a GiB"),
        pytest.param(100_000, Setting(4, "client"), Setting(65_536, "database user"), {}, id="as a user has set them"),
        pytest.param(100_000, Setting(4, "global"), Setting(4_096, "configuration file"), {}, id="as given"),
    ],
)  # fmt: skip
def test_an_index_is_built_by_one_process_in_memory(
    rows: int, processes: Setting, memory: Setting, expected: dict[str, int]
) -> None:
    assert build_settings(rows, 128, {ONE_PROCESS: processes, MEMORY: memory}) == expected


def test_what_the_address_sets_for_building_stays(sink: PostgresSink, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, ...]] = []
    asked, make = "SELECT current_setting(%s), current_setting(%s)", postgres._make_index

    def looking(connection: psycopg.Connection[tuple[object, ...]], *given: object) -> str:
        note = make(connection, *given)  # type: ignore[arg-type]
        told.extend(connection.execute(asked, (ONE_PROCESS, MEMORY)).fetchall())
        return note

    monkeypatch.setattr(postgres, "_make_index", looking)
    sink.write(OLD, blocks(vectors(1)), quiet)
    options = "options=-c%20max_parallel_maintenance_workers%3D1%20-c%20maintenance_work_mem%3D1MB"
    sink._uri_file.write_text(f"{sink._uri_file.read_text()}&{options}")
    sink.write(NEW, blocks(vectors(2)), quiet)
    assert told == [("0", "64MB"), ("1", "1MB")]


def test_texts_are_ids_as_they_are(sink: PostgresSink) -> None:
    ids = [f'päper "{node}"\\' for node in range(NODES)]
    sink.write(replace(OLD, has_text_ids=True), blocks(vectors(1), ids), quiet)
    found = ask(sink, "SELECT id FROM gnnserve_embeddings.default_digits")
    assert sorted(str(row[0]) for row in found) == sorted(ids)


def test_a_new_revision_takes_the_place_of_the_old_one_and_keeps_who_may_read(sink: PostgresSink) -> None:
    sink.write(OLD, blocks(vectors(1)), quiet)
    with sink._connect() as connection:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader")
        connection.execute("GRANT SELECT ON gnnserve_embeddings.default_digits TO reader")

    sink.write(replace(NEW, columns=5), blocks(vectors(2, 5)), quiet)

    assert revisions(sink) == [(NEW.revision, 7, NODES)]
    assert tables(sink) == 1
    told = "SELECT has_table_privilege('reader', 'gnnserve_embeddings.default_digits', 'SELECT')"
    assert ask(sink, told) == [(True,)]
    assert sink.write(replace(NEW, columns=5), blocks(vectors(2, 5)), quiet).was_there


@pytest.mark.parametrize("where", ["_fill", "_make_index", "_switch"])
def test_a_writer_that_ends_at_any_step_leaves_the_old_revision_whole(
    sink: PostgresSink, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    sink.write(OLD, blocks(vectors(1)), quiet)
    step = getattr(postgres, where)

    def ends(*given: object) -> None:
        if where != "_switch":
            step(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(postgres, where, ends)
    with pytest.raises(KeyboardInterrupt):
        sink.write(NEW, blocks(vectors(2)), quiet)

    assert revisions(sink) == [(OLD.revision, None, NODES)]
    monkeypatch.undo()
    sink.write(NEW, blocks(vectors(2)), quiet)
    assert revisions(sink) == [(NEW.revision, 7, NODES)]
    assert tables(sink) == 1


def test_while_rows_are_written_readers_see_the_old_revision(sink: PostgresSink) -> None:
    sink.write(OLD, blocks(vectors(1)), quiet)
    seen: list[list[tuple[object, ...]]] = []
    sink.write(NEW, blocks(vectors(2)), lambda _rows: seen.append(revisions(sink)))
    assert seen
    assert all(each == [(OLD.revision, None, NODES)] for each in seen)


def test_a_server_that_is_killed_meanwhile_keeps_the_old_revision(server: PostgresServer, sink: PostgresSink) -> None:
    sink.write(OLD, blocks(vectors(1)), quiet)

    def kill(rows: int) -> None:
        if rows == NODES:
            server.kill()

    try:
        with pytest.raises(SinkError, match="went away"):
            sink.write(NEW, blocks(vectors(2)), kill)
    finally:
        server.start()
    assert revisions(sink) == [(OLD.revision, None, NODES)]
    sink.write(NEW, blocks(vectors(2)), quiet)
    assert revisions(sink) == [(NEW.revision, 7, NODES)]


def test_a_server_that_is_away_is_told_without_its_address(tmp_path: Path) -> None:
    uri_file = tmp_path / "uri"
    uri_file.write_text("postgresql://someone:secret@127.0.0.1:1/nowhere")
    with pytest.raises(SinkError) as caught:
        PostgresSink(uri_file).write(OLD, blocks(vectors(1)), quiet)
    assert "went away, or lets the client not connect" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_address_that_is_none_and_a_missing_one_are_told(tmp_path: Path) -> None:
    uri_file = tmp_path / "uri"
    with pytest.raises(SinkError, match="cannot be read"):
        PostgresSink(uri_file).write(OLD, blocks(vectors(1)), quiet)
    uri_file.write_text("mysql://someone@host/database")
    with pytest.raises(SinkError, match="not the address of a PostgreSQL"):
        PostgresSink(uri_file).write(OLD, blocks(vectors(1)), quiet)


def test_a_schema_of_another_release_and_a_name_of_another_service_are_refused(sink: PostgresSink) -> None:
    sink.write(OLD, blocks(vectors(1)), quiet)
    other = PostgresSink(sink._uri_file, "default_digits")
    with pytest.raises(SinkError, match="has embeddings of default/digits under the name default_digits"):
        other.write(replace(NEW, service="other/service"), blocks(vectors(2)), quiet)
    with sink._connect() as connection:
        connection.execute("ALTER TABLE gnnserve_embeddings.sets DROP COLUMN variant")
    with pytest.raises(SinkError, match="of another release, without variant"):
        sink.write(NEW, blocks(vectors(2)), quiet)
    assert revisions(sink) == [(OLD.revision, None, NODES)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param("/d", "/nowhere-d", "has no such database: see the address", id="no such database"),
        pytest.param("//gnnserve@", "//nobody2@", "does not let the user in", id="no such user"),
        pytest.param(
            "&port=", "&options=-c%20default_transaction_read_only%3Don&port=", "is a standby", id="a standby"
        ),
    ],
)
def test_what_keeps_a_client_out_is_told(sink: PostgresSink, old: str, new: str, said: str) -> None:
    uri = sink._uri_file.read_text()
    assert old in uri
    sink._uri_file.write_text(uri.replace(old, new, 1))
    with pytest.raises(SinkError, match=said):
        sink.write(OLD, blocks(vectors(1)), quiet)


def test_a_host_that_no_name_server_knows_is_told(tmp_path: Path) -> None:
    uri_file = tmp_path / "uri"
    uri_file.write_text("postgresql://someone@no-such-host.invalid/d")
    with pytest.raises(SinkError, match="is on a host that no name server knows"):
        PostgresSink(uri_file).write(OLD, blocks(vectors(1)), quiet)


def test_a_table_under_the_views_name_is_told_before_anything_is_computed(sink: PostgresSink) -> None:
    with sink._connect() as connection:
        connection.execute("CREATE SCHEMA gnnserve_embeddings")
        connection.execute("CREATE TABLE gnnserve_embeddings.default_digits (id bigint)")

    def computed() -> Iterator[Block]:
        raise AssertionError

    with pytest.raises(SinkError, match="default_digits, which is no view: rename it"):
        sink.write(OLD, computed, quiet)


def test_a_user_without_rights_is_told_what_is_missing(server: PostgresServer, sink: PostgresSink) -> None:
    with sink._connect() as connection:
        connection.execute("DROP ROLE IF EXISTS weak")
        connection.execute("CREATE ROLE weak LOGIN")
    weak = sink._uri_file.with_name("weak")
    weak.write_text(sink._uri_file.read_text().replace("//gnnserve@", "//weak@"))
    with pytest.raises(SinkError, match="does not let the user make the extension vector"):
        PostgresSink(weak).write(OLD, blocks(vectors(1)), quiet)


def test_a_full_disk_is_told(sink: PostgresSink, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> None:
        raise psycopg.errors.DiskFull

    sink.write(OLD, blocks(vectors(1)), quiet)
    monkeypatch.setattr(postgres, "_fill", full)
    with pytest.raises(SinkError, match="has a full disk: make room on it"):
        sink.write(NEW, blocks(vectors(2)), quiet)
    assert revisions(sink) == [(OLD.revision, None, NODES)]


def test_two_writers_of_one_name_exclude_each_other(sink: PostgresSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "LOCK_WAIT_S", 0.05)

    def again(_rows: int) -> None:
        with pytest.raises(SinkError, match="another program is writing the embeddings default_digits"):
            sink.write(NEW, blocks(vectors(2)), quiet)

    assert sink.write(OLD, blocks(vectors(1)), again).rows == NODES


def test_a_writer_gives_its_name_back_before_its_session_ends(
    sink: PostgresSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is closed is no session that has ended: the server notices later."""
    connect, kept = PostgresSink._connect, []

    def connect_and_stay(of: PostgresSink) -> psycopg.Connection[tuple[object, ...]]:
        kept.append(connect(of))
        monkeypatch.setattr(kept[-1], "close", lambda: None)
        return kept[-1]

    monkeypatch.setattr(postgres, "LOCK_WAIT_S", 0.05)
    monkeypatch.setattr(PostgresSink, "_connect", connect_and_stay)
    sink.write(OLD, blocks(vectors(1)), quiet)
    with pytest.raises(SinkError, match="under the name default_digits"):
        PostgresSink(sink._uri_file, "default_digits").write(
            replace(NEW, service="other/service"), blocks(vectors(2)), quiet
        )
    assert sink.write(NEW, blocks(vectors(2)), quiet).rows == NODES
    monkeypatch.undo()
    for connection in kept:
        connection.close()


def test_a_writer_waits_for_the_session_of_one_that_has_gone(sink: PostgresSink) -> None:
    held, name = sink._connect(), ("gnnserve_embeddings.default_digits",)
    held.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", name)

    def leave() -> None:
        with held:  # closed, once the other one waits
            waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            until(lambda: held.execute(waiting).fetchall() == [(1,)], "the other one waits")

    leaving = threading.Thread(target=leave)
    leaving.start()
    assert sink.write(OLD, blocks(vectors(1)), quiet).rows == NODES
    leaving.join()


@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("default/digits", "default_digits"),
        ("team-a/my-graph", "team_a_my_graph"),
        ("1st/graph", "s_1st_graph"),
        ("a" * 63 + "/" + "b" * 63, "a" * 31 + "_"),
    ],
)
def test_the_views_name_needs_no_quotes(service: str, name: str) -> None:
    assert view_name(service).startswith(name)
    assert len(view_name(service)) <= 40
