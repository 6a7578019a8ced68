"""What the head of a request asks for, in whatever form its body is: objective, priority, seed, variant and others.

What the body says of the same goes first; a codec puts the two together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from gnnserve_api.changes import MIN_OFFSET_HEADER
from gnnserve_api.objective import NO_OBJECTIVE, Objective
from gnnserve_api.priority import DEFAULT_PRIORITY
from gnnserve_worker.asking.question import (
    OFFSET_REMEDY,
    PRIORITY_REMEDY,
    SEED_REMEDY,
    ErrorCode,
    RequestError,
    check_objective,
    check_priority,
    check_seed,
    check_timeout,
    cut,
)

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
WISH_HEADERS = frozenset(
    (
        LATENCY_HEADER,
        TOLERANCE_HEADER,
        STRICT_HEADER,
        SEED_HEADER,
        VARIANT_HEADER,
        OFFSET_WISH_HEADER,
        TIMEOUT_HEADER,
        PRIORITY_HEADER,
        ENVOY_TIMEOUT_HEADER,
        TIMING_HEADER,
    )
)
HEADERS_REMEDY = (
    f"headers have the rest: {LATENCY_HEADER.decode()}, {TOLERANCE_HEADER.decode()}, {STRICT_HEADER.decode()}, "
    f"{SEED_HEADER.decode()}, {VARIANT_HEADER.decode()}, {OFFSET_WISH_HEADER.decode()}, {TIMEOUT_HEADER.decode()}, "
    f"{PRIORITY_HEADER.decode()}"
)
"""What to do about a parameter of the query that would be a wish."""


class Wishes(msgspec.Struct, frozen=True):
    """What the head of a request asks for; the body may say otherwise."""

    objective: Objective = NO_OBJECTIVE
    strict: bool = False
    seed: int | None = None
    min_offset: int | None = None
    variant: str | None = None
    timeout_ms: float | None = None
    priority: int = DEFAULT_PRIORITY
    all_times: bool = False
    """Tell reading the request and writing its answer too, in `Server-Timing`."""


NO_WISHES = Wishes()


def check_stated_once(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check that no wish stands in two headers, of which each reader might take another one.

    `headers`: all of a request's, names in lower case.
    """
    names = [name for name, _ in headers if name in WISH_HEADERS]
    for name in names:
        if names.count(name) > 1:
            problem = f"the request has {names.count(name)} of these headers"
            raise RequestError(ErrorCode.INVALID_VALUE, name.decode(), problem, "send one")


def read_wishes(headers: Mapping[bytes, bytes]) -> Wishes:
    """`headers`: names in lower case."""
    objective = Objective(
        _read_number(headers, LATENCY_HEADER, "give milliseconds as a number, or leave the header out"),
        _read_number(headers, TOLERANCE_HEADER, "give permille as a number (10 is one point), or leave the header out"),
    )
    check_objective(objective, LATENCY_HEADER.decode(), TOLERANCE_HEADER.decode())
    strict = headers.get(STRICT_HEADER, b"false").strip().lower()
    if strict not in {b"true", b"false"}:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            STRICT_HEADER.decode(),
            f"{_shown(strict)} is not possible here",
            "give true or false",
        )
    seed, min_offset, variant = map(headers.get, (SEED_HEADER, OFFSET_WISH_HEADER, VARIANT_HEADER))
    priority = read_whole(headers.get(PRIORITY_HEADER, b"0"), PRIORITY_HEADER, PRIORITY_REMEDY)
    return Wishes(
        objective,
        strict == b"true",
        None if seed is None else check_seed(read_whole(seed, SEED_HEADER, SEED_REMEDY), SEED_HEADER.decode()),
        None if min_offset is None else read_whole(min_offset, OFFSET_WISH_HEADER, OFFSET_REMEDY),
        None if variant is None else variant.strip(b" \t").decode("utf-8", "replace"),
        _read_timeout(headers),
        check_priority(priority, PRIORITY_HEADER.decode()),
        _wants_all_times(headers.get(TIMING_HEADER)),
    )


def _read_timeout(headers: Mapping[bytes, bytes]) -> float | None:
    """The client's own, or the gateway's before it if that is shorter."""
    remedy = "give milliseconds as a number, or leave the header out"
    own = _read_number(headers, TIMEOUT_HEADER, remedy)
    gateways = _read_number(headers, ENVOY_TIMEOUT_HEADER, remedy) or None
    found = [
        check_timeout(timeout_ms, name.decode())
        for timeout_ms, name in ((own, TIMEOUT_HEADER), (gateways, ENVOY_TIMEOUT_HEADER))
        if timeout_ms is not None
    ]
    return min(found) if found else None


def _wants_all_times(value: bytes | None) -> bool:
    if value is None or value.strip(b" \t").lower() == b"all":
        return value is not None
    raise RequestError(
        ErrorCode.INVALID_VALUE,
        TIMING_HEADER.decode(),
        f"{_shown(value.strip())} is not possible here",
        "give all, or leave the header out",
    )


def read_whole(value: bytes, name: bytes, remedy: str) -> int:
    """The number from 0 that is a header's value."""
    text = value.strip(b" \t")
    # 20 digits are more than any such number has, and Python refuses to read thousands of them.
    if not re.fullmatch(rb"\d{1,20}", text):
        raise RequestError(ErrorCode.INVALID_VALUE, name.decode(), f"{_shown(text)} is no whole number", remedy)
    return int(text)


def _read_number(headers: Mapping[bytes, bytes], name: bytes, remedy: str) -> float | None:
    value = headers.get(name)
    if value is None:
        return None
    text = value.strip(b" \t")  # around a header's value they mean nothing
    # JSON's numbers: float() would take underscores, blanks and NaN too.
    if not re.fullmatch(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?", text):
        raise RequestError(ErrorCode.INVALID_VALUE, name.decode(), f"{_shown(text)} is not a number", remedy)
    return float(text)


def _shown(text: bytes) -> str:
    return repr(cut(text.decode("ascii", "replace")))
