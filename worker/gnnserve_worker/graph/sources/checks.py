"""What holds of every imported graph, whatever its source: here is said what is wrong, by the source where."""

from __future__ import annotations

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_worker.graph.store import Splits

MAX_CLASSES = 65_536
MAX_NODES = np.iinfo(np.int32).max
MAX_COLUMNS = 10_000_000
"""Of sparse features, where a single number says how many there are."""


def check_node_count(where: str, nodes: int) -> None:
    if nodes > MAX_NODES:
        raise InputError(where, f"has {nodes:,} nodes; the limit is {MAX_NODES:,}", "use a smaller graph")


def check_class_count(where: str, classes: int) -> None:
    if not 2 <= classes <= MAX_CLASSES:
        raise InputError(
            where, f"have {classes} distinct classes, expected 2 to {MAX_CLASSES}", "check that they are classes"
        )


def as_float32(values: np.ndarray) -> np.ndarray:
    """In rows one after the other; what float32 cannot hold becomes infinite, for a check to find."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def check_splits(splits: Splits, train: str, validation: str) -> None:
    """`train` and `validation`: where the source says which nodes these are."""
    for where, nodes in ((train, splits.train), (validation, splits.validation)):
        if len(nodes) == 0:
            raise InputError(where, "has no labelled node", "mark at least one")
