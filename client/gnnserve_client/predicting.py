"""Predictions: which form a request takes, JSON or arrays, and what its answer holds.

Integer ids go as arrays where one output is asked for, which costs the server a tenth of JSON; everything else goes as
JSON. Whether labels are an array is the graph's matter: the server is tried once, and what it says is remembered.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnnserve_api.errors import InputError
from gnnserve_api.http.changes import MIN_OFFSET_HEADER, OFFSET_HEADER
from gnnserve_api.http.pairs import PairOutput, PairsAnswer
from gnnserve_api.http.protocol import Output, PredictAnswer
from gnnserve_client.arrays import Ids, read_edges, read_ids
from gnnserve_client.asking import ClientState
from gnnserve_client.errors import NotGnnserveError, RefusedError
from gnnserve_client.exchange import Call, ServerReply, Steps
from gnnserve_client.overlay import AnyOverlay, brought_by
from gnnserve_client.prediction import Prediction, labels_array
from gnnserve_client.timing import parse_server_timing

PATH = "/v1/predict"
LATENCY_HEADER = "gnnserve-latency-ms"
TOLERANCE_HEADER = "gnnserve-accuracy-tolerance-permille"
STRICT_HEADER = "gnnserve-strict"
SEED_HEADER = "gnnserve-seed"
VARIANT_HEADER = "gnnserve-variant"
PRIORITY_HEADER = "gnnserve-priority"
BINARY_TYPE = "application/octet-stream"
OVERLAY_TYPE = "application/vnd.gnnserve.overlay"
_OUTPUTS: tuple[Output, ...] = ("labels", "scores", "embeddings")
_PAIR_OUTPUTS: tuple[PairOutput, ...] = ("scores", "probabilities")
_ARRAY_TYPES = {"labels": "<i8", "scores": "<f4", "embeddings": "<f4", "probabilities": "<f4"}
_NOT_AS_ARRAYS = frozenset({"NoBinaryNodes", "NoBinaryLabels"})
"""Codes that say that the same request may be answered in JSON."""


@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """A prediction that is asked for, checked as far as a client can."""

    nodes: Ids
    """[nodes], or [pairs, 2] where pairs are asked about."""
    outputs: tuple[str, ...]
    overlay: AnyOverlay | Mapping[str, Any] | None
    """A mapping: as JSON has it."""
    latency_ms: float | None
    tolerance_permille: float | None
    strict: bool
    variant: str | None
    seed: int | None
    min_offset: int | None
    priority: int | None

    @property
    def has_pairs(self) -> bool:
        return self.nodes.ndim == 2

    def to_json(self) -> bytes:
        objective = {"latencyMs": self.latency_ms, "accuracyTolerancePermille": self.tolerance_permille}
        stated = {name: number for name, number in objective.items() if number is not None}
        fields: dict[str, Any] = {
            "pairs" if self.has_pairs else "nodes": self.nodes.tolist(),
            "objective": stated or None,
            "strict": self.strict or None,
            "return": self.outputs,
            "overlay": brought_by(self.overlay, self.nodes.ravel()),
            "seed": self.seed,
            "variant": self.variant,
            "minOffset": self.min_offset,
            "priority": self.priority,
        }
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})

    def headers(self) -> dict[str, str]:
        """The wishes, as the binary form states them."""
        wishes = {
            LATENCY_HEADER: self.latency_ms,
            TOLERANCE_HEADER: self.tolerance_permille,
            STRICT_HEADER: "true" if self.strict else None,
            SEED_HEADER: self.seed,
            VARIANT_HEADER: self.variant,
            MIN_OFFSET_HEADER: self.min_offset,
            PRIORITY_HEADER: self.priority,
        }
        return {name: str(value) for name, value in wishes.items() if value is not None}

    def is_binary(self, refused: set[str]) -> bool:
        """`refused`: codes by which the server has refused arrays."""
        if len(self.outputs) > 1 or self.nodes.dtype.kind != "i" or "NoBinaryNodes" in refused:
            return False
        if self.outputs == ("labels",) and "NoBinaryLabels" in refused:
            return False
        return self.overlay is None or (isinstance(self.overlay, AnyOverlay) and self.overlay.is_binary(self.nodes))

    def call(self, *, is_binary: bool) -> Call:
        if not is_binary:
            return Call("POST", PATH, {"Content-Type": "application/json"}, self.to_json())
        path = f"{PATH}?return={self.outputs[0]}"
        if not isinstance(self.overlay, AnyOverlay):
            body, content_type = np.ascontiguousarray(self.nodes, "<i8").tobytes(), BINARY_TYPE
        else:
            body, content_type = self.overlay.to_bytes(self.nodes.ravel()), OVERLAY_TYPE
        return Call("POST", path, {"Content-Type": content_type, **self.headers()}, body)


def ask(
    nodes: ArrayLike,
    outputs: str | Sequence[str],
    overlay: AnyOverlay | Mapping[str, Any] | None,
    latency_ms: float | None,
    tolerance_permille: float | None,
    strict: bool,
    variant: str | None,
    seed: int | None,
    min_offset: int | None,
    priority: int | None,
    *,
    are_pairs: bool = False,
) -> PredictionRequest:
    """`nodes`: pairs of them where `are_pairs`. Raises InputError."""
    where, possible = ("pairs", _PAIR_OUTPUTS) if are_pairs else ("nodes", _OUTPUTS)
    ids = read_edges(nodes, where) if are_pairs else read_ids(nodes, where)
    wanted = (outputs,) if isinstance(outputs, str) else tuple(dict.fromkeys(outputs))
    for name in wanted:
        if name not in possible:
            raise InputError("outputs", f"{name!r} is unknown", f"choose from {', '.join(possible)}")
    if not len(ids) or not wanted:
        raise InputError("outputs" if len(ids) else where, "the list is empty", "name at least one")
    return PredictionRequest(
        ids,
        wanted,
        overlay,
        _number(latency_ms, "latency_ms"),
        _number(tolerance_permille, "tolerance_permille"),
        bool(strict),
        _variant(variant),
        _whole(seed, "seed"),
        _whole(min_offset, "min_offset"),
        _whole(priority, "priority"),
    )


def predict(asking: ClientState, question: PredictionRequest, timeout_s: float | None) -> Steps[Prediction]:
    """A request with a latency is not sent again when that has passed: its answer would be late."""
    latest_s = None if question.latency_ms is None else asking.now_s() + question.latency_ms / 1000
    if question.is_binary(asking.refused_as_arrays):
        try:
            reply = yield from asking.answered(question.call(is_binary=True), timeout_s, latest_s)
        except RefusedError as error:
            if error.code not in _NOT_AS_ARRAYS:
                raise
            asking.refused_as_arrays.add(error.code)
        else:
            return _read_binary(asking.endpoint.url, question, reply)
    reply = yield from asking.answered(question.call(is_binary=False), timeout_s, latest_s)
    return _read_json(asking, question, reply)


def _read_binary(url: str, question: PredictionRequest, reply: ServerReply) -> Prediction:
    headers, name = reply.headers, question.outputs[0]
    try:
        shape = tuple(int(length) for length in headers["gnnserve-shape"].split(","))
        array = np.frombuffer(reply.body, _ARRAY_TYPES[name]).reshape(shape)
        variant, revision = headers[VARIANT_HEADER], headers["gnnserve-revision"]
        offset = int(headers[OFFSET_HEADER]) if OFFSET_HEADER in headers else None
    except (KeyError, ValueError) as error:
        raise NotGnnserveError(url, f"it is no array of {name}: {error}") from error
    met = headers.get("gnnserve-objective-met") == "true"
    # A copy, since users may write into it; bytes of an answer cannot be written.
    outputs = {name: array.astype(array.dtype.newbyteorder("="), copy=True)}
    return _checked(url, question, reply, outputs, (variant, revision, met, offset, None))


def _read_json(asking: ClientState, question: PredictionRequest, reply: ServerReply) -> Prediction:
    url = asking.endpoint.url
    answer: PredictAnswer | PairsAnswer
    answer = asking.decode(reply.body, PairsAnswer) if question.has_pairs else asking.decode(reply.body, PredictAnswer)
    outputs: dict[str, NDArray[Any]] = {}
    for name in question.outputs:
        rows = getattr(answer, name)
        try:
            listed: list[Any] = [] if isinstance(rows, msgspec.UnsetType) else rows
            outputs[name] = labels_array(listed) if name == "labels" else np.array(listed, np.float32)
        except ValueError as error:
            raise NotGnnserveError(url, f"its {name} are no array: {error}") from error
    offset, tier = (
        None if isinstance(number, msgspec.UnsetType) else number for number in (answer.offset, answer.tier_permille)
    )
    return _checked(
        url, question, reply, outputs, (answer.variant, answer.revision, answer.objective_met, offset, tier)
    )


def _checked(
    url: str,
    question: PredictionRequest,
    reply: ServerReply,
    outputs: dict[str, NDArray[Any]],
    facts: tuple[str, str, bool, int | None, int | None],
) -> Prediction:
    for name, array in outputs.items():
        if len(array) != len(question.nodes):
            asked = "pairs" if question.has_pairs else "nodes"
            raise NotGnnserveError(url, f"{len(array)} {name} for {len(question.nodes)} {asked}")
    return Prediction(*facts, parse_server_timing(reply.headers.get("server-timing", "")), reply.elapsed_ms, outputs)


def _number(given: float | None, where: str) -> float | None:
    if given is None:
        return None
    number = float(given)
    if not math.isfinite(number):
        raise InputError(where, f"{number} is no number", "give one, or leave it out")
    return number


def _variant(given: str | None) -> str | None:
    if given is None or (isinstance(given, str) and given.isascii() and given.isprintable()):
        return given
    raise InputError("variant", f"{given!r} is no name of a variant", "take one of `variants()`, or leave it out")


def _whole(given: int | None, where: str) -> int | None:
    try:
        return None if given is None else operator.index(given)
    except TypeError:
        raise InputError(where, f"{given!r} is no integer", "give one, or leave it out") from None
