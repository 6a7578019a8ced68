"""Compaction: what it takes to make a log of edges part of the graph, by stage, and how long a worker takes to start
with the log and without it.

Over a shape of one type, or a graph of several (`updates_relations.py`). In a process of its own, over a copy of the
repository. The log is a SQLite file, as `gnnserve run` has it.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.changes import updates_relations
from benchmarks.changes.updates_changes import ChangeStream, Mix
from benchmarks.changes.updates_graph import MAX_DELTA_BYTES, REPOSITORY, ROOT, living_manifest, publish
from benchmarks.changes.updates_measured import Compaction
from gnnserve_api.files.graph_schema import NAMES_OF_TYPES
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import ChangeBatch, encode_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.followed_log import FollowedLog
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.paths import ServicePaths
from gnnserve_worker.repository.repository import Repository

FULL, QUICK = 10_000_000, 20_000
_UID = "00000000-0000-4000-8000-000000000000"
_BATCH = 1000
_GROUP = 64
"""Batches of one transaction."""
_EDGES = Mix(new_nodes=0.0, overrides=0.0)


def measure_compaction_elsewhere(name: str, changes: int) -> Compaction:
    command = [sys.executable, "-m", "benchmarks.changes.updates_compaction", name, str(changes)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Compaction)


class _Stream(Protocol):
    def batch(self, size: int) -> ChangeBatch: ...


def published_service(name: str) -> tuple[GNNService, Repository, str]:
    """A service of one type or of several, its repository, and its revision."""
    if name != updates_relations.NAME:
        return GNNService.model_validate(living_manifest(name)), *publish(name)
    service = GNNService.model_validate(updates_relations.typed_manifest())
    repository = Repository(REPOSITORY, service.metadata.namespace, service.metadata.name)
    return service, repository, generate(service, repository).revision


def _stream_over(loaded: LoadedRevision) -> _Stream:
    if loaded.graph.schema.names is NAMES_OF_TYPES:
        return updates_relations.TypedStream(loaded.graph, 1)
    return ChangeStream(loaded.graph, loaded.new_nodes.features, 1, _EDGES)


def measure_compaction(name: str, changes: int) -> Compaction:
    service, published, revision = published_service(name)
    with tempfile.TemporaryDirectory(prefix="gnnserve-compaction-") as folder:
        root = Path(folder)
        place = root / service.metadata.namespace / service.metadata.name
        shutil.copytree(published.folder, place, copy_function=_link)
        repository = Repository(root, service.metadata.namespace, service.metadata.name)
        log = SqliteFile(ServicePaths(repository.folder).log(_UID))
        options = UpdatesOptions(log, _UID, MAX_DELTA_BYTES)
        graph = load_revision(repository, revision)
        written_s = _write(log.path, _stream_over(graph), changes)
        replayed_s = _start(repository, revision, options)
        stages = Stages()
        began_s = time.perf_counter()
        made = compact(service, repository, options, revision, stages)
        took_s = time.perf_counter() - began_s
        nodes, edges = graph.graph.nodes, graph.graph.edges
        return Compaction(
            nodes=nodes,
            edges=edges,
            changes=changes,
            log_bytes=sum(file.stat().st_size for file in log.path.parent.iterdir()),
            written_s=round(written_s, 2),
            took_s=round(took_s, 2),
            stages_s={stage: round(seconds, 2) for stage, seconds in stages.seconds(began_s + took_s).items()},
            start_with_log_s=round(replayed_s, 2),
            start_after_s=round(_start(repository, made.revision, options), 2),
            peak_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        )


class Stages:
    """A listener that knows when each stage was first told of."""

    def __init__(self) -> None:
        self._began: list[tuple[str, float]] = []

    def __call__(self, progress: Progress) -> None:
        if not self._began or self._began[-1][0] != progress.stage:
            self._began.append((progress.stage, time.perf_counter()))

    def seconds(self, ended_s: float) -> dict[str, float]:
        ends = [*(at for _, at in self._began[1:]), ended_s]
        spent: dict[str, float] = {}
        for (stage, at), end in zip(self._began, ends, strict=True):
            spent[stage] = spent.get(stage, 0.0) + end - at
        return spent


def _link(source: str, target: str) -> None:
    # Published files never change, so that a copy costs nothing.
    Path(target).hardlink_to(source)


def _write(path: Path, stream: _Stream, changes: int) -> float:
    """Write the log; seconds."""
    took_s = 0.0
    with closing(SqliteLog(path, _UID)) as log:
        for first in range(0, changes // _BATCH, _GROUP):
            numbers = range(first, min(first + _GROUP, changes // _BATCH))
            entries = [Entry("bench", number, _BATCH, encode_batch(stream.batch(_BATCH))) for number in numbers]
            began_s = time.perf_counter()
            log.append(entries)
            took_s += time.perf_counter() - began_s
    return took_s


def _start(repository: Repository, revision: str, options: UpdatesOptions) -> float:
    """Seconds from a revision on the disk to one that can answer, with all that the log has."""
    began_s = time.perf_counter()
    FollowedLog(options).open(lambda most_bytes: load_revision(repository, revision, most_bytes), served_revision)
    return time.perf_counter() - began_s


if __name__ == "__main__":
    print(msgspec.json.encode(measure_compaction(sys.argv[1], int(sys.argv[2]))).decode())
