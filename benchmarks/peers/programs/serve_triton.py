"""Triton Inference Server through nvidia-pytriton, with its dynamic batching: whatever has queued, without a wait.

Each instance of the model is a thread of this process (pytriton has no other kind); torch computes outside the
interpreter's lock. Nothing is written while answering, so instances share one copy of the graph and the weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import common
import numpy as np
from pyg_model import Model
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

http_port, grpc_port, instances = (int(argument) for argument in sys.argv[1:])
model = Model()


def make_instance() -> Callable[..., object]:
    """A function of its own for each instance: pytriton keeps settings by function."""

    @batch
    def infer(seeds: np.ndarray) -> dict[str, np.ndarray]:
        return {"scores": model.predict(seeds)}

    return infer


config = TritonConfig(
    http_address="127.0.0.1", http_port=http_port, grpc_address="127.0.0.1", grpc_port=grpc_port,
    allow_metrics=False, log_verbose=0,
)  # fmt: skip
with Triton(config=config) as triton:
    triton.bind(
        model_name="sage",
        infer_func=[make_instance() for _ in range(instances)],
        inputs=[Tensor(name="seeds", dtype=np.int64, shape=(1,))],
        outputs=[Tensor(name="scores", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=common.MOST_SEEDS, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
    )
    triton.serve()
