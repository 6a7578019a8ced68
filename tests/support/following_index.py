"""Recommendations of a graph that changes, once their index has followed."""

from __future__ import annotations

from typing import Any

from tests.support.serving import Client
from tests.support.waiting import until_told


async def followed(client: Client, body: dict[str, Any], offset: int) -> dict[str, Any]:
    """The answer once all that changes up to an offset have reached is computed, or an error."""

    async def ask() -> dict[str, Any]:
        told: dict[str, Any] = (await client.http.post("/v1/recommend", json=body)).json()
        return told

    def has_followed(told: dict[str, Any]) -> bool:
        return "index" not in told or (told["index"]["followedOffset"] == offset and not told["index"]["pending"])

    return await until_told(ask, has_followed, f"the index at offset {offset}")
