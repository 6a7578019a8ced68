"""Checks that every imported graph must pass. They say what is wrong; the source says where."""

from __future__ import annotations

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_worker.graph.store import Splits

MAX_CLASSES = 65_536
MAX_NODES = np.iinfo(np.int32).max
MAX_COLUMNS = 10_000_000
"""Most columns of sparse features, whose number is stated by a single value of the file."""


def check_node_count(where: str, nodes: int) -> None:
    if nodes > MAX_NODES:
        raise InputError(where, f"has {nodes:,} nodes; the limit is {MAX_NODES:,}", "use a smaller graph")


def check_class_count(where: str, classes: int) -> None:
    if not 2 <= classes <= MAX_CLASSES:
        raise InputError(
            where, f"have {classes} distinct classes, expected 2 to {MAX_CLASSES}", "check that they are classes"
        )


def as_float32(values: np.ndarray) -> np.ndarray:
    """The values as float32 in C order; a value beyond float32 becomes infinite, for a later check to find."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def check_splits(splits: Splits, train: str, validation: str, remedy: str = "mark at least one") -> None:
    """Refuse splits without training or validation nodes. `train` and `validation` name where the source states
    them."""
    for where, nodes in ((train, splits.train), (validation, splits.validation)):
        if len(nodes) == 0:
            raise InputError(where, "has no labelled node", remedy)
