"""BentoML with its adaptive batching, as it adapts by itself."""

from __future__ import annotations

import bentoml
import numpy as np


@bentoml.service(workers=1, traffic={"timeout": 60}, logging={"access": {"enabled": False}})
class Sage:
    def __init__(self) -> None:
        from pyg_model import Model

        self.model = Model()

    @bentoml.api(route="/predict", batchable=True, batch_dim=0, max_batch_size=1024, max_latency_ms=1000)
    def predict(self, seeds: np.ndarray) -> np.ndarray:
        return self.model.predict(seeds)
