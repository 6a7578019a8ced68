"""Contents of a request beside its items, and errors of requests, whatever the protocol.

A message names the field, the value, what was expected and what to do. What depends on the revision is checked by its
task, its graph and `resolve` in `serving/http/predict.py`.

Wishes are all that a request asks for beside its items: objective, priority, seed, variant and others. A row of
`WISHES` has all that differs between two of them: what each protocol calls it, which values are possible, and what to
do about others. So every protocol refuses the same by the same sentence. A wish may stand in the head of a request and
in its body, which goes first (`Wishes.or_else`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET

from gnnserve_api.errors import InputError
from gnnserve_api.http.changes import MIN_OFFSET_HEADER
from gnnserve_api.http.protocol import MAX_OFFSET, MAX_SEED
from gnnserve_api.objective import LOWEST_PRIORITY, NO_OBJECTIVE, Objective

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


MAX_LATENCY_MS = 3_600_000
MAX_TOLERANCE_PERMILLE = 1000
LATENCY_HEADER = b"gnnserve-latency-ms"
TOLERANCE_HEADER = b"gnnserve-accuracy-tolerance-permille"
STRICT_HEADER = b"gnnserve-strict"
SEED_HEADER = b"gnnserve-seed"
VARIANT_HEADER = b"gnnserve-variant"
"""In a request the variant that is to answer, in a binary answer the one that did."""
OFFSET_WISH_HEADER = MIN_OFFSET_HEADER.encode()
TIMEOUT_HEADER = b"gnnserve-timeout-ms"
PRIORITY_HEADER = b"gnnserve-priority"
ENVOY_TIMEOUT_HEADER = b"x-envoy-expected-rq-timeout-ms"
"""Milliseconds after which a gateway on Envoy gives the request up; 0: never."""
TIMING_HEADER = b"gnnserve-timing"
"""A request with `all` in it wants all entries of `Server-Timing`."""
LATENCY_BOUNDS = {"minimum": 0, "exclusiveMinimum": True, "maximum": MAX_LATENCY_MS}
"""In JSON Schema."""
TOLERANCE_BOUNDS = {"minimum": 0, "maximum": MAX_TOLERANCE_PERMILLE}
_MILLISECONDS = "give milliseconds as a number, or leave the header out"


class Wishes(msgspec.Struct, frozen=True):
    """Wishes of a request, or of one part of it. A default says that nothing is wished."""

    objective: Objective = NO_OBJECTIVE
    strict: bool | None = None
    # As in `WISHES`.
    seed: int | None = None
    variant: str | None = None
    min_offset: int | None = None
    timeout_ms: float | None = None
    priority: int | None = None
    all_times: bool = False
    """Tell reading the request and writing its answer too, in `Server-Timing`. Heads alone ask for it."""

    def or_else(self, others: Wishes) -> Wishes:
        """Merge with others, of which those count that are not stated here."""
        if others is NO_WISHES:
            return self
        pairs = zip(_stated(self), _stated(others), _NOT_STATED, strict=True)
        return Wishes(*(other if own == nothing else own for own, other, nothing in pairs))

    def may_choose(self) -> bool:
        """Whether a request with these may be accepted where one without them is refused."""
        return self.objective != NO_OBJECTIVE or any(getattr(self, one.field) is not None for one in _CHOOSING)


NO_WISHES = Wishes()
_stated = attrgetter(*Wishes.__struct_fields__)
_NOT_STATED = _stated(NO_WISHES)


# Values


def check_objective(objective: Objective, latency_field: str, tolerance_field: str) -> None:
    latency = objective.latency_ms
    if latency is not None and not 0 < latency <= MAX_LATENCY_MS:
        raise _out_of_range(
            latency_field, f"{latency:,.15g}", f"give milliseconds above 0 and at most {MAX_LATENCY_MS:,}"
        )
    tolerance = objective.accuracy_tolerance_permille
    if tolerance is not None and not 0 <= tolerance <= MAX_TOLERANCE_PERMILLE:
        remedy = f"give permille from 0 to {MAX_TOLERANCE_PERMILLE:,}; 10 is one point of accuracy"
        raise _out_of_range(tolerance_field, f"{tolerance:,.15g}", remedy)


def _check_seed(seed: int, where: str) -> int:
    if not 0 <= seed <= MAX_SEED:
        raise _out_of_range(where, shown_value(seed), SEED.remedy)
    return seed


def _check_offset(offset: int, where: str) -> int:
    if not 0 <= offset <= MAX_OFFSET:
        raise _out_of_range(where, shown_value(offset), MIN_OFFSET.remedy)
    return offset


def _check_timeout(timeout_ms: float, where: str) -> float:
    if not 0 < timeout_ms <= MAX_LATENCY_MS:
        remedy = f"give milliseconds above 0 and at most {MAX_LATENCY_MS:,}, or leave it out"
        raise _out_of_range(where, f"{timeout_ms:,.15g}", remedy)
    return timeout_ms


def _check_priority(priority: int, where: str) -> int | None:
    """Triton's clients have 0 for the default."""
    if not 0 <= priority <= LOWEST_PRIORITY:
        raise _out_of_range(where, shown_value(priority), PRIORITY.remedy)
    return priority or None


def _out_of_range(where: str, shown: str, remedy: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_VALUE, where, f"{shown} is out of range", remedy)


def _as_it_is(value: Any, _where: str) -> Any:
    return value


# Texts of headers


def read_whole(value: bytes, name: bytes, remedy: str) -> int:
    """The number from 0 that is a header's value."""
    text = value.strip(b" \t")
    # 20 digits are more than any such number has, and Python refuses to read thousands of them.
    if not re.fullmatch(rb"\d{1,20}", text):
        raise RequestError(ErrorCode.INVALID_VALUE, name.decode(), f"{_shown(text)} is no whole number", remedy)
    return int(text)


def _read_number(value: bytes, name: bytes, remedy: str) -> float:
    text = value.strip(b" \t")  # around a header's value they mean nothing
    # JSON's numbers: float() would take underscores, blanks and NaN too.
    if not re.fullmatch(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?", text):
        raise RequestError(ErrorCode.INVALID_VALUE, name.decode(), f"{_shown(text)} is not a number", remedy)
    return float(text)


def _read_milliseconds(value: bytes, name: bytes, _remedy: str) -> float:
    return _read_number(value, name, _MILLISECONDS)


def _read_text(value: bytes, _name: bytes, _remedy: str) -> str:
    return value.strip(b" \t").decode("utf-8", "replace")


def _shown(text: bytes) -> str:
    return repr(cut(text.decode("ascii", "replace")))


# The table


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """A wish beside the objective and whether that is strict."""

    field: str
    """Attribute of `Wishes`."""
    member: str
    """Its name in JSON."""
    header: bytes
    parameter: str
    """Its name among the parameters of the Open Inference Protocol, an integer; empty: there is none."""
    type: str
    """Its type in JSON Schema."""
    bounds: Mapping[str, Any]
    """Which values are possible, in JSON Schema."""
    remedy: str
    check: Callable[[Any, str], Any] = _as_it_is
    """The value as `Wishes` has it. Raises RequestError, which names the place."""
    of_header: Callable[[bytes, bytes, str], Any] = read_whole
    """Reads the header of that name, with the remedy."""
    of_parameter: Callable[[int], Any] = lambda value: value
    """The parameter's value as `check` takes it; None: it counts as absent."""
    chooses: bool = False
    """Whether a request with it may be accepted where one without it is refused, so that it has to be read."""


SEED = Wish(
    "seed", "seed", SEED_HEADER, "seed", "integer", {"minimum": 0, "maximum": MAX_SEED},
    f"give an integer from 0 to {MAX_SEED}, or leave it out", _check_seed,
)  # fmt: skip
VARIANT = Wish(
    "variant", "variant", VARIANT_HEADER, "", "string", {},
    "give the name of a variant, one of GET /v1/variants, or leave it out", of_header=_read_text, chooses=True,
)  # fmt: skip
MIN_OFFSET = Wish(
    "min_offset", "minOffset", OFFSET_WISH_HEADER, "min_offset", "integer", {"minimum": 0, "maximum": MAX_OFFSET},
    f"give an offset of the log, an integer from 0 to {MAX_OFFSET}, or leave it out", _check_offset,
)  # fmt: skip
TIMEOUT = Wish(
    "timeout_ms", "timeoutMs", TIMEOUT_HEADER, "timeout", "number", LATENCY_BOUNDS,
    "give milliseconds as a number, or leave it out", _check_timeout, _read_milliseconds,
    of_parameter=lambda timeout_us: timeout_us / 1000 if timeout_us else None,  # Triton's: 0 for none
)  # fmt: skip
PRIORITY = Wish(
    "priority", "priority", PRIORITY_HEADER, "priority", "integer", {"minimum": 0, "maximum": LOWEST_PRIORITY},
    f"give an integer from 1, the highest, to {LOWEST_PRIORITY}, or leave it out", _check_priority, chooses=True,
)  # fmt: skip
WISHES = (SEED, VARIANT, MIN_OFFSET, TIMEOUT, PRIORITY)
"""In the order in which messages list them."""
_CHOOSING = tuple(wish for wish in WISHES if wish.chooses)
CHOOSING_MEMBERS = ("objective", *(wish.member for wish in _CHOOSING))
"""Members of JSON because of which a body has to be parsed before its request is refused."""
CHOOSING_PARAMETERS = (
    "latency_ms", "accuracy_tolerance_permille", *(wish.parameter for wish in _CHOOSING if wish.parameter)
)  # fmt: skip

IN_HEAD = MappingProxyType({wish.field: wish.header.decode() for wish in WISHES})
"""Where the head of a request has each wish, by its field."""
IN_BODY = MappingProxyType({wish.field: wish.member for wish in WISHES})
IN_PARAMETERS = MappingProxyType(
    {wish.field: f"parameters.{wish.parameter}" for wish in WISHES} | {VARIANT.field: "version"}
)
_OBJECTIVE_HEADERS = (LATENCY_HEADER, TOLERANCE_HEADER, STRICT_HEADER)
WISH_HEADERS = frozenset(
    (*_OBJECTIVE_HEADERS, *(wish.header for wish in WISHES), ENVOY_TIMEOUT_HEADER, TIMING_HEADER)
)  # fmt: skip
HEADERS_REMEDY = "headers have the rest: " + ", ".join(
    header.decode() for header in (*_OBJECTIVE_HEADERS, *(wish.header for wish in WISHES))
)
"""What to do about a parameter of the query that would be a wish."""


def _wishes(
    objective: Objective, strict: bool | None, given: Sequence[Any], places: Mapping[str, str]
) -> Wishes:  # fmt: skip
    """`given`: values in the order of `WISHES`, which are checked; None: not wished."""
    if given == _NONE_GIVEN:  # an objective alone is what most ask for
        return Wishes(objective, strict)
    values: list[Any] = [
        value if value is None else wish.check(value, places[wish.field])
        for wish, value in zip(WISHES, given, strict=True)
    ]
    return Wishes(objective, strict, *values)


# JSON

given_in = attrgetter("objective", "strict", *(wish.field for wish in WISHES))
"""All wishes of a request in JSON, as it has them."""
_NONE_GIVEN = tuple(None for _ in WISHES)
NOTHING_GIVEN = (None, UNSET, *_NONE_GIVEN)
"""As `given_in` has it of a request without any."""


def wishes_of_body(given: Sequence[Any]) -> Wishes:
    """`given`: as of `given_in`."""
    objective, strict = given[0], given[1]
    if objective is None:
        objective = NO_OBJECTIVE
    else:
        check_objective(objective, "objective.latencyMs", "objective.accuracyTolerancePermille")
    return _wishes(objective, None if strict is UNSET else strict, given[2:], IN_BODY)


# The Open Inference Protocol


def wishes_of_parameters(objective: Objective, strict: bool | None, given: Mapping[str, int]) -> Wishes:
    """`given`: integers, by the name of the parameter."""
    check_objective(objective, "parameters.latency_ms", "parameters.accuracy_tolerance_permille")
    values = tuple(wish.of_parameter(given[wish.parameter]) if wish.parameter in given else None for wish in WISHES)
    return _wishes(objective, strict, values, IN_PARAMETERS)


# Heads


def check_stated_once(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check that no wish stands in two headers, of which each reader might take another one.

    `headers`: all of a request's, names in lower case.
    """
    names = [name for name, _ in headers if name in WISH_HEADERS]
    for name in names:
        if names.count(name) > 1:
            problem = f"the request has {names.count(name)} of these headers"
            raise RequestError(ErrorCode.INVALID_VALUE, name.decode(), problem, "send one")


def wishes_of_head(headers: Mapping[bytes, bytes]) -> Wishes:
    """`headers`: names in lower case."""
    objective = Objective(
        _number_in(headers, LATENCY_HEADER, _MILLISECONDS),
        _number_in(headers, TOLERANCE_HEADER, "give permille as a number (10 is one point), or leave the header out"),
    )
    check_objective(objective, LATENCY_HEADER.decode(), TOLERANCE_HEADER.decode())
    strict = headers.get(STRICT_HEADER)
    given = tuple(
        wish.of_header(headers[wish.header], wish.header, wish.remedy) if wish.header in headers else None
        for wish in WISHES
    )
    wishes = _wishes(objective, None if strict is None else _read_flag(strict, STRICT_HEADER), given, IN_HEAD)
    if TIMING_HEADER in headers:
        wishes = msgspec.structs.replace(wishes, all_times=_wants_all_times(headers[TIMING_HEADER]))
    gateways_ms = _number_in(headers, ENVOY_TIMEOUT_HEADER, _MILLISECONDS)
    if not gateways_ms:
        return wishes
    _check_timeout(gateways_ms, ENVOY_TIMEOUT_HEADER.decode())
    own_ms = wishes.timeout_ms
    return msgspec.structs.replace(wishes, timeout_ms=gateways_ms if own_ms is None else min(own_ms, gateways_ms))


def _number_in(headers: Mapping[bytes, bytes], name: bytes, remedy: str) -> float | None:
    value = headers.get(name)
    return None if value is None else _read_number(value, name, remedy)


def _read_flag(value: bytes, name: bytes) -> bool:
    text = value.strip().lower()
    if text in {b"true", b"false"}:
        return text == b"true"
    problem = f"{_shown(text)} is not possible here"
    raise RequestError(ErrorCode.INVALID_VALUE, name.decode(), problem, "give true or false")


def _wants_all_times(value: bytes) -> bool:
    if value.strip(b" \t").lower() == b"all":
        return True
    problem = f"{_shown(value.strip())} is not possible here"
    raise RequestError(
        ErrorCode.INVALID_VALUE, TIMING_HEADER.decode(), problem, "give all, or leave the header out"
    )  # fmt: skip
