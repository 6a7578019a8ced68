"""Requests that bring new nodes, which are asked for, with edges from stored nodes."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gnnserve_api.http.protocol import NodeFeatures, PredictRequest, RequestOverlay
from gnnserve_api.objective import Objective
from gnnserve_cli.loadgen.requests import MOST_BODIES, Requests, encode_prediction, headers_of
from gnnserve_client.address import Endpoint

OVERLAY_TYPE = "application/vnd.gnnserve.overlay"
DRAWN_FEATURES = 1_000_000
"""Features drawn for a run: half a second of drawing at most."""
_FIRST_INTEGER = 2**62
"""Id of the first new node where ids are integers: beyond any graph's positions."""
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Unseen:
    """Overlays that requests bring."""

    nodes: int
    edges: int
    """Edges of each new node."""
    features: int
    """Features of a node."""


def build_unseen(
    endpoint: Endpoint,
    stored: int | Sequence[int | str],
    unseen: Unseen,
    objective: Objective | None,
    seed: int,
    *,
    binary: bool = False,
    variant: str | None = None,
    priority: int | None = None,
) -> Requests:
    """Features are uniform from 0 to 1, and sources of edges uniform over `stored`, or over 0 to `stored` - 1."""
    ids = range(stored) if isinstance(stored, int) else stored
    draw = random.Random(seed)  # noqa: S311 - load, not secrets
    drawn_each = unseen.nodes * (unseen.features + unseen.edges)
    bodies = max(8, min(MOST_BODIES, DRAWN_FEATURES // max(1, drawn_each)))
    payloads = []
    for _ in range(bodies):
        rows = [[round(draw.random(), _DIGITS) for _ in range(unseen.features)] for _ in range(unseen.nodes)]
        sources = [draw.choices(ids, k=unseen.edges) for _ in range(unseen.nodes)]
        if binary:
            body = _to_bytes(rows, sources)
            wishes = headers_of(objective, variant, priority)
            payloads.append(encode_prediction(endpoint, body, wishes, OVERLAY_TYPE))
        else:
            request = _to_request(rows, sources, objective, variant, priority, are_texts=isinstance(ids[0], str))
            payloads.append(encode_prediction(endpoint, msgspec.json.encode(request), (), "application/json"))
    return Requests(payloads, unseen.nodes)


def _to_request(
    rows: list[list[float]],
    sources: list[list[int | str]],
    objective: Objective | None,
    variant: str | None,
    priority: int | None,
    *,
    are_texts: bool,
) -> PredictRequest[Any]:
    new: list[Any] = [f"gnnserve load {k}" if are_texts else _FIRST_INTEGER + k for k in range(len(rows))]
    return PredictRequest(
        tuple(new),
        objective,
        overlay=RequestOverlay(
            nodes=tuple(NodeFeatures(id_, row) for id_, row in zip(new, rows, strict=True)),
            edges=tuple((source, id_) for id_, drawn in zip(new, sources, strict=True) for source in drawn),
        ),
        variant=variant,
        priority=priority,
    )


def _to_bytes(rows: list[list[float]], sources: list[list[Any]]) -> bytes:
    new = len(rows)
    integers = array("q", [new, new, sum(map(len, sources)), 0])
    integers.extend(-1 - k for k in range(new))
    for k, drawn in enumerate(sources):
        for source in drawn:
            integers.extend((source, -1 - k))
    numbers = array("f", [number for row in rows for number in row])
    if sys.byteorder == "big":
        integers.byteswap()
        numbers.byteswap()
    return integers.tobytes() + numbers.tobytes()
