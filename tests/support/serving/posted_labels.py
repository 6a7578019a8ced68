"""Requests with labels, and when they have been evaluated."""

from __future__ import annotations

from typing import Any

import httpx
from tests.support.machine.waiting import until_holds
from tests.support.serving.serving import Client

READING, WRITING = "reading-0123456789ab", "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}


async def send_pairs(client: Client, pairs: list[Any], labels: list[Any], **fields: Any) -> httpx.Response:
    return await client.http.post("/v1/labels", json={"pairs": pairs, "labels": labels, **fields}, headers=HEADERS)


async def evaluated(client: Client) -> dict[str, Any]:
    """The figures once no label waits, by variant."""
    await until_holds(lambda: not client.model.watch.waiting, "all labels are evaluated")
    answer = (await client.http.get("/v1/accuracy")).json()
    assert answer["waiting"] == 0
    return {variant["name"]: variant for variant in answer["variants"]}
