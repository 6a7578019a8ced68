"""Questions, and what is wrong with one whatever the protocol and the revision that it is asked of.

A message names the field, the value, what was expected and what to do. What is asked for beside items, and its bounds,
is in `wishes.py`. What depends on the revision is checked by its task, its graph and `serving/http/question.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.objective import Objective
from gnnserve_api.priority import DEFAULT_PRIORITY
from gnnserve_worker.graph.overlay import Overlay

PREDICT_PATH = "/v1/predict"
RECOMMEND_PATH = "/v1/recommend"
_SHOWN_CHARACTERS = 60


class ErrorCode(StrEnum):
    """Machine-readable reasons of this protocol's own; a refusal's code is its `RefusalReason`."""

    INVALID_JSON = "InvalidJson"
    INVALID_BINARY = "InvalidBinary"
    INVALID_TYPE = "InvalidType"
    INVALID_VALUE = "InvalidValue"
    UNKNOWN_FIELD = "UnknownField"
    MISSING_FIELD = "MissingField"
    EMPTY_NODES = "EmptyNodes"
    TOO_MANY_NODES = "TooManyNodes"
    UNKNOWN_NODE = "UnknownNode"
    WRONG_TASK = "WrongTask"
    EMPTY_PAIRS = "EmptyPairs"
    TOO_MANY_PAIRS = "TooManyPairs"
    WRONG_NODE_TYPE = "WrongNodeType"
    UNKNOWN_MODEL = "UnknownModel"
    UNKNOWN_VARIANT = "UnknownVariant"
    VARIANT_UNABLE = "VariantUnable"
    NO_EMBEDDINGS = "NoEmbeddings"
    NO_BINARY_LABELS = "NoBinaryLabels"
    NO_BINARY_NODES = "NoBinaryNodes"
    NO_INDEX = "NoIndex"
    NO_RECOMMENDATIONS = "NoRecommendations"
    NO_OVERLAYS = "NoOverlays"
    STORED_NODE = "StoredNode"
    REPEATED_NODE = "RepeatedNode"
    UNKNOWN_COLUMN = "UnknownColumn"
    MISSING_COLUMN = "MissingColumn"
    WRONG_FEATURES = "WrongFeatures"
    TOO_MANY_OVERLAY_NODES = "TooManyOverlayNodes"
    TOO_MANY_OVERLAY_EDGES = "TooManyOverlayEdges"
    OVERLAY_TOO_LARGE = "OverlayTooLarge"
    NO_UPDATES = "NoUpdates"
    EMPTY_CHANGES = "EmptyChanges"
    TOO_MANY_CHANGES = "TooManyChanges"
    UNKNOWN_LABEL = "UnknownLabel"
    NO_ROOM = "NoRoom"
    NOT_APPLIED = "NotApplied"
    OFFSET_NOT_REACHED = "OffsetNotReached"
    TIMED_OUT = "TimedOut"
    LOG_UNAVAILABLE = "LogUnavailable"
    LOG_FULL = "LogFull"
    LOG_CONFLICT = "LogConflict"
    SEQUENCE_PASSED = "SequencePassed"
    BODY_TOO_LARGE = "BodyTooLarge"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    HEAD_TOO_LARGE = "HeadTooLarge"
    MALFORMED_REQUEST = "MalformedRequest"
    UNSUPPORTED_CODING = "UnsupportedCoding"
    UNSUPPORTED_ENCODING = "UnsupportedEncoding"
    INVALID_ENCODING = "InvalidEncoding"
    UNSUPPORTED_VERSION = "UnsupportedVersion"
    EXPECTATION_FAILED = "ExpectationFailed"
    UNAUTHORIZED = "Unauthorized"
    NO_WRITING = "NoWriting"
    TOO_MANY_CONNECTIONS = "TooManyConnections"
    NOT_FOUND = "NotFound"
    INTERNAL_ERROR = "InternalError"
    CLIENT_GONE = "ClientGone"
    """The client has disconnected; this is only counted."""


class RequestError(InputError):
    """The client must change the request."""

    def __init__(
        self, code: ErrorCode, where: str, problem: str, remedy: str = "", *, allowed_method: str = ""
    ) -> None:
        """`allowed_method`: the one that the path has, where the request's is not possible."""
        super().__init__(where, problem, remedy)
        self.code = code
        self.allowed_method = allowed_method


def wrong_method(method: str, path: str, allowed: str) -> RequestError:
    return RequestError(
        ErrorCode.METHOD_NOT_ALLOWED, path, f"{method} is not possible", f"use {allowed}", allowed_method=allowed
    )


def unauthorized(which: str) -> RequestError:
    """`which`: the token that is needed, as in `that may write`."""
    # The same words whether a token is missing or wrong, and nothing of what was sent.
    return RequestError(
        ErrorCode.UNAUTHORIZED,
        "Authorization",
        f"this needs a token {which}",
        "send `Authorization: Bearer` and the token",
    )


class Question(msgspec.Struct, frozen=True):
    """A request that can be answered."""

    # A msgspec struct, as all that is made per request: it costs a sixth of a frozen dataclass.
    nodes: np.ndarray
    """int64, positions in the graph, all in range; N + k for overlay node k."""
    objective: Objective
    strict: bool
    outputs: tuple[str, ...]
    """Requested outputs, without repetition."""
    overlay: Overlay | None = None
    """What the request brings; arranged against the revision that its nodes were found in."""
    seed: int | None = None
    """What its draws depend on; None: the batch's key."""
    variant: str | None = None
    """The variant that is to answer, which can; None: the one that routing and load call for."""
    form: Any = None
    """What its items keep so that they are made of the answer; None: they keep nothing."""
    timeout_ms: float | None = None
    """Time from its arrival after which its client wants no answer any more; None: there is no such time."""
    priority: int = DEFAULT_PRIORITY
    answer_form: Any = None
    """What its codec keeps of the request for the answer."""


def unknown_model(name: str, service: str) -> RequestError:
    return RequestError(
        ErrorCode.UNKNOWN_MODEL, "model", f"there is no model {shown_value(name)}", f"this worker serves {service}"
    )


def check_node_count(
    count: int, max_nodes: int, otherwise: str = ", or raise spec.worker.batching.maxQueuedSeeds"
) -> None:
    """`otherwise`: what helps against too many, beside splitting the list."""
    if not count:
        raise RequestError(ErrorCode.EMPTY_NODES, "nodes", "the list is empty", "name at least one node id")
    if count > max_nodes:
        raise RequestError(
            ErrorCode.TOO_MANY_NODES,
            "nodes",
            f"{count:,} nodes, more than the {max_nodes:,} that one request may have",
            f"split the list over several requests{otherwise}",
        )


def shown_value(value: Any) -> str:
    """A value as JSON, for a message."""
    return cut(msgspec.json.encode(value).decode())


def counted(count: int, thing: str) -> str:
    return f"1 {thing}" if count == 1 else f"{count:,} {thing}s"


def cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
