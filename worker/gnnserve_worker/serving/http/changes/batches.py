"""A batch of changes as a client sends it, in JSON or in its binary form: ids, features of each type, labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import TypeManifest
from gnnserve_worker.asking.body_form import decode_body
from gnnserve_worker.asking.changed_features import TypeColumns
from gnnserve_worker.asking.edge_payload import EdgePayloads, PayloadFields
from gnnserve_worker.asking.features import AnyNode, runs_of, write_features
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted
from gnnserve_worker.graph.change_batch import (
    NO_FEATURES,
    NO_TIMES,
    ChangeBatch,
    ChangeCounts,
    decode_batch,
)
from gnnserve_worker.graph.change_ids import BatchFormError
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.batch_ids import AnyRequest, BatchIds
from gnnserve_worker.serving.http.changes.checks import AnyLabel, check_counts, check_labels, read_labels
from gnnserve_worker.serving.http.changes.mistakes import BINARY_REMEDY, place_of_label

_PAYLOAD = PayloadFields("edgeFeatures", "edgeTimes")


@dataclass(frozen=True, slots=True)
class ChangeBatchReader:
    """Batches of graphs that call their nodes alike. Methods raise RequestError."""

    ids: BatchIds

    def read_json(self, body: bytes, revision: ServedRevision) -> ChangeBatch:
        features = revision.changes.features
        columns, width = features.of_types(), features.width()
        request: AnyRequest = decode_body(self.ids.decoder, body, revision, self.ids.form)
        nodes, overrides, labelled = request.nodes, request.overrides, request.labels
        counts = ChangeCounts(
            len(nodes), len(overrides), len(labelled), len(request.edges), len(request.removed_edges),
            len(request.removed_nodes),
        )  # fmt: skip
        check_counts(counts, width)
        named = self.ids.read(request, counts, revision.graph.ids)
        new_types, overridden_types = named.types[: len(nodes)], named.types[len(nodes) :]
        rows, types = np.zeros((counts.rows, width), np.float32), revision.graph.types.types
        _write(nodes, "nodes", new_types, types, columns, rows)
        _write(overrides, "overrides", overridden_types, types, columns, rows[len(nodes) :], are_kept=True)
        labels: list[AnyLabel] = [node.label for node in nodes]
        labels += [node.label for node in labelled]
        _check_labels(labels, new_types, counts, revision)
        has_labels = bool(labelled) or any(label is not None for label in labels)
        encoded = msgspec.json.encode(labels) if has_labels else b""
        return ChangeBatch(counts, named.ids, rows, encoded, *self._read_payload(request, revision))

    def _read_payload(self, request: AnyRequest, revision: ServedRevision) -> tuple[np.ndarray, np.ndarray]:
        """Features and times of new edges, as `ChangeBatch` has them."""
        schema, edges = revision.graph.types, len(request.edges)
        payloads = EdgePayloads(schema.relations, schema.names)
        needed = payloads.takes_any and edges > 0
        if not (needed or request.edge_features or request.edge_times):
            return NO_FEATURES, NO_TIMES
        relations = self.ids.relations(request, revision.graph.ids, schema)
        if len(relations) and relations.min() < 0:
            return NO_FEATURES, NO_TIMES  # the replica refuses such a relation before it looks at payload
        read = payloads.read_lists(request.edge_features, request.edge_times, relations, edges, _PAYLOAD)
        return (read.features if payloads.width else NO_FEATURES), read.times

    def read_binary(self, body: bytes, revision: ServedRevision) -> ChangeBatch:
        features = revision.changes.features
        columns, width = features.of_types(), features.width()
        try:
            batch = decode_batch(body)
        except BatchFormError as error:
            raise RequestError(ErrorCode.INVALID_BINARY, "body", str(error), BINARY_REMEDY) from None
        counts = batch.counts
        check_counts(counts, width)
        types = self.ids.check(batch, revision.graph.ids)
        self._check_width(batch, width)
        _check_features(batch.features, counts, types, columns)
        if batch.labels or counts.labelled:
            _check_labels(read_labels(batch.labels, counts), types[: counts.new_nodes], counts, revision)
        return batch

    def _check_width(self, batch: ChangeBatch, width: int) -> None:
        counts, found = batch.counts, batch.features.shape[1]
        if counts.rows and found != width:
            raise RequestError(
                ErrorCode.WRONG_FEATURES,
                "nodes[0].features" if counts.new_nodes else "overrides[0].features",
                f"{counted(found, 'number')}, where the graph has {width:,} features",
                f"give {width:,} numbers for each node{self.ids.padding}",
            )


def _write(
    nodes: Sequence[AnyNode],
    field: str,
    types: np.ndarray,
    described: Sequence[TypeManifest],
    columns: TypeColumns,
    rows: np.ndarray,
    *,
    are_kept: bool = False,
) -> None:
    """Write a row for each node. `types`: of the nodes, as of `NamedItems`. `are_kept`: columns that are not given stay
    as they are."""
    for kind, begin, end in runs_of(types, len(nodes)):
        own = columns[kind]
        if own is None:
            _refuse_features(nodes[begin:end], field, begin, described[kind].name)
            continue
        written = rows[begin:end, : own.features]
        if are_kept:
            written[:] = np.nan
        write_features(nodes[begin:end], field, own, written, are_kept=are_kept, first=begin)


def _refuse_features(nodes: Sequence[AnyNode], field: str, first: int, name: str) -> None:
    for place, node in enumerate(nodes, first):
        if node.features:
            raise RequestError(
                ErrorCode.WRONG_FEATURES, f"{field}[{place}].features", f"nodes of type {name} have no features",
                "leave them out: a new node begins with the mean of the embeddings of its type",
            )  # fmt: skip


def _check_features(features: np.ndarray, counts: ChangeCounts, types: np.ndarray, columns: TypeColumns) -> None:
    """New nodes have all features, as numbers; NaN of an override keeps what the node has."""
    is_missing = np.isnan(features)
    is_wrong = np.isinf(features)
    is_wrong[: counts.new_nodes] |= is_missing[: counts.new_nodes]
    for kind, begin, end in runs_of(types, counts.rows) if is_missing.any() else ():
        own = columns[kind] if kind >= 0 else None
        for start, stop in _lists_of(own):
            # A column is given or left out as a whole.
            missing = is_missing[begin:end, start:stop]
            is_wrong[begin:end, start:stop] |= missing & ~missing.all(axis=1, keepdims=True)
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


def _lists_of(columns: FeatureColumns | None) -> Iterator[tuple[int, int]]:
    """Where each column of lists begins and ends."""
    start = 0
    for column in () if columns is None else columns.columns:
        if column.width > 1:
            yield start, start + column.width
        start += column.width


def _check_labels(
    labels: Sequence[AnyLabel], types: np.ndarray, counts: ChangeCounts, revision: ServedRevision
) -> None:
    """`types`: of the new nodes, as of `NamedItems`."""
    check_labels(labels, counts, revision)
    known = revision.graph.types
    for place in np.flatnonzero(types > 0).tolist():
        if labels[place] is not None:
            name = known.types[types[place]].name
            problem = f"the node is of type {name}, and only nodes of type {known.target.name} have labels"
            raise RequestError(ErrorCode.UNKNOWN_LABEL, place_of_label(place, counts), problem, "leave it out")
