"""Requests with labels, and when they have been evaluated."""

from __future__ import annotations

from typing import Any

from tests.support.machine.waiting import until_holds
from tests.support.serving.serving import Client

READING, WRITING = "reading-0123456789ab", "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}


async def evaluated(client: Client) -> dict[str, Any]:
    """The figures once no label waits, by variant."""
    await until_holds(lambda: not client.model.watch.waiting, "all labels are evaluated")
    answer = (await client.http.get("/v1/accuracy")).json()
    assert answer["waiting"] == 0
    return {variant["name"]: variant for variant in answer["variants"]}
