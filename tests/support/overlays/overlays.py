"""Worlds of overlays: a stored graph, what a request brings, and the graph that has both, built anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tests.support.graphs.graphs import (
    dense_features,
    graph_of,
    network_manifest,
    projected_table_of,
    random_tensors,
    rows_of,
    table_of,
)

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.hidden import aggregated_blocks, hidden_blocks
from gnnserve_worker.generation.training_set import fit_normalization
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.overlay import Overlay, overlay_arranger
from gnnserve_worker.graph.relation_lists import places_of_one_type
from gnnserve_worker.graph.store import Graph, GraphIds, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.registry import Tensors, build_network, projection_of, without_first_product
from gnnserve_worker.models.rows import RowMaker, first_products, row_maker
from gnnserve_worker.models.stored_layers import StoredLayerMaker
from gnnserve_worker.models.stored_rows import StoredRowMaker
from gnnserve_worker.models.tail import tail_of, tail_tensors
from gnnserve_worker.opening.loaded import GraphReading, LoadedLabels, LoadedRevision, LoadedVariant, Origin
from gnnserve_worker.sampling.batch_view import FeatureRows, Part, view_of
from gnnserve_worker.sampling.neighbours import Scratch, effective_nodes, sample_neighbours
from gnnserve_worker.sampling.normalised import inverse_roots

NODES, FEATURES = 60, 20
ALL = (-1, -1)
NOBODY = np.zeros(0, np.int64)
ARCHITECTURES = {
    "GraphSAGE": network_manifest("GraphSAGE", ALL),
    "GIN": network_manifest("GIN", ALL, mlp_hidden=12),
    "GCN": network_manifest("GCN", ALL),
    "GAT": network_manifest("GAT", ALL, heads=2, output_heads=2),
}


def _graph_of(sources: np.ndarray, targets: np.ndarray, nodes: int, rules: EdgeRules) -> Graph:
    edges = EdgeList(nodes, rules.direction, rules.duplicates, rules.self_loops)
    edges.add(sources, targets)
    return edges.to_graph()[0]


def revision_over(
    architecture: str,
    graph: Graph,
    features: np.ndarray,
    scaling: Scaling,
    storage: Storage,
    order: np.ndarray,
    fanouts: tuple[int, ...] = ALL,
) -> LoadedRevision:
    """Variants x1, x2, projected and stored1, over `features` as in the source."""
    manifest = ARCHITECTURES[architecture]
    scaled = scaling.scale(FeatureRows.of(features), np.arange(len(features)), np.arange(FEATURES), FEATURES)
    master: Tensors = random_tensors(manifest, features.shape[1], 3)
    half = features.shape[1] // 2
    projection = projection_of(master)
    table = table_of(scaled[:, order], storage)
    projected = projected_table_of(
        scaled @ projection.rows, None if projection.own is None else scaled @ projection.own, storage
    )
    variants = {}
    for name, read, columns, tensors in (
        ("x1", table, features.shape[1], master),
        ("x2", table, half, random_tensors(manifest, half, 4)),
        ("projected", projected, projected.columns, without_first_product(master)),
    ):
        network = build_network(manifest, tensors, columns, read.projected, "float32")
        maker = row_maker(read, features.shape[1], scaling, order, first_products(projection))
        variants[name] = LoadedVariant(name, read, columns, fanouts, network, maker)
    roots = inverse_roots(graph.indptr, graph.indices) if architecture == "GCN" else None
    products = projected_table_of(scaled @ projection.rows, None if projection.own is None else scaled @ projection.own)
    of_products = row_maker(products, features.shape[1], scaling, order, first_products(projection))
    variants["stored1"] = _stored_variant(architecture, graph, master, of_products, storage, fanouts, roots)
    labels = LoadedLabels((0, 1, 2), False, NOBODY, Splits(NOBODY, NOBODY, NOBODY))
    reading = GraphReading(effective_nodes(graph.indptr), neighbour_roots=roots)
    return LoadedRevision(None, graph, reading, GraphIds({"": None}), labels, variants, Origin("made up"))


def _stored_variant(
    architecture: str, graph: Graph, master: Tensors, products: RowMaker, storage: Storage, fanouts: tuple[int, ...],
    roots: np.ndarray | None,
) -> LoadedVariant:  # fmt: skip
    manifest, table = ARCHITECTURES[architecture], products.table
    left, behind = tail_of(manifest, 1), tail_tensors(master, 1)
    network = build_network(manifest, without_first_product(master), table.columns, True, "float32")
    layer = network.layers[0]
    aggregated = rows_of(np.concatenate([*aggregated_blocks(graph, layer, table)]), Storage.FLOAT32)
    hidden = np.concatenate([*hidden_blocks(aggregated, layer)])
    projection = projection_of(behind)
    stored = projected_table_of(
        hidden @ projection.rows, None if projection.own is None else hidden @ projection.own, storage
    )
    maker = StoredLayerMaker(
        stored, graph, layer, table, aggregated if layer.aggregation.plain else None,
        roots, first_products(projection, stored.rows.values.shape[1]),
    )  # fmt: skip
    served = build_network(left, without_first_product(behind), stored.columns, True, "float32")
    rows = StoredRowMaker(maker, products, averages=served.layers[0].aggregation.plain)
    return LoadedVariant("stored1", stored, stored.columns, fanouts[:1], served, rows)


def arrange_overlay(
    graph: Graph, rules: EdgeRules, features: np.ndarray, overridden: np.ndarray, edges: np.ndarray, seeds: np.ndarray
) -> tuple[Overlay, np.ndarray]:
    """Arrange a single overlay over a graph of one type."""
    return overlay_arranger(graph, places_of_one_type(graph.nodes, rules)).arrange(features, overridden, edges, seeds)


def scaling_of(features: np.ndarray, method: Normalization) -> Scaling:
    fitted = fit_normalization(features, method, np.arange(len(features)))
    return Scaling(fitted.method, fitted.mean, fitted.deviation)


class World:
    """A stored graph, an overlay over it, and the graph that has both."""

    def __init__(
        self, seed: int, rules: EdgeRules, *, new: int = 4, overridden: int = 3, edges: int = 25, isolated: int = 0
    ) -> None:
        draw = np.random.default_rng(seed)
        stored_edges = draw.integers(0, NODES - isolated, (2, 6 * NODES))
        self.graph = _graph_of(*stored_edges, NODES, rules)
        self.features = dense_features(NODES, FEATURES, seed)
        self.overridden = draw.choice(NODES, overridden, replace=False)
        self.brought = dense_features(new + overridden, FEATURES, seed + 1) * 2
        # Among new, among stored, between both; with self-loops, repetitions, and edges that the graph has already.
        few = np.concatenate([draw.integers(0, NODES, 12), np.arange(NODES, NODES + new)])
        drawn = draw.choice(few, (edges, 2))
        self.edges = np.concatenate([drawn, stored_edges.T[:3], drawn[:2]]) if edges else np.zeros((0, 2), np.int64)
        self.seeds = np.concatenate([draw.integers(0, NODES, 20), few])
        self.rules = rules
        both = np.concatenate([stored_edges, self.edges.T], axis=1)
        self.rebuilt = _graph_of(*both, NODES + new, rules)
        self.rebuilt_features = np.concatenate([self.features, self.brought[:new]])
        self.rebuilt_features[self.overridden] = self.brought[new:]

    def arranged(self) -> tuple[Overlay, np.ndarray]:
        return arrange_overlay(self.graph, self.rules, self.brought, self.overridden, self.edges, self.seeds)

    def answers(self, revision: LoadedRevision, variant: str, seed: int | None = None, key: int = 1) -> np.ndarray:
        overlay, seeds = self.arranged()
        view = view_of(NODES, [Part(len(seeds), overlay, seed)], seeds)
        return infer_batch(revision, variant, seeds, key, view=view).scores


RULES = [
    EdgeRules(direction, duplicates, self_loops)
    for direction in Direction
    for duplicates, self_loops in ((Duplicates.MERGE, SelfLoops.REMOVE), (Duplicates.KEEP, SelfLoops.KEEP))
]


def drawn_of_list(stored: int, gained: int, fanout: int, keys: int, *, share: bool) -> Iterator[np.ndarray]:
    """For each key, the draws of a node with so many stored neighbours, numbered from 0, and new ones after them."""
    graph = graph_of([list(range(1, stored + 1)), *[[] for _ in range(stored)]])
    nodes, rules, asked = graph.nodes, EdgeRules(Direction.DIRECTED), np.zeros(1, np.int64)
    edges = np.stack([np.arange(nodes, nodes + gained), np.zeros(gained, np.int64)], axis=1)
    overlay, seeds = arrange_overlay(graph, rules, np.zeros((gained, 1), np.float32), NOBODY, edges, asked)
    scratch = Scratch()
    for key in range(keys):
        numbered = seeds.copy()
        view = view_of(nodes, [Part(1, overlay, None)], numbered)
        assert view is not None
        sample = sample_neighbours(
            graph.indptr, graph.indices, numbered, (fanout,), key, scratch, share=share, view=view.sampling
        )
        drawn = sample.neighbours[: sample.starts[1]]
        # Stored neighbours are 1 to `stored`, new ones N + 0 …
        yield np.where(drawn < nodes, drawn - 1, drawn - nodes + stored)


def scores_of_new_node(loaded: LoadedRevision, variant: str, features: np.ndarray, neighbour: int) -> np.ndarray:
    """Scores, float32 [1, classes], of a node that a request brings, with features as in the source and one edge."""
    assert loaded.manifest is not None
    assert loaded.manifest.edge_rules is not None
    nodes = loaded.graph.nodes
    overlay, seeds = arrange_overlay(
        loaded.graph, loaded.manifest.edge_rules, features[None].copy(), NOBODY, np.array([[neighbour, nodes]]),
        np.array([nodes]),
    )  # fmt: skip
    view = view_of(nodes, [Part(1, overlay, seed=None)], seeds)
    return infer_batch(loaded, variant, seeds, key=1, view=view).scores
