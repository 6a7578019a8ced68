"""The worker's predictions behind a server of others, as a program: NAME MANIFEST REPOSITORY PORT.

Engine, codecs and replies are those of `gnnserve serve`, and so is the revision; only what reads and writes HTTP
differs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from granian.constants import Interfaces
from granian.server.embed import Server as GranianServer

from gnnserve_api.manifest import load_manifest
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.asgi_predict import Message, Receive, Scope, Send
from gnnserve_worker.serving.http.codecs.registry import READ_HEADERS, read_head
from gnnserve_worker.serving.http.predict import Predict
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.process.server import SWITCH_INTERVAL_S
from gnnserve_worker.serving.requests import Reply

UVICORN, GRANIAN = "uvicorn", "granian"
_READ_HEADERS = tuple((name, name.decode()) for name in READ_HEADERS)


def run_uvicorn(app: ServingApp, start: Callable[[], None], port: int) -> None:
    async def with_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        while True:
            message: Message = await receive()
            if message["type"] == "lifespan.startup":
                start()
            await send({"type": f"{message['type']}.complete"})

    uvicorn.run(
        with_lifespan, host="127.0.0.1", port=port, loop="uvloop", http="httptools", ws="none", lifespan="on",
        log_config=None, access_log=False, server_header=False,
    )  # fmt: skip


def run_granian(app: ServingApp, start: Callable[[], None], port: int) -> None:
    async def answer(scope: Any, protocol: Any) -> None:
        reply = await _reply(app.predict, scope, await protocol())
        lines = (line.partition(b": ") for line in reply.head.splitlines())
        headers = [(name.decode(), value.decode()) for name, _, value in lines]
        protocol.response_bytes(reply.status, headers, bytes(reply.body))

    async def serve() -> None:
        start()
        server = GranianServer(
            answer, address="127.0.0.1", port=port, interface=Interfaces.RSGI, websockets=False, log_enabled=False
        )
        await server.serve()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


async def _reply(predict: Predict, scope: Any, body: bytes) -> Reply:
    headers = [(name, value.encode()) for name, text in _READ_HEADERS if (value := scope.headers.get(text)) is not None]
    head = read_head(scope.path, headers, scope.query_string.encode())
    if head is None:
        return Reply(404, b"", b"")
    outcome: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    pending = predict.start(head, body, outcome.set_result)
    return pending if isinstance(pending, Reply) else await outcome


def main() -> None:
    name, manifest, repository, port = sys.argv[1:]
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    service = load_manifest(Path(manifest))
    stored = Repository(Path(repository), service.metadata.namespace, service.metadata.name)
    published = stored.find(service.spec.recipe())
    if published is None:
        raise SystemExit(f"{repository} holds no revision of {manifest}")
    revision = served_revision(load_revision(stored, published.revision))
    revision.compute.warm_up()
    metrics = ServingMetrics(service.metadata.name)
    metrics.show_revision(revision.manifest, 0.0)
    engine = Engine({service.metadata.name: metrics})
    app = ServingApp(service.metadata.name, engine, metrics)

    def start() -> None:
        engine.start()
        engine.models[service.metadata.name].switch(revision, service.spec.routing_table(published.revision))

    match name:
        case "uvicorn":
            run_uvicorn(app, start, int(port))
        case "granian":
            run_granian(app, start, int(port))
        case _:
            raise SystemExit(f"{name}: no such server")


if __name__ == "__main__":
    main()
