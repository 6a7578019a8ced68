"""Features propagated over a graph ahead of time, S^k X with S = D^-1/2 (A + I) D^-1/2: what the tables of SGC and SIGN
hold.

S is GCN's normalisation, with exactly one self-loop per node (`sampling/normalised.py`). Of SGC a row is S^K X, of SIGN
[X, S X, …, S^K X], each block of which is scaled as the features were. Without that a network learns slowly: means of
neighbours vary less than standardized features, and rows of S X are the longer the more neighbours a node has. On
test nodes, two hops: amazon_computers 91.3 %, and 89.8 % unscaled (by the mean D^-1 A instead of S 90.6 %);
facebook_pages 92.4 %, and 91.9 % unscaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, column_blocks
from gnnserve_worker.generation.features import Normalized, fit_normalization
from gnnserve_worker.generation.training_set import TrainingSet, mean_rows
from gnnserve_worker.graph.store import Features, Graph, Relation
from gnnserve_worker.sampling.normalised import inverse_roots

_LEAST_DEVIATION = 0.01
"""Least number that a propagated column is divided by. One that varies less hardly any neighbour of a training node
has, and other nodes' values would become enormous."""


@dataclass(frozen=True, slots=True)
class ModelRows:
    """What networks of a model read of each node, [nodes, columns]."""

    served: Features
    """Made from the whole graph."""
    trained: Features
    """The same as training may see it: training nodes from the visible part of the graph alone, all others, on which it
    is only judged, as they are served."""


def model_rows(model: Model, data: TrainingSet, normalized: Normalized) -> ModelRows:
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
        trained = [_with_rows(whole, part, nodes) for whole, part in zip(served, seen, strict=True)]
    if keeps_all:
        scales = [_scale_of(normalized.method, block, data) for block in trained[1:]]
        served, trained = (
            [blocks[0], *(scale(block) for scale, block in zip(scales, blocks[1:], strict=True))]
            for blocks in (served, trained)
        )
    return ModelRows(_beside(served), _beside(trained))


def rows_over_types(model: Model, data: TrainingSet) -> ModelRows:
    """What a one-row model of that many hops reads of nodes of the first type, over several types: their own features,
    and for each hop those of each type, as walks of so many steps meet them: means of what each relation reads, and of
    these over the relations."""
    hops = model.network(data.classes).hops or 0
    origins, served = _walks(data, data.data.relations, hops)
    trained = served
    if data.visible is not data.data.relations:
        _, seen = _walks(data, data.visible, hops)
        nodes = data.splits.train
        trained = [_with_rows(whole, part, nodes) for whole, part in zip(served, seen, strict=True)]
    if not origins:
        none = np.zeros((data.data.target.nodes, 0), np.float32)
        return ModelRows(none, none)
    own = 0 if data.features[0] is None else 1
    scales = [_scale_of(origin.method, block, data) for origin, block in zip(origins[own:], trained[own:], strict=True)]
    served, trained = (
        [*blocks[:own], *(scale(block) for scale, block in zip(scales, blocks[own:], strict=True))]
        for blocks in (served, trained)
    )
    return ModelRows(_beside(served), _beside(trained))


def _walks(data: TrainingSet, relations: Sequence[Relation], hops: int) -> tuple[list[Normalized], list[Features]]:
    """What the first type meets, by hop and by the type that it is met of: whose features each block is made of, and
    the blocks."""
    known = zip(data.data.types, data.features, strict=True)
    scaled = {kind.name: own for kind, own in known if own is not None}
    means = [(one, mean_rows(one.lists.indptr, one.lists.indices, data.data.type_named(one.source).nodes))
             for one in relations]  # fmt: skip
    met: dict[str, dict[str, Features]] = {name: {name: own.features} for name, own in scaled.items()}
    target = data.data.target.name
    origins, blocks = [scaled[target]] if target in scaled else [], [*met.get(target, {}).values()]
    for _ in range(hops):
        read: dict[str, dict[str, list[Features]]] = {}
        for relation, mean in means:
            for origin, rows in met.get(relation.source, {}).items():
                read.setdefault(relation.target, {}).setdefault(origin, []).append(mean @ rows)
        met = {
            kind: {origin: _mean_of(parts) for origin, parts in by_origin.items()} for kind, by_origin in read.items()
        }
        for name, own in scaled.items():
            if name in met.get(target, {}):
                origins.append(own)
                blocks.append(met[target][name])
    return origins, blocks


def _mean_of(parts: Sequence[Features]) -> Features:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    mean = total / len(parts)
    return mean if isinstance(mean, np.ndarray) else sp.csr_array(mean)


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


def _with_rows(whole: Features, part: Features, nodes: np.ndarray) -> Features:
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


def _scale_of(method: Normalization, block: Features, data: TrainingSet) -> Callable[[Features], Features]:
    """What scales propagated features as the features themselves were; `block`: those that training may see."""
    if method is not Normalization.STANDARDIZE:
        return lambda found: fit_normalization(found, method, data.splits.train).features
    rows = np.asarray(block)[data.splits.train]
    mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    deviation = np.maximum(rows.std(axis=0, dtype=np.float64), _LEAST_DEVIATION).astype(np.float32)
    return lambda found: np.asarray((np.asarray(found) - mean) / deviation, dtype=np.float32)


def _beside(blocks: Sequence[Features]) -> Features:
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
