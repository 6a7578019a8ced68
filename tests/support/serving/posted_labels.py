"""Requests with labels, and when they have been evaluated."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.machine.waiting import WAIT_S
from tests.support.serving.serving import Client

READING, WRITING = "reading-0123456789ab", "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}


async def evaluated(client: Client) -> dict[str, Any]:
    """The figures once no label waits, by variant."""
    async with asyncio.timeout(WAIT_S):
        while client.model.watch.waiting:
            await asyncio.sleep(0.005)
    answer = (await client.http.get("/v1/accuracy")).json()
    assert answer["waiting"] == 0
    return {variant["name"]: variant for variant in answer["variants"]}
