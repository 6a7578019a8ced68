"""Made-up revisions over graphs of several types: what `made_up.py` has over graphs of one type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_api.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.families import FamilyName
from gnnserve_api.graph_schema import GraphSchema, RowsByRelation, TypeRows
from gnnserve_api.profile import Profile
from gnnserve_api.repository import (
    NOT_RANKED,
    NetworkManifest,
    RankingManifest,
    RevisionManifest,
    RowSource,
    VariantManifest,
)
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Relation, Splits
from gnnserve_worker.inference.made_up import MadeUpVariant, invented_profile
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.models.relational import RelationalLayer, RelationalShape, default_key, layer_tensors
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.repository import Repository


def made_up_typed_graph(nodes: int, degree: int, columns: int, classes: int) -> GraphData:
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


def publish_made_up_typed(
    repository: Repository, data: GraphData, network: NetworkManifest, variants: Sequence[MadeUpVariant]
) -> RevisionManifest:
    """`variants`: of kind `projected`, computed in float32 where the network attends."""
    typed, architecture = data.schema, relational_spec_of(network.architecture)
    shape = RelationalShape(typed, network.hidden, network.classes, network.layers, attention=network.attention)
    draw = np.random.default_rng(1)
    tensors = {
        key: draw.standard_normal(sizes, dtype=np.float32) / np.float32(np.sqrt(sizes[-1]))
        for key, sizes in architecture.shapes(shape).items()
    }
    first, *later = architecture.layers(tensors, shape)
    described = _rows_of_all(typed)
    repository.put_graph(data)
    with repository.stage("made-up", data.digest) as staged:
        for table, storage in {variant.table: variant.storage for variant in variants}.items():
            counts = (described.rows, described.own_rows)
            rows, own = (np.broadcast_to(np.float32(0.5), (count, first.columns)) for count in counts)
            staged.write_table(table, "projected", storage, first.columns, [rows], [own], typed=described)
        made = []
        for variant in variants:
            staged.write_variant(variant.name, _tail(first, later))
            made.append(
                VariantManifest(
                    name=variant.name,
                    family=FamilyName.PROJECTED,
                    table=variant.table,
                    columns=first.columns,
                    fanouts=network.fanouts,
                    network=network,
                    compute=variant.compute,
                    weights=paths.weights_of(variant.name),
                )
            )
        kept = layer_tensors(0, first) | {
            default_key(place): np.zeros(network.hidden, np.float32) for place in shape.embedded()
        }
        return staged.commit(
            scope="Transductive",
            ranking=RankingManifest(NOT_RANKED, settings={}, columns=tuple(range(typed.target.features or 0))),
            variants=made,
            profile=Profile(
                metric="accuracy",
                machine="made up",
                threads=1,
                validation_nodes=1,
                test_nodes=0,
                variants=tuple(invented_profile(variant, first.columns) for variant in variants),
            ),
            generator="made up",
            created_at="2026-01-01T00:00:00Z",
            row_source=RowSource((), Normalization.DISABLED, staged.write_row_source(kept), _rows_of_new_nodes(typed)),
        )


def _rows_of_all(typed: GraphSchema) -> RowsByRelation:
    """A table with rows of every relation and every node."""
    counts = [typed.types[typed.place_of(relation.source)].nodes for relation in typed.relations]
    firsts = np.cumsum([0, *counts]).tolist()
    return RowsByRelation(firsts[-1], tuple(firsts[:-1]), typed.first_nodes[-1])


def _rows_of_new_nodes(typed: GraphSchema) -> tuple[TypeRows, ...]:
    """The source names no columns, and features are not scaled."""
    return tuple(TypeRows(0, None if kind.features is None else Normalization.DISABLED) for kind in typed.types)


def _tail(first: RelationalLayer, later: Sequence[RelationalLayer]) -> dict[str, np.ndarray]:
    """Weights of a variant over the products of the first layer: an attending one adds its biases to sums of these."""
    kept = {} if first.heads is None else layer_tensors(0, RelationalLayer({}, {}, first.biases))
    for number, layer in enumerate(later, start=1):
        kept |= layer_tensors(number, layer)
    return kept
