"""Triton Inference Server through nvidia-pytriton, with its dynamic batching: whatever has queued, without a wait."""

from __future__ import annotations

import sys

import common
import numpy as np
from pyg_model import Model
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

http_port, grpc_port = (int(argument) for argument in sys.argv[1:])
model = Model()


@batch
def infer(seeds: np.ndarray) -> dict[str, np.ndarray]:
    return {"scores": model.predict(seeds)}


config = TritonConfig(
    http_address="127.0.0.1", http_port=http_port, grpc_address="127.0.0.1", grpc_port=grpc_port,
    allow_metrics=False, log_verbose=0,
)  # fmt: skip
with Triton(config=config) as triton:
    triton.bind(
        model_name="sage",
        infer_func=infer,
        inputs=[Tensor(name="seeds", dtype=np.int64, shape=(1,))],
        outputs=[Tensor(name="scores", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=common.MOST_SEEDS, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
    )
    triton.serve()
