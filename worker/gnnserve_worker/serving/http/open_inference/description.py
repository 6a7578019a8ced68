"""The Open Inference Protocol's paths in the OpenAPI description, with the tensors of the served graph."""

from __future__ import annotations

from typing import Any

from gnnserve_worker.asking.tensors import Datatype
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.open_inference import JSON_LENGTH
from gnnserve_worker.serving.http.codecs.open_inference_paths import METHODS, ROOT, OpenInferenceCall
from gnnserve_worker.serving.http.open_inference.models import listed_models
from gnnserve_worker.serving.http.openapi_parts import RETRY_AFTER, header, told
from gnnserve_worker.serving.http.tensors.request import ALL_AS_BYTES, AS_BYTES, PARAMETERS, SIZE
from gnnserve_worker.serving.http.tensors.served import example_input, input_kinds

_MODEL = f"{ROOT}/models/{{model}}"
_VERSION = f"{_MODEL}/versions/{{version}}"
_OBJECT: dict[str, Any] = {"type": "object"}
_TEXT = {"type": "string"}
_NULLABLE = {"nullable": True}
_PATHS = {
    ROOT: (OpenInferenceCall.SERVER, "Name, version and extensions of the server"),
    f"{ROOT}/health/live": (OpenInferenceCall.LIVE, "Whether the process can still answer"),
    f"{ROOT}/health/ready": (OpenInferenceCall.SERVER_READY, "Whether requests should be sent here now"),
    _MODEL: (OpenInferenceCall.METADATA, "Versions, inputs and outputs of a model"),
    _VERSION: (OpenInferenceCall.METADATA, "Inputs and outputs of a version"),
    f"{_MODEL}/ready": (OpenInferenceCall.MODEL_READY, "Whether the model answers now"),
    f"{_VERSION}/ready": (OpenInferenceCall.MODEL_READY, "Whether the version answers now"),
    f"{_MODEL}/config": (OpenInferenceCall.CONFIG, "The model's configuration"),
    f"{_VERSION}/config": (OpenInferenceCall.CONFIG, "The version's configuration"),
    f"{_MODEL}/stats": (OpenInferenceCall.STATISTICS, "What the versions have answered, and the time it took"),
    f"{_VERSION}/stats": (OpenInferenceCall.STATISTICS, "What the version has answered, and the time it took"),
    f"{ROOT}/models/stats": (OpenInferenceCall.STATISTICS, "The statistics of all models"),
    f"{ROOT}/repository/index": (OpenInferenceCall.INDEX, "All models and their versions"),
    f"{ROOT}/repository/models/{{model}}/load": (
        OpenInferenceCall.LOAD,
        "Whether the model is loaded; clients load none",
    ),
    f"{_MODEL}/infer": (OpenInferenceCall.INFER, "Classify nodes"),
    f"{_VERSION}/infer": (OpenInferenceCall.INFER, "Classify nodes by this variant"),
}
_LISTS = frozenset({OpenInferenceCall.INDEX})
"""Calls that are answered by a list."""


def describe_open_inference(service: str, revision: ServedRevision | None) -> dict[str, Any]:
    """Paths of OpenAPI. `revision`: None: any graph."""
    return {
        path: {METHODS[call].lower(): _describe(service, path, call, summary, revision)}
        for path, (call, summary) in _PATHS.items()
    }


def _describe(
    service: str, path: str, call: OpenInferenceCall, summary: str, revision: ServedRevision | None
) -> dict[str, Any]:
    models = [service] if revision is None else [model.name for model in listed_models(service, revision)]
    places = {"model": models, "version": [] if revision is None else list(revision.capabilities)}
    parameters: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _TEXT | ({"enum": names} if names else {}),
        }
        for name, names in places.items()
        if f"{{{name}}}" in path
    ]
    answer = {"type": "array", "items": _OBJECT} if call in _LISTS else _OBJECT
    described: dict[str, Any] = {
        "tags": ["open inference protocol"],
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": _json_response("What is asked for.", answer),
            "404": _error("No such model."),
            "503": _error("The worker is loading or about to stop.", RETRY_AFTER),
        },
    }
    if call is OpenInferenceCall.INDEX:
        ready = {"ready": {"type": "boolean", "description": "Only models that answer now."}}
        described["requestBody"] = _json_body({"type": "object", "properties": ready, "additionalProperties": False})
        described["responses"]["400"] = _error("The body is no index request.")
    if call is OpenInferenceCall.LOAD:
        described["requestBody"] = _json_body({"type": "object", "properties": {}, "additionalProperties": False})
        described["responses"]["400"] = _error("The body is no such request, or configures the model.")
    if "{version}" in path:
        described["responses"]["400"] = _error("No such version.")
    return (
        described if call is not OpenInferenceCall.INFER else described | _describe_infer(described, service, revision)
    )


def _describe_infer(described: dict[str, Any], service: str, revision: ServedRevision | None) -> dict[str, Any]:
    length = header(JSON_LENGTH.decode(), "Bytes of JSON, behind which tensors stand as bytes.", "integer")
    body = _json_body(_request_schema(service, revision), _example(revision))
    body["required"] = True
    body["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    answer = _json_response("The tensors that are asked for.", _answer_schema())
    answer["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    answer["headers"] = {
        JSON_LENGTH.decode(): told("Where tensors come as bytes: the length of the JSON before them.", "210"),
        "Server-Timing": told("Milliseconds in each stage, as of POST /v1/predict.", "queue;dur=0.052"),
    }
    return {
        "description": "An objective may stand in parameters, or in the headers of POST /v1/predict. A version is a "
        "variant. A model whose name ends in .recommend takes a node, and answers with nodes to recommend for it. "
        "Errors are one sentence; the header gnnserve-error has its code.",
        "parameters": [*described["parameters"], length],
        "requestBody": body,
        "responses": {
            **described["responses"],
            "200": answer,
            "400": _error("The request is malformed, or names what there is not."),
            "405": _error("Another method than POST."),
            "409": _error("The graph does not change, so that it has no offset."),
            "413": _error("The body or the overlay is too large: split the request."),
            "422": _error("The request is strict, and no variant can meet its objective."),
            "429": _error("The queue is full, or the deadline is out of reach now.", RETRY_AFTER),
            "500": _error("An error of the worker; the log has the id that the message names."),
        },
    }


def _request_schema(service: str, revision: ServedRevision | None) -> dict[str, Any]:
    names, outputs, own = {}, {}, dict[str, Any]()
    if revision is not None:
        models = [model.asked_of(revision) for model in listed_models(service, revision)]
        names = {"enum": [*dict.fromkeys(name for asked in models for name in input_kinds(asked, revision))]}
        outputs = {"enum": [*dict.fromkeys(name for asked in models for name in asked.tensors.names)]}
        own = {
            name: {"type": "integer" if kind is int else "string"}
            for asked in models
            for name, (kind, _) in asked.tensors.own.parameters.items()
        }
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "additionalProperties": False,
        "properties": {
            "name": _TEXT | names,
            "shape": {"type": "array", "items": {"type": "integer"}},
            "datatype": _TEXT | {"enum": [Datatype.INT64, Datatype.FP32, Datatype.BYTES]},
            "data": {"type": "array", "items": {}},
            "parameters": _parameters({SIZE: {"type": "integer"}}),
        },
    }
    output = {
        "type": "object",
        "required": ["name"],
        "additionalProperties": False,
        "properties": {"name": _TEXT | outputs, "parameters": _parameters({AS_BYTES: {"type": "boolean"}})},
    }
    are_flags = ("strict", ALL_AS_BYTES)
    return {
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": False,
        "properties": {
            "id": _TEXT | _NULLABLE,
            "model_name": _TEXT | _NULLABLE,
            "model_version": _TEXT | _NULLABLE,
            "inputs": {"type": "array", "items": tensor},
            "outputs": {"type": "array", "items": output, **_NULLABLE},
            "parameters": _parameters(
                {name: {"type": "boolean" if name in are_flags else "number"} for name in PARAMETERS} | own
            ),
        },
    }


def _parameters(properties: dict[str, Any]) -> dict[str, Any]:
    nullable = {name: schema | _NULLABLE for name, schema in properties.items()}
    return {"type": "object", "additionalProperties": False, "properties": nullable, **_NULLABLE}


def _answer_schema() -> dict[str, Any]:
    tensor = {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {
            "name": _TEXT,
            "datatype": _TEXT,
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array", "items": {}},
            "parameters": _OBJECT,
        },
    }
    return {
        "type": "object",
        "required": ["model_name", "model_version", "outputs", "parameters"],
        "properties": {
            "id": _TEXT,
            "model_name": _TEXT,
            "model_version": _TEXT,
            "outputs": {"type": "array", "items": tensor},
            "parameters": _OBJECT,
        },
    }


def _example(revision: ServedRevision | None) -> dict[str, Any]:
    if revision is not None:
        return {"inputs": [example_input(revision.task, revision)]}
    return {"inputs": [{"name": "nodes", "datatype": Datatype.INT64, "shape": [2], "data": [3, 7]}]}


def _json_body(schema: dict[str, Any], example: Any = None) -> dict[str, Any]:
    media = {"schema": schema} if example is None else {"schema": schema, "example": example}
    return {"content": {"application/json": media}}


def _json_response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, **_json_body(schema)}


def _error(description: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    schema = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
    return _json_response(description, schema) | ({"headers": headers} if headers else {})
