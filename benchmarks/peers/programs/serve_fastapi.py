"""FastAPI as fast as it goes: orjson both ways, no validation, no hop to a thread pool.

`PEER_MODEL` names the module with the model.
"""

from __future__ import annotations

import importlib
import os

import orjson
from fastapi import FastAPI, Request, Response

model = importlib.import_module(os.environ["PEER_MODEL"]).Model()
app = FastAPI()


@app.post("/predict")
async def predict(request: Request) -> Response:
    seeds = orjson.loads(await request.body())["seeds"]
    body = orjson.dumps({"scores": model.predict(seeds)}, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")
