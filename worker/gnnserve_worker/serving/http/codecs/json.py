"""JSON in and out of `POST /v1/predict`: what a client may write, what it reads, and the message for each mistake.

msgspec validates while it parses. orjson writes arrays: straight from numpy, and a float32 in as few digits as tell
it from its neighbours, where a list of Python's numbers would be twice as long and take twice the time. Answers are
encoded in blocks of rows, because one call for millions of scores would hold up every other client.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import orjson
from msgspec import UNSET

from gnnserve_api import decoding
from gnnserve_api.objective import NO_OBJECTIVE
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.pairs import PairsAnswer, PairsRequest, TypedPairsRequest
from gnnserve_api.protocol import (
    ErrorAnswer,
    ErrorDetail,
    PredictAnswer,
    PredictRequest,
    RequestOverlay,
    TypedOverlay,
    TypedPredictRequest,
)
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.codec import Encoded
from gnnserve_worker.serving.http.codecs.json_mistakes import FIELDS, PAIRS, PREDICTION, field_error
from gnnserve_worker.serving.http.codecs.large_json import (
    LARGE_BYTES,
    check_values,
    may_have_field,
    without_collection,
)
from gnnserve_worker.serving.http.node_ids import find_listed, find_texts
from gnnserve_worker.serving.http.overlay import BRING_IT, read_overlay, support_of
from gnnserve_worker.serving.http.pairs import (
    PAIR_OUTPUTS,
    PairForm,
    check_pair_count,
    distinct_ends,
    outputs_of,
    told_of_pairs,
    wrong_task,
)
from gnnserve_worker.serving.http.question import (
    PREDICT_PATH,
    ErrorCode,
    Question,
    RequestError,
    check_node_count,
    check_objective,
    check_outputs,
    check_priority,
    check_seed,
    check_timeout,
    check_variant,
    cut,
    require_offset,
)
from gnnserve_worker.serving.http.typed_ids import as_texts, ids_of_target
from gnnserve_worker.serving.http.typed_overlay import arrange_typed
from gnnserve_worker.serving.http.wishes import OFFSET_WISH_HEADER, VARIANT_HEADER, Wishes
from gnnserve_worker.serving.requests import Answer

_BLOCK_VALUES = 65_536
"""Numbers encoded in one go: about 2 ms."""
_SHORTEST_OVERLAY = len('{"overlay":')
_ARRAYS = orjson.OPT_SERIALIZE_NUMPY

_decoder = decoding.decoder(PredictRequest[int])
_text_decoder = decoding.decoder(PredictRequest[str])
"""Decodes requests for graphs whose node ids are texts."""
_typed_decoder = decoding.decoder(TypedPredictRequest)
"""Decodes requests for graphs of several types, whose ids may be objects."""
_pairs_decoder = decoding.decoder(PairsRequest[int])
_text_pairs_decoder = decoding.decoder(PairsRequest[str])
"""Decodes pairs for graphs whose node ids are texts."""
_typed_pairs_decoder = decoding.decoder(TypedPairsRequest)
"""Decodes pairs where links join nodes of several types, whose ids may be objects."""
_encoder = msgspec.json.Encoder()
_ALWAYS_POSSIBLE = frozenset((("labels",), ("scores",), ("labels", "scores")))
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
                f"JSON has its fields in the body: {', '.join(FIELDS)}",
            )

    def estimate_seeds(self, body: bytes, *, are_texts: bool) -> int:
        """Ids are separated by commas; texts by commas after quotes, which few texts contain."""
        nodes = body.find(b'"nodes"')
        if nodes < 0 and (pairs := body.find(b'"pairs"')) >= 0:
            return body.count(b",", pairs, body.find(b"]]", pairs)) + 1
        if nodes > _SHORTEST_OVERLAY and body.find(b'"overlay"', 0, nodes) >= 0:
            return 1  # those that were found are the overlay's
        start = body.find(b"[", nodes + 1)
        if are_texts:
            return body.count(b'",', start, body.find(b'"]', start)) + 1
        return body.count(b",", start, body.find(b"]", start)) + 1

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
        if len(body) <= LARGE_BYTES:
            return self._parse(body, wishes, revision, max_nodes, limits)
        check_values(body, revision, max_nodes, limits, may_bring=may_have_field(body, b"overlay"))
        with without_collection():
            return self._parse(body, wishes, revision, max_nodes, limits)

    def _parse(
        self, body: bytes, wishes: Wishes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits
    ) -> Question:
        return question_of(_decode(body, revision), wishes, revision, max_nodes, limits)

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        objective_met: Callable[[], bool],
        *,
        in_pieces: bool,
    ) -> Encoded:
        outputs = question.outputs
        if isinstance(question.form, PairForm):
            made = outputs_of(answer, question.form, outputs, revision).items()
            body = b"{" + b"".join(
                b'"%b":%b,' % (name.encode(), orjson.dumps(one, option=_ARRAYS)) for name, one in made
            )
            return Encoded(JSON_HEAD, body + _encode_end(answer, revision, objective_met))
        if in_pieces:
            return Encoded(JSON_HEAD, b"", _encode_blocks(answer, outputs, revision, objective_met))
        body = b"{"
        if "labels" in outputs:
            body += (
                b'"labels":' + _encode_labels(revision.decisive_scores(answer.variant, answer.scores), revision) + b","
            )
        if "scores" in outputs:
            body += b'"scores":' + orjson.dumps(answer.scores, option=_ARRAYS) + b","
        if "embeddings" in outputs:
            body += b'"embeddings":' + orjson.dumps(answer.embeddings, option=_ARRAYS) + b","
        return Encoded(JSON_HEAD, body + _encode_end(answer, revision, objective_met))

    def encode_error(self, detail: ErrorDetail) -> Encoded:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        name = PredictRequest.__name__ if revision is None or revision.links is None else PairsRequest.__name__
        return {"schema": {"$ref": _REFERENCE.format(name=name)}, "example": example}

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        name = PredictAnswer.__name__ if revision is None or revision.links is None else PairsAnswer.__name__
        return {"schema": {"$ref": _REFERENCE.format(name=name)}, "example": example}


def question_of(
    request: PredictRequest[Any] | PairsRequest[Any],
    wishes: Wishes,
    revision: ServedRevision,
    max_nodes: int,
    limits: OverlayLimits,
) -> Question:
    """The question that a request of JSON asks. Raises RequestError and BehindError, as `Codec.parse_question`."""
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
    outputs: tuple[str, ...] = request.outputs
    if isinstance(request, PairsRequest):
        _check_pair_outputs(outputs)
        check_pair_count(len(request.pairs), max_nodes)
        nodes = tuple(chain.from_iterable(request.pairs))
    else:
        if outputs not in _ALWAYS_POSSIBLE:
            _check_outputs(outputs, revision)
        nodes = request.nodes
        if not 0 < len(nodes) <= max_nodes:
            check_node_count(len(nodes), max_nodes)
    strict = wishes.strict if request.strict is UNSET else request.strict
    seed = wishes.seed if request.seed is None else check_seed(request.seed, "seed")
    overlay = request.overlay
    if overlay is not None and not (overlay.nodes or overlay.edges or overlay.overrides):
        overlay = None
    variant = wishes.variant if request.variant is None else request.variant
    if variant is not None:
        where = VARIANT_HEADER.decode() if request.variant is None else "variant"
        check_variant(variant, outputs, overlay is not None, revision, where)
    if revision.types is not None and overlay is None:
        nodes = ids_of_target(nodes, revision.types, revision)
    if not isinstance(request, PairsRequest):
        seeds, brought = _find(nodes, overlay, revision, limits)
        return Question(seeds, objective, strict, outputs, brought, seed, variant, None, timeout_ms, priority)
    with told_of_pairs():
        seeds, brought = _find(nodes, overlay, revision, limits)
    seeds, form = distinct_ends(seeds, revision, brought)
    return Question(seeds, objective, strict, outputs, brought, seed, variant, form, timeout_ms, priority)


def _find(
    nodes: Sequence[Any], overlay: RequestOverlay[Any] | TypedOverlay | None, revision: ServedRevision,
    limits: OverlayLimits,
) -> tuple[np.ndarray, Overlay | None]:  # fmt: skip
    """Positions of the nodes that are asked about, and what the request brings, arranged over the graph."""
    if revision.joins_types:
        nodes = as_texts(nodes, revision)
    if overlay is None:
        positions = find_texts if revision.has_text_ids else find_listed
        takes_any = revision.overlays is not None or (revision.joins_types and revision.typed_overlays is not None)
        return positions(nodes, revision, BRING_IT if takes_any and limits.max_nodes else ""), None
    if isinstance(overlay, TypedOverlay):
        arranged, seeds = arrange_typed(nodes, overlay, revision, limits)
        return seeds, arranged
    support = support_of(revision, limits)
    read = read_overlay(nodes, overlay, revision, support, limits)
    arranged, seeds = support.arrange(read.features, read.overridden, read.edges, read.seeds)
    return seeds, arranged


def _check_outputs(outputs: Sequence[str], revision: ServedRevision) -> None:
    if not outputs:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "return", "the list is empty", "name at least one of labels, scores, embeddings"
        )
    check_outputs(outputs, revision, [f"return[{i}]" for i in range(len(outputs))])


def _check_pair_outputs(outputs: Sequence[str]) -> None:
    if not outputs:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "return", "the list is empty", f"name at least one of {', '.join(PAIR_OUTPUTS)}"
        )


def _encode_blocks(
    answer: Answer, outputs: tuple[str, ...], revision: ServedRevision, objective_met: Callable[[], bool]
) -> Iterator[bytes]:
    """The body in pieces, each short work. `objective_met` is asked last, when the encoding is done as well."""
    yield b"{"
    if "labels" in outputs:
        yield b'"labels":' + _encode_labels(revision.decisive_scores(answer.variant, answer.scores), revision) + b","
    for name, matrix in (("scores", answer.scores), ("embeddings", answer.embeddings)):
        if name in outputs and matrix is not None:
            yield b'"%b":[' % name.encode()
            yield from _encode_rows(matrix)
            yield b"],"
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


def _encode_labels(scores: np.ndarray, revision: ServedRevision) -> bytes:
    """`scores`: those that decide."""
    texts = revision.class_texts
    if not revision.multi_label:
        best = scores.argmax(axis=1)
        if texts:
            return b"[" + b",".join([texts[column] for column in best.tolist()]) + b"]"
        return orjson.dumps(revision.class_ids[best], option=_ARRAYS)
    nodes, columns = np.nonzero(scores > 0)
    flat = [revision.classes[column] for column in columns.tolist()] if texts else revision.class_ids[columns].tolist()
    ends = np.searchsorted(nodes, np.arange(len(scores)), side="right").tolist()
    return _encoder.encode([flat[start:end] for start, end in zip([0, *ends], ends, strict=False)])


def _encode_rows(matrix: np.ndarray) -> Iterator[bytes]:
    """All rows, without the brackets around them."""
    rows = max(1, _BLOCK_VALUES // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), rows):
        block = orjson.dumps(matrix[start : start + rows], option=_ARRAYS)
        yield block[1:-1] if start == 0 else b"," + block[1:-1]


def _decode(body: bytes, revision: ServedRevision) -> PredictRequest[Any] | PairsRequest[Any]:
    scores_pairs = revision.links is not None
    try:
        if revision.types is not None:
            return _typed_decoder.decode(body)
        if revision.joins_types:
            return _typed_pairs_decoder.decode(body)
        if scores_pairs:
            return (_text_pairs_decoder if revision.has_text_ids else _pairs_decoder).decode(body)
        return (_text_decoder if revision.has_text_ids else _decoder).decode(body)
    except msgspec.ValidationError as error:
        found = field_error(str(error), body, revision, PAIRS if scores_pairs else PREDICTION)
        other = "nodes" if scores_pairs else "pairs"
        if found.code is ErrorCode.UNKNOWN_FIELD and found.where == other:
            raise wrong_task(other, revision) from None
        raise found from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"not JSON: {error}" if body.strip() else "it is empty"
        form = PAIRS if scores_pairs else PREDICTION
        raise RequestError(ErrorCode.INVALID_JSON, "body", problem, form.body_remedy(revision)) from None
