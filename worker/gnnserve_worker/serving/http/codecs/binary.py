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

from gnnserve_api.http.changes import OFFSET_HEADER
from gnnserve_api.http.protocol import ErrorDetail
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.question import HEADERS_REMEDY, PREDICT_PATH, ErrorCode, RequestError
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.json import encode_json_error
from gnnserve_worker.serving.requests import Answer, Ask, EncodedAnswer, Question

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

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        return len(body) // ID_BYTES

    def may_choose(self, body: bytes) -> bool:
        return False

    def may_have_seed(self, body: bytes) -> bool:
        return False

    def may_have_overlay(self, body: bytes) -> bool:
        return False

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        check_integer_ids(revision)
        outputs = read_outputs(query, revision)
        if len(body) % ID_BYTES:
            raise binary_error(
                f"{len(body):,} bytes are no whole number of node ids, which have {ID_BYTES} bytes each",
                "send int64, little-endian",
            )
        items = revision.task.items_for(outputs)
        items.check_count(len(body) // ID_BYTES, max_nodes)
        nodes = np.frombuffer(body, "<i8")
        if sys.byteorder == "big":
            nodes = nodes.astype(np.int64)
        return Ask(items, nodes, outputs, may_bring=False)

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        """Never in pieces: the array is sent from where it lies."""
        array = revision.task.array(answer, question)
        is_met = is_in_time is None or is_in_time()
        head = (
            f"content-type: {self.content_type}\r\n"
            f"gnnserve-variant: {answer.variant}\r\n"
            f"gnnserve-revision: {revision.manifest.revision}\r\n"
            f"gnnserve-objective-met: {'true' if is_met else 'false'}\r\n"
            f"gnnserve-shape: {','.join(map(str, array.shape))}\r\n"
        )
        if answer.offset is not None:
            head += f"{OFFSET_HEADER}: {answer.offset}\r\n"
        return EncodedAnswer(head.encode(), array.data.cast("B"))

    def encode_error(self, detail: ErrorDetail) -> EncodedAnswer:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any] | None:
        if revision is not None and revision.graph.naming.are_texts:
            return None
        return {"schema": {"type": "string", "format": "binary"}}

    describe_answer = describe_request


def check_integer_ids(revision: ServedRevision) -> None:
    if revision.graph.naming.are_texts:
        raise RequestError(
            ErrorCode.NO_BINARY_NODES,
            "body",
            "the node ids of this graph are texts, and lists of them are no array",
            f"send JSON, such as {revision.task.example()}, or tensors of BYTES (Open Inference Protocol)",
        )


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
    task, possible = revision.task, revision.task.outputs
    if len(outputs) != 1 or outputs[0] not in possible:
        shown = "&".join(outputs)[:60] or "nothing"
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            "return",
            f"{shown} is not possible here",
            f"give one of {', '.join(possible)}; JSON may carry several",
        )
    task.check_outputs(outputs, ["return"])
    task.check_array(outputs[0])
    return tuple(outputs)
