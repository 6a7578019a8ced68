"""Servers of `protocol.py`: a worker whose model costs next to nothing, and a bare gRPC echo.

The echo is gRPC's own server on the worker's kind of event loop, with a handler that returns what it gets: what is left
of a gRPC call when nothing is read, decided, computed or written.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import uvloop
from tests.support.serving.serving import CLASSES, FakeWorker, profile, service, variant

from gnnserve_worker.inference.batch import Inference, StageTimes
from gnnserve_worker.sampling.batch_view import BatchView
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.served_service import ServiceSettings
from gnnserve_worker.serving.process.server import Offer, serve_revisions

_TIMES = StageTimes(0.001, 0.001, 0.001)
_COSTS = profile(variant("x1", 0.9, 0.05, 0.0001))
"""Batches are predicted to be short, as those of small models are."""
_SCORES = (2 * np.eye(len(CLASSES)) - 1).astype(np.float32)


def serve(http_port: int, grpc_port: int) -> None:
    def infer(
        _variant: str, seeds: np.ndarray, _key: int, *, with_embeddings: bool = True, view: BatchView | None = None
    ) -> Inference:
        return Inference(_SCORES[seeds % len(CLASSES)], None, _TIMES, 0)

    of = service(max_seeds=1024, max_queued_seeds=65_536)
    revision = replace(FakeWorker(profile=_COSTS).revision(), infer=infer)
    settings = ServiceSettings("digits", bind("127.0.0.1", http_port), grpc=bind("127.0.0.1", grpc_port))
    serve_revisions([Offer(of, revision, settings)], lambda _: None)


async def _echo(port: int) -> None:
    async def echo(raw: bytes, _context: Any) -> bytes:
        return raw

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, handler_call_details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(echo)

    server = grpc.aio.server(handlers=(Handlers(),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    match program:
        case "worker":
            serve(*map(int, arguments))
        case "echo":
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_echo(int(arguments[0])))
        case _:
            raise SystemExit(f"there is no program {program}")
