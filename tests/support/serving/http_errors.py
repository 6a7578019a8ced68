"""Errors, samples of metrics, and workers that are slow or full."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.support.serving.serving import Client, FakeWorker, accepted, profile, variant

from gnnserve_api.objective import Objective


def error_of(response: httpx.Response) -> dict[str, str]:
    error: dict[str, str] = response.json()["error"]
    return error


def samples_of(response: httpx.Response) -> dict[tuple[str, ...], float]:
    """By name and labels other than the service, in the order of their names."""
    return {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "service")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def slow_worker() -> FakeWorker:
    """A minute for a full batch, says its profile."""
    return FakeWorker(profile=profile(variant("x1", 0.9, 1, 600)))


async def overload(client: Client, worker: FakeWorker) -> None:
    """From now on requests of 40 nodes are refused that have 30 s."""
    worker.gate.clear()
    accepted(client.model, [1] * 100, Objective(accuracy_tolerance_permille=0))
    await worker.batch_started()
    refused = await client.predict([1] * 40)
    assert error_of(refused)["code"] == "DeadlineOutOfReach"
