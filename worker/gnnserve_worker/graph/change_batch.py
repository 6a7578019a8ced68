"""A batch of changes: nodes, edges, features and labels that come to a graph, or leave it, together.

Its binary form is what the log keeps and what clients may send, all little-endian:

    int64 [10]       form, new nodes, overrides, labelled nodes, edges, removed edges, removed nodes, features of a
                     node, bytes of texts, bytes of labels
    ids              form 1: int64 [ids]. Forms 2 and 3: int64 [ids + 1] offsets, then the texts as UTF-8, with zeros up
                     to a multiple of 8 bytes
    float32 [new nodes + overrides, features], with zeros up to a multiple of 8 bytes; NaN: the column stays as it is
    labels           JSON: a list with the label of each new node, then of each labelled node; null: none. Empty: there
                     are no labelled nodes, and no new node has a label

Forms 9, 10 and 11 are forms 1, 2 and 3 of batches whose edges have payload. Two more int64 stand behind the ten:
columns of edge features, and whether edges have times, 0 or 1. More numbers stand behind the features of nodes:

    float32 [edges, columns], with zeros up to a multiple of 8 bytes; a row as wide as the relation with most columns
    int64 [edges] where edges have times

Ids stand in this order: new nodes, overrides, labelled nodes, edges (source, target), removed edges (source, target),
removed nodes. It is also the order in which changes take effect.

Form 3 is of graphs of several types: a text is an id with its type, `paper/17`, and an edge has three texts: source,
name of the relation, target. Rows of features are as wide as those of the type that has most; what is behind a type's
own columns is not read.
"""

from __future__ import annotations

import struct
from enum import StrEnum

import msgspec
import numpy as np

from gnnserve_worker.graph.change_ids import FORMS, BatchFormError, ChangeIds, padding

_HEADER = struct.Struct("<10q")
_PAYLOAD_HEADER = struct.Struct("<2q")
_HAS_PAYLOAD = 8
"""The bit of the form that says that edges have payload."""
_ID_BYTES = 8
_FEATURE_BYTES = 4
MOST_ITEMS = 1 << 20
"""Items of one batch. It is applied in one go, for which predictions wait."""
MOST_FEATURES = 1 << 24
"""Features of a node in a batch."""


NO_FEATURES, NO_TIMES = np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
"""Features and times of the edges of a batch without."""


class ChangeCounts(msgspec.Struct, frozen=True):
    """How many items of each kind a batch has."""

    new_nodes: int = 0
    overrides: int = 0
    labelled: int = 0
    edges: int = 0
    removed_edges: int = 0
    removed_nodes: int = 0

    @property
    def items(self) -> int:
        return self.new_nodes + self.overrides + self.labelled + self.edges + self.removed_edges + self.removed_nodes

    def count_ids(self, per_edge: int) -> int:
        """`per_edge`: as of `ChangeBatch`."""
        return self.items + (per_edge - 1) * (self.edges + self.removed_edges)

    @property
    def rows(self) -> int:
        """Rows of features."""
        return self.new_nodes + self.overrides


class ChangeBatch(msgspec.Struct, frozen=True):
    counts: ChangeCounts
    ids: ChangeIds
    """In the order of the binary form."""
    features: np.ndarray
    """float32 [new nodes + overrides, features], as in the source; NaN: the column stays as it is."""
    labels: bytes = b""
    """JSON, as in the binary form."""
    edge_features: np.ndarray = msgspec.field(default_factory=lambda: NO_FEATURES)
    """float32 [edges, columns of the relation that has most]; [0, 0]: edges have none."""
    edge_times: np.ndarray = msgspec.field(default_factory=lambda: NO_TIMES)
    """int64 [edges]; [0]: edges have none."""

    @property
    def has_payload(self) -> bool:
        """Whether edges have features or times. It decides the binary form."""
        return self.edge_features.shape[1] > 0 or len(self.edge_times) > 0

    @property
    def per_edge(self) -> int:
        """Ids of an edge."""
        return self.ids.form.width


class ChangeProblem(StrEnum):
    """Why a batch is refused, by every worker alike."""

    UNKNOWN_NODE = "UnknownNode"
    STORED_NODE = "StoredNode"
    """A new node has the id of one that is there."""
    REPEATED_NODE = "RepeatedNode"
    INVALID_VALUE = "InvalidValue"
    WRONG_LENGTH = "WrongLength"
    """Rows of features are not as wide as the graph's."""
    MISSING_COLUMN = "MissingColumn"
    """A column is to stay as it is, and the revision does not keep what it is."""
    UNKNOWN_LABEL = "UnknownLabel"
    NO_ROOM = "NoRoom"
    """Changes take as much memory as they may; nothing was wrong with these."""


OF_THIS_WORKER = frozenset({ChangeProblem.NO_ROOM, ChangeProblem.MISSING_COLUMN, ChangeProblem.WRONG_LENGTH})
"""Problems that depend on the revision or the memory of a worker. Others may apply the batch, so that it is not passed
over: the worker stays before it, and says so."""


class ChangeRefusal(msgspec.Struct, frozen=True):
    problem: ChangeProblem
    field: str
    """The place in the JSON form: `edges[3][0]`."""
    message: str
    remedy: str


class BatchEffect(msgspec.Struct, frozen=True):
    unchanged: int
    """Edges that changed nothing: they were there, or were not."""


def encode_batch(batch: ChangeBatch) -> bytes:
    """The binary form. ValueError: its parts do not fit its counts."""
    counts, ids, features = batch.counts, batch.ids, batch.features
    expected = counts.count_ids(batch.per_edge)
    if len(ids) != expected or len(features) != counts.rows:
        raise ValueError(f"{len(ids)} ids and {len(features)} rows, expected {expected} and {counts.rows}")
    columns, has_times = batch.edge_features.shape[1], len(batch.edge_times) > 0
    if (columns and len(batch.edge_features) != counts.edges) or (has_times and len(batch.edge_times) != counts.edges):
        raise ValueError(
            f"{len(batch.edge_features)} rows of edge features and {len(batch.edge_times)} times of edges, expected "
            f"{counts.edges}"
        )
    form = ids.form.number
    form_number = form | _HAS_PAYLOAD if batch.has_payload else form
    numbers = (*msgspec.structs.astuple(counts), features.shape[1], ids.text_bytes, len(batch.labels))
    parts = [_HEADER.pack(form_number, *numbers)]
    if batch.has_payload:
        parts.append(_PAYLOAD_HEADER.pack(columns, has_times))
    parts += ids.write()
    rows = np.ascontiguousarray(features, "<f4").tobytes()
    parts += [rows, padding(len(rows))]
    if batch.has_payload:
        rows = np.ascontiguousarray(batch.edge_features, "<f4").tobytes()
        parts += [rows, padding(len(rows)), np.ascontiguousarray(batch.edge_times, "<i8").tobytes()]
    return b"".join([*parts, batch.labels])


def decode_batch(body: bytes) -> ChangeBatch:
    """Arrays are views of the body. Raises BatchFormError; texts and labels are not read, but for where they end."""
    if len(body) < _HEADER.size:
        raise BatchFormError(f"{len(body):,} bytes are less than the {_HEADER.size} of its counts")
    number, *numbers, features, text_bytes, label_bytes = _HEADER.unpack_from(body)
    form_number = number
    if number & _HAS_PAYLOAD and number > 0:
        number ^= _HAS_PAYLOAD
    form = FORMS.get(number)
    if form is None:
        raise BatchFormError(
            f"form {form_number} is neither 1, with integers as ids, nor 2, with texts, nor 3, with types, nor one of "
            f"these and 8, whose edges have features or times"
        )
    columns, has_times, header_bytes = 0, 0, _HEADER.size
    if number != form_number:
        header_bytes += _PAYLOAD_HEADER.size
        if len(body) < header_bytes:
            raise BatchFormError(f"{len(body):,} bytes are less than the {header_bytes} of its counts")
        columns, has_times = _PAYLOAD_HEADER.unpack_from(body, _HEADER.size)
        if not 0 <= columns <= MOST_FEATURES or has_times not in (0, 1) or not columns + has_times:
            raise BatchFormError(
                f"{columns} edge features and {has_times} for times: form {form_number} has 0 to {MOST_FEATURES:,} "
                f"edge features, and 0 or 1 for times, not both 0"
            )
    if min(*numbers, features, text_bytes, label_bytes) < 0:
        raise BatchFormError(f"a count of {', '.join(map(str, numbers))} is below 0")
    counts = ChangeCounts(*numbers)
    if features > MOST_FEATURES:
        raise BatchFormError(f"{features:,} features of a node, more than {MOST_FEATURES:,}")
    if counts.items > MOST_ITEMS:
        raise BatchFormError(f"{counts.items:,} changes, more than the {MOST_ITEMS:,} of one batch")
    ids = counts.count_ids(form.width)
    id_bytes = form.count_bytes(ids)
    row_bytes = _FEATURE_BYTES * counts.rows * features
    edge_row_bytes, time_bytes = _FEATURE_BYTES * counts.edges * columns, _ID_BYTES * counts.edges * has_times
    starts = [header_bytes]
    starts.append(starts[-1] + id_bytes)
    starts.append(starts[-1] + text_bytes + len(padding(text_bytes)))
    starts.append(starts[-1] + row_bytes + len(padding(row_bytes)))
    starts.append(starts[-1] + edge_row_bytes + len(padding(edge_row_bytes)))
    starts.append(starts[-1] + time_bytes)
    expected = starts[-1] + label_bytes
    if len(body) != expected:
        of_edges = (
            f"{edge_row_bytes:,} of edge features, {time_bytes:,} of edge times, " if number != form_number else ""
        )
        raise BatchFormError(
            f"{len(body):,} bytes, where its counts make {expected:,}: {header_bytes} of counts, {id_bytes:,} of ids, "
            f"{text_bytes:,} of texts, {row_bytes:,} of features, {of_edges}{label_bytes:,} of labels"
        )
    rows = np.frombuffer(body, "<f4", counts.rows * features, starts[2]).reshape(counts.rows, features)
    batch = ChangeBatch(counts, form.read(body, ids, starts, text_bytes), rows, body[starts[5] :])
    if number == form_number:
        return batch
    edge_rows = np.frombuffer(body, "<f4", counts.edges * columns, starts[3]).reshape(-1 if columns else 0, columns)
    times = np.frombuffer(body, "<i8", counts.edges * has_times, starts[4])
    return msgspec.structs.replace(batch, edge_features=edge_rows, edge_times=times)
