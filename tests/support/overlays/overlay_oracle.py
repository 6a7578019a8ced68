"""A service whose answers depend on all that a request brings, and what these answers have to be.

Nothing of the worker computes here: neighbour lists are a matrix of counts, made of edges by what the rules say, and
networks are products of matrices in float64. Neighbourhoods are full, so that no draw is part of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.support.generation.repository import tiny_profile, write_features
from tests.support.graphs.graphs import network_manifest, random_tensors
from tests.support.kubernetes.configmap_server import NAMESPACE
from tests.support.profiles import variants_of

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.repository import RankingManifest, RevisionManifest, RowSource, SourceColumn
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.repository.repository import Repository

NODES, CLASSES = 40, 3
COLUMNS = (
    SourceColumn("amount", 1, None),
    SourceColumn("place", 3, (0.5, -0.5, 0.25)),
    SourceColumn("age", 1, (1.0,)),
    SourceColumn("hour", 1, None),
)
FEATURES = sum(column.width for column in COLUMNS)
RANKED = (3, 0, 5, 4, 1, 2)
VARIANTS = {"x1": FEATURES, "x2": FEATURES // 2}
SERVICE = "digits"
RULES = (
    EdgeRules(Direction.UNDIRECTED, Duplicates.MERGE, SelfLoops.REMOVE),
    EdgeRules(Direction.DIRECTED, Duplicates.KEEP, SelfLoops.KEEP),
)
TOLERANCE = 1e-5
"""Largest difference of a score from the oracle's, as a part of the sum of what it is made of, all taken as positive,
where that is above 1: the worker sums in float32, whose digits end where large numbers cancel out."""
_NETWORK = network_manifest("GraphSAGE", (-1, -1), classes=CLASSES)
_RANKING = RankingManifest(method="Random", settings={}, columns=RANKED)


@dataclass(frozen=True, slots=True, eq=False)
class Meaning:
    """A request in positions; NODES + k is the k-th new node."""

    variant: str
    asked: np.ndarray
    """int64 [nodes asked for]"""
    new: np.ndarray
    """float [new nodes, features], as in the source."""
    edges: np.ndarray
    """int64 [edges, 2]: source and target."""
    overridden: Mapping[int, np.ndarray]
    """Features of stored nodes that have others in this request."""


@dataclass(frozen=True, slots=True, eq=False)
class Oracle:
    rules: EdgeRules
    features: np.ndarray
    """float32 [nodes, features]"""
    edges: np.ndarray
    """int64 [edges, 2], as the source lists them."""
    weights: Mapping[str, Mapping[str, np.ndarray]]
    """Tensors by variant and PyG's keys."""

    def scores(self, asked: Meaning) -> np.ndarray:
        """float64 [nodes asked for, classes]"""
        return self._compute(asked, np.asarray)

    def is_right(self, asked: Meaning, scores: np.ndarray) -> bool:
        expected, sizes = self.scores(asked), self._compute(asked, np.abs)
        if scores.shape != expected.shape:
            return False
        return bool((np.abs(scores - expected) <= TOLERANCE * np.maximum(1, sizes)).all())

    def _compute(self, asked: Meaning, taken: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The network over numbers that are `taken` as they are, or as positive ones, which no activation cuts off."""
        rows = np.concatenate([self.features.astype(np.float64), asked.new.reshape(-1, FEATURES)])
        for node, row in asked.overridden.items():
            rows[node] = row
        lists = counts_of(np.concatenate([self.edges, asked.edges.reshape(-1, 2)]), len(rows), self.rules)
        means = lists / np.maximum(1, lists.sum(axis=1, keepdims=True))
        tensors = self.weights[asked.variant]
        values = taken(rows[:, RANKED[: VARIANTS[asked.variant]]])
        for layer in range(len(_NETWORK.fanouts)):
            names = (f"convs.{layer}.{name}" for name in ("lin_l.weight", "lin_r.weight", "lin_l.bias"))
            near, own, bias = (taken(tensors[name]) for name in names)
            values = np.maximum(values, 0) if layer else values
            values = means @ values @ near.T + bias + values @ own.T
        return np.asarray(values[asked.asked])


def counts_of(edges: np.ndarray, nodes: int, rules: EdgeRules) -> np.ndarray:
    """How often each node's list has each other node: float64 [reader, sender]."""
    sources, targets = edges.T
    if rules.self_loops is SelfLoops.REMOVE:
        sources, targets = sources[sources != targets], targets[sources != targets]
    if rules.direction is Direction.REVERSED:
        sources, targets = targets, sources
    counts = np.zeros((nodes, nodes))
    np.add.at(counts, (targets, sources), 1)
    if rules.direction is Direction.UNDIRECTED:
        counts = counts + counts.T - np.diag(np.diag(counts))
    return np.minimum(counts, 1) if rules.duplicates is Duplicates.MERGE else counts


def publish(root: Path, rules: EdgeRules) -> tuple[RevisionManifest, Oracle]:
    """A revision of a small random graph, and what its answers have to be."""
    draw = np.random.default_rng(7)
    # Some nodes have no edges, some pairs are listed twice, and some nodes list themselves.
    edges = draw.integers(0, NODES - 4, (100, 2))
    edges = np.concatenate([edges, edges[:10], np.repeat(draw.integers(0, NODES, (3, 1)), 2, axis=1)])
    features = draw.normal(size=(NODES, FEATURES)).astype(np.float32)
    listed = EdgeList(NODES, rules.direction, rules.duplicates, rules.self_loops)
    listed.add(edges[:, 0], edges[:, 1])
    parts = np.array_split(np.arange(NODES), 3)
    graph = GraphData.of_one_type(
        source="made up", digest="0ac1e", graph=listed.to_graph()[0], features=features,
        labels=np.arange(NODES, dtype=np.int64) % CLASSES, classes=tuple(range(CLASSES)),
        splits=Splits(*parts), edge_rules=rules,
    )  # fmt: skip
    weights = {name: random_tensors(_NETWORK, columns, columns) for name, columns in VARIANTS.items()}
    repository, profile = Repository(root, NAMESPACE, SERVICE), tiny_profile(VARIANTS)
    repository.put_graph(graph)
    with repository.stage("recipe", graph.digest) as staged:
        write_features(staged, features, RANKED)
        for name, tensors in weights.items():
            staged.write_variant(name, tensors)
        manifest = staged.commit(
            scope="Inductive", ranking=_RANKING, variants=variants_of(profile, _NETWORK), profile=profile,
            row_source=RowSource(COLUMNS, Normalization.DISABLED, None), edge_rules=rules, generator="a test",
            created_at="2026-01-01T00:00:00Z",
        )  # fmt: skip
    exact = {
        name: {key: tensor.astype(np.float64) for key, tensor in tensors.items()} for name, tensors in weights.items()
    }
    return manifest, Oracle(rules, features, edges, exact)
