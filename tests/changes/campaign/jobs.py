"""Generation and compaction Jobs of the service, as processes, and what the operator does about them in a cluster: the
revision that one publishes is declared to workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.machine import fork_server

from gnnserve_api.pods.generation import GenerationResult, decode_result
from gnnserve_api.pods.interface import COMPACT_VARIABLE

_MODULE = "gnnserve_worker.pods.generate"
_MESSAGE_VARIABLE = "GNNSERVE_TERMINATION_MESSAGE"


class Jobs:
    """At most one runs at a time. The service's own log is in `environ`, as in a pod."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.killed = 0
        self.failed: list[str] = []
        """What those said that ended otherwise than they should: without their database, for one thing."""
        self._environ = {**environ, _MESSAGE_VARIABLE: str(folder / "termination-log")}
        self._message = folder / "termination-log"
        self._running: fork_server.Process | None = None

    def generate(self) -> GenerationResult:
        """Generate the first revision."""
        self._running = fork_server.started(_MODULE, env=self._environ, stderr=True)
        result = self.look(waits=True)
        assert result is not None, self.failed
        return result

    def start(self, revision: str) -> None:
        """Start to compact the log, beginning with that revision."""
        assert self._running is None
        environ = {**self._environ, COMPACT_VARIABLE: revision}
        self._running = fork_server.started(_MODULE, env=environ, stderr=True)

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def kill(self) -> None:
        """Kill it at once, if one runs."""
        if (job := self._running) is not None:
            job.kill()
            self._end(job)
            self.killed += 1

    def look(self, *, waits: bool = False) -> GenerationResult | None:
        """The result of one that has ended well since; `waits`: of the one that runs, once it has ended."""
        job = self._running
        if job is None or (not waits and job.poll() is None):
            return None
        if self._end(job) == os.EX_OK:
            return decode_result(self._message.read_text())
        self.failed.append(self._message.read_text())
        return None

    def _end(self, job: fork_server.Process) -> int:
        """Wait for its end; its exit code. What it says of its progress is a few lines, which a pipe holds."""
        self._running = None
        with job:
            return job.wait()
