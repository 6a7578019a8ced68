"""Schema of the log in PostgreSQL: its tables, and the statements on them.

No statement needs to know how large a table is: each looks up rows by an index, in its order.
"""

from __future__ import annotations

READ_RECORDS = 4096
LOCK_SPACE = 0x676E6E73
"""First number of the advisory locks; the second one is the log, or 0 while the tables are made."""
TABLES = """
CREATE SCHEMA IF NOT EXISTS gnnserve;
CREATE TABLE gnnserve.log (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, service_uid text NOT NULL UNIQUE,
    schema_version integer NOT NULL, first bigint NOT NULL, last bigint NOT NULL, total_changes bigint NOT NULL,
    checksum bigint NOT NULL
) WITH (fillfactor = 10);
CREATE TABLE gnnserve.records (
    log_id integer NOT NULL, "offset" bigint NOT NULL, client text NOT NULL, sequence bigint NOT NULL,
    time_ms bigint NOT NULL, changes bigint NOT NULL, total_changes bigint NOT NULL, body bytea NOT NULL,
    previous bigint NOT NULL, checksum bigint NOT NULL,
    PRIMARY KEY (log_id, "offset"), UNIQUE (log_id, client, sequence)
);
ALTER TABLE gnnserve.records ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE gnnserve.clients (
    log_id integer NOT NULL, client text NOT NULL, sequence bigint NOT NULL, PRIMARY KEY (log_id, client)
);
"""
"""`log` has a row for each service, which every commit changes: a page has room for its versions. `clients`: per client
the largest sequence that was cut. Numbers of features do not get smaller by compression."""
FIELDS = '"offset", client, sequence, time_ms, changes, total_changes, body, previous, checksum'
TURN = f"SELECT pg_advisory_xact_lock({LOCK_SPACE}, %s)"
"""Writers queue for this lock. Without it the row's is given to the one that comes at the right moment: of two busy
writers one appended 64 times as much."""
LOCK = """
SELECT first, last, total_changes, checksum, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM gnnserve.log WHERE id = %s FOR UPDATE
"""
KNOWN = """
SELECT client, sequence, (
    SELECT "offset" FROM gnnserve.records AS known
    WHERE known.log_id = %(log)s AND known.client = asked.client AND known.sequence = asked.sequence
) FROM unnest(%(clients)s::text[], %(sequences)s::bigint[]) AS asked (client, sequence)
"""
"""No join: planned while the table was small, one read the whole log for each group."""
PASSED = "SELECT client, sequence FROM gnnserve.clients WHERE log_id = %s AND client = ANY (%s)"
COPY = f"COPY gnnserve.records (log_id, {FIELDS}) FROM STDIN (FORMAT BINARY)"
TYPES = ("int4", "int8", "text", "int8", "int8", "int8", "int8", "bytea", "int8", "int8")
ADVANCE = "UPDATE gnnserve.log SET last = %s, total_changes = %s, checksum = %s WHERE id = %s"
QUICK = f"""
WITH turn AS MATERIALIZED (SELECT pg_advisory_xact_lock({LOCK_SPACE}, %(log)s)), head AS (
    UPDATE gnnserve.log SET last = %(last)s, total_changes = %(total_changes)s, checksum = %(checksum)s FROM turn
    WHERE id = %(log)s AND first = %(was_first)s AND last = %(was_last)s AND checksum = %(was_checksum)s
    AND NOT EXISTS (
        SELECT FROM unnest(%(client)s::text[], %(sequence)s::bigint[]) AS asked (client, sequence)
        WHERE asked.sequence <= (
            SELECT cut.sequence FROM gnnserve.clients AS cut WHERE cut.log_id = %(log)s AND cut.client = asked.client
        )
    ) RETURNING id
), written AS (
    INSERT INTO gnnserve.records (log_id, {FIELDS}) SELECT head.id, new.* FROM head, unnest(
        %(offset)s::bigint[], %(client)s::text[], %(sequence)s::bigint[], %(time_ms)s::bigint[], %(changes)s::bigint[],
        %(totals)s::bigint[], %(body)b::bytea[], %(previous)s::bigint[], %(checksums)s::bigint[]
    ) AS new
) SELECT pg_notify(%(channel)s, %(payload)s) FROM head
"""  # noqa: S608 - no values
"""A group in one statement, where the log ends as its writer believes; else no row. `first` is compared too: had a cut
come in between, the statement would not see which sequences it passed."""
READ = f"""
SELECT log.first, log.last, log.total_changes, log.checksum, found.* FROM gnnserve.log LEFT JOIN LATERAL (
    SELECT {FIELDS} FROM (
        SELECT {FIELDS}, sum(octet_length(body)) OVER (ORDER BY "offset") - octet_length(body) AS bytes_before
        FROM (SELECT * FROM gnnserve.records WHERE log_id = %(log)s AND "offset" > %(after)s
              ORDER BY "offset" LIMIT {READ_RECORDS}) AS behind
    ) AS sized WHERE bytes_before < %(most_bytes)s
) AS found ON true WHERE log.id = %(log)s ORDER BY found."offset"
"""  # noqa: S608 - no values
"""One statement, so that nothing is cut in between."""
CUT = """
INSERT INTO gnnserve.clients SELECT log_id, client, max(sequence) FROM gnnserve.records
WHERE log_id = %s AND "offset" <= %s GROUP BY log_id, client
ON CONFLICT (log_id, client) DO UPDATE SET sequence = greatest(clients.sequence, excluded.sequence)
"""
