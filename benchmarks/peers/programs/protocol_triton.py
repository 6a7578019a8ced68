"""Triton with the model of `protocol.py`, whose class is a node's number modulo 4, and with its dynamic batching.

Triton merges requests along a first dimension of batches alone: a request of n nodes is a batch of n rows.
"""

from __future__ import annotations

import sys

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

MOST_ROWS = 16 * 1024
"""All requests that are under way, together."""
http_port, grpc_port = (int(argument) for argument in sys.argv[1:])
scores = 2 * np.eye(4, dtype=np.float32) - 1


@batch
def infer(nodes: np.ndarray) -> dict[str, np.ndarray]:
    return {"scores": scores[nodes[:, 0] % 4]}


config = TritonConfig(
    http_address="127.0.0.1", http_port=http_port, grpc_address="127.0.0.1", grpc_port=grpc_port, allow_metrics=False
)
with Triton(config=config) as triton:
    triton.bind(
        model_name="digits",
        infer_func=infer,
        inputs=[Tensor(name="nodes", dtype=np.int64, shape=(1,))],
        outputs=[Tensor(name="scores", dtype=np.float32, shape=(4,))],
        config=ModelConfig(max_batch_size=MOST_ROWS, batcher=DynamicBatcher(max_queue_delay_microseconds=0)),
    )
    triton.serve()
