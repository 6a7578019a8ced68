"""The requests of a run, encoded before its clock starts: drawing ids must not cost time while measuring."""

from __future__ import annotations

import math
import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from gnnserve_api.http.protocol import PredictRequest
from gnnserve_api.objective import Objective
from gnnserve_client.address import Endpoint
from gnnserve_client.timing import ALL_TIMES, TIMING_HEADER

DRAWN_SEEDS = 500_000
"""Ids drawn for a run: enough that caches see a spread of the graph, and half a second of drawing at most."""
MOST_BODIES = 1024
MOST_SIZES = 8192
"""Bodies where sizes are drawn too: their mean is then within 2 % of what was asked for."""
SIZE_SIGMA = 0.8
"""Standard deviation of a log-normal size's logarithm: the middle two thirds lie between 0.33 and 1.6 times the
mean."""
MOST_OF_MEAN = 32 / 3
"""Largest log-normal size over the mean: 512 for a mean of 48; 4 of 10,000 are larger."""

_TIMING_LINE = f"\r\n{TIMING_HEADER}: {ALL_TIMES}\r\n".encode()


class Sizes(StrEnum):
    FIXED = "fixed"
    """Every request has the same number of seeds."""
    LOGNORMAL = "lognormal"
    """Log-normal around the mean: many small ones, a few large ones."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Sent in turn, from the first again after the last; `payloads` are whole HTTP requests."""

    payloads: Sequence[bytes]
    seeds_each: int
    """The mean where sizes differ; 0: not predictions."""
    sizes: Sequence[int] = ()
    """Seeds of each payload, where they differ."""

    def __getitem__(self, number: int) -> bytes:
        return self.payloads[number % len(self.payloads)]

    def seeds_of(self, number: int) -> int:
        return self.sizes[number % len(self.sizes)] if self.sizes else self.seeds_each


def build_predictions(
    endpoint: Endpoint,
    nodes: int | Sequence[int | str],
    seeds_each: int,
    objective: Objective | None,
    seed: int,
    *,
    binary: bool = False,
    sizes: Sizes = Sizes.FIXED,
    variant: str | None = None,
    priority: int | None = None,
) -> Requests:
    """Ids are uniform over `nodes`, or over 0 to `nodes` - 1, and distinct within a request where there are enough.

    JSON asks for labels, the binary form for scores: what each answers with when nothing is said.
    """
    ids = range(nodes) if isinstance(nodes, int) else nodes
    generator = random.Random(seed)  # noqa: S311 - load, not secrets
    drawn_sizes = _draw_sizes(seeds_each, seed) if sizes is Sizes.LOGNORMAL else ()
    bodies = max(8, min(MOST_BODIES, DRAWN_SEEDS // seeds_each))
    payloads = []
    for size in drawn_sizes or (seeds_each,) * bodies:
        draw = generator.sample if size <= len(ids) else generator.choices
        drawn: tuple[Any, ...] = tuple(draw(ids, k=size))
        if binary:
            body, content_type = _to_bytes(drawn), "application/octet-stream"
            wishes = headers_of(objective, variant, priority)
        else:
            body = msgspec.json.encode(PredictRequest(drawn, objective, variant=variant, priority=priority))
            wishes, content_type = [], "application/json"
        payloads.append(encode_prediction(endpoint, body, wishes, content_type))
    return Requests(payloads, seeds_each, drawn_sizes)


def _draw_sizes(mean: int, seed: int) -> tuple[int, ...]:
    generator = random.Random(f"sizes {seed}")  # noqa: S311 - load, not secrets; a stream apart from the ids'
    mu = math.log(mean) - SIZE_SIGMA**2 / 2
    most = math.ceil(mean * MOST_OF_MEAN)
    bodies = max(8, min(MOST_SIZES, DRAWN_SEEDS // mean))
    return tuple(min(most, max(1, round(generator.lognormvariate(mu, SIZE_SIGMA)))) for _ in range(bodies))


def _to_bytes(ids: Sequence[int]) -> bytes:
    values = array("q", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def headers_of(objective: Objective | None, variant: str | None, priority: int | None = None) -> list[str]:
    """What the head of a binary request says of these."""
    headers = [] if variant is None else [f"gnnserve-variant: {variant}"]
    if priority is not None:
        headers.append(f"gnnserve-priority: {priority}")
    if objective is not None and objective.latency_ms is not None:
        headers.append(f"gnnserve-latency-ms: {objective.latency_ms!r}")
    if objective is not None and objective.accuracy_tolerance_permille is not None:
        headers.append(f"gnnserve-accuracy-tolerance-permille: {objective.accuracy_tolerance_permille!r}")
    return headers


def asking_for_times(payload: bytes) -> bytes:
    """The same request, to which the server tells all of its times."""
    return payload.replace(b"\r\n", _TIMING_LINE, 1)


def encode_prediction(endpoint: Endpoint, body: bytes, wishes: Sequence[str], content_type: str) -> bytes:
    """`wishes`: headers that say what the body does not."""
    return _encode(endpoint, "POST", "/v1/predict", body, [f"Content-Type: {content_type}", *wishes])


def _encode(endpoint: Endpoint, method: str, path: str, body: bytes, headers: Sequence[str]) -> bytes:
    head = [f"{method} {path} HTTP/1.1", f"Host: {endpoint.authority}"]
    head += [f"{name}: {value}" for name, value in endpoint.headers.items()]
    if body:
        head += [*headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body
