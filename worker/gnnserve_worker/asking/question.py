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
    """The body is not JSON."""
    INVALID_BINARY = "InvalidBinary"
    """The binary body has not the length that its counts say, or no whole number of int64."""
    INVALID_TYPE = "InvalidType"
    """A field has another type than expected."""
    INVALID_VALUE = "InvalidValue"
    """A number is out of range, a word unknown, or a header repeated."""
    UNKNOWN_FIELD = "UnknownField"
    """No such field in the body, or parameter behind `?` (JSON requests have none)."""
    MISSING_FIELD = "MissingField"
    """`nodes`, `node`, an overlay node's `id` or `features`, or its edges' features or times are missing."""
    EMPTY_NODES = "EmptyNodes"
    """`nodes` is empty."""
    TOO_MANY_NODES = "TooManyNodes"
    """Split them over several requests."""
    UNKNOWN_NODE = "UnknownNode"
    """Not in the graph: see `GET /v1/nodes`; new nodes go into `overlay.nodes`."""
    WRONG_TASK = "WrongTask"
    """Pairs to a classifying service, or nodes to one of links."""
    EMPTY_PAIRS = "EmptyPairs"
    """`pairs` is empty."""
    TOO_MANY_PAIRS = "TooManyPairs"
    """Split them over several requests."""
    WRONG_NODE_TYPE = "WrongNodeType"
    """A node of a pair has not the type that the relation has at that end."""
    UNKNOWN_MODEL = "UnknownModel"
    """An Open Inference Protocol path names another model."""
    UNKNOWN_VARIANT = "UnknownVariant"
    """The message lists those that there are."""
    VARIANT_UNABLE = "VariantUnable"
    """The named variant cannot do what is asked: name one that can, or none."""
    NO_EMBEDDINGS = "NoEmbeddings"
    """No variant has them: leave `embeddings` out."""
    NO_BINARY_LABELS = "NoBinaryLabels"
    """Lists and strings are no array: ask for `scores`, or send JSON."""
    NO_BINARY_NODES = "NoBinaryNodes"
    """String ids are no array: send JSON, or tensors of `BYTES`."""
    NO_INDEX = "NoIndex"
    """The index of recommendations is not made yet (wait `Retry-After`), or unusable."""
    NO_RECOMMENDATIONS = "NoRecommendations"
    """No recommendations, or no columns to filter by; the message says what to do."""
    NO_OVERLAYS = "NoOverlays"
    """The service takes no overlays; the message says why."""
    STORED_NODE = "StoredNode"
    """A new node has a stored one's id: use another, or `overrides`."""
    REPEATED_NODE = "RepeatedNode"
    """A node is twice among the new ones, or the overrides."""
    UNKNOWN_COLUMN = "UnknownColumn"
    """The source has no such column."""
    MISSING_COLUMN = "MissingColumn"
    """Give the column: it is not filled."""
    WRONG_FEATURES = "WrongFeatures"
    """Not as many numbers as nodes, edges or the column have, or not a row per edge."""
    TOO_MANY_OVERLAY_NODES = "TooManyOverlayNodes"
    """More than `spec.endpoint.overlay.maxNodes`: split the request."""
    TOO_MANY_OVERLAY_EDGES = "TooManyOverlayEdges"
    """More than `spec.endpoint.overlay.maxEdges`: split the request."""
    OVERLAY_TOO_LARGE = "OverlayTooLarge"
    """More than 16 MiB of features, or more values than all limits together allow: split the request."""
    NO_UPDATES = "NoUpdates"
    """The graph does not change, or no variant can follow changes."""
    EMPTY_CHANGES = "EmptyChanges"
    """A batch of changes has none."""
    TOO_MANY_CHANGES = "TooManyChanges"
    """A batch exceeds its limits: split it."""
    UNKNOWN_LABEL = "UnknownLabel"
    """The label is no class, or a list where nodes have one each, or the reverse."""
    NO_ROOM = "NoRoom"
    """Changes fill `spec.updates.maxDelta`: send again after `Retry-After`, or raise it."""
    NOT_APPLIED = "NotApplied"
    """The batch is durable but cannot be applied now: do not send it again."""
    OFFSET_NOT_REACHED = "OffsetNotReached"
    """`minOffset` was not applied in time: send again, or allow more time."""
    TIMED_OUT = "TimedOut"
    """`timeoutMs` passed: allow more, or state a latency."""
    LOG_UNAVAILABLE = "LogUnavailable"
    """The log cannot be read or written; the batch may be durable: send it again with client and sequence."""
    LOG_FULL = "LogFull"
    """Make room for the log of changes."""
    LOG_CONFLICT = "LogConflict"
    """The log lacks the records asked for, or is another service's."""
    SEQUENCE_PASSED = "SequencePassed"
    """The client's sequence is older than compaction: use a higher number."""
    BODY_TOO_LARGE = "BodyTooLarge"
    """More than 16 MiB: split the request."""
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    """The `Allow` header names the method."""
    HEAD_TOO_LARGE = "HeadTooLarge"
    """More than 64 KiB, or 128 headers. Closes the connection."""
    MALFORMED_REQUEST = "MalformedRequest"
    """Not HTTP/1.1, or ambiguous (RFC 9112): no `Host` or two, two lengths, a length beside chunks, folded headers,
    bare line feeds. Closes the connection."""
    UNSUPPORTED_CODING = "UnsupportedCoding"
    """`Transfer-Encoding` is not `chunked` alone. Closes the connection."""
    UNSUPPORTED_ENCODING = "UnsupportedEncoding"
    """`Content-Encoding` is neither `gzip`, `deflate` nor `identity`."""
    INVALID_ENCODING = "InvalidEncoding"
    """The body is not one whole stream of its `Content-Encoding`."""
    UNSUPPORTED_VERSION = "UnsupportedVersion"
    """Not HTTP/1.0 or 1.1. Closes the connection."""
    EXPECTATION_FAILED = "ExpectationFailed"
    """`Expect` is not `100-continue`. Closes the connection."""
    UNAUTHORIZED = "Unauthorized"
    """Send a token."""
    NO_WRITING = "NoWriting"
    """Name tokens that may write."""
    TOO_MANY_CONNECTIONS = "TooManyConnections"
    """Use fewer connections; send again after `Retry-After`. Closes the connection."""
    NOT_FOUND = "NotFound"
    """No such path: see `/docs`."""
    INTERNAL_ERROR = "InternalError"
    """A defect; standard error has the details under the message's id."""
    CLIENT_GONE = "ClientGone"
    """Only in metrics: the client closed its connection (or its sending half, `nc -N`)."""


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
