"""A batch of changes of a graph whose nodes have one type, as a client sends it: ids without a type, edges as pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.changes import ChangesRequest
from gnnserve_worker.asking.features import write_features
from gnnserve_worker.asking.naming import POSSIBLE_IDS
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, shown_value
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
    empty_id,
    read_labels,
)
from gnnserve_worker.serving.http.changes.mistakes import BINARY_REMEDY, CHANGES, place_of_id


@dataclass(frozen=True, slots=True)
class PlainBatches:
    """`reading.py: BatchForm`"""

    decoder: msgspec.json.Decoder[Any]
    request: Any = ChangesRequest

    def example(self, revision: ServedRevision) -> Any:
        ids = revision.graph.naming.shown(0, 2)
        return {"edges": [[ids[0], ids[-1]]]}

    def read_json(self, body: bytes, revision: ServedRevision) -> ChangeBatch:
        columns = columns_of(revision)
        request: ChangesRequest[Any] = decode_json(body, self.decoder, revision, CHANGES)
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
        laid_out = _lay_out(ids, counts, are_texts=revision.graph.naming.are_texts)
        return ChangeBatch(counts, laid_out, features, msgspec.json.encode(labels) if has_labels else b"")

    def read_binary(self, body: bytes, revision: ServedRevision) -> ChangeBatch:
        columns = columns_of(revision)
        try:
            batch = decode_batch(body)
        except BatchFormError as error:
            raise RequestError(ErrorCode.INVALID_BINARY, "body", str(error), BINARY_REMEDY) from None
        counts = batch.counts
        check_counts(counts, columns.features)
        if batch.is_typed or (batch.ids.integers is None) is not revision.graph.naming.are_texts:
            kind, form = ("texts", 2) if revision.graph.naming.are_texts else ("integers", 1)
            raise RequestError(
                ErrorCode.INVALID_BINARY, "body", f"node ids of this graph are {kind}", f"send form {form} of a batch"
            )
        if batch.ids.texts is not None and batch.ids.offsets is not None:
            check_texts(batch.ids.texts, batch.ids.offsets, counts)
        _check_features(batch.features, counts, columns)
        if batch.labels or counts.labelled:
            check_labels(read_labels(batch.labels, counts), counts, revision)
        return batch


def columns_of(revision: ServedRevision) -> FeatureColumns:
    """Columns of features, as in the source. Raises RequestError where the revision does not tell them."""
    columns = revision.changes.features.columns_of_type("")
    assert columns is not None  # noqa: S101  (of nodes without a type)
    return columns


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
