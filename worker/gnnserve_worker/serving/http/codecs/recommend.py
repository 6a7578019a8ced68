"""`POST /v1/recommend` as a codec: the embedding of one node is asked of the engine, the index is searched with it.

So admission, objectives, deadlines, offsets and overlays are those of every prediction. The search runs where answers
are encoded; it takes a millisecond or two, and counts as part of the request's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from gnnserve_api import decoding
from gnnserve_api.http.protocol import ErrorDetail
from gnnserve_api.http.recommend import RecommendAnswer, RecommendRequest, TypedRecommendRequest
from gnnserve_api.limits import OverlayLimits
from gnnserve_worker.asking.body_form import IDS, MEMBERS, REMEDIES, BodyForm, decode_body
from gnnserve_worker.asking.naming import IdForm
from gnnserve_worker.asking.question import RECOMMEND_PATH, ErrorCode, RequestError, cut, shown_value, wishes_of_body
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD, encode_json_error
from gnnserve_worker.serving.http.codecs.large_json import LARGE_BYTES, check_values, may_have_field
from gnnserve_worker.serving.http.codecs.recommending.asked import COUNT_REMEDY, NodeSearch, ask_of, check_count
from gnnserve_worker.serving.http.codecs.recommending.filters import (
    FILTER_ENTRIES,
    FILTER_MEMBERS,
    FILTER_REMEDIES,
    check_size,
    read_filter,
    telling_columns,
)
from gnnserve_worker.serving.http.codecs.recommending.found import recommend
from gnnserve_worker.serving.requests import Answer, Ask, EncodedAnswer, Question

_FIELDS = ("node", "count", "type", "exclude", "filter", "objective", "strict", "overlay", "seed", "minOffset")
_DECODERS: Mapping[IdForm, msgspec.json.Decoder[Any]] = {
    IdForm.INTEGERS: decoding.decoder(RecommendRequest[int]),
    IdForm.TEXTS: decoding.decoder(RecommendRequest[str]),
    IdForm.WITH_TYPES: decoding.decoder(TypedRecommendRequest),
}
_encoder = msgspec.json.Encoder()
_REFERENCE = "#/components/schemas/{name}"

_FORM = BodyForm(
    {**MEMBERS, "": _FIELDS, **FILTER_MEMBERS},
    IDS | {"node"},
    {
        **REMEDIES,
        "count": COUNT_REMEDY,
        "type": "give the name of a type of nodes, or leave it out",
        "exclude": "give known or nothing",
        **FILTER_REMEDIES,
    },
    lambda revision: f'{{"node": {", ".join(map(shown_value, revision.graph.naming.shown(0, 1)))}, "count": 10}}',
    entries=FILTER_ENTRIES,
)


class RecommendCodec:
    model = None
    is_for_canary = False
    tells_times = True
    path = RECOMMEND_PATH
    content_type = "application/json"

    def check_query(self, query: bytes) -> None:
        raise RequestError(
            ErrorCode.UNKNOWN_FIELD, cut(query.decode("latin-1")), "there is no such parameter",
            f"all fields are in the body: {', '.join(_FIELDS)}",
        )  # fmt: skip

    def estimate_seeds(self, body: bytes, revision: ServedRevision) -> int:
        return 1

    def may_choose(self, body: bytes) -> bool:
        return may_have_field(body, b"objective")

    def may_have_seed(self, body: bytes) -> bool:
        return may_have_field(body, b"seed")

    def may_have_overlay(self, body: bytes) -> bool:
        return may_have_field(body, b"overlay")

    def decode(self, body: bytes, query: bytes, revision: ServedRevision, max_nodes: int, limits: OverlayLimits) -> Ask:
        if not self.may_have_overlay(body):
            check_size(body)
        elif len(body) > LARGE_BYTES:
            check_values(body, revision, max_nodes, limits, may_bring=True)
        request: RecommendRequest[Any]
        with telling_columns(body, revision):
            request = decode_body(_DECODERS[revision.graph.naming.form], body, revision, _FORM)
            filter_ = read_filter(request.filter, revision.graph.naming)
        check_count(request.count, "count")
        wishes = wishes_of_body((request.objective, request.strict, request.seed, None, request.min_offset, None, None))
        search = NodeSearch(
            request.node, wishes, request.count, request.type, request.exclude, filter_, request.overlay
        )
        return ask_of(search, revision, max_nodes, limits)

    def encode_answer(
        self,
        answer: Answer,
        question: Question,
        revision: ServedRevision,
        is_in_time: Callable[[], bool] | None,
        *,
        in_pieces: bool,
    ) -> EncodedAnswer:
        found = recommend(answer, question, revision)
        told = RecommendAnswer(
            items=found.items,
            variant=answer.variant,
            revision=revision.manifest.revision,
            objective_met=is_in_time is None or is_in_time(),
            index=found.index,
            offset=UNSET if answer.offset is None else answer.offset,
        )
        return EncodedAnswer(JSON_HEAD, _encoder.encode(told) + b"\n")

    def encode_error(self, detail: ErrorDetail) -> EncodedAnswer:
        return encode_json_error(detail)

    def describe_request(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        return {"schema": {"$ref": _REFERENCE.format(name=RecommendRequest.__name__)}, "example": example}

    def describe_answer(self, revision: ServedRevision | None, example: Any) -> dict[str, Any]:
        schema = {"schema": {"$ref": _REFERENCE.format(name=RecommendAnswer.__name__)}}
        return schema if example is None else {**schema, "example": example}
