"""Graphs over which networks are trained for `models_accuracy.py`, and by which plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.accuracy.frontier_graphs import DATASETS
from benchmarks.models import cdda_items
from benchmarks.models.models_accuracy import ARXIV, ITEMS
from benchmarks.models.module_training import LabelledNodes, TrainingPlan
from benchmarks.models.trained_layers import LearntGraph


@dataclass(frozen=True, slots=True)
class GraphPlan:
    training: TrainingPlan
    dropout: float
    seeds: int


PLANS: Mapping[str, GraphPlan] = {
    ITEMS: GraphPlan(TrainingPlan(epochs=50, learning_rate=0.01, weight_decay=2e-4), dropout=0.5, seeds=3),
    ARXIV: GraphPlan(
        TrainingPlan(epochs=8, learning_rate=0.003, weight_decay=0.0, batch_size=1024), dropout=0.2, seeds=2
    ),
}
_FANOUTS = (10, 5)

_items = cache(cdda_items.read_items)
"""A minute, once for all networks."""


def learnt_graph(name: str, folder: Path) -> LearntGraph | None:
    """`folder`: to write a file into where there is none. None: its data are not here, which is said."""
    file = (DATASETS / f"{ARXIV}.npz").resolve()
    if name == ARXIV and file.is_file():
        return _arxiv(file)
    if name == ITEMS and cdda_items.SHARED.is_dir():
        return _with_file(_items(), folder / "graph.npz")
    print(f"left out: {cdda_items.SHARED if name == ITEMS else file} is not there", flush=True)
    return None


def _with_file(items: cdda_items.Items, file: Path) -> LearntGraph:
    items.write(file)
    nodes = LabelledNodes(items.labels, items.train, items.validation, items.test)
    classes = int(items.labels.max()) + 1
    return LearntGraph(
        ITEMS, file, items.indptr, items.indices, items.features, nodes, classes, edge_columns=items.edge_columns
    )


def _arxiv(file: Path) -> LearntGraph:
    with np.load(file) as arrays:
        masks = (np.flatnonzero(arrays[name]) for name in ("train_mask", "val_mask", "test_mask"))
        nodes = LabelledNodes(arrays["labels"], *masks)
        classes = int(nodes.labels.max()) + 1
        return LearntGraph(
            ARXIV, file, arrays["indptr"], arrays["indices"], arrays["features"], nodes, classes, fanouts=_FANOUTS
        )
