"""Closed-loop load over gRPC for `protocol.py`, as wrk makes it over HTTP: the same bytes again and again.

It imports nothing that takes long, since it is started for every measurement.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import uvloop

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it all channels of a process to one address share a connection."""


async def ask(port: int, bodies: list[bytes], channels: int, calls: int, seconds: float) -> dict[str, Any]:
    """Closed loop: each of `calls` coroutines asks again once it is answered, on the channels in turn."""
    latencies_ms: list[float] = []
    async with AsyncExitStack() as opened:
        asked = []
        for _ in range(channels):
            channel = await opened.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", _OWN_CONNECTION))
            asked.append(channel.unary_unary(METHOD))
            await asked[-1](bodies[0])
        began_s = time.perf_counter()
        until_s = began_s + seconds

        async def go_on(first: int, call: Any) -> None:
            place, now_s = first, time.perf_counter()
            while now_s < until_s:
                await call(bodies[place % len(bodies)])
                place, before_s, now_s = place + 1, now_s, time.perf_counter()
                latencies_ms.append((now_s - before_s) * 1000)

        await asyncio.gather(
            *(go_on(number * len(bodies) // calls, asked[number % channels]) for number in range(calls))
        )
        took_s = time.perf_counter() - began_s
    cuts = statistics.quantiles(latencies_ms, n=100)
    return {"requests_per_s": len(latencies_ms) / took_s, "p50_ms": cuts[49], "p99_ms": cuts[98]}


def _read(path: Path) -> list[bytes]:
    data, bodies = path.read_bytes(), []
    while data:
        size, _, data = data.partition(b"\n")
        bodies.append(data[: int(size)])
        data = data[int(size) :]
    return bodies


if __name__ == "__main__":
    port, path, channels, calls, seconds = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(ask(int(port), _read(Path(path)), int(channels), int(calls), float(seconds)))
    print(json.dumps(found))
