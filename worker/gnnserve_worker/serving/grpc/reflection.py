"""Reflection: the services and messages of the listener, for tools that are given no `.proto` file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from grpc_reflection.v1alpha.reflection import aio
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.serving.grpc.codec import encode_grpc_error, read_message
from gnnserve_worker.serving.grpc.messages import HEALTH, INFERENCE, POOL
from gnnserve_worker.serving.grpc.status import end_with
from gnnserve_worker.serving.http.predict import Predict

METHODS = tuple(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha"))
"""Two names of one call, whose messages are the same."""


class Reflection:
    def __init__(self, predict: Predict) -> None:
        self._predict = predict
        self._servicer = aio.ReflectionServicer((HEALTH, INFERENCE), POOL)

    async def reflect(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for raw in requests:
            try:
                request = read_message(ServerReflectionRequest, raw)
            except RequestError as error:
                await end_with(context, self._predict.refuse_request(error, encode_grpc_error))
            async for told in self._servicer.ServerReflectionInfo(_only(request), context):
                await context.write(told.SerializeToString())


async def _only(request: Any) -> AsyncIterator[Any]:
    yield request
