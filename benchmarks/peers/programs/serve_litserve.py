"""LitServe with dynamic batching: up to 32 requests, at most a millisecond. Each worker is a process with a model of
its own, and there are as many processes that speak HTTP, which is LitServe's default.
"""

from __future__ import annotations

import sys
from typing import Any

import common
import litserve
import numpy as np


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        from pyg_model import Model

        self.model = Model()

    # An annotation would make LitServe look for a query parameter.
    def decode_request(self, request) -> list[int]:  # noqa: ANN001
        return request["seeds"]

    def batch(self, inputs: list[list[int]]) -> list[list[int]]:
        return inputs

    def predict(self, inputs: list[list[int]]) -> list[np.ndarray]:
        scores = self.model.predict(np.concatenate([common.to_ids(seeds) for seeds in inputs]))
        return np.split(scores, np.cumsum([len(seeds) for seeds in inputs])[:-1])

    def unbatch(self, output: list[np.ndarray]) -> list[np.ndarray]:
        return output

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"scores": output.tolist()}


if __name__ == "__main__":
    port, workers = (int(argument) for argument in sys.argv[1:])
    server = litserve.LitServer(
        Api(max_batch_size=32, batch_timeout=0.001), accelerator="cpu", workers_per_device=workers
    )
    server.run(host="127.0.0.1", port=port, generate_client_file=False, num_api_servers=workers, log_level="warning")
