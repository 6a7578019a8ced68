"""Variables of the environment that every program of this folder reads. They run in environments of their own, without
gnnserve.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ["PEER_DATA"])
"""A folder of `benchmarks/shapes.py`."""
THREADS = int(os.environ["PEER_THREADS"])
"""Threads of torch."""
FANOUTS = [int(fanout) for fanout in os.environ["PEER_FANOUTS"].split(",")]
"""The seed's draw first."""
SHAPE = json.loads((FOLDER / "shape.json").read_text())
MOST_SEEDS = 1024


def load(name: str) -> np.ndarray:
    return np.load(FOLDER / f"{name}.npy")


def load_weights() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "weights.npz") as archive:
        return dict(archive)


def to_ids(seeds: object) -> np.ndarray:
    """int64 [seeds], whatever shape a protocol gave them."""
    return np.ascontiguousarray(np.asarray(seeds, dtype=np.int64).reshape(-1))
