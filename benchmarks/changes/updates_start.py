"""Starts over a log of small batches: how long it takes until a revision has applied what clients sent a few changes at
a time.

Over a shape of one type, or a graph of several, in a process of its own. Nodes come, others are overridden, edges come
and leave, in batches of one to 22 changes. The log is a SQLite file, as `gnnserve run` has it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from benchmarks.changes.updates_changes import ChangeStream
from benchmarks.changes.updates_compaction import published_service
from benchmarks.changes.updates_graph import MAX_DELTA_BYTES, ROOT
from benchmarks.changes.updates_measured import Start
from benchmarks.changes.updates_relations import TypedStream
from gnnserve_api.files.graph_schema import NAMES_OF_TYPES
from gnnserve_worker.changes.follower import catch_up
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.graph.change_batch import ChangeBatch, encode_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision

FULL, QUICK = 14_258, 500
"""Records."""
_MOST_CHANGES = 22
"""Changes of a record at most: 11.5 on average."""
_GROUP = 500
"""Records of one transaction."""
_STARTS = 3
_UID = "00000000-0000-4000-8000-000000000000"


class _Stream(Protocol):
    def small(self, size: int) -> ChangeBatch:
        """A batch of about so many changes of all kinds."""
        ...


def measure_start_elsewhere(name: str, records: int) -> Start:
    command = [sys.executable, "-m", "benchmarks.changes.updates_start", name, str(records)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Start)


def measure_start(name: str, records: int) -> Start:
    _, repository, revision = published_service(name)
    graph = load_revision(repository, revision)
    with tempfile.TemporaryDirectory(prefix="gnnserve-start-") as folder:
        path = Path(folder) / "log.sqlite"
        changes = _write(path, _stream_over(graph), records)
        replays_s, loads_s = [], []
        for _ in range(_STARTS):
            began_s = time.perf_counter()
            replica = LivingRevision(load_revision(repository, revision, MAX_DELTA_BYTES), MAX_DELTA_BYTES)
            loaded_s = time.perf_counter()
            with closing(SqliteLog(path, _UID)) as log:
                catch_up(log, replica, lambda _: None)
            replays_s.append(time.perf_counter() - loaded_s)
            loads_s.append(loaded_s - began_s)
            if replica.offset != records:
                raise SystemExit(f"{replica.offset:,} of {records:,} records were applied")
        return Start(
            nodes=graph.graph.nodes,
            edges=graph.graph.edges,
            records=records,
            changes=changes,
            log_bytes=path.stat().st_size,
            load_s=round(float(np.median(loads_s)), 2),
            replay_s=round(float(np.median(replays_s)), 2),
            replays_s=tuple(round(each, 2) for each in replays_s),
        )


def _stream_over(loaded: LoadedRevision) -> _Stream:
    if loaded.graph.schema.names is NAMES_OF_TYPES:
        return TypedStream(loaded.graph, 1)
    return ChangeStream(loaded.graph, loaded.new_nodes.features, 1)


def _write(path: Path, stream: _Stream, records: int) -> int:
    """Write the log; how many changes it has."""
    sizes, changes = np.random.default_rng(2).integers(1, _MOST_CHANGES + 1, records), 0
    with closing(SqliteLog(path, _UID)) as log:
        for first in range(0, records, _GROUP):
            entries = []
            for number in range(first, min(first + _GROUP, records)):
                batch = stream.small(int(sizes[number]))
                entries.append(Entry("bench", number, batch.counts.items, encode_batch(batch)))
                changes += batch.counts.items
            log.append(entries)
    return changes


if __name__ == "__main__":
    print(msgspec.json.encode(measure_start(sys.argv[1], int(sys.argv[2]))).decode())
