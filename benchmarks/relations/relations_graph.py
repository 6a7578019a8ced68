"""A graph of four types for servers that are compared: made, with weights and scores that every right server must give.

Nodes and edges are a share of ogbn-mag's, either end of an edge drawn from a power law, each type with features. What a
request costs depends on numbers, degrees and widths, and these are reproduced; accuracy means nothing here. The last
nodes of each type are a component of their own whose lists fit every fan-out, so their scores are exact. Servers of
other makers get the lists that our importer made, reverse relations among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import scipy.sparse

from benchmarks.shapes import FANOUTS, Tensors
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.model import Architecture
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData, Relation
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.registry import relational_spec_of

TARGET = "paper"
NODES = {TARGET: 736_389, "author": 1_134_649, "institution": 8_740, "field": 59_965}
EDGES = {
    (TARGET, "cites", TARGET): 5_416_271,
    ("author", "writes", TARGET): 7_145_660,
    ("author", "affiliated", "institution"): 1_043_998,
    (TARGET, "about", "field"): 7_505_078,
}
"""Nodes and edges of ogbn-mag."""
SHARE, QUICK_SHARE = 1 / 2, 1 / 64
FEATURES, HIDDEN, CLASSES = 128, 128, 40
"""Classes of ogbn-arxiv: with ogbn-mag's 349 most of a large answer would be writing numbers."""
_EXPONENT = 0.45
"""A node of rank r is drawn with probability ~ r^-exponent, as either end of an edge."""
_PROBES = {TARGET: 64, "author": 64, "institution": 16, "field": 16}
_PROBE_STEPS = {"cites": (1, 2, 3), "writes": (0, 1), "affiliated": (0,), "about": (0,)}
"""Probe i is read by these others behind place i, counted round."""
_TRAIN, _VALIDATION = 1024, 2048
"""Nodes of the splits that a graph must have; few, so that a profile takes seconds."""
_SEED = 20261128


@dataclass(frozen=True, slots=True, eq=False)
class TypedFiles:
    """A graph of several types in files (`benchmarks.shapes.ProbedGraph`)."""

    folder: Path
    """What other servers read: `rows_TYPE.npy` (float32), `indptr_PLACE.npy` and `indices_PLACE.npy` of each relation,
    `weights.npz`, `shape.json`."""
    source: Mapping[str, Any]
    """`spec.graph.source.typed` of it."""
    checkpoint: Path
    seeds_end: int
    scores: np.ndarray
    """float64 [probes, classes]."""
    described: Mapping[str, Any]
    """`shape.json`, and the bytes of all features."""

    def probe_scores(self) -> np.ndarray:
        return self.scores


def write_typed(folder: Path, share: float) -> TypedFiles:
    """Make that share of ogbn-mag's shape in a folder."""
    print(f"making {share:g} of ogbn-mag's nodes and edges", flush=True)
    source, arrays = folder / "source", folder / "arrays"
    for each in (source, arrays):
        each.mkdir()
    _write_source(source, share)
    given = {"npz": {"uri": source.as_uri()}, "target": TARGET}
    data = load_source(GraphSource.model_validate({"typed": given}), Path("unused"))
    weights = random_weights(data)
    checkpoint = folder / "checkpoint.safetensors"
    _write_weights(checkpoint, arrays / "weights.npz", weights)
    for kind in data.types:
        np.save(arrays / f"rows_{kind.name}.npy", kind.features)
    for place, relation in enumerate(data.relations):
        np.save(arrays / f"indptr_{place}.npy", relation.lists.indptr)
        np.save(arrays / f"indices_{place}.npy", relation.lists.indices)
    shape = {
        "target": TARGET,
        "types": {kind.name: kind.nodes for kind in data.types},
        "relations": [[one.source, one.name, one.target] for one in data.relations],
        "features": FEATURES, "hidden": HIDDEN, "classes": CLASSES,
    }  # fmt: skip
    (arrays / "shape.json").write_text(json.dumps(shape))
    described = {**shape, "edges": data.edges, "fanouts": FANOUTS, "featureBytes": 4 * FEATURES * data.nodes}
    seeds_end = data.target.nodes - _PROBES[TARGET]
    return TypedFiles(arrays, given, checkpoint, seeds_end, exact_scores(data, weights), described)


def _write_source(folder: Path, share: float) -> None:
    draw = np.random.default_rng(_SEED)
    counts = {name: max(round(share * nodes), 1) for name, nodes in NODES.items()}
    for name, count in counts.items():
        nodes = count + _PROBES[name]
        arrays = {
            "num_nodes": np.array(nodes), "features": draw.standard_normal((nodes, FEATURES), dtype=np.float32),
        }  # fmt: skip
        np.savez(folder / f"nodes_{name}.npz", **arrays, **(_labels(count, nodes, draw) if name == TARGET else {}))
    names = {name: draw.permutation(count) for name, count in counts.items()}
    for (source, relation, target), edges in EDGES.items():
        ends = (_draw_ends(names[end], round(share * edges), draw) for end in (source, target))
        probes = _probe_edges(_PROBES[source], _PROBES[target], _PROBE_STEPS[relation])
        sources, targets = (
            np.concatenate([drawn, counts[end] + of_probes])
            for drawn, of_probes, end in zip(ends, probes, (source, target), strict=True)
        )
        np.savez(folder / f"edges_{source}__{relation}__{target}.npz", src=sources, dst=targets)


def _labels(count: int, nodes: int, draw: np.random.Generator) -> Tensors:
    """Labels, and masks of few nodes."""
    order, masks = draw.permutation(count), np.zeros((3, nodes), dtype=bool)
    train = min(_TRAIN, count // 3)
    masks[0, order[:train]] = True
    masks[1, order[train : train + _VALIDATION]] = True
    named = dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True))
    return {"labels": draw.permutation(np.arange(nodes) % CLASSES), **named}


def _draw_ends(names: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """`names`: nodes by rank, so that a node's id says nothing about its degree."""
    cumulated = np.cumsum(np.arange(1, len(names) + 1, dtype=np.float64) ** -_EXPONENT)
    found: np.ndarray = names[np.searchsorted(cumulated, draw.random(count) * cumulated[-1])]
    return found


def _probe_edges(sources: int, targets: int, steps: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    places = np.arange(max(sources, targets))
    return (
        np.concatenate([places % sources for _ in steps]),
        np.concatenate([(places + step) % targets for step in steps]),
    )


def random_weights(data: GraphData) -> Tensors:
    """Weights of a HeteroConv of SAGEConv in each of two layers, under torch_geometric's keys, uniform within 1/√inputs
    as torch begins."""
    draw = np.random.default_rng(_SEED + 1)
    shape = RelationalShape(data.schema, HIDDEN, CLASSES, len(FANOUTS))
    sizes = relational_spec_of(Architecture.GRAPHSAGE).shapes(shape)
    return {key: (draw.uniform(-1, 1, size) / np.sqrt(size[-1])).astype(np.float32) for key, size in sizes.items()}


def _write_weights(checkpoint: Path, archive: Path, weights: Tensors) -> None:
    safetensors.numpy.save_file(weights, checkpoint)
    np.savez(archive, **weights)


def exact_scores(data: GraphData, weights: Tensors) -> np.ndarray:
    """Scores of the probes of the target type in float64, over all of their neighbours."""
    states = {
        kind.name: np.asarray(kind.features)[kind.nodes - _PROBES[kind.name] :].astype(np.float64)
        for kind in data.types
    }
    means = [_means(relation, data) for relation in data.relations]
    for layer in range(len(FANOUTS)):
        summed: dict[str, Any] = {}
        for relation, mean in zip(data.relations, means, strict=True):
            key = f"convs.{layer}.convs.<{relation.source}___{relation.name}___{relation.target}>"
            left, shift, right = (weights[f"{key}.{name}"].astype(np.float64) for name in _OF_SAGE)
            given = mean @ states[relation.source] @ left.T + shift + states[relation.target] @ right.T
            summed[relation.target] = summed.get(relation.target, 0) + given
        is_last = layer == len(FANOUTS) - 1
        states = {name: state if is_last else np.maximum(state, 0) for name, state in summed.items()}
    return states[TARGET]


_OF_SAGE = ("lin_l.weight", "lin_l.bias", "lin_r.weight")


def _means(relation: Relation, data: GraphData) -> Any:
    """A matrix that takes the mean over the lists of the probes, which name probes alone."""
    rows, columns = _PROBES[relation.target], _PROBES[relation.source]
    first = data.type_named(relation.target).nodes - rows
    indptr = relation.lists.indptr[first:]
    indices = relation.lists.indices[indptr[0] :] - (data.type_named(relation.source).nodes - columns)
    degrees = np.diff(indptr)
    shares = np.repeat(1 / np.maximum(degrees, 1), degrees)
    return scipy.sparse.csr_matrix((shares, indices, indptr - indptr[0]), shape=(rows, columns))
