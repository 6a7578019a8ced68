"""Triton with a model that has the tensors of tests/conformance: label 10, 20, 30 or 40 by a node's number modulo 4."""

from __future__ import annotations

import sys

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

http_port, grpc_port = (int(argument) for argument in sys.argv[1:])


def infer(requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    classes = [request["nodes"] % 4 for request in requests]
    return [{"labels": 10 * (of + 1), "scores": 2 * np.eye(4, dtype=np.float32)[of] - 1} for of in classes]


config = TritonConfig(
    http_address="127.0.0.1", http_port=http_port, grpc_address="127.0.0.1", grpc_port=grpc_port, allow_metrics=False
)
with Triton(config=config) as triton:
    triton.bind(
        model_name="digits",
        infer_func=infer,
        inputs=[Tensor(name="nodes", dtype=np.int64, shape=(-1,))],
        outputs=[
            Tensor(name="labels", dtype=np.int64, shape=(-1,)),
            Tensor(name="scores", dtype=np.float32, shape=(-1, 4)),
        ],
        config=ModelConfig(batching=False),
    )
    triton.serve()
