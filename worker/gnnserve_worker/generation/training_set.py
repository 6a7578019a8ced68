"""A graph as training may see it: its lists, its features, scaled, and the rows that networks read of them. Ranking and
refitting see the same.

Features are scaled before training, and tables store them scaled, so serving never does it. Inductive training, where
test nodes are absent, is the setting of Dynamic GNN inference as-a-service, section 4.

SGC and SIGN read features that are propagated over a graph ahead of time, S^k X with S = D^-1/2 (A + I) D^-1/2: their
tables hold these. S is GCN's normalisation, with exactly one self-loop per node (`sampling/normalised.py`). Of SGC a
row is S^K X, of SIGN [X, S X, …, S^K X], each block of which is scaled as the features were. Without that a network
learns slowly: means of neighbours vary less than standardized features, and rows of S X are the longer the more
neighbours a node has. On test nodes, two hops: amazon_computers 91.3 %, and 89.8 % unscaled (by the mean D^-1 A instead
of S 90.6 %); facebook_pages 92.4 %, and 91.9 % unscaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import scipy.sparse as sp

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope, column_blocks
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.graph.inspection import FEW_EDGES_SHARE
from gnnserve_worker.graph.store import Features, Graph, GraphData, Relation, Splits
from gnnserve_worker.opening.propagated_rows import block_key
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.normalise import ROW_NORMS, divide_by_norms, row_factors
from gnnserve_worker.tasks.generated import LearningProblem, Visible

# --- scaled features


_MOST_DENSE_BYTES = 16 * 2**30
_BLOCK_VALUES = 1 << 22
"""Most numbers that are scaled at once: in float64 they take twice the memory of the result."""


@dataclass(frozen=True, slots=True)
class NormalizedFeatures:
    """Scaled features, and what they were scaled by, so that later nodes can be scaled the same way."""

    features: Features
    method: Normalization
    """The method that was applied; never AUTO."""
    mean: np.ndarray | None = None
    """Mean of each column, float64 [columns]; None unless the method is STANDARDIZE."""
    deviation: np.ndarray | None = None
    """Standard deviation of each column, float64 [columns], never 0; None unless the method is STANDARDIZE."""


def normalization_of(spec: GNNServiceSpec) -> Normalization:
    """The normalization to apply. With Auto, given weights read features as they are, as they did in training;
    LightGCN's embeddings are never scaled."""
    if spec.model.learns_embeddings:
        return Normalization.DISABLED
    if (spec.model.is_given or spec.variants.given) and spec.graph.normalization is Normalization.AUTO:
        return Normalization.DISABLED
    return spec.graph.normalization


def fit_normalization(features: Features, method: Normalization, visible: np.ndarray) -> NormalizedFeatures:
    """Return a scaled copy and the statistics it was scaled by.

    `visible` are the ids of nodes whose features training may see: an inductive model must not learn the mean of its
    test nodes.
    """
    if method == Normalization.AUTO:
        method = Normalization.ROW_NORMALIZE if sp.issparse(features) else Normalization.STANDARDIZE
    if method == Normalization.DISABLED:
        return NormalizedFeatures(features, method)
    if method in ROW_NORMS:
        return NormalizedFeatures(_divide_rows(features, ROW_NORMS[method]), method)
    if not isinstance(features, np.ndarray):
        features = _dense(features)
    mean = features[visible].mean(axis=0, dtype=np.float64)
    deviation = features[visible].std(axis=0, dtype=np.float64)
    # A column that is constant over the visible nodes has no deviation to divide by; dividing by 1 leaves it near 0.
    deviation[deviation < 1e-12] = 1.0
    scaled = np.empty(features.shape, dtype=np.float32)
    step = max(1, _BLOCK_VALUES // max(1, features.shape[1]))
    for start in range(0, len(features), step):
        rows = slice(start, start + step)
        scaled[rows] = (features[rows] - mean) / deviation
    return NormalizedFeatures(scaled, method, mean, deviation)


def _dense(features: sp.csr_array) -> np.ndarray:
    """Make sparse features dense, which Standardize needs. InputError: the result would be too large."""
    wanted_bytes = 4 * features.shape[0] * features.shape[1]
    if wanted_bytes > _MOST_DENSE_BYTES:
        raise InputError(
            "spec.graph.normalization",
            f"is Standardize, but the features are sparse and take {wanted_bytes / 2**30:,.0f} GiB as dense ones; "
            f"the limit is {_MOST_DENSE_BYTES // 2**30} GiB",
            "use RowNormalize, L2RowNormalize, Auto or Disabled",
        )
    return np.asarray(features.toarray())


def _divide_rows(features: Features, order: Literal[1, 2]) -> Features:
    if isinstance(features, np.ndarray):
        return divide_by_norms(features, order)
    rows = np.repeat(np.arange(features.shape[0]), np.diff(features.indptr))
    powers = np.abs(features.data).astype(np.float64) ** order
    sums = np.bincount(rows, weights=powers, minlength=features.shape[0])
    factors = row_factors(sums if order == 1 else np.sqrt(sums))
    return sp.csr_array(sp.diags_array(factors) @ features).astype(np.float32)


def keep_columns(features: Features, columns: np.ndarray) -> Features:
    """The given columns in the given order."""
    return sp.csr_array(features[:, columns]) if sp.issparse(features) else np.ascontiguousarray(features[:, columns])


# --- what training may see


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Graph and problem that all networks of a revision are trained on. Which features they read differs."""

    data: GraphData
    """The graph with all edges, as requests will see it; validation uses it."""
    visible: Visible
    """Relations with the edges that training may see: those of `data`, where it may see all."""
    features: Sequence[NormalizedFeatures | None]
    """Scaled features by type; None: it has none."""
    classes: int
    """Width of the networks' outputs, as `NetworkManifest.classes`."""
    problem: LearningProblem
    """What networks learn."""

    @property
    def schema(self) -> GraphSchema:
        return self.data.schema

    @property
    def seen_share(self) -> float:
        """Share of the edges that training may see."""
        return sum(one.lists.edges for one in self.visible) / max(1, self.data.edges)

    @property
    def sees_few_edges(self) -> bool:
        """Whether training may see so few that it may learn less than it could."""
        return self.seen_share < FEW_EDGES_SHARE

    @property
    def splits(self) -> Splits:
        return self.data.splits

    # --- where nodes are of one type

    @property
    def graph(self) -> Graph:
        """The lists of the one relation."""
        return self.data.graph

    @property
    def visible_graph(self) -> Graph:
        """The lists of the one relation that training may see."""
        (relation,) = self.visible
        return relation.lists

    @property
    def normalized(self) -> NormalizedFeatures:
        """Features of the one type."""
        (features,) = self.features
        if features is None:
            raise ValueError("nodes without features")
        return features


def with_features(data: TrainingSet, rows: Sequence[Features]) -> TrainingSet:
    """The same where types without features have these rows, of each type, in place of them."""
    read = zip(data.features, rows, strict=True)
    features = [NormalizedFeatures(own, Normalization.DISABLED) if one is None else one for one, own in read]
    return replace(data, features=features)


def visible_nodes(nodes: int, splits: Splits, scope: Scope) -> np.ndarray:
    """Ids of the nodes whose features and edges training may see."""
    return np.arange(nodes) if scope == Scope.TRANSDUCTIVE else splits.train


def training_set(
    data: GraphData, problem: LearningProblem, classes: int, scope: Scope, method: Normalization
) -> TrainingSet:
    """With inductive training, edges of nodes of the first type that are not for training are hidden, and so are the
    features of these nodes; nodes of other types belong to no part of the split, and are always seen."""
    features = scaled_features(data, scope, method)
    visible: Visible = data.relations
    if scope is Scope.INDUCTIVE:
        seen = _seen(data, scope)
        visible = [replace(one, lists=_kept(one.lists, seen[one.source], seen[one.target])) for one in data.relations]
    return TrainingSet(data, visible, features, classes, problem)


def scaled_features(data: GraphData, scope: Scope, method: Normalization) -> list[NormalizedFeatures | None]:
    """Features of each type, scaled by those that training may see; None: it has none."""
    seen = _seen(data, scope)
    return [
        None if kind.features is None else fit_normalization(kind.features, method, np.flatnonzero(seen[kind.name]))
        for kind in data.types
    ]


def _seen(data: GraphData, scope: Scope) -> dict[str, np.ndarray]:
    """Whether training may see each node, by the name of its type: bool [nodes]."""
    seen = {kind.name: np.ones(kind.nodes, dtype=bool) for kind in data.types}
    if scope is Scope.INDUCTIVE:
        seen[data.target.name][:] = False
        seen[data.target.name][data.splits.train] = True
    return seen


def means_by_relation(data: GraphData, relation: Relation) -> sp.csr_array:
    """Rows that average what each node of the target reads of those of the source, float32 [targets, sources]. The
    relation's lists need not be those of the graph."""
    lists, sources = relation.lists, data.type_named(relation.source).nodes
    degrees = np.diff(lists.indptr)
    values = np.repeat((1.0 / np.maximum(degrees, 1)).astype(np.float32), degrees)
    return sp.csr_array((values, lists.indices, lists.indptr), shape=(len(degrees), sources))


def _kept(lists: Graph, sources: np.ndarray, targets: np.ndarray) -> Graph:
    """The edges whose two ends are kept: bool of each position of either type."""
    return lists.of_entries(targets[lists.targets()] & sources[lists.indices])


# --- rows that networks read


_LEAST_DEVIATION = 0.01
"""Least number that a propagated column is divided by. One that varies less hardly any neighbour of a training node
has, and other nodes' values would become enormous."""


@dataclass(frozen=True, slots=True)
class ModelRows:
    """Rows that networks of a model read of each node, [nodes, columns]."""

    served: Features
    """Made from the whole graph."""
    trained: Features
    """The same as training may see it: training nodes from the visible part of the graph alone, all others, on which it
    is only judged, as they are served."""
    moments: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What blocks of propagated features were scaled by, by `block_key`."""


def model_rows(model: Model, data: TrainingSet, normalized: NormalizedFeatures) -> ModelRows:
    """The features as they are, unless the model propagates them: LightGCN's were as they were learnt."""
    if not model.propagates or model.learns_embeddings:
        return ModelRows(normalized.features, normalized.features)
    network = model.network(data.classes)
    keeps_all = column_blocks(network.architecture, network.hops) > 1
    served = _powers(data.graph, normalized.features, network.hops or 0, keeps_all=keeps_all)
    trained = served
    if data.visible is not data.data.relations:
        seen = _powers(data.visible_graph, normalized.features, network.hops or 0, keeps_all=keeps_all)
        nodes = data.splits.train
        trained = [with_rows(whole, part, nodes) for whole, part in zip(served, seen, strict=True)]
    if keeps_all:
        scales = [scale_of(normalized.method, block, data.splits.train) for block in trained[1:]]
        served, trained = (
            [blocks[0], *(scale.apply(block) for scale, block in zip(scales, blocks[1:], strict=True))]
            for blocks in (served, trained)
        )
        return ModelRows(beside(served), beside(trained), moments_of(scales, 0, 1))
    return ModelRows(beside(served), beside(trained))


def _powers(graph: Graph, features: Features, hops: int, *, keeps_all: bool) -> list[Features]:
    """X, S X, …, S^hops X; the last one alone where not all are kept."""
    powers = [features]
    if not hops:
        return powers
    adjacency = _normalised(graph)
    for _ in range(hops):
        product = adjacency @ powers[-1]
        powers.append(product if isinstance(product, np.ndarray) else sp.csr_array(product))
        if not keeps_all:
            powers = powers[-1:]
    return powers


def with_rows(whole: Features, part: Features, nodes: np.ndarray) -> Features:
    """`whole`, with those nodes' rows from `part`."""
    if part is whole:
        return whole
    if isinstance(whole, np.ndarray) and isinstance(part, np.ndarray):
        both = whole.copy()
        both[nodes] = part[nodes]
        return both
    rows = np.arange(whole.shape[0])
    rows[nodes] += len(rows)
    return sp.csr_array(sp.vstack([whole, part], format="csr")[rows])


@dataclass(frozen=True, slots=True)
class BlockScaling:
    """How propagated features are scaled: as the features themselves were."""

    method: Normalization
    mean: np.ndarray | None = None
    """float32 [columns]; None unless the method is STANDARDIZE."""
    deviation: np.ndarray | None = None

    def apply(self, block: Features) -> Features:
        if self.mean is None or self.deviation is None:
            return fit_normalization(block, self.method, np.zeros(0, np.int64)).features
        return np.asarray((np.asarray(block) - self.mean) / self.deviation, dtype=np.float32)


def scale_of(method: Normalization, block: Features, seen: np.ndarray) -> BlockScaling:
    """How propagated features are scaled, by those of the nodes that training sees (int64) in `block`."""
    if method is not Normalization.STANDARDIZE:
        return BlockScaling(method)
    rows = np.asarray(block)[seen]
    mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    deviation = np.maximum(rows.std(axis=0, dtype=np.float64), _LEAST_DEVIATION).astype(np.float32)
    return BlockScaling(method, mean, deviation)


def moments_of(scales: Sequence[BlockScaling], kind: int, first: int) -> dict[str, np.ndarray]:
    """What blocks of rows of a type (its place) were scaled by, of which the first one has the place `first`."""
    found: dict[str, np.ndarray] = {}
    for place, scale in enumerate(scales, start=first):
        if scale.mean is not None and scale.deviation is not None:
            found |= {block_key(kind, place, "mean"): scale.mean, block_key(kind, place, "deviation"): scale.deviation}
    return found


def beside(blocks: Sequence[Features]) -> Features:
    if len(blocks) == 1:
        return blocks[0]
    dense = [block for block in blocks if isinstance(block, np.ndarray)]
    return np.concatenate(dense, axis=1) if len(dense) == len(blocks) else sp.csr_array(sp.hstack(blocks, format="csr"))


def _normalised(graph: Graph) -> sp.csr_array:
    """S, float32 [nodes, nodes]."""
    roots = inverse_roots(graph.indptr, graph.indices)
    targets = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    weights = roots[targets] * roots[graph.indices] * (graph.indices != targets)
    adjacency = sp.csr_array((weights, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))
    return sp.csr_array(adjacency + sp.diags_array(roots**2))
