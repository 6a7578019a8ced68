"""A graph on which accuracy costs columns: every one of them says a little about a node's class, none says much.

Communities linked mostly at random, features that are a class's pattern under far stronger noise, and a few labels that
are simply wrong, as in real data. So half of the columns hold half of what there is to know, each variant has its price
in accuracy, and wide rows are what an answer takes time for. Everything follows from fixed seeds, is made once under
`~/.cache/gnnserve/bench` and is checked by SHA-256 whenever it is used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.shapes import CACHE, verify

_GENERATOR = 1
"""Raise it when the same graph would come out differently: cached files are then made anew."""


@dataclass(frozen=True, slots=True)
class Communities:
    nodes: int = 200_000
    links: int = 3_000_000
    """Each counts twice as a directed edge."""
    features: int = 512
    classes: int = 8
    within: float = 0.35
    """Share of the links that stay within a class, beyond those that do by chance."""
    signal: float = 0.18
    """Size of a class's pattern in each column; the noise has 1."""
    wrong_labels: float = 0.05
    train: int = 6_000
    validation: int = 6_000
    test: int = 6_000
    seed: int = 20261121


def prepare(graph: Communities) -> Path:
    """The graph's `.npz` file, made if it is not there yet."""
    digest = hashlib.sha256(json.dumps([_GENERATOR, asdict(graph)]).encode()).hexdigest()[:12]
    folder = CACHE / f"communities-{digest}"
    if folder.is_dir():
        verify(folder)
        return folder / "graph.npz"
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=CACHE, prefix=".communities-"))
    try:
        print(f"making a graph of {graph.nodes:,} nodes and {graph.features} features", flush=True)
        file = unfinished / "graph.npz"
        np.savez(file, **make(graph))
        with file.open("rb") as content:
            digests = {file.name: hashlib.file_digest(content, "sha256").hexdigest()}
        (unfinished / "sha256.json").write_text(json.dumps(digests, indent=2))
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder / "graph.npz"


def make(graph: Communities) -> dict[str, np.ndarray]:
    """The arrays of a graph file (docs/data.md)."""
    draw = np.random.default_rng(graph.seed)
    truth = draw.integers(graph.classes, size=graph.nodes)
    indptr, indices = _link(graph, truth, draw)
    patterns = draw.choice([-graph.signal, graph.signal], size=(graph.classes, graph.features))
    features = draw.standard_normal((graph.nodes, graph.features), dtype=np.float32)
    features += patterns.astype(np.float32)[truth]
    is_wrong = draw.random(graph.nodes) < graph.wrong_labels
    labels = np.where(is_wrong, draw.integers(graph.classes, size=graph.nodes), truth)
    masks = np.zeros((3, graph.nodes), dtype=bool)
    chosen = np.split(draw.permutation(graph.nodes), np.cumsum([graph.train, graph.validation, graph.test]))
    for mask, nodes in zip(masks, chosen, strict=False):
        mask[nodes] = True
    return {
        "indptr": indptr,
        "indices": indices,
        "features": features,
        "labels": labels,
        "train_mask": masks[0],
        "val_mask": masks[1],
        "test_mask": masks[2],
    }


def _link(graph: Communities, truth: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """indptr int64 and indices int32 of distinct links, in both directions, without loops."""
    low = draw.integers(graph.nodes, size=graph.links)
    high = draw.integers(graph.nodes, size=graph.links)
    # A node of the same class, by rank within it.
    by_class = np.argsort(truth, kind="stable")
    sizes = np.bincount(truth, minlength=graph.classes)
    starts = np.cumsum(sizes) - sizes
    kin = by_class[starts[truth[low]] + (draw.random(graph.links) * sizes[truth[low]]).astype(np.int64)]
    high = np.where(draw.random(graph.links) < graph.within, kin, high)
    links = np.unique(np.minimum(low, high) * graph.nodes + np.maximum(low, high))
    low, high = links // graph.nodes, links % graph.nodes
    low, high = low[low != high], high[low != high]
    both = np.sort(np.concatenate([low * graph.nodes + high, high * graph.nodes + low]))
    indptr = np.searchsorted(both, np.arange(graph.nodes + 1) * graph.nodes)
    return indptr.astype(np.int64), (both % graph.nodes).astype(np.int32)
