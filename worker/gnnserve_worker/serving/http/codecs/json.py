"""JSON in and out of `POST /v1/predict`: what a client may write, what it reads, and the message for each mistake.

msgspec validates while it parses. What a request asks about, and the outputs of its answer, are its task's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from gnnserve_api.http.protocol import ErrorAnswer, ErrorDetail, PredictAnswer, PredictRequest
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.body_form import FIELDS, UNREADABLE, body_error
from gnnserve_worker.asking.overlay import brings_nothing
from gnnserve_worker.asking.question import (
    CHOOSING_MEMBERS,
    NO_WISHES,
    NOTHING_GIVEN,
    PREDICT_PATH,
    ErrorCode,
    RequestError,
    cut,
    given_in,
    wishes_of_body,
)
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.large_json import (
    LARGE_BYTES,
    check_values,
    may_have_field,
    without_collection,
)
from gnnserve_worker.serving.requests import Answer, Arrange, Ask, EncodedAnswer, Question

_SHORTEST_OVERLAY = len('{"overlay":')
_CHOOSING = tuple(member.encode() for member in CHOOSING_MEMBERS)
_encoder = msgspec.json.Encoder()
JSON_HEAD = b"content-type: application/json\r\n"
_REFERENCE = "#/components/schemas/{name}"


class JsonCodec:
    model = None
    is_for_canary = True
    tells_times = True
    path = PREDICT_PATH
    content_type = "application/json"

    def check_query(self, query: bytes) -> None:
        """All fields are in the body. A parameter, such as the binary form's, would be ignored."""
        for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            raise RequestError(
                ErrorCode.UNKNOWN_FIELD,
                cut(name),
                "there is no such parameter",
                f"JSON has its fields in the body: nodes, {', '.join(FIELDS)}",
            )

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        """Ids are separated by commas; texts by commas after quotes, which few texts contain."""
        ids = revision.task.id_list
        place = body.find(ids.member)
        if ids.overlays_have_it and place > _SHORTEST_OVERLAY and body.find(b'"overlay"', 0, place) >= 0:
            return 1  # those that were found are the overlay's
        start = body.find(b"[", place + 1)
        between, end = ids.of_texts if revision.graph.naming.are_texts else ids.of_integers
        return body.count(between, start, body.find(end, start)) + 1

    def may_choose(self, body: bytes) -> bool:
        return any(may_have_field(body, field) for field in _CHOOSING)

    def may_have_seed(self, body: bytes) -> bool:
        return may_have_field(body, b"seed")

    def may_have_overlay(self, body: bytes) -> bool:
        return may_have_field(body, b"overlay")

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        """`query` is empty: `check_query` refuses every parameter."""
        task = revision.task
        try:
            if len(body) <= LARGE_BYTES:
                request = task.decoder.decode(body)
            else:
                check_values(body, revision, max_nodes, limits, may_bring=may_have_field(body, b"overlay"))
                with without_collection():
                    request = task.decoder.decode(body)
        except UNREADABLE as error:
            raise _refused(error, body, revision) from None
        given = given_in(request)
        wishes = NO_WISHES if given == NOTHING_GIVEN else wishes_of_body(given)
        items, overlay = task.items_for(request.outputs), request.overlay
        ids = items.ids_of(request, max_nodes)
        arrange: Arrange | None = None
        if overlay is not None and not brings_nothing(overlay):
            arrange = partial(revision.compute.overlays.arrange, ids, overlay, limits)
            if len(body) > LARGE_BYTES:
                arrange = without_collection()(arrange)
        return Ask(items, ids, request.outputs, wishes, arrange=arrange)

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        if in_pieces:
            return EncodedAnswer(JSON_HEAD, b"", _encode_blocks(answer, question, revision, is_in_time))
        outputs, variant = revision.task.as_json(answer, question), answer.variant
        is_met = is_in_time is None or is_in_time()
        end = _encode_end(variant, revision.manifest.revision, is_met, revision.tier_permille.get(variant))
        if answer.offset is not None:
            end = _with_offset(end, answer.offset)
        return EncodedAnswer(JSON_HEAD, b"{" + outputs + end)

    def encode_error(self, detail: ErrorDetail) -> EncodedAnswer:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        name = PredictRequest.__name__ if revision is None else revision.task.request_schema
        return {"schema": {"$ref": _REFERENCE.format(name=name)}, "example": example}

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        name = PredictAnswer.__name__ if revision is None else revision.task.answer_schema
        return {"schema": {"$ref": _REFERENCE.format(name=name)}, "example": example}


def _encode_blocks(
    answer: Answer, question: Question, revision: ServedRevision, is_in_time: Callable[[], bool] | None
) -> Iterator[bytes]:
    """The body in pieces, each short work. `is_in_time` is asked last, when the encoding is done as well."""
    yield b"{"
    yield from revision.task.json_blocks(answer, question)
    variant, is_met = answer.variant, is_in_time is None or is_in_time()
    end = _encode_end(variant, revision.manifest.revision, is_met, revision.tier_permille.get(variant))
    yield end if answer.offset is None else _with_offset(end, answer.offset)


@functools.lru_cache(256)
def _encode_end(variant: str, revision: str, objective_met: bool, tier_permille: int | None) -> bytes:
    """The end of an answer, alike for many."""
    rest = {"variant": variant, "revision": revision, "objectiveMet": objective_met}
    if tier_permille is not None:
        rest["tierPermille"] = tier_permille
    return _encoder.encode(rest)[1:] + b"\n"


def _with_offset(end: bytes, offset: int) -> bytes:
    # Behind what is alike for many: offsets differ all the time.
    return b'%b,"offset":%d}\n' % (end[:-2], offset)


def encode_json_error(detail: ErrorDetail) -> EncodedAnswer:
    return EncodedAnswer(JSON_HEAD, encode_error(detail))


def encode_error(detail: ErrorDetail) -> bytes:
    return _encoder.encode(ErrorAnswer(detail)) + b"\n"


def _refused(error: Exception, body: bytes, revision: ServedRevision) -> RequestError:
    task, found = revision.task, body_error(error, body, revision, revision.task.form)
    is_of_other = found.code is ErrorCode.UNKNOWN_FIELD and found.where in task.fields_of_others
    return task.wrong_task(found.where) if is_of_other else found
