"""Ray Serve with `serve.batch`: up to 32 requests, at most a millisecond. Each replica is a process with a model of its
own and one processor.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import common
import numpy as np
import orjson
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
class Sage:
    def __init__(self) -> None:
        from pyg_model import Model

        self.model = Model()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def infer(self, requests: list[list[int]]) -> list[np.ndarray]:
        scores = self.model.predict(np.concatenate([common.to_ids(seeds) for seeds in requests]))
        return np.split(scores, np.cumsum([len(seeds) for seeds in requests])[:-1])

    async def __call__(self, request: Request) -> Response:
        scores = await self.infer(orjson.loads(await request.body())["seeds"])
        body = orjson.dumps({"scores": np.ascontiguousarray(scores)}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")


port, replicas = (int(argument) for argument in sys.argv[1:])
variables = {key: value for key, value in os.environ.items() if key.startswith("PEER_")}
ray.init(
    num_cpus=2, include_dashboard=False, object_store_memory=200_000_000, _node_ip_address="127.0.0.1",
    runtime_env={"env_vars": {**variables, "PYTHONPATH": str(Path(__file__).parent)}}, logging_level="ERROR",
)  # fmt: skip
serve.start(http_options={"host": "127.0.0.1", "port": port})
deployment = Sage.options(num_replicas=replicas, logging_config={"enable_access_log": False})
serve.run(deployment.bind(), name="sage", route_prefix="/predict")
stopped = threading.Event()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: stopped.set())
stopped.wait()
serve.shutdown()
ray.shutdown()
