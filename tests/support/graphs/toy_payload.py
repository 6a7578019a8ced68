"""A toy graph whose edges have features and times."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from tests.support.sampling.samplers import sampler_of

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import NAMES_OF_TYPES
from gnnserve_api.files.repository import SourceColumn
from gnnserve_api.http.protocol import RequestOverlay, TypedOverlay
from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS
from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_worker.asking.asked_nodes import TARGET_NODES, GraphTypes
from gnnserve_worker.asking.edge_payload import EdgePayloads
from gnnserve_worker.asking.features import GivenFeatures
from gnnserve_worker.asking.overlay import GraphOverlays, OverlaySupport, StandIn
from gnnserve_worker.asking.overlay_ids import IdsAlone, IdsWithTypes
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, decode_batch, encode_batch
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.overlay import Overlay, overlay_arranger
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import merged_lists, merged_payload_rows, places_of
from gnnserve_worker.graph.sources.assembly import GivenRelation, GivenType, assemble
from gnnserve_worker.graph.sources.table_nodes import LabelledNodes
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Splits
from gnnserve_worker.opening.living_graphs import living_graphs
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.sampling.neighbours import Scratch
from gnnserve_worker.sampling.payload import gather_payload

USERS, ITEMS = 6, 4
COLUMN = FeatureColumns(1, (SourceColumn("age", 1, None),))
PAID = [(0, 1, 5.0, 10), (2, 1, 7.5, 3), (0, 1, 6.0, 12), (1, 0, 1.0, 4), (3, 3, 2.0, 1), (4, 1, 0.5, 9)]
"""Source, target, amount and time of each edge; 0 pays 1 twice."""
BOUGHT = [(0, 2, 20.0, 5), (1, 2, 30.0, 6), (5, 0, 40.0, 7), (0, 2, 25.0, 2)]
Told = set[tuple[str, str, float, int]]
"""Reader, what it reads, amount and time."""


def edges_of(listed: list[tuple[int, int, float, int]]) -> tuple[np.ndarray, np.ndarray, EdgePayload]:
    sources, targets, amounts, times = (np.array(column) for column in zip(*listed, strict=True))
    return sources, targets, EdgePayload(("amount",), amounts[:, None].astype(np.float32), "at", times.astype(np.int64))


@dataclass(frozen=True)
class Toy:
    """A graph with such a relation, opened as a server opens it."""

    data: GraphData
    graph: Graph
    overlays: GraphOverlays
    request: Any
    """What requests bring, as a type."""

    def named(self, node: int) -> str:
        schema = self.graph.schema
        kind = int(np.searchsorted(schema.first_nodes, node, side="right")) - 1
        name, position = schema.types[kind].name, node - schema.first_nodes[kind]
        return f"{name}/{position}" if name else str(position)

    def changed(
        self, new: list[Any], edges: list[list[Any]], rows: list[tuple[float, int]], removed: list[list[Any]]
    ) -> Toy:
        """The same after changes, whose ids are as in requests. `rows`: amount and time of each edge that comes."""
        schema = self.graph.schema
        room = [msgspec.structs.replace(one, nodes=one.nodes + 1) for one in schema.types]
        grown = msgspec.structs.replace(schema, types=tuple(room))
        payloads = [relation.payload for relation in self.data.relations]
        living, _ = living_graphs(self.graph, {one.name: None for one in schema.types}, grown, 100, payloads=payloads)
        named = [*new, *itertools.chain(*edges, *removed)]
        ids = living.names.form(living).lay_out(named)
        amounts, times = (np.array(column) for column in zip(*rows, strict=True))
        batch = ChangeBatch(
            ChangeCounts(len(new), 0, 0, len(edges), len(removed)), ids, np.ones((len(new), 1), np.float32),
            edge_features=amounts[:, None].astype(np.float32), edge_times=times,
        )  # fmt: skip
        found = living.find(decode_batch(encode_batch(batch)))
        assert isinstance(found, FoundNodes), found
        living.apply(found)
        tables = [None if one is None else one.in_use for one in living.payloads]
        relations = [replace(one, payload=table) for one, table in zip(self.data.relations, tables, strict=True)]
        return replace(self, data=replace(self.data, relations=tuple(relations)), graph=living.graph)

    def sampled(
        self, brought: dict[str, Any] | None = None, asked: Any = None, nodes: Sequence[int] = range(USERS)
    ) -> Told:
        """All edges that these nodes read, or those asked for, as a request that brings that sees them."""
        seeds = np.array(nodes)
        overlay: Overlay | None = None
        if brought is not None:
            read = msgspec.json.decode(json.dumps(brought), type=self.request)
            overlay, seeds = self.overlays.arrange(asked, read, DEFAULT_OVERLAY_LIMITS)
        view = view_of(self.graph.nodes, [Part(len(seeds), overlay, None)], seeds)
        sample = sampler_of(self.graph)(
            self.graph.indptr, self.graph.indices, seeds, (-1,), 1, Scratch(), share=True,
            view=None if view is None else view.sampling, names_positions=True,
        )  # fmt: skip
        payloads = [relation.payload for relation in self.data.relations]
        told: Told = set()
        for payload in gather_payload(self.graph, payloads, sample, view):
            assert payload is not None
            readers = np.searchsorted(sample.starts, payload.edges, side="right") - 1
            for place, (row, edge) in enumerate(zip(readers.tolist(), payload.edges.tolist(), strict=True)):
                ends = (self._called(int(node), overlay) for node in (sample.nodes[row], sample.neighbours[edge]))
                told.add((*ends, float(payload.features[place, 0]), int(payload.times[place])))  # type: ignore[arg-type]
        return told

    def _called(self, node: int, overlay: Overlay | None) -> str:
        if node < self.graph.nodes:
            return self.named(node)
        assert overlay is not None
        origin = int(overlay.origins[node - self.graph.nodes])
        return self.named(origin) if origin >= 0 else "new"


def _nothing_stands_in(node: int) -> StandIn:
    raise AssertionError(f"nothing stands for node {node} here")


def opened(data: GraphData) -> Toy:
    lists = [relation.lists for relation in data.relations]
    graph = Graph(*merged_lists(data.schema, lists), data.schema, merged_payload_rows(data.schema, lists))
    schema = data.schema
    called = TARGET_NODES.call(USERS, GraphTypes(schema, schema, {kind.name: None for kind in schema.types}))
    arranger = overlay_arranger(graph, places_of(schema))
    ids = IdsWithTypes(called.ids) if schema.names is NAMES_OF_TYPES else IdsAlone(called.naming)
    support = OverlaySupport(COLUMN, arranger.arrange, None, EdgePayloads(schema.relations, schema.names))
    types = [GivenFeatures(COLUMN) for _ in schema.types]
    overlays = GraphOverlays(ids, types, support, _nothing_stands_in)
    return Toy(data, graph, overlays, TypedOverlay if schema.names is NAMES_OF_TYPES else RequestOverlay[int])


def assembled(kinds: list[tuple[str, int]], relations: list[GivenRelation], *, reverse: str) -> GraphData:
    splits = Splits(np.array([0]), np.array([1]), np.array([2]))
    labelled = LabelledNodes(np.arange(USERS) % 2, (0, 1), splits)
    types = [
        GivenType(NodeType(name, nodes, np.ones((nodes, 1), np.float32)), None if place else labelled, "a test")
        for place, (name, nodes) in enumerate(kinds)
    ]
    source = HeterogeneousSource.model_validate({"npz": {"uri": "/a/folder"}, "reverse": reverse})
    return assemble(source, "0123abcd", types, relations)


def relation(
    source: str, name: str, target: str, listed: list[tuple[int, int, float, int]], rules: EdgeRules
) -> GivenRelation:
    sources, targets, payload = edges_of(listed)
    return GivenRelation(source, name, target, sources, targets, "a test", ("s", "t"), rules, payload=payload)


def one_type(rules: EdgeRules) -> Toy:
    return opened(assembled([("", USERS)], [relation("", "", "", PAID, rules)], reverse="Disabled"))


def several_types(rules: EdgeRules) -> Toy:
    return opened(
        assembled([("user", USERS), ("item", ITEMS)], [relation("user", "buys", "item", BOUGHT, rules)], reverse="Add")
    )


MERGED, KEPT = EdgeRules(Direction.DIRECTED), EdgeRules(Direction.DIRECTED, Duplicates.KEEP)
