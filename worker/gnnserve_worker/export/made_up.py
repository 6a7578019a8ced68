"""A graph that is made up, of a revision's types and relations, with features of its nodes: what a program whose inputs
are features is compared over. A revision may keep products of features alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema, RelationManifest
from gnnserve_api.files.programs import InputRole, ProgramManifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, NO_NEIGHBOURS
from gnnserve_worker.export.check import LARGE_BATCHES, ReferenceCase, spread_nodes
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import merged_lists, merged_payload_rows
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.programs.contract import lay_out
from gnnserve_worker.programs.layered import EMBEDDINGS
from gnnserve_worker.sampling.neighbours import Scratch
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.tables.formats import FLOAT32
from gnnserve_worker.tables.table import NO_SCALES, Rows, WritableRows

NODES, _MOST_READ = 3000, 6
"""Nodes of each type, and most that a node reads by a relation."""
FEW, FEWER = 8, 3
_MOST_ASKED, _KEY = 1024, 0


@dataclass(frozen=True, slots=True)
class MadeUpGraph:
    """A variant over such a graph."""

    revision: LoadedRevision
    """The revision over it, with the variant alone, which reads all neighbours."""
    variant: LoadedVariant
    features: np.ndarray
    """float32 [nodes, columns of the widest type], as a source has them."""
    contract: ProgramManifest
    """Contract of the program that is compared."""
    scored: Mapping[int, str]
    """Names of outputs by the place of their type."""

    def ask_few(self, count: int) -> ReferenceCase:
        return self.ask(np.concatenate([first + spread_nodes(NODES, count) for first in self._scored_nodes()]))

    def _scored_nodes(self) -> list[int]:
        """The first node of each type that has scores."""
        schema = self.revision.graph.schema
        return [schema.first_nodes[kind] for kind in self.scored]

    def ask(self, nodes: np.ndarray) -> ReferenceCase:
        """`nodes`: each once."""
        graph, reading, schema = self.revision.graph, self.revision.reading, self.revision.graph.schema
        fanouts = (FULL_NEIGHBOURHOOD,) * self.contract.sampled_hops or NO_NEIGHBOURS
        sample = reading.sample(
            graph.indptr, graph.indices, nodes, fanouts, _KEY, Scratch(), share=True,
            names_positions=self.contract.reads_payload,
        )  # fmt: skip
        if self.contract.reads_payload:
            sample = msgspec.structs.replace(sample, payload=gather_payload(graph, reading.payloads, sample))

        def read(names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray:
            return self.features[names, : schema.types[kind].features]

        laid = lay_out(self.contract, schema, sample, read)
        answer = infer_batch(self.revision, self.variant.name, nodes, _KEY)
        kinds = np.zeros(len(nodes), np.int64) if laid.kinds is None else laid.kinds
        outputs = {"nodes": nodes}
        for kind, name in self.scored.items():
            outputs[name] = answer.scores[kinds == kind][np.argsort(laid.seeds[kinds == kind])]
        if self.contract.embeddings is not None and answer.embeddings is not None:
            outputs[EMBEDDINGS] = answer.embeddings
        rows = sum(len(array) for array in laid.arrays.values() if array.dtype == np.float32)
        return ReferenceCase(laid.arrays, outputs, rows, tuple(self.scored.values()))

    def large_batches(self) -> Iterator[ReferenceCase]:
        """Batches of growing sizes. In every other one edges are in no order."""
        random = np.random.default_rng(_KEY)
        for number, count in enumerate(np.linspace(64, _MOST_ASKED, LARGE_BATCHES)):
            drawn = [first + random.choice(NODES, int(count), replace=False) for first in self._scored_nodes()]
            question = self.ask(np.concatenate(drawn).astype(np.int64))
            yield self._shuffled(question, random) if number % 2 else question

    def _shuffled(self, question: ReferenceCase, random: np.random.Generator) -> ReferenceCase:
        """The same with edges of each relation, and what they have, in another order."""
        of_edges = [each for each in self.contract.inputs if each.role in (InputRole.EDGES, InputRole.EDGE_FEATURES)]
        counts = {each.relation: question.inputs[each.name].shape[each.free_axis or 0] for each in of_edges}
        orders = {relation: random.permutation(count) for relation, count in counts.items()}
        shuffled = {
            each.name: question.inputs[each.name].take(orders[each.relation], axis=each.free_axis) for each in of_edges
        }
        return replace(question, inputs={**question.inputs, **shuffled})


def graph_like(schema: GraphSchema, random: np.random.Generator) -> Graph:
    """Random lists by each relation, some of them empty, over as many nodes of each type. Lists hold an edge at both of
    its ends where those of the schema do. Entries have a row of payload each where edges have any."""
    types = tuple(msgspec.structs.replace(kind, nodes=NODES) for kind in schema.types)
    lists, relations = [], []
    for one in schema.relations:
        made = _lists_like(one, random)
        payload = one.payload if one.payload is UNSET else msgspec.structs.replace(one.payload, rows=made.edges)
        lists.append(made)
        relations.append(msgspec.structs.replace(one, edges=made.edges, payload=payload))
    like = GraphSchema(types, tuple(relations))
    return Graph(*merged_lists(like, lists), like, merged_payload_rows(like, lists))


def _lists_like(relation: RelationManifest, random: np.random.Generator) -> Graph:
    counts = random.integers(0, _MOST_READ + 1, NODES)
    counts[random.integers(0, NODES, NODES // 4)] = 0
    readers, read = np.repeat(np.arange(NODES), counts), random.integers(0, NODES, int(counts.sum()))
    rows = np.arange(len(read))
    if relation.both_ways:
        # Both entries of an edge have its row; one of a node to itself has one entry.
        others = np.flatnonzero(readers != read)
        readers, read = np.append(readers, read[others]), np.append(read, readers[others])
        rows = np.append(rows, others)
    order = np.lexsort((read, readers))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(readers, minlength=NODES))]).astype(np.int64)
    kept = rows[order] if relation.payload is not UNSET else rows[:0]
    return Graph(indptr, read[order].astype(np.int32), payload_rows=kept.astype(np.int32))


def payload_like(
    relation: RelationManifest, edges: int, told_apart: Mapping[str, Sequence[float]], random: np.random.Generator
) -> EdgePayload | None:
    """Features of so many edges, above 0, since they may be weights. `told_apart`: by columns that tell kinds of edges
    apart, the numbers of these kinds."""
    if relation.payload is UNSET:
        return None
    features = random.uniform(0.2, 2.0, (edges, len(relation.payload.columns))).astype(np.float32)
    for place, name in enumerate(relation.payload.columns):
        if name in told_apart:
            features[:, place] = random.choice([*told_apart[name], -1.0], edges)
    times = np.zeros(edges if relation.payload.time else 0, np.int64)
    return EdgePayload(relation.payload.columns, features, relation.payload.time, times)


def features_like(widths: Sequence[int], scalings: Sequence[Scaling], random: np.random.Generator) -> np.ndarray:
    """Features of nodes, as wide as each type's, spread as those were before they were scaled."""
    features = np.zeros((NODES * len(widths), max(widths)), np.float32)
    for kind, (width, scaling) in enumerate(zip(widths, scalings, strict=True)):
        drawn = random.standard_normal((NODES, width))
        if scaling.mean is not None and scaling.deviation is not None:
            drawn = drawn * scaling.deviation + scaling.mean
        features[kind * NODES : (kind + 1) * NODES, :width] = drawn
    return features


def empty_rows(count: int, columns: int) -> Rows:
    values = np.zeros((count, FLOAT32.padded_columns(columns)), np.float32)
    return Rows(FLOAT32, values, NO_SCALES, WritableRows(values, NO_SCALES))
