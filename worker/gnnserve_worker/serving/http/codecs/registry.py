"""All codecs, and which of them a request is meant for."""

from __future__ import annotations

from collections.abc import Mapping

from gnnserve_worker.serving.http.codecs.binary import BinaryCodec
from gnnserve_worker.serving.http.codecs.binary_overlay import BinaryOverlayCodec
from gnnserve_worker.serving.http.codecs.codec import Codec, ErrorForm, MediaCodec
from gnnserve_worker.serving.http.codecs.json import JsonCodec, encode_json_error
from gnnserve_worker.serving.http.codecs.open_inference import (
    JSON_LENGTH,
    encode_protocol_error,
    open_inference_codec,
)
from gnnserve_worker.serving.http.codecs.open_inference_paths import find_inference, is_open_inference
from gnnserve_worker.serving.http.codecs.recommend import RecommendCodec

CODECS: tuple[MediaCodec, ...] = (JsonCodec(), BinaryCodec(), BinaryOverlayCodec(), RecommendCodec())
"""Codecs of a fixed path. The first one of a path also reads what names no media type, or an unknown one: `curl -d`
announces a form."""
_CONTENT_TYPE = b"content-type"
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
