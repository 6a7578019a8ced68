"""The binary form of requests with an overlay: counts, then ids, then features, all little-endian.

    int64 [4]        nodes asked for, new nodes, edges, overrides
    int64, JSON      length of the JSON, and types and relations of what follows, where the graph has several types
    int64 [nodes]    nodes asked for
    int64 [edges, 2] source and target of each edge
    int64 [overrides]
    int64 [edges]    time of each edge, where edges of the graph have one
    float32 [new nodes + overrides, features]
    float32 [edges, features of an edge], where edges of the graph have any

-1 - k is the k-th new node, whatever the graph's ids are, so that a client need not know how many nodes the graph has.
Where the graph has several types, arrays have one part of each type or relation (`asking/overlay_parts.py`), with
columns of its own, an id is of the type of its part, and new nodes are counted within their type. Everything else is as
in the binary form without an overlay.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gnnserve_api.http.protocol import ErrorDetail
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.overlay_arrays import NumberArrays
from gnnserve_worker.asking.overlay_checks import NUMBER_BYTES
from gnnserve_worker.asking.overlay_ids import NumberedIds
from gnnserve_worker.asking.overlay_parts import LENGTH_BYTES, MOST_PARTS_BYTES, Counts, no_parts
from gnnserve_worker.asking.question import PREDICT_PATH, RequestError, counted
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.binary import (
    ID_BYTES,
    BinaryCodec,
    binary_error,
    check_integer_ids,
    read_outputs,
)
from gnnserve_worker.serving.http.codecs.json import encode_json_error
from gnnserve_worker.serving.requests import Answer, Ask, EncodedAnswer, Question
from gnnserve_worker.tasks.served import TaskItems

COUNTS = struct.Struct("<4q")


class BinaryOverlayCodec:
    model = None
    is_for_canary = True
    tells_times = True
    path = PREDICT_PATH
    content_type = "application/vnd.gnnserve.overlay"

    def check_query(self, query: bytes) -> None:
        """The query names the output; it is read with the body, when the served graph is known."""

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        return max(1, min(COUNTS.unpack_from(body)[0], len(body) // ID_BYTES)) if len(body) >= COUNTS.size else 1

    def may_choose(self, body: bytes) -> bool:
        return False

    def may_have_seed(self, body: bytes) -> bool:
        return False

    def may_have_overlay(self, body: bytes) -> bool:
        return not _brings_nothing(body)

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        check_integer_ids(revision)
        if _brings_nothing(body):
            return _PLAIN.decode(body[COUNTS.size :], query, revision, max_nodes, limits)
        outputs = read_outputs(query, revision)
        items = revision.task.items_for(outputs)
        return Ask(items, (), outputs, arrange=partial(_arrange, body, items, revision, max_nodes, limits))

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        return _PLAIN.encode_answer(answer, question, revision, is_in_time, in_pieces=in_pieces)

    def encode_error(self, detail: ErrorDetail) -> EncodedAnswer:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        if revision is not None and not revision.compute.overlays.array_form.are_taken:
            return None
        return _PLAIN.describe_request(revision, example)

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        """None: answers are those of the binary form, with its media type."""
        return None


_PLAIN = BinaryCodec()
_NOTHING = bytes(COUNTS.size - ID_BYTES)
"""Counts of a body without new nodes, edges and overrides."""


def _brings_nothing(body: bytes) -> bool:
    """Whether it is an ordinary request behind its counts, as one in JSON whose overlay is empty."""
    is_empty = body[ID_BYTES : COUNTS.size] == _NOTHING
    return is_empty and len(body) == COUNTS.size + ID_BYTES * COUNTS.unpack_from(body)[0]


def _arrange(
    body: bytes, items: TaskItems, revision: ServedRevision, max_nodes: int, limits: OverlayLimits
) -> tuple[Overlay, np.ndarray]:
    overlays = revision.compute.overlays.arrays(limits)
    counts = _read_counts(body)
    text, start = _read_parts(body) if overlays.form.names_types else (b"", COUNTS.size)
    if start + ID_BYTES * counts.ids <= len(body):  # otherwise it may be something else, and its counts mean nothing
        items.check_count(counts.asked, max_nodes)
        overlays.check(counts, limits)
    parts = overlays.read_parts(text, counts)
    features = overlays.features_in(parts)
    edge_features, times = overlays.payload_in(parts)
    at_features = start + ID_BYTES * (counts.ids + times)
    at_edges = at_features + NUMBER_BYTES * features
    if len(body) != at_edges + NUMBER_BYTES * edge_features:
        raise _wrong_length(len(body), start, counts, features, edge_features, times)
    # A copy, which the request keeps; read-only arrays would compile kernels a second time.
    kept = bytearray(body)
    numbers = np.frombuffer(kept, "<i8", counts.ids + times, start)
    rows = np.frombuffer(kept, "<f4", features + edge_features, at_features)
    if sys.byteorder == "big":
        numbers, rows = numbers.astype(np.int64), rows.astype(np.float32)
    ids = NumberedIds(numbers[: counts.ids], counts, parts)
    return overlays.arrange_numbers(ids, NumberArrays(rows[:features], rows[features:], numbers[counts.ids :]))


def _read_counts(body: bytes) -> Counts:
    if len(body) < COUNTS.size:
        raise binary_error(
            f"{len(body):,} bytes are less than the {COUNTS.size} of its counts",
            "begin with the numbers of nodes, new nodes, edges and overrides: int64, little-endian",
        )
    counts = COUNTS.unpack_from(body)
    if min(counts) < 0:
        raise binary_error(f"the counts {', '.join(map(str, counts))} are not all from 0", "send int64, little-endian")
    return Counts(*counts)


def _read_parts(body: bytes) -> tuple[bytes, int]:
    """What a body says of its parts, and where its arrays begin."""
    begin = COUNTS.size + LENGTH_BYTES
    length = int.from_bytes(body[COUNTS.size : begin], "little", signed=True) if len(body) >= begin else 0
    if not 0 < length <= min(MOST_PARTS_BYTES, len(body) - begin) or length % LENGTH_BYTES:
        raise no_parts(f"{length:,} is no length of it, a multiple of {LENGTH_BYTES} up to {MOST_PARTS_BYTES:,}")
    return body[begin : begin + length], begin + length


def _wrong_length(
    length: int, start: int, counts: Counts, features: int, edge_features: int, times: int
) -> RequestError:
    """`length`: of the body. `start`: where its arrays begin."""
    expected = start + ID_BYTES * (counts.ids + times) + NUMBER_BYTES * (features + edge_features)
    first = "counts and parts" if start > COUNTS.size else "counts"
    payload = f", {ID_BYTES} of the time of each of {counted(times, 'edge')}" if times else ""
    if edge_features:
        payload += f", {NUMBER_BYTES} of each of {counted(edge_features, 'feature')} of edges"
    return binary_error(
        f"{length:,} bytes, where its counts make {expected:,}: {start:,} of {first}, {ID_BYTES} of each of "
        f"{counts.ids:,} ids, {NUMBER_BYTES} of each of {counted(features, 'feature')} of nodes{payload}",
        "send int64 and float32, little-endian",
    )
