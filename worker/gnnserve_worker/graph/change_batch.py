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
from collections.abc import Sequence
from enum import IntEnum, StrEnum

import msgspec
import numpy as np

_HEADER = struct.Struct("<10q")
_PAYLOAD_HEADER = struct.Struct("<2q")
_HAS_PAYLOAD = 8
"""The bit of the form that says that edges have payload."""
_UNIT = 8
_ID_BYTES = 8
_FEATURE_BYTES = 4
MOST_ITEMS = 1 << 20
"""Items of one batch. It is applied in one go, for which predictions wait."""
MOST_FEATURES = 1 << 24
"""Features of a node in a batch."""


NO_FEATURES, NO_TIMES = np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
"""Features and times of the edges of a batch without."""


class BatchFormError(ValueError):
    """These bytes are no batch of changes; the message says where they are wrong."""


class _Form(IntEnum):
    INTEGERS = 1
    TEXTS = 2
    TYPED = 3


_FORMS = frozenset(_Form)


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


class ChangeIds(msgspec.Struct, frozen=True):
    """Ids as the graph's source has them, in the order of the binary form."""

    integers: np.ndarray | None
    """int64 [ids]; None: they are texts."""
    texts: np.ndarray | None = None
    """UTF-8, uint8 [bytes]."""
    offsets: np.ndarray | None = None
    """Where each text begins and ends, int64 [ids + 1]."""

    def __len__(self) -> int:
        if self.integers is not None:
            return len(self.integers)
        return 0 if self.offsets is None else len(self.offsets) - 1


class ChangeBatch(msgspec.Struct, frozen=True):
    counts: ChangeCounts
    ids: ChangeIds
    features: np.ndarray
    """float32 [new nodes + overrides, features], as in the source; NaN: the column stays as it is."""
    labels: bytes = b""
    """JSON, as in the binary form."""
    is_typed: bool = False
    """Whether ids are texts with their types (form 3)."""
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
        """Ids of an edge: its ends, and between them its relation where there are several."""
        return 3 if self.is_typed else 2


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


class Applied(msgspec.Struct, frozen=True):
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
    texts = _Form.TYPED if batch.is_typed else _Form.TEXTS
    form = _Form.INTEGERS if ids.integers is not None else texts
    form_number = form | _HAS_PAYLOAD if batch.has_payload else int(form)
    text_bytes = 0 if ids.texts is None else len(ids.texts)
    numbers = (*msgspec.structs.astuple(counts), features.shape[1], text_bytes, len(batch.labels))
    parts = [_HEADER.pack(form_number, *numbers)]
    if batch.has_payload:
        parts.append(_PAYLOAD_HEADER.pack(columns, has_times))
    if ids.integers is not None:
        parts.append(np.ascontiguousarray(ids.integers, "<i8").tobytes())
    elif ids.offsets is not None and ids.texts is not None:
        parts += [np.ascontiguousarray(ids.offsets, "<i8").tobytes(), ids.texts.tobytes(), _padding(text_bytes)]
    rows = np.ascontiguousarray(features, "<f4").tobytes()
    parts += [rows, _padding(len(rows))]
    if batch.has_payload:
        rows = np.ascontiguousarray(batch.edge_features, "<f4").tobytes()
        parts += [rows, _padding(len(rows)), np.ascontiguousarray(batch.edge_times, "<i8").tobytes()]
    return b"".join([*parts, batch.labels])


def decode_batch(body: bytes) -> ChangeBatch:
    """Arrays are views of the body. Raises BatchFormError; texts and labels are not read, but for where they end."""
    if len(body) < _HEADER.size:
        raise BatchFormError(f"{len(body):,} bytes are less than the {_HEADER.size} of its counts")
    form, *numbers, features, text_bytes, label_bytes = _HEADER.unpack_from(body)
    if (form_number := form) & _HAS_PAYLOAD and form > 0:
        form ^= _HAS_PAYLOAD
    if form not in _FORMS:
        raise BatchFormError(
            f"form {form_number} is neither 1, with integers as ids, nor 2, with texts, nor 3, with types, nor one of "
            f"these and 8, whose edges have features or times"
        )
    columns, has_times, header_bytes = 0, 0, _HEADER.size
    if form != form_number:
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
    is_typed = form == _Form.TYPED
    ids = counts.count_ids(3 if is_typed else 2)
    id_bytes = _ID_BYTES * (ids + (form != _Form.INTEGERS))
    row_bytes = _FEATURE_BYTES * counts.rows * features
    edge_row_bytes, time_bytes = _FEATURE_BYTES * counts.edges * columns, _ID_BYTES * counts.edges * has_times
    starts = [header_bytes]
    starts.append(starts[-1] + id_bytes)
    starts.append(starts[-1] + text_bytes + len(_padding(text_bytes)))
    starts.append(starts[-1] + row_bytes + len(_padding(row_bytes)))
    starts.append(starts[-1] + edge_row_bytes + len(_padding(edge_row_bytes)))
    starts.append(starts[-1] + time_bytes)
    expected = starts[-1] + label_bytes
    if len(body) != expected or (form == _Form.INTEGERS and text_bytes):
        of_edges = f"{edge_row_bytes:,} of edge features, {time_bytes:,} of edge times, " if form != form_number else ""
        raise BatchFormError(
            f"{len(body):,} bytes, where its counts make {expected:,}: {header_bytes} of counts, {id_bytes:,} of ids, "
            f"{text_bytes:,} of texts, {row_bytes:,} of features, {of_edges}{label_bytes:,} of labels"
        )
    rows = np.frombuffer(body, "<f4", counts.rows * features, starts[2]).reshape(counts.rows, features)
    found = _read_ids(body, form, ids, starts, text_bytes)
    batch = ChangeBatch(counts, found, rows, body[starts[5] :], is_typed)
    if form == form_number:
        return batch
    edge_rows = np.frombuffer(body, "<f4", counts.edges * columns, starts[3]).reshape(-1 if columns else 0, columns)
    times = np.frombuffer(body, "<i8", counts.edges * has_times, starts[4])
    return msgspec.structs.replace(batch, edge_features=edge_rows, edge_times=times)


def _read_ids(body: bytes, form: int, count: int, starts: Sequence[int], text_bytes: int) -> ChangeIds:
    if form == _Form.INTEGERS:
        return ChangeIds(np.frombuffer(body, "<i8", count, starts[0]))
    offsets = np.frombuffer(body, "<i8", count + 1, starts[0])
    if offsets[0] != 0 or offsets[-1] != text_bytes or (offsets[1:] < offsets[:-1]).any():
        raise BatchFormError(f"offsets of texts do not ascend from 0 to {text_bytes:,}")
    return ChangeIds(None, np.frombuffer(body, np.uint8, text_bytes, starts[1]), offsets)


def _padding(length: int) -> bytes:
    return bytes(-length % _UNIT)
