"""Asks a worker for recommendations, and judges what it finds for new users beside brute force."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnserve_worker.generation.embeddings.index import recall_of
from gnnserve_worker.models.pair_queries import Products
from gnnserve_worker.nearest.search import exact_best, unit

COUNT = 10
_SEED = 3
_AT_ONCE = 8192


def recall_of_new(
    connection: http.client.HTTPConnection,
    users: Sequence[Any],
    vectors: np.ndarray,
    filter_: Mapping[str, Any],
    allowed: np.ndarray,
) -> float:
    """Recall of what is recommended to new users, beside all vectors that pass. `filter_`: fields of requests that say
    which do, and `allowed` their positions, int64. The same seed draws the same neighbours, so that
    a prediction tells the embedding that a recommendation searched with."""
    embeddings, cosines = [], np.full((len(users), COUNT), -np.inf, np.float32)
    for row, user in enumerate(users):
        told = ask(
            connection, "/v1/predict",
            {"nodes": [user["node"]], "overlay": user["overlay"], "seed": _SEED, "return": ["embeddings"]},
        )[1]  # fmt: skip
        embeddings.append(told["embeddings"][0])
        asked = {**user, **filter_, "count": COUNT, "seed": _SEED, "exclude": "nothing"}
        items = ask(connection, "/v1/recommend", asked)[1]["items"]
        positions = np.array([item["id"] for item in items])
        cosines[row, : len(items)] = unit(vectors[positions]) @ unit(np.float32(embeddings[-1]))
        if not np.allclose(cosines[row, : len(items)], [item["cosine"] for item in items], atol=1e-3):
            raise RuntimeError("a recommendation was searched with another embedding than a prediction tells")
    parts = (unit(vectors[allowed[start : start + _AT_ONCE]]) for start in range(0, len(allowed), _AT_ONCE))
    count = min(COUNT, len(allowed))
    best = exact_best(parts, Products(unit(np.array(embeddings))), count)[1]
    return recall_of(cosines[:, :count], best[:, -1])


def ask(connection: http.client.HTTPConnection, path: str, body: Any) -> tuple[float, Any]:
    """Time in ms, and what is answered."""
    encoded = json.dumps(body)
    begun_s = time.perf_counter()
    connection.request("POST", path, encoded, {"content-type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    took_ms = (time.perf_counter() - begun_s) * 1000
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {said[:200]!r}")
    return took_ms, json.loads(said)
