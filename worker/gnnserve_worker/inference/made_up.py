"""Made-up revisions of every kind, over one type and over several: random weights, random rows, an invented profile.

They are published and loaded as any other: everything works and nothing means anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gnnserve_api.families import PROJECTED, PRUNED, STORED
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, RelationRowPlaces, TypeRows
from gnnserve_api.files.profile import Compute, LatencyProfile, Profile, VariantProfile
from gnnserve_api.files.repository import (
    NOT_RANKED,
    CorrectionManifest,
    NetworkManifest,
    RankingManifest,
    RevisionManifest,
    RowSource,
    StoredManifest,
    TableManifest,
    VariantManifest,
)
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.variants import Storage, columns_of
from gnnserve_worker.columns.rows import columns_key
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Relation, Splits
from gnnserve_worker.models.architecture import RelationalLayer, RelationalShape, default_key, layer_tensors
from gnnserve_worker.models.registry import layer_sizes, relational_spec_of, spec_of
from gnnserve_worker.models.tail import tail_of
from gnnserve_worker.opening.loaded import CORRECTION
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tables.table import feature_blocks, is_plain

_POINTS = {"features": PRUNED, "projected": PROJECTED, "stored": STORED}
_PRODUCTS, _AGGREGATED = f"projected-{Storage.FLOAT32}", "aggregated1"


@dataclass(frozen=True, slots=True)
class MadeUpVariant:
    name: str
    factor: int
    kind: Literal["features", "projected", "stored"]
    storage: Storage
    compute: Compute

    @property
    def table(self) -> str:
        return f"{self.kind}-{self.storage}"

    @property
    def is_product(self) -> bool:
        return self.kind != "features"

    def network(self, whole: NetworkManifest) -> NetworkManifest:
        return tail_of(whole, 1) if self.kind == "stored" else whole

    def made(self, whole: NetworkManifest, columns: int, aggregated: str | None) -> VariantManifest:
        """`columns`: that it reads of its table. `aggregated`: as in `CorrectionManifest`."""
        network = self.network(whole)
        correction = CorrectionManifest(network=whole, products=_PRODUCTS, aggregated=aggregated)
        return VariantManifest(
            name=self.name,
            family=_POINTS[self.kind].family,
            table=self.table,
            columns=columns,
            fanouts=network.fanouts,
            network=network,
            compute=self.compute,
            weights=paths.weights_of(self.name),
            stored=StoredManifest(layer=1, correction=correction) if self.kind == "stored" else None,
        )


def table_of(variant: VariantManifest, table: TableManifest) -> str:
    """`MadeUpVariant.table` of a made-up variant that has such a table as this one."""
    return f"{'stored' if variant.stored is not None else table.kind}-{table.storage}"


def made_up_graph(nodes: int, degree: int, columns: int, classes: int) -> GraphData:
    """Every node has that many random neighbours."""
    draw = np.random.default_rng(0)
    return GraphData.of_one_type(
        source="made up",
        digest="5eed",
        graph=Graph(
            np.arange(0, nodes * degree + 1, degree, dtype=np.int64),
            draw.integers(0, nodes, nodes * degree, dtype=np.int32),
        ),
        features=draw.standard_normal((nodes, columns), dtype=np.float32),
        labels=np.arange(nodes, dtype=np.int64) % classes,
        classes=tuple(range(classes)),
        splits=Splits(*(np.arange(start, nodes, 3, dtype=np.int64) for start in range(3))),
        edge_rules=EdgeRules(Direction.DIRECTED, Duplicates.KEEP),
    )


def publish_made_up(
    repository: Repository, graph: GraphData, network: NetworkManifest, variants: Sequence[MadeUpVariant]
) -> RevisionManifest:
    """Random weights, random rows, an invented profile: everything works and nothing means anything."""
    nodes, columns = graph.features.shape
    architecture = spec_of(network.architecture)
    draw = np.random.default_rng(1)
    repository.put_graph(graph)
    with repository.stage("made-up", graph.digest) as staged:
        for table, (kind, storage) in {variant.table: (variant.kind, variant.storage) for variant in variants}.items():
            if kind == "features":
                staged.write_table(table, kind, storage, columns, feature_blocks(graph.features, range(columns)))
            else:
                outputs = (tail_of(network, 1) if kind == "stored" else network).projected_columns
                rows = np.broadcast_to(np.float32(0.5), (nodes, outputs))
                has_own = architecture.stores_own
                staged.write_table(table, "projected", storage, outputs, [rows], [rows] if has_own else None)
        aggregated = None
        if any(variant.kind == "stored" for variant in variants) and is_plain(architecture.aggregator):
            aggregated, width = _AGGREGATED, network.projected_columns
            sums = np.broadcast_to(np.float32(0.5), (nodes, width))
            staged.write_table(aggregated, "aggregated", Storage.FLOAT32, width, [sums])
        stored = architecture.first_product_keys()
        master = _random_weights(network, columns, draw)
        kept = staged.write_row_source({name: tensor for name, tensor in master.items() if name in stored})
        profiles, made = [], []
        for variant in variants:
            own = variant.network(network)
            width = own.projected_columns if variant.is_product else columns_of(columns, variant.factor)
            tensors = _random_weights(own, width, draw)
            if variant.is_product:
                tensors = {name: tensor for name, tensor in tensors.items() if name not in stored}
            if variant.kind == "stored":
                tensors |= {f"{CORRECTION}{name}": value for name, value in master.items() if name not in stored}
            staged.write_variant(variant.name, tensors)
            made.append(variant.made(network, width, aggregated))
            profiles.append(invented_profile(variant, width))
        return staged.commit(
            scope="Inductive",
            ranking=RankingManifest(method="Random", settings={}, columns=tuple(range(columns))),
            variants=made,
            profile=_invented(profiles),
            generator="made up",
            created_at="2026-01-01T00:00:00Z",
            row_source=RowSource(columns=(), normalization=Normalization.DISABLED, tensors=kept),
            edge_rules=graph.edge_rules,
        )


def _random_weights(network: NetworkManifest, columns: int, draw: np.random.Generator) -> dict[str, np.ndarray]:
    spec = spec_of(network.architecture)
    return {
        key: draw.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        for layer, sizes in enumerate(layer_sizes(network, columns))
        for key, shape in spec.shapes_of(layer, sizes).items()
    }


def _invented(variants: Sequence[VariantProfile]) -> Profile:
    return Profile(
        metric="accuracy", machine="made up", threads=1, validation_nodes=1, test_nodes=0, variants=tuple(variants)
    )


def invented_profile(variant: MadeUpVariant, columns: int) -> VariantProfile:
    latency = tuple(
        LatencyProfile(
            seeds=seeds, runs=1, p50_ms=1, p99_ms=1, mean_ms=1, std_ms=0, sample_ms=0, gather_ms=0, compute_ms=0,
            gathered_bytes=0, window_p50_ms=0, window_mean_ms=0, window_std_ms=0,
        )
        for seeds in (1, 1024)
    )  # fmt: skip
    return VariantProfile(
        name=variant.name, factor=variant.factor, table=variant.table, columns=columns, storage=variant.storage,
        projected=variant.is_product, compute=variant.compute, validation_accuracy=1 / (1 + variant.factor),
        test_accuracy=None, latency=latency, test_latency=None, size_bytes=1, memory_bytes=1,
    )  # fmt: skip


# --- over several types


def made_up_types(nodes: int, degree: int, columns: int, classes: int) -> GraphData:
    """Users, who are classified, and items without features, so many of either. Every user reads that many random users
    and items, and every item that many users."""
    draw = np.random.default_rng(0)

    def random_lists() -> Graph:
        drawn = np.sort(draw.integers(0, nodes, (nodes, degree), dtype=np.int32), axis=1)
        return Graph(np.arange(0, nodes * degree + 1, degree, dtype=np.int64), drawn.ravel())

    return GraphData(
        source="made up",
        digest="5eed",
        types=(
            NodeType("user", nodes, draw.standard_normal((nodes, columns), dtype=np.float32)),
            NodeType("item", nodes, None),
        ),
        relations=(
            Relation(
                "user", "knows", "user", random_lists(), edge_rules=EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)
            ),
            Relation("item", "rev_buys", "user", random_lists(), reverse_of="buys"),
            Relation("user", "buys", "item", random_lists()),
        ),
        labels=np.arange(nodes, dtype=np.int64) % classes,
        classes=tuple(range(classes)),
        splits=Splits(*(np.arange(start, nodes, 3, dtype=np.int64) for start in range(3))),
    )


def publish_made_up_types(
    repository: Repository, data: GraphData, network: NetworkManifest, variants: Sequence[MadeUpVariant]
) -> RevisionManifest:
    """`variants`: of kinds `projected` and `features`; of a network that attends in float32."""
    schema, architecture = data.schema, relational_spec_of(network.architecture)
    shape = RelationalShape(schema, network.hidden, network.classes, network.layers, attention=network.attention)
    draw = np.random.default_rng(1)
    tensors = {
        key: draw.standard_normal(sizes, dtype=np.float32) / np.float32(np.sqrt(sizes[-1]))
        for key, sizes in architecture.shapes(shape).items()
    }
    first, *later = architecture.layers(tensors, shape)
    described = rows_of_all(schema)
    repository.put_graph(data)
    with repository.stage("made-up", data.digest) as staged:
        read = [shape.width(place) for place in range(len(schema.types))]
        columns = {"projected": first.columns, "features": max(read)}
        for table, (kind, storage) in {variant.table: (variant.kind, variant.storage) for variant in variants}.items():
            counts = (described.rows, described.own_rows, schema.first_nodes[-1])
            rows, own, features = (np.broadcast_to(np.float32(0.5), (count, columns[kind])) for count in counts)
            if kind == "features":
                staged.write_table(table, kind, storage, columns[kind], [features], types=len(read))
            else:
                staged.write_table(table, "projected", storage, columns[kind], [rows], [own], by_relation=described)
        made = []
        for variant in variants:
            whole = {} if variant.is_product else layer_tensors(0, first)
            staged.write_variant(variant.name, _tail(first, later) | whole)
            made.append(variant.made(network, columns[variant.kind], None))
        kept = layer_tensors(0, first) | {
            default_key(place): np.zeros(network.hidden, np.float32) for place in shape.embedded()
        }
        kept |= {columns_key(place): np.arange(width) for place, width in enumerate(read)}
        return staged.commit(
            scope="Transductive",
            ranking=RankingManifest(NOT_RANKED, settings={}, columns=tuple(range(schema.target.features or 0))),
            variants=made,
            profile=_invented([invented_profile(variant, columns[variant.kind]) for variant in variants]),
            generator="made up",
            created_at="2026-01-01T00:00:00Z",
            row_source=RowSource((), Normalization.DISABLED, staged.write_row_source(kept), _rows_of_new_nodes(schema)),
        )


def rows_of_all(schema: GraphSchema) -> RelationRowPlaces:
    """A table with rows of every relation and every node."""
    counts = [schema.types[schema.place_of(relation.source)].nodes for relation in schema.relations]
    firsts = np.cumsum([0, *counts]).tolist()
    return RelationRowPlaces(firsts[-1], tuple(firsts[:-1]), schema.first_nodes[-1])


def _rows_of_new_nodes(schema: GraphSchema) -> tuple[TypeRows, ...]:
    """The source names no columns, and features are not scaled."""
    return tuple(TypeRows(0, None if kind.features is None else Normalization.DISABLED) for kind in schema.types)


def _tail(first: RelationalLayer, later: Sequence[RelationalLayer]) -> dict[str, np.ndarray]:
    """Weights of a variant over the products of the first layer: an attending one adds its biases to sums of these."""
    kept = {} if first.heads is None else layer_tensors(0, RelationalLayer({}, {}, first.biases))
    for number, layer in enumerate(later, start=1):
        kept |= layer_tensors(number, layer)
    return kept
