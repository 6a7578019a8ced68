"""The binary form of requests with an overlay: counts, then ids, then features, all little-endian.

    int64 [4]        nodes asked for, new nodes, edges, overrides
    int64 [nodes]    nodes asked for
    int64 [edges, 2] source and target of each edge
    int64 [overrides]
    int64 [edges]    time of each edge, where edges of the graph have one
    float32 [new nodes + overrides, features]
    float32 [edges, features of an edge], where edges of the graph have any

-1 - k is the k-th new node, whatever the graph's ids are, so that a client need not know how many nodes the graph has.
Everything else is as in the binary form without an overlay.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorDetail
from gnnserve_worker.asking.edge_payload import EdgePayloads
from gnnserve_worker.asking.overlay import (
    NUMBER_BYTES,
    PAYLOAD,
    Brought,
    OverlaySupport,
    check_edge_bytes,
    check_finite,
    check_sizes,
)
from gnnserve_worker.asking.overlay_ids import new_node, place_of, repeated
from gnnserve_worker.asking.question import PREDICT_PATH, Question, counted
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import ALL_OF_FIRST, Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.binary import (
    ID_BYTES,
    BinaryCodec,
    binary_error,
    check_integer_ids,
    read_outputs,
)
from gnnserve_worker.serving.http.codecs.json import encode_json_error
from gnnserve_worker.serving.requests import Answer, Ask, Encoded

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
        arrange = partial(_arrange, body, revision, max_nodes, limits)
        return Ask(revision.task, (), read_outputs(query, revision), arrange=arrange)

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> Encoded:
        return _PLAIN.encode_answer(answer, question, revision, is_in_time, in_pieces=in_pieces)

    def encode_error(self, detail: ErrorDetail) -> Encoded:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        if revision is not None and not revision.compute.overlays.takes_arrays:
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
    body: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits
) -> tuple[Overlay, np.ndarray]:
    support = revision.compute.overlays.support(limits)
    brought = read_arrays(body, revision, support, max_nodes, limits)
    return support.arrange(
        brought.features, brought.overridden, brought.edges, brought.seeds, ALL_OF_FIRST, ALL_OF_FIRST, brought.payload
    )


def read_arrays(
    body: bytes, revision: ServedRevision, support: OverlaySupport, max_nodes: int, limits: OverlayLimits
) -> Brought:
    columns, payloads = support.columns, support.payloads
    if len(body) < COUNTS.size:
        raise binary_error(
            f"{len(body):,} bytes are less than the {COUNTS.size} of its counts",
            "begin with the numbers of nodes, new nodes, edges and overrides: int64, little-endian",
        )
    asked, new, edges, overrides = counts = COUNTS.unpack_from(body)
    if min(counts) < 0:
        raise binary_error(f"the counts {', '.join(map(str, counts))} are not all from 0", "send int64, little-endian")
    ids, rows = asked + 2 * edges + overrides, new + overrides
    times, edge_numbers = edges * payloads.has_times, edges * payloads.width
    start = COUNTS.size + ID_BYTES * (ids + times)
    behind = start + NUMBER_BYTES * rows * columns.features
    expected = behind + NUMBER_BYTES * edge_numbers
    if start <= len(body):  # otherwise it may be something else altogether, and its counts mean nothing
        revision.task.check_count(asked, max_nodes)
        check_sizes(new, overrides, edges, columns.features, limits)
        check_edge_bytes(edges, payloads.width)
    if len(body) != expected:
        raise binary_error(
            f"{len(body):,} bytes, where its counts make {expected:,}: {COUNTS.size} of counts, {ID_BYTES} of each of "
            f"{ids:,} ids, {NUMBER_BYTES} of each of {columns.features:,} features of {rows:,} nodes"
            + _payload_in_words(payloads, edges),
            "send int64 and float32, little-endian",
        )
    # A copy, which the request keeps; read-only arrays would compile kernels a second time.
    kept = bytearray(body)
    numbers = np.frombuffer(kept, "<i8", ids, COUNTS.size)
    features = np.frombuffer(kept, "<f4", rows * columns.features, start)
    if sys.byteorder == "big":
        numbers, features = numbers.astype(np.int64), features.astype(np.float32)
    ends = asked + 2 * edges
    if revision.graph.naming.number_array(numbers, features, new, ends):
        positions = numbers
    else:
        positions = _find_positions(numbers, features, new, asked, ends, columns, revision)
    payload = None
    if payloads.takes_any:
        own_times = np.frombuffer(kept, "<i8", times, COUNTS.size + ID_BYTES * ids)
        own_features = np.frombuffer(kept, "<f4", edge_numbers, behind)
        payload = payloads.read_arrays(own_features, own_times, edges, PAYLOAD)
    return Brought(
        positions[:asked],
        features.reshape(rows, columns.features),
        positions[ends:],
        positions[asked:ends].reshape(-1, 2),
        payload,
    )


def _payload_in_words(payloads: EdgePayloads, edges: int) -> str:
    """For people; empty: edges have no payload."""
    times = f", {ID_BYTES} of the time of each of {counted(edges, 'edge')}" if payloads.has_times else ""
    if not payloads.width:
        return times
    return f"{times}, {NUMBER_BYTES} of each of {counted(payloads.width, 'feature')} of {counted(edges, 'edge')}"


def _find_positions(
    numbers: np.ndarray,
    features: np.ndarray,
    new: int,
    asked: int,
    ends: int,
    columns: FeatureColumns,
    revision: ServedRevision,
) -> np.ndarray:
    """Positions of ids of any kind. Raises RequestError where anything is wrong."""
    if len(features):
        check_finite(features.reshape(-1, columns.features), new)
    positions = revision.graph.naming.place_array(numbers, new)
    _check_positions(positions, numbers, new, asked, ends, revision)
    return positions


def _check_positions(
    positions: np.ndarray, numbers: np.ndarray, new: int, asked: int, ends: int, revision: ServedRevision
) -> None:
    if np.minimum.reduce(positions) < 0:
        first = int(positions.argmin())
        brought = f"-1 to -{new} are the new nodes" if new > 1 else "-1 is the new node" if new else "none is new"
        where, shown = place_of(first, asked, ends), str(numbers[first])
        raise revision.graph.naming.unknown(where, shown, f"of this request {brought}")
    overridden = positions[ends:].tolist()
    if not overridden:
        return
    if max(overridden) >= revision.graph.nodes:
        first = next(i for i, position in enumerate(overridden) if position >= revision.graph.nodes)
        raise new_node(place_of(ends + first, asked, ends), str(numbers[ends + first]))
    if len(set(overridden)) < len(overridden):
        raise repeated(numbers[ends:].tolist(), "overlay.overrides")
