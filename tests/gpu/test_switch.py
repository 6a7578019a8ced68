"""Live switches on a GPU without memory for two: everybody is answered, and in the end nothing is missing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.support.gpu.gpu_revisions import engine_of, published, revision, use_small_chunks
from tests.support.gpu.interpreter import skip_overflow_checks
from tests.support.serving.loading import DEADLINE_S
from tests.support.serving.serving import Client, FakeWorker, running, with_compute

import gnnserve_worker.gpu.served as served_module
import gnnserve_worker.gpu.sharing as sharing_module
from gnnserve_api.device import CachePolicy
from gnnserve_api.pods.routing import Damage, RoutingTable
from gnnserve_worker.following.loader import Loader
from gnnserve_worker.following.repository_watch import RepositoryWatch
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.gpu.failure import Trust
from gnnserve_worker.gpu.memory import HostMemory, Ledger
from gnnserve_worker.gpu.served import serve_on_gpu
from gnnserve_worker.inference.batch import Inference
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision

LARGE_NODES, LARGE_WIDTH = 20_000, 160
FIRST, SECOND = "f0eae20c16c00ac0-1", "f0eae20c16c00ac0-2"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch, 1)
    skip_overflow_checks(monkeypatch)
    monkeypatch.setattr(sharing_module, "ROUNDS", 0)
    monkeypatch.setattr(served_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(served_module, "_ROUNDS", (1, 1))


class OnLoop:
    """The loader's server: an engine, on its event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()

    def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None:
        def switch() -> None:
            if self._client.model.lane is None or self._client.model.lane.revision is not revision:
                self._client.metrics.show_revision(revision.manifest, load_s)
            self._client.model.switch(revision, table)

        self._call(switch)

    def report(self, problem: str | None, damage: Damage | None = None) -> None:
        def report() -> None:
            self._client.model.problem, self._client.model.damage = problem, damage

        self._call(report)

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        raise AssertionError(problem)

    def warn(self, revision: ServedRevision, problem: str) -> None:
        raise AssertionError(problem)

    def _call(self, act: Callable[[], None]) -> None:
        async def call() -> None:
            act()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()


def _revision(name: str) -> LoadedRevision:
    loaded = revision(fanouts=(2,), nodes=LARGE_NODES, width=LARGE_WIDTH)
    return published(replace(loaded, variants={"x1": loaded.variants["x1"]}), name)


def _bytes_of(loaded: LoadedRevision, accelerator: Accelerator) -> int:
    return sum(engine_of(loaded, accelerator).stats().memory_bytes.values())


class Loads:
    """As a worker's, of revisions that fit into the GPU's memory one at a time. The interpreter runs one kernel at a
    time, so nobody computes meanwhile."""

    def __init__(self, accelerator: Accelerator, limit_bytes: int) -> None:
        self.loaded: list[str] = []
        self.ledger = Ledger()
        self._accelerator = accelerator
        self._limit_bytes = limit_bytes
        self._trust = Trust()
        self._lock = threading.Lock()

    def load(self, name: str) -> ServedRevision:
        loaded = _revision(name)
        with self._lock:
            self.loaded.append(name)
            served = serve_on_gpu(
                loaded, served_revision(loaded), CachePolicy.DEGREE, self._limit_bytes, may_fall_back=True,
                use=lambda: self._accelerator, ledger=self.ledger, host=HostMemory(), trust=self._trust,
            )  # fmt: skip

        def infer(variant: str, seeds: np.ndarray, key: int, *, with_embeddings: bool = True) -> Inference:
            with self._lock:
                return served.compute.infer(variant, seeds, key, with_embeddings=with_embeddings)

        return with_compute(served, infer=infer)


@pytest.mark.parametrize(
    ("spare_bytes", "meanwhile"),
    [
        pytest.param(-2_000_000, "another revision had", id="a cache, which leaves the next one no room for its own"),
        pytest.param(1_000, "no GPU can be used", id="a whole table, which leaves the next one no room at all"),
    ],
)
def test_a_revision_gets_its_memory_once_the_one_before_has_given_it_back(
    spare_bytes: int, meanwhile: str, accelerator: Accelerator
) -> None:
    """`spare_bytes`: of the limit, beside all that a revision can use."""
    loads = Loads(accelerator, _bytes_of(_revision(FIRST), accelerator) + spare_bytes)
    problems: set[str] = set()

    async def serve() -> tuple[dict[str, int], dict[str, int]]:
        async with running(FakeWorker(loaded=False)) as client:
            loader = Loader(OnLoop(client), loads.load, retry_s=(0.001, 0.01))
            watch = RepositoryWatch(loader)

            async def answers(until: Callable[[ServedRevision], bool]) -> dict[str, int]:
                deadline_s = time.monotonic() + DEADLINE_S
                while time.monotonic() < deadline_s:
                    await asyncio.to_thread(watch._look)
                    if client.model.lane is None:
                        continue
                    answer = await client.predict([1, 2, 3])
                    assert answer.status_code == 200, answer.text
                    stats = client.model.lane.revision.compute.device_stats()
                    problems.add(stats.problem or "")
                    if until(client.model.lane.revision):
                        return dict(stats.memory_bytes)
                raise AssertionError(problems)

            loader.start()
            loader.declare(RoutingTable(FIRST, "recipe"))
            first = await answers(lambda served: served.manifest.revision == FIRST)
            assert problems == {""}
            loader.declare(RoutingTable(SECOND, "recipe"))
            second = await answers(
                lambda served: served.manifest.revision == SECOND and served.compute.device_stats().problem is None
            )
            assert await asyncio.to_thread(loader.stop, DEADLINE_S)
            return first, second

    first, second = asyncio.run(serve())

    assert loads.loaded == [FIRST, SECOND, SECOND]
    assert any(meanwhile in problem for problem in problems)
    assert second == pytest.approx(first, rel=1e-2)
