"""Small graphs, features, weights and revisions, made by hand and from seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.model import Architecture, Model
from gnnserve_api.spec.service import GNNService
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Graph, GraphData, GraphIds, Splits
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.opening.loaded import GraphReading, LoadedLabels, LoadedRevision, LoadedVariant, Origin
from gnnserve_worker.sampling.neighbours import effective_nodes
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.table import NO_SCALES, Rows, Table

Tensors = dict[str, np.ndarray]


def graph_of(neighbours: Sequence[Sequence[int]]) -> Graph:
    """Row i lists the neighbours of node i; lists may repeat a node."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in neighbours])]).astype(np.int64)
    return Graph(indptr, np.array([node for row in neighbours for node in row], dtype=np.int32))


def random_graph(nodes: int, seed: int, *, mean_degree: float = 6, isolated: float = 0.1) -> Graph:
    """Degrees from 0 to several times the mean; self-loops, and nodes that are listed more than once."""
    draw = np.random.default_rng(seed)
    degrees = np.minimum(draw.geometric(1 / mean_degree, nodes), 10 * int(mean_degree))
    degrees[draw.random(nodes) < isolated] = 0
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return Graph(indptr, draw.integers(0, nodes, indptr[-1]).astype(np.int32))


def complete_graph(nodes: int) -> Graph:
    """Every node lists 0 … nodes − 1, itself too: a neighbour's id is its position in the list."""
    return graph_of([range(nodes)] * nodes)


def star(leaves: int) -> Graph:
    """Node 0 lists nodes 1 … leaves; they list nothing."""
    indptr = np.full(leaves + 2, leaves, dtype=np.int64)
    indptr[0] = 0
    return Graph(indptr, np.arange(1, leaves + 1, dtype=np.int32))


def neighbours_of(graph: Graph, node: int) -> list[int]:
    return [int(n) for n in graph.indices[graph.indptr[node] : graph.indptr[node + 1]]]


def read_only(graph: Graph) -> Graph:
    """The array as a memory map gives it: writing raises."""
    graph.indptr.setflags(write=False)
    graph.indices.setflags(write=False)
    return graph


def dense_features(nodes: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(nodes, columns)).astype(np.float32)


def sparse_features(nodes: int, columns: int, seed: int, density: float = 0.2) -> sp.csr_array:
    draw = np.random.default_rng(seed)
    values = draw.random((nodes, columns)) * (draw.random((nodes, columns)) < density)
    return sp.csr_array(values.astype(np.float32))


def table_of(values: np.ndarray, storage: Storage = Storage.FLOAT32) -> Table:
    """Features as a repository maps them: encoded, padded, read-only."""
    rows = rows_of(values, storage)
    return Table("features", values.shape[1], rows, rows)


def projected_table_of(rows: np.ndarray, own: np.ndarray | None = None, storage: Storage = Storage.FLOAT32) -> Table:
    of_neighbours = rows_of(rows, storage)
    of_itself = of_neighbours if own is None else rows_of(own, storage)
    return Table("projected", rows.shape[1], of_neighbours, of_itself)


def rows_of(values: np.ndarray, storage: Storage) -> Rows:
    table_format = FORMATS[storage]
    encoded, scales = table_format.encode(np.ascontiguousarray(values, dtype=np.float32))
    padding = table_format.padded_columns(values.shape[1]) - values.shape[1]
    stored = np.pad(encoded, ((0, 0), (0, padding)))
    stored.setflags(write=False)
    if scales is None:
        return Rows(table_format, stored, NO_SCALES)
    scales.setflags(write=False)
    return Rows(table_format, stored, scales)


def network_manifest(
    architecture: str,
    fanouts: tuple[int, ...],
    *,
    hidden: int = 8,
    mlp_hidden: int | None = None,
    heads: int | None = None,
    output_heads: int | None = None,
    hops: int | None = None,
    classes: int = 3,
) -> NetworkManifest:
    model = Model(
        architecture=Architecture(architecture),
        hidden=hidden,
        fanouts=fanouts,
        mlp_hidden=mlp_hidden,
        heads=heads,
        output_heads=output_heads,
        hops=hops,
    )
    return model.network(classes)


def random_tensors(manifest: NetworkManifest, columns: int, seed: int) -> Tensors:
    """Weights under PyG's keys, with no torch at hand."""
    draw = np.random.default_rng(seed)
    depth = len(manifest.fanouts)
    widths = [columns, *[manifest.hidden] * (depth - 1), manifest.classes]
    tensors: Tensors = {}
    for layer in range(depth):
        inputs, outputs = widths[layer], widths[layer + 1]
        shapes: dict[str, tuple[int, ...]]
        match Architecture(manifest.architecture):
            case Architecture.GRAPHSAGE:
                square = (outputs, inputs)
                shapes = {"lin_l.weight": square, "lin_l.bias": (outputs,), "lin_r.weight": square}
            case Architecture.GIN:
                between = manifest.mlp_hidden or outputs
                shapes = {
                    "nn.lins.0.weight": (between, inputs),
                    "nn.lins.0.bias": (between,),
                    "nn.lins.1.weight": (outputs, between),
                    "nn.lins.1.bias": (outputs,),
                    "eps": (1,),
                }
            case Architecture.GCN:
                shapes = {"lin.weight": (outputs, inputs), "bias": (outputs,)}
            case Architecture.SGC:
                shapes = {"lin.weight": (outputs, inputs), "lin.bias": (outputs,)}
            case Architecture.SIGN:
                shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
            case Architecture.GAT:
                heads = manifest.heads_of(layer)
                each = outputs if layer == depth - 1 else outputs // heads
                shapes = {
                    "lin.weight": (heads * each, inputs),
                    "att_src": (1, heads, each),
                    "att_dst": (1, heads, each),
                    "bias": (outputs,),
                }
        for name, shape in shapes.items():
            tensors[f"convs.{layer}.{name}"] = (draw.normal(size=shape) / np.sqrt(inputs)).astype(np.float32)
    return tensors


def random_splits(nodes: int, seed: int) -> Splits:
    """60/20/20."""
    order = np.random.default_rng(seed).permutation(nodes)
    train, validation = int(0.6 * nodes), int(0.8 * nodes)
    return Splits(np.sort(order[:train]), np.sort(order[train:validation]), np.sort(order[validation:]))


def revision_in_memory(
    graph: Graph, features: np.ndarray, manifest: NetworkManifest, columns_by_variant: Mapping[str, int], seed: int = 0
) -> LoadedRevision:
    """Random weights; everything read-only, as a repository maps it."""
    table = table_of(features)
    labels = np.random.default_rng(seed).integers(0, manifest.classes, graph.nodes)
    weighs_neighbours = manifest.architecture == "GCN"
    return LoadedRevision(
        manifest=None,
        graph=read_only(graph),
        reading=GraphReading(
            effective_nodes(graph.indptr),
            neighbour_roots=inverse_roots(graph.indptr, graph.indices) if weighs_neighbours else None,
        ),
        ids=GraphIds({"": None}),
        labels=LoadedLabels(tuple(range(manifest.classes)), False, labels, random_splits(graph.nodes, seed)),
        variants={
            name: LoadedVariant(
                name,
                table,
                columns,
                manifest.fanouts,
                build_network(
                    manifest,
                    random_tensors(manifest, columns, seed + columns),
                    columns,
                    projected=False,
                    compute="float32",
                ),
            )
            for name, columns in columns_by_variant.items()
        },
        origin=Origin("made up"),
    )


def planted_graph(
    informative: Sequence[int],
    *,
    nodes: int = 400,
    columns: int = 12,
    seed: int = 0,
    sparse: bool = False,
    multi_label: bool = False,
    classes: tuple[int, ...] | None = None,
) -> GraphData:
    """Class c is told by column `informative[c]` and by nothing else; all columns are equally large.

    Neighbours mostly share the class, so aggregating helps.
    """
    draw = np.random.default_rng(seed)
    count = len(informative)
    truth = draw.integers(0, count, nodes)
    columns_of_truth = np.asarray(informative)[truth]
    if sparse:
        present = draw.random((nodes, columns)) < 1 / count
        present[:, list(informative)] = False
        present[np.arange(nodes), columns_of_truth] = True
        features: Any = sp.csr_array(present.astype(np.float32))
    else:
        features = draw.normal(size=(nodes, columns))
        features[np.arange(nodes), columns_of_truth] += 3.0
        features = ((features - features.mean(axis=0)) / features.std(axis=0)).astype(np.float32)
    of_class = [np.flatnonzero(truth == c) for c in range(count)]
    neighbours = [
        [
            int(draw.choice(of_class[truth[node]])) if draw.random() < 0.8 else int(draw.integers(nodes))
            for _ in range(5)
        ]
        for node in range(nodes)
    ]
    labels = (truth[:, None] == np.arange(count)).astype(np.uint8) if multi_label else truth.astype(np.int64)
    return GraphData.of_one_type(
        source="planted",
        digest="planted",
        graph=graph_of(neighbours),
        features=features,
        labels=labels,
        classes=classes or tuple(range(count)),
        splits=random_splits(nodes, seed),
        edge_rules=EdgeRules(Direction.UNDIRECTED),
    )


def npz_arrays(data: GraphData) -> dict[str, np.ndarray]:
    """The arrays of a graph file, labels as the source would number them."""
    masks = {}
    for name, ids in (("train", data.splits.train), ("val", data.splits.validation), ("test", data.splits.test)):
        masks[f"{name}_mask"] = np.zeros(data.graph.nodes, dtype=bool)
        masks[f"{name}_mask"][ids] = True
    if isinstance(data.features, np.ndarray):
        features = {"features": data.features}
    else:
        features = {
            "feat_indptr": data.features.indptr,
            "feat_indices": data.features.indices,
            "feat_data": data.features.data,
            "feat_shape": np.array(data.features.shape),
        }
    labels = data.labels if data.multi_label else np.asarray(data.classes)[data.labels]
    return {"indptr": data.graph.indptr, "indices": data.graph.indices, "labels": labels, **features, **masks}


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)
    return path


def service_of(uri: str, **parts: Any) -> GNNService:
    """A manifest over one file; `parts` are `model`, `variants`, `normalization` in the manifest's own words."""
    graph: dict[str, Any] = {"source": {"npz": {"uri": uri}}}
    if "normalization" in parts:
        graph["normalization"] = parts.pop("normalization")
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "tiny"},
            "spec": {"graph": graph, **parts},
        }
    )
