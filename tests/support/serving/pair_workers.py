"""Workers that score pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.serving.serving import Client, FakeWorker, running, service

from gnnserve_api.files.links import EndManifest, LinkCalibration, LinksManifest
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.tasks.score_links.links import ServedLinks

BINARY = {"content-type": "application/octet-stream"}
NODES = 1000
ANY = EndManifest("", 0, NODES)


def links(first: EndManifest = ANY, second: EndManifest = ANY, relation: str = "") -> ServedLinks:
    told = LinksManifest("Dot", 4, relation, first, second, 10, 10)
    return ServedLinks(told, build_decoder("Dot", {}, 4), dict.fromkeys(("x1", "x4", "x8"), LinkCalibration(0.5, -1.0)))


def of_links(**options: Any) -> FakeWorker:
    """The fake worker's scores as embeddings: nodes whose numbers differ by 4 have equal ones."""
    return FakeWorker(classes=(), links=links(), **options)


def on_worker(worker: FakeWorker, scenario: Callable[[Client], Awaitable[None]], **of: Any) -> None:
    async def run() -> None:
        async with running(worker, service(**of)) as client:
            await scenario(client)

    asyncio.run(run())
