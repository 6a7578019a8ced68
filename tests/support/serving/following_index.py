"""Recommendations of a graph that changes, once their index has followed."""

from __future__ import annotations

from typing import Any

from tests.support.machine.waiting import until_told
from tests.support.serving.serving import Client

from gnnserve_worker.serving.idle.idle_jobs import QUIET_AFTER_MS


async def followed(client: Client, body: dict[str, Any], offset: int) -> dict[str, Any]:
    """The answer once all that changes up to an offset have reached is computed, or an error.

    The index is renewed in a few thousandths of the time while requests come. On a busy machine, where each step takes
    long, it would not be done for minutes if it were asked all the time: it is asked more and more seldom.
    """

    async def ask() -> dict[str, Any]:
        told: dict[str, Any] = (await client.http.post("/v1/recommend", json=body)).json()
        return told

    def has_followed(told: dict[str, Any]) -> bool:
        return "index" not in told or (told["index"]["followedOffset"] == offset and not told["index"]["pending"])

    what = f"the index at offset {offset}"
    return await until_told(ask, has_followed, what, seldom_s=1.5 * QUIET_AFTER_MS / 1000)
