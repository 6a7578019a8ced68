"""Closed-loop load over gRPC for `protocol.py`, as wrk makes it over HTTP: the same bytes again and again.

It imports nothing that takes long, since it is started for every measurement.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import uvloop

METHOD = "/inference.GRPCInferenceService/ModelInfer"


async def _ask(port: int, bodies: list[bytes], calls: int, seconds: float) -> dict[str, Any]:
    """Closed loop: each of `calls` coroutines asks again once it is answered."""
    latencies_ms: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)
        await call(bodies[0])
        began_s = time.perf_counter()
        until_s = began_s + seconds

        async def ask(first: int) -> None:
            place, now_s = first, time.perf_counter()
            while now_s < until_s:
                await call(bodies[place % len(bodies)])
                place, before_s, now_s = place + 1, now_s, time.perf_counter()
                latencies_ms.append((now_s - before_s) * 1000)

        await asyncio.gather(*(ask(number * len(bodies) // calls) for number in range(calls)))
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
    asked = _ask(int(sys.argv[1]), _read(Path(sys.argv[2])), int(sys.argv[3]), float(sys.argv[4]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(asked)))
