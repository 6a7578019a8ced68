"""All codecs, and which of them a request is meant for."""

from __future__ import annotations

from gnnserve_worker.serving.http.codecs.binary import BinaryCodec
from gnnserve_worker.serving.http.codecs.binary_overlay import BinaryOverlayCodec
from gnnserve_worker.serving.http.codecs.codec import Codec
from gnnserve_worker.serving.http.codecs.json import JsonCodec

CODECS: tuple[Codec, ...] = (JsonCodec(), BinaryCodec(), BinaryOverlayCodec())
"""The first codec of a path also reads what names no media type, or an unknown one: `curl -d` announces a form."""

_BY_TYPE = {(codec.path, codec.content_type.encode()): codec for codec in CODECS}
_DEFAULTS = {codec.path: codec for codec in reversed(CODECS)}
PREDICT_PATHS = frozenset(_DEFAULTS)


def find_codec(path: str, content_type: bytes) -> Codec | None:
    """`path` without its query; `content_type` as the header has it, or empty. None: no predictions at that path."""
    media_type = content_type.partition(b";")[0].strip().lower()
    return _BY_TYPE.get((path, media_type)) or _DEFAULTS.get(path)
