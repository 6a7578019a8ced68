"""A worker in a process of its own whose batches take what its profile says: for what needs load, or a browser.

Run as a program: port (0 takes a free one) and the service's latency in ms. It prints its port once it listens, has
nothing to answer from until a line comes on standard input, and is long about to drain once it was asked to end.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import numpy as np
from tests.support.machine import fork_server
from tests.support.serving.serving import FakeWorker, profile, service, variant

from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.served_service import ServiceSettings
from gnnserve_worker.serving.process.server import WorkerServer

PROFILE = profile(
    variant("x1", 0.94, 10, 0.1),
    variant("x2", 0.92, 6, 0.06),
    variant("x4", 0.89, 4, 0.04),
    variant("x8", 0.83, 2, 0.02),
)
"""A profile by which, with batches of 200 seeds, x1 does 6.7 seeds per ms, x8 33."""
LAME_DUCK_S = 600.0
_CURVES = {shown.name: PROFILE.latency_curve(shown.name) for shown in PROFILE.variants}


@dataclass(frozen=True, slots=True)
class SlowWorker:
    process: fork_server.Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def load(self) -> None:
        """Answer from its revision."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while httpx.get(f"{self.url}/readyz").status_code != 200:
            time.sleep(0.01)


@contextmanager
def slow_worker(port: int = 0, latency_ms: float = 60.0) -> Iterator[SlowWorker]:
    """Listens, and has nothing to answer from yet."""
    program = ("tests.support.serving.slow_worker", str(port), str(latency_ms))
    with fork_server.started(*program, stdin=True, stdout=True) as process:
        try:
            assert process.stdout is not None
            yield SlowWorker(process, int(process.stdout.readline()))
        finally:
            process.kill()


def main() -> None:
    port, latency_ms = int(sys.argv[1]), float(sys.argv[2])

    def compute(name: str, seeds: np.ndarray) -> None:
        time.sleep(_CURVES[name].at(len(seeds)) / 1000)

    def load() -> None:
        print(sock.getsockname()[1], flush=True)
        sys.stdin.readline()
        worker.services[of.metadata.name].switch(revision, of.spec.routing_table(revision.manifest.revision), 0.1)

    of = service({"latencyMs": latency_ms}, max_seeds=200, max_queued_seeds=20_000)
    revision = FakeWorker(profile=PROFILE, fail=compute).revision()
    sock = bind("127.0.0.1", port)
    worker = WorkerServer([ServiceSettings(of.metadata.name, sock)], LAME_DUCK_S)
    worker.run(threading.Thread(target=load, daemon=True).start)


if __name__ == "__main__":
    main()
