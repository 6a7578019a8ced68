"""Embeddings in PostgreSQL with pgvector: a table for each revision, behind a view that readers know.

Rows go into a table of their own by binary COPY, as they come; then its primary key and its HNSW index are made. One
transaction points the view at it and notes the revision. So readers see all of one revision or all of another, and a
writer that is killed leaves a table that nothing names, which the next one removes. The table before is dropped after
that, once no transaction reads it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gnnserve_api.errors import InputError
from gnnserve_worker.changes.address import read_address
from gnnserve_worker.generation.embeddings.sink import Block, Ids, OnRows, RevisionEmbeddings, SinkError, SinkResult

_log = logging.getLogger(__name__)

SCHEMA = "gnnserve_embeddings"
_MOST_NAME = 40
"""Longest name of a view: PostgreSQL has 63 bytes, and a table's name has a revision behind it."""
_MOST_INDEXED_COLUMNS = 2000
"""Widest vector that pgvector's HNSW index takes."""
_CONNECTION: Mapping[str, str | int] = {
    "application_name": "gnnserve-embeddings",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "target_session_attrs": "read-write",
}
_COPY_HEADER = b"PGCOPY\n\xff\r\n\x00" + struct.pack(">ii", 0, 0)
_COPY_END = struct.pack(">h", -1)
_BESIDE_VECTOR_BYTES = 720
"""What pgvector 0.8 keeps of a vector in memory while it builds an index, beside its numbers."""
_MOST_BUILD_MEMORY_KB = 512 * 1024
"""Most memory that the server is asked to build an index in."""
_CHOSEN_BY_USERS = {"client", "user", "database", "database user", "global"}
"""Sources of a setting that was made for connections such as these."""
_UNSET = "default"
"""Source of a setting that was made neither for connections nor for the server."""
_FIELDS = 4
"""Fields of a row: id, embedding, revision, offset."""
_REGISTRY_COLUMNS = (
    "name", "service", "relation", "revision", "variant", "offset", "rows", "columns", "completed_at"
)  # fmt: skip
LOCK_WAIT_S = 5.0
"""How long the session of a writer that has gone is waited for."""
_SUBJECT = "the PostgreSQL for embeddings"
_MEANINGS: Mapping[str, str] = {
    "08001": "is on a host that no name server knows: see the host in the Secret",
    "0A000": "has no extension vector: install pgvector on the server",
    "58P01": "has no extension vector: install pgvector on the server",
    "22023": "does not take the vectors: {said}",
    "25006": "is a standby, which cannot be written: the address must name the primary",
    "28": "does not let the user in: see user and password in the Secret",
    "3D000": "has no such database: see the address in the Secret",
    "42501": (
        f"does not let the user make the extension vector, the schema {SCHEMA} or what is in it: let an administrator "
        "create the extension, and make the user the owner of the database"
    ),
    "53100": "has a full disk: make room on it",
    "53": "has no resources left: {said}",
    "54": "cannot keep them: {said}",
    "55P03": "kept what is there locked for too long: a reader's transaction stays open",
    "57": "is shutting down, starting or overloaded",
}
"""By SQLSTATE or its beginning, the longer before the shorter. `{said}`: the server's own sentence."""
_REFUSED_CLIENTS: Mapping[str, str] = {
    "failed to resolve host": "08001",
    "session is read-only": "25006",
    'FATAL:  database "': "3D000",
    "FATAL:  role ": "28",
    "FATAL:  password ": "28",
    "FATAL:  no pg_hba.conf entry": "28",
}
"""Parts of what libpq says of a connection that it did not get, for which psycopg has no SQLSTATE."""


class PostgresSink:
    def __init__(self, uri_file: Path, name: str | None = None) -> None:
        """`uri_file` has the address, `postgresql://…`. `name`: that of the view; None: made of the service's."""
        self._uri_file = uri_file
        self._name = name

    def write(self, embedded: RevisionEmbeddings, blocks: Callable[[], Iterator[Block]], on_rows: OnRows) -> SinkResult:
        name = self._name or view_name(embedded.service)
        where = f"{SCHEMA}.{name}"
        with _explained(), self._connect() as connection, _only_writer(connection, name):
            _set_up(connection)
            service, before, is_there = _registered(connection, name, embedded)
            if service is not None and service != embedded.service:
                raise SinkError(
                    f"{_SUBJECT} has embeddings of {service} under the name {name}: give this sink another name, or "
                    f"drop the view {where} and its row in {SCHEMA}.sets"
                )
            if is_there:
                return SinkResult(where, embedded.rows, was_there=True)
            _check_free(connection, name)
            relation = table_name(name, embedded)
            _remove_unfinished(connection, name, before)
            _fill(connection, relation, embedded, blocks, on_rows)
            note = _make_index(connection, relation, embedded.rows, embedded.columns)
            _switch(connection, name, relation, embedded)
            _drop(connection, before)
        return SinkResult(where, embedded.rows, was_there=False, note=note)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        try:
            address = read_address(self._uri_file)
            parameters: dict[str, Any] = {**_CONNECTION, **conninfo_to_dict(address)}
            conninfo = make_conninfo(**parameters)
        except InputError as error:
            raise SinkError(f"the address of {_SUBJECT}: {error}") from error
        except psycopg.ProgrammingError:
            # Without the cause, which may cite the password.
            raise SinkError(
                f"the address of {_SUBJECT} cannot be read: it is like postgresql://user:password@host:5432/database, "
                "with special characters of the password as %40"
            ) from None
        return psycopg.connect(conninfo, autocommit=True)


def view_name(service: str) -> str:
    """The view of a service, `default/my-graph`, as an identifier that needs no quotes: `default_my_graph`."""
    plain = re.sub(r"[^a-z0-9]+", "_", service.lower()).strip("_")
    if not plain or plain[0].isdigit():
        plain = f"s_{plain}"
    if len(plain) <= _MOST_NAME:
        return plain
    return f"{plain[: _MOST_NAME - 9]}_{hashlib.sha256(service.encode()).hexdigest()[:8]}"


def table_name(name: str, embedded: RevisionEmbeddings) -> str:
    """The table of one set of embeddings. The view is pointed at it."""
    mark = hashlib.sha256(f"{embedded.variant} {embedded.offset}".encode()).hexdigest()[:6]
    return f"{name}__{embedded.revision}_{mark}"


@contextmanager
def _only_writer(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> Iterator[None]:
    """Keep other writers of this name away.

    A session ends some time after its connection was closed, or its program killed: what it holds is given back before,
    and that of a writer that has just gone is waited for.
    """
    key = (f"{SCHEMA}.{name}",)
    connection.execute(f"SET lock_timeout = {round(LOCK_WAIT_S * 1000)}")
    try:
        connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", key)
    except psycopg.errors.LockNotAvailable:
        raise SinkError(
            f"another program is writing the embeddings {name} into {_SUBJECT}: it is tried again"
        ) from None
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # where the connection is broken, its session ends too
            connection.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", key)


def _set_up(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
    """Make what is missing."""
    connection.execute("SET lock_timeout = '30s'")
    connection.execute("SET client_min_messages = 'warning'")
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    (extension,) = _one(
        connection.execute(
            "SELECT nspname FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'vector'"
        )
    )
    # Types and operators of the extension, wherever it was put, and nothing of the user's.
    connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(extension)))
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    connection.execute(
        f"""CREATE TABLE IF NOT EXISTS {SCHEMA}.sets (
            name text PRIMARY KEY, service text NOT NULL, relation text NOT NULL, revision text NOT NULL,
            variant text NOT NULL, "offset" bigint, rows bigint NOT NULL, columns integer NOT NULL,
            completed_at timestamptz NOT NULL)"""
    )
    found = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'sets'", (SCHEMA,)
    ).fetchall()
    if missing := [column for column in _REGISTRY_COLUMNS if (column,) not in found]:
        raise SinkError(
            f"{_SUBJECT} has a table {SCHEMA}.sets of another release, without {', '.join(missing)}: use the release "
            f"that made it, or drop the schema {SCHEMA}, which is written anew then"
        )


def _registered(
    connection: psycopg.Connection[tuple[Any, ...]], name: str, embedded: RevisionEmbeddings
) -> tuple[str | None, str | None, bool]:
    """The service whose embeddings are there, their table, and whether they are these. None: there are none."""
    row = connection.execute(
        f"SELECT service, relation, to_regclass(format('%%I.%%I', '{SCHEMA}', relation)) IS NOT NULL "  # noqa: S608
        f"FROM {SCHEMA}.sets WHERE name = %s",
        (name,),
    ).fetchone()
    if row is None:
        return None, None, False
    service, relation, exists = row
    return service, relation, exists and relation == table_name(name, embedded)


def _check_free(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> None:
    """Raise SinkError, before anything is computed, where the name is that of something else than a view."""
    found = connection.execute(
        "SELECT 1 FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND relname = %s AND "
        "relkind <> 'v'",
        (SCHEMA, name),
    ).fetchone()
    if found is not None:
        raise SinkError(
            f"{_SUBJECT} has {SCHEMA}.{name}, which is no view: rename it, or give this sink another name by `view`"
        )


def _remove_unfinished(connection: psycopg.Connection[tuple[Any, ...]], name: str, before: str | None) -> None:
    """Remove tables that earlier attempts left, and those before that a reader held."""
    rows = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)", (SCHEMA, f"{name}__")
    ).fetchall()
    for (table,) in rows:
        if table != before:
            _drop(connection, table)


def _fill(
    connection: psycopg.Connection[tuple[Any, ...]],
    relation: str,
    embedded: RevisionEmbeddings,
    blocks: Callable[[], Iterator[Block]],
    on_rows: OnRows,
) -> None:
    table = sql.Identifier(SCHEMA, relation)
    kind = sql.SQL("text" if embedded.has_text_ids else "bigint")
    # The rows of a table that the same transaction made need no write-ahead log where the server keeps little of it.
    with connection.transaction():
        connection.execute(
            sql.SQL(
                'CREATE TABLE {} (id {} NOT NULL, embedding vector({}) NOT NULL, revision text NOT NULL, "offset" '
                "bigint)"
            ).format(table, kind, sql.Literal(embedded.columns))
        )
        done = 0
        with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN (FORMAT binary)").format(table)) as copy:
            copy.write(_COPY_HEADER)
            for ids, vectors in blocks():
                copy.write(encode_rows(ids, vectors, embedded))
                done += len(vectors)
                on_rows(done)
            copy.write(_COPY_END)
    if done != embedded.rows:
        raise RuntimeError(f"{done} rows were sent of {embedded.rows}")


def encode_rows(ids: Ids, vectors: np.ndarray, embedded: RevisionEmbeddings) -> bytes:
    """Rows in the binary form of COPY. A vector of pgvector is its length and a zero, as int16 each, then float32; all
    numbers are big-endian."""
    end = _text(embedded.revision) + _integer(embedded.offset)
    columns = embedded.columns
    vector = np.dtype([("bytes", ">i4"), ("columns", ">i2"), ("zero", ">i2"), ("values", ">f4", (columns,))])
    after = np.dtype((np.void, len(end)))
    if not embedded.has_text_ids:
        row = np.dtype([("fields", ">i2"), ("id_bytes", ">i4"), ("id", ">i8"), ("vector", vector), ("end", after)])
        rows = np.zeros(len(vectors), row)
        rows["id_bytes"], rows["id"] = 8, np.fromiter(ids, np.int64, len(vectors))
    else:
        row = np.dtype([("vector", vector), ("end", after)])
        rows = np.zeros(len(vectors), row)
    rows["vector"]["bytes"], rows["vector"]["columns"] = 4 + 4 * columns, columns
    rows["vector"]["values"] = vectors
    rows["end"] = np.frombuffer(end, after)
    if not embedded.has_text_ids:
        rows["fields"] = _FIELDS
        return rows.tobytes()
    count = struct.pack(">h", _FIELDS)
    return b"".join(
        part for id_, own in zip(ids, rows, strict=True) for part in (count, _text(str(id_)), own.tobytes())
    )


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">i", len(encoded)) + encoded


def _integer(number: int | None) -> bytes:
    return struct.pack(">i", -1) if number is None else struct.pack(">iq", 8, number)


class Setting(NamedTuple):
    value: int
    source: str
    """Where the server has it from, as `pg_settings` says."""


def build_settings(rows: int, columns: int, given: Mapping[str, Setting]) -> dict[str, int]:
    """What to set before an index is built, so that the server's other work suffers little: one process, which leaves
    the other processors alone, and memory (KiB) for all vectors, without which most of the time goes into reading
    pages. What a user has set for these connections stays, and memory that the server is configured for."""
    wanted = {}
    processes, memory = given["max_parallel_maintenance_workers"], given["maintenance_work_mem"]
    if processes.source not in _CHOSEN_BY_USERS and processes.value:
        wanted["max_parallel_maintenance_workers"] = 0
    needed_kb = rows * (4 * columns + _BESIDE_VECTOR_BYTES) // 1024 + 1024
    if memory.source == _UNSET and memory.value < (needed_kb := min(needed_kb, _MOST_BUILD_MEMORY_KB)):
        wanted["maintenance_work_mem"] = needed_kb
    return wanted


def _make_index(connection: psycopg.Connection[tuple[Any, ...]], relation: str, rows: int, columns: int) -> str:
    """The primary key and the HNSW index; a note where pgvector cannot have the latter."""
    table = sql.Identifier(SCHEMA, relation)
    connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (id)").format(table))
    note = ""
    if columns <= _MOST_INDEXED_COLUMNS:
        current = connection.execute(
            "SELECT name, setting, source FROM pg_settings WHERE name IN ('max_parallel_maintenance_workers', "
            "'maintenance_work_mem')"
        ).fetchall()
        given = {name: Setting(int(setting), source) for name, setting, source in current}
        for name, value in build_settings(rows, columns, given).items():
            connection.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        connection.execute(sql.SQL("CREATE INDEX ON {} USING hnsw (embedding vector_cosine_ops)").format(table))
    else:
        note = f"no HNSW index was made: pgvector has none for more than {_MOST_INDEXED_COLUMNS:,} columns"
    connection.execute(sql.SQL("ANALYZE {}").format(table))
    return note


def _switch(
    connection: psycopg.Connection[tuple[Any, ...]], name: str, relation: str, embedded: RevisionEmbeddings
) -> None:
    """Point the view at the table and note it, in one transaction."""
    view, table = sql.Identifier(SCHEMA, name), sql.Identifier(SCHEMA, relation)
    with connection.transaction():
        rights = _rights(connection, name)
        # A view that is replaced keeps its rights, but may not change the types of its columns.
        connection.execute(sql.SQL("DROP VIEW IF EXISTS {}").format(view))
        connection.execute(sql.SQL("CREATE VIEW {} AS SELECT * FROM {}").format(view, table))
        for grantee, privilege in rights:
            to = sql.SQL("PUBLIC") if grantee is None else sql.Identifier(grantee)
            connection.execute(sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(privilege), view, to))
        connection.execute(
            f"""INSERT INTO {SCHEMA}.sets
            (name, service, relation, revision, variant, "offset", rows, columns, completed_at)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s, now())
            ON CONFLICT (name) DO UPDATE SET (service, relation, revision, variant, "offset", rows, columns,
            completed_at) = (excluded.service, excluded.relation, excluded.revision, excluded.variant,
            excluded."offset", excluded.rows, excluded.columns, excluded.completed_at)""",  # noqa: S608
            (
                name, embedded.service, relation, embedded.revision, embedded.variant, embedded.offset, embedded.rows,
                embedded.columns,
            ),
        )  # fmt: skip


def _rights(connection: psycopg.Connection[tuple[Any, ...]], name: str) -> list[tuple[str | None, str]]:
    """Rights to read the view, beside its owner's: role (None: all roles) and privilege."""
    return connection.execute(
        "SELECT rolname, privilege_type FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace, "
        "aclexplode(relacl) LEFT JOIN pg_roles r ON r.oid = grantee "
        "WHERE nspname = %s AND relname = %s AND grantee <> relowner AND privilege_type = 'SELECT'",
        (SCHEMA, name),
    ).fetchall()


def _drop(connection: psycopg.Connection[tuple[Any, ...]], relation: str | None) -> None:
    if relation is None:
        return
    try:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, relation)))
    except psycopg.errors.LockNotAvailable:
        _log.warning("table %s of %s is still read, and is dropped the next time", relation, _SUBJECT)


def _one(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None  # noqa: S101
    return row


@contextmanager
def _explained() -> Iterator[None]:
    """Turn psycopg's errors into SinkError, without any part of the address."""
    try:
        yield
    except psycopg.Error as error:
        raise SinkError(_explain(error)) from error


def _explain(error: psycopg.Error) -> str:
    text = str(error)
    state = error.sqlstate or next((state for part, state in _REFUSED_CLIENTS.items() if part in text), "")
    said = error.diag.message_primary or "its log has more"
    for prefix, words in _MEANINGS.items():
        if state.startswith(prefix):
            return f"{_SUBJECT} {words.format(said=said)}"
    if state:
        return f"{_SUBJECT} refused it with error {state}: {said}"
    return (
        f"{_SUBJECT} went away, or lets the client not connect: see that it runs, and that its address has "
        "the right host, database, user and password"
    )
