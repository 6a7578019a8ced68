"""A batch of changes of a graph of several types, as a client sends it: ids with types, edges with their relation.

Unlike a request's ids, those of what lasts name their type in any case. Whether nodes and relations are there is for
the replica to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.changes import TypedChangesRequest
from gnnserve_api.protocol import TypedNodeFeatures
from gnnserve_worker.asking.changed_features import ChangedFeatures
from gnnserve_worker.asking.features import write_row
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted
from gnnserve_worker.asking.type_ids import TypedId
from gnnserve_worker.graph.change_batch import BatchFormError, ChangeBatch, ChangeCounts, ChangeIds, decode_batch
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.checks import (
    AnyLabel,
    check_counts,
    check_labels,
    check_lengths,
    check_texts,
    decode_json,
    read_labels,
)
from gnnserve_worker.serving.http.changes.mistakes import BINARY_REMEDY, RELATION_CHANGES, place_of_label

_decoder = decoding.decoder(TypedChangesRequest)


@dataclass(frozen=True, slots=True)
class RelationBatches:
    """`reading.py: BatchForm`"""

    request: Any = TypedChangesRequest

    def example(self, revision: ServedRevision) -> Any:
        return msgspec.json.decode(RELATION_CHANGES.example(revision))

    def read_json(self, body: bytes, revision: ServedRevision) -> ChangeBatch:
        return _read_json(body, revision, revision.changes.features)

    def read_binary(self, body: bytes, revision: ServedRevision) -> ChangeBatch:
        return _read_binary(body, revision, revision.changes.features)


def _read_json(body: bytes, revision: ServedRevision, described: ChangedFeatures) -> ChangeBatch:
    width = described.width()
    request: TypedChangesRequest = decode_json(body, _decoder, revision, RELATION_CHANGES)
    nodes, overrides, labelled = request.nodes, request.overrides, request.labels
    counts = ChangeCounts(
        len(nodes), len(overrides), len(labelled), len(request.edges), len(request.removed_edges),
        len(request.removed_nodes),
    )  # fmt: skip
    check_counts(counts, width)

    def read(given: Any, where: str) -> TypedId:
        return revision.graph.ids.read_named(given, where)

    new = [read(node.id, f"nodes[{place}].id") for place, node in enumerate(nodes)]
    overridden = [read(node.id, f"overrides[{place}].id") for place, node in enumerate(overrides)]
    features = np.zeros((counts.rows, width), np.float32)
    for place, (node, id_) in enumerate(zip(nodes, new, strict=True)):
        _write(node, id_, f"nodes[{place}]", described, features[place])
    for place, (other, id_) in enumerate(zip(overrides, overridden, strict=True)):
        _write_all(other, id_, f"overrides[{place}]", described, features[len(new) + place])
    texts = [_text(id_) for id_ in (*new, *overridden)]
    texts += [_text(read(node.id, f"labels[{place}].id")) for place, node in enumerate(labelled)]
    for field, edges in (("edges", request.edges), ("removedEdges", request.removed_edges)):
        for place, (source, relation, target) in enumerate(edges):
            if not relation:
                raise _without_relation(f"{field}[{place}][1]")
            where = f"{field}[{place}]"
            texts += (_text(read(source, f"{where}[0]")), relation, _text(read(target, f"{where}[2]")))
    texts += [_text(read(id_, f"removedNodes[{place}]")) for place, id_ in enumerate(request.removed_nodes)]
    labels: list[AnyLabel] = [node.label for node in chain[Any](nodes, labelled)]
    _check_labels(labels, [id_.type for id_ in new], counts, revision)
    laid_out = ChangeIds(None, *lay_out(texts))
    assert laid_out.offsets is not None  # noqa: S101
    check_lengths(laid_out.offsets, counts)
    has_labels = bool(labelled) or any(label is not None for label in labels)
    return ChangeBatch(counts, laid_out, features, msgspec.json.encode(labels) if has_labels else b"", is_typed=True)


def _read_binary(body: bytes, revision: ServedRevision, described: ChangedFeatures) -> ChangeBatch:
    width = described.width()
    try:
        batch = decode_batch(body)
    except BatchFormError as error:
        raise RequestError(ErrorCode.INVALID_BINARY, "body", str(error), BINARY_REMEDY) from None
    counts, ids = batch.counts, batch.ids
    check_counts(counts, width)
    if not batch.is_typed or ids.texts is None or ids.offsets is None:
        problem = "nodes of this graph are of several types"
        raise RequestError(ErrorCode.INVALID_BINARY, "body", problem, "send form 3 of a batch")
    check_texts(ids.texts, ids.offsets, counts, batch.per_edge)
    _check_features(batch.features, counts, width)
    if batch.labels or counts.labelled:
        whole, bounds = ids.texts.tobytes(), ids.offsets.tolist()
        names = [whole[bounds[at] : bounds[at + 1]].decode().partition("/")[0] for at in range(counts.new_nodes)]
        _check_labels(read_labels(batch.labels, counts), names, counts, revision)
    return batch


def _text(id_: TypedId) -> str:
    return f"{id_.type}/{id_.id}"


def _write(node: TypedNodeFeatures, id_: TypedId, where: str, described: ChangedFeatures, row: np.ndarray) -> None:
    """Features of a new node, if its type has any."""
    columns = _columns_of(node, id_, where, described)
    if columns is not None and node.features is not None:
        write_row(node.features, f"{where}.features", columns, row[: columns.features])


def _write_all(node: TypedNodeFeatures, id_: TypedId, where: str, described: ChangedFeatures, row: np.ndarray) -> None:
    """Features of an override, of which none may be left out: tables of products do not keep what a node has."""
    columns = _columns_of(node, id_, where, described)
    if columns is None or node.features is None:
        return  # the replica refuses it
    own = row[: columns.features]
    own[:] = np.nan
    write_row(node.features, f"{where}.features", columns, own, are_kept=True)
    missing = np.flatnonzero(np.isnan(own))
    if len(missing):
        raise RequestError(
            ErrorCode.MISSING_COLUMN,
            f"{where}.features.{columns.name_of(int(missing[0]))}",
            "it is missing, and of a graph of several types a revision does not keep what the node has",
            "give every column",
        )


def _columns_of(node: TypedNodeFeatures, id_: TypedId, where: str, described: ChangedFeatures) -> FeatureColumns | None:
    columns = described.columns_of_type(id_.type)
    if columns is None and node.features:
        raise RequestError(
            ErrorCode.WRONG_FEATURES, f"{where}.features", f"nodes of type {id_.type} have no features",
            "leave them out: a new node begins with the mean of the embeddings of its type",
        )  # fmt: skip
    if columns is not None and node.features is None:
        remedy = f"nodes of type {id_.type} have {columns.features:,} features: give them"
        raise RequestError(ErrorCode.MISSING_FIELD, f"{where}.features", "it is missing", remedy)
    return columns


def _check_features(features: np.ndarray, counts: ChangeCounts, width: int) -> None:
    if counts.rows and features.shape[1] != width:
        raise RequestError(
            ErrorCode.WRONG_FEATURES,
            "nodes[0].features" if counts.new_nodes else "overrides[0].features",
            f"{counted(features.shape[1], 'number')}, where the type with most features has {width:,}",
            f"give {width:,} numbers for each node, with zeros behind those of its type",
        )
    is_wrong = ~np.isfinite(features)
    if not is_wrong.any():
        return
    row, column = divmod(int(is_wrong.argmax()), features.shape[1])
    is_new = row < counts.new_nodes
    raise RequestError(
        ErrorCode.INVALID_VALUE,
        f"{'nodes' if is_new else 'overrides'}[{row if is_new else row - counts.new_nodes}].features[{column}]",
        f"{features[row, column]} is not possible here",
        "give a number; of a graph of several types no column of an override may be left out",
    )


def _check_labels(
    labels: Sequence[AnyLabel], names: Sequence[str], counts: ChangeCounts, revision: ServedRevision
) -> None:
    """`names`: types of the new nodes."""
    check_labels(labels, counts, revision)
    target = revision.graph.types.target.name
    for place, (label, name) in enumerate(zip(labels, names, strict=False)):
        if label is not None and name != target:
            problem = f"the node is of type {name}, and only nodes of type {target} have labels"
            raise RequestError(ErrorCode.UNKNOWN_LABEL, place_of_label(place, counts), problem, "leave it out")


def _without_relation(where: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_VALUE, where, "it is empty, and no relation is the empty text", "name one")
