"""The binary form of `POST /v1/predict`, for clients that have arrays: int64 node ids in, one array out.

Bytes are read and written where they lie, little-endian. What JSON says beside the numbers stands in the head: the
query names the output, headers carry the rest. Errors are JSON in either form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from gnnserve_api.changes import OFFSET_HEADER
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorDetail
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.codecs.json import encode_json_error
from gnnserve_worker.serving.http.node_ids import find_integers
from gnnserve_worker.serving.http.pairs import (
    PAIR_OUTPUTS,
    PairForm,
    check_pair_count,
    distinct_ends,
    example_of,
    outputs_of,
    told_of_pairs,
)
from gnnserve_worker.serving.http.question import (
    PREDICT_PATH,
    ErrorCode,
    Question,
    RequestError,
    check_node_count,
    check_outputs,
    check_variant,
    require_offset,
    shown_value,
)
from gnnserve_worker.serving.http.wishes import HEADERS_REMEDY, OFFSET_WISH_HEADER, VARIANT_HEADER, Wishes
from gnnserve_worker.serving.requests import Answer

OUTPUTS = ("scores", "embeddings", "labels")
ID_BYTES = 8
_SCORES = ("scores",)


class BinaryCodec:
    model = None
    is_for_canary = True
    tells_times = True
    path = PREDICT_PATH
    content_type = "application/octet-stream"

    def check_query(self, query: bytes) -> None:
        """The query names the output; it is read with the body, when the served graph is known."""

    def estimate_seeds(self, body: bytes, *, are_texts: bool) -> int:
        return len(body) // ID_BYTES

    def may_choose(self, body: bytes) -> bool:
        return False

    def may_have_seed(self, body: bytes) -> bool:
        return False

    def may_have_overlay(self, body: bytes) -> bool:
        return False

    def parse_question(
        self,
        body: bytes,
        query: bytes,
        wishes: Wishes,
        revision: ServedRevision,
        max_nodes: int,
        limits: OverlayLimits,
    ) -> Question:
        check_integer_ids(revision)
        outputs = read_outputs(query, revision)
        check_offset(wishes, revision)
        if len(body) % ID_BYTES:
            raise binary_error(
                f"{len(body):,} bytes are no whole number of node ids, which have {ID_BYTES} bytes each",
                "send int64, little-endian",
            )
        check_asked_count(len(body) // ID_BYTES, max_nodes, revision)
        nodes = np.frombuffer(body, "<i8")
        if sys.byteorder == "big":
            nodes = nodes.astype(np.int64)
        variant = read_variant(wishes, outputs, revision, brings_overlay=False)
        if revision.links is None:
            positions, form = find_integers(nodes, revision), None
        else:
            with told_of_pairs():
                positions = find_integers(nodes, revision)
            positions, form = distinct_ends(positions, revision)
        return Question(
            positions,
            wishes.objective,
            wishes.strict,
            outputs,
            None,
            wishes.seed,
            variant,
            form,
            wishes.timeout_ms,
            wishes.priority,
        )

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        *,
        in_pieces: bool,
    ) -> Encoded:
        """Never in pieces: the array is sent from where it lies."""
        output = question.outputs[0]
        if isinstance(question.form, PairForm):
            array = outputs_of(answer, question.form, question.outputs, revision)[output].astype("<f4", copy=False)
        else:
            array = _array_of(answer, output, revision)
        head = (
            f"content-type: {self.content_type}\r\n"
            f"gnnserve-variant: {answer.variant}\r\n"
            f"gnnserve-revision: {revision.manifest.revision}\r\n"
            f"gnnserve-objective-met: {'true' if objective_met() else 'false'}\r\n"
            f"gnnserve-shape: {','.join(map(str, array.shape))}\r\n"
        )
        if answer.offset is not None:
            head += f"{OFFSET_HEADER}: {answer.offset}\r\n"
        return Encoded(head.encode(), array.data.cast("B"))

    def encode_error(self, detail: ErrorDetail) -> Encoded:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        if revision is not None and revision.has_text_ids:
            return None
        return {"schema": {"type": "string", "format": "binary"}}

    describe_answer = describe_request


def check_integer_ids(revision: ServedRevision) -> None:
    if revision.has_text_ids:
        raise RequestError(
            ErrorCode.NO_BINARY_NODES,
            "body",
            "the node ids of this graph are texts, and lists of them are no array",
            f"send JSON, such as {_example(revision)}",
        )


def _example(revision: ServedRevision) -> str:
    if revision.links is not None:
        return example_of(revision)
    return f'{{"nodes": [{shown_value(revision.shown_ids(0, 1)[0])}]}}'


def check_asked_count(asked: int, max_nodes: int, revision: ServedRevision) -> None:
    """`asked`: ids of nodes, or of the ends of pairs."""
    if revision.links is None:
        check_node_count(asked, max_nodes)
        return
    if asked % 2:
        raise binary_error(
            f"{asked:,} node ids are no whole number of pairs", "send int64 [pairs, 2], first and second node of each"
        )
    check_pair_count(asked // 2, max_nodes)


def check_offset(wishes: Wishes, revision: ServedRevision) -> None:
    """Raises BehindError where the graph does not have the offset yet that the head asks for."""
    if wishes.min_offset is not None:
        require_offset(
            wishes.min_offset, wishes.objective, wishes.timeout_ms, revision, OFFSET_WISH_HEADER.decode()
        )  # fmt: skip


def read_variant(
    wishes: Wishes, outputs: tuple[str, ...], revision: ServedRevision, *, brings_overlay: bool
) -> str | None:
    """The variant that the head names, which can answer; None: it names none."""
    if wishes.variant is None:
        return None
    return check_variant(wishes.variant, outputs, brings_overlay, revision, VARIANT_HEADER.decode())


def binary_error(problem: str, remedy: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_BINARY, "body", problem, remedy)


def read_outputs(query: bytes, revision: ServedRevision) -> tuple[str, ...]:
    """The one output that the query names; scores where there is no query."""
    if not query or query == b"return=scores":
        return _SCORES
    outputs = []
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != "return":
            raise RequestError(
                ErrorCode.UNKNOWN_FIELD, name[:60], "there is no such field", f"known is return; {HEADERS_REMEDY}"
            )
        outputs.append(value)
    possible = OUTPUTS if revision.links is None else PAIR_OUTPUTS
    if len(outputs) != 1 or outputs[0] not in possible:
        shown = "&".join(outputs)[:60] or "nothing"
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "return",
            f"{shown} is not possible here",
            f"give one of {', '.join(possible)}; JSON may carry several",
        )
    check_outputs(outputs, revision, ["return"])
    if outputs[0] == "labels" and revision.multi_label:
        raise RequestError(
            ErrorCode.NO_BINARY_LABELS,
            "return",
            "each node of this graph may have several labels, and lists of them are no array",
            "send JSON, or ask for scores, where one above "
            f"{'the threshold in `provenance` of GET /v1/variants' if revision.thresholds else '0'} is a label",
        )
    if outputs[0] == "labels" and revision.class_texts:
        raise RequestError(
            ErrorCode.NO_BINARY_LABELS,
            "return",
            "the labels of this graph are texts, and lists of them are no array",
            "ask for scores, whose columns are `classes` of GET /v1/variants, or send JSON",
        )
    return tuple(outputs)


def _array_of(answer: Answer, output: str, revision: ServedRevision) -> np.ndarray:
    """C-contiguous, little-endian: scores and embeddings float32 [nodes, width], labels int64 [nodes]."""
    match output:
        case "labels":
            deciding = revision.decisive_scores(answer.variant, answer.scores)
            return np.ascontiguousarray(revision.class_ids[deciding.argmax(axis=1)], "<i8")
        case "embeddings":
            return np.ascontiguousarray(answer.embeddings, "<f4")
        case _:
            return np.ascontiguousarray(answer.scores, "<f4")
