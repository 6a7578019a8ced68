"""Checks of a batch of changes that are the same for graphs of one type and of several, in JSON and in binary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_api import decoding
from gnnserve_api.http.protocol import Label
from gnnserve_worker.asking.body_form import UNREADABLE
from gnnserve_worker.asking.overlay_checks import MOST_FEATURE_BYTES, NUMBER_BYTES
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, shown_value
from gnnserve_worker.graph.change_batch import MOST_ITEMS, ChangeCounts
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.changes.mistakes import BINARY_REMEDY, place_of_id, place_of_label

AnyLabel = Label | list[Label] | None
_labels_decoder = decoding.decoder(list[AnyLabel])
MOST_ID_BYTES = 1024
"""UTF-8 of the id of a new node."""
SPLIT = "split the batch"


def check_texts(texts: np.ndarray, offsets: np.ndarray, counts: ChangeCounts, per_edge: int = 2) -> None:
    if not np.diff(offsets).all():
        raise empty_id(int(np.diff(offsets).argmin()), counts, per_edge)
    check_lengths(offsets, counts)
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
    where = place_of_id(first, counts, per_edge)
    raise RequestError(ErrorCode.INVALID_BINARY, where, "the text is not UTF-8", "send UTF-8")


def read_labels(labels: bytes, counts: ChangeCounts) -> list[AnyLabel]:
    try:
        found = _labels_decoder.decode(labels)
    except UNREADABLE as error:
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


def check_counts(counts: ChangeCounts, width: int) -> None:
    """`width`: features of a row."""
    if not counts.items:
        raise RequestError(
            ErrorCode.EMPTY_CHANGES, "body", "it has no changes", "send at least one, such as a new edge under `edges`"
        )
    if counts.items > MOST_ITEMS:
        raise too_many("body", f"{counts.items:,} changes, more than the {MOST_ITEMS:,} of one batch")
    size = counts.rows * width * NUMBER_BYTES
    if size > MOST_FEATURE_BYTES:
        raise too_many(
            "nodes" if counts.new_nodes else "overrides",
            f"{counts.rows:,} nodes with {width:,} features each take {size:,} bytes, more than the "
            f"{MOST_FEATURE_BYTES:,} that one batch may have",
        )


def check_labels(labels: Sequence[AnyLabel], counts: ChangeCounts, revision: ServedRevision) -> None:
    """Labels are the graph's own, a list where nodes may have several."""
    known = frozenset(revision.task.classes)
    for index, label in enumerate(labels):
        if label is None:
            continue
        if isinstance(label, list) is not revision.task.multi_label:
            problem = (
                f"{shown_value(label)} is no list, and nodes of this graph have lists of labels"
                if revision.task.multi_label
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


def check_lengths(offsets: np.ndarray, counts: ChangeCounts) -> None:
    """Ids of new nodes stay in memory."""
    lengths = np.diff(offsets[: counts.new_nodes + 1])
    if len(lengths) and (longest := int(lengths.max())) > MOST_ID_BYTES:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            place_of_id(int(lengths.argmax()), counts),
            f"it has {longest:,} bytes, more than the {MOST_ID_BYTES:,} that the id of a new node may have",
            "give a shorter one",
        )


def empty_id(index: int, counts: ChangeCounts, per_edge: int = 2) -> RequestError:
    return RequestError(
        ErrorCode.INVALID_VALUE,
        place_of_id(index, counts, per_edge),
        "it is empty, and no id is the empty text",
        "give an id of one character or more",
    )


def too_many(where: str, problem: str, remedy: str = SPLIT) -> RequestError:
    return RequestError(ErrorCode.TOO_MANY_CHANGES, where, problem, remedy)
