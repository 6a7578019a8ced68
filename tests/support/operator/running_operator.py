"""The whole operator with the real kopf, in the test's own event loop, against a `FakeCluster` behind HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from tests.support.kubernetes.control_plane import answer_like_a_worker
from tests.support.kubernetes.fake_cluster import FakeCluster
from tests.support.machine.clock import QuickClock
from tests.support.machine.fake_server import fake_server
from tests.support.machine.waiting import WAIT_S

from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.main import Ending, run
from gnnserve_operator.observed import ObservedPod
from gnnserve_operator.probe import Addresses, Prober
from gnnserve_operator.settings import Settings

Manifest = dict[str, Any]


class OneAddress(Addresses):
    """Everything is at one place, as pods' addresses are of no use here."""

    def __init__(self, url: str) -> None:
        super().__init__("cluster.local")
        self._url = url

    def of_pod(self, pod: ObservedPod) -> str:
        return self._url

    def of_service(self, key: ServiceKey) -> str:
        return self._url


@dataclass(slots=True)
class RunningOperator:
    cluster: FakeCluster
    port: int
    task: asyncio.Task[Ending]
    stop: asyncio.Event

    async def until(self, condition: Callable[[], object]) -> None:
        """Raises what the operator died of, if it did."""
        waiting = asyncio.create_task(asyncio.to_thread(self.cluster.wait_until, condition))
        await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        await waiting

    async def until_condition(
        self, kind: str, status: str, reason: str | None = None, name: str = "digits"
    ) -> Manifest:
        def holds() -> bool:
            found = condition_of(self.cluster, kind, name)
            return found.get("status") == status and reason in {None, found.get("reason")}

        await self.until(holds)
        return condition_of(self.cluster, kind, name)

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return response.status, await response.text()

    async def resync(self) -> None:
        """Waits until everything has been looked at twice more, so once at least with all that went before."""
        for _ in range(2):
            before = await self.reconciles()
            async with asyncio.timeout(WAIT_S):
                while await self.reconciles() < before + len(self.cluster.all("GNNService")):
                    await asyncio.sleep(0.05)

    async def reconciles(self) -> float:
        lines = (await self.get("/metrics"))[1].splitlines()
        counts = [line for line in lines if line.startswith("gnnserve_operator_reconciles_total")]
        return sum(float(line.rpartition(" ")[2]) for line in counts)


@asynccontextmanager
async def running_operator(
    cluster: FakeCluster, identity: str | None = None, clock: QuickClock | None = None, **settings: Any
) -> AsyncIterator[RunningOperator]:
    """KUBECONFIG must lead to the cluster. Unless told otherwise, time passes ten times as fast."""
    built = Settings(**{"worker_image": "worker:test", "http_port": 0, "resync_seconds": 1, **settings})
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    with fake_server(answer_like_a_worker(cluster)) as worker:
        prober = Prober(OneAddress(worker.url), WAIT_S)  # a busy machine must not look like a silent worker
        task = asyncio.create_task(
            run(
                built, clock=clock or QuickClock(), prober=prober, stop=stop, identity=identity,
                on_listening=port.set_result,
            )
        )  # fmt: skip
        started: set[asyncio.Future[Any]] = {task, port}
        await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
        operator = RunningOperator(cluster, port.result() if port.done() else 0, task, stop)
        try:
            yield operator
        finally:
            stop.set()
            await task


@contextmanager
def operator_process(
    folder: Path, settings_file: str = "settings.yaml", environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process of its own; killed at the end, if it has not ended by then."""
    path = folder / settings_file
    path.write_text(yaml.safe_dump({"workerImage": "worker:test", "httpPort": 0, **settings}))
    variables = {**os.environ, "GNNSERVE_SETTINGS": str(path), **(environment or {})}
    command = [sys.executable, "-m", "gnnserve_operator"]
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()


def condition_of(cluster: FakeCluster, kind: str, name: str = "digits") -> Manifest:
    service = cluster.find("GNNService", name) or {}
    conditions = (service.get("status") or {}).get("conditions") or ()
    return next((dict(found) for found in conditions if found["type"] == kind), {})
