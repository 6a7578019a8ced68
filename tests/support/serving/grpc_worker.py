"""The gRPC listener of a worker without HTTP's sockets, and calls of it without a client's library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from tests.support.serving.serving import Client, FakeWorker, hold, service

from gnnserve_worker.serving.grpc.limits import DEFAULT_GRPC_LIMITS, GrpcLimits
from gnnserve_worker.serving.grpc.listener import GrpcListener
from gnnserve_worker.serving.grpc.messages import INFERENCE, messages_of
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.served_service import ServiceSettings
from gnnserve_worker.serving.process.server import Offer, serve_revisions

MESSAGES = messages_of(INFERENCE)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended."""

    status: grpc.StatusCode
    sentence: str
    metadata: Mapping[str, str]
    """The trailing one."""
    answer: Any = None
    """The message; None: there is none."""


@dataclass(frozen=True, slots=True)
class GrpcClient:
    channel: grpc.aio.Channel
    listener: GrpcListener
    port: int

    async def call(self, name: str, /, metadata: Mapping[str, str] | None = None, **fields: Any) -> Ended:
        """Call a method of the protocol, of which `fields` are the request's."""
        return await self.send(f"/{INFERENCE}/{name}", MESSAGES[name][0](**fields).SerializeToString(), metadata)

    async def stream(self, *asked: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> list[Any]:
        """Send these requests in a stream; its answers."""
        request, answer = MESSAGES["ModelStreamInfer"]
        fields_of_call = tuple((metadata or {}).items())
        call = self.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")(metadata=fields_of_call)
        for fields in asked:
            await call.write(request(**fields).SerializeToString())
        await call.done_writing()
        return [answer.FromString(data) async for data in call]

    async def send(self, path: str, raw: bytes, metadata: Mapping[str, str] | None = None, **options: Any) -> Ended:
        name = path.rpartition("/")[2]
        call = self.channel.unary_unary(path)(raw, metadata=tuple((metadata or {}).items()), **options)
        try:
            data = await call
        except grpc.aio.AioRpcError as error:
            return Ended(error.code(), error.details() or "", dict(error.trailing_metadata() or ()))
        answer = MESSAGES[name][1].FromString(data) if name in MESSAGES else data
        return Ended(await call.code(), "", dict(await call.trailing_metadata()), answer)


@asynccontextmanager
async def listening(client: Client, limits: GrpcLimits = DEFAULT_GRPC_LIMITS) -> AsyncIterator[GrpcClient]:
    """The listener of a worker that runs on this event loop, and a channel to it."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    listener = GrpcListener(client.app, sock, None, limits)
    await listener.open()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield GrpcClient(channel, listener, port)
    finally:
        await listener.close(0, lambda: True)


def main() -> None:
    """As `tests.support.serving.serving`, with the port of gRPC in a second line."""
    socks = [bind("127.0.0.1", 0) for _ in range(2)]
    ports = [sock.getsockname()[1] for sock in socks]
    worker, of = FakeWorker(fail=hold), service()
    settings = ServiceSettings(of.metadata.name, socks[0], grpc=socks[1])
    serve_revisions([Offer(of, worker.revision(), settings)], lambda _: print(*ports, sep="\n", flush=True))


if __name__ == "__main__":
    main()
