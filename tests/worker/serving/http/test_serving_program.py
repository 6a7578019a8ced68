"""A program that fails is 503 of its own service, in every protocol; it is counted, and told by `/v1/route`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.serving.grpc_worker import GrpcClient, listening
from tests.support.serving.serving import Client, FakeWorker, running, with_compute

from gnnserve_worker.programs.failure import ProgramFailedError, ProgramFailure
from gnnserve_worker.programs.stats import ProgramStats

FAILS_AT = 13
HEALTHY = ProgramStats(answered=5, failed=2, run_s=1.5, restarts={ProgramFailure.CRASH: 2}, problem="")
FAILED = ProgramStats(
    answered=5, failed=3, run_s=2.5, restarts={ProgramFailure.CRASH: 3}, problem="it ended its process"
)


def fail(_variant: str, seeds: np.ndarray) -> None:
    if FAILS_AT in seeds:
        raise ProgramFailedError(ProgramFailure.CRASH, "ended its process, with status -11", retry_after_s=2.5)


def on_worker(scenario: Callable[[Client, GrpcClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with running(FakeWorker(fail=fail)) as client, listening(client) as rpc:
            await scenario(client, rpc)

    asyncio.run(run())


def test_a_program_that_fails_gets_503_with_the_time_to_wait_and_others_are_answered() -> None:
    async def scenario(client: Client, rpc: GrpcClient) -> None:
        response = await client.predict([FAILS_AT])
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "ProgramFailed")
        assert error["message"].startswith("the program of this service ended its process, with status -11; a new")
        assert response.headers["retry-after"] == "3"
        assert (await client.predict([1])).status_code == 200
        tensor = {"name": "nodes", "datatype": "INT64", "shape": [1]}
        seeds = np.array([FAILS_AT], "<i8").tobytes()
        ended = await rpc.call("ModelInfer", model_name="digits", inputs=[tensor], raw_input_contents=[seeds])
        assert ended.status is grpc.StatusCode.UNAVAILABLE
        assert ended.metadata["gnnserve-error"] == "ProgramFailed"
        errors = [line for line in client.metrics.render().decode().splitlines() if "ProgramFailed" in line]
        assert any(line.endswith(" 2.0") for line in errors)

    on_worker(scenario)


def test_failures_of_a_program_are_no_failures_of_the_worker() -> None:
    async def scenario(client: Client, _rpc: GrpcClient) -> None:
        for _ in range(30):
            assert (await client.predict([FAILS_AT])).status_code == 503
        assert (await client.http.get("/readyz")).status_code == 200

    on_worker(scenario)


@pytest.mark.parametrize(("stats", "healthy"), [(HEALTHY, 1.0), (FAILED, 0.0)])
def test_the_state_of_a_program_is_in_metrics_and_in_the_route(stats: ProgramStats, healthy: float) -> None:
    async def scenario(client: Client, _rpc: GrpcClient) -> None:
        assert "gnnserve_program" not in client.metrics.render().decode()
        assert "program" not in (await client.http.get("/v1/route")).json()
        lane = client.engine.models["digits"].lane
        assert lane is not None
        client.switch(with_compute(lane.revision, programs=lambda: stats))
        route = (await client.http.get("/v1/route")).json()
        assert route["program"] == {"problem": stats.problem, "restarts": sum(stats.restarts.values())}
        samples = {
            (sample.name, sample.labels.get("reason") or sample.labels.get("outcome")): sample.value
            for family in text_string_to_metric_families(client.metrics.render().decode())
            for sample in family.samples
        }
        assert samples["gnnserve_program_healthy", None] == healthy
        assert samples["gnnserve_program_runs_total", "failed"] == stats.failed
        assert samples["gnnserve_program_seconds_total", None] == stats.run_s
        assert samples["gnnserve_program_restarts_total", "Crash"] == stats.restarts[ProgramFailure.CRASH]
        assert samples["gnnserve_program_restarts_total", "TimeOut"] == 0

    on_worker(scenario)
