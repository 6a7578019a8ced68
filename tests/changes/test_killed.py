"""Processes that are killed under load: what was confirmed is in the log, once, in order, without a gap."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.changes.logs import LogPlace, entries, read_all
from tests.support.changes.postgres import PostgresServer
from tests.support.changes.replica import FakeReplica, make_batch
from tests.support.machine.waiting import WAIT_S

from gnnserve_worker.changes import follower, postgres_log, writer
from gnnserve_worker.changes import worker_log as module
from gnnserve_worker.changes.log import Record
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.graph.change_batch import encode_batch

_ROOT = Path(__file__).parents[2]
Acknowledged = dict[tuple[str, int], int]
"""Offsets by client and sequence."""


def _require_kept(records: Sequence[Record], acknowledged: Acknowledged) -> None:
    """No acknowledged record is lost, none is there twice, none is missing in between, each client's are in order."""
    assert [r.offset for r in records] == list(range(1, len(records) + 1))
    found = {(r.client, r.sequence): r.offset for r in records}
    assert len(found) == len(records)
    assert {key: found.get(key) for key in acknowledged} == acknowledged
    for client in {r.client for r in records}:
        sequences = [r.sequence for r in records if r.client == client]
        assert sequences == sorted(sequences)


class _Writer:
    """A process that writes, and a thread that reads what was confirmed to it."""

    def __init__(self, path: Path, client: str, acknowledged: Acknowledged) -> None:
        self._acknowledged = acknowledged
        self._client = client
        self._enough = threading.Event()
        self._left = 0
        first = max((sequence for name, sequence in acknowledged if name == client), default=-1) + 1
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.changes.log_writer", path, client, str(first)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def kill_after(self, confirmations: int) -> None:
        """Kill it when so many more were confirmed."""
        self._enough.clear()
        self._left = confirmations
        assert self._enough.wait(WAIT_S)
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                sequence, offset = map(int, line.split())
                # A batch that was in the log already when it was sent again has the offset of then.
                assert self._acknowledged.setdefault((self._client, sequence), offset) == offset
            self._left -= 1
            if self._left == 0:
                self._enough.set()


def test_a_sqlite_log_keeps_what_it_confirmed_to_writers_that_are_killed(sqlite: LogPlace) -> None:
    """Three processes write, each of them is killed in turn and begins again where its confirmations ended."""
    draw = random.Random(3)  # noqa: S311
    acknowledged: list[Acknowledged] = [{}, {}, {}]
    writers = [_Writer(sqlite.path, f"client{number}", found) for number, found in enumerate(acknowledged)]
    for killed in range(12):
        at = killed % len(writers)
        writers[at].kill_after(draw.randint(1, 40))
        writers[at] = _Writer(sqlite.path, f"client{at}", acknowledged[at])
    for one in writers:
        one.kill()
    records = read_all(sqlite.open())
    _require_kept(records, {key: offset for found in acknowledged for key, offset in found.items()})
    with closing(sqlite3.connect(sqlite.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_postgres_log_keeps_what_it_confirmed_when_the_whole_server_is_killed(
    postgres: LogPlace, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers with four clients each, from submit to outcome; what is not confirmed is sent again."""
    monkeypatch.setattr(follower, "_BACKOFF_S", (0.01, 0.1))
    monkeypatch.setattr(writer, "_BACKOFF_S", (0.01, 0.1))
    monkeypatch.setattr(module, "_RETRY_S", WAIT_S)
    monkeypatch.setattr(module, "_SETTLE_S", WAIT_S)
    draw = random.Random(4)  # noqa: S311
    acknowledged: Acknowledged = {}
    is_over = asyncio.Event()

    async def kill() -> None:
        for _ in range(5):
            wanted = len(acknowledged) + draw.randint(20, 200)
            while len(acknowledged) < wanted:
                await asyncio.sleep(0.002)
            await asyncio.to_thread(server.kill)
            server.launch()
            await asyncio.to_thread(server.wait)
        is_over.set()

    async def client(updates: Updates, number: int) -> None:
        sequence = 0
        while not is_over.is_set():
            batch = make_batch([(number << 32) + sequence])
            outcome = await updates.submit(encode_batch(batch), batch, f"client{number}", sequence)
            assert outcome.refusal is None
            acknowledged[f"client{number}", sequence] = outcome.offset
            sequence += 1

    async def scene() -> list[FakeReplica]:
        replicas = [FakeReplica(), FakeReplica()]
        workers = [Updates(postgres.open()) for _ in replicas]
        for worker, replica in zip(workers, replicas, strict=True):
            worker.start()
            worker.follow(replica)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill())
            for number in range(8):
                tasks.create_task(client(workers[number % 2], number))
        last = max(acknowledged.values())
        for worker in workers:
            assert await worker.wait_applied(last, WAIT_S)
            await worker.close()
        return replicas

    replicas = asyncio.run(scene())
    records = read_all(postgres.open())
    _require_kept(records, acknowledged)
    assert {replica.offset for replica in replicas} == {len(records)}
    assert len({replica.history for replica in replicas}) == 1
    assert replicas[0].nodes == {(int(client[6:]) << 32) + sequence for client, sequence in acknowledged}


def test_cutting_goes_on_after_the_server_was_killed_in_it(
    postgres: LogPlace, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_log, "_CUT_RECORDS", 3)
    log = postgres.open()
    log.append(entries("a", *range(30)))
    log.cut(10)
    server.kill()
    server.start()
    again = postgres.open()
    assert again.position().first == 11
    again.cut(20)
    assert [r.offset for r in read_all(again, 20)] == list(range(21, 31))
