"""Replies of a worker: their status codes, and errors and refusals in the form of the protocol that was asked in.

Which error it is does not depend on the protocol: a form writes the same sentence (`ErrorForm`).
"""

from __future__ import annotations

from gnnserve_api.http.protocol import ErrorDetail
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.scheduling.refusal import Refusal, RefusalReason
from gnnserve_worker.serving.http.codecs.json import encode_json_error
from gnnserve_worker.serving.requests import ErrorForm, Reply

REFUSAL_STATUS = {
    RefusalReason.OBJECTIVE_INFEASIBLE: 422,
    RefusalReason.QUEUE_FULL: 429,
    RefusalReason.DEADLINE_OUT_OF_REACH: 429,
    RefusalReason.DEADLINE_PASSED: 429,
    RefusalReason.LOADING: 503,
    RefusalReason.DRAINING: 503,
    RefusalReason.PROGRAM_FAILED: 503,
}
ERROR_STATUS = {
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.NO_WRITING: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.UNKNOWN_MODEL: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.NO_UPDATES: 409,
    ErrorCode.LOG_CONFLICT: 409,
    ErrorCode.SEQUENCE_PASSED: 409,
    ErrorCode.BODY_TOO_LARGE: 413,
    ErrorCode.TOO_MANY_OVERLAY_NODES: 413,
    ErrorCode.TOO_MANY_OVERLAY_EDGES: 413,
    ErrorCode.OVERLAY_TOO_LARGE: 413,
    ErrorCode.TOO_MANY_CHANGES: 413,
    ErrorCode.UNSUPPORTED_ENCODING: 415,
    ErrorCode.EXPECTATION_FAILED: 417,
    ErrorCode.HEAD_TOO_LARGE: 431,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.UNSUPPORTED_CODING: 501,
    ErrorCode.UNSUPPORTED_VERSION: 505,
    ErrorCode.TOO_MANY_CONNECTIONS: 503,
    ErrorCode.OFFSET_NOT_REACHED: 503,
    ErrorCode.NO_INDEX: 503,
    ErrorCode.TIMED_OUT: 504,
    ErrorCode.NO_ROOM: 503,
    ErrorCode.NOT_APPLIED: 503,
    ErrorCode.LOG_UNAVAILABLE: 503,
    ErrorCode.LOG_FULL: 503,
}
_OF_FIELDS = frozenset(
    (ErrorCode.TOO_MANY_OVERLAY_NODES, ErrorCode.TOO_MANY_OVERLAY_EDGES, ErrorCode.OVERLAY_TOO_LARGE)
)
"""Errors with another status than 400 that name a field of the request."""
_HEAD_OF_ERROR = {
    ErrorCode.UNAUTHORIZED: b'www-authenticate: Bearer realm="gnnserve"\r\n',
    ErrorCode.UNSUPPORTED_ENCODING: b"accept-encoding: gzip, deflate\r\n",
    ErrorCode.TOO_MANY_CONNECTIONS: b"retry-after: 1\r\n",
    ErrorCode.OFFSET_NOT_REACHED: b"retry-after: 1\r\n",
    ErrorCode.LOG_UNAVAILABLE: b"retry-after: 1\r\n",
    ErrorCode.NO_INDEX: b"retry-after: 2\r\n",
    # A person, or a compaction, has to make room.
    ErrorCode.NO_ROOM: b"retry-after: 10\r\n",
    ErrorCode.LOG_FULL: b"retry-after: 10\r\n",
}
"""What the head of an error says beside its media type."""


def error_reply(error: RequestError, form: ErrorForm = encode_json_error) -> Reply:
    status = ERROR_STATUS.get(error.code, 400)
    field = error.where if status == 400 or error.code in _OF_FIELDS else None
    encoded = form(ErrorDetail(error.code, str(error), field))
    head = encoded.head + _HEAD_OF_ERROR.get(error.code, b"")
    if error.allowed_method:
        head += b"allow: %b\r\n" % error.allowed_method.encode()
    return Reply(status, head, encoded.body, code=error.code)


def refusal_reply(refusal: Refusal, form: ErrorForm = encode_json_error) -> Reply:
    seconds, encoded = refusal.retry_after_s, form(ErrorDetail(refusal.reason, refusal.message))
    head = encoded.head if seconds is None else encoded.head + b"retry-after: %d\r\n" % seconds
    return Reply(REFUSAL_STATUS[refusal.reason], head, encoded.body, code=refusal.reason)


def internal_error_reply(message: str, form: ErrorForm = encode_json_error) -> Reply:
    encoded = form(ErrorDetail(ErrorCode.INTERNAL_ERROR, message))
    return Reply(500, encoded.head, encoded.body, code=ErrorCode.INTERNAL_ERROR)
