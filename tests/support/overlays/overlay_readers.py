"""A request that brings an overlay as it is drafted, and plain readers of what it is written in.

A reader makes sense of bytes as simply as can be, by Python's own JSON and struct, and shares nothing with the worker's
codecs but protobuf's classes. What it cannot make sense of is None.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from tests.support.overlays.overlay_oracle import COLUMNS, FEATURES, NODES, VARIANTS, Meaning

from gnnserve_worker.serving.grpc.messages import ModelInferRequest


class Form(StrEnum):
    JSON = "JSON"
    ARRAYS = "arrays"
    TENSORS = "tensors in JSON"
    BEHIND = "tensors behind JSON"
    GRPC = "gRPC"


@dataclass(slots=True)
class Draft:
    """A request before it is written, with ids as its form calls nodes."""

    form: Form
    variant: str
    asked: list[Any]
    new: list[Any]
    rows: list[list[float]]
    """Features of the new nodes."""
    edges: list[list[Any]]
    overridden: list[Any]
    other_rows: list[list[float]]
    """Features of the overridden nodes."""

    def meaning(self) -> Meaning:
        """Raises ValueError where the draft has none."""
        places = {id_: NODES + k for k, id_ in enumerate(self.new)}
        if len(places) < len(self.new) or any(is_stored(id_) for id_ in places):
            raise ValueError("a new node is a stored one, or there twice")

        def place(id_: Any) -> int:
            if id_ in places:
                return places[id_]
            if not is_stored(id_):
                raise ValueError(f"{id_} is no node")
            return int(id_)

        stored = [place(id_) for id_ in self.overridden]
        if len(set(stored)) < len(stored) or any(node >= NODES for node in stored):
            raise ValueError("an override is of a new node, or there twice")
        rows = np.array(self.rows, np.float64).reshape(len(self.new), FEATURES)
        others = np.array(self.other_rows, np.float64).reshape(len(stored), FEATURES)
        if not (np.isfinite(rows).all() and np.isfinite(others).all()):
            raise ValueError("features are not finite")
        return Meaning(
            self.variant,
            np.array([place(id_) for id_ in self.asked], np.int64),
            rows,
            np.array([[place(end) for end in edge] for edge in self.edges], np.int64).reshape(len(self.edges), 2),
            dict(zip(stored, others, strict=True)),
        )


def is_stored(id_: Any) -> bool:
    return bool(0 <= id_ < NODES and int(id_) == id_)


def read_json(body: bytes, features: np.ndarray) -> Meaning | None:
    """What such a body means to a plain reader of JSON; None: nothing."""
    try:
        asked = json.loads(body, parse_constant=_refuse)
        overlay = asked.get("overlay") or {}
        nodes, overrides = overlay.get("nodes", ()), overlay.get("overrides", ())
        draft = Draft(
            Form.JSON, asked["variant"], [_whole(id_) for id_ in asked["nodes"]],
            [_whole(node["id"]) for node in nodes], [_read_row(node["features"], None) for node in nodes],
            [[_whole(end) for end in edge] for edge in overlay.get("edges", ())],
            stored := [_whole(node["id"]) for node in overrides],
            [
                _read_row(node["features"], features[id_] if is_stored(id_) else None)
                for id_, node in zip(stored, overrides, strict=True)
            ],
        )  # fmt: skip
        return _readable(draft)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _refuse(constant: str) -> float:
    raise ValueError(constant)


def _whole(id_: Any) -> int:
    if isinstance(id_, str) or int(id_) != id_:
        raise ValueError("no integer")
    return int(id_)


def _read_row(given: Any, stored: np.ndarray | None) -> list[float]:
    if isinstance(given, list):
        return [float(value) for value in given]
    row, start = list[float](), 0
    for column in COLUMNS:
        place = slice(start, start + column.width)
        start += column.width
        if column.name not in given:
            if stored is None and column.fill is None:
                raise ValueError("a column is missing")
            row += stored[place].tolist() if stored is not None else list(column.fill or ())
            continue
        value = given[column.name]
        row += value if isinstance(value, list) else [value]
    return row


def _readable(draft: Draft) -> Meaning:
    """Raises ValueError where it means nothing."""
    if not draft.asked or draft.variant not in VARIANTS:
        raise ValueError("nothing is asked for")
    return draft.meaning()


def read_arrays(body: bytes, variant: str) -> Meaning | None:
    """What such a body means to a plain reader; None: nothing."""
    try:
        asked, new, edges, overridden = counts = struct.unpack_from("<4q", body)
        ids = asked + 2 * edges + overridden
        if min(counts) < 0 or len(body) != 32 + 8 * ids + 4 * FEATURES * (new + overridden):
            return None
        numbers = list(struct.unpack_from(f"<{ids}q", body, 32))
        values = struct.unpack_from(f"<{FEATURES * (new + overridden)}f", body, 32 + 8 * ids)
        rows = [list(values[k : k + FEATURES]) for k in range(0, len(values), FEATURES)]
        ends = numbers[asked : asked + 2 * edges]
        return _readable(
            Draft(
                Form.ARRAYS,
                variant,
                numbers[:asked],
                [-1 - k for k in range(new)],
                rows[:new],
                [ends[k : k + 2] for k in range(0, len(ends), 2)],
                numbers[asked + 2 * edges :],
                rows[new:],
            )
        )
    except (struct.error, ValueError, OverflowError):
        return None


def read_tensors_of_json(body: bytes, json_bytes: int | None, variant: str) -> Meaning | None:
    """What such a body means to a plain reader; None: nothing."""
    try:
        asked, behind = json.loads(body[:json_bytes], parse_constant=_refuse), body[json_bytes or len(body) :]
        found = dict[str, list[Any]]()
        for tensor in asked["inputs"]:
            size = (tensor.get("parameters") or {}).get("binary_data_size")
            if size is None:
                values = np.array(tensor["data"]).ravel().tolist()
            else:
                values, behind = _unpacked(tensor["datatype"], behind[: int(size)]), behind[int(size) :]
            found[tensor["name"]] = values
        return None if behind else _read_tensors(found, variant)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, struct.error):
        return None


def read_message(body: bytes, _json_bytes: int | None, variant: str) -> Meaning | None:
    """What such a message means to a plain reader; None: nothing."""
    try:
        message = ModelInferRequest.FromString(body)
        found = dict[str, list[Any]]()
        for place, tensor in enumerate(message.inputs):
            contents = tensor.contents
            if message.raw_input_contents:
                values = _unpacked(tensor.datatype, message.raw_input_contents[place])
            else:
                values = [*(contents.fp32_contents if tensor.datatype == "FP32" else contents.int64_contents)]
            found[tensor.name] = values
        return _read_tensors(found, message.model_version or variant)
    except Exception:  # noqa: BLE001  (whatever protobuf says of bytes at random)
        return None


def _unpacked(datatype: str, data: bytes) -> list[Any]:
    size, code = (4, "f") if datatype == "FP32" else (8, "q")
    return list(struct.unpack(f"<{len(data) // size}{code}", data))


def _read_tensors(found: Mapping[str, list[Any]], variant: str) -> Meaning:
    ends = [_whole(end) for end in found.get("overlay.edges", [])]
    rows = {
        name: [
            found.get(f"{name}.features", [])[k : k + FEATURES]
            for k in range(0, len(found.get(f"{name}.features", [])), FEATURES)
        ]
        for name in ("overlay.nodes", "overlay.overrides")
    }
    return _readable(
        Draft(
            Form.TENSORS,
            variant,
            [_whole(id_) for id_ in found["nodes"]],
            [_whole(id_) for id_ in found.get("overlay.nodes", [])],
            rows["overlay.nodes"],
            [ends[k : k + 2] for k in range(0, len(ends), 2)],
            [_whole(id_) for id_ in found.get("overlay.overrides", [])],
            rows["overlay.overrides"],
        )
    )
