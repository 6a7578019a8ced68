"""Paths of the Open Inference Protocol over HTTP: which call, of which model and version."""

from __future__ import annotations

from enum import StrEnum

import msgspec

ROOT = "/v2"
_MODELS = f"{ROOT}/models/"
_INFER = "/infer"


class OpenInferenceCall(StrEnum):
    """Calls that a path may ask for."""

    SERVER = "server"
    LIVE = "live"
    SERVER_READY = "server-ready"
    METADATA = "metadata"
    """Inputs, outputs and versions of a model."""
    MODEL_READY = "model-ready"
    CONFIG = "config"
    STATISTICS = "statistics"
    INFER = "infer"
    INDEX = "index"
    LOAD = "load"
    UNLOAD = "unload"


_OF_MODEL = {
    (): OpenInferenceCall.METADATA,
    ("ready",): OpenInferenceCall.MODEL_READY,
    ("config",): OpenInferenceCall.CONFIG,
    ("stats",): OpenInferenceCall.STATISTICS,
    ("infer",): OpenInferenceCall.INFER,
}
_OF_SERVER = {
    (): OpenInferenceCall.SERVER,
    ("health", "live"): OpenInferenceCall.LIVE,
    ("health", "ready"): OpenInferenceCall.SERVER_READY,
    ("models", "stats"): OpenInferenceCall.STATISTICS,
    ("repository", "index"): OpenInferenceCall.INDEX,
}
_POSTED = {OpenInferenceCall.INFER, OpenInferenceCall.INDEX, OpenInferenceCall.LOAD, OpenInferenceCall.UNLOAD}
METHODS = {call: "POST" if call in _POSTED else "GET" for call in OpenInferenceCall}


_REPOSITORY = ("repository", "models")
_OF_REPOSITORY = {"load": OpenInferenceCall.LOAD, "unload": OpenInferenceCall.UNLOAD}


class OpenInferencePath(msgspec.Struct, frozen=True):
    call: OpenInferenceCall
    model: str | None = None
    """None: every model."""
    version: str | None = None
    """None: the one that the server chooses."""


def is_open_inference(path: str) -> bool:
    """Whether the path is one of the protocol's, known or not: its errors have the protocol's form."""
    return path == ROOT or path.startswith(f"{ROOT}/")


def find_inference(path: str) -> OpenInferencePath | None:
    """The place of a prediction; None: the path is another one. Called for every head that was not read before."""
    if not (path.startswith(_MODELS) and path.endswith(_INFER)):
        return None
    place = read_path(path)
    return place if place is not None and place.call is OpenInferenceCall.INFER else None


def read_path(path: str) -> OpenInferencePath | None:
    """None: the protocol has no such path."""
    if not is_open_inference(path):
        return None
    parts = tuple(path.split("/")[2:])
    if (call := _OF_SERVER.get(parts)) is not None:
        return OpenInferencePath(call)
    if len(parts) == 4 and parts[:2] == _REPOSITORY and parts[2]:
        call = _OF_REPOSITORY.get(parts[3])
        return None if call is None else OpenInferencePath(call, parts[2])
    if len(parts) < 2 or parts[0] != "models" or not parts[1]:
        return None
    model, rest, version = parts[1], parts[2:], None
    if len(rest) >= 2 and rest[0] == "versions":
        version, rest = rest[1], rest[2:]
    call = _OF_MODEL.get(rest)
    return None if call is None else OpenInferencePath(call, model, version)
