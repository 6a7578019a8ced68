"""Real processes: a PostgreSQL, and workers that share a log in it, each behind something that may cut it off.

All of it is started, stopped and killed in the main thread, with which a server of the tests ends.
"""

from __future__ import annotations

import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.changes.campaign import rehearsal
from tests.changes.campaign.clients import Place
from tests.changes.campaign.graph import FirstGraph
from tests.changes.campaign.jobs import Jobs
from tests.changes.campaign.revision import NAMESPACE, SERVICE, service_of, write_source
from tests.support.changes.partition import Partition
from tests.support.changes.postgres import PostgresServer
from tests.support.kubernetes.configmap_server import ConfigMapServer, configmap_server
from tests.support.machine import fork_server
from tests.support.pods.pods import WorkerPod, worker_pod

from gnnserve_api.pods.generation import GenerationResult
from gnnserve_api.pods.interface import (
    MANIFEST_VARIABLE,
    MAX_DELTA_VARIABLE,
    POSTGRES_LOG_VARIABLE,
    REPOSITORY_VARIABLE,
    SERVICE_UID_VARIABLE,
    WRITE_TOKENS_VARIABLE,
)
from gnnserve_api.pods.routing import RoutingMode, RoutingTable

_MAX_DELTA_BYTES = 1 << 26


class Worker:
    """A worker that is killed and started anew; every life has another port."""

    def __init__(self, name: str, folder: Path, api: ConfigMapServer, server: PostgresServer, environ: dict[str, str]):
        self.place: Place | None = None
        """None: it is not running. It is so before a process ends, and its port is free."""
        self.logs: dict[str, list[dict[str, Any]]] = {}
        """What each life logged."""
        self.name = name
        self._folder = folder
        self._api = api
        # A folder of its own: the path of a Unix socket has hardly more than 100 characters.
        self._sockets = tempfile.TemporaryDirectory(prefix="gnnserve-cut-")
        self.partition = Partition(Path(self._sockets.name), server.socket)
        uri_file = Path(self._sockets.name) / "uri"
        uri_file.write_text(server.uri().replace(str(server.socket.parent), self._sockets.name))
        self._environ = {**environ, POSTGRES_LOG_VARIABLE: str(uri_file)}
        self._life = ExitStack()
        self._pod: WorkerPod | None = None

    def start(self) -> None:
        """Return when it listens; it may still be loading then."""
        process = f"{self.name}.{len(self.logs) + 1}"
        self._pod = self._life.enter_context(worker_pod(self._folder, self._api, environ=self._environ))
        self.logs[process] = self._pod.log
        self.place = Place(process, self._pod.port)

    def kill(self) -> None:
        """Kill it at once. It may be down already."""
        self.place, self._pod = None, None
        self._life.close()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        self.partition.close()
        self._sockets.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        if self._pod is not None:
            os.kill(self._pod.process.pid, number)


@dataclass(slots=True)
class World:
    database: PostgresServer
    workers: Sequence[Worker]
    first: FirstGraph
    token: str
    """It may write; predictions need none."""
    jobs: Jobs
    published: GenerationResult
    """What workers are to answer from."""
    _declare: Callable[[GenerationResult], None]
    compacted: int = 0
    """How often a revision took the place of another one."""

    def compact(self) -> None:
        """Begin to compact the log, unless that is being done."""
        if not self.jobs.is_running:
            self.jobs.start(self.published.revision)

    def declare(self, *, waits: bool = False) -> None:
        """Declare what a Job has published since; `waits`: what the one that runs will have, too."""
        made = self.jobs.look(waits=waits)
        if made is not None and made.revision != self.published.revision:
            self.published, self.compacted = made, self.compacted + 1
            self._declare(made)


@contextmanager
def running_world(
    folder: Path, database: PostgresServer, first: FirstGraph, variant: str, workers: int
) -> Iterator[World]:
    """Workers over an empty log of their own, which answer by that variant. `database` is running."""
    assert threading.current_thread() is threading.main_thread()
    token = secrets.token_hex(16)
    (folder / "write-tokens").mkdir()
    (folder / "write-tokens" / "writer").write_text(token)
    uri_file = folder / "uri"
    uri_file.write_text(database.uri())
    write_source(folder, first)
    environ = {
        **os.environ,
        SERVICE_UID_VARIABLE: secrets.token_hex(8),
        MAX_DELTA_VARIABLE: str(_MAX_DELTA_BYTES),
        "OMP_NUM_THREADS": "1",
    }
    of_jobs = {
        MANIFEST_VARIABLE: service_of(folder).model_dump_json(by_alias=True, exclude_none=True),
        REPOSITORY_VARIABLE: str(folder / "repository"),
        POSTGRES_LOG_VARIABLE: str(uri_file),
        "GNNSERVE_PROFILE_SECONDS": "0.05",
    }
    jobs = Jobs(folder, {**environ, **of_jobs})
    made = jobs.generate()
    fork_server.prepare(rehearsal.__name__, str(folder / "repository"), NAMESPACE, SERVICE, made.revision)
    environ |= {WRITE_TOKENS_VARIABLE: str(folder / "write-tokens"), "TESTS_LOOK_EVERY_S": "1"}
    with configmap_server() as api, ExitStack() as until_the_end:

        def declare(result: GenerationResult) -> None:
            api.put(RoutingTable(result.revision, result.recipe, mode=RoutingMode.STATIC, base_variant=variant))

        declare(made)
        until_the_end.callback(jobs.kill)
        all_of_them = []
        for number in range(workers):
            worker = Worker(f"worker-{number}", folder, api, database, environ)
            until_the_end.callback(worker.close)
            all_of_them.append(worker)
            worker.start()
        yield World(database, all_of_them, first, token, jobs, made, declare)
