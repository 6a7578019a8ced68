"""The requests of a run, encoded before its clock starts: drawing ids must not cost time while measuring."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gnnserve_api.objective import Objective
from gnnserve_api.protocol import PredictRequest
from gnnserve_cli.client import Endpoint

DRAWN_SEEDS = 500_000
"""Ids drawn for a run: enough that caches see a spread of the graph, and half a second of drawing at most."""
MOST_BODIES = 1024


@dataclass(frozen=True, slots=True)
class Requests:
    """Sent in turn, from the first again after the last; `payloads` are whole HTTP requests."""

    payloads: Sequence[bytes]
    seeds_each: int

    def __getitem__(self, number: int) -> bytes:
        return self.payloads[number % len(self.payloads)]


def build_predictions(
    endpoint: Endpoint, nodes: int, seeds_each: int, objective: Objective | None, seed: int, *, binary: bool = False
) -> Requests:
    """Node ids are uniform over the graph, and distinct within a request where the graph has enough.

    JSON asks for labels, the binary form for scores: what each answers with when nothing is said.
    """
    generator = random.Random(seed)  # noqa: S311 - load, not secrets
    bodies = max(8, min(MOST_BODIES, DRAWN_SEEDS // seeds_each))
    payloads = []
    for _ in range(bodies):
        draw = generator.sample if seeds_each <= nodes else generator.choices
        ids = tuple(draw(range(nodes), k=seeds_each))
        if binary:
            payloads.append(_encode(endpoint, "POST", "/v1/predict", _to_bytes(ids), _binary_headers(objective)))
        else:
            body = msgspec.json.encode(PredictRequest(ids, objective))
            payloads.append(_encode(endpoint, "POST", "/v1/predict", body, ["Content-Type: application/json"]))
    return Requests(payloads, seeds_each)


def build_get(endpoint: Endpoint, path: str) -> Requests:
    """A request without work behind it: the floor that HTTP itself sets."""
    return Requests([_encode(endpoint, "GET", path, b"", [])], 0)


def _to_bytes(ids: Sequence[int]) -> bytes:
    values = array("q", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _binary_headers(objective: Objective | None) -> list[str]:
    headers = ["Content-Type: application/octet-stream"]
    if objective is not None and objective.latency_ms is not None:
        headers.append(f"gnnserve-latency-ms: {objective.latency_ms!r}")
    if objective is not None and objective.accuracy_tolerance_permille is not None:
        headers.append(f"gnnserve-accuracy-tolerance-permille: {objective.accuracy_tolerance_permille!r}")
    return headers


def _encode(endpoint: Endpoint, method: str, path: str, body: bytes, headers: Sequence[str]) -> bytes:
    head = [f"{method} {path} HTTP/1.1", f"Host: {endpoint.authority}"]
    if body:
        head += [*headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body
