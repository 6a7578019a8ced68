"""Ids in a batch of changes, as a graph calls its nodes: alone, and an edge is a pair; or with their type, and an edge
names its relation.

Unlike a request's ids, those of what lasts name their type in any case. Whether nodes and relations are there is for
the replica to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.http.changes import ChangesRequest, TypedChangesRequest
from gnnserve_worker.asking.body_form import BodyForm
from gnnserve_worker.asking.id_schemas import POSSIBLE_IDS
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.type_ids import QualifiedId, QualifiedIds
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import (
    INTEGERS,
    TEXTS,
    TEXTS_WITH_TYPES,
    BatchForm,
    ChangeIds,
    TextIds,
)
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.overlay import ALL_OF_FIRST
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.checks import check_lengths, check_texts, empty_id
from gnnserve_worker.serving.http.changes.mistakes import CHANGES, RELATION_CHANGES, place_of_id

AnyRequest = ChangesRequest[Any] | TypedChangesRequest
"""A batch in JSON."""


class NamedItems(NamedTuple):
    """Ids of a batch in JSON."""

    ids: ChangeIds
    types: np.ndarray
    """Types of new nodes and of overridden ones, by their places: int64; empty: all are of the first one."""


class BatchIds(Protocol):
    """The form of ids in batches. Methods raise RequestError."""

    @property
    def request(self) -> Any:
        """The type of a batch in JSON."""

    @property
    def decoder(self) -> msgspec.json.Decoder[Any]: ...

    @property
    def form(self) -> BodyForm:
        """Its fields, for messages."""

    @property
    def padding(self) -> str:
        """What a row of features has beside those of its node, for messages."""

    def example(self, revision: ServedRevision) -> Any:
        """A batch that the graph permits."""

    def read(self, request: Any, counts: ChangeCounts, ids: QualifiedIds) -> NamedItems:
        """Ids of a batch in JSON, laid out. `ids`: of the graph."""

    def relations(self, request: Any, ids: QualifiedIds, schema: GraphSchema) -> np.ndarray:
        """The place of each new edge's relation: int64, -1 where the graph has no such relation; empty: all are of the
        first one. To be called for ids that were read."""

    def check(self, batch: ChangeBatch, ids: QualifiedIds) -> np.ndarray:
        """Check the ids of a batch in the binary form; types as of `NamedItems`, -1 where the graph has no such
        type."""


class _Alone:
    """Ids without a type, whatever they are."""

    request = ChangesRequest
    form = CHANGES
    padding = ""

    def example(self, revision: ServedRevision) -> Any:
        return _pair(revision)

    def relations(self, request: ChangesRequest[Any], ids: QualifiedIds, schema: GraphSchema) -> np.ndarray:
        return ALL_OF_FIRST


class IntegersAlone(_Alone):
    """Integers, without a type."""

    decoder = decoding.decoder(ChangesRequest[int])

    def read(self, request: ChangesRequest[int], counts: ChangeCounts, ids: QualifiedIds) -> NamedItems:
        given = _in_order(request)
        try:
            return NamedItems(INTEGERS.lay_out(given), ALL_OF_FIRST)
        except OverflowError:
            first = next(i for i, id_ in enumerate(given) if id_ not in POSSIBLE_IDS)
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                place_of_id(first, counts),
                f"{shown_value(given[first])} is beyond 64 bits with a sign, as no id is",
                f"give an integer from {POSSIBLE_IDS[0]} to {POSSIBLE_IDS[-1]}",
            ) from None

    def check(self, batch: ChangeBatch, ids: QualifiedIds) -> np.ndarray:
        if batch.ids.form is not INTEGERS:
            raise _other_form("node ids of this graph are integers", INTEGERS)
        return ALL_OF_FIRST


class TextsAlone(_Alone):
    """Texts, without a type."""

    decoder = decoding.decoder(ChangesRequest[str])

    def read(self, request: ChangesRequest[str], counts: ChangeCounts, ids: QualifiedIds) -> NamedItems:
        given = _in_order(request)
        if "" in given:
            raise empty_id(given.index(""), counts)
        return NamedItems(_laid_out(given, counts, TEXTS), ALL_OF_FIRST)

    def check(self, batch: ChangeBatch, ids: QualifiedIds) -> np.ndarray:
        texts = TEXTS.own(batch.ids)
        if texts is None:
            raise _other_form("node ids of this graph are texts", TEXTS)
        check_texts(texts.texts, texts.offsets, batch.counts)
        return ALL_OF_FIRST


class TypedTexts:
    """Texts with their type, `user/17`; an edge is source, relation and target."""

    request = TypedChangesRequest
    decoder = decoding.decoder(TypedChangesRequest)
    form = RELATION_CHANGES
    padding = ", with zeros behind those of its type"

    def example(self, revision: ServedRevision) -> Any:
        return msgspec.json.decode(RELATION_CHANGES.example(revision))

    def read(self, request: TypedChangesRequest, counts: ChangeCounts, ids: QualifiedIds) -> NamedItems:
        rows = [ids.read_named(node.id, f"nodes[{place}].id") for place, node in enumerate(request.nodes)]
        rows += [ids.read_named(node.id, f"overrides[{place}].id") for place, node in enumerate(request.overrides)]
        texts = [_text(id_) for id_ in rows]
        for place, node in enumerate(request.labels):
            texts.append(_text(ids.read_named(node.id, f"labels[{place}].id")))
        for field, edges in (("edges", request.edges), ("removedEdges", request.removed_edges)):
            for place, (source, relation, target) in enumerate(edges):
                where = f"{field}[{place}]"
                if not relation:
                    problem = "it is empty, and no relation is the empty text"
                    raise RequestError(ErrorCode.INVALID_VALUE, f"{where}[1]", problem, "name one")
                source_id = ids.read_named(source, f"{where}[0]")
                texts += (_text(source_id), relation, _text(ids.read_named(target, f"{where}[2]")))
        for place, given in enumerate(request.removed_nodes):
            texts.append(_text(ids.read_named(given, f"removedNodes[{place}]")))
        types = np.array([ids.place_of(id_.type) for id_ in rows], np.int64)
        return NamedItems(_laid_out(texts, counts, TEXTS_WITH_TYPES), types)

    def relations(self, request: TypedChangesRequest, ids: QualifiedIds, schema: GraphSchema) -> np.ndarray:
        places = {(one.source, one.name, one.target): place for place, one in enumerate(schema.relations)}
        found = []
        for place, (source, relation, target) in enumerate(request.edges):
            ends = (ids.read_named(end, f"edges[{place}]").type for end in (source, target))
            found.append(places.get((next(ends), relation, next(ends)), -1))
        return np.array(found, np.int64)

    def check(self, batch: ChangeBatch, ids: QualifiedIds) -> np.ndarray:
        texts, counts = TEXTS_WITH_TYPES.own(batch.ids), batch.counts
        if texts is None:
            raise _other_form("nodes of this graph are of several types", TEXTS_WITH_TYPES)
        check_texts(texts.texts, texts.offsets, counts, batch.per_edge)
        whole, bounds = texts.texts.tobytes(), texts.offsets.tolist()
        named = (whole[bounds[at] : bounds[at + 1]].decode() for at in range(counts.rows))
        return np.array([ids.place_of(text.partition("/")[0]) for text in named], np.int64)


def _in_order(request: ChangesRequest[Any]) -> list[Any]:
    """All ids, in the order of the binary form."""
    ids: list[Any] = [node.id for node in request.nodes]
    ids += [node.id for node in request.overrides]
    ids += [node.id for node in request.labels]
    ids += chain.from_iterable(request.edges)
    ids += chain.from_iterable(request.removed_edges)
    ids += request.removed_nodes
    return ids


def _laid_out(texts: Sequence[str], counts: ChangeCounts, form: BatchForm) -> TextIds:
    laid_out, offsets = lay_out(texts)
    check_lengths(offsets, counts)
    return TextIds(laid_out, offsets, form)


def _pair(revision: ServedRevision) -> Any:
    ids = revision.graph.naming.shown(0, 2)
    return {"edges": [[ids[0], ids[-1]]]}


def _text(id_: QualifiedId) -> str:
    return f"{id_.type}/{id_.id}"


def _other_form(problem: str, form: BatchForm) -> RequestError:
    return RequestError(ErrorCode.INVALID_BINARY, "body", problem, f"send form {form.number} of a batch")
