"""A batch of changes as a client sends it, in JSON or in its binary form, checked against the served revision.

What depends on the state of the graph (whether a node is there) is for the replica to say, whose refusals become errors
of HTTP here. A message names the place in the JSON form, the value, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.changes import CHANGES_TYPE, ChangesRequest
from gnnserve_api.protocol import Label
from gnnserve_worker.graph.change_batch import (
    MOST_ITEMS,
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
from gnnserve_worker.serving.http.changes.mistakes import BINARY_REMEDY, CHANGES, place_of_id, place_of_label
from gnnserve_worker.serving.http.codecs.json_mistakes import field_error
from gnnserve_worker.serving.http.codecs.large_json import LARGE_BYTES, has_more_values, without_collection
from gnnserve_worker.serving.http.features import write_features
from gnnserve_worker.serving.http.node_ids import POSSIBLE_IDS
from gnnserve_worker.serving.http.overlay import MOST_FEATURE_BYTES, NUMBER_BYTES
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, counted, shown_value

MOST_JSON_VALUES = 1 << 20
"""Values of a batch in JSON, whose decoding holds up every other client: about 50 ms."""
AnyLabel = Label | list[Label] | None
_decoder = msgspec.json.Decoder(ChangesRequest[int])
_text_decoder = msgspec.json.Decoder(ChangesRequest[str])
_labels_decoder = msgspec.json.Decoder(list[AnyLabel])
MOST_ID_BYTES = 1024
"""UTF-8 of the id of a new node."""
_SPLIT = "split the batch"
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
    columns = columns_of(revision)
    if media_type == CHANGES_TYPE.encode():
        return body, _read_binary(body, revision, columns)
    if len(body) <= LARGE_BYTES:
        batch = _read_json(body, revision, columns)
    else:
        if has_more_values(body, MOST_JSON_VALUES):
            problem = f"it has more than {MOST_JSON_VALUES:,} values, as many as a batch in JSON may have"
            raise _too_many("body", problem, f"{_SPLIT}, or send its binary form")
        with without_collection():
            batch = _read_json(body, revision, columns)
    return encode_batch(batch), batch


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
    request = _decode(body, revision)
    nodes, overrides, labelled = request.nodes, request.overrides, request.labels
    counts = ChangeCounts(
        len(nodes), len(overrides), len(labelled), len(request.edges), len(request.removed_edges),
        len(request.removed_nodes),
    )  # fmt: skip
    _check_counts(counts, columns)
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
    _check_labels(labels, counts, revision)
    has_labels = bool(labelled) or any(label is not None for label in labels)
    laid_out = _lay_out(ids, counts, are_texts=revision.has_text_ids)
    return ChangeBatch(counts, laid_out, features, msgspec.json.encode(labels) if has_labels else b"")


def _decode(body: bytes, revision: ServedRevision) -> ChangesRequest[Any]:
    decoder: msgspec.json.Decoder[Any] = _text_decoder if revision.has_text_ids else _decoder
    try:
        request: ChangesRequest[Any] = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise field_error(str(error), body, revision, CHANGES) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if body.strip() else "it is empty"
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, CHANGES.body_remedy(revision)) from None
    return request


def _lay_out(ids: Sequence[Any], counts: ChangeCounts, *, are_texts: bool) -> ChangeIds:
    if are_texts:
        if "" in ids:
            raise _empty_id(ids.index(""), counts)
        texts, offsets = lay_out(ids)
        _check_lengths(offsets, counts)
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
    _check_counts(counts, columns)
    if (batch.ids.integers is None) is not revision.has_text_ids:
        kind, form = ("texts", 2) if revision.has_text_ids else ("integers", 1)
        raise RequestError(
            ErrorCode.INVALID_BINARY, "body", f"node ids of this graph are {kind}", f"send form {form} of a batch"
        )
    if batch.ids.texts is not None and batch.ids.offsets is not None:
        _check_texts(batch.ids.texts, batch.ids.offsets, counts)
    _check_features(batch.features, counts, columns)
    if batch.labels or counts.labelled:
        _check_labels(_read_labels(batch.labels, counts), counts, revision)
    return batch


def _check_texts(texts: np.ndarray, offsets: np.ndarray, counts: ChangeCounts) -> None:
    if not np.diff(offsets).all():
        raise _empty_id(int(np.diff(offsets).argmin()), counts)
    _check_lengths(offsets, counts)
    try:
        texts.tobytes().decode()
    except UnicodeDecodeError as error:
        first = int(np.searchsorted(offsets, error.start, "right")) - 1
    else:
        # Bytes that go on with a character (10xxxxxx) begin none.
        begin_amiss = texts[offsets[:-1]] & 0xC0 == 0x80
        if not begin_amiss.any():
            return
        first = int(begin_amiss.argmax())
    raise RequestError(ErrorCode.INVALID_BINARY, place_of_id(first, counts), "the text is not UTF-8", "send UTF-8")


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


def _read_labels(labels: bytes, counts: ChangeCounts) -> list[AnyLabel]:
    try:
        found = _labels_decoder.decode(labels)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"its labels are no list of labels in JSON: {error}"
        raise RequestError(ErrorCode.INVALID_BINARY, "body", problem, BINARY_REMEDY) from None
    expected = counts.new_nodes + counts.labelled
    if len(found) != expected:
        raise RequestError(
            ErrorCode.INVALID_BINARY,
            "body",
            f"{counted(len(found), 'label')}, where {counted(expected, 'node')} are new or labelled",
            "send one for each new node, then one for each labelled node; null where a node has none",
        )
    return found


def _check_counts(counts: ChangeCounts, columns: FeatureColumns) -> None:
    if not counts.items:
        raise RequestError(
            ErrorCode.EMPTY_CHANGES, "body", "it has no changes", "send at least one, such as a new edge under `edges`"
        )
    if counts.items > MOST_ITEMS:
        raise _too_many("body", f"{counts.items:,} changes, more than the {MOST_ITEMS:,} of one batch")
    size = counts.rows * columns.features * NUMBER_BYTES
    if size > MOST_FEATURE_BYTES:
        raise _too_many(
            "nodes" if counts.new_nodes else "overrides",
            f"{counts.rows:,} nodes with {columns.features:,} features each take {size:,} bytes, more than the "
            f"{MOST_FEATURE_BYTES:,} that one batch may have",
        )


def _check_labels(labels: Sequence[AnyLabel], counts: ChangeCounts, revision: ServedRevision) -> None:
    """Labels are the graph's own, a list where nodes may have several."""
    known = frozenset(revision.classes)
    for index, label in enumerate(labels):
        if label is None:
            continue
        if isinstance(label, list) is not revision.multi_label:
            problem = (
                f"{shown_value(label)} is no list, and nodes of this graph have lists of labels"
                if revision.multi_label
                else f"{shown_value(label)} is a list, and nodes of this graph have one label each"
            )
        elif unknown := [one for one in (label if isinstance(label, list) else [label]) if one not in known]:
            problem = f"{shown_value(unknown[0])} is none of the graph's classes"
        else:
            continue
        raise RequestError(
            ErrorCode.UNKNOWN_LABEL,
            place_of_label(index, counts),
            problem,
            "GET /v1/variants lists the classes; null says that a node has no label",
        )


def _check_lengths(offsets: np.ndarray, counts: ChangeCounts) -> None:
    """Ids of new nodes stay in memory."""
    lengths = np.diff(offsets[: counts.new_nodes + 1])
    if len(lengths) and (longest := int(lengths.max())) > MOST_ID_BYTES:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            place_of_id(int(lengths.argmax()), counts),
            f"it has {longest:,} bytes, more than the {MOST_ID_BYTES:,} that the id of a new node may have",
            "give a shorter one",
        )


def _empty_id(index: int, counts: ChangeCounts) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_VALUE,
        place_of_id(index, counts),
        "it is empty, and no id is the empty text",
        "give an id of one character or more",
    )


def _too_many(where: str, problem: str, remedy: str = _SPLIT) -> RequestError:
    return RequestError(ErrorCode.TOO_MANY_CHANGES, where, problem, remedy)
