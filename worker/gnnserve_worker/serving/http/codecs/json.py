"""JSON in and out of `POST /v1/predict`: what a client may write, what it reads, and the message for each mistake.

msgspec validates while it parses. What a request asks about, and the outputs of its answer, are its task's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET

from gnnserve_api.objective import NO_OBJECTIVE
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import ErrorAnswer, ErrorDetail, PredictAnswer, PredictRequest
from gnnserve_worker.asking.body_form import FIELDS, field_error
from gnnserve_worker.asking.overlay import brings_nothing
from gnnserve_worker.asking.question import (
    PREDICT_PATH,
    ErrorCode,
    Question,
    RequestError,
    check_objective,
    check_priority,
    check_seed,
    check_timeout,
    cut,
)
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.codecs.large_json import (
    LARGE_BYTES,
    check_values,
    may_have_field,
    without_collection,
)
from gnnserve_worker.serving.http.question import check_variant, require_offset
from gnnserve_worker.serving.http.wishes import OFFSET_WISH_HEADER, VARIANT_HEADER, Wishes
from gnnserve_worker.serving.requests import Answer
from gnnserve_worker.tasks.served import Items

_SHORTEST_OVERLAY = len('{"overlay":')
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
        return any(may_have_field(body, field) for field in (b"objective", b"variant", b"priority"))

    def may_have_seed(self, body: bytes) -> bool:
        return may_have_field(body, b"seed")

    def may_have_overlay(self, body: bytes) -> bool:
        return may_have_field(body, b"overlay")

    def parse_question(
        self,
        body: bytes,
        query: bytes,
        wishes: Wishes,
        revision: ServedRevision,
        max_nodes: int,
        limits: OverlayLimits,
    ) -> Question:
        """`query` is empty: `check_query` refuses every parameter."""
        task = revision.task
        if len(body) <= LARGE_BYTES:
            return question_of(_decode(body, revision), task, wishes, revision, max_nodes, limits)
        check_values(body, revision, max_nodes, limits, may_bring=may_have_field(body, b"overlay"))
        with without_collection():
            return question_of(_decode(body, revision), task, wishes, revision, max_nodes, limits)

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        *,
        in_pieces: bool,
    ) -> Encoded:
        if in_pieces:
            return Encoded(JSON_HEAD, b"", _encode_blocks(answer, question, revision, objective_met))
        outputs = revision.task.as_json(answer, question)
        return Encoded(JSON_HEAD, b"{" + outputs + _encode_end(answer, revision, objective_met))

    def encode_error(self, detail: ErrorDetail) -> Encoded:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        name = PredictRequest.__name__ if revision is None else revision.task.request_schema
        return {"schema": {"$ref": _REFERENCE.format(name=name)}, "example": example}

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        name = PredictAnswer.__name__ if revision is None else revision.task.answer_schema
        return {"schema": {"$ref": _REFERENCE.format(name=name)}, "example": example}


def question_of(
    request: Any, items: Items, wishes: Wishes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits
) -> Question:
    """The question that a request of JSON asks. `items`: those that it asks about; the revision's task knows its own.
    Raises RequestError and BehindError, as `Codec.parse_question`."""
    objective = request.objective
    if objective is None or objective == NO_OBJECTIVE:
        objective = wishes.objective
    else:
        check_objective(objective, "objective.latencyMs", "objective.accuracyTolerancePermille")
    timeout_ms = wishes.timeout_ms
    if request.timeout_ms is not None:
        timeout_ms = check_timeout(request.timeout_ms, "timeoutMs")
    # 0 is as if it were absent.
    priority = wishes.priority if not request.priority else check_priority(request.priority, "priority")
    min_offset = wishes.min_offset if request.min_offset is None else request.min_offset
    if min_offset is not None:  # before ids are looked up, which the changes may bring
        is_in_body = request.min_offset is not None
        where = "minOffset" if is_in_body else OFFSET_WISH_HEADER.decode()
        require_offset(min_offset, objective, timeout_ms, revision, where)
    nodes = items.ids_of(request, max_nodes)
    outputs: tuple[str, ...] = request.outputs
    strict = wishes.strict if request.strict is UNSET else request.strict
    seed = wishes.seed if request.seed is None else check_seed(request.seed, "seed")
    overlay, brought = request.overlay, None
    if overlay is not None and brings_nothing(overlay):
        overlay = None
    variant = wishes.variant if request.variant is None else request.variant
    if variant is not None:
        where = VARIANT_HEADER.decode() if request.variant is None else "variant"
        check_variant(variant, outputs, overlay is not None, revision, where)
    overlays = revision.compute.overlays
    try:
        if overlay is None:
            seeds = revision.graph.naming.find(nodes, overlays.hint if limits.max_nodes else "")
        else:
            brought, seeds = overlays.arrange(nodes, overlay, limits)
    except RequestError as error:
        raise items.placed(error) from None
    seeds, form = items.joined(seeds, brought)
    return Question(seeds, objective, strict, outputs, brought, seed, variant, form, timeout_ms, priority)


def _encode_blocks(
    answer: Answer, question: Question, revision: ServedRevision, objective_met: Callable[[], bool]
) -> Iterator[bytes]:
    """The body in pieces, each short work. `objective_met` is asked last, when the encoding is done as well."""
    yield b"{"
    yield from revision.task.json_blocks(answer, question)
    yield _encode_end(answer, revision, objective_met)


def _encode_end(answer: Answer, revision: ServedRevision, objective_met: Callable[[], bool]) -> bytes:
    rest = _encode_rest(
        answer.variant, revision.manifest.revision, objective_met(), revision.tier_permille.get(answer.variant)
    )
    # Behind what is alike for many: offsets differ all the time.
    return rest if answer.offset is None else b'%b,"offset":%d}\n' % (rest[:-2], answer.offset)


@functools.lru_cache(256)
def _encode_rest(variant: str, revision: str, objective_met: bool, tier_permille: int | None) -> bytes:
    """The end of an answer, alike for many."""
    rest = {"variant": variant, "revision": revision, "objectiveMet": objective_met}
    if tier_permille is not None:
        rest["tierPermille"] = tier_permille
    return _encoder.encode(rest)[1:] + b"\n"


def encode_json_error(detail: ErrorDetail) -> Encoded:
    return Encoded(JSON_HEAD, encode_error(detail))


def encode_error(detail: ErrorDetail) -> bytes:
    return _encoder.encode(ErrorAnswer(detail)) + b"\n"


def _decode(body: bytes, revision: ServedRevision) -> Any:
    task = revision.task
    try:
        return task.decoder.decode(body)
    except msgspec.ValidationError as error:
        found = field_error(str(error), body, revision, task.form)
        if found.code is ErrorCode.UNKNOWN_FIELD and found.where in task.fields_of_others:
            raise task.wrong_task(found.where) from None
        raise found from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if body.strip() else "it is empty"
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, task.form.body_remedy(revision)) from None
