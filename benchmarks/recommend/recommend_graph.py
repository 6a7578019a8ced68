"""The graph of `recommend.py`: nodes in communities, published with a network of random weights, and served.

Features are a community's centre and noise, neighbours mostly of one's own community. So embeddings lie in clusters of
many sizes of overlap, as those of trained networks do; nothing here says how good a recommendation is. New users are
drawn as stored nodes are: features of a community, and links mostly into it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.embeddings import Neighbours
from gnnserve_api.spec.model import Model
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.embeddings.compute import embedding_blocks
from gnnserve_worker.generation.embeddings.index import EmbeddingsOrigin
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Splits
from gnnserve_worker.inference.made_up import MadeUpVariant, publish_made_up
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.repository.repository import Repository

COLUMNS, FEATURES, DEGREE, CLASSES = 128, 64, 10, 16
_OWN, _NOISE = 0.8, 0.7
"""Share of links into one's own community, and the standard deviation of features around its centre."""
_VARIANT = MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32")


@dataclass(frozen=True, slots=True)
class Communities:
    centres: np.ndarray
    """float32 [communities, FEATURES]"""
    members: list[np.ndarray]


@dataclass(frozen=True, slots=True)
class PublishedGraph:
    repository: Repository
    origin: EmbeddingsOrigin
    nodes: int
    communities: Communities
    types: tuple[NodeType, ...]

    @property
    def folder(self) -> Path:
        return self.repository.folder / "revisions" / self.origin.revision

    def embeddings(self) -> np.ndarray:
        """float32 [nodes, COLUMNS], over all neighbours."""
        loaded = load_revision(self.repository, self.origin.revision, build=build_exact)
        scratch = self.repository.folder.parent / "scratch"
        scratch.mkdir(exist_ok=True)
        return np.concatenate([*embedding_blocks(loaded, "x1", None, Neighbours.ALL, 0, scratch)])

    def new_users(self, count: int) -> list[dict[str, Any]]:
        """Users that the graph does not have, each with the overlay that brings it."""
        draw = np.random.default_rng(1)
        new, found = self.nodes + 7, []
        for community in draw.integers(0, len(self.communities.members), count):
            features = self.communities.centres[community] + _NOISE * draw.standard_normal(FEATURES)
            near = draw.choice(self.communities.members[community], DEGREE)
            joined = np.where(draw.random(DEGREE) < _OWN, near, draw.integers(0, self.nodes, DEGREE))
            overlay = {
                "nodes": [{"id": new, "features": features.round(3).tolist()}],
                "edges": [[int(node), new] for node in np.unique(joined)],
            }
            found.append({"node": new, "overlay": overlay})
        return found


def published_graph(root: Path, nodes: int) -> PublishedGraph:
    repository = Repository(root, "default", "items")
    network = Model(hidden=COLUMNS, fanouts=(10, 5)).network(CLASSES)
    data, communities = make_communities(nodes)
    made = publish_made_up(repository, data, network, [_VARIANT])
    origin = EmbeddingsOrigin(
        made.revision, made.graph, "x1", made.files["variants/x1/weights.safetensors"].sha256, None, "bench"
    )
    return PublishedGraph(repository, origin, nodes, communities, data.types)


def make_communities(nodes: int) -> tuple[GraphData, Communities]:
    draw = np.random.default_rng(0)
    count = max(20, nodes // 500)
    own = draw.integers(0, count, nodes).astype(np.int32)
    order = np.argsort(own, kind="stable")
    begins = np.searchsorted(own[order], np.arange(count + 1))
    sizes = np.maximum(np.diff(begins)[own], 1)[:, None]
    near = order[np.minimum(begins[own][:, None] + (draw.random((nodes, DEGREE)) * sizes).astype(np.int64), nodes - 1)]
    far = draw.integers(0, nodes, (nodes, DEGREE))
    neighbours = np.where(draw.random((nodes, DEGREE)) < _OWN, near, far)
    centres = draw.standard_normal((count, FEATURES), dtype=np.float32)
    features = centres[own] + _NOISE * draw.standard_normal((nodes, FEATURES), dtype=np.float32)
    data = GraphData.of_one_type(
        source="made up communities",
        digest="c0ffee",
        graph=Graph(
            np.arange(0, nodes * DEGREE + 1, DEGREE, dtype=np.int64), neighbours.astype(np.int32).ravel()
        ),
        features=features.astype(np.float32),
        labels=own.astype(np.int64) % CLASSES,
        classes=tuple(range(CLASSES)),
        splits=Splits(*(np.arange(start, nodes, 3, dtype=np.int64) for start in range(3))),
        edge_rules=EdgeRules(Direction.DIRECTED, Duplicates.KEEP),
    )  # fmt: skip
    return data, Communities(centres, [part for part in np.split(order, begins[1:-1]) if len(part)])


@contextmanager
def worker(root: Path) -> Iterator[int]:
    """Port of a worker that serves what is published there."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recommend.recommend_worker", str(root)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def timed(run: Any) -> tuple[float, Any]:
    begun_s = time.perf_counter()
    made = run()
    return time.perf_counter() - begun_s, made
