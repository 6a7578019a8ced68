"""Revisions of listed layers over one type, small, in memory: rows of features, of products and of stored layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
from msgspec import UNSET
from tests.support.gpu.gpu_revisions import NODES, WIDTH
from tests.support.graphs.graphs import (
    dense_features,
    network_manifest,
    random_graph,
    revision_in_memory,
    rows_of,
    table_of,
)

from gnnserve_api.files.graph_schema import GraphSchema, one_type
from gnnserve_api.files.layers import Convolution, ConvolutionManifest, LayerManifest, LayersManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.dense import run_products
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.layers.network import LayersNetwork
from gnnserve_worker.layers.passes import projected, projected_tensors, stored, tensors_behind
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.shapes import problems_of, tensor_shapes
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.tables.table import Table

CLASSES = 4
HIDDEN = 8


def convolution(kind: Convolution, width: int = HIDDEN, **fields: object) -> ConvolutionManifest:
    return ConvolutionManifest(kind, width=width, **fields)


def layers_of(conv: ConvolutionManifest, count: int = 2, **fields: object) -> LayersManifest:
    """Layers of one convolution each, the last one as wide as there are classes."""
    last = LayerManifest((msgspec.structs.replace(conv, width=CLASSES),))
    return LayersManifest((*(LayerManifest((conv,), **fields) for _ in range(count - 1)), last))


def drawn_tensors(layers: LayersManifest, schema: GraphSchema, width: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    found = {}
    for key, shape in tensor_shapes(layers, schema, (width,)).items():
        inputs = shape[-1] if len(shape) > 1 else 4
        found[key] = (draw.normal(size=shape) / inputs**0.5).astype(np.float32)
        if key.endswith(("running_var", "mean_scale", "norm.weight")):
            found[key] = draw.uniform(0.5, 1.5, shape).astype(np.float32)
    return found


def listed_revision(
    layers: LayersManifest, fanouts: Sequence[int], *, graph: Graph | None = None, storage: Storage = Storage.FLOAT32,
    is_projected: bool = False, width: int = WIDTH,
) -> LoadedRevision:  # fmt: skip
    """One variant, `rows`, over features, or over the first layer's products."""
    graph = random_graph(NODES, seed=1, mean_degree=4) if graph is None else graph
    schema = one_type(graph.nodes, len(graph.indices), width)
    features = dense_features(graph.nodes, width, seed=2)
    assert problems_of(layers, schema, (width,)) == []
    tensors = drawn_tensors(layers, schema, width)
    made = revision_in_memory(graph, features, network_manifest("GCN", (1,)), {"rows": width})
    variant = _variant(layers, schema, tensors, fanouts, table_of(features, storage))
    if is_projected:
        whole = projected(layers, schema, (width,))
        weights = projected_tensors(tensors, layers, schema, (width,))
        network = LayersNetwork.build(whole, schema, (width,), weights)
        rows = np.array(run_products(network.before[0], features, RunMemory()))
        rest = stored(whole, schema, (width,), 0)
        of_rows = rows_of(rows, storage)
        table = Table("projected", rows.shape[1], of_rows, of_rows)
        variant = _variant(rest, schema, tensors_behind(weights, rest, schema, (width,)), fanouts, table)
    reading = replace(made.reading, neighbour_roots=inverse_roots(graph.indptr, graph.indices))
    return replace(made, variants={"rows": variant}, reading=reading)


def _variant(
    layers: LayersManifest, schema: GraphSchema, tensors: Mapping[str, np.ndarray], fanouts: Sequence[int], table: Table
) -> LoadedVariant:
    width = schema.target.features or 0
    program = program_of(layers, schema, (width,))
    runner = LayersRunner(tensors, program, schema)
    columns = width if layers.stored is UNSET else layers.stored.rows[0].columns
    network = ProgramNetwork(program, schema, runner, (columns,))
    return LoadedVariant("rows", table, columns, tuple(fanouts), network)
