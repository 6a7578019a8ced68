"""The Open Inference Protocol over gRPC, call by call: `open_inference_rpcs.py` has them as data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from tests.conformance.open_inference_rpcs import ANSWERED, TOLD, WRONG, Rpc
from tests.support.serving.grpc_worker import MESSAGES, Ended, GrpcClient, listening
from tests.support.serving.open_inference_answers import check
from tests.support.serving.serving import Client, FakeWorker, running

from gnnserve_worker.serving.grpc.messages import INFERENCE


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def clients(loop: asyncio.Runner) -> Iterator[tuple[Client, GrpcClient]]:
    """One worker for all calls."""
    stack = AsyncExitStack()

    async def start() -> tuple[Client, GrpcClient]:
        client = await stack.enter_async_context(running(FakeWorker()))
        return client, await stack.enter_async_context(listening(client))

    try:
        yield loop.run(start())
    finally:
        loop.run(stack.aclose())


def send(loop: asyncio.Runner, client: GrpcClient, rpc: Rpc) -> Ended:
    raw = ParseDict(rpc.message, MESSAGES[rpc.method][0]()).SerializeToString()
    return loop.run(client.send(f"/{INFERENCE}/{rpc.method}", raw, rpc.metadata))


@pytest.mark.parametrize("rpc", TOLD + ANSWERED, ids=lambda rpc: rpc.name)
def test_calls_are_answered(loop: asyncio.Runner, clients: tuple[Client, GrpcClient], rpc: Rpc) -> None:
    ended = send(loop, clients[1], rpc)
    assert ended.status.name == "OK", ended.sentence
    check(rpc.has, MessageToDict(ended.answer, preserving_proto_field_name=True))


@pytest.mark.parametrize("rpc", WRONG, ids=lambda rpc: rpc.name)
def test_wrong_calls_get_a_status_with_our_sentence(
    loop: asyncio.Runner, clients: tuple[Client, GrpcClient], rpc: Rpc
) -> None:
    ended = send(loop, clients[1], rpc)
    assert (ended.status.name, ended.metadata["gnnserve-error"]) == (rpc.status, rpc.code), ended.sentence
    assert rpc.error in ended.sentence


def test_every_wrong_call_is_counted(loop: asyncio.Runner, clients: tuple[Client, GrpcClient]) -> None:
    def counted(code: str) -> int:
        line = f'gnnserve_errors_total{{reason="{code}",service="digits"}} '
        told = clients[0].metrics.render().decode()
        return int(float(told.partition(line)[2].partition("\n")[0] or 0))

    codes = {rpc.code for rpc in WRONG}
    before = {code: counted(code) for code in codes}
    for rpc in WRONG:
        send(loop, clients[1], rpc)
    assert {code: counted(code) - before[code] for code in codes} == {
        code: sum(rpc.code == code for rpc in WRONG) for code in codes
    }
