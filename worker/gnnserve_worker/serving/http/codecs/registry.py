"""All codecs, which of them a request is meant for, and what else its head says."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from gnnserve_worker.asking.question import NO_WISHES, WISH_HEADERS, check_stated_once, wishes_of_head
from gnnserve_worker.serving.http.codecs.binary import BinaryCodec
from gnnserve_worker.serving.http.codecs.binary_overlay import BinaryOverlayCodec
from gnnserve_worker.serving.http.codecs.json import JsonCodec, encode_json_error
from gnnserve_worker.serving.http.codecs.open_inference import (
    JSON_LENGTH,
    encode_protocol_error,
    open_inference_codec,
)
from gnnserve_worker.serving.http.codecs.open_inference_paths import find_inference, is_open_inference
from gnnserve_worker.serving.http.codecs.recommend import RecommendCodec
from gnnserve_worker.serving.http.content_coding import CODINGS
from gnnserve_worker.serving.requests import Arrival, Codec, ContentCoding, ErrorForm, MediaCodec
from gnnserve_worker.serving.tracing.traces import PARENT_HEADER

CODECS: tuple[MediaCodec, ...] = (JsonCodec(), BinaryCodec(), BinaryOverlayCodec(), RecommendCodec())
"""Codecs of a fixed path. The first one of a path also reads what names no media type, or an unknown one: `curl -d`
announces a form."""
_CONTENT_TYPE = b"content-type"
_ACCEPT_ENCODING = b"accept-encoding"
_ITEM = re.compile(r"\s*([\w!#$%&'*+.^`|~-]+)\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?")
CODEC_HEADERS = frozenset((_CONTENT_TYPE, JSON_LENGTH))
"""The headers by which a codec is found."""

_BY_TYPE = {(codec.path, codec.content_type.encode()): codec for codec in CODECS}
_DEFAULTS = {codec.path: codec for codec in reversed(CODECS)}


def is_prediction(path: str) -> bool:
    """Whether predictions are asked for at this path, without its query."""
    return path in _DEFAULTS or find_inference(path) is not None


def find_codec(path: str, headers: Mapping[bytes, bytes]) -> Codec | None:
    """`path` without its query; `headers`: names in lower case. None: no predictions at that path. Raises
    RequestError."""
    default = _DEFAULTS.get(path)
    if default is None:
        return open_inference_codec(path, headers)
    media_type = headers.get(_CONTENT_TYPE, b"").partition(b";")[0].strip().lower()
    return _BY_TYPE.get((path, media_type)) or default


def error_form_of(path: str) -> ErrorForm:
    """The form of errors at a path, whether there is such a path or not."""
    return encode_protocol_error if is_open_inference(path) else encode_json_error


READ_HEADERS = WISH_HEADERS | CODEC_HEADERS | {_ACCEPT_ENCODING, PARENT_HEADER}
"""The headers that `read_head` looks at."""


def read_head(path: str, headers: Sequence[tuple[bytes, bytes]], query: bytes) -> Arrival | None:
    """The request as its head has it, without a body. `headers`: all of them, names in lower case. None: no predictions
    at this path. Raises RequestError."""
    read = {name: value for name, value in headers if name in READ_HEADERS}
    codec = find_codec(path, read)
    if codec is None:
        return None
    if query:
        codec.check_query(query)
    accepted = read.get(_ACCEPT_ENCODING)
    coding = None if accepted is None else wanted_coding(accepted)
    wishes = NO_WISHES
    if not WISH_HEADERS.isdisjoint(read):
        check_stated_once(headers)
        wishes = wishes_of_head(read)
    return Arrival(codec, query, wishes, coding, path, read.get(PARENT_HEADER))


@functools.lru_cache(256)
def wanted_coding(accepted: bytes) -> ContentCoding | None:
    """The coding of the answer that a client asks for by name; None: it is sent as it is. What cannot be read asks for
    nothing."""
    weights: dict[str, float] = {}
    for item in accepted.decode("latin-1").lower().split(","):
        found = _ITEM.fullmatch(item)
        if found is not None:
            weights[found[1]] = 1.0 if found[2] is None else float(found[2])
    best = max(CODINGS, key=lambda name: weights.get(name, 0.0))
    return CODINGS[best] if weights.get(best, 0.0) > 0 else None
