"""A batch of changes as a client sends it, in JSON or in its binary form, checked against the served revision.

What depends on the state of the graph (whether a node is there) is for the replica to say, whose refusals become errors
of HTTP here. A message names the place in the JSON form, the value, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gnnserve_api import decoding
from gnnserve_api.changes import CHANGES_TYPE, ChangesRequest
from gnnserve_worker.graph.change_batch import (
    BatchFormError,
    ChangeBatch,
    ChangeCounts,
    ChangeIds,
    ChangeProblem,
    ChangeRefusal,
    decode_batch,
    encode_batch,
)
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.checks import (
    SPLIT,
    AnyLabel,
    check_counts,
    check_labels,
    check_lengths,
    check_texts,
    decode_json,
    empty_id,
    read_labels,
    too_many,
)
from gnnserve_worker.serving.http.changes.content import ColumnsOf
from gnnserve_worker.serving.http.changes.mistakes import BINARY_REMEDY, CHANGES, place_of_id
from gnnserve_worker.serving.http.changes.typed_reading import (
    changed_types_of,
    columns_of_type,
    read_typed_binary,
    read_typed_json,
)
from gnnserve_worker.serving.http.codecs.large_json import LARGE_BYTES, has_more_values, without_collection
from gnnserve_worker.serving.http.features import write_features
from gnnserve_worker.serving.http.node_ids import POSSIBLE_IDS
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, counted, shown_value

MOST_JSON_VALUES = 1 << 20
"""Values of a batch in JSON, whose decoding holds up every other client: about 50 ms."""
_decoder = decoding.decoder(ChangesRequest[int])
_text_decoder = decoding.decoder(ChangesRequest[str])
_CODES = {
    ChangeProblem.UNKNOWN_NODE: ErrorCode.UNKNOWN_NODE,
    ChangeProblem.STORED_NODE: ErrorCode.STORED_NODE,
    ChangeProblem.REPEATED_NODE: ErrorCode.REPEATED_NODE,
    ChangeProblem.INVALID_VALUE: ErrorCode.INVALID_VALUE,
    ChangeProblem.WRONG_LENGTH: ErrorCode.WRONG_FEATURES,
    ChangeProblem.MISSING_COLUMN: ErrorCode.MISSING_COLUMN,
    ChangeProblem.UNKNOWN_LABEL: ErrorCode.UNKNOWN_LABEL,
    ChangeProblem.NO_ROOM: ErrorCode.NO_ROOM,
}


def read_changes(body: bytes, media_type: bytes, revision: ServedRevision) -> tuple[bytes, ChangeBatch]:
    """The batch and its binary form. `media_type`: without parameters, in lower case. Raises RequestError."""
    read_json, read_binary = _forms_of(revision)
    if media_type == CHANGES_TYPE.encode():
        return body, read_binary(body)
    if len(body) <= LARGE_BYTES:
        batch = read_json(body)
    else:
        if has_more_values(body, MOST_JSON_VALUES):
            problem = f"it has more than {MOST_JSON_VALUES:,} values, as many as a batch in JSON may have"
            raise too_many("body", problem, f"{SPLIT}, or send its binary form")
        with without_collection():
            batch = read_json(body)
    return encode_batch(batch), batch


Read = Callable[[bytes], ChangeBatch]


def _forms_of(revision: ServedRevision) -> tuple[Read, Read]:
    """What reads a batch about the revision's graph in JSON, and in the binary form."""
    if revision.types is not None:
        support = changed_types_of(revision)
        return partial(read_typed_json, revision=revision, support=support), partial(
            read_typed_binary, revision=revision, support=support
        )
    columns = columns_of(revision)
    return partial(_read_json, revision=revision, columns=columns), partial(
        _read_binary, revision=revision, columns=columns
    )


def columns_by_id(revision: ServedRevision) -> ColumnsOf:
    """The columns of each node's features, by its id. Raises RequestError where the revision does not tell them."""
    if revision.types is not None:
        return partial(columns_of_type, changed_types_of(revision))
    columns = columns_of(revision)
    return lambda _: columns


def columns_of(revision: ServedRevision) -> FeatureColumns:
    """The columns of features, as in the source. Raises RequestError where the revision does not tell them."""
    if revision.overlays is None:
        raise RequestError(
            ErrorCode.NO_UPDATES,
            "body",
            f"the revision cannot take changes: {revision.no_overlays}",
            "choose variants that read the graph as it is, or generate it again",
        )
    return revision.overlays.columns


def refusal_error(refusal: ChangeRefusal, offset: int | None = None) -> RequestError:
    """`offset`: of the batch's record in the log, which stays there without effect; None: nothing is durable."""
    told = "" if offset is None else f" (record {offset:,} of the log, which stays without effect)"
    return RequestError(_CODES[refusal.problem], refusal.field, refusal.message + told, refusal.remedy)


def _read_json(body: bytes, revision: ServedRevision, columns: FeatureColumns) -> ChangeBatch:
    decoder: msgspec.json.Decoder[Any] = _text_decoder if revision.has_text_ids else _decoder
    request: ChangesRequest[Any] = decode_json(body, decoder, revision, CHANGES)
    nodes, overrides, labelled = request.nodes, request.overrides, request.labels
    counts = ChangeCounts(
        len(nodes), len(overrides), len(labelled), len(request.edges), len(request.removed_edges),
        len(request.removed_nodes),
    )  # fmt: skip
    check_counts(counts, columns.features)
    ids: list[Any] = [node.id for node in nodes]
    ids += [node.id for node in overrides]
    ids += [node.id for node in labelled]
    ids += chain.from_iterable(request.edges)
    ids += chain.from_iterable(request.removed_edges)
    ids += request.removed_nodes
    features = np.full((counts.rows, columns.features), np.nan, np.float32)
    write_features(nodes, "nodes", columns, features)
    write_features(overrides, "overrides", columns, features[len(nodes) :], are_kept=True)
    labels: list[AnyLabel] = [node.label for node in nodes]
    labels += [node.label for node in labelled]
    check_labels(labels, counts, revision)
    has_labels = bool(labelled) or any(label is not None for label in labels)
    laid_out = _lay_out(ids, counts, are_texts=revision.has_text_ids)
    return ChangeBatch(counts, laid_out, features, msgspec.json.encode(labels) if has_labels else b"")


def _lay_out(ids: Sequence[Any], counts: ChangeCounts, *, are_texts: bool) -> ChangeIds:
    if are_texts:
        if "" in ids:
            raise empty_id(ids.index(""), counts)
        texts, offsets = lay_out(ids)
        check_lengths(offsets, counts)
        return ChangeIds(None, texts, offsets)
    try:
        return ChangeIds(np.array(ids, np.int64))
    except OverflowError:
        first = next(i for i, id_ in enumerate(ids) if id_ not in POSSIBLE_IDS)
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            place_of_id(first, counts),
            f"{shown_value(ids[first])} is beyond 64 bits with a sign, as no id is",
            f"give an integer from {POSSIBLE_IDS[0]} to {POSSIBLE_IDS[-1]}",
        ) from None


def _read_binary(body: bytes, revision: ServedRevision, columns: FeatureColumns) -> ChangeBatch:
    try:
        batch = decode_batch(body)
    except BatchFormError as error:
        raise RequestError(ErrorCode.INVALID_BINARY, "body", str(error), BINARY_REMEDY) from None
    counts = batch.counts
    check_counts(counts, columns.features)
    if batch.is_typed or (batch.ids.integers is None) is not revision.has_text_ids:
        kind, form = ("texts", 2) if revision.has_text_ids else ("integers", 1)
        raise RequestError(
            ErrorCode.INVALID_BINARY, "body", f"node ids of this graph are {kind}", f"send form {form} of a batch"
        )
    if batch.ids.texts is not None and batch.ids.offsets is not None:
        check_texts(batch.ids.texts, batch.ids.offsets, counts)
    _check_features(batch.features, counts, columns)
    if batch.labels or counts.labelled:
        check_labels(read_labels(batch.labels, counts), counts, revision)
    return batch


def _check_features(features: np.ndarray, counts: ChangeCounts, columns: FeatureColumns) -> None:
    """New nodes have all features, as numbers; NaN of an override keeps what the node has."""
    if counts.rows and features.shape[1] != columns.features:
        raise RequestError(
            ErrorCode.WRONG_FEATURES,
            "nodes[0].features" if counts.new_nodes else "overrides[0].features",
            f"{counted(features.shape[1], 'number')}, where the graph has {columns.features:,} features",
            f"give {columns.features:,} numbers for each node",
        )
    is_missing = np.isnan(features)
    is_wrong = np.isinf(features)
    is_wrong[: counts.new_nodes] |= is_missing[: counts.new_nodes]
    for start, stop in _lists_of(columns) if is_missing.any() else ():
        # A column is given or left out as a whole.
        is_wrong[:, start:stop] |= is_missing[:, start:stop] & ~is_missing[:, start:stop].all(axis=1, keepdims=True)
    if not is_wrong.any():
        return
    row, column = divmod(int(is_wrong.argmax()), features.shape[1])
    is_new = row < counts.new_nodes
    place = f"nodes[{row}]" if is_new else f"overrides[{row - counts.new_nodes}]"
    raise RequestError(
        ErrorCode.INVALID_VALUE,
        f"{place}.features[{column}]",
        f"{features[row, column]} is not possible here",
        "give a number" if is_new else "give a number; NaN for all numbers of a column lets it stay as it is",
    )


def _lists_of(columns: FeatureColumns) -> Iterator[tuple[int, int]]:
    """Where each column of lists begins and ends."""
    start = 0
    for column in columns.columns:
        if column.width > 1:
            yield start, start + column.width
        start += column.width
